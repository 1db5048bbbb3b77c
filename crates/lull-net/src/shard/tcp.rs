//! A TCP segment's way from a checked packet to smoltcp; what smoltcp would misread is corrected on the way.

use lull_nic::Frame;
use smoltcp::socket::tcp::State;

use super::clock::{ACK_DELAY, ACK_DELAY_NS, instant, instant_ns};
use super::connection::{Flags, Phase, fin_received};
use super::demux::{Cast, MALFORMED, Packet, Reason};
use super::device::Shim;
use super::elsewhere::is_claim;
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::hand_on::is_handed_over;
use super::judge::Judged;
use super::mend;
use super::segment::{Arrived, Segment, parse};
use super::socket::Ready;
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;
use super::wire::{self, ACK, BareSegment, FIN, PSH, RST, SYN};

/// What no connection sends.
const INSANE: Reason = |counters| &mut counters.drop_tcp_flags;

impl Stack {
    pub(super) fn tcp_input(&mut self, frame: &mut Frame, packet: &mut Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        if packet.cast != Cast::Unicast {
            // RFC 1122 section 4.2.3.10: silently.
            return Err(|counters| &mut counters.drop_not_ours);
        }
        let segment = parse(frame, packet)?;
        let flow = FlowKey::new(
            wire::PROTOCOL_TCP,
            packet.destination,
            segment.destination_port,
            packet.source,
            segment.source_port,
        );
        let arrived = &mut Arrived { flow, frame, packet, segment };
        if is_claim(arrived.frame) {
            self.give_way(arrived, io);
            return Ok(());
        }
        match self.flows.get(&flow) {
            Some(&(Owner::Connection(_) | Owner::HalfOpen(_) | Owner::TimeWait(_))) if !arrived.segment.is_sane() => {
                return Err(INSANE);
            }
            Some(&Owner::Connection(index)) => return self.connection_input(index, arrived, io),
            _ if is_handed_over(arrived) => return self.take_over(arrived, io),
            Some(&Owner::HalfOpen(index)) => return self.half_open_input(index, arrived, io),
            Some(&Owner::TimeWait(index)) if self.is_of_a_later_connection(index, arrived) => {
                self.time_waits.forget(index, &mut self.flows);
            }
            Some(&Owner::TimeWait(index)) => {
                let (listener, isn) = self.time_wait_input(index, arrived, io)?;
                return self.accept_syn(listener, arrived, Some(isn), io);
            }
            Some(&Owner::Udp(_)) | None => {}
        }
        self.stranger_input(arrived, io)
    }

    /// A segment whose 4-tuple nobody has.
    fn stranger_input(&mut self, arrived: &mut Arrived<'_>, io: &mut Io<'_>) -> Result<(), Reason> {
        const NOBODY: Reason = |counters| &mut counters.drop_no_connection;
        let Arrived { flow, segment, .. } = *arrived;
        if segment.flags & (SYN | FIN | ACK | RST) == SYN
            && let Some(listener) = self.listener_for(arrived)
        {
            return self.accept_syn(listener, arrived, None, io);
        }
        let is_syn = segment.flags & (SYN | FIN | ACK | RST) == SYN;
        let acknowledges = segment.flags & (SYN | ACK | RST) == ACK;
        if acknowledges && self.is_of_an_ended_connection(&flow, &segment, io.now_ns) {
            return Err(NOBODY);
        }
        let is_known_to_be_nobodys = Stack::is_in_last_round(arrived.frame);
        // A stack that has the connection is asked before one that could make a connection of it.
        if !is_known_to_be_nobodys && self.is_elsewhere(is_syn.then(|| flow.local()), arrived.frame) {
            return Ok(());
        }
        if acknowledges && let Some(taken) = self.accept_cookie(arrived, io) {
            self.claim_if_made(arrived);
            return taken;
        }
        if acknowledges && self.holds_the_end_of_its_handshake(arrived) {
            return Err(NOBODY);
        }
        let goes_on = match is_known_to_be_nobodys {
            true => self.is_elsewhere(None, arrived.frame),
            false => acknowledges && self.ends_elsewhere(arrived.frame),
        };
        if goes_on || acknowledges && self.keeps_last_acknowledgement(arrived, io.now_ns) {
            return Ok(());
        }
        if acknowledges && self.answers_a_syn_ack_again(arrived, io.now_ns) {
            return Err(NOBODY);
        }
        // A listener ignores what neither begins nor acknowledges anything (RFC 9293 section 3.10.7.2); where nobody
        // listens, everything but a reset is reset.
        if segment.flags & (ACK | RST) == 0 && self.listener_for(arrived).is_some() {
            return Err(INSANE);
        }
        self.reset_stranger(arrived, io);
        Err(NOBODY)
    }

