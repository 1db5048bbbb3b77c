//! `fq`: each socket has a flow, which is served in turn by deficit round robin and put off by its own rate
//! (`net/sched/sch_fq.c`).
//!
//! ```text
//!            first frame                        credit used up, or due again
//!  DETACHED ------------▶ NEW ────────────▶ OLD ◀────────────────────── THROTTLED
//!      ▲                   │   its turn     │ │       its rate says later  ▲
//!      └───────────────────┴────────────────┘ └────────────────────────────┘
//!            empty, and nobody before it starves by it
//! ```
//!
//! New flows are served before old ones, so a request that comes once a millisecond passes those that flood. A new flow
//! that is empty at its turn goes behind the old ones once before it is forgotten; otherwise it could come back as a
//! new one at once, again and again. A flow may send its quantum in a turn; how long it is put off after that follows
//! from what it sent and from its rate. The throttled flows are in a heap, whose head is the deadline of the whole
//! queue.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

use crate::{Dequeued, Limits, PRIORITY_CONTROL, Packet};

/// Frames of all flows together by default (`q->limit`).
pub const FRAMES_MAX: usize = 10_000;
/// Frames of one flow by default (`q->flow_plimit`).
pub const FLOW_FRAMES_MAX: usize = 100;
/// A flow that was without frames for so long begins with a whole quantum (`q->flow_refill_delay`), in nanoseconds.
pub const REFILL_NS: u64 = 40_000_000;
/// A flow that was without frames for so long is forgotten (`FQ_GC_AGE`), in nanoseconds.
pub const FORGET_NS: u64 = 3_000_000_000;
/// How many flows are looked at for that when a new one comes (`FQ_GC_MAX`).
const FORGET_LOOKS: usize = 8;
/// Memory for this many flows is kept once it was needed.
const FLOWS_KEPT: usize = 64;
/// The longest time that a frame puts its flow off, in nanoseconds. It is bounded because the rate may be changed
/// meanwhile.
const PUT_OFF_NS_MAX: u64 = 1_000_000_000;
/// At this rate and below it, each frame is put off by itself (`q->low_rate_threshold`, 550 Kbit/s), in bytes a second.
const LOW_RATE_BYTES_PER_S: u64 = 550_000 / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has had no frame since `since_ns`.
    Detached {
        since_ns: u64,
    },
    New,
    Old,
    Throttled,
}

#[derive(Debug)]
struct Flow<F> {
    key: u64,
    queue: VecDeque<Packet<F>>,
    /// Bytes that it may still send in this turn.
    credit: i64,
    /// It may not send before this time, by its rate; 0 stands for at once.
    next_ns: u64,
    state: State,
}

/// Flows that are served in turn, each paced by its rate.
#[derive(Debug)]
pub struct Fq<F> {
    quantum: i64,
    /// The quantum of a flow that was not seen before.
    first_quantum: i64,
    limits: Limits,
    flows: Vec<Flow<F>>,
    /// Places in `flows` that are free. The last place is never free, as `flows` is made shorter then.
    free: BTreeSet<u32>,
    by_key: HashMap<u64, u32>,
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    throttled: BinaryHeap<Reverse<(u64, u32)>>,
    /// Frames that keep a network working. They go first, and no limit of a flow holds for them (`q->internal`).
    control: VecDeque<Packet<F>>,
    frames: usize,
    times_throttled: u64,
    /// Whether rates are heeded.
    paces: bool,
    /// Where the next look for flows to forget begins.
    forget_at: usize,
}

impl<F> Fq<F> {
    /// For a device whose longest frame has `frame_bytes`: a turn is two of those, and the first turn of a flow ten.
    pub fn new(frame_bytes: u32, limits: Limits) -> Fq<F> {
        Fq {
            quantum: 2 * i64::from(frame_bytes),
            first_quantum: 10 * i64::from(frame_bytes),
            limits,
            flows: Vec::new(),
            free: BTreeSet::new(),
            by_key: HashMap::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            throttled: BinaryHeap::new(),
            control: VecDeque::new(),
            frames: 0,
            times_throttled: 0,
            paces: true,
            forget_at: 0,
        }
    }

    /// Puts a frame behind those of its flow.
    ///
    /// # Errors
    /// The frame comes back: its flow, or all flows together, have as many as they may have.
    pub fn enqueue(&mut self, packet: Packet<F>, now_ns: u64) -> Result<(), Packet<F>> {
        if self.frames >= self.limits.frames {
            return Err(packet);
        }
        if packet.priority == PRIORITY_CONTROL {
            self.control.push_back(packet);
            self.frames += 1;
            return Ok(());
        }
        let index = self.flow(packet.flow, now_ns);
        let quantum = self.quantum;
        let flow = &mut self.flows[index as usize];
        if flow.queue.len() >= self.limits.flow_frames {
            return Err(packet);
        }
        flow.queue.push_back(packet);
        if let State::Detached { since_ns } = flow.state {
            if now_ns.saturating_sub(since_ns) > REFILL_NS {
                flow.credit = flow.credit.max(quantum);
            }
            flow.state = State::New;
            self.new.push_back(index);
        }
        self.frames += 1;
        Ok(())
    }

