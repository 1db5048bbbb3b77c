//! Time, from the cycle counter where it can be trusted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::affinity::{pin_to, usable_cores};
use crate::sync::relock;

/// How long the cycle counter is compared with the kernel's clock at start-up.
const CALIBRATION_NS: u64 = 20_000_000;
/// How far the counters of two cores may be apart, in nanoseconds: more than a comparison with the kernel's clock errs by, less
/// than any timer that this clock is for.
const CORES_APART_MAX_NS: u64 = 5_000;

/// How far the cycle counter may be from the kernel's clock since the two were last compared: this many nanoseconds,
/// plus a share of those that have passed. The kernel adjusts its own clock by 500 ppm at the most, and the rate that
/// was found errs by less. A program that slews it faster (`chronyd`, by up to 8 %) may have the counter given up,
/// which costs some nanoseconds at each look and no more.
const APART_MAX_NS: u64 = 100_000_000;
const APART_ONE_IN: u64 = 256;
/// How much a counter that was right may have gained on the kernel's clock since the two were compared: one in this
/// many nanoseconds. When the kernel's clock takes over, time is later by this, so that nobody sees it go back.
const GAINED_ONE_IN: u64 = 1 << 10;
/// The counter is compared again when this many cycles have passed, a third of a second or so.
const COMPARED_CYCLES: u64 = 1 << 30;
/// A counter that seems behind by less than this is another core's, and has not gone back.
const BEHIND_CYCLES: u64 = 1 << 20;
/// This stands in place of the least that the counter may show once the kernel's clock is used.
const BY_KERNEL: u64 = u64::MAX;

/// A monotonic clock in nanoseconds since it was made. Reading it takes 8 to 18 ns.
///
/// The cycle counter is used if it runs at a constant rate, never stops, and agrees with the kernel's clock on every core that
/// the process may use. What the check lets through may still read a few microseconds earlier on another core: whoever
/// subtracts two readings of different threads has to expect it.
///
/// A counter that is trusted may still start again, when the machine comes back from suspend-to-RAM or hibernation, or
/// change its rate, when a virtual machine has moved. So it is compared again when a thread was woken by the kernel's
/// clock, and whoever sees it below what it was then compares at once. If it is wrong, the kernel's clock takes over
/// for good, from where time was: it goes on and does not go back.
#[derive(Debug)]
pub struct Clock {
    origin: Instant,
    tsc: Tsc,
    /// The least that the counter may show, [`BY_KERNEL`] once it is not used.
    floor_cycles: AtomicU64,
    /// Once the kernel's clock is used, how far time is ahead of what that has counted since `origin`; it wraps where
    /// time is behind. It is written before `floor_cycles` says that the kernel's clock is used.
    ahead_ns: AtomicU64,
    compared: Mutex<Compared>,
}

