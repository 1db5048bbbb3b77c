//! Who watches a group's members. One word says which pollers are attached, which of them are awake, how many members
//! there are, and whether the last awake poller rests.
//!
//! ```text
//! bits  0..26   attached pollers
//! bits 26..52   awake pollers
//! bits 52..63   members
//! bit  63       RESTING
//! ```
//!
//! It is one word so that the compare-and-swap that would do what must never happen refuses it: to clear the last awake
//! bit while there are members (I13, I11), to wake a detached poller, or to let a member enter a group that nobody
//! serves. RESTING stands beside exactly one awake bit: that poller sleeps with every line unmasked, and whoever clears
//! RESTING wakes it.

use crate::sync::{AtomicU64, Ordering};

/// Most pollers of a group.
pub const GROUP_POLLERS_MAX: usize = 26;

const POLLERS: u64 = (1 << GROUP_POLLERS_MAX) - 1;
const AWAKE_SHIFT: u32 = GROUP_POLLERS_MAX as u32;
const MEMBER: u64 = 1 << (2 * AWAKE_SHIFT);
const MEMBERS: u64 = 0x7ff << (2 * AWAKE_SHIFT);
const RESTING: u64 = 1 << 63;

/// The word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    #[inline]
    pub(crate) fn awake(self) -> u32 {
        ((self.0 >> AWAKE_SHIFT) & POLLERS) as u32
    }

    #[inline]
    pub(crate) fn attached(self) -> u32 {
        (self.0 & POLLERS) as u32
    }

    pub(crate) fn members(self) -> u32 {
        ((self.0 & MEMBERS) / MEMBER) as u32
    }

    #[inline]
    pub(crate) fn is_resting(self) -> bool {
        self.0 & RESTING != 0
    }

    #[inline]
    pub(crate) fn is_awake(self, slot: u8) -> bool {
        self.awake() & (1 << slot) != 0
    }

    #[inline]
    pub(crate) fn is_attached(self, slot: u8) -> bool {
        self.attached() & (1 << slot) != 0
    }

    /// How many awake pollers the group may have: no more than members, since a member has one server at a time.
    pub(crate) fn ceiling(self) -> u32 {
        self.attached().count_ones().min(self.members())
    }

    fn without_awake(self, slot: u8) -> Seen {
        Seen(self.0 & !(1 << (AWAKE_SHIFT + u32::from(slot))))
    }

    fn with_awake(self, slot: u8) -> Seen {
        Seen(self.0 | 1 << (AWAKE_SHIFT + u32::from(slot)))
    }

    fn is_only_awake(self, slot: u8) -> bool {
        self.awake() == 1 << slot
    }

    /// RESTING is cleared, and the poller that slept is returned.
    fn risen(self) -> (Seen, Option<u8>) {
        let sleeper = self.is_resting().then(|| self.awake().trailing_zeros() as u8);
        (Seen(self.0 & !RESTING), sleeper)
    }
}

/// Outcome of detaching.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    /// The poller drains; it is to be woken if it sleeps.
    Drains,
    /// Refused: it is the last of a group that has members.
    Last,
}

