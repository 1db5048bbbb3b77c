//! Message sockets: the ends of a request/response pair, TCP or AF_XDP.
//!
//! A socket sends to one other socket, over a wire that keeps the order. Receiving goes through the queue's ring and NAPI as
//! everything does. Sending has two ways: a TCP segment goes to the device from within the system call; an AF_XDP frame lies in
//! the transmit ring until *somebody polls the NAPI*, as zero-copy drivers transmit (`ndo_xsk_wakeup`).

use std::collections::VecDeque;

use lull_core::SocketBusy;

use crate::engine::id::ThreadId;
use crate::world::SocketSpec;

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) spec: SocketSpec,
    /// SO_BUSY_POLL and its kin.
    pub(crate) busy: SocketBusy,
    /// Messages on the wire to it, by the time at which their transaction began. The wire keeps the order, as the ring does.
    pub(super) wire: VecDeque<u64>,
    pub(super) ring: VecDeque<u64>,
    /// Messages that a receive call would return.
    pub(crate) ready: VecDeque<u64>,
    /// The thread asleep in a receive call.
    pub(crate) waiter: Option<ThreadId>,
}

impl Socket {
    pub(crate) fn new(spec: &SocketSpec, sysctl: &lull_core::Sysctl) -> Socket {
        let busy = SocketBusy::new(sysctl);
        // A world's options are its author's own, with every privilege; those beyond the limits stay at their defaults.
        let _ = busy.set_usecs(spec.busy_poll_usecs);
        let _ = busy.set_prefer(spec.prefer_busy_poll, true);
        let _ = busy.set_budget(spec.busy_poll_budget, true);
        let empty = VecDeque::new;
        Socket { spec: spec.clone(), busy, wire: empty(), ring: empty(), ready: empty(), waiter: None }
    }
}
