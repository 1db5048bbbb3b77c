//! How a connection begins: a SYN for a listener, the end of its handshake, a new socket.

use lull_bpf::Chooser;
use lull_host::uncleared;
use lull_nic::{Frame, FramePool};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};

use super::clock::{ACK_DELAY, instant};
use super::config::SynCookies;
use super::connection::{Connection, Flags, Phase, timeout_ms};
use super::cookies;
use super::demux::{MALFORMED, Reason};
use super::device::{Rehearsal, Windows, interface};
use super::flow::{FlowKey, Owner};
use super::grow::UNSCALED_BYTES_MAX;
use super::half_open::{Handshake, window_scale};
use super::isn;
use super::listener::Waiting;
use super::options::{MSS_DEFAULT, Offer};
use super::paws::{self, Timestamps};
use super::segment::Arrived;
use super::socket::{Ready, SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::steer::Steered;
use super::timers::NEVER_NS;
use super::wire::{self, ACK, BareSegment, SYN};

/// What may be in flight before anything is known of the path: ten segments (RFC 6928), rounded up to the default
/// transmit buffer. smoltcp's Reno starts with 2 KiB and takes no other value: a response of 10 KiB would take several
/// round trips and delayed acknowledgements. A connection whose transmit buffer is no larger than this cannot have more
/// in flight, so it does without a congestion window until its first retransmission.
pub(super) const INITIAL_WINDOW_BYTES: usize = 16 * 1024;

/// The round trip of a handshake that was repeated, or of which nothing was kept, as far as smoltcp is told: it makes a timeout of a
/// second of it (RFC 6298 sections 2.1 and 2.2).
const RTT_NS_UNKNOWN: u64 = 333_000_000;

impl Stack {
    /// The listener that a SYN is for.
    pub(super) fn listener_for(&self, arrived: &Arrived<'_>) -> Option<u32> {
        let Arrived { flow, frame, packet, .. } = arrived;
        let hash = || self.secret.hash(1, flow);
        let steer = |program: &Chooser| program.run(&Steered::new(frame, packet, self.config.place));
        self.listener_ports.find(packet.destination, flow.local().port(), steer, hash)
    }

    /// A SYN for a listener (`tcp_conn_request`). With `isn` it replaces a connection in TIME-WAIT, whose peer is real,
    /// and begins with that number.
    pub(super) fn accept_syn(
        &mut self,
        listener_index: u32,
        arrived: &Arrived<'_>,
        isn: Option<u32>,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let Arrived { flow, ref packet, segment, .. } = *arrived;
        let Some(listener) = self.listeners.get_mut(listener_index) else { return Err(MALFORMED) };
        let full = listener.half_open >= listener.half_opens_max();
        let cookie = isn.is_none() && (full || self.config.syncookies == SynCookies::Always);
        if cookie && self.config.syncookies == SynCookies::Off {
            self.counters.tcp_req_q_full_drop += 1;
            return Err(|counters| &mut counters.drop_syn_backlog_full);
        }
        if listener.is_full() {
            return Err(self.overflows());
        }
        if self.connections.len() >= self.config.connections_max {
            return Err(|counters| &mut counters.drop_table_full);
        }
        let mut offer = Offer::read(arrived.options());
        offer.timestamp = offer.timestamp.filter(|_| self.config.timestamps);
        let mut handshake = Handshake { isn: 0, peer_isn: segment.seq, offer, sent_ns: Some(io.now_ns) };
        if cookie {
            listener.cookies_until_ns = io.now_ns + cookies::VALID_NS;
            self.counters.tcp_req_q_full_do_cookies += u64::from(full);
            self.counters.syncookies_sent += 1;
            let mss = offer.mss.unwrap_or(MSS_DEFAULT);
            handshake.isn = self.secret.cookie(&flow, segment.seq, mss, io.now_ns);
            // Options that the cookie cannot hold are agreed on only if the timestamp's low bits can hold them.
            handshake.offer = match offer.timestamp {
                Some(_) => Offer { mss: Some(mss), ..offer },
                None => Offer { mss: Some(mss), ..Offer::default() },
            };
            let value = self.secret.cookie_value(offer.window_scale, offer.sack, io.now_ns);
            self.send_syn_ack(&flow, listener_index, &handshake, value, packet.source_mac, io);
            return Ok(());
        }
        listener.half_open += 1;
        self.counters.tcp_syns += 1;
        handshake.isn = isn.unwrap_or_else(|| match self.config.others() {
            // Another stack may have to go on with it.
            Some(_) => self.secret.cookie(&flow, segment.seq, offer.mss.unwrap_or(MSS_DEFAULT), io.now_ns),
            None => self.secret.isn(&flow, io.now_ns),
        });
        let listener = (listener_index, self.listeners.generation(listener_index));
        self.begin_half_open(flow, listener, handshake, packet.source_mac, io);
        Ok(())
    }

    /// Counts a connection that finds the accept queue full.
    fn overflows(&mut self) -> Reason {
        self.counters.listen_overflows += 1;
        |counters| &mut counters.drop_backlog_full
    }

    /// An acknowledgement for a listener: is it that of a cookie (`cookie_v4_check`)? `None`: no.
    pub(super) fn accept_cookie(&mut self, arrived: &mut Arrived<'_>, io: &mut Io<'_>) -> Option<Result<(), Reason>> {
        let Arrived { flow, segment, .. } = *arrived;
        let index = self.listener_for(arrived)?;
        let others_begin = self.config.others().is_some();
        if self.listeners.get(index)?.cookies_until_ns <= io.now_ns && !others_begin {
            return None;
        }
        let (isn, peer_isn) = (segment.ack.wrapping_sub(1), segment.seq.wrapping_sub(1));
        let Some(mss) = self.secret.cookie_mss(&flow, peer_isn, isn, io.now_ns) else {
            self.counters.syncookies_failed += 1;
            return None;
        };
        if segment.length == 0 && self.claimed.contains(&flow, peer_isn) {
            return None;
        }
        self.counters.syncookies_recv += 1;
        let mut offer = Offer { mss: Some(mss), ..Offer::default() };
        if let Some(timestamp) = segment.timestamp.filter(|_| self.config.timestamps) {
            (offer.window_scale, offer.sack) = self.secret.cookie_options(&flow, timestamp.echo);
            offer.timestamp = Some((timestamp.value, timestamp.echo));
        }
        let handshake = Handshake { isn, peer_isn, offer, sent_ns: None };
        Some(self.complete(index, &handshake, arrived, io))
    }

    /// The handshake is done: the connection comes into being, waits to be accepted, and gets the segment.
    pub(super) fn complete(
        &mut self,
        listener_index: u32,
        handshake: &Handshake,
        arrived: &mut Arrived<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let flow = arrived.flow;
        let Some(listener) = self.listeners.get(listener_index) else { return Err(MALFORMED) };
        if listener.is_full() {
            // As in `tcp_v4_syn_recv_sock`, the SYN-ACK is sent again later, and the client then sends its data again.
            // A cookie is found again when the client's data comes again.
            return Err(self.overflows());
        }
        if self.connections.len() >= self.config.connections_max {
            return Err(|counters| &mut counters.drop_table_full);
        }
        let options = listener.options;
        let (rx, tx) = (options.rx_buffer_bytes, options.tx_buffer_bytes);
        // If smoltcp believed that the peer's segments may be larger than any that can come here, it would acknowledge
        // only every few of them.
        let mss_max = self.config.mtu_bytes.saturating_sub(wire::ip_header(flow.remote().ip()) + wire::TCP);
        let mss = handshake.offer.mss.map(|mss| mss.min(u16::try_from(mss_max).unwrap_or(u16::MAX)));
        let (waiting, handshake) = (*handshake, &Handshake { offer: Offer { mss, ..handshake.offer }, ..*handshake });
        let mut socket = self.new_socket(rx, tx, handshake.isn, io.now_ns);
        socket.listen(flow.local().port()).expect("a new socket is closed, and port 0 was refused");
        let rx_capacity = socket.recv_capacity();
        let buffers = rx_capacity + socket.send_capacity();
        let scale = handshake.offer.window_scale.map_or(0, |_| self.offered_scale(rx));
        let mut sockets = one_socket(socket);
        let Some(window) = self.rehearse(&mut sockets, &flow, handshake, io) else {
            // Only a smoltcp that draws its sequence numbers otherwise comes here.
            self.buffer_bytes -= buffers;
            return Err(MALFORMED);
        };
        if let Some(&Owner::HalfOpen(request)) = self.flows.get(&flow) {
            self.free_half_open(request);
        }
        if handshake.offer.window_scale.is_some() && window_scale(rx_capacity) > 0 {
            // smoltcp goes by the window of its SYN-ACK, which is not scaled, as if it were: it would take what no buffer has room for.
            let next = handshake.peer_isn.wrapping_add(1);
            let last = handshake.bare(&flow, next, arrived.segment.window);
            let probe = BareSegment { seq: next.wrapping_sub(1), ..last };
            self.plays(&mut sockets, [last, probe], handshake.offer.timestamp, io);
        }
        let index = self.insert_connection(flow, sockets, Phase::Open, io.now_ns);
        if let Some(connection) = self.connections.get_mut(index) {
            let next = handshake.isn.wrapping_add(1);
            (connection.snd_una, connection.snd_nxt, connection.small_end) = (next, next, next);
            connection.rcv_ack = handshake.peer_isn.wrapping_add(1);
            connection.peer_isn = handshake.peer_isn;
            // The window field of a SYN is not scaled.
            connection.rcv_window = window >> scale;
            connection.set_scales(scale, handshake.offer.window_scale);
            connection.fix_buffers(rx != 0, tx != 0);
            connection.note_offer(&handshake.offer);
            let offset = self.secret.timestamp_offset(&connection.flow);
            let recent = handshake.offer.timestamp.map(|(value, _)| value);
            connection.timestamps = recent.map(|recent| Timestamps::new(offset, recent, io.now_ns));
            connection.flags.set(Flags::NODELAY, options.nodelay);
            connection.flags.insert(Flags::QUEUED);
            connection.shook_hands(handshake.sent_ns, io.now_ns);
        }
        self.suggested(arrived.packet.source, arrived.packet.source_mac, io);
        self.counters.tcp_established += 1;
        if let Some(listener) = self.listeners.get_mut(listener_index) {
            listener.accepted.push_back(Waiting { index, handshake: waiting });
            listener.ready = Ready::READABLE;
            let id = SocketId::new(SocketKind::Listener, listener_index, self.listeners.generation(listener_index));
            self.notify(id, Ready::READABLE, Ready::READABLE, io);
        }
        self.connection_input(index, arrived, io)
    }

    /// Plays the handshake's beginning to a listening socket, which comes out in SYN-RECEIVED with the sequence numbers and
    /// options that were agreed on without it. Returns the window field of its SYN-ACK, which stays here.
    pub(super) fn rehearse(
        &mut self,
        sockets: &mut SocketSet<'static>,
        flow: &FlowKey,
        handshake: &Handshake,
        io: &mut Io<'_>,
    ) -> Option<u16> {
        let at = instant(handshake.sent_ns.unwrap_or(io.now_ns.saturating_sub(RTT_NS_UNKNOWN)));
        let syn = handshake.syn(flow, io.pool);
        let mut rehearsal = Rehearsal::new(self.port, syn.data());
        self.iface.own.poll_ingress_single(at, &mut rehearsal, sockets);
        self.iface.own.poll_egress(at, &mut rehearsal, sockets);
        let answer = rehearsal.answer;
        io.pool.recycle(syn);
        let said = sockets.get::<Socket<'static>>(SocketHandle::default()).state() == State::SynReceived;
        answer.filter(|answer| said && answer.seq_end == handshake.isn.wrapping_add(1)).map(|answer| answer.window)
    }

    /// Plays segments of the peer's to a socket, whose answers stay here.
    pub(super) fn plays(
        &mut self,
        sockets: &mut SocketSet<'static>,
        segments: impl IntoIterator<Item = BareSegment>,
        timestamp: Option<(u32, u32)>,
        io: &mut Io<'_>,
    ) {
        let option = Offer { timestamp, ..Offer::default() }.write();
        for segment in segments {
            let frame = segment.build_with(&option, io.pool);
            let mut rehearsal = Rehearsal::new(self.port, frame.data());
            self.iface.own.poll_ingress_single(instant(io.now_ns), &mut rehearsal, sockets);
            io.pool.recycle(frame);
        }
    }

    /// A socket with buffers of these sizes (0: the stack's default), and an interface that will give it the initial sequence
    /// number `isn`.
    pub(super) fn new_socket(&mut self, rx: usize, tx: usize, isn: u32, now_ns: u64) -> Socket<'static> {
        let left = self.config.growth.total_bytes_max.saturating_sub(self.buffer_bytes);
        // Where buffers grow all of them have a bound.
        let has_bound = self.config.growth.total_bytes_max != 0;
        let size = |wanted: usize, default: usize| match wanted {
            0 => default,
            _ if has_bound && wanted > default && wanted > left => default,
            _ => wanted,
        };
        // If there is no memory the process ends, as with any allocation.
        let buffer = |bytes| uncleared(bytes).unwrap_or_else(|_| vec![0; bytes]);
        let rx = buffer(size(rx, self.config.rx_buffer_bytes));
        let tx = buffer(size(tx, self.config.tx_buffer_bytes));
        self.new_socket_on(rx, tx, isn, now_ns)
    }

    /// The same on these buffers.
    pub(super) fn new_socket_on(&mut self, rx: Vec<u8>, tx: Vec<u8>, isn: u32, now_ns: u64) -> Socket<'static> {
        self.iface.own = interface(self.port, isn::seed_for(isn), now_ns);
        self.buffer_bytes += rx.len() + tx.len();
        self.buffer_bytes_peak = self.buffer_bytes_peak.max(self.buffer_bytes);
        let within_initial_window = tx.len() <= INITIAL_WINDOW_BYTES;
        // A used socket will not do: smoltcp keeps options and the congestion window of its former life.
        let mut socket = Socket::new(SocketBuffer::new(rx), SocketBuffer::new(tx));
        socket.set_tsval_generator(self.config.timestamps.then_some(paws::value_of_the_call as fn() -> u32));
        socket.set_ack_delay(Some(ACK_DELAY));
        if within_initial_window {
            socket.set_congestion_control(CongestionControl::None);
        }
        socket
    }

    pub(super) fn insert_connection(
        &mut self,
        flow: FlowKey,
        sockets: SocketSet<'static>,
        phase: Phase,
        now_ns: u64,
    ) -> u32 {
        let (path_mtu, path_mtu_until_s) = self.path_mtus.get(flow.remote().ip(), now_ns);
        let index = self.connections.insert(Connection {
            sockets,
            flow,
            snd_una: 0,
            snd_nxt: 0,
            rcv_ack: 0,
            rcv_window: 0,
            unanswered: 0,
            small_end: 0,
            peer_window: 0,
            timestamps: None,
            next_hop: None,
            phase,
            ready: Ready::empty(),
            flags: Flags::empty(),
            hop_version: 0,
            consumed: 0,
            quiet_until_ns: 0,
            peer_isn: 0,
            path_mtu,
            path_mtu_until_s,
            scales: 0,
            windows: Windows::default(),
            room: 0,
            peer_mss: MSS_DEFAULT,
            batch: 0,
            progress_ns: now_ns,
            heard_ns: now_ns,
            state_until_ns: NEVER_NS,
            user_timeout_ms: timeout_ms(self.config.timeouts.user_timeout_ns),
            asked: None,
            error: None,
            rtt_us: 0,
            rtt_var: 0,
            retransmits: 0,
        });
        if let Some(connection) = self.connections.get_mut(index) {
            connection.begin_with_room(self.config.tx_buffer_bytes, self.config.growth.tx_bytes_max);
        }
        self.flows.insert(flow, Owner::Connection(index));
        index
    }

    pub(super) fn connection_id(&self, index: u32) -> SocketId {
        SocketId::new(SocketKind::Tcp, index, self.connections.generation(index))
    }

    /// The peer has answered our SYN.
    pub(super) fn established(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.phase = Phase::Open;
        connection.state_until_ns = NEVER_NS;
        connection.shook_hands(Some(connection.progress_ns), io.now_ns);
        connection.progress_ns = io.now_ns;
        // The window field of a SYN is not scaled; that of what answers the SYN of a peer who opens at the same time is.
        connection.rcv_window =
            (connection.socket().recv_capacity().min(UNSCALED_BYTES_MAX) >> connection.rcv_scale()) as u16;
        self.counters.tcp_established += 1;
        if connection.asks(|asked| asked.growth.rx_bytes != 0) {
            self.pump(index, false, io);
            self.settle_receive_buffer(index, 0, io);
        }
    }
}

/// A set that holds one socket, under the default handle.
pub(super) fn one_socket(socket: Socket<'static>) -> SocketSet<'static> {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let handle = sockets.add(socket);
    debug_assert_eq!(handle, SocketHandle::default());
    sockets
}

impl Handshake {
    /// The peer's SYN, as an IP packet.
    fn syn(&self, flow: &FlowKey, pool: &mut FramePool) -> Frame {
        let syn = BareSegment { ack: 0, flags: SYN, ..self.bare(flow, self.peer_isn, 0) };
        syn.build_with(&self.offer.write(), pool)
    }

    /// An acknowledgement of the peer's that ends the handshake.
    fn bare(&self, flow: &FlowKey, seq: u32, window: u16) -> BareSegment {
        let (own, peer) = (flow.local(), flow.remote());
        BareSegment {
            source: peer.ip(),
            source_port: peer.port(),
            destination: own.ip(),
            destination_port: own.port(),
            seq,
            ack: self.isn.wrapping_add(1),
            flags: ACK,
            window,
        }
    }
}
