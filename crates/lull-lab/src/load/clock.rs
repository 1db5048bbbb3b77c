//! The clocks of the generators.

use std::time::Instant;

/// A monotonic clock in nanoseconds, from an origin of its own. A generator reads it at least once per loop, so it
/// should cost no more than a few nanoseconds.
pub trait Clock {
    /// Returns the nanoseconds since the origin. They never decrease.
    fn now_ns(&self) -> u64;
}

/// The operating system's monotonic clock, from the moment when this was made.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// Makes a clock that starts at 0 now.
    pub fn new() -> MonotonicClock {
        MonotonicClock(Instant::now())
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        // 584 years fit.
        self.0.elapsed().as_nanos() as u64
    }
}

impl<F: Fn() -> u64> Clock for F {
    #[inline]
    fn now_ns(&self) -> u64 {
        self()
    }
}
