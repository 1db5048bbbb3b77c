//! When a context that polls for ever lets other threads of its core run (`cond_resched`).
//!
//! Linux's busy-polling NAPI thread asks at the end of each round whether a thread waits for its CPU. An executor on
//! threads knows this of the threads that it woke itself. It knows nothing of all others, so it offers them the core
//! now and then.

/// The longest that such a context keeps its core from threads that nobody told it of, in nanoseconds: a tick of Linux at
/// HZ=1000, at whose end its scheduler would look, too.
pub const RESCHED_EVERY_NS: u64 = 1_000_000;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct CondResched {
    last_ns: u64,
}

impl CondResched {
    /// The context begins at `now_ns`.
    pub fn new(now_ns: u64) -> CondResched {
        CondResched { last_ns: now_ns }
    }

    /// When others are let run if nobody is known to wait until then.
    pub(crate) fn due_ns(&self) -> u64 {
        self.last_ns.saturating_add(RESCHED_EVERY_NS)
    }

    /// Whether to let others run now. `need_resched`: a thread is known to wait for this CPU.
    #[inline]
    pub fn is_due(&mut self, need_resched: bool, now_ns: u64) -> bool {
        let due = need_resched || now_ns.saturating_sub(self.last_ns) >= RESCHED_EVERY_NS;
        if due {
            self.last_ns = now_ns;
        }
        due
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_let_run_at_once_and_any_other_after_a_tick() {
        let mut resched = CondResched::new(5);
        assert!(!resched.is_due(false, 6));
        assert!(resched.is_due(true, 6), "somebody waits");
        assert!(resched.is_due(true, 6), "and somebody else");
        assert!(!resched.is_due(false, 5 + RESCHED_EVERY_NS), "a tick after the last time, not the first");
        assert!(resched.is_due(false, 6 + RESCHED_EVERY_NS));
    }
}
