//! A TCP segment: from a checked packet to smoltcp, and what smoltcp would misread put right on the way.

use lull_nic::Frame;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpOption;

use super::connection::{Connection, Flags, Phase};
use super::demux::{CHECKSUM, Cast, MALFORMED, Packet, Reason};
use super::device::Shim;
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::socket::Ready;
use super::stack::{Io, Stack, instant};
use super::timers::NEVER_NS;
use super::wire::{self, ACK, BareSegment, FIN, PSH, RST, SYN, be16, be32, seq_lt};

/// How long an acknowledgement waits for data to travel with (Linux's `TCP_DELACK_MIN`). smoltcp's own 10 ms would send
/// one of its own for every request of a server that is 10 ms behind.
pub(super) const ACK_DELAY_NS: u64 = 40_000_000;

/// What a TCP header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Payload bytes.
    pub(super) length: usize,
}

/// Checks a TCP header. The counter is the one that a frame refused here goes to.
#[inline]
fn parse(tcp: &[u8], packet: &Packet) -> Result<Segment, Reason> {
    if tcp.len() < wire::TCP {
        return Err(MALFORMED);
    }
    let header = usize::from(tcp[12] >> 4) * 4;
    if header < wire::TCP || header > tcp.len() {
        return Err(MALFORMED);
    }
    let (source_port, destination_port) = (be16(tcp, 0), be16(tcp, 2));
    if source_port == 0 || destination_port == 0 {
        return Err(MALFORMED);
    }
    if !packet.trusted && !wire::adds_up(packet.pseudo_sum(), tcp) {
        return Err(CHECKSUM);
    }
    // At most one of SYN, FIN, RST; and everything but a SYN or RST acknowledges.
    let flags = tcp[13] & (SYN | FIN | RST | ACK | PSH);
    let sane = match flags & (SYN | FIN | RST) {
        0 | FIN => flags & ACK != 0,
        SYN | RST => true,
        _ => false,
    };
    if !sane {
        return Err(|counters| &mut counters.drop_tcp_flags);
    }
    if header > wire::TCP {
        let mut options = &tcp[wire::TCP..header];
        while !options.is_empty() {
            // smoltcp's own reading, so that it cannot stumble later, when there is a connection to lose.
            let (rest, option) = TcpOption::parse(options).map_err(|_| MALFORMED)?;
            if option == TcpOption::EndOfList {
                break;
            }
            options = rest;
        }
    }
    Ok(Segment {
        source_port,
        destination_port,
        seq: be32(tcp, 4),
        ack: be32(tcp, 8),
        flags,
        window: be16(tcp, 14),
        length: tcp.len() - header,
    })
}

impl Stack {
    pub(super) fn tcp_input(&mut self, frame: &mut Frame, packet: &mut Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        if packet.cast != Cast::Unicast {
            // RFC 1122 section 4.2.3.10: silently.
            return Err(|counters| &mut counters.drop_not_ours);
        }
        let segment = parse(&frame.data()[packet.l4..packet.end], packet)?;
        let flow = FlowKey::new(
            wire::PROTOCOL_TCP,
            packet.destination,
            segment.destination_port,
            packet.source,
            segment.source_port,
        );
        match self.flows.get(&flow) {
            Some(&Owner::Connection(index)) => return self.connection_input(index, frame, packet, segment, io),
            Some(&Owner::Request(index)) => return self.request_input(index, frame, packet, segment, io),
            Some(&Owner::TimeWait(index)) => {
                let (listener, isn) = self.time_wait_input(index, packet, &segment, io)?;
                return self.accept_syn(listener, flow, frame, packet, segment, Some(isn), io);
            }
            Some(&Owner::Udp(_)) | None => {}
        }
        self.stranger_input(flow, frame, packet, segment, io)
    }

    /// A segment whose 4-tuple nobody has.
    fn stranger_input(
        &mut self,
        flow: FlowKey,
        frame: &mut Frame,
        packet: &mut Packet,
        segment: Segment,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        const NOBODY: Reason = |counters| &mut counters.drop_no_connection;
        if segment.flags & (SYN | ACK | RST) == SYN
            && let Some(listener) = self.listener_for(packet, &flow)
        {
            return self.accept_syn(listener, flow, frame, packet, segment, None, io);
        }
        if segment.flags & (SYN | ACK | RST) == ACK
            && let Some(taken) = self.accept_cookie(flow, frame, packet, segment, io)
        {
            return taken;
        }
        self.reset_stranger(packet, &segment, io);
        Err(NOBODY)
    }

    /// Answers a segment that belongs to no connection by a reset (RFC 9293 section 3.10.7.1), but never another reset.
    pub(super) fn reset_stranger(&mut self, packet: &Packet, segment: &Segment, io: &mut Io<'_>) {
        if segment.flags & RST != 0 || !self.reset_budget.take(io.now_ns) {
            return;
        }
        let occupied =
            segment.length as u32 + u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
        let (seq, ack, flags) = match segment.flags & ACK {
            0 => (0, segment.seq.wrapping_add(occupied), RST | ACK),
            _ => (segment.ack, 0, RST),
        };
        let reset = BareSegment {
            source: packet.destination,
            source_port: segment.destination_port,
            destination: packet.source,
            destination_port: segment.source_port,
            seq,
            ack,
            flags,
            window: 0,
        };
        let reset = reset.build(io.pool);
        self.counters.tcp_resets_sent += 1;
        self.send_back(reset, packet.source, packet.source_mac, io);
    }

