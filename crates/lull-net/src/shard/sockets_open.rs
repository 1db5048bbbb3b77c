//! The application's calls that make TCP sockets: listen, accept, connect.

use std::net::{IpAddr, SocketAddr};

use super::config::BUFFER_BYTES_RANGE;
use super::connection::{Flags, Phase};
use super::error::NetError;
use super::flow::FlowKey;
use super::grow::UNSCALED_BYTES_MAX;
use super::half_open::HalfOpen;
use super::hand_on::Unaccepted;
use super::listener::{Binding, Listener, Sharing, Waiting};
use super::opening::one_socket;
use super::paws::Timestamps;
use super::socket::{ConnectOptions, ListenOptions, Ready, SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::wire;

impl Stack {
    /// Listens on `local`; an unspecified address stands for every own address (of both families for `[::]`, unless
    /// `v6_only`). To have one listener on several shards, listen on each of their stacks.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: port 0, or a buffer size out of [`BUFFER_BYTES_RANGE`].
    /// [`NetError::AddressNotAvailable`]: not an own address. [`NetError::AddressInUse`].
    pub fn tcp_listen(&mut self, local: SocketAddr, options: ListenOptions) -> Result<SocketId, NetError> {
        self.check_up()?;
        check_buffers(options.rx_buffer_bytes, options.tx_buffer_bytes)?;
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
            cookies_until_ns: 0,
            ready: Ready::empty(),
            taken: 0,
            stopped: false,
        });
        let sharing = Sharing { spread: options.reuse_port, last: false };
        let binding = Binding { index, ip: local.ip(), sharing, v6_only: options.v6_only, connected: false };
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
        self.tcp_accept_for_another(listener).map(|(id, peer, _)| (id, peer))
    }

    /// As [`Stack::tcp_accept`], with what lets the connection be left again ([`Stack::tcp_leave`]).
    ///
    /// # Errors
    /// As there.
    pub fn tcp_accept_for_another(
        &mut self,
        listener: SocketId,
    ) -> Result<(SocketId, SocketAddr, Unaccepted), NetError> {
        let parent = self.listener_mut(listener)?;
        let stopped = parent.stopped;
        let Some(Waiting { index, handshake }) = parent.accepted.pop_front() else {
            return Err(if stopped { NetError::Invalid } else { NetError::WouldBlock });
        };
        parent.taken += 1;
        if parent.accepted.is_empty() && !stopped {
            parent.ready = Ready::empty();
        }
        let connection = self.connections.get_mut(index).expect("a queued connection is kept until it is taken");
        connection.flags.remove(Flags::QUEUED);
        connection.flags.insert(Flags::HELD);
        connection.ready = connection.readiness();
        let peer = connection.flow.remote();
        self.counters.tcp_accepted += 1;
        Ok((self.connection_id(index), peer, Unaccepted(handshake)))
    }

    /// How many connections of a listener were accepted so far, and how many wait.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: it is no listener, or closed.
    pub fn tcp_arrivals(&mut self, listener: SocketId) -> Result<(u64, usize), NetError> {
        self.listener_mut(listener).map(|listener| (listener.taken, listener.accepted.len()))
    }

    /// Opens a connection. The outcome is an edge: `WRITABLE`, or `ERR` with the reason in [`Stack::take_error`].
    ///
    /// # Errors
    /// [`NetError::Invalid`]: remote port 0, families that differ, or a buffer size out of range.
    /// [`NetError::NetworkUnreachable`]: no route, or the address is a group's. [`NetError::ConnectionRefused`]: it is the
    /// socket's own address and port.
    /// [`NetError::AddressNotAvailable`]: `local` is not an own address, or no ephemeral port is free.
    /// [`NetError::AddressInUse`]: the 4-tuple is taken. [`NetError::NoBuffers`]: the table is full.
    pub fn tcp_connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: ConnectOptions,
        io: &mut Io<'_>,
    ) -> Result<SocketId, NetError> {
        self.check_up()?;
        check_buffers(options.rx_buffer_bytes, options.tx_buffer_bytes)?;
        if self.connections.len() >= self.config.connections_max {
            return Err(NetError::NoBuffers);
        }
        let local = self.local_for(wire::PROTOCOL_TCP, local, remote)?;
        let flow = FlowKey::new(wire::PROTOCOL_TCP, local.ip(), local.port(), remote.ip(), remote.port());
        if self.flows.contains_key(&flow) {
            return Err(NetError::AddressInUse);
        }
        let (isn, offset) = (self.secret.isn(&flow, io.now_ns), self.secret.timestamp_offset(&flow));
        // Until the last segment of the handshake has left, smoltcp treats the window of its SYN, which is not scaled,
        // as if it were: with a larger buffer it would take what that has no room for.
        let rx_bytes = if options.rx_buffer_bytes == 0 { self.config.rx_buffer_bytes } else { options.rx_buffer_bytes };
        let rx_bytes_first = rx_bytes.min(UNSCALED_BYTES_MAX);
        let mut socket = self.new_socket(rx_bytes_first, options.tx_buffer_bytes, isn, io.now_ns);
        let buffers = socket.recv_capacity() + socket.send_capacity();
        if socket.connect(self.iface.own.context(), remote, local).is_err() {
            self.buffer_bytes -= buffers;
            return Err(NetError::Invalid);
        }
        let until_ns = io.now_ns + self.config.timeouts.syn_sent_ns;
        let offered_scale = self.offered_scale(options.rx_buffer_bytes);
        let index = self.insert_connection(flow, one_socket(socket), Phase::SynSent, io.now_ns);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.insert(Flags::HELD);
            connection.flags.set(Flags::NODELAY, options.nodelay);
            if options.only_to_reset {
                connection.asked_mut().only_to_reset = true;
            }
            connection.expires(until_ns);
            connection.fix_buffers(options.rx_buffer_bytes != 0, options.tx_buffer_bytes != 0);
            if rx_bytes != rx_bytes_first {
                connection.asked_mut().growth.rx_bytes = rx_bytes;
            }
            // Until the peer has said whether it scales windows this is what our SYN offers.
            connection.set_scales(offered_scale, Some(0));
            // The SYN's value is the first of those that grow from now on; the peer's answer completes it.
            connection.timestamps = self.config.timestamps.then(|| Timestamps::new(offset, 0, io.now_ns));
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
        if remote.port() == 0 && protocol == wire::PROTOCOL_TCP {
            // Nobody listens there.
            return Err(NetError::ConnectionRefused);
        }
        let mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if ip.is_unspecified() || ip.is_multicast() || mapped || self.is_broadcast(ip) {
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
            // A connection to itself would open from both ends at once, which the state machine of ours does not do.
            port if protocol == wire::PROTOCOL_TCP && SocketAddr::new(source, port) == remote => {
                Err(NetError::ConnectionRefused)
            }
            port => Ok(SocketAddr::new(source, port)),
        }
    }

    /// A free port for a flow (RFC 6056 algorithm 3: a secret offset for each destination, and a counter).
    pub(super) fn ephemeral_port(&mut self, protocol: u8, source: IpAddr, remote: SocketAddr) -> Result<u16, NetError> {
        let (first, last) = (*self.config.ephemeral_ports.start(), *self.config.ephemeral_ports.end());
        let count = u64::from(last - first) + 1;
        let offset = self.secret.hash(2, &(remote, source));
        for _ in 0..count {
            self.ports_tried = self.ports_tried.wrapping_add(1);
            let port = first + (offset.wrapping_add(u64::from(self.ports_tried)) % count) as u16;
            let local = SocketAddr::new(source, port);
            let flow = FlowKey::new(protocol, source, port, remote.ip(), remote.port());
            let steered = self.steers(local, remote);
            let bound = if protocol == wire::PROTOCOL_TCP { &self.listener_ports } else { &self.udp_ports };
            if steered && local != remote && bound.is_free(port) && !self.flows.contains_key(&flow) {
                return Ok(port);
            }
        }
        Err(NetError::AddressNotAvailable)
    }

    /// Whether connections from `local` to `remote` come to this shard's queue.
    pub(crate) fn steers(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.config.steering.as_ref().is_none_or(|steering| steering(self.completed(local, remote), remote))
    }

    /// Whether a connection has this 4-tuple, one in TIME-WAIT among them.
    pub(crate) fn has_connection_between(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let (own, port) = (self.completed(local, remote).ip(), local.port());
        self.flows.contains_key(&FlowKey::new(wire::PROTOCOL_TCP, own, port, remote.ip(), remote.port()))
    }

    /// An unspecified address stands for the one that packets to `remote` come from.
    fn completed(&self, local: SocketAddr, remote: SocketAddr) -> SocketAddr {
        let own = Some(local.ip()).filter(|ip| !ip.is_unspecified()).or_else(|| self.source_for(remote.ip()));
        SocketAddr::new(own.unwrap_or(local.ip()), local.port())
    }

    /// Whether a TCP flow has this port of its own, one in TIME-WAIT among them.
    pub fn has_connections_from(&self, port: u16) -> bool {
        self.flows.keys().any(|flow| flow.local_port() == port && flow.protocol() == wire::PROTOCOL_TCP)
    }

    /// Closes a listener.
    pub(super) fn close_listener(&mut self, id: SocketId, io: &mut Io<'_>) {
        let Some(listener) = self.listeners.get_mut(id.index()) else { return };
        let (port, accepted) = (listener.local.port(), std::mem::take(&mut listener.accepted));
        self.forget_half_open(id);
        self.listeners.remove(id.index());
        self.listener_ports.unbind(port, id.index());
        accepted.into_iter().for_each(|waiting| self.leave(waiting, io));
    }

    /// A listener is shut down (`inet_csk_listen_stop`): connections that nobody accepted are left to whoever listens
    /// now, and half-open ones are forgotten.
    pub(super) fn leave_children(&mut self, id: SocketId, io: &mut Io<'_>) {
        let Some(listener) = self.listeners.get_mut(id.index()) else { return };
        let accepted = std::mem::take(&mut listener.accepted);
        self.forget_half_open(id);
        accepted.into_iter().for_each(|waiting| self.leave_at_once(waiting, io));
    }

    fn forget_half_open(&mut self, id: SocketId) {
        // This is linear in the shard's half-open connections, but a listener is closed only once.
        let is_child =
            |(child, request): (u32, &HalfOpen)| (request.listener == (id.index(), id.generation())).then_some(child);
        let half_open: Vec<u32> = self.half_opens.records.iter().filter_map(is_child).collect();
        half_open.into_iter().for_each(|child| self.free_half_open(child));
    }
}

fn check_buffers(rx: usize, tx: usize) -> Result<(), NetError> {
    let fits = |bytes: usize| bytes == 0 || BUFFER_BYTES_RANGE.contains(&bytes);
    if fits(rx) && fits(tx) { Ok(()) } else { Err(NetError::Invalid) }
}
