//! The interest of an epoll item, its events, and the counters of a context.

use crate::shard::Ready;

bitflags::bitflags! {
    /// What an item waits for, and how (`EPOLLIN` and so on). Errors and hang-ups are always reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Interest: u32 {
        /// There is something to read (`EPOLLIN`).
        const READABLE = 1;
        /// Room to write (`EPOLLOUT`).
        const WRITABLE = 2;
        /// There are urgent data or the like (`EPOLLPRI`). Only kernel descriptors have them, and lull's sockets do
        /// not.
        const PRI = 4;
        /// The peer shut down writing (`EPOLLRDHUP`).
        const RDHUP = 8;
        /// Edge-triggered (`EPOLLET`): something is reported once when it arrives, and not for as long as it lasts.
        const EDGE = 1 << 8;
        /// One-shot (`EPOLLONESHOT`): reported once, then off until modified.
        const ONESHOT = 1 << 9;
        /// Exclusive (`EPOLLEXCLUSIVE`): of several contexts that wait for the socket, one is woken.
        const EXCLUSIVE = 1 << 10;
    }
}

/// The flags that may be given together with EXCLUSIVE (`EPOLLEXCLUSIVE_OK_BITS`).
pub(super) const EXCLUSIVE_OK: Interest =
    Interest::READABLE.union(Interest::WRITABLE).union(Interest::EDGE).union(Interest::EXCLUSIVE);

/// An event: what is ready, and the key that the item was added with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The key.
    pub key: u64,
    /// What is ready.
    pub ready: Ready,
    /// The NAPI instance that brought it; 0 if there is none, or if there are several.
    pub(super) napi_id: u32,
}

/// Counters of a context since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpollStats {
    /// Calls of [`Epoll::wait`](crate::Epoll::wait).
    pub calls: u64,
    /// Calls that returned events.
    pub with_events: u64,
    /// Events returned.
    pub events: u64,
    /// System calls made to look at kernel descriptors.
    pub syscalls: u64,
}

impl std::iter::Sum for EpollStats {
    /// The counters of several contexts together.
    fn sum<I: Iterator<Item = EpollStats>>(all: I) -> EpollStats {
        all.fold(EpollStats::default(), |all, one| EpollStats {
            calls: all.calls + one.calls,
            with_events: all.with_events + one.with_events,
            events: all.events + one.events,
            syscalls: all.syscalls + one.syscalls,
        })
    }
}
