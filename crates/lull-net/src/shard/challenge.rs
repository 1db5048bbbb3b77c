//! Segments that a stranger could have forged, or that a peer sends who has lost its place: answered by where the
//! connection stands (RFC 5961), at a bounded rate.

use super::connection::Connection;
use super::request::INVALID_INTERVAL_NS;
use super::stack::{Io, Stack};
use super::wire::{ACK, BareSegment};

impl Stack {
    /// Tells a peer what is expected, at most twice a second (`tcp_send_challenge_ack`, `tcp_invalid_ratelimit`).
    pub(super) fn challenge(&mut self, index: u32, io: &mut Io<'_>) {
        let next_hop = self.next_hop(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        self.counters.tcp_challenges += 1;
        if connection.quiet_until_ns > io.now_ns {
            self.counters.tcp_challenges_skipped += 1;
            return;
        }
        connection.quiet_until_ns = io.now_ns + INVALID_INTERVAL_NS;
        let frame = connection.acknowledgement().build(io.pool);
        match next_hop {
            Some(mac) => self.send_frame(frame, mac, io),
            // The peer's retransmission brings the question again.
            None => io.pool.recycle(frame),
        }
    }
}

impl Connection {
    /// A bare acknowledgement of everything that came in order. The window's right edge stays where it was.
    pub(super) fn acknowledgement(&self) -> BareSegment {
        let (own, peer) = (self.flow.local(), self.flow.remote());
        let offered = u32::from(self.rcv_window) << self.rcv_scale;
        BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: self.snd_nxt,
            ack: self.rcv_nxt(),
            flags: ACK,
            window: (offered.saturating_sub(self.unanswered) >> self.rcv_scale) as u16,
        }
    }
}
