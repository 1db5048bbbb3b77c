//! Message sockets: the ends of a request/response pair, TCP or AF_XDP.
//!
//! A socket sends to one other socket, over a wire that keeps the order. Messages are received through the queue's ring
//! and NAPI like everything else. There are two ways of sending: a TCP segment goes to the device from within the
//! system call; an AF_XDP frame stays in the transmit ring until *somebody polls the NAPI*, as zero-copy drivers
//! transmit (`ndo_xsk_wakeup`).

use std::collections::VecDeque;

use lull_core::{SocketBusy, Sysctl};

use crate::engine::id::ThreadId;
use crate::world::SocketSpec;

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) spec: SocketSpec,
    /// SO_BUSY_POLL and related options.
    pub(crate) busy: SocketBusy,
    /// For each message on the wire to it, the time at which its transaction began. The wire keeps the order, like the
    /// ring.
    pub(super) wire: VecDeque<u64>,
    pub(super) ring: VecDeque<u64>,
    /// Messages that a receive call would return.
    pub(crate) ready: VecDeque<u64>,
    /// The thread asleep in a receive call.
    pub(crate) waiter: Option<ThreadId>,
}

impl Socket {
    pub(crate) fn new(spec: &SocketSpec, sysctl: &Sysctl) -> Socket {
        let busy = busy_options(sysctl, spec.busy_poll_usecs, spec.prefer_busy_poll, spec.busy_poll_budget);
        let empty = VecDeque::new;
        Socket { spec: spec.clone(), busy, wire: empty(), ring: empty(), ready: empty(), waiter: None }
    }
}

/// Makes the busy-poll options that a world gives a socket. The author of a world may set them with every privilege;
/// one that is beyond its limit keeps its default.
pub(crate) fn busy_options(sysctl: &Sysctl, usecs: u32, prefer: bool, budget: u32) -> SocketBusy {
    let busy = SocketBusy::new(sysctl);
    let _ = busy.set_usecs(usecs);
    let _ = busy.set_prefer(prefer, true);
    let _ = busy.set_budget(budget, true);
    busy
}
