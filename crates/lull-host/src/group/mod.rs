//! Busy-polling CPU groups (§15) on threads: one pinned thread per CPU of a group runs the core's step machine.
//!
//! A group's CPU is a lull CPU. Its poller holds that CPU's seat while it polls, so that interrupts of other instances cost no
//! second thread there, and gives it up before it sleeps.

pub(crate) mod control;
pub mod error;
pub(crate) mod nodes;
mod thread;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use lull_core::group::watch::GROUP_POLLERS_MAX;
use lull_core::group::{Census, GroupWake, PollerInfo};
use lull_core::{BusyStop, BusyStopped, Cx, Group, GroupConfig, Schedule};

use crate::delivery::{Delivery, Instance};
use crate::parker::Parker;
use crate::sync::relock;

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
    pub(crate) join: std::thread::ThreadId,
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

impl Delivery {
    /// The group that an instance is a member of, and its place there.
    pub(crate) fn group_of(&self, instance: &Instance) -> Option<(Arc<HostGroup>, u16)> {
        let word = instance.group.load(Ordering::Acquire);
        let index = (word >> 16).checked_sub(1)?;
        let groups = self.groups.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Some((groups.get(index as usize)?.clone()?, word as u16))
    }

    /// The interrupt of a group's member: it goes to the group, past the seat of its CPU.
    #[cold]
    pub(crate) fn raise_member(&self, instance: &Instance) {
        let cpu = self.cpu(instance.cpu());
        let cx = self.cx(cpu.index, self.clock.now_ns());
        cpu.interrupts.fetch_add(1, Ordering::Relaxed);
        instance.irqs.fetch_add(1, Ordering::Relaxed);
        match instance.napi.schedule(&cx) {
            Schedule::Group => self.member_raised(instance, &cx),
            // It has just left its group.
            Schedule::Owned(owner) => self.route_outside(cpu, instance, owner, &cx),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    /// A member was scheduled: it is visited, by a poller that rested if need be.
    pub(crate) fn member_raised(&self, instance: &Instance, cx: &Cx<'_>) {
        // Not known yet: it is about to be a member, and whoever makes it one raises it afterwards.
        let Some((group, slot)) = self.group_of(instance) else { return };
        if let Some(wake) = group.group.raised(slot, cx) {
            self.wake_poller(&group, &wake);
        }
    }

    /// A sender left a frame to the group that runs the transmit queue of instance `index` ([`lull_core::tx::Enqueued::Group`]).
    pub fn enqueued(&self, index: u32) {
        let Some(instance) = self.instance(index) else { return };
        // Not known yet: it is about to be a member, and its first visit does not wait for a hint.
        let Some((group, slot)) = self.group_of(&instance) else { return };
        let cx = self.cx(instance.cpu(), self.clock.now_ns());
        if let Some(wake) = group.group.enqueued(slot, &cx) {
            self.wake_poller(&group, &wake);
        }
    }

    /// Wakes a poller whose bit is set.
    pub(crate) fn wake_poller(&self, group: &HostGroup, wake: &GroupWake) {
        // A poller's thread is listed before its bit can be set, and until it has drained.
        if let Some(thread) = &relock(&group.threads)[usize::from(wake.slot)] {
            thread.parker.wake(&self.cpu(wake.cpu).sleeps);
        }
    }

    /// What a member that leaves its group is owed: as after a busy loop, its last poll and what that decides.
    pub(crate) fn leave_group(&self, instance: &Instance, stop: BusyStop) {
        // A rest may have left it unmasked; the completion decides anew.
        instance.vector.mask();
        let budget = stop.budget();
        // What senders left to the group of a transmit queue is sent now; then a poll finds nothing, or what came since.
        let left = self.contain(instance, "a transmit queue that leaves its group", |receiver| {
            if let Some(transmitter) = receiver.transmitter() {
                transmitter.group_leave(self);
            }
        });
        if left.is_none()
            && let Some(transmitter) = instance.receiver.transmitter()
        {
            // Whoever takes the queue away waits for the end of a run.
            transmitter.group_lost();
        }
        let work =
            self.contained_poll(instance, "the last poll of a group", budget, |receiver| receiver.poll(self, budget));
        let cpu = self.cpu(instance.cpu());
        let cx = self.cx(cpu.index, self.clock.now_ns());
        let owner = match stop.polled(&instance.napi, work, false, &cx, |_| ()) {
            BusyStopped::Completed(completion) => self.carry_out(instance, completion, false, &cx),
            BusyStopped::ToSoftirq(owner) => Some(owner),
        };
        self.cover(cpu);
        if let Some(owner) = owner {
            self.route_outside(cpu, instance, owner, &cx);
        }
    }
}