#[derive(Debug)]
pub(crate) struct Watch(AtomicU64);

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// One compare-and-swap per attempt; `change` sees the word and returns the next with what comes of it, or `None`.
    fn change<T>(&self, mut change: impl FnMut(Seen) -> Option<(Seen, T)>) -> Option<T> {
        let mut now = self.look();
        loop {
            let (next, outcome) = change(now)?;
            match self.0.compare_exchange_weak(now.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(outcome),
                Err(seen) => now = Seen(seen),
            }
        }
    }

    /// A poller comes, parked.
    pub(crate) fn attach(&self, slot: u8) {
        self.0.fetch_or(1 << slot, Ordering::AcqRel);
    }

    /// A poller goes: it drains when it next looks.
    pub(crate) fn detach(&self, slot: u8) -> Detached {
        let drains = self.change(|seen| {
            if seen.members() != 0 && seen.attached() == 1 << slot {
                return None;
            }
            // If it rests, its rest is over; the caller wakes it in any case.
            let next = if seen.is_awake(slot) { seen.risen().0 } else { seen };
            Some((Seen(next.0 & !(1 << slot)), ()))
        });
        if drains.is_some() { Detached::Drains } else { Detached::Last }
    }

    /// A member was published. Returns a poller to wake: one that sleeps, if none is awake, or the one that rests.
    /// Refused if the group has no poller.
    pub(crate) fn enter(&self) -> Option<Option<u8>> {
        self.change(|seen| {
            if seen.attached() == 0 {
                return None;
            }
            let (next, rested) = seen.risen();
            let next = Seen(next.0 + MEMBER);
            if next.awake() != 0 {
                return Some((next, rested));
            }
            let first = next.attached().trailing_zeros() as u8;
            Some((next.with_awake(first), Some(first)))
        })
    }

    /// A member left.
    pub(crate) fn left(&self) {
        let before = Seen(self.0.fetch_sub(MEMBER, Ordering::AcqRel));
        assert!(before.members() != 0, "I9: a member left a group that has none");
    }

    /// Sets the bit of a poller that sleeps; the caller then owes it the wake-up. Refused if it is awake or was detached.
    pub(crate) fn wake(&self, slot: u8) -> bool {
        let woken = self.change(|seen| {
            let parked = seen.is_attached(slot) && !seen.is_awake(slot) && !seen.is_resting();
            parked.then(|| (seen.with_awake(slot), ()))
        });
        woken.is_some()
    }

    /// An awake poller parks. Refused if it is the last one and there are members.
    pub(crate) fn park(&self, slot: u8) -> bool {
        let parked = self.change(|seen| {
            let last = seen.is_only_awake(slot) && seen.members() != 0;
            (!last).then(|| (seen.without_awake(slot), ()))
        });
        parked.is_some()
    }

    /// The last awake poller rests. Refused if it is not the last, or is to go.
    pub(crate) fn rest(&self, slot: u8) -> bool {
        let rests = self.change(|seen| {
            (seen.is_only_awake(slot) && seen.is_attached(slot)).then_some((Seen(seen.0 | RESTING), ()))
        });
        rests.is_some()
    }

    /// Something happened, so a rest is over. Returns the poller that rested; the caller owes it the wake-up.
    pub(crate) fn rise(&self) -> Option<u8> {
        // This is a read-modify-write even if nobody rests: a poller that is about to rest has to see what this was
        // called for.
        let before = Seen(self.0.fetch_and(!RESTING, Ordering::AcqRel));
        before.risen().1
    }

    /// A poller that was detached is gone for good. Returns who serves the members in its place, to be woken.
    pub(crate) fn drain(&self, slot: u8) -> Option<u8> {
        let heir = self.change(|seen| {
            debug_assert!(!seen.is_attached(slot), "an attached poller drains");
            let next = seen.without_awake(slot);
            if next.awake() != 0 || next.members() == 0 {
                return Some((next, None));
            }
            let heir = next.attached().trailing_zeros() as u8;
            Some((next.with_awake(heir), Some(heir)))
        });
        heir.flatten()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Two pollers attached and awake, and so many members.
    fn two_awake(members: u32) -> Watch {
        let watch = Watch::new();
        watch.attach(0);
        watch.attach(1);
        (0..members).for_each(|_| assert!(watch.enter().is_some()));
        assert_eq!((watch.wake(0), watch.wake(1)), (members == 0, true));
        watch
    }

    #[test]
    fn of_two_pollers_that_park_one_stays_for_as_long_as_there_are_members() {
        let watch = two_awake(1);
        assert_eq!((watch.park(0), watch.park(1)), (true, false));
        watch.left();
        assert!(watch.park(1), "without members nobody need be awake");
        assert_eq!(watch.enter(), Some(Some(0)), "the next member wakes one");
    }

    #[test]
    fn only_the_last_poller_rests_and_whoever_ends_that_wakes_it() {
        let watch = two_awake(2);
        assert!(!watch.rest(0), "another is awake");
        assert!(watch.park(1) && watch.rest(0) && !watch.wake(1), "nobody is woken beside one that rests");
        assert_eq!((watch.rise(), watch.rise()), (Some(0), None));
        assert!(watch.rest(0));
        assert_eq!(watch.enter(), Some(Some(0)), "a member that comes ends the rest as well");
        assert!(watch.rest(0));
        assert_eq!(watch.detach(0), Detached::Drains);
        assert!(!watch.look().is_resting() && !watch.rest(0), "who is to go does not rest");
        assert_eq!(watch.drain(0), Some(1), "and hands its watch on");
        assert_eq!(watch.detach(1), Detached::Last);
    }

    #[test]
    fn nobody_enters_a_group_without_a_poller_and_no_detached_poller_is_woken() {
        let watch = Watch::new();
        assert_eq!(watch.enter(), None);
        watch.attach(3);
        assert_eq!(watch.detach(3), Detached::Drains);
        assert!(!watch.wake(3));
    }
}
