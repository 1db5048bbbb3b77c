//! Why a group could not be made or changed.

use lull_core::group::GroupConfigError;

/// Why a group could not be made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The configuration is outside its limits.
    #[error("cannot make a group: {0}")]
    Config(GroupConfigError),
    /// There is no such group.
    #[error("there is no group {group}: make one first")]
    NoGroup {
        /// Its number.
        group: u32,
    },
    /// There is no such CPU.
    #[error("cannot attach CPU {cpu} to group {group}: this host has CPUs 0 to {last}")]
    NoCpu {
        /// The group.
        group: u32,
        /// The CPU that was asked for.
        cpu: u16,
        /// The last one there is.
        last: usize,
    },
    /// A group has that CPU.
    #[error("cannot attach CPU {cpu} to group {group}: group {by} has it; detach it there first")]
    CpuTaken {
        /// The group.
        group: u32,
        /// The CPU.
        cpu: u16,
        /// The group that has it.
        by: u32,
    },
    /// The group does not have that CPU.
    #[error("cannot detach CPU {cpu}: group {group} does not have it")]
    NotAttached {
        /// The group.
        group: u32,
        /// The CPU.
        cpu: u16,
    },
    /// The group has as many pollers as it can.
    #[error("cannot attach another CPU to group {group}: a group has at most {max}; make a second group")]
    PollersFull {
        /// The group.
        group: u32,
        /// How many there can be.
        max: usize,
    },
    /// There would be no core left for the application.
    #[error(
        "cannot attach CPU {cpu} to group {group}: its poller would be number {pollers} on {cores} usable cores, and one \
         has to be left for the application; detach another, or allow it (oversubscribe)"
    )]
    Oversubscribed {
        /// The group.
        group: u32,
        /// The CPU.
        cpu: u16,
        /// Pollers that there would be.
        pollers: usize,
        /// Cores that the process may use.
        cores: usize,
    },
    /// A CPU or a NAPI of another NUMA node.
    #[error("cannot add {what} to group {group}: it is on NUMA node {node}, the group on {of}; allow it (any-node)")]
    OtherNode {
        /// The group.
        group: u32,
        /// The CPU or the NAPI.
        what: String,
        /// Its node.
        node: usize,
        /// The group's.
        of: usize,
    },
    /// The group has no CPU to poll with.
    #[error("cannot add NAPI instance {napi} to group {group}: the group has no CPU; attach one first")]
    NoPoller {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
    },
    /// Another group has the instance.
    #[error("cannot add NAPI instance {napi} to group {group}: it is in group {by}; remove it there first")]
    NapiTaken {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
        /// The group that has it.
        by: u32,
    },
    /// The instance has a NAPI thread.
    #[error("cannot add NAPI instance {napi} to group {group}: its NAPI thread polls it; set threaded=off first")]
    Threaded {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
    },
    /// Somebody polls the instance without a pause.
    #[error(
        "cannot add NAPI instance {napi} to group {group}: its owner did not let go of it for {waited_ms} ms; end what \
         busy polls it, then try again"
    )]
    Owned {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// The group has as many members as it can.
    #[error("cannot add NAPI instance {napi} to group {group}: a group has at most {max} members; make a second group")]
    MembersFull {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
        /// How many there can be.
        max: usize,
    },
    /// The instance is not in the group.
    #[error("cannot remove NAPI instance {napi}: group {group} does not have it")]
    NotMember {
        /// The group.
        group: u32,
        /// The instance.
        napi: u32,
    },
    /// A weight outside its limits.
    #[error("cannot give a member a weight of {weight}: it is 1 to {max} packets")]
    Weight {
        /// As given.
        weight: u32,
        /// The largest.
        max: u32,
    },
    /// Threading and groups exclude each other.
    #[error("cannot set threaded on NAPI instance {napi}: group {group} polls it; remove it from the group first")]
    Grouped {
        /// The instance.
        napi: u32,
        /// The group.
        group: u32,
    },
}
