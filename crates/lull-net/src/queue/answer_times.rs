//! The earliest time at which a frame that a poll finds can have come. From then on the time of its answer counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_host::Delivery;

/// If requests are timed ([`crate::shard::Stack::time_answers`]), this records when the ring was last seen empty, and
/// when its interrupt was last raised. For that, the clock is read in every round of a busy poller.
#[derive(Default)]
pub(super) struct AnswerTimes {
    timed: AtomicBool,
    empty_ns: AtomicU64,
    raised_ns: AtomicU64,
}

impl AnswerTimes {
    /// The time before a look at the ring, if that is needed: what the look does not find comes later.
    #[inline]
    pub(super) fn looks_at_ns(&self, host: &Delivery) -> Option<u64> {
        self.timed.load(Ordering::Relaxed).then(|| host.now_ns())
    }

    /// The ring was seen empty, in a look that began at this time.
    #[inline]
    pub(super) fn seen_empty(&self, looked_ns: Option<u64>) {
        if let Some(looked_ns) = looked_ns {
            self.empty_ns.store(looked_ns, Ordering::Relaxed);
        }
    }

    /// The ring's interrupt was raised.
    #[inline]
    pub(super) fn raised(&self, host: &Delivery) {
        if self.timed.load(Ordering::Relaxed) {
            self.raised_ns.store(host.now_ns(), Ordering::Relaxed);
        }
    }

    /// The earliest time at which the frames that a poll finds can have come.
    #[inline]
    pub(super) fn came_since_ns(&self, now_ns: u64) -> u64 {
        let since_ns = self.empty_ns.load(Ordering::Relaxed).max(self.raised_ns.load(Ordering::Relaxed));
        since_ns.min(now_ns)
    }

    /// Turns the timing on or off.
    pub(super) fn set(&self, on: bool, now_ns: u64) {
        // What was in the ring before is not known to be older than this.
        if on && !self.timed.load(Ordering::Relaxed) {
            self.empty_ns.store(now_ns, Ordering::Relaxed);
        }
        self.timed.store(on, Ordering::Relaxed);
    }
}
