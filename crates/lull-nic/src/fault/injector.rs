//! What happens to the frames of one queue in one direction: decisions from a seed, time as an argument.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FaultStats, Rates};
use crate::checksum;
use crate::frame::{Checksum, Frame};

/// Frames that one injector holds back at most; what comes on top passes untouched by delay and reordering.
const HELD_MAX: usize = 65_536;

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, equidistributed, and any seed will do.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn chance(&mut self, probability: f64) -> bool {
        // 53 bits, as many as a double holds: from 0 to just below 1, so that 1.0 is always and 0.0 never.
        ((self.next() >> 11) as f64) / ((1u64 << 53) as f64) < probability
    }
}

/// [`FaultStats`] as they are counted.
#[derive(Default)]
pub(super) struct Stats {
    pub(super) dropped: AtomicU64,
    pub(super) duplicated: AtomicU64,
    pub(super) corrupted: AtomicU64,
    pub(super) reordered: AtomicU64,
    pub(super) delayed: AtomicU64,
    pub(super) reset_lost: AtomicU64,
    pub(super) flaps: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) rooms_held: AtomicU64,
}

impl Stats {
    pub(super) fn get(&self) -> FaultStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultStats {
            dropped: read(&self.dropped),
            duplicated: read(&self.duplicated),
            corrupted: read(&self.corrupted),
            reordered: read(&self.reordered),
            delayed: read(&self.delayed),
            reset_lost: read(&self.reset_lost),
            flaps: read(&self.flaps),
            resets: read(&self.resets),
            refused: read(&self.refused),
            rooms_held: read(&self.rooms_held),
        }
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Held {
    frame: Frame,
    due_ns: u64,
    /// Goes on once that many frames have passed, whatever the time.
    after_passed: u64,
}

/// The faults of one direction of one queue.
pub(super) struct Injector {
    random: SplitMix64,
    rates: Rates,
    /// Frames that were not held back, ever.
    passed: u64,
    held: Vec<Held>,
    ready: VecDeque<Frame>,
}

impl Injector {
    /// `stream` tells the directions and queues of one seed apart.
    pub(super) fn new(seed: u64, stream: u64, rates: Rates) -> Injector {
        let mut random = SplitMix64(seed);
        // Streams must not be shifts of one another, as seeds one increment apart would be.
        random.0 = random.next() ^ SplitMix64(stream).next();
        Injector { random, rates, passed: 0, held: Vec::new(), ready: VecDeque::new() }
    }

    /// Decides about a frame. What goes on comes out of [`Injector::pop`].
    pub(super) fn push(&mut self, mut frame: Frame, now_ns: u64, stats: &Stats) {
        let Rates { drop, duplicate, corrupt, reorder, delay, .. } = self.rates;
        // All values are drawn for each frame, needed or not: so one frame's fate does not shift the next one's.
        let [drop, duplicate, corrupt, reorder, delay] =
            [drop, duplicate, corrupt, reorder, delay].map(|probability| self.random.chance(probability));
        let bit = self.random.next();
        if drop {
            count(&stats.dropped);
            return;
        }
        if corrupt {
            count(&stats.corrupted);
            frame = flip_bit(frame, bit);
        }
        let copy = duplicate.then(|| frame.clone());
        let room = self.held.len() < HELD_MAX;
        if delay && room {
            count(&stats.delayed);
            self.hold(frame, now_ns.saturating_add(self.rates.delay_ns), u64::MAX);
        } else if reorder && room {
            count(&stats.reordered);
            let after_passed = self.passed + u64::from(self.rates.reorder_depth);
            self.hold(frame, now_ns.saturating_add(self.rates.reorder_hold_ns), after_passed);
        } else {
            self.pass(frame);
        }
        if let Some(copy) = copy {
            count(&stats.duplicated);
            self.pass(copy);
        }
    }

    fn hold(&mut self, frame: Frame, due_ns: u64, after_passed: u64) {
        self.held.push(Held { frame, due_ns, after_passed });
    }

