//! The deadlines of one CPU, and who wakes up for the earliest: a worker that sleeps in the seat until then, or the
//! interrupt thread by its kernel timer, the backstop.
//!
//! Whoever starts a timer notes its deadline and then reads who covers it; whoever ceases to cover says so and then
//! reads the deadlines. One of the two has to see the other, as in Dekker's algorithm. It does here because in between
//! both make a read-modify-write of the one word of the deadlines, of which the second acquires what the first
//! released.

use crate::sync::{AtomicU64, Ordering};

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Deadlines {
    /// The earliest deadline. It may be earlier than the truth, and it is [`NEVER`] for a moment while somebody looks
    /// it up.
    earliest_ns: AtomicU64,
    /// When a sleeping worker will look by itself.
    worker_looks_ns: AtomicU64,
    /// What the kernel timer is set to.
    backstop_ns: AtomicU64,
}

impl Deadlines {
    pub(crate) fn new() -> Deadlines {
        Deadlines {
            earliest_ns: AtomicU64::new(NEVER),
            worker_looks_ns: AtomicU64::new(NEVER),
            backstop_ns: AtomicU64::new(NEVER),
        }
    }

    /// A timer that falls due here was started.
    #[inline]
    pub(crate) fn note(&self, deadline_ns: u64) {
        // This is a read-modify-write even where the word is early enough: see the head of this file.
        self.earliest_ns.fetch_min(deadline_ns, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn earliest_ns(&self) -> u64 {
        self.earliest_ns.load(Ordering::Acquire)
    }

    /// A hint of [`Deadlines::earliest_ns`] for the fast path.
    #[inline]
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.earliest_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// The deadlines are about to be looked up one by one, and noted.
    pub(crate) fn forget(&self) {
        self.earliest_ns.swap(NEVER, Ordering::AcqRel);
    }

    /// Looks the earliest deadline up.
    pub(crate) fn look_up(&self, deadlines_ns: impl FnOnce() -> u64) -> u64 {
        self.forget();
        let earliest_ns = deadlines_ns();
        self.note(earliest_ns);
        // Others look it up too, and may have the word at NEVER just now.
        earliest_ns.min(self.earliest_ns())
    }

    /// A worker that is about to sleep in the seat promises to look then.
    pub(crate) fn worker_will_look(&self, at_ns: u64) {
        self.worker_looks_ns.fetch_min(at_ns, Ordering::AcqRel);
    }

    /// The worker has looked, or does not sleep after all. The promise of another sleeper may go with this one, which
    /// costs a kernel timer.
    pub(crate) fn worker_looks_no_more(&self) {
        self.worker_looks_ns.swap(NEVER, Ordering::AcqRel);
        self.note(NEVER);
    }

    pub(crate) fn backstop_ns(&self) -> u64 {
        self.backstop_ns.load(Ordering::Acquire)
    }

    /// Notes that the kernel timer was set to `at_ns`.
    pub(crate) fn backstop_is_set(&self, at_ns: u64) {
        self.backstop_ns.store(at_ns, Ordering::Release);
    }

    /// The kernel timer has fired: it covers nothing any more.
    pub(crate) fn backstop_has_fired(&self) {
        self.backstop_ns.store(NEVER, Ordering::Release);
        self.note(NEVER);
    }

    /// Whether somebody wakes up for `deadline_ns`, at most `slack_ns` late.
    pub(crate) fn is_covered(&self, deadline_ns: u64, slack_ns: u64) -> bool {
        let covered_ns = || self.backstop_ns().min(self.worker_looks_ns.load(Ordering::Acquire));
        deadline_ns == NEVER || covered_ns() <= deadline_ns.saturating_add(slack_ns)
    }
}
