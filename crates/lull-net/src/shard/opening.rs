//! How a connection begins: a SYN for a listener, a new socket, the end of the handshake.

use lull_nic::Frame;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};

use super::connection::{Connection, Flags, Phase};
use super::demux::{MALFORMED, Packet, Reason};
use super::flow::{FlowKey, Owner};
use super::isn;
use super::socket::{Ready, SocketId, SocketKind};
use super::stack::{Io, Stack, interface};
use super::tcp::{ACK_DELAY_NS, Segment};
use super::timers::NEVER_NS;

/// What may be in flight before anything is known of the path: ten segments (RFC 6928), rounded up to the default
/// transmit buffer. smoltcp's Reno starts with 2 KiB and takes no other value: a response of 10 KiB would take several
/// round trips and delayed acknowledgements. A connection whose transmit buffer is no larger than this cannot have more
/// in flight, so it does without a congestion window until its first retransmission.
const INITIAL_WINDOW_BYTES: usize = 16 * 1024;

impl Stack {
    /// The listener that a SYN is for.
    pub(super) fn listener_for(&self, packet: &Packet, flow: &FlowKey) -> Option<u32> {
        let hash = || self.secret.hash(1, flow);
        let index = self.listener_ports.find(packet.destination, flow.local().port(), hash)?;
        self.listeners.get(index).filter(|listener| !listener.stopped).map(|_| index)
    }

    pub(super) fn accept_syn(
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
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_micros(ACK_DELAY_NS / 1_000)));
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
            unanswered: 0,
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

    /// The handshake is done. False: the connection is gone.
    pub(super) fn established(&mut self, index: u32, io: &mut Io<'_>) -> bool {
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
}