    #[inline]
    pub(super) fn connection_input(
        &mut self,
        index: u32,
        frame: &mut Frame,
        packet: &mut Packet,
        mut segment: Segment,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let Some(connection) = self.connections.get_mut(index) else { return Err(MALFORMED) };
        connection.heard_ns = io.now_ns;
        packet.make_plain(frame);
        match connection.phase {
            Phase::Open => {
                if segment.flags & RST != 0 {
                    // RFC 5961 section 3.2: smoltcp believes a reset anywhere in the window, which a stranger can
                    // guess.
                    let off = segment.seq.wrapping_sub(connection.rcv_nxt());
                    if off != 0 {
                        if off as usize >= connection.socket().recv_capacity() {
                            return Err(|counters| &mut counters.drop_tcp_reset);
                        }
                        self.counters.tcp_challenges += 1;
                        make_probe(connection, frame, packet, &mut segment);
                    }
                } else {
                    let beyond = segment.flags & ACK != 0 && seq_lt(connection.snd_nxt, segment.ack);
                    if segment.flags & SYN != 0 || beyond {
                        self.counters.tcp_challenges += 1;
                        make_probe(connection, frame, packet, &mut segment);
                    } else if seq_lt(segment.ack, connection.snd_una) {
                        if mend_stale_ack(connection, frame, packet, &mut segment) {
                            self.counters.tcp_stale_acks += 1;
                        }
                    } else {
                        mend_at_closed_window(connection, frame, packet, &mut segment);
                        connection.peer_window = segment.window;
                    }
                }
                if connection.flags.contains(Flags::PROBING) {
                    connection.flags.remove(Flags::PROBING);
                    connection.socket_mut().set_keep_alive(None);
                }
            }
            Phase::SynSent => {}
            Phase::Over => return Err(|counters| &mut counters.drop_no_connection),
        }
        self.counters.tcp_segments += 1;
        self.feed(index, frame, packet, &segment, io);
        Ok(())
    }

