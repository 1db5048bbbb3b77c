//! Threads that have to be woken for what they were told. They wait in an epoll context, or in a socket's call.

use std::thread::Thread;

use lull_host::Waker;

/// Threads that were told something and have to be woken. Dropping this wakes them, so its holder gives the shard's
/// lock back first.
#[must_use = "nobody else wakes them, and they are woken when this is dropped"]
#[derive(Default)]
pub(crate) struct Wakes(Vec<Woken>);

enum Woken {
    Worker(Waker),
    Blocked(Thread),
}

impl Wakes {
    pub(crate) fn worker(&mut self, waker: Waker) {
        self.0.push(Woken::Worker(waker));
    }

    pub(crate) fn blocked(&mut self, threads: impl Iterator<Item = Thread>) {
        self.0.extend(threads.map(Woken::Blocked));
    }

    /// Whether no thread has to be woken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the threads of `others`.
    pub(crate) fn extend(&mut self, mut others: Wakes) {
        self.0.append(&mut others.0);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        for woken in self.0.drain(..) {
            match woken {
                Woken::Worker(waker) => waker.wake(),
                Woken::Blocked(thread) => thread.unpark(),
            }
        }
    }
}
