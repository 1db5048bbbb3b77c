//! How a connection ends: by the peer, by an error, in TIME-WAIT; and what is left of it.

use super::connection::{Connection, Flags, Phase};
use super::demux::Reason;
use super::error::NetError;
use super::flow::{self, FlowKey, Owner};
use super::half_open_input::INVALID_INTERVAL_NS;
use super::options::Offer;
use super::paws::Timestamps;
use super::segment::{Arrived, Segment};
use super::socket::{Shutdown, SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::time_wait::TimeWait;
use super::wire::{self, ACK, BareSegment, FIN, RST, seq_lt};

impl Stack {
    /// smoltcp closed it because of a segment: the last acknowledgement, or a reset.
    pub(super) fn over_by_peer(&mut self, index: u32, cause: Option<&Segment>, io: &mut Io<'_>) {
        let reset = cause.is_some_and(|segment| segment.flags & RST != 0);
        let Some(connection) = self.connections.get(index) else { return };
        // `tcp_reset`: in CLOSE-WAIT it is a broken pipe.
        let close_wait = (Flags::FIN_RECEIVED | Flags::WRITE_SHUT) & connection.flags == Flags::FIN_RECEIVED;
        let error = match (reset, close_wait) {
            (true, true) => Some(NetError::BrokenPipe),
            (true, false) => Some(NetError::ConnectionReset),
            (false, _) => None,
        };
        self.over(index, error, io);
    }

    /// Both sides are done and the peer may not know: a small record takes over the 4-tuple.
    pub(super) fn enter_time_wait(&mut self, index: u32, cause: Option<&Segment>, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get(index) else { return };
        let (flow, snd_nxt, timestamps) = (connection.flow, connection.snd_nxt, connection.timestamps);
        let window = connection.rcv_window;
        // smoltcp enters it only on a segment, which shows where the peer's sequence numbers end.
        let rcv_nxt = cause.map_or(connection.rcv_ack, |segment| {
            let fin = u32::from(segment.flags & FIN != 0);
            segment.seq.wrapping_add(segment.length as u32).wrapping_add(fin)
        });
        if cause.is_some_and(|segment| segment.flags & FIN != 0) {
            let (own, peer) = (flow.local(), flow.remote());
            let last = BareSegment {
                source: own.ip(),
                source_port: own.port(),
                destination: peer.ip(),
                destination_port: peer.port(),
                seq: snd_nxt,
                ack: rcv_nxt,
                flags: ACK,
                window,
            };
            let timestamp = timestamps.map(|timestamps| timestamps.option(io.now_ns));
            let options = Offer { timestamp, ..Offer::default() };
            let frame = last.build_with(&options.write(), io.pool);
            self.send_ip(frame, peer.ip(), io);
        }
        flow::forget(&mut self.flows, &flow);
        self.time_wait(flow, snd_nxt, rcv_nxt, window, timestamps, io.now_ns);
        if arrived {
            // The data is announced before the end, because it is an edge of its own.
            self.announce(index, true, io);
        }
        self.over(index, None, io);
    }

    /// The protocol is done with the connection, which stays for the application that holds it, or will.
    pub(super) fn over(&mut self, index: u32, error: Option<NetError>, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.flags.intersects(Flags::HELD | Flags::QUEUED) {
            return self.free(index);
        }
        connection.phase = Phase::Over;
        drop(connection.take_sender());
        connection.error = error.or(connection.error);
        let flow = connection.flow;
        self.release_flow(index, &flow);
        self.timers.remove(index);
        self.announce(index, false, io);
    }

    pub(super) fn release_flow(&mut self, index: u32, flow: &FlowKey) {
        if self.flows.get(flow) == Some(&Owner::Connection(index)) {
            flow::forget(&mut self.flows, flow);
        }
    }

    /// Forgets a connection altogether, which has ended.
    pub(super) fn free(&mut self, index: u32) {
        if let Some(ended) = self.free_what_goes_on(index)
            && self.config.others().is_some()
        {
            self.ended.note(ended.flow, ended.peer_isn);
        }
    }

    /// Forgets a connection that goes on in another stack, or here as another one, and does not note it as ended.
    pub(super) fn free_what_goes_on(&mut self, index: u32) -> Option<Connection> {
        self.timers.remove(index);
        self.nobody_asks(index);
        let connection = self.connections.remove(index)?;
        if !self.egress.is_empty() {
            self.egress.remove(&index);
        }
        self.release_flow(index, &connection.flow);
        let socket = connection.socket();
        self.buffer_bytes -= socket.recv_capacity() + socket.send_capacity();
        Some(connection)
    }

    /// The connections that nobody holds any more, or sends anything on, whose peers have not acknowledged everything yet.
    fn leaving(&self) -> impl Iterator<Item = (u32, &Connection)> {
        let is_leaving = |connection: &Connection| {
            let (held, shut) = (connection.flags.contains(Flags::HELD), connection.flags.contains(Flags::WRITE_SHUT));
            (!held || shut)
                && !connection.flags.contains(Flags::QUEUED)
                && connection.phase == Phase::Open
                && connection.outstanding()
        };
        self.connections.iter().filter(move |(_, connection)| is_leaving(connection))
    }

    /// How much the peers of such connections have not acknowledged, in bytes, with one for each end of a stream.
    pub(crate) fn undelivered(&self) -> u64 {
        let bytes = |it: &Connection| it.socket().send_queue() + it.kept_bytes();
        self.leaving().map(|(_, connection)| bytes(connection) as u64 + 1).sum()
    }

    /// Nobody will send any more on the connections that a socket still holds: they end as their owners would have closed them. One
    /// with something to be read is left alone, for closing it would be a reset.
    pub fn shut_held(&mut self, io: &mut Io<'_>) {
        let ends = |(_, connection): &(u32, &Connection)| {
            connection.phase == Phase::Open && connection.flags.contains(Flags::HELD) && !connection.socket().can_recv()
        };
        let connections: Vec<u32> = self.connections.iter().filter(ends).map(|(index, _)| index).collect();
        for index in connections {
            // One that was shut already has nothing more to say.
            let _ = self.shutdown(self.connection_id(index), Shutdown::Write, io);
        }
    }

    /// Tells every peer that this is the end: nobody will be here to go on. What a socket still holds is closed as its owner would
    /// have closed it; what was accepted by nobody, or was closed and not delivered, is reset.
    pub(crate) fn end_all(&mut self, io: &mut Io<'_>) {
        let listeners: Vec<u32> = self.listeners.iter().map(|(index, _)| index).collect();
        for index in listeners {
            let id = SocketId::new(SocketKind::Listener, index, self.listeners.generation(index));
            let accepted = self.listeners.get_mut(index).map(|listener| std::mem::take(&mut listener.accepted));
            // One that was shut down already has nothing to lose.
            let _ = self.shutdown(id, Shutdown::Both, io);
            accepted.into_iter().flatten().for_each(|waiting| self.leave(waiting, io));
        }
        self.end_handing_on(io);
        let open = |(_, connection): &(u32, &Connection)| connection.phase == Phase::Open;
        let connections: Vec<u32> = self.connections.iter().filter(open).map(|(index, _)| index).collect();
        for index in connections {
            let Some(connection) = self.connections.get(index) else { continue };
            let held = connection.flags.contains(Flags::HELD);
            if held && !connection.outstanding() && !connection.socket().can_recv() {
                let _ = self.shutdown(self.connection_id(index), Shutdown::Write, io);
            } else if held || connection.outstanding() {
                self.send_reset(index, io);
                self.over(index, Some(NetError::ConnectionReset), io);
            }
        }
    }

    /// Data came for an application that neither reads nor writes any more (RFC 1122 section 4.2.2.13, `TCPABORTONDATA`).
    pub(super) fn abort_on_data(&mut self, index: u32, io: &mut Io<'_>) {
        self.send_reset(index, io);
        self.over(index, Some(NetError::ConnectionReset), io);
    }

    /// Tells the peer that it is over, at once and once.
    pub(super) fn send_reset(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get(index) else { return };
        let (own, peer) = (connection.flow.local(), connection.flow.remote());
        let reset = BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: connection.acceptable_seq(connection.snd_una),
            ack: connection.rcv_ack,
            flags: RST | ACK,
            window: 0,
        };
        let frame = reset.build(io.pool);
        self.counters.tcp_resets_sent += 1;
        self.send_ip(frame, peer.ip(), io);
    }

    /// An ICMP error about one of its segments (`tcp_v4_err`): any error ends an attempt to connect, and none ends a
    /// connection. Returns false if it cannot be about this connection.
    pub(super) fn connection_icmp(&mut self, index: u32, seq: u32, error: NetError, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let opening = connection.phase == Phase::SynSent;
        // RFC 5927 section 4.1: only for a sequence number in flight. An unacknowledged SYN's is one before.
        let first = if opening { connection.snd_nxt.wrapping_sub(1) } else { connection.snd_una };
        if seq_lt(seq, first) || seq_lt(connection.snd_nxt, seq) {
            self.counters.out_of_window_icmps += 1;
            return false;
        }
        if opening {
            self.over(index, Some(error), io);
        } else {
            connection.asked_mut().soft_error = Some(error);
        }
        true
    }
}

