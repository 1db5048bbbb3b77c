//! The seat of a CPU: who runs its delivery, and whom to wake for it.
//!
//! A lull CPU is an object, not a core. Its delivery (hard interrupts, timers, softirq) is run by whoever holds the
//! seat: a worker that waits in epoll takes it, so that an interrupt wakes one thread and not two; the interrupt thread
//! has it while the workers compute. One atomic word says who holds it, whether the holder sleeps, and whether there is
//! something to do:
//!
//! ```text
//! raise:  work is published, then PENDING set; a sleeping holder is woken, once
//! take:   from any sleeping holder; PENDING stays
//! sleep:  only with PENDING clear
//! pass:   to a thread that sleeps, only with PENDING clear
//! ```
//!
//! No edge is lost: PENDING is set after the work is published and cleared before it is looked for, and nobody goes to
//! sleep or lets go while it is set.
//!
//! A worker that sleeps says so in a second word. Passing the seat to a sleeper that is just waking up is settled as in
//! Dekker's algorithm: the passer looks at the second word after it wrote the first, the waking worker at the first
//! after it wrote the second, and the first word's compare-and-swap decides.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Who can hold a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(u32);

/// The CPU's interrupt thread.
pub(crate) const IRQ_THREAD: Holder = Holder(64);
/// The CPU's ksoftirqd.
pub(crate) const KSOFTIRQD: Holder = Holder(65);
/// A thread that is passing by: it holds the seat while awake and never sleeps in it.
pub(crate) const GUEST: Holder = Holder(66);
/// The poller that a busy-polling group has on this CPU: it holds the seat while it polls, and never sleeps in it.
pub(crate) const GROUP_POLLER: Holder = Holder(67);
/// Workers of one CPU: as many as the sleepers' word has bits.
pub(crate) const WORKERS_MAX: u32 = 64;

const HOLDER_MASK: u32 = 0xff;
const ASLEEP: u32 = 1 << 8;
const PENDING: u32 = 1 << 9;

impl Holder {
    pub(crate) fn worker(slot: u32) -> Holder {
        debug_assert!(slot < WORKERS_MAX);
        Holder(slot)
    }

    /// The worker's slot, if it is one.
    pub(crate) fn slot(self) -> Option<u32> {
        (self.0 < WORKERS_MAX).then_some(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct Seat {
    word: AtomicU32,
    /// A bit per worker that sleeps, in the seat or not.
    sleepers: AtomicU64,
}

impl Seat {
    /// A seat that the interrupt thread holds, asleep.
    pub(crate) fn new() -> Seat {
        Seat { word: AtomicU32::new(IRQ_THREAD.0 | ASLEEP), sleepers: AtomicU64::new(0) }
    }

    /// Something was published for this CPU. Returns the holder to wake, if it sleeps and nobody woke it yet.
    #[inline]
    #[must_use = "the holder sleeps and nobody else will wake it"]
    pub(crate) fn raise(&self) -> Option<Holder> {
        let before = self.word.fetch_or(PENDING, Ordering::AcqRel);
        (before & (ASLEEP | PENDING) == ASLEEP).then_some(Holder(before & HOLDER_MASK))
    }

    /// Whether something was published that nobody looked for yet.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.word.load(Ordering::Acquire) & PENDING != 0
    }

    /// Takes the seat from a holder that sleeps.
    #[inline]
    pub(crate) fn take(&self, me: Holder) -> bool {
        let mut now = self.word.load(Ordering::Acquire);
        loop {
            if now & ASLEEP == 0 {
                return false;
            }
            let next = (now & PENDING) | me.0;
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
    }

    /// The awake holder is about to look for work.
    #[inline]
    pub(crate) fn begin(&self) {
        self.word.fetch_and(!PENDING, Ordering::AcqRel);
    }

    /// The awake holder `me`, a worker or the interrupt thread, goes to sleep in the seat. Refused while PENDING is set.
    #[inline]
    #[must_use = "refused while something is pending"]
    pub(crate) fn sleep(&self, me: Holder) -> bool {
        self.word.compare_exchange(me.0, me.0 | ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// A worker is about to sleep, in the seat or not: the seat may be passed to it from now on.
    pub(crate) fn sleeper_begins(&self, slot: u32) {
        self.sleepers.fetch_or(1 << slot, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// A worker woke up, for whatever reason. Returns whether it is in the seat, awake now.
    #[must_use]
    pub(crate) fn sleeper_ends(&self, slot: u32) -> bool {
        self.sleepers.fetch_and(!(1 << slot), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.wake_up(Holder::worker(slot))
    }

    /// If `me` holds the seat asleep, it holds it awake now.
    pub(crate) fn wake_up(&self, me: Holder) -> bool {
        let mut now = self.word.load(Ordering::Acquire);
        while now & (HOLDER_MASK | ASLEEP) == me.0 | ASLEEP {
            match self.word.compare_exchange_weak(now, now & !ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// The awake holder lets go: to a worker that sleeps, or else to the interrupt thread. Refused while PENDING is
    /// set; the holder then still holds it.
    #[inline]
    #[must_use = "refused while something is pending"]
    pub(crate) fn pass(&self, me: Holder) -> bool {
        loop {
            let sleepers = self.sleepers.load(Ordering::SeqCst);
            if sleepers == 0 {
                return self.hand(me, IRQ_THREAD);
            }
            let heir = Holder::worker(sleepers.trailing_zeros());
            if !self.hand(me, heir) {
                return false;
            }
            fence(Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) & (1 << heir.0) != 0 {
                return true;
            }
            // The heir is waking up and may have looked before we wrote: whoever swaps first has the seat.
            if !self.reclaim(me, heir) {
                return true;
            }
        }
    }

    /// The awake holder lets go with work left over: the seat goes to ksoftirqd, which the caller wakes.
    pub(crate) fn pass_to_ksoftirqd(&self) {
        self.word.swap(KSOFTIRQD.0 | ASLEEP | PENDING, Ordering::AcqRel);
    }

    fn hand(&self, me: Holder, heir: Holder) -> bool {
        self.word.compare_exchange(me.0, heir.0 | ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn reclaim(&self, me: Holder, heir: Holder) -> bool {
        let mut now = self.word.load(Ordering::Acquire);
        while now & (HOLDER_MASK | ASLEEP) == heir.0 | ASLEEP {
            match self.word.compare_exchange_weak(now, (now & PENDING) | me.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Whether the holder sleeps (a hint).
    #[inline]
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ASLEEP != 0
    }
}
