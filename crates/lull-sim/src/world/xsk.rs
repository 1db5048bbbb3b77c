//! AF_XDP sockets of a responder, and the threads on them.

use crate::world::Transmit;

/// An AF_XDP socket of a responder. It takes every request and message of its queue.
#[derive(Clone, Debug)]
pub struct XskSpec {
    /// The queue that it is bound to.
    pub queue: u32,
    /// The epoll context that watches it, if one does.
    pub context: Option<u32>,
    /// How its frames reach the device.
    pub transmit: Transmit,
    /// Frames that its program takes at a time, and answers with one send call.
    pub batch: u32,
    /// SO_BUSY_POLL, in microseconds; 0 is off.
    pub busy_poll_usecs: u32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer_busy_poll: bool,
    /// SO_BUSY_POLL_BUDGET; 0 is the default.
    pub busy_poll_budget: u32,
}

/// What a thread of an AF_XDP socket does that does not wait in epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XskWait {
    /// Answers frames, and looks at the ring in user space while there are none.
    Spin,
    /// Answers frames, and makes non-blocking receive calls while there are none.
    Call,
    /// Makes receive calls only for their polling; another thread answers.
    PollOnly,
}

/// A thread of an AF_XDP socket that does not wait in epoll; a thread that does is a [`WorkerSpec`](crate::WorkerSpec).
#[derive(Clone, Copy, Debug)]
pub struct XskThreadSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its socket, by its place in [`World::xsks`](crate::World).
    pub xsk: u32,
    /// What it does.
    pub wait: XskWait,
}
