//! The batch of events that a thread answers: from the `epoll_wait` that returned them to the next call that may wait.
//!
//! What the thread writes meanwhile may be held back ([`crate::shard`]'s `coalesce`). Every place where the thread may
//! wait sends it first, since a thread that answers one peer and then waits for another must have answered. These
//! places are the calls of this crate that wait (`epoll_wait`, and calls that block), the end of the thread, and
//! [`about_to_wait`], which a thread calls before it waits elsewhere. A thread that ends the process sends what all
//! threads hold back ([`crate::Network::let_go`]). What a thread does in other ways is bounded by the shard's own
//! deadline.
//!
//! A call that would have blocked is no such place by itself, as a server that reads until EAGAIN makes one for each
//! event. But a thread that holds something back, and has made as many of these calls as the batch has events, waits by
//! asking again.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use lull_host::Delivery;

use crate::queue::Queue;
use crate::shard::Batch;

thread_local! {
    /// The present batch.
    static PRESENT: Cell<Batch> = const { Cell::new(Batch::NONE) };
    /// The number of the last batch.
    static LAST: Cell<u8> = const { Cell::new(0) };
    /// How many more calls may find nothing before that counts as waiting.
    static IN_VAIN: Cell<usize> = const { Cell::new(0) };
    /// Whether `HELD` has any queues.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<Held> = const { RefCell::new(Held { queues: Vec::new(), process: 0 }) };
}

/// The queues on which this thread holds something back.
struct Held {
    queues: Vec<(Weak<Queue>, Weak<Delivery>)>,
    /// The process in which it does so. The child of a `fork` has a copy of what its parent holds back.
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
    /// When the thread ends, nobody else would send what it holds back.
    fn drop(&mut self) {
        if !self.queues.is_empty() && self.process == std::process::id() {
            self.let_go();
        }
    }
}

/// The batch that the calling thread answers.
#[inline]
pub(crate) fn present() -> Batch {
    PRESENT.get()
}

/// Says which batch the calling thread answers from now on.
#[inline]
pub(crate) fn is_now(batch: Batch) {
    PRESENT.set(batch);
}

/// A batch begins, as a call returns so many events.
#[inline]
pub(crate) fn begins(events: usize) {
    let next = LAST.get().wrapping_add(1).max(1);
    LAST.set(next);
    PRESENT.set(Batch::new(next, events));
    IN_VAIN.set(events - 1);
}

/// The calling thread sends several times in turn, and waits for nothing in between.
#[must_use = "what is sent shares a doorbell for as long as this lives"]
#[derive(Debug)]
pub struct InTurn {
    /// The batch that it was answering before.
    before: Batch,
    of_one_thread: PhantomData<*const ()>,
}

/// The calling thread is about to send `calls` times in turn. Where a doorbell costs much
/// ([`lull_nic::DeviceInfo::dear_doorbell`]), one doorbell serves many sends, until what is returned is dropped.
pub fn in_turn(calls: usize) -> InTurn {
    let before = present();
    let next = LAST.get().wrapping_add(1).max(1);
    if before.is_none() {
        LAST.set(next);
    }
    PRESENT.set(before.of_calls(calls, next));
    InTurn { before, of_one_thread: PhantomData }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        PRESENT.set(self.before);
        about_to_wait();
    }
}

/// The batch is over, as the thread is about to wait for the next one.
#[inline]
pub(crate) fn ends() {
    PRESENT.set(Batch::NONE);
    about_to_wait();
}

/// Called when a call finds nothing to read or accept, and does not wait for it.
#[inline]
pub(crate) fn in_vain() {
    if HOLDS.get() {
        match IN_VAIN.get().checked_sub(1) {
            Some(left) => IN_VAIN.set(left),
            None => let_go(),
        }
    }
}

/// Whether the calling thread's writes hold something back, as far as it knows.
#[inline]
pub fn holds_back() -> bool {
    HOLDS.get()
}

/// Sends what the calling thread's writes hold back, so that nobody waits for it while the thread waits for something
/// else. The calls of this crate that wait do so by themselves; this function is for a thread that is about to wait
/// elsewhere.
#[inline]
pub fn about_to_wait() {
    if HOLDS.get() {
        let_go();
    }
}

#[cold]
fn let_go() {
    // A thread that is ending may have lost its list already, and sent everything when it did.
    let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.let_go()));
}

/// Called in a child of `fork`, by its only thread. What that thread holds back is the parent's to send.
pub fn forget_held_back() {
    // A thread that never held anything back has no list yet. To make one here would register its destructor with the
    // loader, whose lock another of the parent's threads may have held during the fork.
    if HOLDS.replace(false) {
        let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.queues.clear()));
    }
}

/// Called when something is held back on `queue`, perhaps by this thread. Returns false if the thread will not come
/// back to send it.
#[inline]
#[must_use]
pub(crate) fn holds(queue: &Arc<Queue>, host: &Arc<Delivery>) -> bool {
    present().is_none() || note(queue, host)
}

/// Notes the queue for this thread. Returns false if the thread is ending.
fn note(queue: &Arc<Queue>, host: &Arc<Delivery>) -> bool {
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
    noted.is_ok()
}
