//! Which instances exist, for tools and for whoever has an id: one registry, keyed by (ifindex, id).

use std::collections::BTreeMap;

use lull_core::{NAPI_ID_MIN, NapiSettings, Snapshot, Stats};

use crate::sync::{Mutex, MutexGuard};

/// What is known of an instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NapiInfo {
    /// The device's index.
    pub ifindex: u32,
    /// The device's name.
    pub device: String,
    /// Queue on the device.
    pub queue: usize,
    /// Its id; 0 while disabled.
    pub id: u32,
    /// Its place in the host's table.
    pub index: u32,
    /// The CPU of its interrupt.
    pub cpu: u16,
    /// The settings in force.
    pub settings: NapiSettings,
    /// The state word.
    pub state: Snapshot,
    /// The counters.
    pub stats: Stats,
    /// The kernel's thread id of its NAPI thread, if it has one.
    pub thread: Option<i32>,
    /// The queueing discipline, if it is the instance of a transmit queue.
    pub qdisc: Option<&'static str>,
    /// Why its queue was taken down, if it was: a panic above it.
    pub failure: Option<String>,
}

/// A change that the registry tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NapiChange {
    /// An instance was enabled: it has this id now.
    Enabled {
        /// The device's index.
        ifindex: u32,
        /// The instance's id.
        id: u32,
    },
    /// An instance was disabled: it had this id.
    Disabled {
        /// The device's index.
        ifindex: u32,
        /// The instance's id.
        id: u32,
    },
    /// Its settings were changed.
    Settings {
        /// The device's index.
        ifindex: u32,
        /// The instance's id; 0 while disabled.
        id: u32,
    },
}

type Watcher = Box<dyn Fn(NapiChange) + Send + Sync>;

/// Where ids begin. A program may have sockets of lull's and of the kernel's, and tells their queues apart by SO_INCOMING_NAPI_ID,
/// which is an `int`: so no id of ours may be one of the kernel's, nor negative. The kernel counts from the number of CPUs that it
/// was built for upwards, one for each instance that is ever made (`napi_hash_add`), and comes here after a thousand million.
const IDS_FROM: u32 = 1 << 30;
const _: () = assert!(IDS_FROM >= NAPI_ID_MIN);

#[derive(Default)]
pub(crate) struct Registry {
    ids: Mutex<Ids>,
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Default)]
struct Ids {
    by_key: BTreeMap<(u32, u32), u32>,
    by_id: BTreeMap<u32, u32>,
    made: u32,
}

impl Registry {
    /// Makes a registry that leaves the first `left` ids to others.
    pub(crate) fn after(left: u32) -> Registry {
        Registry { ids: Mutex::new(Ids { made: left, ..Ids::default() }), watchers: Mutex::default() }
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        // Every change is one map operation: a panic elsewhere cannot leave it half-made.
        self.ids.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An id that was never given out.
    pub(crate) fn fresh_id(&self) -> u32 {
        let mut ids = self.ids();
        ids.made += 1;
        IDS_FROM + ids.made
    }

    pub(crate) fn enabled(&self, ifindex: u32, id: u32, index: u32) {
        let mut ids = self.ids();
        ids.by_key.insert((ifindex, id), index);
        ids.by_id.insert(id, index);
    }

    pub(crate) fn disabled(&self, ifindex: u32, id: u32) {
        let mut ids = self.ids();
        ids.by_key.remove(&(ifindex, id));
        ids.by_id.remove(&id);
    }

    /// `napi_by_id`: ids are unique over all devices, as in Linux.
    pub(crate) fn by_id(&self, id: u32) -> Option<u32> {
        self.ids().by_id.get(&id).copied()
    }

    pub(crate) fn by_key(&self, ifindex: u32, id: u32) -> Option<u32> {
        self.ids().by_key.get(&(ifindex, id)).copied()
    }

    pub(crate) fn watch(&self, watcher: Watcher) {
        self.watchers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(watcher);
    }

    pub(crate) fn tell(&self, change: NapiChange) {
        let watchers = self.watchers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        watchers.iter().for_each(|watcher| watcher(change));
    }
}
