//! Time, from the cycle counter where it can be trusted.

use std::time::Instant;

/// How long the cycle counter is compared with the kernel's clock at start-up.
const CALIBRATION_NS: u64 = 20_000_000;

/// A monotonic clock in nanoseconds since it was made. Reading it takes 8 to 18 ns.
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
        let (start, start_cycles) = read_both();
        while start.elapsed().as_nanos() < u128::from(CALIBRATION_NS) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let (end, end_cycles) = read_both();
        let elapsed_ns = (end - start).as_nanos() as u64;
        let cycles = end_cycles - start_cycles;
        let mult = ((u128::from(elapsed_ns) << 32) / u128::from(cycles.max(1))) as u64;
        self.origin = end;
        self.tsc = Some(Tsc { origin: end_cycles, mult, khz: cycles * 1_000_000 / elapsed_ns.max(1) });
        self
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.tsc {
            Some(tsc) => {
                let cycles = read_cycles().saturating_sub(tsc.origin);
                ((u128::from(cycles) * u128::from(tsc.mult)) >> 32) as u64
            }
            None => self.origin.elapsed().as_nanos() as u64,
        }
    }

    /// Cycles per millisecond of the counter, if it is used.
    pub fn tsc_khz(&self) -> Option<u64> {
        self.tsc.map(|tsc| tsc.khz)
    }
}

/// The pair read closest together of a few tries: an interrupt between the two reads would spoil the rate.
fn read_both() -> (Instant, u64) {
    let mut best = (Instant::now(), read_cycles());
    let mut best_gap = u64::MAX;
    for _ in 0..16 {
        let before = read_cycles();
        let now = Instant::now();
        let after = read_cycles();
        if after - before < best_gap {
            best_gap = after - before;
            best = (now, before + (after - before) / 2);
        }
    }
    best
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
    use super::*;

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
