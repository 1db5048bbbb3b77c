//! Transmit queues of the world: an intake, a discipline of one list, a ring with so many slots, and a wire that takes frames
//! when it is told to.

use lull_core::group::{EnterRefused, Entered, Ring, Transmitted, Visit};
use lull_core::tx::doorbell::DOORBELL_AGE_NS;
use lull_core::tx::{Enqueued, TxDrain, TxEnd, TxLeft, TxRun, TxSent, TxWord};

use super::{Did, World};

/// The length of a frame.
const FRAME_BYTES: u32 = 1_000;
/// What a frame costs on its way to the ring.
pub const SEND_NS: u64 = 100;

#[derive(Default)]
pub struct Transmit {
    pub word: TxWord,
    /// Frames, each with the time before which it may not leave.
    intake: Vec<u64>,
    qdisc: Vec<u64>,
    /// On the ring, of them so many were rung for.
    ring: u32,
    rung: u32,
    slots: u32,
    blocked: bool,
    /// Since when frames wait for the doorbell.
    unrung_since_ns: Option<u64>,
    pub enqueued: u32,
    pub sent: u32,
    /// Frames of each doorbell.
    pub doorbells: Vec<u32>,
    /// For how long the first of them had been on the ring.
    pub held_ns: Vec<u64>,
    /// The NAPI is to be scheduled; at this time.
    scheduled_ns: Option<u64>,
}

impl Transmit {
    pub fn room(&self) -> u32 {
        self.slots - self.ring
    }

    pub fn waits_for_room(&self) -> bool {
        self.blocked
    }

    pub fn hint(&self) -> bool {
        self.word.is_missed() || self.blocked && self.room() != 0
    }

    /// Frames that the device was not told of.
    pub fn unrung(&self) -> u32 {
        self.ring - self.rung
    }

    pub fn waiting(&self) -> usize {
        self.intake.len() + self.qdisc.len()
    }

    fn drain(&mut self, budget: u32, now_ns: u64) -> Transmitted {
        self.qdisc.append(&mut self.intake);
        let mut frames = 0;
        while frames < budget && self.room() > 0 {
            let Some(index) = self.qdisc.iter().position(|not_before_ns| *not_before_ns <= now_ns) else { break };
            self.qdisc.remove(index);
            self.ring += 1;
            frames += 1;
        }
        let ready = self.qdisc.iter().any(|not_before_ns| *not_before_ns <= now_ns);
        let left = match self.qdisc.iter().min() {
            None => TxLeft::Nothing,
            Some(_) if ready && self.room() == 0 => TxLeft::Room,
            Some(_) if ready => TxLeft::More,
            Some(until_ns) => TxLeft::Until { until_ns: *until_ns },
        };
        self.blocked = left == TxLeft::Room;
        Transmitted { frames, bytes: frames * FRAME_BYTES, left }
    }

    fn ring(&mut self) -> u32 {
        let frames = self.unrung();
        self.rung = self.ring;
        self.unrung_since_ns = None;
        frames
    }
}

impl World {
    /// Makes a queue one that transmits.
    pub fn transmits(&mut self, queue: usize, slots: u32) {
        self.queues[queue].tx = Some(Transmit { slots, ..Transmit::default() });
        (self.queues[queue].masked, self.queues[queue].packet_ns) = (true, SEND_NS);
    }

    pub fn tx(&mut self, queue: usize) -> &mut Transmit {
        self.queues[queue].tx.as_mut().expect("a transmit queue")
    }

    pub(super) fn enter_transmit(&mut self, queue: usize, weight: u32) -> Result<Entered, EnterRefused> {
        if self.tx(queue).word.group_enter().is_err() {
            return Err(EnterRefused::Owned);
        }
        let entered = self.group.enter_transmit(&self.queues[queue].napi, weight, &self.cx(0));
        if entered.is_err() {
            self.leave_transmit(queue);
        }
        entered
    }

    /// The last run, which rings.
    pub(super) fn leave_transmit(&mut self, queue: usize) {
        let run = self.tx(queue).word.group_leave();
        self.run_transmit(queue, run);
    }

    fn run_transmit(&mut self, queue: usize, run: TxRun) {
        let mut drain = TxDrain::new(run);
        let now_ns = self.now_ns;
        loop {
            let tx = self.tx(queue);
            let budget = drain.look(&tx.word);
            let done = tx.drain(budget, now_ns);
            tx.ring();
            match drain.sent(&tx.word, done.frames, done.left) {
                TxSent::Again(again) => drain = again,
                TxSent::Ended(end) => {
                    tx.scheduled_ns = match end {
                        TxEnd::Schedule => Some(now_ns),
                        TxEnd::Until { until_ns } => Some(until_ns),
                        TxEnd::Idle | TxEnd::Room => None,
                    };
                    return;
                }
            }
        }
    }

    /// A sender pushes a frame that may not leave before `not_before_ns`.
    pub fn enqueue(&mut self, queue: usize, not_before_ns: u64) {
        let tx = self.tx(queue);
        tx.intake.push(not_before_ns);
        tx.enqueued += 1;
        self.told(queue);
        self.check();
    }

