//! Busy-polling CPU groups: which CPUs poll which queues.

use lull_core::GroupConfig;
use lull_core::settings::WEIGHT_DEFAULT;

/// A queue that a group polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemberSpec {
    /// The queue. It is in no other group, and is not threaded.
    pub queue: u32,
    /// How many packets it may take per visit.
    pub weight: u32,
}

/// A busy-polling CPU group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its CPUs. Each is in one group at most.
    pub cpus: Vec<u16>,
    /// Its members, which enter when the world begins.
    pub members: Vec<GroupMemberSpec>,
    /// How it behaves; within the core's limits.
    pub config: GroupConfig,
}

impl GroupSpec {
    /// Makes a group of these CPUs that polls these queues with the default weight.
    pub fn new(cpus: Vec<u16>, queues: impl IntoIterator<Item = u32>, config: GroupConfig) -> GroupSpec {
        let member = |queue| GroupMemberSpec { queue, weight: WEIGHT_DEFAULT };
        GroupSpec { cpus, members: queues.into_iter().map(member).collect(), config }
    }
}