impl Stack {
    /// Enters TIME-WAIT in place of whoever has the 4-tuple.
    pub(super) fn time_wait(
        &mut self,
        flow: FlowKey,
        snd_nxt: u32,
        rcv_nxt: u32,
        window: u16,
        timestamps: Option<Timestamps>,
        now_ns: u64,
    ) {
        if self.time_waits.len() >= self.config.time_wait_max {
            self.counters.time_wait_recycled += 1;
            self.time_waits.recycle(&mut self.flows);
        }
        let until_ns = now_ns + self.config.timeouts.time_wait_ns;
        let record = TimeWait { flow, snd_nxt, rcv_nxt, window, timestamps, until_ns, quiet_until_ns: 0 };
        let index = self.time_waits.insert(record);
        self.flows.insert(flow, Owner::TimeWait(index));
    }

    /// Whether a segment shows that another stack with the same addresses has a later connection of this 4-tuple, or is to have it: the
    /// peer sends nothing behind its own end, and a new SYN finds no listener here. TIME-WAIT must not answer for that connection.
    pub(super) fn is_of_a_later_connection(&self, index: u32, arrived: &Arrived<'_>) -> bool {
        let segment = &arrived.segment;
        let is_alone = self.config.others().is_none() && self.siblings.is_none();
        let Some(record) = self.time_waits.records.get(index).filter(|_| !is_alone) else { return false };
        let is_behind = segment.flags & wire::RST == 0 && seq_lt(record.rcv_nxt, segment.seq);
        is_behind && (segment.flags & wire::SYN == 0 || self.listener_for(arrived).is_none())
    }

