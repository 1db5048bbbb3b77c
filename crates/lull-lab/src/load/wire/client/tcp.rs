//! The client's TCP: what a segment, a request or a deadline does to a connection.

use lull_nic::Frame;

use super::super::connection::{NEVER, RTO_NS_MIN, Slot, State, before};
use super::super::packet::{ACK, FIN, Fields, PSH, RST, SYN, Segment, WINDOW};
use super::{NOBODY, Phase, WireClient};
use crate::load::clock::Clock;
use crate::load::schedule::Due;
use crate::load::workload::Query;

/// If no request carries the acknowledgement of an answer, it is sent after this time, at the next check of the
/// deadlines.
const ACK_DELAY_NS: u64 = 20_000_000;
/// The number of duplicate acknowledgements that are taken for a loss.
const DUPLICATE_ACKS: u8 = 3;

impl<C: Clock> WireClient<C> {
    /// Queues a request behind those of its connection, and sends as much of it as the window allows.
    #[inline]
    pub(super) fn enqueue(&mut self, due: Due, request: Query, now_ns: u64) {
        let bytes = self.workload.request_bytes(request) as u32;
        let connection = due.connection;
        let line = &mut self.connections[connection as usize];
        let end_seq = line.snd_end.wrapping_add(bytes);
        let at_end = line.snd_nxt == line.snd_end;
        let index = line.enqueued;
        line.enqueued = index.wrapping_add(1);
        line.snd_end = end_seq;
        let whole = at_end && bytes <= u32::from(line.mss) && bytes <= line.room();
        *self.slot(connection, index) = Slot { intended_ns: due.intended_ns, request, end_seq };
        self.unrung.push((due.intended_ns, due.eligible_ns));
        if whole {
            self.send_part(connection, request, 0, bytes, now_ns);
        } else {
            self.pump(connection, now_ns);
        }
    }

    /// Sends queued requests, as far as the peer's window allows.
    pub(super) fn pump(&mut self, connection: u32, now_ns: u64) {
        let (mut index, enqueued) = {
            let line = &self.connections[connection as usize];
            (line.answered, line.enqueued)
        };
        while index != enqueued {
            let slot = *self.slot(connection, index);
            let line = &mut self.connections[connection as usize];
            let left = slot.end_seq.wrapping_sub(line.snd_nxt);
            if !before(line.snd_nxt, slot.end_seq) {
                index = index.wrapping_add(1);
                continue;
            }
            let wanted = left.min(u32::from(line.mss));
            let bytes = wanted.min(line.room());
            // To avoid silly windows, part of a request is only sent if nothing else is under way.
            if bytes == 0 || (bytes < wanted && line.in_flight() > 0) {
                if line.rto_at == NEVER {
                    line.rto_at = now_ns + RTO_NS_MIN;
                    self.lower_deadline(connection, now_ns + RTO_NS_MIN);
                }
                return;
            }
            let from = self.workload.request_bytes(slot.request) as u32 - left;
            self.send_part(connection, slot.request, from, bytes, now_ns);
        }
    }

    /// Sends `bytes` bytes of a request from its byte `from` on, at `snd_nxt`.
    #[inline]
    fn send_part(&mut self, connection: u32, request: Query, from: u32, bytes: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        let fields = Fields { port: line.port, seq: line.snd_nxt, ack: line.rcv_nxt, flags: ACK | PSH };
        line.snd_nxt = line.snd_nxt.wrapping_add(bytes);
        if before(line.snd_max, line.snd_nxt) {
            line.snd_max = line.snd_nxt;
            if line.timed_at == 0 {
                (line.timed_at, line.timed_seq) = (now_ns, line.snd_nxt);
            }
        } else {
            self.retransmits += 1;
        }
        line.ack_at = NEVER;
        line.unacknowledged = 0;
        if line.rto_at == NEVER {
            line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
            let rto_at = line.rto_at;
            self.lower_deadline(connection, rto_at);
        }
        let workload = &self.workload;
        self.egress.segment(fields, bytes as usize, |payload| {
            if from == 0 && payload.len() == workload.request_bytes(request) {
                workload.encode(request, payload);
            } else {
                workload.encode_range(request, from as usize, payload);
            }
        });
    }