/// Where both clocks were when they were compared last.
#[derive(Clone, Copy, Debug)]
struct Compared {
    kernel: Instant,
    ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
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
    /// Cycles that the reading took, within which the two are not known to belong together.
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
        if !tsc_is_steady() {
            return Clock::from(Instant::now(), None);
        }
        let start = read_both();
        while start.kernel.elapsed().as_nanos() < u128::from(CALIBRATION_NS) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let end = read_both();
        let tsc = Tsc::between(&start, &end)
            .filter(|tsc| read_on_every_core().iter().all(|core| tsc.agrees(end.kernel, core)));
        Clock::from(end.kernel, tsc)
    }

    /// Both begin at `origin`.
    fn from(origin: Instant, tsc: Option<Tsc>) -> Clock {
        Clock {
            origin,
            floor_cycles: AtomicU64::new(tsc.map_or(BY_KERNEL, |tsc| tsc.origin)),
            tsc: tsc.unwrap_or_default(),
            ahead_ns: AtomicU64::new(0),
            compared: Mutex::new(Compared { kernel: origin, ns: 0 }),
        }
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.read(read_cycles, read_both)
    }

    #[inline]
    fn read(&self, cycles: impl FnOnce() -> u64, both: impl Fn() -> Reading) -> u64 {
        // The load acquires: whoever finds the kernel's clock in use also finds how far time is ahead of it.
        let floor_cycles = self.floor_cycles.load(Ordering::Acquire);
        if floor_cycles == BY_KERNEL {
            return self.by_kernel_ns(Instant::now());
        }
        let cycles = cycles();
        if cycles >= floor_cycles { self.tsc.ns(cycles) } else { self.read_anew(both) }
    }

    fn by_kernel_ns(&self, now: Instant) -> u64 {
        let since_ns = now.saturating_duration_since(self.origin).as_nanos() as u64;
        since_ns.wrapping_add(self.ahead_ns.load(Ordering::Relaxed))
    }

    /// The counter is behind what it was.
    #[cold]
    fn read_anew(&self, both: impl Fn() -> Reading) -> u64 {
        let reading = both();
        self.compare(&reading);
        match self.floor_cycles.load(Ordering::Acquire) {
            BY_KERNEL => self.by_kernel_ns(reading.kernel),
            _ => self.tsc.ns(reading.cycles),
        }
    }

    /// A thread was woken by the kernel's clock: the counter is compared with it, if that is long ago.
    pub(crate) fn woken_by_the_kernel(&self) {
        let floor_cycles = self.floor_cycles.load(Ordering::Relaxed);
        if floor_cycles == BY_KERNEL {
            return;
        }
        let cycles = read_cycles();
        if cycles < floor_cycles || cycles - floor_cycles > COMPARED_CYCLES {
            self.compare(&read_both());
        }
    }

    /// Uses the counter no longer if it is not where the kernel's clock says.
    fn compare(&self, reading: &Reading) {
        let mut compared = relock(&self.compared);
        let floor_cycles = self.floor_cycles.load(Ordering::Relaxed);
        // Another thread may have compared a moment later and got here first; the counter was not behind what that
        // thread saw.
        if floor_cycles == BY_KERNEL || reading.kernel < compared.kernel {
            return;
        }
        let kernel_ns = reading.kernel.saturating_duration_since(compared.kernel).as_nanos() as u64;
        let expected_ns = compared.ns.saturating_add(kernel_ns);
        let ns = self.tsc.ns(reading.cycles);
        let gap_ns = self.tsc.ns(self.tsc.origin.saturating_add(reading.gap_cycles));
        let apart_max_ns = APART_MAX_NS.saturating_add(kernel_ns / APART_ONE_IN).saturating_add(gap_ns);
        let went_back = reading.cycles < floor_cycles;
        if !went_back && ns.abs_diff(expected_ns) <= apart_max_ns {
            *compared = Compared { kernel: reading.kernel, ns };
            let floor_cycles = floor_cycles.max(reading.cycles.saturating_sub(BEHIND_CYCLES));
            self.floor_cycles.store(floor_cycles, Ordering::Release);
            return;
        }
        // Nobody has seen a later time than either of these.
        let seen_ns = if went_back { 0 } else { ns };
        let now_ns = seen_ns.max(expected_ns.saturating_add(kernel_ns / GAINED_ONE_IN));
        let since_ns = reading.kernel.saturating_duration_since(self.origin).as_nanos() as u64;
        self.ahead_ns.store(now_ns.wrapping_sub(since_ns), Ordering::Relaxed);
        self.floor_cycles.store(BY_KERNEL, Ordering::Release);
    }

    /// Cycles per millisecond of the counter, if it is used.
    pub fn tsc_khz(&self) -> Option<u64> {
        (self.floor_cycles.load(Ordering::Relaxed) != BY_KERNEL).then_some(self.tsc.khz)
    }
}

