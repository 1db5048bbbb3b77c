//! The timeouts of `epoll_wait` (milliseconds) and `epoll_pwait2` (a `timespec`), in nanoseconds.

use libc::{c_int, timespec};

/// A millisecond, in nanoseconds.
pub const MILLISECOND_NS: i64 = 1_000_000;
const SECOND_NS: i64 = 1_000_000_000;
/// A timeout that never ends.
pub const FOR_EVER_NS: i64 = -1;

/// The nanoseconds of a timeout in milliseconds. Every negative timeout never ends.
pub fn of_ms(ms: c_int) -> i64 {
    if ms < 0 { FOR_EVER_NS } else { i64::from(ms) * MILLISECOND_NS }
}

/// The milliseconds of a timeout, rounded up so that no wait becomes 0. A timeout that is too long for the type is
/// shortened.
pub fn in_ms(ns: i64) -> c_int {
    if ns < 0 {
        -1
    } else {
        c_int::try_from(ns.saturating_add(MILLISECOND_NS - 1) / MILLISECOND_NS).unwrap_or(c_int::MAX)
    }
}

/// The nanoseconds of a `timespec`; `None` if it is not valid, which the kernel has to report.
pub fn of_timespec(time: timespec) -> Option<i64> {
    let is_time = time.tv_sec >= 0 && (0..SECOND_NS).contains(&time.tv_nsec);
    is_time.then(|| time.tv_sec.saturating_mul(SECOND_NS).saturating_add(time.tv_nsec))
}

/// The `timespec` of a timeout that ends.
pub fn in_timespec(ns: i64) -> timespec {
    timespec { tv_sec: ns / SECOND_NS, tv_nsec: ns % SECOND_NS }
}

/// The time on the clock that the kernel's timeouts use.
#[inline]
pub fn now_ns() -> i64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every kernel has this clock, and the kernel writes to a struct that exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * SECOND_NS + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_without_losing_any() {
        assert_eq!((of_ms(-7), of_ms(0), of_ms(2)), (FOR_EVER_NS, 0, 2_000_000));
        assert_eq!((in_ms(0), in_ms(1), in_ms(1_000_000), in_ms(1_000_001)), (0, 1, 1, 2));
        assert_eq!((in_ms(FOR_EVER_NS), in_ms(i64::MAX)), (-1, c_int::MAX));
        let time = |tv_sec, tv_nsec| of_timespec(timespec { tv_sec, tv_nsec });
        assert_eq!((time(1, 5), time(0, 0), time(i64::MAX, 0)), (Some(1_000_000_005), Some(0), Some(i64::MAX)));
        assert_eq!((time(-1, 0), time(0, -1), time(0, SECOND_NS)), (None, None, None));
        let back = in_timespec(1_000_000_005);
        assert_eq!((back.tv_sec, back.tv_nsec), (1, 5));
    }
}
