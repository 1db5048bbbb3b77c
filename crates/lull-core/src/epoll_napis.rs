//! The instances that an epoll context's sockets are on, for [`EpollOptions::every_napi`](crate::EpollOptions::every_napi).
//!
//! Linux keeps one id per context, and the last writer wins (§8, §13 edges 15 to 17). Here a context keeps them all:
//!
//! ```text
//! note     a socket was added, or woke the context: its instance is in the table, and young
//! tour     epoll_wait busy polls each in turn, one poll each (the last of a busy loop is the only one), though events are found: whoever is suspended is asked in every
//!          call, or it would wait for its timer while others are busy. One that is kept masked is left out if the
//!          executor knows that nothing waits for it; if nobody finds anything, all are polled after all
//! turn     the events of a call are returned in turn, the first of each instance first: those have waited longest
//! suspend  when events are returned, each is suspended
//! resume   a tour that finds nothing ends every suspension: the last poll of a busy call (`busy_poll_stop`) replaces the long
//!          timer by the deferral timer, or unmasks the interrupt. Whoever loses an instance to another poller does nothing to
//!          it; that poller's end does the same
//! age      an instance that brought nothing while IDLE_CALLS_MAX calls found events is forgotten. So is one
//!          that is gone (edge 20)
//! ```
//!
//! Another thread on the context may suspend an instance in the very moment in which it is forgotten, and no tour would
//! ask that instance before its long timer. Both threads therefore look: the one that suspends reads the place again
//! afterwards and resumes the instance if it is not there any more; the one that forgets frees the place first and then
//! resumes. The instance's own words order the two: a resume ends in the timer of a completion (or in the interrupt),
//! so a suspension that replaces that timer acquires the free place through it (`Timer::start`), and one that came
//! before it was replaced itself.

// This is a hint: nothing depends on who sees it when.
use std::sync::atomic::AtomicBool;

use crate::config::NAPI_ID_MIN;
use crate::sync::{AtomicU32, Ordering::Relaxed};

/// Instances that a context can keep. Those beyond are not busy polled and not suspended: they interrupt.
#[cfg(not(loom))]
pub(crate) const NAPIS_MAX: usize = 64;
/// Loom branches at each place.
#[cfg(loom)]
pub(crate) const NAPIS_MAX: usize = 2;
/// Calls that found events, but none of this instance, after which an instance is forgotten. A socket that is removed makes no more events, and an
/// instance that is gone cannot; asking it for ever would cost two polls a call.
#[cfg(not(loom))]
pub(crate) const IDLE_CALLS_MAX: u32 = 64;
#[cfg(loom)]
pub(crate) const IDLE_CALLS_MAX: u32 = 1;

/// An instance's place in the table. No data hangs on it but the id itself, so relaxed is enough.
#[derive(Debug, Default)]
struct Slot {
    /// 0: free.
    id: AtomicU32,
    idle_calls: AtomicU32,
    /// Whether the context has busy polled it since it last found nothing: if so, its interrupt is masked, as far as
    /// the context knows. Callers use this hint to save a poll.
    masked: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Napis<const N: usize = NAPIS_MAX>([Slot; N]);

impl<const N: usize> Default for Napis<N> {
    fn default() -> Napis<N> {
        Napis(std::array::from_fn(|_| Slot::default()))
    }
}

impl<const N: usize> Napis<N> {
    /// Notes that instance `id` brought an event, or that a socket of it was added.
    #[inline]
    pub(crate) fn note(&self, id: u32) {
        let mut free = None;
        for slot in &self.0 {
            match slot.id.load(Relaxed) {
                known if known == id => {
                    // Written only when it changes, because all who deliver share this cache line.
                    if slot.idle_calls.load(Relaxed) != 0 {
                        slot.idle_calls.store(0, Relaxed);
                    }
                    return;
                }
                0 if free.is_none() => free = Some(slot),
                _ => {}
            }
        }
        // Somebody may take the place first, or note the same id elsewhere. Neither loses anything: an instance that is not
        // in the table interrupts, and one that is in it twice is polled twice until its second place has aged.
        if let Some(slot) = free
            && slot.id.compare_exchange(0, id, Relaxed, Relaxed).is_ok()
        {
            slot.idle_calls.store(0, Relaxed);
            slot.masked.store(false, Relaxed);
        }
    }

    /// Nothing was found anywhere: every interrupt is unmasked, or about to be.
    pub(crate) fn forget_masked(&self) {
        self.0.iter().for_each(|slot| slot.masked.store(false, Relaxed));
    }

    /// Finds the first instance at or behind place `from`, and returns it with its place.
    #[inline]
    pub(crate) fn first_from(&self, from: usize) -> Option<(usize, u32)> {
        let ids = self.0.iter().map(|slot| slot.id.load(Relaxed)).enumerate().skip(from);
        ids.into_iter().find(|(_, id)| *id >= NAPI_ID_MIN)
    }

    /// Whether the table has exactly one instance.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.first_from(0).is_some_and(|(place, _)| self.first_from(place + 1).is_none())
    }

    /// Whether instance `id` still has place `place`.
    #[inline]
    pub(crate) fn holds(&self, place: usize, id: u32) -> bool {
        self.0[place].id.load(Relaxed) == id
    }