    fn pass(&mut self, frame: Frame) {
        self.ready.push_back(frame);
        self.passed += 1;
        let passed = self.passed;
        self.let_go(|held| held.after_passed <= passed);
    }

    /// Lets go what is due.
    pub(super) fn release(&mut self, now_ns: u64) {
        if self.held.iter().any(|held| held.due_ns <= now_ns) {
            // Frames of different delays leave in the order of their times; the sort is stable for equal ones.
            self.held.sort_by_key(|held| held.due_ns);
            self.let_go(|held| held.due_ns <= now_ns);
        }
    }

    fn let_go(&mut self, goes: impl Fn(&Held) -> bool) {
        for held in self.held.extract_if(.., |held| goes(held)) {
            self.ready.push_back(held.frame);
        }
    }

    /// The next frame that goes on.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Puts a frame back that could not go on yet.
    pub(super) fn unpop(&mut self, frame: Frame) {
        self.ready.push_front(frame);
    }

    /// Frames that may go on now.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// When the next held frame is due.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.due_ns).min()
    }

    /// Loses all frames; how many.
    pub(super) fn clear(&mut self) -> u64 {
        let lost = self.held.len() + self.ready.len();
        self.held.clear();
        self.ready.clear();
        lost as u64
    }
}

fn flip_bit(frame: Frame, random: u64) -> Frame {
    let mut frame = checksum::linear(checksum::complete(frame));
    frame.set_checksum(Checksum::None);
    if !frame.is_empty() {
        let bit = random % (frame.len() as u64 * 8);
        frame.data_mut()[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    frame
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn run(rates: Rates, frames: u8) -> (Vec<u8>, FaultStats) {
        let (mut injector, stats) = (Injector::new(1, 2, rates), Stats::default());
        let mut out = Vec::new();
        for number in 0..frames {
            injector.push(Frame::copy_from(&[number; 20]), 0, &stats);
            out.extend(std::iter::from_fn(|| injector.pop()).map(|frame| frame.data()[0]));
        }
        injector.release(u64::MAX);
        out.extend(std::iter::from_fn(|| injector.pop()).map(|frame| frame.data()[0]));
        (out, stats.get())
    }

    #[test]
    fn certain_and_impossible() {
        assert_eq!(run(Rates::default(), 5).0, [0, 1, 2, 3, 4]);
        assert_eq!(run(Rates { drop: 1.0, ..Rates::default() }, 5).0, []);
        assert_eq!(run(Rates { duplicate: 1.0, ..Rates::default() }, 2).0, [0, 0, 1, 1]);
        assert_eq!(run(Rates { delay: 1.0, ..Rates::default() }, 3).0, [0, 1, 2]);
    }

    #[test]
    fn reordered_frame_lets_its_depth_pass() {
        let mut injector = Injector::new(0, 0, Rates { reorder: 1.0, reorder_depth: 2, ..Rates::default() });
        let stats = Stats::default();
        injector.push(Frame::copy_from(&[0]), 0, &stats);
        injector.rates.reorder = 0.0;
        for number in 1..4 {
            injector.push(Frame::copy_from(&[number]), 0, &stats);
        }
        let order: Vec<_> = std::iter::from_fn(|| injector.pop()).map(|frame| frame.data()[0]).collect();
        assert_eq!(order, [1, 2, 0, 3]);
    }

    #[test]
    fn flipped_bit_is_one_and_unverified() {
        let mut frame = Frame::copy_from(&[0; 10]);
        frame.set_next(Some(Frame::copy_from(&[0; 10])));
        frame.set_checksum(Checksum::Unnecessary);
        let frame = flip_bit(frame, 81);
        assert_eq!((frame.checksum(), frame.len(), frame.data()[10]), (Checksum::None, 20, 2));
        assert_eq!(frame.data().iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }

    #[test]
    fn one_faults_rate_does_not_move_anothers_decisions() {
        let dropped = |duplicate| {
            let (out, _) = run(Rates { drop: 0.5, duplicate, ..Rates::default() }, 200);
            let mut out = out;
            out.dedup();
            out
        };
        assert_eq!(dropped(0.0), dropped(0.7));
    }
}
