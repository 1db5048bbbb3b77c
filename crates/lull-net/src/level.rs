//! What is ready now, and what somebody is interested in: two words that are written by different threads.
//!
//! A thread that delivers writes the level and then looks whether it is wanted. A thread that changes what is wanted
//! writes that and then looks at the level. A fence stands between the two steps on both sides, so that at least one of
//! them sees what the other wrote. Without it, data that arrive while a one-shot item is turned on again would be
//! reported by neither.

use crate::sync::{AtomicU32, Ordering, fence};

/// The level of one socket: what is ready now.
#[derive(Debug)]
pub(crate) struct Level(AtomicU32);

impl Level {
    pub(crate) fn new(bits: u32) -> Level {
        Level(AtomicU32::new(bits))
    }

    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_bits(&self, bits: u32) {
        self.0.store(bits, Ordering::Release);
    }
}

/// The bits of a level that are reported in any case, and the bits of an interest that stand for a level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    pub(crate) always: u32,
    pub(crate) levels: u32,
}

/// This bit is set while a one-shot item is off.
const OFF: u32 = 1 << 31;

/// What an item is interested in.
#[derive(Debug)]
pub(crate) struct Wanted {
    interest: AtomicU32,
    masks: Masks,
}

impl Wanted {
    pub(crate) fn new(interest: u32, masks: Masks) -> Wanted {
        debug_assert_eq!(interest & OFF, 0);
        Wanted { interest: AtomicU32::new(interest), masks }
    }

    /// The interest as it was given, even while a one-shot item is off.
    #[inline]
    pub(crate) fn interest(&self) -> u32 {
        self.interest.load(Ordering::Relaxed) & !OFF
    }

    /// The bits of a level that are reported; none while a one-shot item is off.
    #[inline]
    pub(crate) fn mask(&self) -> u32 {
        let interest = self.interest.load(Ordering::Acquire);
        if interest & OFF != 0 { 0 } else { (interest & self.masks.levels) | self.masks.always }
    }

    /// Whether one of `edges` is to be reported. The caller has written the level before.
    #[inline]
    pub(crate) fn wants(&self, edges: u32) -> bool {
        if self.mask() & edges != 0 {
            return true;
        }
        // What was just read may be older than the level that the caller has written.
        fence(Ordering::SeqCst);
        self.mask() & edges != 0
    }

    /// Changes the interest, and turns a one-shot item on again. The caller looks at the level afterwards.
    pub(crate) fn change(&self, interest: u32) {
        debug_assert_eq!(interest & OFF, 0);
        self.interest.store(interest, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Turns the item off, because its one-shot event was reported.
    #[inline]
    pub(crate) fn turn_off(&self) {
        self.interest.fetch_or(OFF, Ordering::AcqRel);
    }
}
