//! What a group is made of, and how one is shown. Nothing here delivers.

use std::sync::Arc;

use lull_core::group::watch::GROUP_POLLERS_MAX;
use lull_core::group::{Census, PollerInfo};
use lull_core::{Group, GroupConfig};

use crate::parker::Parker;
use crate::sync::{Mutex, thread::ThreadId};

/// A group of a host, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The number, from 0.
    pub fn index(self) -> u32 {
        self.0
    }

    /// The group of this number, if there is one.
    pub fn from_index(index: u32) -> GroupId {
        GroupId(index)
    }
}

/// How a group is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupOptions {
    /// How it polls.
    pub config: GroupConfig,
    /// Whether it may have CPUs, and NAPIs, of several NUMA nodes.
    pub any_node: bool,
    /// Whether the host may have as many pollers as it has cores, and more. They then wait for one another.
    pub oversubscribe: bool,
}

/// A group, as [`Host::groups`](crate::Host::groups) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// Its number.
    pub id: GroupId,
    /// How it was made.
    pub options: GroupOptions,
    /// Its NUMA node: that of its first CPU.
    pub node: Option<usize>,
    /// Its members: indices of instances, with the packets that each may take per visit.
    pub members: Vec<(u32, u32)>,
    /// Its pollers.
    pub pollers: Vec<GroupPollerInfo>,
    /// How many there are of each.
    pub census: Census,
}

/// One poller of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupPollerInfo {
    /// What the core knows of it.
    pub info: PollerInfo,
    /// The core of the machine that it is pinned to.
    pub core: Option<usize>,
    /// The kernel's id of its thread.
    pub tid: i32,
    /// For how many nanoseconds it has had the member that it serves now.
    pub claim_age_ns: Option<u64>,
}

/// The thread of one poller.
pub(crate) struct PollerThread {
    pub(crate) parker: Arc<Parker>,
    pub(crate) tid: i32,
    pub(crate) join: ThreadId,
    pub(crate) cpu: u16,
}

/// One group with its threads.
pub(crate) struct HostGroup {
    pub(crate) group: Group,
    pub(crate) options: GroupOptions,
    /// By the poller's slot.
    pub(crate) threads: Mutex<[Option<PollerThread>; GROUP_POLLERS_MAX]>,
    /// The node of the first CPU.
    pub(crate) node: Mutex<Option<usize>>,
}

/// Where an instance is a member, in one word: the group's number plus one, and its place there. 0 is nowhere.
pub(crate) fn membership(group: u32, slot: u16) -> u64 {
    u64::from(group + 1) << 16 | u64::from(slot)
}