    /// Sends a segment without payload.
    pub(super) fn send_bare(&mut self, connection: u32, seq: u32, flags: u8) {
        let line = &mut self.connections[connection as usize];
        line.ack_at = NEVER;
        line.unacknowledged = 0;
        let fields = Fields { port: line.port, seq, ack: line.rcv_nxt, flags };
        self.egress.segment(fields, 0, |_| {});
    }

    pub(super) fn send_ack(&mut self, connection: u32) {
        let seq = self.connections[connection as usize].snd_nxt;
        self.send_bare(connection, seq, ACK);
    }

    #[inline]
    pub(super) fn lower_deadline(&mut self, connection: u32, at_ns: u64) {
        let deadline = &mut self.deadlines[connection as usize];
        *deadline = (*deadline).min(at_ns);
    }

    pub(super) fn segment(&mut self, segment: Segment, frame: &Frame, now_ns: u64) {
        let connection = self.ports[usize::from(segment.port)];
        if connection == NOBODY {
            self.refuse(segment);
            return;
        }
        let line = &self.connections[connection as usize];
        match line.state {
            State::SynSent => self.segment_in_syn_sent(connection, segment, now_ns),
            State::Established | State::FinSent => {
                if segment.flags & RST != 0 {
                    if segment.seq.wrapping_sub(line.rcv_nxt) <= u32::from(WINDOW) {
                        self.lose(connection, now_ns, "connection reset by the server");
                    }
                } else if segment.flags & SYN != 0 {
                    // The client's acknowledgement of the handshake was lost.
                    self.send_ack(connection);
                } else if segment.flags & ACK != 0 {
                    self.segment_in_established(connection, segment, frame, now_ns);
                }
            }
            State::Waiting | State::Closed => debug_assert!(false, "a port without a connection"),
        }
    }

    /// Tells the server that an old connection no longer exists, so that it does not keep it.
    fn refuse(&mut self, segment: Segment) {
        if segment.flags & RST != 0 {
            return;
        }
        let ack = segment.seq.wrapping_add(segment.payload_bytes as u32);
        let fields = Fields { port: segment.port, seq: segment.ack, ack, flags: RST | ACK };
        self.egress.segment(fields, 0, |_| {});
    }

    fn segment_in_syn_sent(&mut self, connection: u32, segment: Segment, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if segment.flags & ACK == 0 || segment.ack != line.snd_nxt {
            return;
        }
        if segment.flags & RST != 0 {
            self.lose(connection, now_ns, "connection refused");
        } else if segment.flags & SYN != 0 {
            line.state = State::Established;
            line.rcv_nxt = segment.seq.wrapping_add(1);
            line.snd_una = segment.ack;
            line.snd_wnd = u32::from(segment.window);
            // A peer that states no MSS takes 536 (RFC 9293, 3.7.1).
            let mss = if segment.mss == 0 { 536 } else { segment.mss };
            line.mss = mss.clamp(64, self.config.mss_bytes);
            line.rto_at = NEVER;
            line.retries = 0;
            self.opening -= 1;
            self.established += 1;
            self.last_progress_ns = now_ns;
            self.send_ack(connection);
            if self.phase != Phase::Idle {
                self.schedule.up(connection, now_ns);
            }
        }
    }