    /// A segment for a connection in TIME-WAIT (RFC 9293 section 3.10.7.4, `tcp_timewait_state_process`). `Ok`: it
    /// opens a new connection, for which the 4-tuple is free now, at this listener and with this initial sequence number.
    pub(super) fn time_wait_input(
        &mut self,
        index: u32,
        arrived: &Arrived<'_>,
        io: &mut Io<'_>,
    ) -> Result<(u32, u32), Reason> {
        const SWALLOWED: Reason = |counters| &mut counters.drop_time_wait;
        let Arrived { packet, segment, .. } = arrived;
        let Some(record) = self.time_waits.records.get_mut(index) else { return Err(SWALLOWED) };
        if segment.flags & wire::RST != 0 {
            // RFC 1337: a stray reset must not end TIME-WAIT.
            return Err(SWALLOWED);
        }
        // Its timestamp, too, can show that a SYN is new (RFC 6191), and that it is old.
        let both = record.timestamps.zip(segment.timestamp);
        let old = both.is_some_and(|(known, option)| known.is_old(option.value, io.now_ns));
        let newer = both.is_some_and(|(known, option)| known.is_newer(option.value));
        let fresh = !old && (newer || seq_lt(record.rcv_nxt.wrapping_sub(1), segment.seq));
        if segment.flags & (wire::SYN | wire::ACK) == wire::SYN && fresh {
            // Beyond anything that may still be on its way (`tcp_timewait_state_process`).
            let isn = record.snd_nxt.wrapping_add(65_535 + 2);
            // Only if somebody would take it: otherwise TIME-WAIT keeps protecting the port.
            if let Some(listener) = self.listener_for(arrived) {
                self.counters.time_wait_reused += 1;
                self.time_waits.forget(index, &mut self.flows);
                return Ok((listener, isn));
            }
        }
        let Some(record) = self.time_waits.records.get_mut(index) else { return Err(SWALLOWED) };
        let occupies = segment.length > 0 || segment.flags & (wire::FIN | wire::SYN) != 0;
        if segment.flags & wire::FIN != 0 && !old {
            record.until_ns = io.now_ns + self.config.timeouts.time_wait_ns;
        }
        // The peer has not heard our last acknowledgement, or is confused: tell it, at most twice a second.
        if (occupies || segment.seq != record.rcv_nxt) && record.quiet_until_ns <= io.now_ns {
            record.quiet_until_ns = io.now_ns + INVALID_INTERVAL_NS;
            let reply = BareSegment {
                source: packet.destination,
                source_port: segment.destination_port,
                destination: packet.source,
                destination_port: segment.source_port,
                seq: record.snd_nxt,
                ack: record.rcv_nxt,
                flags: wire::ACK,
                window: record.window,
            };
            let timestamp = record.timestamps.map(|timestamps| timestamps.option(io.now_ns));
            let options = Offer { timestamp, ..Offer::default() };
            let frame = reply.build_with(&options.write(), io.pool);
            self.send_ip(frame, packet.source, io);
        }
        Err(SWALLOWED)
    }
}
