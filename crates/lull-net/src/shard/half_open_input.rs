//! What comes to a half-open connection: the end of its handshake, the SYN once more, time, an ICMP error.

use super::demux::Reason;
use super::flow::{self, FlowKey, Owner};
use super::half_open::{HalfOpen, Handshake};
use super::options::Offer;
use super::paws::{self, Timestamps};
use super::segment::{Arrived, Segment};
use super::stack::{Io, Stack};
use super::wire::{self, ACK, BareSegment, FIN, Mac, RST, SYN, seq_lt};

/// Until a SYN-ACK is sent for the second time; doubled each time (`TCP_TIMEOUT_INIT`).
const RETRY_NS: u64 = 1_000_000_000;
/// Between two answers to segments that should not have come (`tcp_invalid_ratelimit`).
pub(super) const INVALID_INTERVAL_NS: u64 = 500_000_000;

impl Stack {
    /// Notes a half-open connection and answers its SYN.
    pub(super) fn begin_half_open(
        &mut self,
        flow: FlowKey,
        listener: (u32, u32),
        handshake: Handshake,
        mac: Mac,
        io: &mut Io<'_>,
    ) {
        let until_ns = io.now_ns + self.config.timeouts.syn_received_ns;
        let record = HalfOpen { flow, listener, handshake, mac, until_ns, timeouts: 0, quiet_until_ns: 0 };
        let index = self.half_opens.records.insert(record);
        self.flows.insert(flow, Owner::HalfOpen(index));
        self.half_opens.timers.set(index, until_ns.min(io.now_ns + RETRY_NS));
        self.send_syn_ack(&flow, listener.0, &handshake, self.syn_ack_clock(&handshake, io.now_ns), mac, io);
    }

    /// The receive buffer that is asked for for a listener's connections; 0: the stack's default.
    fn rx_bytes_asked(&self, listener: u32) -> usize {
        self.listeners.get(listener).map_or(0, |listener| listener.options.rx_buffer_bytes)
    }

    /// The receive buffer that a listener's connections get.
    fn rx_bytes(&self, listener: u32) -> usize {
        match self.rx_bytes_asked(listener) {
            0 => self.config.rx_buffer_bytes,
            asked => asked,
        }
    }

