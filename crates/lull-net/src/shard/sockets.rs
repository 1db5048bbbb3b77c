//! The application's calls on TCP sockets, and those that every kind of socket has.

use std::net::{IpAddr, SocketAddr};

use smoltcp::socket::tcp::State;

use super::config::BUFFER_BYTES_RANGE;
use super::error::NetError;
use super::flow::FlowKey;
use super::listener::{Binding, Listener};
use super::socket::{ConnectOptions, Keepalive, ListenOptions, Ready, Shutdown, SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::connection::{Connection, Flags, Phase};
use super::wire;

impl Stack {
    /// Listens on `local`; an unspecified address stands for every own address (of both families for `[::]`, unless
    /// `v6_only`). To have one listener on several shards, listen on each of their stacks.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: port 0, or a buffer size out of [`BUFFER_BYTES_RANGE`].
    /// [`NetError::AddressNotAvailable`]: not an own address. [`NetError::AddressInUse`].
    pub fn tcp_listen(&mut self, local: SocketAddr, options: ListenOptions) -> Result<SocketId, NetError> {
        buffer_sizes(options.rx_buffer_bytes, options.tx_buffer_bytes)?;
        if local.port() == 0 {
            return Err(NetError::Invalid);
        }
        if !local.ip().is_unspecified() && !self.is_local(local.ip()) {
            return Err(NetError::AddressNotAvailable);
        }
        let index = self.listeners.insert(Listener {
            local,
            options,
            accepted: Default::default(),
            half_open: 0,
            ready: Ready::empty(),
            stopped: false,
        });
        let (reuse, v6_only) = (options.reuse_port, options.v6_only);
        let binding = Binding { index, ip: local.ip(), reuse, v6_only, connected: false };
        if let Err(error) = self.listener_ports.bind(local.port(), binding) {
            self.listeners.remove(index);
            return Err(error);
        }
        Ok(SocketId::new(SocketKind::Listener, index, self.listeners.generation(index)))
    }

    /// Takes the oldest established connection of a listener, with its peer's address. An IPv4 peer of a listener on
    /// `[::]` is given as IPv4.
    ///
    /// A connection that ended meanwhile is given too, as Linux does: its first read says how.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: none waits. [`NetError::Invalid`]: the listener was shut down.
    pub fn tcp_accept(&mut self, listener: SocketId) -> Result<(SocketId, SocketAddr), NetError> {
        let parent = self.listener_mut(listener)?;
        let stopped = parent.stopped;
        let Some(index) = parent.accepted.pop_front() else {
            return Err(if stopped { NetError::Invalid } else { NetError::WouldBlock });
        };
        if parent.accepted.is_empty() && !stopped {
            parent.ready = Ready::empty();
        }
        let connection = self.connections.get_mut(index).expect("a queued connection is kept until it is taken");
        connection.flags.remove(Flags::QUEUED);
        connection.flags.insert(Flags::HELD);
        connection.ready = connection.readiness();
        let peer = connection.flow.remote();
        self.counters.tcp_accepted += 1;
        Ok((self.connection_id(index), peer))
    }

    /// Opens a connection. The outcome is an edge: `WRITABLE`, or `ERR` with the reason in [`Stack::take_error`].
    ///
    /// # Errors
    /// [`NetError::Invalid`]: remote port 0, families that differ, or a buffer size out of range.
    /// [`NetError::NetworkUnreachable`]: no route, or the address is a group's or our own (there is no loopback).
    /// [`NetError::AddressNotAvailable`]: `local` is not an own address, or no ephemeral port is free.
    /// [`NetError::AddressInUse`]: the 4-tuple is taken. [`NetError::NoBuffers`]: the table is full.
    pub fn tcp_connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: ConnectOptions,
        io: &mut Io<'_>,
    ) -> Result<SocketId, NetError> {
        buffer_sizes(options.rx_buffer_bytes, options.tx_buffer_bytes)?;
        if self.connections.len() >= self.config.connections_max {
            return Err(NetError::NoBuffers);
        }
        let local = self.local_for(wire::PROTOCOL_TCP, local, remote)?;
        let flow = FlowKey::new(wire::PROTOCOL_TCP, local.ip(), local.port(), remote.ip(), remote.port());
        if self.flows.contains_key(&flow) {
            return Err(NetError::AddressInUse);
        }
        let mut socket = self.new_socket(options.rx_buffer_bytes, options.tx_buffer_bytes, &flow, io.now_ns);
        let buffers = socket.recv_capacity() + socket.send_capacity();
        if socket.connect(self.iface.context(), remote, local).is_err() {
            self.buffer_bytes -= buffers;
            return Err(NetError::Invalid);
        }
        let until_ns = io.now_ns + self.config.timeouts.syn_sent_ns;
        let index = self.insert_connection(flow, socket, Phase::SynSent, io.now_ns);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.insert(Flags::HELD);
            connection.flags.set(Flags::NODELAY, options.nodelay);
            connection.expires(until_ns);
        }
        let id = self.connection_id(index);
        self.pump(index, true, io);
        Ok(id)
    }

    /// The local end of a flow to `remote`: what is asked for, completed by a source address and an ephemeral port.
    pub(super) fn local_for(
        &mut self,
        protocol: u8,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<SocketAddr, NetError> {
        let ip = remote.ip();
        if remote.port() == 0 {
            return Err(NetError::Invalid);
        }
        let mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if ip.is_unspecified() || ip.is_multicast() || mapped || self.is_broadcast(ip) || self.is_local(ip) {
            return Err(NetError::NetworkUnreachable);
        }
        if self.route(ip).is_none() {
            return Err(NetError::NetworkUnreachable);
        }
        let wanted = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let source = match wanted {
            Some(own) if own.is_ipv4() != ip.is_ipv4() => return Err(NetError::Invalid),
            Some(own) if !self.is_local(own) => return Err(NetError::AddressNotAvailable),
            Some(own) => own,
            None => self.source_for(ip).ok_or(NetError::NetworkUnreachable)?,
        };
        match local.map_or(0, |local| local.port()) {
            0 => self.ephemeral_port(protocol, source, remote).map(|port| SocketAddr::new(source, port)),
            port => Ok(SocketAddr::new(source, port)),
        }
    }

    /// A free port for a flow (RFC 6056 algorithm 3: a secret offset for each destination, and a counter).
    fn ephemeral_port(&mut self, protocol: u8, source: IpAddr, remote: SocketAddr) -> Result<u16, NetError> {
        let (first, last) = (*self.config.ephemeral_ports.start(), *self.config.ephemeral_ports.end());
        let count = u64::from(last - first) + 1;
        let offset = self.secret.hash(2, &(remote, source));
        for _ in 0..count {
            self.ports_tried = self.ports_tried.wrapping_add(1);
            let port = first + (offset.wrapping_add(u64::from(self.ports_tried)) % count) as u16;
            let local = SocketAddr::new(source, port);
            let flow = FlowKey::new(protocol, source, port, remote.ip(), remote.port());
            let steered = self.config.steering.as_ref().is_none_or(|steering| steering(local, remote));
            let bound = if protocol == wire::PROTOCOL_TCP { &self.listener_ports } else { &self.udp_ports };
            if steered && bound.is_free(port) && !self.flows.contains_key(&flow) {
                return Ok(port);
            }
        }
        Err(NetError::AddressNotAvailable)
    }

    /// Reads. 0 means that the peer will send no more, or that `buffer` is empty.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: nothing there yet. Otherwise the connection's error, once.
    pub fn tcp_recv(&mut self, id: SocketId, buffer: &mut [u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        let taken = connection.take(buffer);
        self.after_recv(id, taken, buffer.is_empty(), io)
    }

    /// Reads into several buffers in turn (`readv`).
    ///
    /// # Errors
    /// Those of [`Stack::tcp_recv`].
    pub fn tcp_recv_vectored(
        &mut self,
        id: SocketId,
        buffers: &mut [std::io::IoSliceMut<'_>],
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        let mut taken = 0;
        for buffer in buffers.iter_mut() {
            let count = connection.take(buffer);
            taken += count;
            if count < buffer.len() {
                break;
            }
        }
        let no_room = buffers.iter().all(|buffer| buffer.is_empty());
        self.after_recv(id, taken, no_room, io)
    }

    fn after_recv(&mut self, id: SocketId, taken: usize, no_room: bool, io: &mut Io<'_>) -> Result<usize, NetError> {
        let index = id.index();
        let connection = self.connection_mut(id)?;
        if taken == 0 {
            if no_room {
                return Ok(0);
            }
            if let Some(error) = connection.error.take() {
                connection.ready.remove(Ready::ERR);
                return Err(error);
            }
            // `RDHUP` is exactly the end of the stream; before the handshake there is none.
            return if connection.readiness().contains(Ready::RDHUP) { Ok(0) } else { Err(NetError::WouldBlock) };
        }
        connection.consumed += taken;
        let socket = connection.socket();
        // The window is worth an update when it has opened by half the buffer or a full segment (RFC 9293 section
        // 3.8.6.2.2); until then smoltcp need not be asked.
        const SEGMENT_BYTES: usize = 1460;
        let worth = connection.consumed >= SEGMENT_BYTES.min(socket.recv_capacity() / 2);
        let drained = !socket.can_recv();
        if connection.phase == Phase::Open && worth {
            self.pump(index, false, io);
        }
        if drained {
            let connection = self.connection_mut(id)?;
            if !connection.ready.contains(Ready::RDHUP) {
                connection.ready.remove(Ready::READABLE);
            }
        }
        Ok(taken)
    }

    /// Reads without removing (`MSG_PEEK`).
    ///
    /// # Errors
    /// Those of [`Stack::tcp_recv`]; an error is taken too.
    pub fn tcp_peek(&mut self, id: SocketId, buffer: &mut [u8]) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        match connection.socket_mut().peek_slice(buffer) {
            Ok(count) if count > 0 || buffer.is_empty() => return Ok(count),
            _ => {}
        }
        if let Some(error) = connection.error.take() {
            connection.ready.remove(Ready::ERR);
            return Err(error);
        }
        if connection.readiness().contains(Ready::RDHUP) { Ok(0) } else { Err(NetError::WouldBlock) }
    }

    /// Bytes that a read would give now (`FIONREAD`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_unread(&self, id: SocketId) -> Result<usize, NetError> {
        Ok(self.connection(id)?.socket().recv_queue())
    }

    /// Writes; what fits the transmit buffer. One poll of the protocol sends it.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: the buffer is full, or the connection is not established yet.
    /// [`NetError::BrokenPipe`]: writing is shut down or the connection over. Otherwise the connection's error, once.
    pub fn tcp_send(&mut self, id: SocketId, data: &[u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let connection = self.may_send(id)?;
        let outstanding = connection.outstanding();
        let sent = connection.put(data);
        self.after_send(id, sent, outstanding, data.is_empty(), io)
    }

    /// Writes several buffers as if they were one (`writev`): they leave in the same segments.
    ///
    /// # Errors
    /// Those of [`Stack::tcp_send`].
    pub fn tcp_send_vectored(
        &mut self,
        id: SocketId,
        data: &[std::io::IoSlice<'_>],
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.may_send(id)?;
        let outstanding = connection.outstanding();
        let mut sent = 0;
        for part in data {
            let count = connection.put(part);
            sent += count;
            if count < part.len() {
                break;
            }
        }
        self.after_send(id, sent, outstanding, data.iter().all(|part| part.is_empty()), io)
    }

    #[inline]
    fn may_send(&mut self, id: SocketId) -> Result<&mut Connection, NetError> {
        let connection = self.connection_mut(id)?;
        if let Some(error) = connection.error.take() {
            connection.ready.remove(Ready::ERR);
            return Err(error);
        }
        match connection.phase {
            _ if connection.flags.contains(Flags::WRITE_SHUT) => Err(NetError::BrokenPipe),
            Phase::Over => Err(NetError::BrokenPipe),
            Phase::SynSent | Phase::SynReceived => Err(NetError::WouldBlock),
            Phase::Open => Ok(connection),
        }
    }

    #[inline]
    fn after_send(
        &mut self,
        id: SocketId,
        sent: usize,
        outstanding: bool,
        nothing: bool,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let connection = self.connection_mut(id)?;
        if sent == 0 {
            connection.ready = connection.readiness();
            return if nothing { Ok(0) } else { Err(NetError::WouldBlock) };
        }
        if !outstanding {
            connection.progress_ns = io.now_ns;
        }
        self.pump(id.index(), true, io);
        let connection = self.connection_mut(id)?;
        if connection.socket().send_queue() * 3 > connection.socket().send_capacity() * 2 {
            connection.ready.remove(Ready::WRITABLE);
        }
        Ok(sent)
    }

    /// Shuts down one or both directions. A listener that is shut down for reading takes no more connections.
    ///
    /// # Errors
    /// [`NetError::NotConnected`]: the connection is over or not established; or a UDP socket without a peer.
    pub fn shutdown(&mut self, id: SocketId, how: Shutdown, io: &mut Io<'_>) -> Result<(), NetError> {
        match id.kind() {
            SocketKind::Listener => {
                let listener = self.listener_mut(id)?;
                if how == Shutdown::Write {
                    return Ok(());
                }
                listener.stopped = true;
                let edges = (Ready::READABLE | Ready::HUP | Ready::RDHUP) - listener.ready;
                listener.ready |= edges;
                let ready = listener.ready;
                self.notify(id, ready, edges, io);
                Ok(())
            }
            SocketKind::Udp => self.udp_shutdown(id, how, io),
            SocketKind::Tcp => {
                let connection = self.connection_mut(id)?;
                if connection.phase != Phase::Open {
                    return Err(NetError::NotConnected);
                }
                if how != Shutdown::Write {
                    connection.flags.insert(Flags::READ_SHUT);
                }
                if how != Shutdown::Read && !connection.flags.contains(Flags::WRITE_SHUT) {
                    connection.flags.insert(Flags::WRITE_SHUT);
                    if !connection.outstanding() {
                        connection.progress_ns = io.now_ns;
                    }
                    connection.socket_mut().close();
                }
                self.settle(id.index(), None, false, io);
                Ok(())
            }
        }
    }

    /// Closes. The id is void afterwards; an open connection lives on until the protocol is done with it, unless there
    /// is unread data or it was told so ([`Stack::set_reset_on_close`]): then it is reset, as by `tcp_close`.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn close(&mut self, id: SocketId, io: &mut Io<'_>) -> Result<(), NetError> {
        let index = id.index();
        match id.kind() {
            SocketKind::Listener => {
                self.listener_mut(id)?;
                self.close_listener(id, io);
            }
            SocketKind::Udp => self.udp_close(id, io)?,
            SocketKind::Tcp => {
                let orphan_timeout_ns = self.config.timeouts.orphan_timeout_ns;
                let connection = self.connection_mut(id)?;
                let reset = connection.flags.contains(Flags::RESET_ON_CLOSE) || connection.socket().can_recv();
                match connection.phase {
                    Phase::Open if !reset => {
                        connection.flags.remove(Flags::HELD);
                        // Nobody can take the error, and nobody can set a timeout any more.
                        connection.user_timeout_ns = connection.user_timeout_ns.min(orphan_timeout_ns);
                        connection.keepalive = None;
                        if !connection.outstanding() {
                            connection.progress_ns = io.now_ns;
                        }
                        connection.socket_mut().close();
                        self.settle(index, None, false, io);
                    }
                    Phase::Open => {
                        self.send_reset(index, io);
                        self.free(index);
                    }
                    // Nothing to say to a peer that has not answered, or that is done.
                    Phase::SynSent | Phase::SynReceived | Phase::Over => self.free(index),
                }
            }
        }
        Ok(())
    }

    /// Closes a listener: what nobody accepted is reset, what is half open forgotten (`inet_csk_listen_stop`).
    fn close_listener(&mut self, id: SocketId, io: &mut Io<'_>) {
        let index = id.index();
        let Some(listener) = self.listeners.remove(index) else { return };
        self.listener_ports.unbind(listener.local.port(), index);
        for child in listener.accepted {
            if self.connections.get(child).is_some_and(|connection| connection.phase == Phase::Open) {
                self.send_reset(child, io);
            }
            self.free(child);
        }
        // Linear in the shard's connections; listeners are closed once.
        let half_open: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_child_of(index, id.generation()))
            .map(|(child, _)| child)
            .collect();
        for child in half_open {
            self.free(child);
        }
    }

    /// Turns Nagle's algorithm off or on (`TCP_NODELAY`). Off sends at once what it held back.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_nodelay(&mut self, id: SocketId, nodelay: bool, io: &mut Io<'_>) -> Result<(), NetError> {
        self.connection_mut(id)?.flags.set(Flags::NODELAY, nodelay);
        self.repump(id, io);
        Ok(())
    }

    /// Whether Nagle's algorithm is off.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn nodelay(&self, id: SocketId) -> Result<bool, NetError> {
        Ok(self.connection(id)?.flags.contains(Flags::NODELAY))
    }

    /// Probes the connection while it is idle (`SO_KEEPALIVE`), or not.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: a time or the count is 0.
    pub fn set_keepalive(
        &mut self,
        id: SocketId,
        keepalive: Option<Keepalive>,
        io: &mut Io<'_>,
    ) -> Result<(), NetError> {
        if keepalive.is_some_and(|k| k.idle_ns == 0 || k.interval_ns == 0 || k.probes == 0) {
            return Err(NetError::Invalid);
        }
        let connection = self.connection_mut(id)?;
        connection.keepalive = keepalive;
        connection.flags.remove(Flags::PROBING);
        connection.socket_mut().set_keep_alive(None);
        self.repump(id, io);
        Ok(())
    }

    /// Gives up when sent data stays unacknowledged for so long, in nanoseconds (`TCP_USER_TIMEOUT`), even if the peer
    /// is alive and only refuses to read. `None`: the stack's default, which a peer that answers puts off.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: 0.
    pub fn set_user_timeout(&mut self, id: SocketId, timeout_ns: Option<u64>, io: &mut Io<'_>) -> Result<(), NetError> {
        if timeout_ns == Some(0) {
            return Err(NetError::Invalid);
        }
        let default_ns = self.config.timeouts.user_timeout_ns;
        let connection = self.connection_mut(id)?;
        connection.flags.set(Flags::OWN_TIMEOUT, timeout_ns.is_some());
        connection.user_timeout_ns = timeout_ns.unwrap_or(default_ns);
        self.repump(id, io);
        Ok(())
    }

    /// Makes closing a reset (`SO_LINGER` on, with 0 seconds), or not.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_reset_on_close(&mut self, id: SocketId, reset: bool) -> Result<(), NetError> {
        self.connection_mut(id)?.flags.set(Flags::RESET_ON_CLOSE, reset);
        Ok(())
    }

    fn repump(&mut self, id: SocketId, io: &mut Io<'_>) {
        if self.connections.get(id.index()).is_some_and(|connection| connection.phase != Phase::Over) {
            self.pump(id.index(), false, io);
        }
    }

    /// Receive and transmit buffer of a connection, in bytes. They are chosen by [`ListenOptions`] and
    /// [`ConnectOptions`] and cannot change afterwards.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn buffer_sizes(&self, id: SocketId) -> Result<(usize, usize), NetError> {
        let socket = self.connection(id)?.socket();
        Ok((socket.recv_capacity(), socket.send_capacity()))
    }

    /// Takes the socket's error (`SO_ERROR`): the one that ended it, else one that only slowed it down.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<NetError>, NetError> {
        match id.kind() {
            SocketKind::Tcp => {
                let connection = self.connection_mut(id)?;
                connection.ready.remove(Ready::ERR);
                Ok(connection.error.take().or_else(|| connection.soft_error.take()))
            }
            SocketKind::Listener => self.listener_mut(id).map(|_| None),
            SocketKind::Udp => self.udp_take_error(id),
        }
    }

    /// The socket's own address. The IP address is unspecified for one that takes packets to any.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        match id.kind() {
            SocketKind::Tcp => Ok(self.connection(id)?.flow.local()),
            SocketKind::Listener => Ok(self.listener(id)?.local),
            SocketKind::Udp => self.udp_local(id),
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// [`NetError::NotConnected`]: there is none (any more).
    pub fn peer_addr(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        match id.kind() {
            SocketKind::Tcp => {
                let connection = self.connection(id)?;
                match connection.phase {
                    Phase::Open => Ok(connection.flow.remote()),
                    _ => Err(NetError::NotConnected),
                }
            }
            SocketKind::Listener => Err(NetError::NotConnected),
            SocketKind::Udp => self.udp_peer(id),
        }
    }

    /// What the socket is ready for now.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn ready(&self, id: SocketId) -> Result<Ready, NetError> {
        match id.kind() {
            SocketKind::Tcp => Ok(self.connection(id)?.readiness()),
            SocketKind::Listener => Ok(self.listener(id)?.ready),
            SocketKind::Udp => self.udp_ready(id),
        }
    }

    /// State of a connection by its RFC 9293 name, for tables and traces.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_state(&self, id: SocketId) -> Result<&'static str, NetError> {
        let connection = self.connection(id)?;
        Ok(match (connection.phase, connection.socket().state()) {
            (Phase::Over, _) => "CLOSED",
            (_, State::Closed) => "CLOSED",
            (_, State::Listen) => "LISTEN",
            (_, State::SynSent) => "SYN-SENT",
            (_, State::SynReceived) => "SYN-RECEIVED",
            (_, State::Established) => "ESTABLISHED",
            (_, State::FinWait1) => "FIN-WAIT-1",
            (_, State::FinWait2) => "FIN-WAIT-2",
            (_, State::CloseWait) => "CLOSE-WAIT",
            (_, State::Closing) => "CLOSING",
            (_, State::LastAck) => "LAST-ACK",
            (_, State::TimeWait) => "TIME-WAIT",
        })
    }

    #[inline]
    pub(super) fn connection_mut(&mut self, id: SocketId) -> Result<&mut Connection, NetError> {
        if id.kind() != SocketKind::Tcp || self.connections.generation(id.index()) != id.generation() {
            return Err(NetError::InvalidSocket);
        }
        self.connections
            .get_mut(id.index())
            .filter(|connection| connection.flags.contains(Flags::HELD))
            .ok_or(NetError::InvalidSocket)
    }

    fn connection(&self, id: SocketId) -> Result<&Connection, NetError> {
        if id.kind() != SocketKind::Tcp || self.connections.generation(id.index()) != id.generation() {
            return Err(NetError::InvalidSocket);
        }
        self.connections
            .get(id.index())
            .filter(|connection| connection.flags.contains(Flags::HELD))
            .ok_or(NetError::InvalidSocket)
    }

    fn listener_mut(&mut self, id: SocketId) -> Result<&mut Listener, NetError> {
        if id.kind() != SocketKind::Listener || self.listeners.generation(id.index()) != id.generation() {
            return Err(if id.kind() == SocketKind::Listener { NetError::InvalidSocket } else { NetError::Invalid });
        }
        self.listeners.get_mut(id.index()).ok_or(NetError::InvalidSocket)
    }

    fn listener(&self, id: SocketId) -> Result<&Listener, NetError> {
        if id.kind() != SocketKind::Listener || self.listeners.generation(id.index()) != id.generation() {
            return Err(NetError::InvalidSocket);
        }
        self.listeners.get(id.index()).ok_or(NetError::InvalidSocket)
    }
}

fn buffer_sizes(rx: usize, tx: usize) -> Result<(), NetError> {
    let fits = |bytes: usize| bytes == 0 || BUFFER_BYTES_RANGE.contains(&bytes);
    if fits(rx) && fits(tx) { Ok(()) } else { Err(NetError::Invalid) }
}

impl Connection {
    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let socket = self.socket_mut();
        // smoltcp refuses to read in some states even what it has; `can_recv` does not.
        if socket.can_recv() { socket.recv_slice(buffer).unwrap_or(0) } else { 0 }
    }

    #[inline]
    fn put(&mut self, data: &[u8]) -> usize {
        self.socket_mut().send_slice(data).unwrap_or(0)
    }
}
