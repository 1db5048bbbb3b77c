//! Counters of one instance, for tables and tools. They never take part in a decision.

// Always the standard atomics: nothing synchronises on a counter, so loom need not explore them.
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        /// A snapshot of an instance's counters, since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
        pub struct Stats {
            /// Polls of the device, by anybody: the sum of the four kinds.
            pub polls: u64,
            $($(#[$doc])* pub $name: u64),*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                let mut stats = Stats { polls: 0, $($name: self.$name.get()),* };
                stats.polls = stats.busy_polls + stats.softirq_polls + stats.thread_polls + stats.group_polls;
                stats
            }
        }

        impl std::ops::Sub for Stats {
            type Output = Stats;
            fn sub(self, before: Stats) -> Stats { Stats { polls: self.polls.wrapping_sub(before.polls), $($name: self.$name.wrapping_sub(before.$name)),* } }
        }

        impl Stats {
            /// What was counted since `before`. Returns `None` if any count is lower than it was then: these are
            /// another instance's counters, or the same one's after it began anew.
            pub fn since(self, before: Stats) -> Option<Stats> {
                Some(Stats { polls: self.polls.checked_sub(before.polls)?, $($name: self.$name.checked_sub(before.$name)?),* })
            }
        }

        impl std::ops::Add for Stats {
            type Output = Stats;
            fn add(self, other: Stats) -> Stats { Stats { polls: self.polls.wrapping_add(other.polls), $($name: self.$name.wrapping_add(other.$name)),* } }
        }
    };
}

counters! {
    /// Packets that they took.
    work,
    /// Polls that found nothing.
    empty_polls,
    /// Polls by a busy poller (application or socket), its last one included.
    busy_polls,
    /// Polls by softirq or ksoftirqd.
    softirq_polls,
    /// Polls by the NAPI thread.
    thread_polls,
    /// Successful schedules.
    schedules,
    /// Schedules that found an owner.
    missed,
    /// Completions that kept the interrupt masked (a deferral round began).
    deferrals,
    /// Timer starts.
    timer_arms,
    /// Timer expiries.
    timer_fires,
    /// Expiries that found an owner and were lost.
    timer_swallowed,
    /// Suspensions: timer starts with `irq_suspend_timeout`.
    suspends,
    /// Resumes that scheduled the instance.
    resumes,
    /// Busy-poll calls.
    busy_calls,
    /// Polls by the pollers of a busy-polling CPU group.
    group_polls,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// A plain increment, for the owner of the instance only.
    #[inline]
    pub(crate) fn bump(&self, by: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Undoes a [`Counter::bump`] of one; for the owner only.
    #[cold]
    pub(crate) fn take_back(&self) {
        self.bump(u64::MAX);
    }

    /// Adds one; any thread may do so.
    #[inline]
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
