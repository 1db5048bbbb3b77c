//! Time, from the cycle counter where it can be trusted.

use std::time::Instant;

use crate::affinity::{pin_to, usable_cores};

/// How long the cycle counter is compared with the kernel's clock at start-up.
const CALIBRATION_NS: u64 = 20_000_000;
/// How far the counters of two cores may be apart, in nanoseconds: more than a comparison with the kernel's clock errs by, less
/// than any timer that this clock is for.
const CORES_APART_MAX_NS: u64 = 5_000;

/// A monotonic clock in nanoseconds since it was made. Reading it takes 8 to 18 ns.
///
/// The cycle counter is used if it runs at a constant rate, never stops, and agrees with the kernel's clock on every core that
/// the process may use. What the check lets through may still read a few microseconds earlier on another core: whoever
/// subtracts two readings of different threads has to expect it.
#[derive(Debug)]
pub struct Clock {
    origin: Instant,
    tsc: Option<Tsc>,
}

#[derive(Clone, Copy, Debug)]
struct Tsc {
    origin: u64,
    /// Nanoseconds per cycle, times 2^32.
    mult: u64,
    khz: u64,
}

/// The kernel's clock and the cycle counter, read together.
#[derive(Clone, Copy, Debug)]
struct Reading {
    kernel: Instant,
    cycles: u64,
    /// Cycles that the reading took; what is between is known no better.
    gap_cycles: u64,
}

impl Tsc {
    /// The rate between two readings; `None` if the counter did not advance.
    fn between(start: &Reading, end: &Reading) -> Option<Tsc> {
        let elapsed_ns = end.kernel.checked_duration_since(start.kernel)?.as_nanos() as u64;
        let cycles = end.cycles.checked_sub(start.cycles).filter(|cycles| *cycles != 0)?;
        let mult = ((u128::from(elapsed_ns) << 32) / u128::from(cycles)) as u64;
        (elapsed_ns != 0).then(|| Tsc {
            origin: end.cycles,
            mult,
            khz: (u128::from(cycles) * 1_000_000 / u128::from(elapsed_ns)) as u64,
        })
    }

    /// Nanoseconds since the origin; 0 before it.
    #[inline]
    fn ns(&self, cycles: u64) -> u64 {
        ((u128::from(cycles.saturating_sub(self.origin)) * u128::from(self.mult)) >> 32) as u64
    }

    /// Whether a reading, of another core perhaps, is where this counter would be.
    fn agrees(&self, origin: Instant, reading: &Reading) -> bool {
        let kernel_ns = reading.kernel.saturating_duration_since(origin).as_nanos() as u64;
        let gap_ns = self.ns(self.origin.saturating_add(reading.gap_cycles));
        self.ns(reading.cycles).abs_diff(kernel_ns) <= CORES_APART_MAX_NS.saturating_add(gap_ns)
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// Calibrates the cycle counter if it runs at a constant rate and never stops; takes 20 ms then.
    pub fn new() -> Clock {
        Clock { origin: Instant::now(), tsc: None }.calibrated()
    }

    fn calibrated(mut self) -> Clock {
        if !tsc_is_steady() {
            return self;
        }
        let start = read_both();
        while start.kernel.elapsed().as_nanos() < u128::from(CALIBRATION_NS) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let end = read_both();
        self.origin = end.kernel;
        self.tsc = Tsc::between(&start, &end)
            .filter(|tsc| read_on_every_core().iter().all(|core| tsc.agrees(end.kernel, core)));
        self
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.tsc {
            Some(tsc) => tsc.ns(read_cycles()),
            None => self.origin.elapsed().as_nanos() as u64,
        }
    }

    /// Cycles per millisecond of the counter, if it is used.
    pub fn tsc_khz(&self) -> Option<u64> {
        self.tsc.map(|tsc| tsc.khz)
    }
}

/// The pair read closest together of a few tries: an interrupt between the two reads would spoil the rate.
fn read_both() -> Reading {
    let read = || {
        let before = read_cycles();
        let kernel = Instant::now();
        // A thread may be moved in between to a core whose counter is behind: that try is no good, whatever it says.
        let gap_cycles = read_cycles().checked_sub(before).unwrap_or(u64::MAX);
        Reading { kernel, cycles: before.saturating_add(gap_cycles / 2), gap_cycles }
    };
    let tries = (0..16).map(|_| read());
    // Sixteen tries are never none.
    tries.min_by_key(|reading| reading.gap_cycles).unwrap_or_else(read)
}

/// A reading of every core that the process may use. A thread of its own makes them, so that nobody else is moved about. A core
/// that it cannot be moved to is one that nobody here will run on.
fn read_on_every_core() -> Vec<Reading> {
    let on_each = || usable_cores().into_iter().filter(|core| pin_to(*core).is_ok()).map(|_| read_both()).collect();
    std::thread::spawn(on_each).join().unwrap_or_default()
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline]
fn read_cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn tsc_is_steady() -> bool {
    use core::arch::x86_64::__cpuid;
    // Leaf 0x8000_0007, EDX bit 8: invariant TSC (constant rate, runs in every idle state).
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn read_cycles() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_is_steady() -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 1,000 cycles a microsecond, from `kernel` on.
    fn reading(kernel: Instant, after_us: u64, cycles: u64) -> Reading {
        Reading { kernel: kernel + Duration::from_micros(after_us), cycles, gap_cycles: 50 }
    }

    #[test]
    fn a_counter_that_stands_still_or_goes_back_is_not_used() {
        let kernel = Instant::now();
        let (start, still) = (reading(kernel, 0, 5_000_000), reading(kernel, 20_000, 5_000_000));
        assert!(Tsc::between(&start, &still).is_none());
        assert!(Tsc::between(&start, &reading(kernel, 20_000, 4_000_000)).is_none());
    }

    #[test]
    fn cores_whose_counters_are_apart_are_found_out_and_those_that_agree_are_not() {
        let kernel = Instant::now();
        let end = reading(kernel, 20_000, 25_000_000);
        let tsc = Tsc::between(&reading(kernel, 0, 5_000_000), &end).unwrap();
        assert_eq!(tsc.khz, 1_000_000);
        assert!(tsc.agrees(end.kernel, &reading(kernel, 20_100, 25_100_000)));
        assert!(tsc.agrees(end.kernel, &reading(kernel, 20_100, 25_101_000)));
        assert!(!tsc.agrees(end.kernel, &reading(kernel, 20_100, 25_120_000)), "20 us ahead");
        assert!(!tsc.agrees(end.kernel, &reading(kernel, 20_100, 3_000)), "started anew");
    }

    #[test]
    fn a_reading_before_the_origin_is_zero() {
        let kernel = Instant::now();
        let tsc = Tsc::between(&reading(kernel, 0, 1_000), &reading(kernel, 1, 2_000)).unwrap();
        assert_eq!((tsc.ns(1_999), tsc.ns(0), tsc.ns(3_000)), (0, 0, 1_000));
    }

    #[test]
    fn never_goes_back_and_keeps_up_with_the_kernels_clock() {
        let clock = Clock::new();
        let (start, start_ns) = (Instant::now(), clock.now_ns());
        let mut last = start_ns;
        while start.elapsed().as_millis() < 50 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        let (kernel, ours) = (start.elapsed().as_nanos() as f64, (clock.now_ns() - start_ns) as f64);
        assert!((ours / kernel - 1.0).abs() < 0.05, "{ours} ns against {kernel} ns");
    }
}
