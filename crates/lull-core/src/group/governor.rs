//! How many pollers of a group are awake. Whoever ends a window makes one decision; waking and parking have their own
//! thresholds and their own patience.
//!
//! A poller is worth waking only if it is needed for much longer than its wake takes (18 to 20 us for a thread, 1 to 3 us for
//! a core in a shallow idle state), and worth parking only if it will not be needed again at once: spinning as long as a wake
//! costs is at most twice the optimum in CPU time, and fifty times as long keeps what wakes add to packets below 2 % of the
//! time.

// Nothing synchronises on these: whoever ends a window decides, by one compare-and-swap, and the words are its notes. A
// decision that is made on late figures is made again in the next window.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::group::watch::Seen;

/// Length of a window, in nanoseconds.
pub const GOVERNOR_WINDOW_NS: u64 = 128_000;
/// Windows in a row that have to ask for one more poller.
pub const WAKE_WINDOWS: u32 = 2;
/// Windows in a row that have to do with one fewer: about 1 ms.
pub const PARK_WINDOWS: u32 = 8;
/// A member that waited longer than this asks for one more poller, in nanoseconds.
pub const WAIT_NS: u64 = 20_000;
/// How many visits in a row that fill a member's weight ask for one more poller. A visit that ends early for a doorbell
/// counts for the part that it took.
pub const FULL_VISITS: u32 = 4;
/// A poller that was woken does not park, and one that was parked is not woken, for so many nanoseconds.
pub const CHANGE_NS: u64 = 1_000_000;

/// When one more poller is woken, and when one parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// One more is woken when those awake are busy for more than this percentage of their time, and members wait.
    pub wake_above: u32,
    /// A poller parks when the others would be busy for less than this percentage of their time without it.
    pub park_below: u32,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { wake_above: 80, park_below: 50 }
    }
}

/// What is to become of the number of pollers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Stay,
    OneMore,
    OneFewer,
}

#[derive(Debug, Default)]
pub(crate) struct Governor {
    window_end_ns: AtomicU64,
    opened_ns: AtomicU64,
    woke_ns: AtomicU64,
    /// What the pollers' busy time added up to when the window was opened.
    busy_before_ns: AtomicU64,
    busy_windows: AtomicU32,
    idle_windows: AtomicU32,
    waited: AtomicBool,
    filled: AtomicBool,
}

impl Governor {
    /// A member was visited that may have waited since `since_ns`.
    #[inline]
    pub(crate) fn visited(&self, since_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(since_ns) > WAIT_NS && !self.waited.load(Relaxed) {
            self.waited.store(true, Relaxed);
        }
    }

    /// A member has filled its weight in this many visits in a row.
    #[inline]
    pub(crate) fn filled(&self, visits: u32) {
        if visits >= FULL_VISITS && !self.filled.load(Relaxed) {
            self.filled.store(true, Relaxed);
        }
    }

    /// Whether the window is over: at its end, or as soon as a member is always full. But a poller that was woken has a
    /// window's time to come before anybody looks again whether there are enough.
    #[inline]
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.window_end_ns.load(Relaxed)
            || (self.filled.load(Relaxed) && now_ns >= self.woke_ns.load(Relaxed).saturating_add(GOVERNOR_WINDOW_NS))
    }

    /// Ends the window, if this poller is the first to do so. `busy_ns` is how long all pollers were busy so far.
    /// `running` is how many of those awake do run: one whose core is taken by others, or that was woken just now, does
    /// not.
    pub(crate) fn decide(
        &self,
        seen: Seen,
        running: u32,
        thresholds: &Thresholds,
        busy_ns: u64,
        now_ns: u64,
    ) -> Decision {
        let end_ns = self.window_end_ns.load(Relaxed);
        let next_ns = now_ns.saturating_add(GOVERNOR_WINDOW_NS);
        if self.window_end_ns.compare_exchange(end_ns, next_ns, Relaxed, Relaxed).is_err() {
            return Decision::Stay;
        }
        let elapsed_ns = now_ns.saturating_sub(self.opened_ns.swap(now_ns, Relaxed)).max(1);
        let busy_ns = busy_ns.saturating_sub(self.busy_before_ns.swap(busy_ns, Relaxed));
        let (waited, filled) = (self.waited.swap(false, Relaxed), self.filled.swap(false, Relaxed));
        let running = u64::from(running);
        let above = |pollers: u64, percent: u32| {
            u128::from(busy_ns) * 100 > u128::from(elapsed_ns) * u128::from(pollers) * u128::from(percent)
        };
        let asks = waited && above(running, thresholds.wake_above);
        let busy_windows = if asks { self.busy_windows.load(Relaxed) + 1 } else { 0 };
        let spare = running > 1 && !above(running - 1, thresholds.park_below);
        let idle_windows = if spare { self.idle_windows.load(Relaxed) + 1 } else { 0 };
        self.busy_windows.store(busy_windows, Relaxed);
        self.idle_windows.store(idle_windows, Relaxed);
        let ceiling = seen.ceiling();
        if seen.awake().count_ones() > ceiling.max(1) || idle_windows >= PARK_WINDOWS {
            return Decision::OneFewer;
        }
        if (filled || busy_windows >= WAKE_WINDOWS) && seen.awake().count_ones() < ceiling {
            self.busy_windows.store(0, Relaxed);
            self.woke_ns.store(now_ns, Relaxed);
            return Decision::OneMore;
        }
        Decision::Stay
    }

    /// When the window ends.
    pub(crate) fn window_end_ns(&self) -> u64 {
        self.window_end_ns.load(Relaxed)
    }

    /// A poller parked: the others are watched anew before the next one does.
    pub(crate) fn parked(&self) {
        self.idle_windows.store(0, Relaxed);
    }
}
