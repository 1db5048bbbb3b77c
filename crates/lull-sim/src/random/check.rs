//! Checks the invariants of `napi_semantics` §14 after every step of a world.
//!
//! There are two halves: the core's reports, event by event (I1, I5, I7, I8, and the count of transitions), and the
//! state in which a step leaves every instance (I2, I3, I4, and that every timer has an alarm). I6 needs no check,
//! because the timer is one word.

mod followed;
mod groups;
mod transmit;
mod violation;
mod visits;

use lull_core::event::EventKind;
use lull_core::state;

use crate::engine::cpu::Irq;
use crate::engine::id::{QueueId, Side, Table};
use crate::engine::recorder::{Packed, Recorder, is_of_group};
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;
use crate::random::check::followed::{Followed, Said};
use crate::random::check::groups::GroupChecker;
pub use crate::random::check::violation::Violation;
use crate::random::check::violation::waits_in_vain;
use crate::random::script::Script;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Checker {
    followed: Table<QueueId, Followed>,
    groups: GroupChecker,
    /// A digest of the core's events: equal for equal runs.
    pub(crate) digest: u64,
}

impl Checker {
    pub(crate) fn new(queues: usize, cpus: usize, groups: usize) -> Checker {
        Checker {
            followed: (0..queues).map(|_| Followed::default()).collect(),
            groups: GroupChecker::new(queues, cpus, groups),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Follows what the core has reported since the last step, and then checks the state.
    pub(crate) fn after_step(&mut self, sim: &mut Sim, script: &Script, recorder: &Recorder) -> Result<(), Violation> {
        let at_ns = sim.env.now_ns;
        for index in 0..recorder.len() {
            let packed = recorder.get(index);
            self.take_digest(at_ns, packed);
            let (cpu, napi, kind) = packed.open();
            if is_of_group(kind) {
                let transition = self.groups.follow_group((&*sim, script), (at_ns, cpu), napi, kind)?;
                sim.env.tally.covered.add(transition);
                continue;
            }
            if napi != u32::MAX
                && let Some(transition) = self.groups.follow_member(sim, (at_ns, cpu), napi, kind)?
            {
                sim.env.tally.covered.add(transition);
                continue;
            }
            self.follow((&mut *sim, script), at_ns, napi, kind)?;
        }
        recorder.clear();
        self.groups.check_state(sim, script)?;
        check_state(sim)
    }

    /// Whether a poll of this queue is in progress.
    pub(crate) fn is_polled(&self, queue: QueueId) -> bool {
        self.followed[queue].polling.is_some()
    }

    fn take_digest(&mut self, at_ns: u64, Packed(first, second): Packed) {
        let word = first.rotate_left(32) ^ second ^ at_ns.rotate_left(17);
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    fn follow(
        &mut self,
        (sim, script): (&mut Sim, &Script),
        at_ns: u64,
        napi: u32,
        kind: EventKind,
    ) -> Result<(), Violation> {
        let transition = match kind {
            EventKind::TimeSqueeze => Some(Transition::SoftirqSqueeze),
            EventKind::Ksoftirqd => Some(Transition::Ksoftirqd),
            _ => self.followed[QueueId::new(napi)].follow(&mut Said { sim, script, at_ns, napi }, kind)?,
        };
        if let Some(transition) = transition {
            sim.env.tally.covered.add(transition);
        }
        Ok(())
    }
}

/// Checks the state of every instance between two steps.
fn check_state(sim: &Sim) -> Result<(), Violation> {
    for (index, queue) in sim.nic.queues.rows() {
        let now = queue.napi.snapshot();
        let timer = queue.napi.timer().pending();
        let broken = |rule, what: &str| {
            let armed = (queue.rx.armed, queue.tx.armed);
            let rings = (queue.ring.len(), queue.tx_done);
            let found = format!(
                "queue {index} {what} ({now:?}, interrupts armed {armed:?}, packets and sent frames {rings:?}, \
                 timer {timer:?})"
            );
            Err(Violation { rule, at_ns: sim.env.now_ns, found })
        };
        let alarm = sim.env.slots.napi_timer(index);
        if timer.is_some() && sim.env.agenda.slot_ns(alarm).is_none() && !sim.cpus.is_in_flight(Irq::NapiTimer(index)) {
            return broken("executor", "has a timer without an alarm");
        }
        if now.has(state::SCHED_THREADED) && queue.thread.is_none() {
            return broken("I4", "has a round for a thread that does not exist");
        }
        if now.has(state::SCHED) {
            continue;
        }
        if now.has(state::IN_BUSY_POLL) {
            return broken("I3", "is busy polled without an owner");
        }
        if now.has(state::SCHED_THREADED) {
            return broken("I4", "has a thread's round without an owner");
        }
        // Somebody will look at it: a timer, the context that is completing it, or a disable that takes it.
        if timer.is_some() || now.has(state::DISABLE) || !queue.unsettled.is_empty() {
            continue;
        }
        let masked = !(queue.rx.armed && queue.tx.armed);
        if masked && !sim.cpus.is_in_flight(Irq::Device(index)) {
            return broken("I2", "is free and masked without a timer");
        }
        for side in [Side::Rx, Side::Tx] {
            if waits_in_vain(sim, index, queue, side) && !sim.cpus.is_in_flight(Irq::Device(index)) {
                return broken("I2", "is free with something in its rings and neither interrupt nor timer");
            }
        }
    }
    Ok(())
}