    /// Gives one packet to smoltcp and follows what came of it.
    #[inline]
    pub(super) fn feed(&mut self, index: u32, frame: &Frame, packet: &Packet, segment: &Segment, io: &mut Io<'_>) {
        let next_hop = self.next_hop(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (queued, unread) = (connection.socket().send_queue(), connection.socket().recv_queue());
        let bytes = &frame.data()[packet.l3..packet.end];
        let mut shim = Shim::new(Some(bytes), self.port, next_hop, connection.snd_nxt, io.tx, io.pool);
        self.iface.poll_ingress_single(instant(io.now_ns), &mut shim, &mut connection.sockets);
        let exit = shim.exit;
        self.counters.tx_frames += u64::from(exit.frames);
        self.counters.tx_dropped += u64::from(exit.dropped);
        let answered = exit.frames > 0 && exit.last.flags & (SYN | RST) == 0;
        if answered {
            connection.sent(exit.last);
        }
        let socket = connection.socket();
        let (now_queued, now_unread) = (socket.send_queue(), socket.recv_queue());
        let state = socket.state();
        let acknowledged = queued.saturating_sub(now_queued) as u32;
        if acknowledged > 0 {
            connection.snd_una = connection.snd_una.wrapping_add(acknowledged);
            connection.progress_ns = io.now_ns;
        } else if connection.peer_window == 0 && !connection.flags.contains(Flags::OWN_TIMEOUT) {
            // A reader that is slow but answers probes is no vanished client (`tcp_probe_timer`).
            connection.progress_ns = io.now_ns;
        }
        let arrived = now_unread.saturating_sub(unread);
        // The common case, a request in order with nothing of ours on the way: smoltcp has nothing to send, and its
        // only deadline is that of the delayed acknowledgement. Asking it would cost as much as all the rest here.
        let first = connection.unanswered == 0;
        if !answered {
            connection.unanswered += arrived as u32;
        }
        let plain = segment.flags | PSH == ACK | PSH && arrived == segment.length && arrived > 0;
        let idle = now_queued == 0 && connection.snd_una == connection.snd_nxt && connection.consumed == 0;
        let held = connection.phase == Phase::Open && connection.flags.contains(Flags::HELD);
        if first && plain && idle && held && state == State::Established && exit.frames == 0 {
            let deadline_ns = connection.deadline_ns(io.now_ns / 1000 * 1000 + ACK_DELAY_NS);
            self.timers.set(index, deadline_ns.max(io.now_ns + 1));
            self.announce(index, true, io);
        } else {
            self.settle(index, Some(segment), arrived > 0, io);
        }
    }

    /// Sends what is to be sent, follows the state, says what became ready.
    #[inline]
    pub(super) fn settle(&mut self, index: u32, cause: Option<&Segment>, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let state = connection.socket().state();
        match connection.phase {
            Phase::Open => match state {
                State::Established | State::CloseWait => {}
                State::Closed => return self.over_by_peer(index, cause, io),
                State::TimeWait => return self.enter_time_wait(index, cause, arrived, io),
                State::FinWait2 => {
                    connection.snd_una = connection.snd_nxt;
                    if !connection.flags.contains(Flags::HELD) && connection.state_until_ns == NEVER_NS {
                        connection.state_until_ns = io.now_ns + self.config.timeouts.fin_wait_2_ns;
                    }
                }
                _ => {}
            },
            Phase::SynSent => match state {
                State::SynSent | State::SynReceived => {}
                State::Closed => return self.over(index, Some(NetError::ConnectionRefused), io),
                _ => self.established(index, io),
            },
            Phase::Over => return,
        }
        let orphan_data = arrived
            && self
                .connections
                .get(index)
                .is_some_and(|c| c.phase == Phase::Open && !c.flags.intersects(Flags::HELD | Flags::QUEUED));
        if orphan_data {
            // Data for an application that has gone (RFC 1122 section 4.2.2.13, `TCPABORTONDATA`).
            self.send_reset(index, io);
            return self.free(index);
        }
        self.pump(index, false, io);
        self.announce(index, arrived, io);
    }

    /// Says what became ready. New data is an edge even if there was some before.
    #[inline]
    pub(super) fn announce(&mut self, index: u32, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let ready = connection.readiness();
        let mut edges = ready - connection.ready;
        if arrived {
            edges |= ready & Ready::READABLE;
        }
        connection.ready = ready;
        if !edges.is_empty() && connection.flags.contains(Flags::HELD) {
            let id = self.connection_id(index);
            self.notify(id, ready, edges, io);
        }
    }
}

/// Turns a segment into an empty one just below the window, which smoltcp answers by an acknowledgement, at most once
/// a second: the challenge of RFC 5961 (section 4.2 for a SYN, section 5.2 for an acknowledgement of what was not
/// sent). smoltcp itself would be silent to the SYN of a client that has restarted and took the same port, and would
/// believe the acknowledgement of data that only lies in its buffer.
fn make_probe(connection: &Connection, frame: &mut Frame, packet: &mut Packet, segment: &mut Segment) {
    packet.truncate(frame, wire::TCP);
    let tcp = &mut frame.data_mut()[packet.l4..packet.end];
    segment.seq = connection.rcv_ack.wrapping_sub(1);
    segment.ack = connection.snd_una;
    segment.flags = ACK;
    segment.length = 0;
    wire::put32(tcp, 4, segment.seq);
    wire::put32(tcp, 8, segment.ack);
    tcp[12] = (wire::TCP as u8 / 4) << 4;
    tcp[13] = ACK;
}

/// Brings the acknowledgement of an overtaken segment up to date. smoltcp drops such a segment with its data, which the
/// peer then has to retransmit a second later. The window goes with the acknowledgement (RFC 9293: SND.WL2). Returns
/// whether it did.
fn mend_stale_ack(connection: &Connection, frame: &mut Frame, packet: &Packet, segment: &mut Segment) -> bool {
    let behind = connection.snd_una.wrapping_sub(segment.ack);
    // RFC 5961 section 5.2: older than the largest window that ever was cannot be genuine.
    let window = connection.socket().send_capacity() as u32;
    if segment.length == 0 && segment.flags & FIN == 0 || behind > window {
        return false;
    }
    segment.ack = connection.snd_una;
    segment.window = connection.peer_window;
    let tcp = &mut frame.data_mut()[packet.l4..packet.end];
    wire::put32(tcp, 8, segment.ack);
    wire::put16(tcp, 14, segment.window);
    true
}

/// A closed window lets no data in, but acknowledgements have to pass (RFC 9293 section 3.10.7.4). smoltcp drops them with their
/// segment, and when it probes a window it counts the byte of the probe as sent, so that all its acknowledgements lie beyond.
/// Two peers whose receive buffers are full, and one of whom has missed an acknowledgement, would wait for each other for ever.
/// A probe that brings nothing new is left as it is: it wants an answer.
fn mend_at_closed_window(connection: &Connection, frame: &mut Frame, packet: &mut Packet, segment: &mut Segment) {
    let socket = connection.socket();
    if segment.flags & ACK == 0 || socket.recv_queue() < socket.recv_capacity() {
        return;
    }
    let next = connection.rcv_nxt();
    let is_near = segment.seq.wrapping_sub(next).wrapping_add(1) <= 2;
    let is_probe = segment.length > 0 || segment.flags & FIN != 0 || segment.seq.wrapping_add(1) == next;
    let is_news = segment.ack != connection.snd_una || segment.window != connection.peer_window;
    if !is_near || is_probe && !is_news {
        return;
    }
    packet.truncate(frame, wire::TCP);
    let tcp = &mut frame.data_mut()[packet.l4..packet.end];
    (segment.seq, segment.flags, segment.length) = (next, ACK, 0);
    wire::put32(tcp, 4, segment.seq);
    tcp[12] = (wire::TCP as u8 / 4) << 4;
    tcp[13] = ACK;
}
