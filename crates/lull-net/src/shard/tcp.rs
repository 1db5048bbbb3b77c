//! A TCP connection: from a checked packet to smoltcp and back, and everything smoltcp leaves to its user.

use std::net::IpAddr;

use lull_nic::Frame;
use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Duration;
use smoltcp::wire::TcpOption;

use super::demux::{CHECKSUM, Cast, MALFORMED, Packet, Reason};
use super::device::{Refused, Sent, Shim};
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::isn;
use super::socket::{Keepalive, Ready, SocketId, SocketKind};
use super::stack::{Io, Stack, instant, interface};
use super::timers::{NEVER_NS, TICK_NS};
use super::wire::{self, ACK, BareSegment, FIN, Mac, PSH, RST, SYN, be16, be32, seq_lt};

/// What may be in flight before anything is known of the path: ten segments (RFC 6928), rounded up to the default
/// transmit buffer. smoltcp's Reno starts with 2 KiB and takes no other value: a response of 10 KiB would take several
/// round trips and delayed acknowledgements. A connection whose transmit buffer is no larger than this cannot have more
/// in flight, so it does without a congestion window until its first retransmission.
const INITIAL_WINDOW_BYTES: usize = 16 * 1024;

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

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    SynSent,
    SynReceived,
    /// From ESTABLISHED to the last acknowledgement.
    Open,
    /// The protocol is done with it; the application may still read what came, and the reason.
    Over,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u16 {
        /// An application holds it.
        const HELD = 1;
        /// It waits in a listener's accept queue.
        const QUEUED = 2;
        /// The application shut down reading.
        const READ_SHUT = 4;
        /// The application shut down writing.
        const WRITE_SHUT = 8;
        /// It waits for room in the transmit ring.
        const BLOCKED = 16;
        /// It waits for its next hop's Ethernet address.
        const UNRESOLVED = 32;
        /// Keepalive probes are out.
        const PROBING = 64;
        /// Nagle's algorithm is off.
        const NODELAY = 512;
        /// A loss was seen: the congestion window is in force.
        const CONGESTED = 1024;
        /// Closing resets it (`SO_LINGER` with 0).
        const RESET_ON_CLOSE = 128;
        /// The user timeout is the application's own: it counts from the last progress even if the peer is alive.
        const OWN_TIMEOUT = 256;
    }
}

/// A connection. Its socket, with smoltcp's state, is one allocation behind `sockets`.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sockets: SocketSet<'static>,
    pub(super) flow: FlowKey,
    /// Oldest unacknowledged sequence number.
    pub(super) snd_una: u32,
    /// Next sequence number that was never sent.
    pub(super) snd_nxt: u32,
    /// What was last acknowledged, and the window field with it.
    rcv_ack: u32,
    rcv_window: u16,
    /// Behind the last segment that emptied the transmit buffer, and so may have been small.
    small_end: u32,
    /// The peer's last window field.
    peer_window: u16,
    next_hop: Option<Mac>,
    pub(super) phase: Phase,
    pub(super) ready: Ready,
    pub(super) flags: Flags,
    /// Version of the neighbour table that `next_hop` is from.
    hop_version: u64,
    /// Bytes read since the last segment went out.
    pub(super) consumed: usize,
    /// Last time that the peer acknowledged something, or that there began to be something to acknowledge.
    pub(super) progress_ns: u64,
    /// Last time that a segment came in.
    heard_ns: u64,
    /// When the present state ends by itself.
    state_until_ns: u64,
    pub(super) user_timeout_ns: u64,
    pub(super) keepalive: Option<Keepalive>,
    /// Whose child it is: slab index and generation.
    listener: Option<(u32, u32)>,
    pub(super) error: Option<NetError>,
    pub(super) soft_error: Option<NetError>,
}