    /// The next frame of the flow whose turn it is.
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeued<F> {
        if let Some(packet) = self.control.pop_front() {
            self.frames -= 1;
            return Dequeued::Packet(packet);
        }
        self.release_due(now_ns);
        loop {
            let Some((index, is_new)) = self.head() else {
                return match self.throttled.peek() {
                    Some(Reverse((until_ns, _))) => Dequeued::Throttled { until_ns: *until_ns },
                    None => Dequeued::Empty,
                };
            };
            let flow = &mut self.flows[index as usize];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.end_turn(index);
                continue;
            }
            if flow.queue.is_empty() {
                self.pop_head(is_new);
                // It goes behind the old ones once, so that they do not starve.
                if is_new && !self.old.is_empty() {
                    self.flows[index as usize].state = State::Old;
                    self.old.push_back(index);
                } else {
                    self.flows[index as usize].state = State::Detached { since_ns: now_ns };
                }
                continue;
            }
            if self.paces && now_ns < flow.next_ns {
                flow.state = State::Throttled;
                self.throttled.push(Reverse((flow.next_ns, index)));
                self.times_throttled += 1;
                self.pop_head(is_new);
                continue;
            }
            let Some(packet) = flow.queue.pop_front() else { unreachable!("its queue was looked at") };
            flow.credit -= i64::from(packet.bytes);
            put_off(flow, &packet, self.quantum, now_ns);
            self.frames -= 1;
            return Dequeued::Packet(packet);
        }
    }

    /// Rates are heeded no longer: frames that were put off are due at once.
    pub fn end_pacing(&mut self) {
        self.paces = false;
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.frames
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// How many flows it knows, those without frames included.
    pub fn flows(&self) -> usize {
        self.by_key.len()
    }

    /// How often a flow was put off by its rate.
    pub fn throttled(&self) -> u64 {
        self.times_throttled
    }

    pub(crate) fn drain(&mut self) -> Vec<Packet<F>> {
        let mut all: Vec<_> = self.control.drain(..).collect();
        for flow in &mut self.flows {
            all.extend(flow.queue.drain(..));
        }
        self.frames = 0;
        all
    }

    /// The flow whose turn it is, and whether it is new.
    fn head(&self) -> Option<(u32, bool)> {
        match self.new.front() {
            Some(index) => Some((*index, true)),
            None => self.old.front().map(|index| (*index, false)),
        }
    }

    fn pop_head(&mut self, is_new: bool) {
        if is_new {
            self.new.pop_front()
        } else {
            self.old.pop_front()
        };
    }

    /// Called when the flow at the head has used its turn up.
    fn end_turn(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        let is_new = flow.state == State::New;
        flow.state = State::Old;
        self.pop_head(is_new);
        self.old.push_back(index);
    }

    /// Puts flows that are due again behind the old ones, where they wait for their turn.
    fn release_due(&mut self, now_ns: u64) {
        while let Some(Reverse((until_ns, index))) = self.throttled.peek().copied()
            && (until_ns <= now_ns || !self.paces)
        {
            self.throttled.pop();
            self.flows[index as usize].state = State::Old;
            self.old.push_back(index);
        }
    }

    fn flow(&mut self, key: u64, now_ns: u64) -> u32 {
        if let Some(index) = self.by_key.get(&key) {
            return *index;
        }
        self.forget_some(now_ns);
        let state = State::Detached { since_ns: now_ns };
        let flow = Flow { key, queue: VecDeque::new(), credit: self.first_quantum, next_ns: 0, state };
        let index = match self.free.pop_first() {
            Some(index) => {
                self.flows[index as usize] = flow;
                index
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
        };
        self.by_key.insert(key, index);
        index
    }

    /// Looks at some flows, and forgets those that have long been without frames.
    fn forget_some(&mut self, now_ns: u64) {
        for _ in 0..FORGET_LOOKS.min(self.flows.len()) {
            // The flows that were forgotten in this loop may have been the last ones.
            self.forget_at = (self.forget_at + 1) % self.flows.len().max(1);
            let Some(flow) = self.flows.get(self.forget_at) else { return };
            let index = self.forget_at as u32;
            let known = self.by_key.get(&flow.key) == Some(&index);
            if let State::Detached { since_ns } = flow.state
                && known
                && now_ns.saturating_sub(since_ns) > FORGET_NS
            {
                self.by_key.remove(&flow.key);
                self.flows[self.forget_at].queue = VecDeque::new();
                self.free.insert(index);
                self.give_back();
            }
        }
    }

    /// Takes free places off the end of `flows`, and gives memory back once three quarters of it are not needed.
    fn give_back(&mut self) {
        while let Some(last) = self.flows.len().checked_sub(1)
            && self.free.remove(&(last as u32))
        {
            self.flows.pop();
        }
        let flows = self.flows.len().max(FLOWS_KEPT);
        if flows < self.flows.capacity() / 4 {
            self.flows.shrink_to(2 * flows);
            self.by_key.shrink_to(2 * flows);
        }
    }
}

/// Sets when a flow may send again, by the rate of the frame that it has just sent.
fn put_off<F>(flow: &mut Flow<F>, packet: &Packet<F>, quantum: i64, now_ns: u64) {
    let Some(rate) = packet.rate_bytes_per_s else { return };
    let mut bytes = u64::from(packet.bytes);
    if rate <= LOW_RATE_BYTES_PER_S {
        flow.credit = 0;
    } else {
        bytes = bytes.max(quantum as u64);
        // The rest of the turn goes at once, and the whole turn is paid for at its end.
        if flow.credit > 0 {
            return;
        }
    }
    let whole_ns = (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(PUT_OFF_NS_MAX)) as u64;
    // This turn may have come later than it was due. The time that was lost is made good, up to half of a turn.
    let late_ns = if flow.next_ns == 0 { 0 } else { now_ns.saturating_sub(flow.next_ns).min(whole_ns / 2) };
    flow.next_ns = now_ns + whole_ns - late_ns;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn what_a_rate_has_put_off_is_due_in_turn_once_rates_are_not_kept() {
        let mut fq = Fq::new(1514, Limits::of(Kind::Fq));
        // The first frame of each flow puts it off for a second.
        for nth in 0..6 {
            let packet = Packet { flow: nth % 2 + 1, bytes: 1000, rate_bytes_per_s: Some(1), ..Packet::new(nth) };
            assert!(fq.enqueue(packet, 0).is_ok());
        }
        let left = |fq: &mut Fq<u64>| -> Vec<u64> {
            std::iter::from_fn(|| match fq.dequeue(0) {
                Dequeued::Packet(packet) => Some(packet.frame),
                _ => None,
            })
            .collect()
        };
        assert_eq!(left(&mut fq), [0, 1]);
        assert_eq!(fq.dequeue(0), Dequeued::Throttled { until_ns: 1_000_000_000 });
        fq.end_pacing();
        assert_eq!(left(&mut fq), [2, 3, 4, 5]);
        assert!(fq.is_empty());
    }

    #[test]
    fn the_memory_of_flows_that_are_forgotten_is_given_back() {
        const EACH_NS: u64 = 100_000;
        let mut fq = Fq::new(1514, Limits::of(Kind::Fq));
        let (mut now_ns, mut key) = (0, 0);
        let send = |fq: &mut Fq<u64>, now_ns, key| {
            let packet = Packet { flow: key, bytes: 100, ..Packet::new(key) };
            assert!(fq.enqueue(packet, now_ns).is_ok());
            assert!(matches!(fq.dequeue(now_ns), Dequeued::Packet(Packet { frame, .. }) if frame == key));
            assert!(matches!(fq.dequeue(now_ns), Dequeued::Empty));
        };
        // A connection comes each tenth of a millisecond, for ten seconds.
        for _ in 0..100_000 {
            (now_ns, key) = (now_ns + EACH_NS, key + 1);
            send(&mut fq, now_ns, key);
        }
        let flows = fq.flows();
        assert!((30_000..40_000).contains(&flows), "{flows} flows, of three seconds");
        // All of them are old now, and each new one looks at some.
        now_ns += FORGET_NS + 1;
        for _ in 0..flows / 6 {
            key += 1;
            send(&mut fq, now_ns, key);
        }
        let left = fq.flows();
        assert!(left <= flows / 6, "{left} of {flows}");
        // The last ones go as well, whichever places they had, and the flow that comes then finds a place.
        now_ns += FORGET_NS + 1;
        (0..left as u64).for_each(|nth| send(&mut fq, now_ns + nth * (FORGET_NS + 1), key + 1 + nth));
        assert!(fq.flows() <= FORGET_LOOKS && fq.flows.capacity() <= 4 * FLOWS_KEPT + 3, "{}", fq.flows.capacity());
        assert!(fq.by_key.capacity() <= 8 * FLOWS_KEPT, "{}", fq.by_key.capacity());
    }
}