    fn segment_in_established(&mut self, connection: u32, segment: Segment, frame: &Frame, now_ns: u64) {
        self.take_acknowledgement(connection, segment, now_ns);
        let line = &mut self.connections[connection as usize];
        // Part of the payload may be old. The rest must follow directly.
        let old = line.rcv_nxt.wrapping_sub(segment.seq);
        let bytes = segment.payload_bytes as u32;
        let fin = segment.flags & FIN != 0;
        let len = bytes + u32::from(fin);
        if len == 0 {
            return;
        }
        if old > len || old == len && old > 0 {
            // The segment is a duplicate, or behind a gap, so an acknowledgement says what is wanted.
            self.send_ack(connection);
            return;
        }
        if old < bytes {
            line.rcv_nxt = line.rcv_nxt.wrapping_add(bytes - old);
            line.unacknowledged += bytes - old;
            if !self.deliver(connection, segment, old as usize, frame, now_ns) {
                self.abort(connection, now_ns, "an answer that nobody asked for");
                return;
            }
        }
        if fin {
            let line = &mut self.connections[connection as usize];
            line.rcv_nxt = line.rcv_nxt.wrapping_add(1);
            self.server_closes(connection, now_ns);
            return;
        }
        let line = &mut self.connections[connection as usize];
        if old > 0 || line.unacknowledged >= 2 * u32::from(line.mss) {
            self.send_ack(connection);
        } else if line.ack_at == NEVER {
            line.ack_at = now_ns + ACK_DELAY_NS;
            self.lower_deadline(connection, now_ns + ACK_DELAY_NS);
        }
    }

    #[inline]
    fn take_acknowledgement(&mut self, connection: u32, segment: Segment, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        let window_before = std::mem::replace(&mut line.snd_wnd, u32::from(segment.window));
        let mut pump = line.snd_nxt != line.snd_end && line.snd_wnd > window_before;
        if line.acknowledge(segment.ack) {
            if line.timed_at != 0 && !before(segment.ack, line.timed_seq) {
                self.round_trip.sample(now_ns - line.timed_at);
                line.timed_at = 0;
            }
            line.rto_at = if line.snd_una == line.snd_max && line.snd_nxt == line.snd_end {
                NEVER
            } else {
                now_ns + self.round_trip.timeout_ns(0)
            };
            pump |= line.snd_nxt != line.snd_end;
            let deadline = &mut self.deadlines[connection as usize];
            *deadline = (*deadline).min(line.rto_at);
        } else if segment.ack == line.snd_una
            && segment.payload_bytes == 0
            && segment.flags & FIN == 0
            && line.in_flight() > 0
            && line.snd_wnd == window_before
        {
            line.duplicate_acks = line.duplicate_acks.saturating_add(1);
            if line.duplicate_acks == DUPLICATE_ACKS && line.state == State::Established {
                line.snd_nxt = line.snd_una;
                line.timed_at = 0;
                pump = true;
            }
        }
        if pump && line.state == State::Established {
            self.pump(connection, now_ns);
        }
    }

    /// Takes the payload except for its first `old` bytes. Returns false if it answers nothing.
    #[inline]
    fn deliver(&mut self, connection: u32, segment: Segment, old: usize, frame: &Frame, now_ns: u64) -> bool {
        let mut skip = segment.payload_at + old;
        let mut left = segment.payload_bytes - old;
        let mut part = Some(frame);
        while let Some(at) = part {
            let data = at.data();
            if skip < data.len() {
                let data = &data[skip..];
                let data = &data[..data.len().min(left)];
                left -= data.len();
                skip = 0;
                if !self.take_answers(connection, data, now_ns) {
                    return false;
                }
            } else {
                skip -= data.len();
            }
            part = at.next();
        }
        true
    }

    #[inline]
    fn take_answers(&mut self, connection: u32, mut bytes: &[u8], now_ns: u64) -> bool {
        let base = connection as usize * self.ring;
        while !bytes.is_empty() {
            let line = &mut self.connections[connection as usize];
            if line.answered == line.enqueued {
                return false;
            }
            let slot = self.slots[base + (line.answered as usize & (self.ring - 1))];
            let (used, outcome) = line.checker.feed(&self.workload, slot.request, bytes);
            bytes = &bytes[used..];
            let Some(outcome) = outcome else { continue };
            line.answered = line.answered.wrapping_add(1);
            // A server that answers a request has received it, whatever became of the acknowledgement.
            if line.acknowledge(slot.end_seq) && line.snd_una == line.snd_end {
                line.rto_at = NEVER;
                line.timed_at = 0;
            }
            self.recorder.answered(slot.intended_ns, now_ns, outcome);
            self.schedule.completed(connection, now_ns);
            self.last_progress_ns = now_ns;
        }
        true
    }
}