impl Connection {
    #[inline]
    pub(super) fn socket(&self) -> &Socket<'static> {
        self.sockets.get(SocketHandle::default())
    }

    #[inline]
    pub(super) fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(SocketHandle::default())
    }

    /// What a connection costs besides its buffers.
    pub(super) fn overhead_bytes() -> usize {
        size_of::<Connection>() + size_of::<SocketStorage<'static>>() + 2 * size_of::<u64>() + 40
    }

    /// Sets when its present state ends by itself.
    pub(super) fn expires(&mut self, at_ns: u64) {
        self.state_until_ns = at_ns;
    }

    /// Whether it is still half open, for this listener.
    pub(super) fn is_child_of(&self, listener: u32, generation: u32) -> bool {
        self.listener == Some((listener, generation))
    }

    /// Something is sent, or to be sent, that the peer has not acknowledged.
    pub(super) fn outstanding(&self) -> bool {
        self.snd_una != self.snd_nxt || self.socket().send_queue() > 0
    }

    /// `tcp_poll`.
    #[inline]
    pub(super) fn readiness(&self) -> Ready {
        let socket = self.socket();
        let mut ready = if self.error.is_some() { Ready::ERR } else { Ready::empty() };
        let over = match self.phase {
            Phase::SynSent | Phase::SynReceived => return ready,
            Phase::Open => false,
            Phase::Over => true,
        };
        let read_over = over || self.flags.contains(Flags::READ_SHUT) || fin_received(socket.state());
        let write_over = over || self.flags.contains(Flags::WRITE_SHUT);
        if read_over {
            ready |= Ready::READABLE | Ready::RDHUP;
        } else if socket.can_recv() {
            ready |= Ready::READABLE;
        }
        // `sk_stream_is_writeable`: a third of the buffer is free. A writer is not woken for every acknowledged byte.
        let capacity = socket.send_capacity();
        if write_over || (capacity - socket.send_queue()) * 3 >= capacity {
            ready |= Ready::WRITABLE;
        }
        if read_over && write_over {
            ready |= Ready::HUP;
        }
        ready
    }
}

