//! The wait list of one socket: who waits for it, and how they are told.
//!
//! The list stands under the lock of the socket's shard. Its entries (epoll items and blocked threads) are told of
//! every edge. The level is a word that any thread reads without the lock.
//!
//! They are told under the lock and woken after it ([`Wakes`]). A thread that is woken may take the core of the one
//! that wakes it, and the first thing that it does is to take that lock. If that were held it would sleep again, after
//! two switches in vain.

use std::sync::Arc;
use std::thread::Thread;

use crate::epoll::context::Item;
pub(crate) use crate::level::Level;
use crate::shard::Ready;
use crate::wakes::Wakes;

impl Level {
    #[inline]
    pub(crate) fn get(&self) -> Ready {
        Ready::from_bits_truncate(self.bits() as u8)
    }

    #[inline]
    pub(crate) fn set(&self, ready: Ready) {
        self.set_bits(u32::from(ready.bits()));
    }
}

/// A thread that is blocked in a socket call.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) wants: Ready,
    pub(crate) thread: Thread,
}

/// The wait list of one socket. It takes one cache line, as there are thousands of them in a row.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct WaitList {
    pub(crate) level: Arc<Level>,
    /// Usually a single context waits. It takes no allocation of its own.
    first: Option<Arc<Item>>,
    more: Vec<Arc<Item>>,
    blocked: Vec<Blocked>,
}

impl WaitList {
    /// The empty wait list of a socket on which `ready` is ready.
    pub(crate) fn new(ready: Ready) -> WaitList {
        let level = Arc::new(Level::new(u32::from(ready.bits())));
        WaitList { level, first: None, more: Vec::new(), blocked: Vec::new() }
    }

    /// Tells everybody who waits that something became ready. Threads that sleep are woken with `wakes`.
    #[inline]
    pub(crate) fn tell(&mut self, ready: Ready, edges: Ready, napi_id: u32, wakes: &mut Wakes) {
        self.level.set(ready);
        let mut exclusive_told = false;
        for item in self.first.iter().chain(&self.more) {
            // Of the EPOLLEXCLUSIVE items, one whose thread is woken is enough (`__wake_up_common`). A context in which
            // nobody waits does not count, or it would swallow the wake-up.
            if item.is_exclusive() && exclusive_told {
                continue;
            }
            exclusive_told |= item.fire(edges, napi_id, wakes) && item.is_exclusive();
        }
        if !self.blocked.is_empty() {
            let told = self.blocked.iter().filter(|blocked| edges.intersects(blocked.wants));
            wakes.blocked(told.map(|blocked| blocked.thread.clone()));
        }
    }

    /// Touches the memory that [`WaitList::tell`] will touch, so that the cache misses of a batch of sockets overlap.
    #[inline]
    pub(crate) fn warm(&self) {
        std::hint::black_box((self.level.get(), self.first.as_ref().map(|item| item.is_exclusive())));
    }

    pub(crate) fn add_item(&mut self, item: Arc<Item>) {
        match &self.first {
            None => self.first = Some(item),
            Some(_) => self.more.push(item),
        }
    }

    pub(crate) fn remove_item(&mut self, item: &Arc<Item>) {
        self.more.retain(|other| !Arc::ptr_eq(other, item));
        if self.first.as_ref().is_some_and(|first| Arc::ptr_eq(first, item)) {
            self.first = self.more.pop();
        }
    }

    pub(crate) fn take_items(&mut self) -> Vec<Arc<Item>> {
        self.first.take().into_iter().chain(std::mem::take(&mut self.more)).collect()
    }

    pub(crate) fn block(&mut self, wants: Ready) {
        self.blocked.push(Blocked { wants, thread: std::thread::current() });
    }

    pub(crate) fn unblock(&mut self) {
        let me = std::thread::current().id();
        self.blocked.retain(|blocked| blocked.thread.id() != me);
    }
}
