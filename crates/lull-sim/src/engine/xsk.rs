//! AF_XDP sockets of a responder, each bound to a queue: an XDP program gives them every request and message of it.
//!
//! They are zero-copy, as in `socket`: what the program puts into the transmit ring leaves with the next poll of the
//! NAPI, whoever makes it. In epoll the socket is one event, however many frames it has. It is level-triggered, so the
//! socket is ready as long as it has any.

use std::collections::VecDeque;

use lull_core::{SocketBusy, Sysctl};

use crate::engine::nic::Frame;
use crate::engine::socket::busy_options;
use crate::world::XskSpec;

/// Frames that a receive ring of a socket holds (`XSK_RING_CONS__DEFAULT_NUM_DESCS` of libxdp); more are dropped.
pub(super) const RING_FRAMES: usize = 2_048;

/// One socket.
#[derive(Debug)]
pub(crate) struct Xsk {
    pub(crate) spec: XskSpec,
    /// SO_BUSY_POLL and related options.
    pub(crate) busy: SocketBusy,
    /// The receive ring.
    pub(crate) ready: VecDeque<Frame>,
    /// Whether it is in the ready list of its epoll context.
    pub(crate) queued: bool,
}

impl Xsk {
    pub(crate) fn new(spec: &XskSpec, sysctl: &Sysctl) -> Xsk {
        let busy = busy_options(sysctl, spec.busy_poll_usecs, spec.prefer_busy_poll, spec.busy_poll_budget);
        Xsk { spec: spec.clone(), busy, ready: VecDeque::with_capacity(RING_FRAMES), queued: false }
    }
}
