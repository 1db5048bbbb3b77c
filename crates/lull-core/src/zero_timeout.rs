//! When a queue is polled for a loop of `epoll_wait` calls with timeout 0 that find nothing, again and again (§13 edge
//! 19).
//!
//! Linux neither polls nor resumes for such a call, so the queue of a loop that never waits is left to its timer. From
//! outside, a loop that spins cannot be told from one that has other work: the empty callback of node's `setImmediate`
//! takes less time than a busy loop's own book-keeping. So nothing is guessed here. Once some calls in a row were
//! empty, the queue is polled for one round and never waited for, and the price is bounded in either case:
//!
//! - **A loop with other work** loses at most one part in [`ZERO_TIMEOUT_SHARE`] of its time: a poll that found nothing
//!   is followed by a pause of that many times its own length. A poll that found something is work that had to be done.
//! - **A loop that spins** is polled for once its pause is over and [`EMPTY_CALLS_MIN`] calls were empty. The pause is never
//!   longer than [`PAUSE_NS_MAX`], and the clock is looked at in one of [`LOOK_EVERY_CALLS_MAX`] calls or more.
//!
//! A call that finds events, and one that waits, begins the count again: a server that yields once a request (asyncio's
//! `call_soon`) is never polled for here, since its next call waits, and the kernel polls then.
//!
//! The executor reports each call and does the polling:
//!
//! ```
//! use lull_core::zero_timeout::{EMPTY_CALLS_MIN, ZeroTimeout};
//!
//! let rule = ZeroTimeout::default();
//! for _ in 1..EMPTY_CALLS_MIN {
//!     assert!(!rule.was_empty(), "the first calls are let pass without a look at the clock");
//! }
//! assert!(rule.was_empty() && rule.is_due(1_000_000));
//! rule.polled(1_000_000, 1_002_000, false); // one round took 2 us and found nothing
//! assert!(!rule.is_due(1_033_999) && rule.is_due(1_034_000));
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Polls that find nothing take at most one part in this many of the loop's time.
pub const ZERO_TIMEOUT_SHARE: u64 = 16;
/// The empty calls in a row before the first poll. A loop that looks once or twice before it waits is left alone.
pub const EMPTY_CALLS_MIN: u32 = 8;
/// The clock is read at least once in this many empty calls. Reading it costs a good part of such a call.
pub const LOOK_EVERY_CALLS_MAX: u32 = 8;
/// The longest pause after a poll. A poll that took longer than a sixteenth of this was kept from its CPU, which does
/// not say what the next one costs.
pub const PAUSE_NS_MAX: u64 = 1_000_000;

/// What is known of the calls with timeout 0 on one epoll context. Threads that share the context share this: they may
/// lose each other's counts, which delays or hastens a poll by a call.
#[derive(Debug, Default)]
pub struct ZeroTimeout {
    /// Empty calls in a row.
    empty: AtomicU32,
    /// The count at which the clock is to be read; 0 stands for [`EMPTY_CALLS_MIN`].
    look_at: AtomicU32,
    /// When the clock was read last in this row, and at which count; 0: not yet.
    looked_ns: AtomicU64,
    looked_at: AtomicU32,
    /// The end of the pause after the last poll.
    not_before_ns: AtomicU64,
}

impl ZeroTimeout {
    /// Makes the record of a context of which nothing is known yet.
    pub const fn new() -> ZeroTimeout {
        ZeroTimeout {
            empty: AtomicU32::new(0),
            look_at: AtomicU32::new(0),
            looked_ns: AtomicU64::new(0),
            looked_at: AtomicU32::new(0),
            not_before_ns: AtomicU64::new(0),
        }
    }

    /// A call found events, or waited: the next empty call is the first of a new row. The pause goes on.
    #[inline]
    pub fn begin_again(&self) {
        if self.empty.load(Relaxed) != 0 {
            self.empty.store(0, Relaxed);
            self.look_at.store(0, Relaxed);
            self.looked_ns.store(0, Relaxed);
        }
    }