    /// Answers a segment that belongs to no connection by a reset (RFC 9293 section 3.10.7.1), but never another reset.
    pub(super) fn reset_stranger(&mut self, arrived: &Arrived<'_>, io: &mut Io<'_>) {
        let Arrived { packet, segment, .. } = arrived;
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

    /// A segment for a connection that has a socket of smoltcp's.
    #[inline]
    pub(super) fn connection_input(
        &mut self,
        index: u32,
        arrived: &mut Arrived<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let Some(connection) = self.connections.get_mut(index) else { return Err(MALFORMED) };
        arrived.packet.make_plain(arrived.frame);
        let window_before = connection.peer_window;
        match connection.phase {
            Phase::Open => match connection.judge(arrived, &mut self.counters, io.now_ns) {
                // Nothing that a stranger may have sent is a sign of life.
                Judged::Fits => connection.heard_ns = io.now_ns,
                Judged::Old => return Err(self.paws_drop(index, &arrived.segment, io)),
                Judged::StrayReset => return Err(|counters| &mut counters.drop_tcp_reset),
                Judged::Doubtful => {
                    self.counters.tcp_segments += 1;
                    self.challenge(index, io);
                    return Ok(());
                }
                Judged::Unwanted => {
                    self.counters.tcp_segments += 1;
                    self.abort_on_data(index, io);
                    return Ok(());
                }
            },
            Phase::SynSent => {
                connection.heard_ns = io.now_ns;
                connection.note_answer(arrived, &self.secret, io.now_ns);
            }
            Phase::Over => return Err(|counters| &mut counters.drop_no_connection),
        }
        self.counters.tcp_segments += 1;
        let only_lacks_its_fin = connection.phase == Phase::Open && connection.only_lacks_its_fin(&arrived.segment);
        if self.hears_of_loss(index, window_before, arrived, io) || only_lacks_its_fin {
            self.pump(index, false, io);
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        mend::window_at_the_end(connection, arrived);
        let early_fin = connection.flags.contains(Flags::EARLY_FIN);
        let packet = &arrived.frame.data()[arrived.packet.l3..arrived.packet.end];
        let fills = self.feed(index, packet, &arrived.segment, io);
        if early_fin {
            self.early_fin(index, io);
        }
        if fills {
            self.grow_to_send(index, io);
        }
        Ok(())
    }

    /// Gives one IP packet to smoltcp and follows what came of it. Returns whether what is sent fills the transmit buffer.
    #[inline]
    pub(super) fn feed(&mut self, index: u32, bytes: &[u8], segment: &Segment, io: &mut Io<'_>) -> bool {
        let next_hop = self.next_hop(index);
        let leaving = self.leaves_as(index);
        let soon = self.ack_soon();
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let socket = connection.socket();
        let (queued, unread, before) = (socket.send_queue(), socket.recv_queue(), socket.state());
        let had_fin = fin_received(before);
        if let Some(timestamps) = &connection.timestamps {
            timestamps.announce(io.now_ns);
        }
        // smoltcp counts arrivals: it acknowledges the second one by itself.
        let ack_delay = if connection.unanswered != 0 {
            Some(ACK_DELAY)
        } else if connection.is_acknowledged_at_once(segment, self.config.mtu_bytes) {
            None
        } else if connection.is_acknowledged_soon(segment, self.config.mtu_bytes) {
            soon
        } else {
            Some(ACK_DELAY)
        };
        if ack_delay != Some(ACK_DELAY) {
            connection.socket_mut().set_ack_delay(ack_delay);
        }
        let mut shim = Shim::new(
            Some(bytes),
            self.port,
            (next_hop, leaving),
            connection.corrections(segment.ack),
            io.tx,
            &mut self.looped,
            io.pool,
        );
        let iface = self.iface.of(connection, io.now_ns);
        iface.poll_ingress_single(instant(io.now_ns), &mut shim, &mut connection.sockets);
        let exit = shim.exit;
        exit.count(&mut self.counters);
        let answered = exit.frames > 0 && exit.last.flags & (SYN | RST) == 0;
        if answered {
            connection.sent(exit.last, io.now_ns);
        } else if exit.frames > 0 && exit.last.flags & RST != 0 && connection.asks(|asked| asked.only_to_reset) {
            self.over(index, Some(NetError::ConnectionReset), io);
            return false;
        }
        let socket = connection.socket();
        let (now_queued, now_unread) = (socket.send_queue(), socket.recv_queue());
        let state = socket.state();
        let acknowledged = queued.saturating_sub(now_queued) as u32;
        let (mut fills, mut probes_for_nothing) = (false, false);
        if acknowledged > 0 {
            connection.snd_una = connection.snd_una.wrapping_add(acknowledged);
            fills = connection.fills_its_buffer(queued, now_queued);
            probes_for_nothing = connection.peer_window == 0 && !connection.outstanding();
            connection.progressed(io.now_ns);
        } else if connection.peer_window == 0 && connection.phase == Phase::Open && connection.may_wait_for_ever() {
            connection.flags.remove(Flags::TIMED);
            connection.progress_ns = io.now_ns;
        }
        if state == State::CloseWait && connection.is_to_finish() {
            connection.finish();
        }
        let arrived = now_unread.saturating_sub(unread);
        let asks = arrived > 0;
        // The common case, a request in order with nothing of ours on the way: smoltcp has nothing to send, and its
        // only deadline is that of the delayed acknowledgement. Asking it would cost as much as all the rest here.
        let first = connection.unanswered == 0;
        if fin_received(state) && !had_fin && state != State::Closed {
            connection.flags.insert(Flags::FIN_RECEIVED);
            // The end is an edge of everything that is ready, whatever was so before (`tcp_fin`, sk_state_change).
            connection.ready = Ready::empty();
        } else if before == State::FinWait1 && state == State::FinWait2 {
            // And so is the acknowledgement of ours (`tcp_rcv_state_process`).
            connection.ready = Ready::empty();
        }
        if !answered {
            connection.unanswered += arrived as u32 + u32::from(fin_received(state) && !had_fin);
        }
        let plain = segment.flags | PSH == ACK | PSH && arrived == segment.length && arrived > 0;
        let idle = now_queued == 0 && connection.snd_una == connection.snd_nxt && connection.consumed == 0;
        let held = connection.phase == Phase::Open && connection.flags.contains(Flags::HELD);
        let is_put_off = first
            && plain
            && idle
            && held
            && ack_delay == Some(ACK_DELAY)
            && state == State::Established
            && exit.frames == 0
            && !probes_for_nothing;
        if is_put_off {
            let deadline_ns = connection.deadline_ns(instant_ns(instant(io.now_ns)) + ACK_DELAY_NS);
            self.timers.set(index, deadline_ns.max(io.now_ns + 1));
            self.announce(index, true, io);
        } else {
            if probes_for_nothing {
                self.stops_probing(index, io);
            }
            self.follow_up(index, Some(segment), arrived > 0, io);
        }
        if ack_delay != Some(ACK_DELAY)
            && let Some(connection) = self.connections.get_mut(index)
        {
            connection.socket_mut().set_ack_delay(Some(ACK_DELAY));
        }
        if asks {
            self.request_came(index);
        }
        fills
    }

    /// Ends smoltcp's probing of a closed window for which it has nothing more to send (`tcp_ack_probe`). It would go
    /// on by segments that no peer answers, and would send no keepalive meanwhile.
    #[cold]
    fn stops_probing(&mut self, index: u32, io: &mut Io<'_>) {
        for window in [1, 0] {
            self.shows(index, window, io);
        }
    }

    /// Sends what is to be sent, follows the state, and announces what became ready.
    #[inline]
    pub(super) fn follow_up(&mut self, index: u32, cause: Option<&Segment>, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let state = connection.socket().state();
        match connection.phase {
            Phase::Open => match state {
                State::Established | State::CloseWait => {}
                State::Closed => return self.over_by_peer(index, cause, io),
                State::TimeWait => return self.enter_time_wait(index, cause, arrived, io),
                State::FinWait2 => {
                    let probes = connection.snd_una != connection.snd_nxt && connection.peer_window == 0;
                    connection.snd_una = connection.snd_nxt;
                    if !connection.flags.contains(Flags::HELD) && connection.state_until_ns == NEVER_NS {
                        connection.state_until_ns = io.now_ns + self.config.timeouts.fin_wait_2_ns;
                    }
                    if probes {
                        // smoltcp goes on probing a closed window that it has nothing for, without a pause.
                        self.shows(index, 1, io);
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

    /// Announces what became ready. New data is an edge even if there was some before, if there is as much as is waited
    /// for: a socket that is shut down for reading can be read however little there is (`tcp_data_ready`).
    #[inline]
    pub(super) fn announce(&mut self, index: u32, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let ready = connection.readiness();
        let mut edges = ready - connection.ready;
        if arrived && (connection.is_readable() || connection.flags.contains(Flags::FIN_RECEIVED)) {
            edges |= ready & Ready::READABLE;
        }
        connection.ready = ready;
        if !edges.is_empty() && connection.flags.contains(Flags::HELD) {
            let id = self.connection_id(index);
            self.notify(id, ready, edges, io);
        }
    }
}
