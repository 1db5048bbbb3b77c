//! Checks I15, and I14 for doorbells: every frame is somewhere and somebody comes for it, and a poller that has held a
//! doorbell back rings it before it stops looking, and in time.

use lull_core::state;
use lull_core::tx::doorbell::DOORBELL_AGE_NS;

use super::groups::{GroupChecker, Member};
use crate::engine::cpu::Irq;
use crate::engine::id::{GroupId, QueueId};
use crate::engine::nic::Queue;
use crate::engine::seats::SimGroup;
use crate::engine::sim::Sim;
use crate::engine::thread::{Spin, ThreadState};
use crate::engine::transmit::TransmitQueue;
use crate::random::check::violation::Violation;

/// How many passes a poller may take until it has seen that a doorbell is due.
const DOORBELL_PASSES: u64 = 4;

impl GroupChecker {
    /// Checks the state of every transmit queue between two steps.
    pub(super) fn check_transmit(&self, sim: &Sim) -> Result<(), Violation> {
        for (index, queue) in sim.nic.queues.rows() {
            let Some(tx) = &queue.transmit else { continue };
            let found = match account(tx).map_err(|found| ("I15", found)) {
                Ok(()) => match queue.group {
                    None => outside(sim, index, queue, tx).map_err(|found| ("I15", found)),
                    Some((group, _)) => self.inside(sim, (group, index), tx),
                },
                lost => lost,
            };
            found.map_err(|(rule, found)| {
                let (left, rung, blocked) = (tx.waiting(), tx.on_ring() as u32 - tx.unrung(), tx.blocked);
                let found = format!(
                    "queue {index} {found} ({left} frames in intake and discipline, {rung} rung for, {} not, waits for room: \
                     {blocked})",
                    tx.unrung()
                );
                Violation { rule, at_ns: sim.env.now_ns, found }
            })?;
        }
        Ok(())
    }

    /// The last poller that visited a member rings its doorbell, and a group does not rest while frames can be sent.
    fn inside(
        &self,
        sim: &Sim,
        (group, index): (GroupId, QueueId),
        tx: &TransmitQueue,
    ) -> Result<(), (&'static str, String)> {
        let (it, member) = (&sim.nic.groups.table[group], &self.members[index]);
        if member.claimed.is_some() {
            return Ok(());
        }
        if let Some(since_ns) = tx.unrung_since_ns {
            self.doorbell_comes(sim, (group, it), member, since_ns)?;
        }
        if it.group.census().resting && tx.waiting() > 0 && !tx.blocked {
            for seat in it.seats.iter().filter(|seat| it.group.is_awake(seat.cpu.raw()) && !seat.settles) {
                let sleeps = sim.cpus.threads[seat.thread].state == ThreadState::Sleeping;
                let has_alarm = sim.env.agenda.slot_ns(sim.env.slots.thread(seat.thread)).is_some();
                if sleeps && !has_alarm && !sim.cpus.is_in_flight(Irq::Sleeper(seat.thread)) {
                    return Err(("I15", "has frames that can be sent, and its group rests".to_owned()));
                }
            }
        }
        Ok(())
    }

    fn doorbell_comes(
        &self,
        sim: &Sim,
        (group, it): (GroupId, &SimGroup),
        member: &Member,
        unrung_since_ns: u64,
    ) -> Result<(), (&'static str, String)> {
        let seat = it.seats.iter().find(|seat| member.answers == Some(seat.cpu.raw()));
        let Some(seat) = seat else {
            return Err(("I15", "has frames that were not rung for, and nobody visited it".to_owned()));
        };
        let thread = &sim.cpus.threads[seat.thread];
        if !seat.taken || thread.state == ThreadState::Sleeping {
            let how = if seat.taken { "sleeps" } else { "was detached" };
            return Err(("I14", format!("has frames that cpu {} did not ring for, which {how}", seat.cpu)));
        }
        let idle_since_ns = self.pollers[group][usize::from(seat.cpu.raw())].idle_since_ns;
        if let (Some(idle_since_ns), Some(Spin { pass_ns, .. })) = (idle_since_ns, thread.spins) {
            let late_ns = sim.env.now_ns - idle_since_ns.max(unrung_since_ns).max(member.free_since_ns);
            if late_ns > DOORBELL_AGE_NS + DOORBELL_PASSES * pass_ns {
                return Err(("I15", format!("has frames that cpu {} did not ring for in {late_ns} ns", seat.cpu)));
            }
        }
        Ok(())
    }
}

/// Checks that no frame is lost.
fn account(tx: &TransmitQueue) -> Result<(), String> {
    let (enqueued, found) = tx.account();
    if enqueued == found { Ok(()) } else { Err(format!("got {enqueued} frames, and {found} are accounted for")) }
}

/// Outside groups a run rings for what it sends, and says who comes back for what it leaves.
fn outside(sim: &Sim, index: QueueId, queue: &Queue, tx: &TransmitQueue) -> Result<(), String> {
    if tx.is_run() || tx.down {
        return Ok(());
    }
    if tx.unrung() != 0 {
        return Err("is in no group, and has frames that were not rung for".to_owned());
    }
    if !tx.word.is_idle() {
        return Err("is run by nobody, and says that somebody does".to_owned());
    }
    let now = queue.napi.snapshot();
    let comes = now.has(state::SCHED)
        || now.has(state::DISABLE)
        || queue.napi.timer().pending().is_some()
        || !queue.unsettled.is_empty()
        || sim.cpus.is_in_flight(Irq::Device(index))
        || tx.due_ns.is_some()
        || tx.blocked && queue.tx.armed && !tx.has_room();
    if tx.waiting() != 0 && !comes {
        return Err("has frames, and nobody comes for them".to_owned());
    }
    Ok(())
}
