//! The machine's current speed. The speed of a shared machine changes during a measurement. Rows that were measured at
//! different times then belong to different speeds, and only neighbours in time may be compared.

use std::time::{Duration, Instant};

/// The number of multiplications in one piece of work, which take some hundred microseconds.
const STEPS: u32 = 200_000;
/// The number of pieces, of which the fastest counts, because an interrupted one measures the interruption too.
const TRIES: u32 = 5;

/// Returns how long a fixed piece of work takes now.
pub fn sample() -> Duration {
    let time = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..TRIES).map(|_| time()).min().unwrap_or_default()
}

/// Does a piece of work: a chain of multiplications, each of which needs the result of the one before.
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