    /// Sends the SYN-ACK that smoltcp would send if there were a socket. `clock` is the value of its timestamp before
    /// the offset is added.
    pub(super) fn send_syn_ack(
        &mut self,
        flow: &FlowKey,
        listener: u32,
        handshake: &Handshake,
        clock: u32,
        mac: Mac,
        io: &mut Io<'_>,
    ) {
        let rx_bytes = self.rx_bytes(listener);
        let (own, peer) = (flow.local(), flow.remote());
        let header = if own.is_ipv4() { wire::IPV4 } else { wire::IPV6 } + wire::TCP;
        let options = Offer {
            mss: Some((self.port.mtu_bytes - header) as u16),
            window_scale: handshake.offer.window_scale.map(|_| self.offered_scale(self.rx_bytes_asked(listener))),
            sack: handshake.offer.sack,
            timestamp: handshake
                .offer
                .timestamp
                .map(|(value, _)| (clock.wrapping_add(self.secret.timestamp_offset(flow)), value)),
        };
        let segment = BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: handshake.isn,
            ack: handshake.peer_isn.wrapping_add(1),
            flags: SYN | ACK,
            window: rx_bytes.min(usize::from(u16::MAX)) as u16,
        };
        let frame = segment.build_with(&options.write(), io.pool);
        self.send_back(frame, peer.ip(), mac, io);
    }

    /// A segment for a half-open connection (`tcp_check_req`).
    pub(super) fn half_open_input(
        &mut self,
        index: u32,
        arrived: &mut Arrived<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        const REFUSED: Reason = |counters| &mut counters.drop_request;
        let segment = arrived.segment;
        let Some(parent) = self.half_opens.records.get(index).map(|record| record.listener.0) else {
            return Err(REFUSED);
        };
        let rx_bytes = self.rx_bytes(parent);
        let Some(record) = self.half_opens.records.get_mut(index) else { return Err(REFUSED) };
        let (flow, listener, handshake, mac) = (record.flow, record.listener.0, record.handshake, record.mac);
        let may_answer = record.quiet_until_ns <= io.now_ns;
        if segment.flags & (SYN | ACK | RST) == SYN && segment.seq == handshake.peer_isn {
            // Our SYN-ACK was lost, or overtaken by the retransmission.
            if may_answer {
                record.quiet_until_ns = io.now_ns + INVALID_INTERVAL_NS;
                self.counters.tcp_segments += 1;
                self.send_syn_ack(&flow, listener, &handshake, self.syn_ack_clock(&handshake, io.now_ns), mac, io);
                return Ok(());
            }
            return Err(REFUSED);
        }
        if segment.flags & ACK != 0 && segment.ack != handshake.isn.wrapping_add(1) {
            // The SYN may have come to another stack as well, which has the connection by now.
            if segment.flags & RST == 0 && self.is_elsewhere(None, arrived.frame) {
                return Ok(());
            }
            self.reset_stranger(arrived, io);
            return Err(REFUSED);
        }
        // By their timestamps, too, segments are from before the SYN (`tcp_check_req`).
        let recent = handshake.offer.timestamp.map(|(value, _)| Timestamps::new(0, value, io.now_ns));
        let old = matches!((recent, segment.timestamp), (Some(recent), Some(option)) if recent.is_old(option.value, io.now_ns));
        if old && segment.flags & RST == 0 || !handshake.in_window(&segment, rx_bytes) {
            if segment.flags & RST == 0 && may_answer {
                record.quiet_until_ns = io.now_ns + INVALID_INTERVAL_NS;
                let offset = self.secret.timestamp_offset(&flow);
                let timestamp =
                    handshake.offer.timestamp.map(|(value, _)| (paws::clock(io.now_ns).wrapping_add(offset), value));
                let options = Offer { timestamp, ..Offer::default() };
                let frame = handshake.acknowledgement(&flow).build_with(&options.write(), io.pool);
                self.send_back(frame, arrived.packet.source, mac, io);
            }
            return Err(REFUSED);
        }
        if segment.flags & (SYN | RST) != 0 {
            // A reset, or a SYN inside the window: nothing is kept.
            self.counters.embryonic_rsts += 1;
            self.free_half_open(index);
            self.reset_stranger(arrived, io);
            return Err(REFUSED);
        }
        let completed = self.complete(listener, &handshake, arrived, io);
        if segment.seq == handshake.peer_isn.wrapping_add(1) {
            // The acknowledgement before this segment may have come by another queue, and not to this stack yet.
            self.claim_if_made(arrived);
        }
        completed
    }

    /// Forgets a half-open connection.
    pub(super) fn free_half_open(&mut self, index: u32) {
        let Some(record) = self.half_opens.records.remove(index) else { return };
        self.half_opens.timers.remove(index);
        if self.flows.get(&record.flow) == Some(&Owner::HalfOpen(index)) {
            flow::forget(&mut self.flows, &record.flow);
        }
        let (parent, generation) = record.listener;
        if self.listeners.generation(parent) == generation
            && let Some(listener) = self.listeners.get_mut(parent)
        {
            listener.half_open -= 1;
        }
    }

    /// The SYN-ACK is unanswered: it is sent again, or the connection given up (`reqsk_timer_handler`).
    pub(super) fn half_open_timer(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(record) = self.half_opens.records.get_mut(index) else { return };
        if record.until_ns <= io.now_ns {
            self.counters.timeout_syn_received += 1;
            return self.free_half_open(index);
        }
        record.timeouts += 1;
        record.handshake.sent_ns = None;
        let retry_ns = RETRY_NS << record.timeouts.min(16);
        let (flow, listener, handshake, mac) = (record.flow, record.listener.0, record.handshake, record.mac);
        self.half_opens.timers.set(index, record.until_ns.min(io.now_ns + retry_ns));
        self.send_syn_ack(&flow, listener, &handshake, self.syn_ack_clock(&handshake, io.now_ns), mac, io);
    }

    /// An ICMP error about a SYN-ACK (`tcp_req_err`). Returns false if it cannot be about this one.
    pub(super) fn half_open_icmp(&mut self, index: u32, seq: u32, ends: bool) -> bool {
        let is_its = self.half_opens.records.get(index).is_some_and(|record| record.handshake.isn == seq);
        if is_its && ends {
            self.free_half_open(index);
        }
        is_its
    }
}

impl Handshake {
    /// `tcp_in_window`, for the window of our SYN-ACK.
    fn in_window(&self, segment: &Segment, rx_bytes: usize) -> bool {
        let first = self.peer_isn.wrapping_add(1);
        let end = first.wrapping_add(rx_bytes.min(usize::from(u16::MAX)) as u32);
        let occupied = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
        let segment_end = segment.seq.wrapping_add(segment.length as u32).wrapping_add(occupied);
        segment.seq == first
            || seq_lt(first, segment_end) && seq_lt(segment.seq, end)
            || segment.seq == end && segment_end == end
    }

    /// An acknowledgement that tells a confused peer where the handshake stands (`tcp_v4_reqsk_send_ack`).
    fn acknowledgement(&self, flow: &FlowKey) -> BareSegment {
        let (own, peer) = (flow.local(), flow.remote());
        BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: self.isn.wrapping_add(1),
            ack: self.peer_isn.wrapping_add(1),
            flags: ACK,
            window: 0,
        }
    }
}
