//! Busy-polling CPU groups (§15) on threads: one pinned thread per CPU of a group runs the core's step machine.
//!
//! A group's CPU is a lull CPU. Its poller holds that CPU's seat while it polls, so that interrupts of other instances cost no
//! second thread there, and gives it up before it sleeps.

pub(crate) mod control;
pub mod error;
pub(crate) mod nodes;
pub(crate) mod parts;
mod thread;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::group::GroupWake;
use lull_core::{BusyStop, BusyStopped, Cx, Schedule};

pub use self::parts::{GroupId, GroupInfo, GroupOptions, GroupPollerInfo};

use self::parts::HostGroup;
use crate::delivery::{Delivery, Instance};
use crate::sync::relock;

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
            // The instance has just left its group.
            Schedule::Owned(owner) => self.route_outside(cpu, instance, owner, &cx),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    /// A member was scheduled: it is visited, by a poller that rested if need be.
    pub(crate) fn member_raised(&self, instance: &Instance, cx: &Cx<'_>) {
        // If its group is not known yet, it is about to be a member, and whoever makes it one raises it afterwards.
        let Some((group, slot)) = self.group_of(instance) else { return };
        if let Some(wake) = group.group.raised(slot, cx) {
            self.wake_poller(&group, &wake);
        }
    }

    /// A sender left a frame to the group that runs the transmit queue of instance `index` ([`lull_core::tx::Enqueued::Group`]).
    pub fn enqueued(&self, index: u32) {
        let Some(instance) = self.instance(index) else { return };
        // If its group is not known yet, it is about to be a member, and its first visit does not wait for a hint.
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

    /// Does what a member that leaves its group is owed, as after a busy loop: its last poll, and what that decides.
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
            // Whoever takes the queue away waits for the run to end.
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
