//! The ready list of an epoll context, and the threads that wait for it. This is the protocol alone, without sockets.
//!
//! ```text
//! push    the level is written, then QUEUED is set; whoever set it puts the entry on the list. Whether or not the entry
//!         was there already, one waiter is taken off the waiters, and the pusher wakes it (`ep_poll_callback`)
//! take    QUEUED is cleared before the level is read; what is still ready goes back to the tail. If entries are left,
//!         the next waiter is woken (`ep_done_scan`)
//! look    a waiter is among the waiters before it looks at the list for the last time and sleeps
//! leave   a waiter is off the waiters before it looks at the list for the last time to return without events
//! ```
//!
//! QUEUED is changed only by swaps, which are totally ordered. So either the taker's swap comes later and acquires the
//! level that the pusher wrote, or the pusher's swap comes later and finds the flag clear, and the entry is queued
//! again.
//!
//! A waiter that was woken need not pass its wake-up on when it leaves because its time is up: it looks at the list
//! once more and takes the event itself, as in `ep_poll`.

use std::collections::VecDeque;

use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};

/// An object that can be on the list.
pub(crate) trait Entry {
    /// Whether it is on the list, or about to be put there by the thread that set this.
    fn queued(&self) -> &AtomicBool;
}

/// A thread that waits.
pub(crate) trait Wake: Clone {
    /// Ends its sleep, or its next one.
    fn wake(&self);

    /// Whether both wake the same thread.
    fn is_same(&self, other: &Self) -> bool;
}

/// The result for an entry that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was not ready any more. It is off the list, and took no room.
    Stale,
    /// It was reported, and comes back with its next edge.
    Once,
    /// It was reported, and is looked at again by the next call (level-triggered).
    Again,
}

