//! Epoll contexts: the ready list, and the threads that wait.

use std::collections::VecDeque;

use lull_core::EpollBusy;

use crate::engine::id::{ConnId, ThreadId};

/// An item that has events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A connection, or a socket of another kind that has one.
    Connection(ConnId),
    /// A source that is no socket.
    Other,
}

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ep: EpollBusy,
    /// The items that have events.
    pub(crate) ready: VecDeque<Item>,
    /// How many items were returned and are checked once more, because the context is level-triggered.
    pub(crate) stale: u32,
    /// The threads that sleep in it; the first is woken last.
    pub(crate) waiters: Vec<ThreadId>,
    /// Threads that are inside of `epoll_wait`.
    pub(crate) inside: u32,
}

impl Context {
    pub(crate) fn new(ep: EpollBusy) -> Context {
        Context { ep, ready: VecDeque::with_capacity(1_024), stale: 0, waiters: Vec::with_capacity(4), inside: 0 }
    }

    /// Whether the ready list is not empty, stale items included (`ep_events_available`).
    pub(crate) fn is_available(&self) -> bool {
        !self.ready.is_empty() || self.stale > 0
    }
}
