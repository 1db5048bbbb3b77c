//! The batch of events that a thread answers: from the `epoll_wait` that returned them to the next call that may wait.
//!
//! What the thread writes meanwhile may be held back ([`crate::shard`]'s `coalesce`), and every place where the thread may wait
//! lets go of it first: who answers one peer and then waits for another must have answered. Those places are the calls of this
//! crate that wait (`epoll_wait`; a call that blocks, and one that would have), the end of the thread, and
//! [`about_to_wait`] for whoever waits elsewhere. What a thread does past all of them is bounded by the shard's own time.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use lull_host::Delivery;

use crate::queue::Queue;

thread_local! {
    /// The present batch, counted from 1; 0 between two.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// The last batch.
    static LAST: Cell<u32> = const { Cell::new(0) };
    /// Whether `HELD` has something.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<Held> = const { RefCell::new(Held { queues: Vec::new(), process: 0 }) };
}

/// The queues on which this thread holds something back.
struct Held {
    queues: Vec<(Weak<Queue>, Weak<Delivery>)>,
    /// The process in which it does. The child of a `fork` has a copy of what its parent holds back.
    process: u32,
}

impl Held {
    fn let_go(&mut self) {
        HOLDS.set(false);
        for (queue, host) in self.queues.drain(..) {
            if let (Some(queue), Some(host)) = (queue.upgrade(), host.upgrade()) {
                queue.let_go(&host);
            }
        }
    }
}

impl Drop for Held {
    /// The thread ends: nobody else would come back for it.
    fn drop(&mut self) {
        if !self.queues.is_empty() && self.process == std::process::id() {
            self.let_go();
        }
    }
}

/// The present batch; 0 if the thread is in none.
#[inline]
pub(crate) fn number() -> u32 {
    NUMBER.get()
}

/// A call returns events: a batch begins.
#[inline]
pub(crate) fn begins() {
    // A connection keeps eight bits of it, to tell one batch from the next; 0 is no batch.
    let next = if LAST.get() >= u32::from(u8::MAX) { 1 } else { LAST.get() + 1 };
    LAST.set(next);
    NUMBER.set(next);
}

/// The batch is over: the thread is about to wait for the next.
#[inline]
pub(crate) fn ends() {
    NUMBER.set(0);
    about_to_wait();
}

/// Whether the calling thread's writes hold something back, as far as it knows.
#[inline]
pub fn holds_back() -> bool {
    HOLDS.get()
}

/// Sends what the calling thread's writes hold back, so that nobody waits for it while the thread waits for something else. The
/// calls of this crate that wait do this by themselves; it is for whoever is about to wait elsewhere.
#[inline]
pub fn about_to_wait() {
    if HOLDS.get() {
        let_go();
    }
}

#[cold]
fn let_go() {
    // Without a place of its own any more, the thread has let go when it ended.
    let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.let_go()));
}

/// The calling thread is the only one of a child of `fork`. What it holds back is its parent's to send.
pub fn forget_held_back() {
    // A thread that never held anything back has no list yet. To make one here would register its destructor with the loader, whose
    // lock another of the parent's threads may have had at the fork.
    if HOLDS.replace(false) {
        let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.queues.clear()));
    }
}

/// Something is held back on `queue`, by this thread perhaps.
#[inline]
pub(crate) fn holds(queue: &Arc<Queue>, host: &Arc<Delivery>) {
    if number() != 0 {
        note(queue, host);
    }
}

fn note(queue: &Arc<Queue>, host: &Arc<Delivery>) {
    let noted = HELD.try_with(|held| {
        let Ok(mut held) = held.try_borrow_mut() else { return };
        if !held.queues.iter().any(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue))) {
            if held.process == 0 {
                held.process = std::process::id();
            }
            held.queues.push((Arc::downgrade(queue), Arc::downgrade(host)));
        }
        HOLDS.set(true);
    });
    // A thread that is ending has nobody who would come back.
    if noted.is_err() {
        queue.let_go(host);
    }
}