#[derive(Debug)]
struct Inside<E, W> {
    ready: VecDeque<Arc<E>>,
    /// The thread that came last is woken first, as on Linux's wait queue of exclusive waiters.
    waiters: Vec<W>,
    /// Whether the context is freed. What is pushed afterwards would keep it alive for ever.
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct ReadyList<E, W> {
    inside: Mutex<Inside<E, W>>,
    /// The length of the list, for threads that look without the lock.
    ready_count: AtomicUsize,
    /// The number of waiters, for threads that push an entry which is on the list already (`waitqueue_active`). A
    /// waiter that is missed here came later, and sees the entry when it looks.
    waiter_count: AtomicUsize,
}

impl<E: Entry, W: Wake> ReadyList<E, W> {
    pub(crate) fn new() -> ReadyList<E, W> {
        ReadyList {
            inside: Mutex::new(Inside { ready: VecDeque::new(), waiters: Vec::new(), closed: false }),
            ready_count: AtomicUsize::new(0),
            waiter_count: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside<E, W>> {
        // Entries are moved in and out as a whole, so a panic elsewhere cannot leave the list half written.
        self.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Publishes the counts, and gives the lock back.
    fn unlock(&self, inside: MutexGuard<'_, Inside<E, W>>) {
        self.ready_count.store(inside.ready.len(), Ordering::Release);
        self.waiter_count.store(inside.waiters.len(), Ordering::Release);
    }

    /// Whether entries are on the list (`ep_events_available`).
    #[inline]
    pub(crate) fn is_available(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) != 0
    }

    /// Whether an entry on the list satisfies `is_such`.
    pub(crate) fn any(&self, is_such: impl Fn(&E) -> bool) -> bool {
        self.is_available() && self.lock().ready.iter().any(|entry| is_such(entry))
    }

    /// How many threads wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiter_count.load(Ordering::Acquire)
    }

    /// Handles an edge; the caller has written the level. Returns a waiter, which the caller wakes.
    #[inline]
    #[must_use = "nobody else wakes the waiter"]
    pub(crate) fn push(&self, entry: &Arc<E>) -> Option<W> {
        let was_queued = entry.queued().swap(true, Ordering::AcqRel);
        if was_queued && self.waiter_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut inside = self.lock();
        if inside.closed {
            return None;
        }
        if !was_queued {
            inside.ready.push_back(entry.clone());
        }
        let waiter = inside.waiters.pop();
        self.unlock(inside);
        waiter
    }

    /// Takes entries off the list, the oldest first, until `room` were reported or each was looked at once. `report`
    /// reads the level.
    #[inline]
    pub(crate) fn take(&self, room: usize, warm: impl Fn(&E), mut report: impl FnMut(&E) -> Taken) {
        if !self.is_available() {
            return;
        }
        let mut inside = self.lock();
        // If the entries are touched together first, the cache misses of different ones overlap. The atomics in the
        // loop below would serialise them.
        inside.ready.iter().take(room).for_each(|entry| warm(entry));
        let (mut looks, mut left) = (inside.ready.len(), room);
        while looks > 0 && left > 0 {
            looks -= 1;
            let Some(entry) = inside.ready.pop_front() else { break };
            entry.queued().swap(false, Ordering::AcqRel);
            let taken = report(&entry);
            left -= usize::from(taken != Taken::Stale);
            if taken == Taken::Again && !entry.queued().swap(true, Ordering::AcqRel) {
                inside.ready.push_back(entry);
            }
        }
        let next = if inside.ready.is_empty() { None } else { inside.waiters.pop() };
        self.unlock(inside);
        next.as_ref().inspect(|next| next.wake());
    }

    /// Whether there is something to take; if not, `waiter` will be woken for the next entry.
    #[inline]
    pub(crate) fn look(&self, waiter: &W) -> bool {
        if self.is_available() {
            return true;
        }
        let mut inside = self.lock();
        if !inside.waiters.iter().any(|other| other.is_same(waiter)) {
            inside.waiters.push(waiter.clone());
        }
        let available = !inside.ready.is_empty();
        self.unlock(inside);
        available
    }

    /// Takes `waiter` off the waiters. Returns whether there is something to take: if the waiter was woken for that and
    /// leaves for another reason, nobody else knows of it.
    #[inline]
    #[must_use = "the waiter may have been the only one to be woken for what is there"]
    pub(crate) fn leave(&self, waiter: &W) -> bool {
        let mut inside = self.lock();
        inside.waiters.retain(|other| !other.is_same(waiter));
        let available = !inside.ready.is_empty();
        self.unlock(inside);
        available
    }

    /// Wakes every waiter, for another reason than an entry.
    pub(crate) fn wake_all(&self) {
        let mut inside = self.lock();
        let waiters = std::mem::take(&mut inside.waiters);
        self.unlock(inside);
        waiters.iter().for_each(W::wake);
    }

    /// Changes something that the report of `take` reads, between two calls of `take`.
    pub(crate) fn between_takes<R>(&self, change: impl FnOnce() -> R) -> R {
        let _inside = self.lock();
        change()
    }

    /// Closes the list, because the context is freed. Nothing is on it from now on.
    pub(crate) fn close(&self) {
        let mut inside = self.lock();
        inside.closed = true;
        let ready = std::mem::take(&mut inside.ready);
        self.unlock(inside);
        // The entries are dropped without the lock, because one may hold the last reference to something.
        drop(ready);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[derive(Debug, Default)]
    struct Thing {
        queued: AtomicBool,
    }

    impl Entry for Thing {
        fn queued(&self) -> &AtomicBool {
            &self.queued
        }
    }

    /// A waiter that counts its wake-ups and never runs.
    #[derive(Clone, Debug, Default)]
    struct Waiter(Rc<Cell<u32>>);

    impl Wake for Waiter {
        fn wake(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn is_same(&self, other: &Waiter) -> bool {
            Rc::ptr_eq(&self.0, &other.0)
        }
    }

    fn waiting(list: &ReadyList<Thing, Waiter>, count: usize) -> Vec<Waiter> {
        let waiters: Vec<Waiter> = (0..count).map(|_| Waiter::default()).collect();
        waiters.iter().for_each(|waiter| assert!(!list.look(waiter)));
        waiters
    }

    /// Handles an edge as the application makes one. Returns whether a waiter was woken.
    fn push(list: &ReadyList<Thing, Waiter>, thing: &Arc<Thing>) -> bool {
        list.push(thing).inspect(Waiter::wake).is_some()
    }

    fn woken(waiters: &[Waiter]) -> Vec<u32> {
        waiters.iter().map(|waiter| waiter.0.get()).collect()
    }

    #[test]
    fn each_edge_wakes_a_waiter_whether_or_not_the_entry_is_on_the_list() {
        let (list, thing) = (ReadyList::new(), Arc::new(Thing::default()));
        let waiters = waiting(&list, 3);
        assert!(push(&list, &thing));
        assert_eq!(woken(&waiters), [0, 0, 1], "the last to come first");
        assert!(push(&list, &thing));
        assert_eq!(woken(&waiters), [0, 1, 1]);
        assert!(push(&list, &thing));
        assert!(!push(&list, &thing), "nobody is left to be woken");
        assert_eq!(woken(&waiters), [1, 1, 1]);
        let mut reported = 0;
        list.take(
            8,
            |_| (),
            |_| {
                reported += 1;
                Taken::Once
            },
        );
        assert_eq!(reported, 1, "it was on the list once");
    }

    #[test]
    fn what_a_taker_leaves_wakes_the_next_waiter() {
        let things: Vec<_> = (0..2).map(|_| Arc::new(Thing::default())).collect();
        for (room, taken, wakes) in
            [(1, Taken::Once, 1), (2, Taken::Once, 0), (2, Taken::Again, 1), (2, Taken::Stale, 0), (0, Taken::Once, 1)]
        {
            let list = ReadyList::new();
            things.iter().for_each(|thing| thing.queued.store(false, Ordering::Relaxed));
            things.iter().for_each(|thing| assert!(!push(&list, thing)));
            // The waiters come while the list is not empty, like those whose wake-up another taker caused.
            let waiters: Vec<Waiter> = (0..2).map(|_| Waiter::default()).collect();
            list.lock().waiters.extend(waiters.iter().cloned());
            list.take(room, |_| (), |_| taken);
            assert_eq!(woken(&waiters).iter().sum::<u32>(), wakes, "room {room}, {taken:?}");
        }
    }

    #[test]
    fn a_closed_list_keeps_nothing() {
        let (list, thing) = (ReadyList::<Thing, Waiter>::new(), Arc::new(Thing::default()));
        assert!(!push(&list, &thing));
        list.close();
        assert_eq!(Arc::strong_count(&thing), 1);
        thing.queued.store(false, Ordering::Relaxed);
        assert!(!push(&list, &thing));
        assert_eq!((Arc::strong_count(&thing), list.is_available()), (1, false));
    }
}