/// The pair read closest together of a few tries: an interrupt between the two reads would spoil the rate.
fn read_both() -> Reading {
    let read = || {
        let before = read_cycles();
        let kernel = Instant::now();
        // A thread may be moved in between to a core whose counter is behind, which makes the try useless whatever it
        // says.
        let gap_cycles = read_cycles().checked_sub(before).unwrap_or(u64::MAX);
        Reading { kernel, cycles: before.saturating_add(gap_cycles / 2), gap_cycles }
    };
    let tries = (0..16).map(|_| read());
    // There are sixteen tries, so there is a best one.
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
pub(crate) fn read_cycles() -> u64 {
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
pub(crate) fn read_cycles() -> u64 {
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

    const SECOND_CYCLES: u64 = 1_000_000_000;
    const SECOND_NS: u64 = 1_000_000_000;
    /// What the counter showed when the clock was made, 20 s after the machine had started.
    const ORIGIN_CYCLES: u64 = 20 * SECOND_CYCLES;

    /// A clock over a counter of one cycle a nanosecond, and the moment when it was made: a while ago.
    fn over_a_counter() -> (Clock, Instant) {
        let kernel = Instant::now().checked_sub(Duration::from_secs(1_000)).unwrap();
        let start = reading(kernel, 0, ORIGIN_CYCLES - 20_000_000);
        let end = reading(kernel, 20_000, ORIGIN_CYCLES);
        (Clock::from(end.kernel, Tsc::between(&start, &end)), end.kernel)
    }

    #[test]
    fn a_counter_that_starts_again_is_followed_by_the_kernels_clock_from_where_time_was() {
        // Compared in between, or never since the clock was made.
        for compared in [true, false] {
            let (clock, origin) = over_a_counter();
            let at = |after_s: u64, cycles| reading(origin, after_s * 1_000_000, cycles);
            let before = at(700, ORIGIN_CYCLES + 700 * SECOND_CYCLES);
            if compared {
                clock.compare(&at(699, ORIGIN_CYCLES + 699 * SECOND_CYCLES));
            }
            let before_ns = clock.read(|| before.cycles, || before);
            assert_eq!(before_ns, 700 * SECOND_NS);
            // The machine sleeps, and its counter starts again; for the kernel's clock no time has passed.
            let after = at(701, 5_000_000);
            let after_ns = clock.read(|| after.cycles, || after);
            let late_ns = after_ns.checked_sub(701 * SECOND_NS).expect("it goes on");
            assert!(late_ns < SECOND_NS, "by {late_ns} ns");
            assert_eq!(clock.tsc_khz(), None);
            // A thousand seconds and what this test takes have passed by the kernel's clock.
            let now_ns = clock.now_ns();
            assert!(now_ns >= 1_000 * SECOND_NS - 20_000_000 + late_ns, "{now_ns}");
        }
    }

    /// Whoever sleeps in the kernel until a deadline, and does not look at the clock for longer than the machine had run before.
    #[test]
    fn a_counter_that_is_past_the_origin_again_is_found_out_by_the_last_comparison() {
        let (clock, origin) = over_a_counter();
        clock.compare(&reading(origin, 700_000_000, ORIGIN_CYCLES + 700 * SECOND_CYCLES));
        let after = reading(origin, 800_000_000, ORIGIN_CYCLES + 80 * SECOND_CYCLES);
        assert!(clock.read(|| after.cycles, || after) >= 800 * SECOND_NS);
    }

    /// The kernel's clock was slowed down by what it is adjusted by at the most, and nobody has compared for ten minutes.
    #[test]
    fn a_counter_that_was_ahead_of_the_kernels_clock_when_it_started_again_lets_time_not_go_back() {
        let (clock, origin) = over_a_counter();
        let before_ns =
            clock.read(|| ORIGIN_CYCLES + 600 * SECOND_CYCLES + 600 * SECOND_CYCLES / 2_000, || unreachable!());
        let after = reading(origin, 600_000_000, 5_000_000);
        let after_ns = clock.read(|| after.cycles, || after);
        assert!(after_ns >= before_ns, "{before_ns} {after_ns}");
    }

    /// A thread loses its core between its reading and its comparison.
    #[test]
    fn a_reading_that_another_thread_has_overtaken_is_no_counter_that_went_back() {
        let (clock, origin) = over_a_counter();
        let at = |after_ms: u64| reading(origin, after_ms * 1_000, ORIGIN_CYCLES + after_ms * SECOND_CYCLES / 1_000);
        let early = at(400);
        clock.compare(&at(404));
        clock.compare(&early);
        assert_eq!(clock.tsc_khz(), Some(1_000_000));
        assert_eq!(clock.read(|| at(405).cycles, || unreachable!()), 405_000_000);
    }

    #[test]
    fn a_counter_of_another_rate_or_that_jumped_is_given_up_and_time_does_not_go_back() {
        for (seconds, cycles) in [(10, 12 * SECOND_CYCLES), (10, 3_600 * SECOND_CYCLES), (10, 8 * SECOND_CYCLES)] {
            let (clock, origin) = over_a_counter();
            let there = reading(origin, seconds * 1_000_000, ORIGIN_CYCLES + cycles);
            let before_ns = clock.read(|| there.cycles, || there);
            clock.compare(&there);
            assert_eq!(clock.tsc_khz(), None, "{cycles}");
            let after_ns = clock.by_kernel_ns(there.kernel);
            assert!(after_ns >= before_ns && after_ns >= seconds * SECOND_NS, "{before_ns} {after_ns}");
        }
    }

    #[test]
    fn a_counter_that_agrees_is_kept_also_where_a_core_is_a_little_behind_and_a_reading_took_long() {
        let (clock, origin) = over_a_counter();
        for after_s in [1, 60, 600] {
            // The kernel's clock is adjusted by 500 ppm.
            let cycles = ORIGIN_CYCLES + after_s * SECOND_CYCLES + after_s * SECOND_CYCLES / 2_000;
            clock.compare(&reading(origin, after_s * 1_000_000, cycles));
            let behind = reading(origin, after_s * 1_000_000, cycles - 4_000);
            assert_eq!(clock.read(|| behind.cycles, || behind), cycles - 4_000 - ORIGIN_CYCLES);
        }
        let slow = Reading {
            gap_cycles: 2 * SECOND_CYCLES,
            ..reading(origin, 601_000_000, ORIGIN_CYCLES + 602 * SECOND_CYCLES)
        };
        clock.compare(&slow);
        assert_eq!(clock.tsc_khz(), Some(1_000_000));
    }

    #[test]
    fn never_goes_back_and_keeps_up_with_the_kernels_clock() {
        let clock = Clock::new();
        // A thread may lose its core between two looks: what passes by this clock lies between what passes by the kernel's from behind
        // the first look to before the last one, and from before the first one to behind the last.
        let (before, start_ns, behind) = (Instant::now(), clock.now_ns(), Instant::now());
        let mut last = start_ns;
        while behind.elapsed().as_millis() < 50 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        let (least, ours, most) = (behind.elapsed(), clock.now_ns() - start_ns, before.elapsed());
        let (least, ours, most) = (least.as_nanos() as f64, ours as f64, most.as_nanos() as f64);
        assert!(ours > 0.95 * least && ours < 1.05 * most, "{ours} ns against {least} to {most} ns");
    }
}
