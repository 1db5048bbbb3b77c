//! The devices of a host, by the ids that they were given.

use std::collections::BTreeMap;

use lull_core::DeviceConfig;

use crate::error::HostError;

/// A device as the host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) u32);

/// The devices of a host.
#[derive(Default)]
pub(crate) struct Devices {
    by_id: BTreeMap<DeviceId, Device>,
    /// Ids that were given out. None is given out twice.
    made: u32,
}

impl Devices {
    pub(crate) fn add(&mut self, device: Device) -> DeviceId {
        self.made += 1;
        let id = DeviceId(self.made);
        self.by_id.insert(id, device);
        id
    }

    pub(crate) fn get(&self, id: DeviceId) -> Option<&Device> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: DeviceId) -> Result<&mut Device, HostError> {
        self.by_id.get_mut(&id).ok_or(HostError::NoDevice { ifindex: id.ifindex() })
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.by_id.values_mut()
    }

    pub(crate) fn remove(&mut self, id: DeviceId) {
        self.by_id.remove(&id);
    }
}

impl DeviceId {
    /// Devices are numbered from 1, as Linux does.
    pub(crate) fn ifindex(self) -> u32 {
        self.0
    }
}

pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) config: DeviceConfig,
    /// Index of the instance of each queue.
    pub(crate) napis: Vec<Option<u32>>,
    /// The group that each queue is a member of, and with which weight; kept over a disable.
    pub(crate) groups: Vec<Option<(u32, u32)>>,
}

impl Device {
    /// A queue that a group has: its instance, and the group's number.
    pub(crate) fn first_member(&self) -> Option<(u32, u32)> {
        let queues = self.napis.iter().zip(&self.groups);
        queues.filter_map(|(napi, group)| Some(((*napi)?, (*group)?.0))).next()
    }
}
