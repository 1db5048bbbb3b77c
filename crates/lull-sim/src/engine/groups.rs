//! Busy-polling CPU groups: what an operator does to them, and which pollers notice what arrives.
//!
//! The rules are the core's ([`lull_core::group`]); a poller's thread runs [`GroupPollerProgram`]. A poller makes its
//! empty passes in one segment. A packet that arrives for a member ends the segment with the pass in which it comes.

use std::sync::Arc;

use lull_core::group::{AttachRefused, EnterRefused, Removal};
use lull_core::{Group, GroupConfig};

use crate::engine::app::group_leaver::GroupLeaver;
use crate::engine::app::group_poller::GroupPollerProgram;
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, GroupId, QueueId};
use crate::engine::nic::Nic;
use crate::engine::seats::{Seat, SimGroup};
use crate::engine::sim::Sim;

impl Nic {
    /// A member was scheduled: it is visited, and a poller that rests is woken for it.
    pub(crate) fn member_raised(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, by: CpuId) {
        let Some((group, slot)) = self.queues[queue].group else { return };
        if let Some(wake) = self.groups.table[group].group.raised(slot, &env.cx(by)) {
            self.groups.wake(env, cpus, group, &wake, by);
        }
        self.group_notices(env, cpus, queue);
    }

    /// There may be something to poll on this queue: pollers of its group that make empty passes see it.
    pub(crate) fn group_notices(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        if let Some((group, _)) = self.queues[queue].group {
            self.pollers_notice(env, cpus, group);
        }
    }

    /// The group has changed, and its pollers look.
    pub(crate) fn pollers_notice(&mut self, env: &mut Env, cpus: &mut Cpus, group: GroupId) {
        for seat in &self.groups.table[group].seats {
            cpus.notices(env, seat.thread);
        }
    }

    /// The instance is not a member any more.
    pub(crate) fn left_group(&mut self, queue: QueueId) {
        self.queues[queue].group = None;
        self.transmit_leaves(queue);
    }
}

/// What an operator does to groups, in the context of a CPU.
impl Sim {
    /// Makes a group. Its configuration has to be within the core's limits.
    pub(crate) fn new_group(&mut self, config: GroupConfig) -> GroupId {
        let index = self.nic.groups.table.next().raw();
        match Group::new(index, config) {
            Ok(group) => self.nic.groups.table.push(SimGroup { group: Arc::new(group), seats: Vec::new() }),
            Err(error) => panic!("the world's author has to check a group's configuration: {error}"),
        }
    }

    /// Attaches a CPU, whose poller sleeps until it is woken.
    pub(crate) fn group_attach(&mut self, group: GroupId, at: CpuId) -> Result<(), AttachRefused> {
        let it = &self.nic.groups.table[group];
        let poller = it.group.attach(at.raw(), &self.env.cx(at))?;
        if let Some(seat) = self.nic.groups.table[group].seats.iter_mut().find(|seat| seat.cpu == at) {
            (seat.arriving, seat.taken, seat.kept) = (Some(poller), true, false);
            return Ok(());
        }
        let thread = self.spawn(at, Box::new(GroupPollerProgram::new(group, at)));
        let seat =
            Seat { cpu: at, thread, arriving: Some(poller), taken: true, kept: false, settles: false, empty: (0, 0) };
        self.nic.groups.table[group].seats.push(seat);
        Ok(())
    }

    /// Detaches a CPU: its poller releases what it holds.
    pub(crate) fn group_detach(&mut self, group: GroupId, at: CpuId, by: CpuId) -> Result<(), AttachRefused> {
        let wake = self.nic.groups.table[group].group.detach(at.raw())?;
        self.nic.groups.wake(&mut self.env, &mut self.cpus, group, &wake, by);
        self.nic.pollers_notice(&mut self.env, &mut self.cpus, group);
        Ok(())
    }

    /// Makes a queue a member.
    pub(crate) fn group_enter(
        &mut self,
        group: GroupId,
        queue: QueueId,
        weight: u32,
        by: CpuId,
    ) -> Result<(), EnterRefused> {
        let transmits = self.nic.queues[queue].transmit.is_some();
        if transmits && !self.transmit_enters(queue) {
            return Err(EnterRefused::Owned);
        }
        let (it, napi, cx) = (&self.nic.groups.table[group].group, &self.nic.queues[queue].napi, self.env.cx(by));
        let entered = if transmits { it.enter_transmit(napi, weight, &cx) } else { it.enter(napi, weight, &cx) };
        if transmits && entered.is_err() {
            self.transmit_stays(queue, by);
        }
        let entered = entered?;
        // This is as after a schedule: the first visit polls what came before.
        self.nic.shut(&mut self.env, queue);
        self.nic.sync_timer(&mut self.env, &mut self.cpus, queue);
        self.nic.queues[queue].group = Some((group, entered.slot));
        if let Some(wake) = entered.wake {
            self.nic.groups.wake(&mut self.env, &mut self.cpus, group, &wake, by);
        }
        self.nic.pollers_notice(&mut self.env, &mut self.cpus, group);
        Ok(())
    }

    /// Makes a member leave. Once it has left, its instance is not GROUPED any more.
    pub(crate) fn group_remove(&mut self, queue: QueueId, by: CpuId) {
        let Some((group, slot)) = self.nic.queues[queue].group else { return };
        let napi = &self.nic.queues[queue].napi;
        let removal = self.nic.groups.table[group].group.remove(slot, napi, &self.env.cx(by));
        if let Removal::Mine(stop) = removal {
            self.nic.left_group(queue);
            // A rest may have left it unmasked; the completion decides anew.
            self.nic.shut(&mut self.env, queue);
            // The core counts the last poll as begun, but it takes nothing until the operator's thread runs.
            self.nic.queues[queue].poll.work = 0;
            self.nic.groups.leaving.push((queue, stop));
            let leaver = match self.nic.groups.leaver {
                Some(leaver) => leaver,
                None => self.spawn(by, Box::new(GroupLeaver::new(by))),
            };
            self.nic.groups.leaver = Some(leaver);
            self.cpus.wake(&mut self.env, leaver, by);
        }
        self.nic.pollers_notice(&mut self.env, &mut self.cpus, group);
    }
}
