//! The one timer of a NAPI instance: a claimable (deadline, CPU) word.
//!
//! IRQ deferral, GRO flushing and IRQ suspension share it, and starting it replaces whatever was pending
//! (`napi_semantics` §1). Suspension starts it without owning the instance, hence one atomic word. It is pinned: it
//! fires on the CPU that armed it.
//!
//! Starting it releases and claiming it acquires. A completion gives the instance up and then starts the timer: whoever
//! claims that timer has to see the instance free, or the watchdog would swallow the timer that was just started for
//! it. Starting it acquires, too: a suspension that replaces the timer of a completion has to see what was done before
//! that completion (`epoll_napis.rs` says what for).

use crate::sync::{AtomicU64, Ordering};

/// Bits of the word that hold the CPU, plus one so that an armed timer is never the zero word.
const CPU_BITS: u32 = 12;
/// Deadlines are kept in units of 16 ns, rounded up so that a timer is never early: 52 bits of them reach 2^56 ns, 2.3
/// years of the executor's clock. Past that every timer is due at once, which costs polls and loses nothing.
const UNIT_SHIFT: u32 = 4;
/// The highest CPU index that a timer can be pinned to.
pub const CPU_MAX: u16 = (1 << CPU_BITS) - 2;
/// The farthest deadline; later ones are brought down to it.
pub const DEADLINE_MAX_NS: u64 = (1 << (64 - CPU_BITS + UNIT_SHIFT)) - (1 << UNIT_SHIFT);

/// See the [module](self).
#[derive(Debug)]
pub struct Timer(AtomicU64);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer(AtomicU64::new(0))
    }

    fn pack(deadline_ns: u64, cpu: u16) -> u64 {
        debug_assert!(cpu <= CPU_MAX);
        let unit = 1u64 << UNIT_SHIFT;
        let ticks = deadline_ns.min(DEADLINE_MAX_NS).div_ceil(unit);
        (ticks << CPU_BITS) | u64::from(cpu + 1)
    }

    fn unpack(word: u64) -> Option<(u64, u16)> {
        // The zero word means idle; an armed word has a nonzero CPU field.
        (word != 0).then(|| ((word >> CPU_BITS) << UNIT_SHIFT, ((word & ((1 << CPU_BITS) - 1)) - 1) as u16))
    }

    /// Starts the timer, replacing what was pending. Returns the deadline as it is kept (up to 15 ns later).
    pub(crate) fn start(&self, deadline_ns: u64, cpu: u16) -> u64 {
        let word = Timer::pack(deadline_ns, cpu);
        self.0.swap(word, Ordering::AcqRel);
        (word >> CPU_BITS) << UNIT_SHIFT
    }

    /// The pending deadline and the CPU that it fires on.
    ///
    /// This is a relaxed hint, and `claim` decides. An executor that sleeps until this deadline orders it by the word
    /// in which it keeps its earliest deadline, and whoever starts a timer notes it there.
    pub fn pending(&self) -> Option<(u64, u16)> {
        Timer::unpack(self.0.load(Ordering::Relaxed))
    }

    /// Consumes the timer if it is due on `cpu`. Exactly one claimant wins. Returns the deadline that passed.
    pub(crate) fn claim(&self, now_ns: u64, cpu: u16) -> Option<u64> {
        let word = self.0.load(Ordering::Relaxed);
        let (deadline_ns, pinned) = Timer::unpack(word)?;
        if deadline_ns > now_ns || pinned != cpu {
            return None;
        }
        self.0.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| deadline_ns)
    }

    pub(crate) fn cancel(&self) {
        self.0.swap(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn never_early_and_fires_once_on_its_cpu() {
        let timer = Timer::new();
        assert_eq!(timer.start(1_001, 3), 1_008);
        assert_eq!(timer.claim(1_007, 3), None);
        assert_eq!(timer.claim(1_008, 2), None, "pinned to the CPU that armed it");
        assert_eq!(timer.claim(1_008, 3), Some(1_008));
        assert_eq!(timer.claim(9_999, 3), None);
    }

    #[test]
    fn starting_replaces_and_cpu_zero_at_time_zero_is_armed() {
        let timer = Timer::new();
        timer.start(500, 0);
        timer.start(0, 0);
        assert_eq!(timer.pending(), Some((0, 0)));
        timer.cancel();
        assert_eq!(timer.pending(), None);
    }

    #[test]
    fn the_farthest_deadline_survives_packing() {
        let timer = Timer::new();
        timer.start(u64::MAX, CPU_MAX);
        assert_eq!(timer.pending(), Some((DEADLINE_MAX_NS, CPU_MAX)));
    }
}