    fn told(&mut self, queue: usize) {
        match self.tx(queue).word.enqueued() {
            Enqueued::Run(run) => self.run_transmit(queue, run),
            Enqueued::Noted => {}
            Enqueued::Group => {
                let slot = self.queues[queue].slot.expect("the group has it");
                if let Some(wake) = self.group.enqueued(slot, &self.cx(0)) {
                    self.wake(&wake);
                }
            }
        }
    }

    /// What was owed to the queue's NAPI outside groups, and is due.
    pub fn transmit_softirq(&mut self, queue: usize) {
        let now_ns = self.now_ns;
        let tx = self.tx(queue);
        if tx.scheduled_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            tx.scheduled_ns = None;
            self.told(queue);
        }
    }

    /// The wire takes up to so many of the frames that were rung for.
    pub fn wire(&mut self, queue: usize, frames: u32) {
        let tx = self.tx(queue);
        let frames = frames.min(tx.rung);
        (tx.rung, tx.ring, tx.sent) = (tx.rung - frames, tx.ring - frames, tx.sent + frames);
        if frames != 0 && tx.blocked && !self.queues[queue].masked {
            self.raise(queue);
        }
        if self.queues[queue].slot.is_none() && self.tx(queue).blocked && self.tx(queue).room() != 0 {
            self.told(queue);
        }
        self.check();
    }

    pub(super) fn transmit(&mut self, index: usize, visit: &Visit) -> Did {
        let queue = visit.napi as usize;
        let now_ns = self.now_ns;
        if visit.mask {
            self.queues[queue].masked = true;
        }
        let tx = self.tx(queue);
        tx.word.look();
        let done = tx.drain(visit.budget, now_ns);
        if done.frames != 0 {
            tx.unrung_since_ns.get_or_insert(now_ns);
        }
        let it = &self.queues[queue];
        self.now_ns += it.visit_ns + it.packet_ns * u64::from(done.frames.max(1));
        let cx = self.cx(self.pollers[index].cpu);
        let napi = &self.queues[queue].napi;
        let stop = self.pollers[index].machine.transmitted(&self.group, napi, &done, &cx);
        if let Some(stop) = stop {
            self.leave(queue, stop);
        }
        Did::Sent { queue, frames: done.frames }
    }

    pub(super) fn doorbell(&mut self, index: usize, ring: &Ring) -> Did {
        let queue = ring.napi as usize;
        let since_ns = self.tx(queue).unrung_since_ns;
        let held_ns = self.now_ns - since_ns.unwrap_or(self.now_ns);
        self.tx(queue).held_ns.push(held_ns);
        let frames = self.tx(queue).ring();
        assert_eq!(frames, ring.frames, "the group counts what was not rung for");
        self.tx(queue).doorbells.push(frames);
        let cx = self.cx(self.pollers[index].cpu);
        let stop = self.pollers[index].machine.rung(&self.group, &self.queues[queue].napi, &cx);
        if let Some(stop) = stop {
            self.leave(queue, stop);
        }
        Did::Rang { queue, frames }
    }

    /// I14 and I15: whoever sleeps has rung, frames are where they can be found, and none waits long for its doorbell.
    #[track_caller]
    pub(super) fn check_transmit(&self) {
        let awake = self.pollers.iter().filter(|poller| !poller.asleep && !poller.detached).count();
        for (index, queue) in self.queues.iter().enumerate() {
            let Some(tx) = &queue.tx else { continue };
            let there = tx.waiting() as u32 + tx.ring + tx.sent;
            assert_eq!(there, tx.enqueued, "I15: a frame of queue {index} is lost");
            assert!(
                awake != 0 || tx.unrung() == 0,
                "I14: everybody sleeps, and frames of queue {index} are not rung for"
            );
            // Pollers take turns in the world's one time: only one who is alone has his core to himself.
            if let (Some(since_ns), [_]) = (tx.unrung_since_ns, &self.pollers[..]) {
                let age_ns = self.now_ns.saturating_sub(since_ns);
                let besides_ns = self.queues.iter().map(|queue| queue.visit_ns).max();
                let age_max_ns = DOORBELL_AGE_NS + besides_ns.unwrap_or(0) + super::PASS_NS;
                assert!(age_ns <= age_max_ns, "I15: the doorbell of queue {index} has been held back for {age_ns} ns");
            }
            let Some(slot) = queue.slot else { continue };
            assert_eq!(self.group.unrung(slot), tx.unrung());
            if awake == 0 && self.group.census().resting && !tx.blocked {
                let until_ns = self.pollers.iter().filter_map(|poller| poller.rests_until_ns).min();
                let due_ns = tx.qdisc.iter().chain(&tx.intake).min();
                assert!(
                    due_ns.is_none_or(|due_ns| until_ns.is_some_and(|until_ns| until_ns <= *due_ns)),
                    "I15: the group rests, and a frame of queue {index} is due at {due_ns:?}, not {until_ns:?}"
                );
            }
        }
    }
}
