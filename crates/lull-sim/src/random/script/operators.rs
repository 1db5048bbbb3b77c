//! What an operator does to busy-polling CPU groups while a world runs, as `Host` does it on threads.

use lull_core::Threaded;
use lull_core::group::{AttachRefused, EnterRefused};
use lull_core::state;

use super::{Progress, Script};
use crate::engine::id::{CpuId, GroupId, QueueId, StepId};
use crate::engine::recorder::{What, Whom};
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;

/// How long an operator sleeps before it tries again what an owner or a visit prevents.
const RETRY_NS: u64 = 40_000;
/// How often it tries.
const RETRIES_MAX: u32 = 500;

/// The progress of a step, its number, and the CPU on which it acts.
type At = (Progress, StepId, CpuId);

impl Script {
    pub(super) fn act_attach(&mut self, sim: &mut Sim, group: GroupId, at: CpuId, step: StepId, cpu: CpuId) {
        // A CPU is in one group only, and nothing is attached while a poller drains.
        let taken = sim.nic.groups.table.iter().any(|it| it.seats.iter().any(|seat| seat.cpu == at && seat.taken));
        if taken || sim.nic.groups.table[group].drains() || sim.group_attach(group, at).is_err() {
            sim.env.tell(cpu, What::Skipped(step));
            return;
        }
        self.group_changes += 1;
        sim.env.note(cpu, Whom::Group(group), Transition::GroupAttached);
    }

    pub(super) fn act_detach(
        &mut self,
        sim: &mut Sim,
        group: GroupId,
        at: CpuId,
        (before, step, cpu): At,
    ) -> Option<(Progress, u64)> {
        self.group_changes += 1;
        match sim.group_detach(group, at, cpu) {
            Ok(()) => sim.env.note(cpu, Whom::Group(group), Transition::GroupDetached),
            Err(AttachRefused::Last) => {
                let tried = if let Progress::Waiting(tried) = before { tried + 1 } else { 0 };
                sim.env.note(cpu, Whom::Group(group), Transition::GroupLastCpu);
                for queue in sim.nic.queues.ids() {
                    if self.kept[queue].is_some_and(|(of, _)| of == group) {
                        self.kept[queue] = None;
                        sim.group_remove(queue, cpu);
                    }
                }
                return (tried < RETRIES_MAX).then_some((Progress::Waiting(tried), RETRY_NS));
            }
            Err(_) => sim.env.tell(cpu, What::Skipped(step)),
        }
        None
    }

    pub(super) fn act_add(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        (group, weight): (GroupId, u32),
        (before, step, cpu): At,
    ) -> Option<(Progress, u64)> {
        if !self.begins(sim, queue, before, step, cpu) {
            return None;
        }
        let napi = &sim.nic.queues[queue].napi;
        let possible = self.kept[queue].is_none() && napi.id() != 0 && napi.settings().threaded == Threaded::Off;
        if !possible {
            self.busy[queue] = false;
            sim.env.tell(cpu, What::Skipped(step));
            return None;
        }
        let tried = if let Progress::Waiting(tried) = before { tried } else { 0 };
        let again = self.enters(sim, queue, (group, weight), tried, cpu)?;
        Some((Progress::Waiting(again), RETRY_NS))
    }

    /// Makes one attempt to make a queue a member. Returns how many there were if another is due.
    fn enters(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        (group, weight): (GroupId, u32),
        tried: u32,
        cpu: CpuId,
    ) -> Option<u32> {
        self.group_changes += 1;
        self.kept[queue] = None;
        match sim.group_enter(group, queue, weight, cpu) {
            Ok(()) => self.kept[queue] = Some((group, weight)),
            Err(EnterRefused::Owned) if tried < RETRIES_MAX && !sim.env.faults.quiet => {
                sim.env.note(cpu, Whom::Queue(queue), Transition::GroupEnterOwned);
                return Some(tried + 1);
            }
            // There is no CPU, or the owner never releases the queue.
            Err(_) => {}
        }
        self.busy[queue] = false;
        None
    }

    /// Returns a queue that was enabled again to its group.
    pub(super) fn enters_again(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        tried: u32,
        cpu: CpuId,
    ) -> Option<(Progress, u64)> {
        let Some(member) = self.kept[queue] else {
            self.busy[queue] = false;
            return None;
        };
        let again = self.enters(sim, queue, member, tried, cpu)?;
        self.kept[queue] = Some(member);
        Some((Progress::Entering(again), RETRY_NS))
    }

    pub(super) fn act_remove(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        (before, step, cpu): At,
    ) -> Option<(Progress, u64)> {
        if !self.begins(sim, queue, before, step, cpu) {
            return None;
        }
        if before == Progress::Fresh {
            self.group_changes += 1;
            if self.kept[queue].take().is_none() {
                sim.env.tell(cpu, What::Skipped(step));
            }
            sim.group_remove(queue, cpu);
        }
        if sim.nic.queues[queue].napi.snapshot().has(state::GROUPED) {
            return Some((Progress::Waiting(0), RETRY_NS));
        }
        self.busy[queue] = false;
        None
    }
}
