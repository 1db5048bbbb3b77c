//! How fast the machine is just now. On a machine that is shared its speed changes while it is measured, and rows that
//! were measured at different times are then of different machines: what may be compared is neighbours in time.

use std::time::{Duration, Instant};

/// Multiplications of one piece of work: some hundred microseconds.
const STEPS: u32 = 200_000;
/// Pieces of which the fastest counts: whoever is interrupted measures the interruption.
const TRIES: u32 = 5;

/// How long a fixed piece of work takes now.
pub fn sample() -> Duration {
    let time = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..TRIES).map(|_| time()).min().unwrap_or_default()
}

/// A piece of work: a chain of multiplications, of which each waits for the one before.
pub fn work() {
    let mut value = std::hint::black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    std::hint::black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        assert!(sample() > Duration::ZERO);
    }
}
