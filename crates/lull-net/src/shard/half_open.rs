//! Half-open connections: a small record each (Linux's `request_sock`), until the last acknowledgement of the handshake.
//!
//! A socket with its buffers would cost a stranger one SYN and us tens of kilobytes. A record costs about a hundred bytes,
//! a listener has a bounded number of them, and beyond that its SYN-ACKs are cookies ([`super::cookies`]).

use super::flow::FlowKey;
use super::options::Offer;
use super::slab::Slab;
use super::timers::Timers;
use super::wire::Mac;

/// What both sides of a handshake have said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handshake {
    /// Our initial sequence number.
    pub(super) isn: u32,
    /// The peer's.
    pub(super) peer_isn: u32,
    pub(super) offer: Offer,
    /// When our SYN-ACK went out, if exactly one did: its acknowledgement then tells the round trip (Karn's rule).
    pub(super) sent_ns: Option<u64>,
}

/// The window scale that smoltcp has for a receive buffer.
pub(super) fn window_scale(rx_buffer_bytes: usize) -> u8 {
    (usize::BITS - rx_buffer_bytes.leading_zeros()).saturating_sub(16) as u8
}

/// A connection in SYN-RECEIVED.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) flow: FlowKey,
    /// Slab index and generation.
    pub(super) listener: (u32, u32),
    pub(super) handshake: Handshake,
    /// The station that the SYN came from.
    pub(super) mac: Mac,
    /// When it is given up.
    pub(super) until_ns: u64,
    /// Times that the SYN-ACK was sent again because nothing came.
    pub(super) timeouts: u32,
    /// A needless answer is not sent before this.
    pub(super) quiet_until_ns: u64,
}

/// The half-open connections of a shard.
#[derive(Debug)]
pub(super) struct HalfOpens {
    pub(super) records: Slab<HalfOpen>,
    pub(super) timers: Timers,
}

impl HalfOpens {
    pub(super) fn new() -> HalfOpens {
        HalfOpens { records: Slab::with_capacity(0), timers: Timers::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether a record is of the handshake with this number of the peer's.
    pub(super) fn is_of(&self, index: u32, peer_isn: u32) -> bool {
        self.records.get(index).is_some_and(|record| record.handshake.peer_isn == peer_isn)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.records.memory_bytes() + self.timers.memory_bytes()
    }
}
