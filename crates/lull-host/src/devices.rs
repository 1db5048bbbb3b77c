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
}
