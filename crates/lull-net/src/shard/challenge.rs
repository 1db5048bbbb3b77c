//! Answers to segments that a stranger could have forged, or that come from a peer which has lost its place: they say
//! where the connection stands (RFC 5961), at a bounded rate.

use super::connection::Connection;
use super::demux::Reason;
use super::half_open_input::INVALID_INTERVAL_NS;
use super::options::Offer;
use super::segment::Segment;
use super::stack::{Io, Stack};
use super::wire::{ACK, BareSegment, FIN, SYN};

impl Stack {
    /// Tells a peer what is expected, at most twice a second (`tcp_send_challenge_ack`, `tcp_invalid_ratelimit`).
    pub(super) fn challenge(&mut self, index: u32, io: &mut Io<'_>) {
        self.counters.tcp_challenges += 1;
        self.counters.tcp_challenges_skipped += u64::from(!self.tell(index, io));
    }

    /// A segment that PAWS refuses: the peer is told, if it can have meant something (`tcp_disordered_ack`).
    #[cold]
    pub(super) fn paws_drop(&mut self, index: u32, segment: &Segment, io: &mut Io<'_>) -> Reason {
        if segment.length > 0 || segment.flags & (SYN | FIN) != 0 {
            self.tell(index, io);
        }
        |counters| &mut counters.drop_paws
    }

    /// Acknowledges, unless that was done less than half a second ago.
    fn tell(&mut self, index: u32, io: &mut Io<'_>) -> bool {
        let next_hop = self.next_hop(index);
        let Some(connection) = self.connections.get_mut(index) else { return false };
        if connection.quiet_until_ns > io.now_ns {
            return false;
        }
        connection.quiet_until_ns = io.now_ns + INVALID_INTERVAL_NS;
        let timestamp = connection.timestamps.map(|timestamps| timestamps.option(io.now_ns));
        let options = Offer { timestamp, ..Offer::default() };
        let frame = connection.acknowledgement().build_with(&options.write(), io.pool);
        match next_hop {
            Some(mac) => self.send_frame(frame, mac, io),
            // The peer's retransmission brings the question again.
            None => io.pool.recycle(frame),
        }
        true
    }
}

impl Connection {
    /// A bare acknowledgement of everything that came in order. The window's right edge stays where it was.
    pub(super) fn acknowledgement(&self) -> BareSegment {
        let (own, peer) = (self.flow.local(), self.flow.remote());
        let offered = u32::from(self.rcv_window) << self.rcv_scale();
        BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: self.acceptable_seq(self.snd_una),
            ack: self.rcv_nxt(),
            flags: ACK,
            window: (offered.saturating_sub(self.unanswered) >> self.rcv_scale()) as u16,
        }
    }
}