    /// Frees the place, unless another thread forgot the instance and the place is another's by now. The caller resumes what was
    /// freed.
    fn forget(&self, place: usize, id: u32) -> bool {
        self.0[place].id.compare_exchange(id, 0, Relaxed, Relaxed).is_ok()
    }

    /// A call found events: each instance at or behind place `from` is a call older, up to the first that brought none
    /// for so long that it is forgotten. The caller resumes that one, and goes on behind its place.
    #[inline]
    pub(crate) fn age_from(&self, mut from: usize) -> Option<(usize, u32)> {
        while let Some((place, id)) = self.first_from(from) {
            from = place + 1;
            if self.0[place].idle_calls.fetch_add(1, Relaxed) >= IDLE_CALLS_MAX && self.forget(place, id) {
                return Some((place, id));
            }
        }
        None
    }
}

/// Sorts events by how many of the same instance stand before them.
pub(crate) fn in_turn<T: Copy>(events: &mut [T], napi_id: impl Fn(&T) -> u32) {
    let Some((first, others)) = events.split_first() else { return };
    let of_first = napi_id(first);
    if others.iter().all(|event| napi_id(event) == of_first) {
        return;
    }
    let mut counts: Vec<(u32, usize)> = Vec::with_capacity(8);
    let mut ranked: Vec<(usize, T)> = Vec::with_capacity(events.len());
    for event in &*events {
        let id = napi_id(event);
        let at = counts.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
            counts.push((id, 0));
            counts.len() - 1
        });
        ranked.push((counts[at].1, *event));
        counts[at].1 += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    events.iter_mut().zip(ranked).for_each(|(event, (_, ranked))| *event = ranked);
}

/// One call's way around the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tour {
    /// The place to go on from.
    next: usize,
    /// The instance that is being polled, with its place.
    at: Option<(usize, u32)>,
}

impl Tour {
    /// The next instance to poll, if the tour is not over.
    #[inline]
    pub(crate) fn next(&mut self, napis: &Napis) -> Option<u32> {
        self.at = napis.first_from(self.next);
        let (place, id) = self.at?;
        self.next = place + 1;
        Some(id)
    }

    /// Whether the context keeps the interrupt of the instance masked that is to be polled.
    #[inline]
    pub(crate) fn is_at_masked(&self, napis: &Napis) -> bool {
        self.at.is_some_and(|(place, _)| napis.0[place].masked.load(Relaxed))
    }

    /// The instance was polled, and is masked from now on.
    #[inline]
    pub(crate) fn note_masked(&self, napis: &Napis) {
        if let Some((place, _)) = self.at
            && !napis.0[place].masked.load(Relaxed)
        {
            napis.0[place].masked.store(true, Relaxed);
        }
    }

    /// The instance that was to be polled is gone, and is forgotten. The caller resumes what is returned, in case it is
    /// there again.
    pub(crate) fn forget(&self, napis: &Napis) -> Option<u32> {
        let (place, id) = self.at?;
        napis.forget(place, id).then_some(id)
    }

    /// Whether every instance was polled.
    #[inline]
    pub(crate) fn is_over(&self, napis: &Napis) -> bool {
        napis.first_from(self.next).is_none()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: u32 = NAPI_ID_MIN;

    fn ids<const N: usize>(napis: &Napis<N>) -> Vec<u32> {
        let mut from = 0;
        std::iter::from_fn(|| {
            let (place, id) = napis.first_from(from)?;
            from = place + 1;
            Some(id)
        })
        .collect()
    }

    #[test]
    fn each_instance_is_kept_once_and_those_beyond_the_table_are_not() {
        let napis = Napis::<3>::default();
        for id in [A, A + 1, A, A + 2, A + 3, A + 1] {
            napis.note(id);
        }
        assert_eq!(ids(&napis), [A, A + 1, A + 2]);
        napis.0[1].id.store(0, Relaxed);
        napis.note(A + 3);
        assert_eq!(ids(&napis), [A, A + 3, A + 2], "a place that is free is taken again");
    }

    #[test]
    fn events_of_several_instances_take_turns_and_each_keeps_its_order() {
        let mut events = [(A, 'a'), (A, 'b'), (A, 'c'), (A + 1, 'd'), (A + 1, 'e'), (0, 'f')];
        in_turn(&mut events, |(id, _)| *id);
        assert_eq!(events.map(|(_, name)| name), ['a', 'd', 'f', 'b', 'e', 'c']);
        let mut of_one = [(A, 'a'), (A, 'b'), (A, 'c')];
        in_turn(&mut of_one, |(id, _)| *id);
        assert_eq!(of_one.map(|(_, name)| name), ['a', 'b', 'c']);
    }

    #[test]
    fn an_instance_ages_with_each_call_that_finds_others_and_an_event_makes_it_young() {
        let napis = Napis::<NAPIS_MAX>::default();
        napis.note(A);
        napis.note(A + 1);
        for call in 0..IDLE_CALLS_MAX {
            assert_eq!(napis.age_from(0), None, "call {call}");
            napis.note(A + 1);
        }
        assert_eq!(napis.age_from(0), Some((0, A)));
        assert_eq!(ids(&napis), [A + 1]);
        assert_eq!(napis.age_from(1), None, "it is young");
    }
}