    /// The context is a new one, of which nothing is known.
    pub fn forget(&self) {
        self.begin_again();
        self.not_before_ns.store(0, Relaxed);
    }

    /// A call with timeout 0 found nothing. Returns whether to read the clock and to ask [`ZeroTimeout::is_due`].
    #[inline]
    pub fn was_empty(&self) -> bool {
        let empty = self.empty.load(Relaxed).saturating_add(1);
        self.empty.store(empty, Relaxed);
        let look_at = self.look_at.load(Relaxed).max(EMPTY_CALLS_MIN);
        // If the count of the next look is farther off than any look is set, it belongs to a row that another thread
        // has ended meanwhile.
        empty >= look_at || look_at - empty > LOOK_EVERY_CALLS_MAX.max(EMPTY_CALLS_MIN)
    }

    /// Whether the queue is to be polled now. If so, [`ZeroTimeout::polled`] or [`ZeroTimeout::nothing_to_poll`] follows.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let left_ns = self.not_before_ns.load(Relaxed).saturating_sub(now_ns);
        if left_ns == 0 {
            return true;
        }
        // The next look comes after half of the calls that fit into what is left at the pace since the last look, since
        // the pace may slow down.
        let (empty, looked_ns) = (self.empty.load(Relaxed), self.looked_ns.load(Relaxed));
        let calls = u64::from(empty.saturating_sub(self.looked_at.load(Relaxed))).max(1);
        let skip = match now_ns.saturating_sub(looked_ns) / calls {
            _ if looked_ns == 0 => 1,
            0 => LOOK_EVERY_CALLS_MAX,
            pace_ns => (left_ns / (2 * pace_ns)).clamp(1, u64::from(LOOK_EVERY_CALLS_MAX)) as u32,
        };
        self.look_at.store(empty.saturating_add(skip), Relaxed);
        self.looked_at.store(empty, Relaxed);
        self.looked_ns.store(now_ns.max(1), Relaxed);
        false
    }

    /// The queue was polled for one round; `found` says whether the context has events since.
    pub fn polled(&self, began_ns: u64, ended_ns: u64, found: bool) {
        let cost_ns = ended_ns.saturating_sub(began_ns);
        let pause_ns = if found { 0 } else { cost_ns.saturating_mul(ZERO_TIMEOUT_SHARE).min(PAUSE_NS_MAX) };
        self.not_before_ns.store(ended_ns.saturating_add(pause_ns), Relaxed);
        if found {
            self.begin_again();
        }
    }

    /// There is no queue to poll: no socket of the context knows its NAPI. The next look is after the longest pause.
    pub fn nothing_to_poll(&self, now_ns: u64) {
        self.not_before_ns.store(now_ns.saturating_add(PAUSE_NS_MAX), Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What came of a loop of empty calls.
    #[derive(Debug, Default)]
    struct Ran {
        now_ns: u64,
        polling_ns: u64,
        polls: u64,
        looks: u64,
        calls: u64,
        /// The longest time, and the most calls, between two polls or before the first.
        longest_ns: u64,
        most_calls: u64,
    }

    /// Runs a loop whose calls are apart by `gap_ns` and whose polls cost `cost_ns`, until `end_ns`.
    fn run(gap_ns: impl Fn(u64) -> u64, cost_ns: u64, end_ns: u64) -> Ran {
        let rule = ZeroTimeout::default();
        let (mut ran, mut since_ns, mut since_calls) = (Ran { now_ns: 1, ..Ran::default() }, 1, 0);
        while ran.now_ns < end_ns {
            ran.calls += 1;
            since_calls += 1;
            ran.now_ns += gap_ns(ran.calls);
            if !rule.was_empty() {
                continue;
            }
            ran.looks += 1;
            if rule.is_due(ran.now_ns) {
                ran.longest_ns = ran.longest_ns.max(ran.now_ns - since_ns);
                ran.most_calls = ran.most_calls.max(since_calls);
                rule.polled(ran.now_ns, ran.now_ns + cost_ns, false);
                ran.now_ns += cost_ns;
                ran.polls += 1;
                ran.polling_ns += cost_ns;
                (since_ns, since_calls) = (ran.now_ns, 0);
            }
        }
        ran
    }

    #[test]
    fn a_fast_loop_keeps_fifteen_sixteenths_and_seldom_reads_the_clock() {
        // Java's `selectNow`, as measured without lull: 290 ns a call.
        let ran = run(|_| 290, 2_000, 100_000_000);
        assert!(ran.polling_ns * 16 <= ran.now_ns && ran.polls > 1_000, "{ran:?}");
        assert!(ran.looks * 5 <= ran.calls, "{ran:?}");
        // It is polled for within its pause and the time for which the clock is not looked at.
        assert!(ran.longest_ns <= 16 * 2_000 + 8 * 290, "{ran:?}");
    }

    #[test]
    fn a_slow_loop_is_polled_for_at_each_call() {
        let ran = run(|_| 100_000, 2_000, 100_000_000);
        assert!(ran.polls + u64::from(EMPTY_CALLS_MIN) > ran.calls, "{ran:?}");
    }

    #[test]
    fn one_look_before_each_wait_is_let_pass() {
        let rule = ZeroTimeout::default();
        for _ in 0..100 {
            assert!(!rule.was_empty());
            rule.begin_again();
        }
    }

    #[test]
    fn what_finds_packets_is_not_paused_for() {
        let rule = ZeroTimeout::default();
        for begun_ns in [1_000, 2_000, 3_000] {
            while !rule.was_empty() {}
            assert!(rule.is_due(begun_ns));
            rule.polled(begun_ns, begun_ns + 500, true);
        }
    }

    #[test]
    fn a_poll_that_was_kept_from_its_cpu_delays_the_next_by_a_millisecond_at_most() {
        let rule = ZeroTimeout::default();
        while !rule.was_empty() {}
        assert!(rule.is_due(1));
        rule.polled(1, 50_000_001, false);
        assert!(!rule.is_due(50_000_000 + PAUSE_NS_MAX) && rule.is_due(50_000_001 + PAUSE_NS_MAX));
    }

    #[test]
    fn without_a_queue_the_clock_is_all_that_is_looked_at() {
        let rule = ZeroTimeout::default();
        while !rule.was_empty() {}
        assert!(rule.is_due(1));
        rule.nothing_to_poll(1);
        let due = (1..1_000).filter(|call| rule.was_empty() && rule.is_due(call * 1_000)).count();
        assert_eq!((due, rule.is_due(1_000_001)), (0, true));
        rule.nothing_to_poll(1);
        rule.forget();
        assert!(rule.is_due(2));
    }

    proptest! {
        /// Whatever the loop does between its calls, and whatever a poll costs, both bounds hold.
        #[test]
        fn both_errors_are_bounded(
            gaps in prop::collection::vec(prop_oneof![20_u64..2_000, 2_000_u64..400_000], 1..40),
            cost_ns in 50_u64..60_000,
        ) {
            let gap = |call: u64| gaps[call as usize % gaps.len()];
            let ran = run(gap, cost_ns, 50_000_000);
            let slowest = gaps.iter().max().unwrap();
            prop_assert!(ran.polling_ns <= ran.now_ns / ZERO_TIMEOUT_SHARE + cost_ns, "{ran:?}");
            let calls_ns = u64::from(EMPTY_CALLS_MIN.max(LOOK_EVERY_CALLS_MAX)) * slowest;
            prop_assert!(ran.longest_ns <= ZERO_TIMEOUT_SHARE * cost_ns + calls_ns, "{ran:?}");
        }
    }
}