/// Whether the peer's FIN was received, by the state.
pub(super) fn fin_received(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed)
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
            Some(&Owner::TimeWait(index)) => {
                if !self.time_wait_input(index, packet, &segment, io)? {
                    return Ok(());
                }
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
        if segment.flags & (SYN | ACK | RST) == SYN {
            if let Some(listener) = self.listener_for(packet, &flow) {
                return self.accept_syn(listener, flow, frame, packet, segment, io);
            }
        }
        if segment.flags & RST == 0 && self.reset_budget.take(io.now_ns) {
            // RFC 9293 section 3.10.7.1.
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
            self.suggested(packet.source, packet.source_mac, io);
            self.send_ip(reset, packet.source, io);
        }
        Err(NOBODY)
    }

    /// The listener that a SYN is for.
    pub(super) fn listener_for(&self, packet: &Packet, flow: &FlowKey) -> Option<u32> {
        let hash = || self.secret.hash(1, flow);
        let index = self.listener_ports.find(packet.destination, flow.local().port(), hash)?;
        self.listeners.get(index).filter(|listener| !listener.stopped).map(|_| index)
    }

    fn accept_syn(
        &mut self,
        listener_index: u32,
        flow: FlowKey,
        frame: &mut Frame,
        packet: &mut Packet,
        segment: Segment,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let Some(listener) = self.listeners.get_mut(listener_index) else { return Err(MALFORMED) };
        // In the order of `tcp_conn_request`.
        if listener.is_full() {
            return Err(|counters| &mut counters.drop_backlog_full);
        }
        if listener.half_open >= listener.options.syn_backlog {
            return Err(|counters| &mut counters.drop_syn_backlog_full);
        }
        if self.connections.len() >= self.config.connections_max {
            return Err(|counters| &mut counters.drop_table_full);
        }
        listener.half_open += 1;
        self.counters.tcp_syns += 1;
        let options = listener.options;
        let mut socket = self.new_socket(options.rx_buffer_bytes, options.tx_buffer_bytes, &flow, io.now_ns);
        socket.listen(flow.local().port()).expect("a new socket is closed, and port 0 was refused");
        let index = self.insert_connection(flow, socket, Phase::SynReceived, io.now_ns);
        let parent = (listener_index, self.listeners.generation(listener_index));
        if let Some(connection) = self.connections.get_mut(index) {
            connection.listener = Some(parent);
            connection.flags.set(Flags::NODELAY, options.nodelay);
            connection.state_until_ns = io.now_ns + self.config.timeouts.syn_received_ns;
        }
        self.suggested(packet.source, packet.source_mac, io);
        packet.make_plain(frame);
        self.feed(index, frame, packet, &segment, io);
        Ok(())
    }

    /// A socket with buffers, and an interface that will give it the initial sequence number we want.
    pub(super) fn new_socket(&mut self, rx: usize, tx: usize, flow: &FlowKey, now_ns: u64) -> Socket<'static> {
        let seed = isn::seed_for(self.secret.isn(flow, now_ns));
        self.iface = interface(self.port, seed, now_ns);
        let size = |wanted: usize, default: usize| if wanted == 0 { default } else { wanted };
        let rx = vec![0; size(rx, self.config.rx_buffer_bytes)];
        let tx = vec![0; size(tx, self.config.tx_buffer_bytes)];
        self.buffer_bytes += rx.len() + tx.len();
        let within_initial_window = tx.len() <= INITIAL_WINDOW_BYTES;
        // Never a used socket: smoltcp keeps options and the congestion window of its former life.
        let mut socket = Socket::new(SocketBuffer::new(rx), SocketBuffer::new(tx));
        if within_initial_window {
            socket.set_congestion_control(CongestionControl::None);
        }
        socket
    }

    pub(super) fn insert_connection(
        &mut self,
        flow: FlowKey,
        socket: Socket<'static>,
        phase: Phase,
        now_ns: u64,
    ) -> u32 {
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        debug_assert_eq!(handle, SocketHandle::default());
        let index = self.connections.insert(Connection {
            sockets,
            flow,
            snd_una: 0,
            snd_nxt: 0,
            rcv_ack: 0,
            rcv_window: 0,
            small_end: 0,
            peer_window: 0,
            next_hop: None,
            phase,
            ready: Ready::empty(),
            flags: Flags::empty(),
            hop_version: 0,
            consumed: 0,
            progress_ns: now_ns,
            heard_ns: now_ns,
            state_until_ns: NEVER_NS,
            user_timeout_ns: self.config.timeouts.user_timeout_ns,
            keepalive: None,
            listener: None,
            error: None,
            soft_error: None,
        });
        self.flows.insert(flow, Owner::Connection(index));
        index
    }

    pub(super) fn connection_id(&self, index: u32) -> SocketId {
        SocketId::new(SocketKind::Tcp, index, self.connections.generation(index))
    }

    #[inline]
    fn connection_input(
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
                if segment.flags & RST == 0 {
                    let beyond = segment.flags & ACK != 0 && seq_lt(connection.snd_nxt, segment.ack);
                    if segment.flags & SYN != 0 || beyond {
                        self.counters.tcp_challenges += 1;
                        make_probe(connection, frame, packet, &mut segment);
                    } else if seq_lt(segment.ack, connection.snd_una) {
                        if mend_stale_ack(connection, frame, packet, &mut segment) {
                            self.counters.tcp_stale_acks += 1;
                        }
                    } else {
                        connection.peer_window = segment.window;
                    }
                }
                if connection.flags.contains(Flags::PROBING) {
                    connection.flags.remove(Flags::PROBING);
                    connection.socket_mut().set_keep_alive(None);
                }
            }
            Phase::SynReceived => {
                let completes = segment.flags & (SYN | RST | ACK) == ACK && segment.ack == connection.snd_nxt;
                if completes {
                    let full = connection
                        .listener
                        .filter(|&(parent, generation)| self.listeners.generation(parent) == generation)
                        .and_then(|(parent, _)| self.listeners.get(parent))
                        .is_some_and(|listener| listener.is_full());
                    if full {
                        // As `tcp_check_req` does: the SYN-ACK is sent again later, and the client's data with it.
                        return Err(|counters| &mut counters.drop_backlog_full);
                    }
                }
                connection.peer_window = segment.window;
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
    fn feed(&mut self, index: u32, frame: &Frame, packet: &Packet, segment: &Segment, io: &mut Io<'_>) {
        let next_hop = self.next_hop(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (queued, unread) = (connection.socket().send_queue(), connection.socket().recv_queue());
        let bytes = &frame.data()[packet.l3..packet.end];
        let mut shim = Shim::new(Some(bytes), self.port, next_hop, connection.snd_nxt, io.tx, io.pool);
        self.iface.poll_ingress_single(instant(io.now_ns), &mut shim, &mut connection.sockets);
        let exit = shim.exit;
        self.counters.tx_frames += u64::from(exit.frames);
        self.counters.tx_dropped += u64::from(exit.dropped);
        if exit.frames > 0 && exit.last.flags & (SYN | RST) == 0 {
            connection.sent(exit.last);
        }
        let socket = connection.socket();
        let (now_queued, now_unread) = (socket.send_queue(), socket.recv_queue());
        let acknowledged = queued.saturating_sub(now_queued) as u32;
        if acknowledged > 0 {
            connection.snd_una = connection.snd_una.wrapping_add(acknowledged);
            connection.progress_ns = io.now_ns;
        } else if connection.peer_window == 0 && !connection.flags.contains(Flags::OWN_TIMEOUT) {
            // A reader that is slow but answers probes is no vanished client (`tcp_probe_timer`).
            connection.progress_ns = io.now_ns;
        }
        self.settle(index, Some(segment), now_unread > unread, io);
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
                State::TimeWait => return self.into_time_wait(index, cause, arrived, io),
                State::FinWait2 => {
                    connection.snd_una = connection.snd_nxt;
                    if !connection.flags.contains(Flags::HELD) && connection.state_until_ns == NEVER_NS {
                        connection.state_until_ns = io.now_ns + self.config.timeouts.fin_wait_2_ns;
                    }
                }
                _ => {}
            },
            Phase::SynReceived => match state {
                State::SynReceived => {}
                // A reset, or a SYN that smoltcp would not have: nothing is kept. smoltcp would listen for ever.
                State::Listen | State::Closed => {
                    // Only a connection that was opened from both sides has an application to tell.
                    if connection.listener.is_none() {
                        return self.over(index, Some(NetError::ConnectionRefused), io);
                    }
                    return self.free(index);
                }
                _ => {
                    if !self.established(index, io) {
                        return;
                    }
                }
            },
            Phase::SynSent => match state {
                State::SynSent | State::SynReceived => {}
                State::Closed => return self.over(index, Some(NetError::ConnectionRefused), io),
                _ => {
                    if !self.established(index, io) {
                        return;
                    }
                }
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

    /// The handshake is done. False: the connection is gone.
    fn established(&mut self, index: u32, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        connection.phase = Phase::Open;
        connection.state_until_ns = NEVER_NS;
        connection.progress_ns = io.now_ns;
        self.counters.tcp_established += 1;
        let Some((parent, generation)) = connection.listener.take() else { return true };
        if self.listeners.generation(parent) == generation
            && let Some(listener) = self.listeners.get_mut(parent)
        {
            listener.half_open = listener.half_open.saturating_sub(1);
            listener.accepted.push_back(index);
            connection.flags.insert(Flags::QUEUED);
            listener.ready = Ready::READABLE;
            let id = SocketId::new(SocketKind::Listener, parent, generation);
            self.notify(id, Ready::READABLE, Ready::READABLE, io);
            return true;
        }
        // The listener was closed meanwhile.
        self.send_reset(index, io);
        self.free(index);
        false
    }

    /// smoltcp closed it because of a segment: the last acknowledgement, or a reset.
    fn over_by_peer(&mut self, index: u32, cause: Option<&Segment>, io: &mut Io<'_>) {
        let reset = cause.is_some_and(|segment| segment.flags & RST != 0);
        let Some(connection) = self.connections.get(index) else { return };
        // `tcp_reset`: after the peer's FIN it is a broken pipe.
        let after_fin = connection.ready.contains(Ready::RDHUP) && !connection.flags.contains(Flags::READ_SHUT);
        let error = match (reset, after_fin) {
            (true, true) => Some(NetError::BrokenPipe),
            (true, false) => Some(NetError::ConnectionReset),
            (false, _) => None,
        };
        self.over(index, error, io);
    }

    /// Both sides are done and the peer may not know: a small record takes over the 4-tuple.
    fn into_time_wait(&mut self, index: u32, cause: Option<&Segment>, arrived: bool, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get(index) else { return };
        let (flow, snd_nxt) = (connection.flow, connection.snd_nxt);
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
            let frame = last.build(io.pool);
            self.send_ip(frame, peer.ip(), io);
        }
        self.flows.remove(&flow);
        self.time_wait(flow, snd_nxt, rcv_nxt, window, io.now_ns);
        if arrived {
            // Said before the end is: the data is an edge of its own.
            self.announce(index, true, io);
        }
        self.over(index, None, io);
    }

    /// The protocol is done with it. It stays for the application that holds it, or will.
    pub(super) fn over(&mut self, index: u32, error: Option<NetError>, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.flags.intersects(Flags::HELD | Flags::QUEUED) {
            return self.free(index);
        }
        connection.phase = Phase::Over;
        connection.error = error.or(connection.error);
        let flow = connection.flow;
        self.release_flow(index, &flow);
        self.timers.remove(index);
        self.announce(index, false, io);
    }

    fn release_flow(&mut self, index: u32, flow: &FlowKey) {
        if self.flows.get(flow) == Some(&Owner::Connection(index)) {
            self.flows.remove(flow);
        }
    }

    /// Forgets it altogether.
    pub(super) fn free(&mut self, index: u32) {
        self.timers.remove(index);
        let Some(connection) = self.connections.remove(index) else { return };
        self.release_flow(index, &connection.flow);
        let socket = connection.socket();
        self.buffer_bytes -= socket.recv_capacity() + socket.send_capacity();
        if let Some((parent, generation)) = connection.listener
            && self.listeners.generation(parent) == generation
            && let Some(listener) = self.listeners.get_mut(parent)
        {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
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
            seq: connection.snd_nxt,
            ack: connection.rcv_ack,
            flags: RST | ACK,
            window: 0,
        };
        let frame = reset.build(io.pool);
        self.counters.tcp_resets_sent += 1;
        self.send_ip(frame, peer.ip(), io);
    }

    /// The connection's next hop, looked up again only if the neighbour table has changed.
    #[inline]
    fn next_hop(&mut self, index: u32) -> Option<Mac> {
        let version = self.neighbours.version();
        let connection = self.connections.get(index)?;
        if connection.hop_version == version {
            return connection.next_hop;
        }
        let station = self.route(connection.flow.remote().ip());
        let mac = station.and_then(|station| self.mac_of(station));
        let connection = self.connections.get_mut(index)?;
        // An entry that the table dropped for want of room is still the best guess.
        connection.next_hop = mac.or(connection.next_hop);
        connection.hop_version = version;
        connection.next_hop
    }

    /// Polls smoltcp for segments until it has none, and sets the connection's deadline. `eager`: there is reason to
    /// think that it has one, so do not ask first.
    #[inline]
    pub(super) fn pump(&mut self, index: u32, mut eager: bool, io: &mut Io<'_>) {
        /// Polls without a segment that smoltcp may need to put its timers in order.
        const IDLE_POLLS: u32 = 3;
        let now = instant(io.now_ns);
        let next_hop = self.next_hop(index);
        let mut idle = 0;
        if let Some(connection) = self.connections.get_mut(index) {
            connection.set_nagle();
        }
        let smoltcp_ns = loop {
            let Some(connection) = self.connections.get_mut(index) else { return };
            if !eager {
                match self.iface.poll_at(now, &connection.sockets) {
                    None => break NEVER_NS,
                    Some(at) if at > now => break (at.total_micros() as u64).saturating_mul(1000),
                    Some(_) => {}
                }
            }
            eager = false;
            let mut shim = Shim::new(None, self.port, next_hop, connection.snd_nxt, io.tx, io.pool);
            self.iface.poll_egress(now, &mut shim, &mut connection.sockets);
            let exit = shim.exit;
            self.counters.tx_frames += u64::from(exit.frames);
            self.counters.tx_dropped += u64::from(exit.dropped);
            if exit.frames > 0 {
                connection.sent(exit.last);
                idle = 0;
                continue;
            }
            match exit.refused {
                Some(Refused::RingFull) => {
                    self.block(index);
                    break NEVER_NS;
                }
                Some(Refused::NoNeighbour) => break self.unresolved_until(index, io),
                None => {
                    idle += 1;
                    if idle >= IDLE_POLLS {
                        // `poll_at` says now and `poll_egress` has nothing: do not spin.
                        self.counters.tcp_stalls += 1;
                        break io.now_ns + TICK_NS;
                    }
                }
            }
        };
        let Some(connection) = self.connections.get(index) else { return };
        let deadline_ns = connection.deadline_ns(smoltcp_ns).max(io.now_ns + 1);
        self.timers.set(index, deadline_ns);
    }

    fn block(&mut self, index: u32) {
        let id = self.connection_id(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.flags.contains(Flags::BLOCKED) {
            connection.flags.insert(Flags::BLOCKED);
            self.blocked.push_back(id);
        }
    }

    pub(super) fn connection_unblocked(&mut self, id: SocketId, io: &mut Io<'_>) {
        if self.connections.generation(id.index()) != id.generation() {
            return;
        }
        if let Some(connection) = self.connections.get_mut(id.index()) {
            connection.flags.remove(Flags::BLOCKED);
            self.settle(id.index(), None, false, io);
        }
    }

    /// Lets the connection wait for its next hop; returns when to try without an answer.
    fn unresolved_until(&mut self, index: u32, io: &mut Io<'_>) -> u64 {
        /// After a failure, or when too much is being asked for.
        const RETRY_NS: u64 = 1_000_000_000;
        let Some(connection) = self.connections.get_mut(index) else { return NEVER_NS };
        if connection.flags.contains(Flags::UNRESOLVED) {
            return NEVER_NS;
        }
        let Some(station) = ({
            let remote = connection.flow.remote().ip();
            self.route(remote)
        }) else {
            return io.now_ns + RETRY_NS;
        };
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.insert(Flags::UNRESOLVED);
        }
        if self.wait_with_connection(station, index, io) {
            return NEVER_NS;
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.remove(Flags::UNRESOLVED);
        }
        io.now_ns + RETRY_NS
    }

    pub(super) fn connection_resolved(&mut self, index: u32, io: &mut Io<'_>) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.remove(Flags::UNRESOLVED);
            connection.hop_version = 0;
            self.settle(index, None, false, io);
        }
    }

    /// Nobody answers for the next hop: the end of an attempt to connect, a hiccup for a connection.
    pub(super) fn connection_unreachable(&mut self, index: u32, error: NetError, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.remove(Flags::UNRESOLVED);
        match connection.phase {
            Phase::SynSent => self.over(index, Some(error), io),
            Phase::SynReceived => self.free(index),
            Phase::Open => {
                connection.soft_error = Some(error);
                let retry = connection.deadline_ns(io.now_ns + 1_000_000_000);
                self.timers.set(index, retry.max(io.now_ns + 1));
            }
            Phase::Over => {}
        }
    }

    /// An ICMP error about one of its segments (`tcp_v4_err`). False: it cannot be about this connection.
    pub(super) fn connection_icmp(
        &mut self,
        index: u32,
        seq: u32,
        error: NetError,
        hard: bool,
        io: &mut Io<'_>,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let opening = connection.phase == Phase::SynSent;
        // RFC 5927 section 4.1: only for a sequence number in flight. An unacknowledged SYN's is one before.
        let first = if opening { connection.snd_nxt.wrapping_sub(1) } else { connection.snd_una };
        if seq_lt(seq, first) || seq_lt(connection.snd_nxt, seq) {
            return false;
        }
        if opening && hard {
            self.over(index, Some(error), io);
        } else {
            connection.soft_error = Some(error);
        }
        true
    }

    /// A connection's deadline has come.
    pub(super) fn connection_timer(&mut self, index: u32, io: &mut Io<'_>) {
        let now_ns = io.now_ns;
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.state_until_ns <= now_ns {
            match connection.phase {
                Phase::SynSent => {
                    self.counters.timeout_syn_sent += 1;
                    let error = connection.soft_error.unwrap_or(NetError::TimedOut);
                    return self.over(index, Some(error), io);
                }
                Phase::SynReceived => {
                    self.counters.timeout_syn_received += 1;
                    return self.free(index);
                }
                Phase::Open => {
                    self.counters.timeout_fin_wait_2 += 1;
                    return self.over(index, None, io);
                }
                Phase::Over => return,
            }
        }
        if connection.phase == Phase::Open {
            if connection.outstanding() {
                if connection.progress_ns.saturating_add(connection.user_timeout_ns) <= now_ns {
                    self.counters.timeout_user += 1;
                    let error = connection.soft_error.unwrap_or(NetError::TimedOut);
                    return self.over(index, Some(error), io);
                }
                // Linux: `dst_negative_advice` after a few retransmissions. Has the next hop moved?
                const DOUBT_NS: u64 = 3_000_000_000;
                let silent = connection.heard_ns.max(connection.progress_ns) + DOUBT_NS <= now_ns;
                if silent && connection.peer_window != 0 {
                    let remote = connection.flow.remote().ip();
                    self.doubt(remote, io);
                }
            } else if let Some(keepalive) = connection.keepalive
                && connection.heard_ns.saturating_add(keepalive.idle_ns) <= now_ns
            {
                let give_up = keepalive.interval_ns.saturating_mul(u64::from(keepalive.probes));
                if connection.heard_ns.saturating_add(keepalive.idle_ns).saturating_add(give_up) <= now_ns {
                    self.counters.timeout_keepalive += 1;
                    self.send_reset(index, io);
                    return self.over(index, Some(NetError::TimedOut), io);
                }
                if !connection.flags.contains(Flags::PROBING) {
                    connection.flags.insert(Flags::PROBING);
                    // smoltcp sends the first probe at its next poll and the others at this interval.
                    let interval = Duration::from_micros((keepalive.interval_ns / 1000).max(1));
                    connection.socket_mut().set_keep_alive(Some(interval));
                }
            }
        }
        self.settle(index, None, false, io);
    }

    /// Asks again for the next hop to a peer that has fallen silent.
    fn doubt(&mut self, remote: IpAddr, io: &mut Io<'_>) {
        if let Some(station) = self.route(remote) {
            self.request(station, io);
        }
    }
}

impl Connection {
    /// Notes what was sent.
    #[inline]
    fn sent(&mut self, last: Sent) {
        if self.phase != Phase::Open && last.flags & SYN != 0 {
            (self.snd_una, self.snd_nxt, self.small_end) = (last.seq_end, last.seq_end, last.seq_end);
        } else if seq_lt(self.snd_nxt, last.seq_end) {
            self.snd_nxt = last.seq_end;
            if last.flags & PSH != 0 {
                self.small_end = last.seq_end;
            }
        } else if last.occupied && !self.flags.contains(Flags::CONGESTED) {
            // A retransmission: from now on there is a congestion window, and it starts small (RFC 5681 section 3.1).
            self.flags.insert(Flags::CONGESTED);
            self.socket_mut().set_congestion_control(CongestionControl::Reno);
        }
        self.rcv_ack = last.ack;
        self.rcv_window = last.window;
        self.consumed = 0;
    }

    /// Nagle's algorithm as Linux has it (`tcp_minshall_check`): a small segment waits only for an earlier *small* one.
    /// smoltcp's own rule would hold back the tail of every response longer than a segment until the peer's delayed
    /// acknowledgement.
    #[inline]
    fn set_nagle(&mut self) {
        let hold = !self.flags.contains(Flags::NODELAY) && seq_lt(self.snd_una, self.small_end);
        self.socket_mut().set_nagle_enabled(hold);
    }

    /// The earliest of smoltcp's deadline and ours.
    #[inline]
    fn deadline_ns(&self, smoltcp_ns: u64) -> u64 {
        let mut deadline_ns = smoltcp_ns.min(self.state_until_ns);
        if self.phase != Phase::Open {
            return deadline_ns;
        }
        if self.outstanding() {
            deadline_ns = deadline_ns.min(self.progress_ns.saturating_add(self.user_timeout_ns));
        } else if let Some(keepalive) = self.keepalive {
            let probes = if self.flags.contains(Flags::PROBING) { u64::from(keepalive.probes) } else { 0 };
            let after = keepalive.idle_ns.saturating_add(keepalive.interval_ns.saturating_mul(probes));
            deadline_ns = deadline_ns.min(self.heard_ns.saturating_add(after));
        }
        deadline_ns
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
