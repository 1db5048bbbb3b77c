//! UDP, without smoltcp: a datagram stays in the frame that it came in until it is read.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lull_nic::Frame;

use super::demux::{CHECKSUM, Cast, MALFORMED, Packet, Reason};
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::listener::{Binding, Sharing};
use super::socket::{Egress, Ready, Received, Shutdown, SocketId, SocketKind, UdpOptions};
use super::stack::{Io, Stack};
use super::udp_socket::{Datagram, UdpSocket};
use super::wire::{self, be16};

impl Stack {
    /// Opens a UDP socket on `local`. An unspecified address stands for every own address (of both families for
    /// `[::]`, unless `v6_only`); port 0 for a free one.
    ///
    /// # Errors
    /// [`NetError::AddressNotAvailable`]: not an own address, or no free port. [`NetError::AddressInUse`].
    pub fn udp_bind(&mut self, local: SocketAddr, options: UdpOptions) -> Result<SocketId, NetError> {
        self.check_up()?;
        self.check_bindable(local)?;
        let port = match local.port() {
            0 => self.free_udp_port()?,
            port => port,
        };
        let local = SocketAddr::new(local.ip(), port);
        let index = self.udps.insert(UdpSocket {
            bound: local,
            local,
            peer: None,
            datagrams: VecDeque::new(),
            held_bytes: 0,
            held_bytes_max: if options.rx_bytes == 0 { self.config.udp_rx_bytes } else { options.rx_bytes },
            error: None,
            errors: None,
            read_shut: false,
            write_shut: false,
            blocked: false,
            joins: false,
            unsent: VecDeque::new(),
            egress: Egress::default(),
            discovery: Default::default(),
        });
        if let Err(error) = self.udp_ports.bind(port, binding(index, local, options)) {
            self.udps.remove(index);
            return Err(error);
        }
        Ok(self.udp_id(index))
    }

    /// Takes the socket's port away, and its peer: nothing comes to it any more, and what came stays (`__udp_disconnect` of one whose
    /// port nobody asked for).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_lose_port(&mut self, id: SocketId) -> Result<(), NetError> {
        self.udp(id)?;
        self.udp_disconnect(id.index());
        let socket = self.udp_mut(id)?;
        let port = socket.bound.port();
        socket.bound.set_port(0);
        socket.local = socket.bound;
        self.udp_ports.unbind(port, id.index());
        Ok(())
    }

    /// Binds a socket that has lost its port to another one, at whatever address, with the options that it has by now.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: it has a port. [`NetError::AddressInUse`], [`NetError::AddressNotAvailable`].
    pub fn udp_bind_again(&mut self, id: SocketId, local: SocketAddr, options: UdpOptions) -> Result<(), NetError> {
        if self.udp(id)?.bound.port() != 0 || local.port() == 0 {
            return Err(NetError::Invalid);
        }
        self.check_bindable(local)?;
        self.udp_ports.bind(local.port(), binding(id.index(), local, options))?;
        let socket = self.udp_mut(id)?;
        (socket.bound, socket.local) = (local, local);
        Ok(())
    }

    fn check_bindable(&self, local: SocketAddr) -> Result<(), NetError> {
        if local.ip().is_unspecified() || self.is_local(local.ip()) {
            Ok(())
        } else {
            Err(NetError::AddressNotAvailable)
        }
    }

    /// A port that no UDP socket of this shard has, another one each time.
    pub(crate) fn free_udp_port(&mut self) -> Result<u16, NetError> {
        let (first, last) = (*self.config.ephemeral_ports.start(), *self.config.ephemeral_ports.end());
        let count = u32::from(last - first) + 1;
        for _ in 0..count {
            self.ports_tried = self.ports_tried.wrapping_add(1);
            let port = first + (self.ports_tried % count) as u16;
            if self.udp_ports.is_free(port) {
                return Ok(port);
            }
        }
        Err(NetError::AddressNotAvailable)
    }

    /// Whether a UDP socket has this port, at whatever address.
    pub(crate) fn has_udp_port(&self, port: u16) -> bool {
        !self.udp_ports.is_free(port)
    }

    fn udp_id(&self, index: u32) -> SocketId {
        SocketId::new(SocketKind::Udp, index, self.udps.generation(index))
    }

    /// What a socket may hold unread from now on, in bytes of frame buffers (SO_RCVBUF). What it holds stays.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_set_receive_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), NetError> {
        self.udp_mut(id)?.held_bytes_max = bytes;
        Ok(())
    }

    /// Gives the socket a peer: it receives from there only, and [`Stack::udp_send`] sends there. Its own address
    /// becomes the one that packets to the peer come from. `None` takes the peer away.
    ///
    /// # Errors
    /// Those of [`Stack::tcp_connect`] that concern addresses.
    pub fn udp_connect(&mut self, id: SocketId, peer: Option<SocketAddr>) -> Result<(), NetError> {
        // A new peer may take another own address, unless one was bound.
        let bound = self.udp(id)?.bound;
        let Some(peer) = peer else {
            self.udp_disconnect(id.index());
            return Ok(());
        };
        let own = self.local_for(wire::PROTOCOL_UDP, Some(bound), peer)?;
        let flow = FlowKey::new(wire::PROTOCOL_UDP, own.ip(), own.port(), peer.ip(), peer.port());
        match self.flows.get(&flow) {
            Some(&Owner::Udp(index)) if index == id.index() => return Ok(()),
            Some(_) => return Err(NetError::AddressInUse),
            None => {}
        }
        self.udp_disconnect(id.index());
        let socket = self.udp_mut(id)?;
        socket.local = own;
        socket.peer = Some(peer);
        self.flows.insert(flow, Owner::Udp(id.index()));
        // It keeps its port, but what comes from others goes to the port's other sockets.
        self.udp_ports.set_connected(own.port(), id.index(), true);
        Ok(())
    }

    fn udp_disconnect(&mut self, index: u32) {
        let Some(socket) = self.udps.get_mut(index) else { return };
        let flow = socket.flow();
        (socket.peer, socket.local) = (None, socket.bound);
        let port = socket.local.port();
        if let Some(flow) = flow
            && self.flows.get(&flow) == Some(&Owner::Udp(index))
        {
            self.flows.remove(&flow);
            self.udp_ports.set_connected(port, index, false);
        }
    }

    /// Takes the oldest datagram; what exceeds `buffer` is lost.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: none there. Otherwise an earlier datagram's error, once.
    pub fn udp_recv_from(&mut self, id: SocketId, buffer: &mut [u8], io: &mut Io<'_>) -> Result<Received, NetError> {
        self.udp_recv_vectored(id, &mut [std::io::IoSliceMut::new(buffer)], false, io)
    }

    /// Takes the oldest datagram into several buffers in turn; `peek` leaves it where it is. After reading is shut
    /// down and the last datagram taken, [`Received::is_end`] says so, until another one comes.
    ///
    /// # Errors
    /// Those of [`Stack::udp_recv_from`].
    pub fn udp_recv_vectored(
        &mut self,
        id: SocketId,
        buffers: &mut [std::io::IoSliceMut<'_>],
        peek: bool,
        io: &mut Io<'_>,
    ) -> Result<Received, NetError> {
        let socket = self.udp_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let Some(datagram) = socket.datagrams.front() else {
            if socket.read_shut {
                let local = socket.local;
                let (from, to, own) = (local, local.ip(), local.ip());
                let (bytes, datagram_bytes, each_bytes, traffic_class, hop_limit) = (0, 0, None, 0, 0);
                let (waited_ns, is_end) = (0, true);
                return Ok(Received {
                    bytes,
                    datagram_bytes,
                    from,
                    to,
                    own,
                    each_bytes,
                    traffic_class,
                    hop_limit,
                    waited_ns,
                    is_end,
                });
            }
            return Err(NetError::WouldBlock);
        };
        let mut rest = datagram.frame.data();
        for buffer in buffers.iter_mut() {
            let count = buffer.len().min(rest.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
        }
        let datagram_bytes = datagram.frame.len();
        let to_several = datagram.to_several;
        let mut received = Received {
            bytes: datagram_bytes - rest.len(),
            datagram_bytes,
            from: datagram.from,
            to: datagram.to,
            own: datagram.to,
            each_bytes: datagram.each_bytes().filter(|_| socket.joins),
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            waited_ns: io.now_ns.saturating_sub(datagram.came_ns),
            is_end: false,
        };
        if !peek && let Some(datagram) = socket.datagrams.pop_front() {
            socket.held_bytes -= datagram.held_bytes();
            io.pool.recycle(datagram.frame);
        }
        if to_several {
            // `fib_compute_spec_dst`
            received.own = self.source_for(received.from.ip()).unwrap_or(received.to);
        }
        Ok(received)
    }

    /// Bytes of the oldest datagram, 0 if there is none (`FIONREAD`).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_unread(&self, id: SocketId) -> Result<usize, NetError> {
        Ok(self.udp(id)?.datagrams.front().map_or(0, |datagram| datagram.frame.len()))
    }

    /// A checked packet whose payload is a UDP datagram. The frame comes back if no socket takes it.
    pub(super) fn udp_input(&mut self, frame: Frame, packet: &Packet, io: &mut Io<'_>) -> Result<(), (Reason, Frame)> {
        let udp = &frame.data()[packet.l4..packet.end];
        let header = match check(udp, packet) {
            Ok(header) => header,
            Err(reason) => return Err((reason, frame)),
        };
        let (source_port, port, _) = header;
        if packet.cast != Cast::Unicast {
            return self.udp_input_for_several(frame, packet, header, io);
        }
        match self.udp_socket_for(&frame, packet, port, source_port) {
            Some(index) => self.udp_deliver(index, frame, packet, header, io),
            None => self.udp_for_nobody(frame, packet, io),
        }
    }

    /// Nobody here has the port of a datagram.
    fn udp_for_nobody(&mut self, frame: Frame, packet: &Packet, io: &mut Io<'_>) -> Result<(), (Reason, Frame)> {
        if self.is_elsewhere(None, &frame) {
            io.pool.recycle(frame);
            return Ok(());
        }
        self.send_port_unreachable(&frame, packet, io);
        Err((NO_SOCKET, frame))
    }

    /// A datagram to everybody, or to a group: every socket that could receive it gets it (`__udp4_lib_mcast_deliver`).
    #[cold]
    fn udp_input_for_several(
        &mut self,
        frame: Frame,
        packet: &Packet,
        header: Header,
        io: &mut Io<'_>,
    ) -> Result<(), (Reason, Frame)> {
        if packet.cast == Cast::Multicast && !is_everyones_group(packet.destination) {
            return Err(((|counters| &mut counters.drop_not_ours) as Reason, frame));
        }
        let sockets: Vec<u32> = self.udp_ports.all(packet.destination, header.1).collect();
        let Some((last, others)) = sockets.split_last() else { return self.udp_for_nobody(frame, packet, io) };
        for index in others {
            if let Err((reason, copy)) = self.udp_deliver(*index, frame.clone(), packet, header, io) {
                *reason(&mut self.counters) += 1;
                io.pool.recycle(copy);
            }
        }
        self.udp_deliver(*last, frame, packet, header, io)
    }

    /// Gives a datagram to a socket.
    #[inline]
    fn udp_deliver(
        &mut self,
        index: u32,
        mut frame: Frame,
        packet: &Packet,
        (source_port, _, length): Header,
        io: &mut Io<'_>,
    ) -> Result<(), (Reason, Frame)> {
        let Some(socket) = self.udps.get_mut(index) else { return Err((NO_SOCKET, frame)) };
        let (own, from) = (packet.destination, SocketAddr::new(packet.source, source_port));
        let to_several = packet.cast != Cast::Unicast;
        let (traffic_class, hop_limit) = wire::ip_fields(&frame.data()[packet.l3..]);
        frame.pull_front(packet.l4 + wire::UDP);
        frame.set_len(length - wire::UDP);
        let came_ns = io.now_ns;
        let datagram = Datagram { frame, from, to: own, to_several, traffic_class, hop_limit, came_ns };
        match datagram.each_bytes().filter(|_| !socket.joins) {
            None => {
                let datagram = datagram.into_kept(io.pool);
                socket.enqueue(datagram).map_err(|datagram| (SOCKET_FULL, datagram.frame))?;
            }
            Some(each_bytes) => {
                self.counters.drop_socket_full += socket.enqueue_cut(datagram, each_bytes.into(), io.pool);
            }
        }
        let ready = socket.ready();
        self.counters.udp_datagrams += 1;
        let id = self.udp_id(index);
        self.suggested(packet.source, packet.source_mac, io);
        self.notify(id, ready, Ready::READABLE, io);
        Ok(())
    }

    /// Gives the socket an error, as that of an earlier datagram.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_put_error(&mut self, id: SocketId, error: NetError, io: &mut Io<'_>) -> Result<(), NetError> {
        self.udp(id)?;
        self.udp_error(id.index(), error, io);
        Ok(())
    }

    pub(super) fn udp_error(&mut self, index: u32, error: NetError, io: &mut Io<'_>) {
        let id = self.udp_id(index);
        if let Some(socket) = self.udps.get_mut(index) {
            socket.error = Some(error);
            let ready = socket.ready();
            self.notify(id, ready, Ready::ERR, io);
        }
    }

    pub(super) fn udp_shutdown(&mut self, id: SocketId, how: Shutdown, io: &mut Io<'_>) -> Result<(), NetError> {
        let socket = self.udp_mut(id)?;
        // `inet_shutdown` returns this error for a socket without a peer, and shuts it down nevertheless.
        let result = if socket.peer.is_some() { Ok(()) } else { Err(NetError::NotConnected) };
        socket.read_shut |= how != Shutdown::Write;
        socket.write_shut |= how != Shutdown::Read;
        let ready = socket.ready();
        // Everything that is ready is an edge again, as with a connection (`inet_shutdown` calls sk_state_change,
        // whatever it has done).
        self.notify(id, ready, ready, io);
        result
    }

    pub(super) fn udp_close(&mut self, id: SocketId, io: &mut Io<'_>) -> Result<(), NetError> {
        self.udp(id)?;
        self.udp_disconnect(id.index());
        if let Some(socket) = self.udps.remove(id.index()) {
            self.udp_ports.unbind(socket.local.port(), id.index());
            self.udp_joiners -= u32::from(socket.joins);
            let unread = socket.datagrams.into_iter().map(|datagram| datagram.frame);
            unread.chain(socket.unsent.into_iter().map(|(frame, _)| frame)).for_each(|frame| io.pool.recycle(frame));
        }
        Ok(())
    }

    pub(super) fn udp_take_error(&mut self, id: SocketId) -> Result<Option<NetError>, NetError> {
        Ok(self.udp_mut(id)?.error.take())
    }

    pub(super) fn udp_local(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        Ok(self.udp(id)?.local)
    }

    pub(super) fn udp_peer(&self, id: SocketId) -> Result<SocketAddr, NetError> {
        self.udp(id)?.peer.ok_or(NetError::NotConnected)
    }

    pub(super) fn udp_ready(&self, id: SocketId) -> Result<Ready, NetError> {
        Ok(self.udp(id)?.ready())
    }

    pub(super) fn udp(&self, id: SocketId) -> Result<&UdpSocket, NetError> {
        if id.kind() != SocketKind::Udp || self.udps.generation(id.index()) != id.generation() {
            return Err(self.no_socket());
        }
        self.udps.get(id.index()).ok_or(NetError::InvalidSocket)
    }

    pub(super) fn udp_mut(&mut self, id: SocketId) -> Result<&mut UdpSocket, NetError> {
        if id.kind() != SocketKind::Udp || self.udps.generation(id.index()) != id.generation() {
            return Err(self.no_socket());
        }
        self.udps.get_mut(id.index()).ok_or(NetError::InvalidSocket)
    }
}

fn binding(index: u32, at: SocketAddr, options: UdpOptions) -> Binding {
    let sharing = Sharing { spread: options.reuse_port, last: options.reuse_address };
    Binding { index, ip: at.ip(), sharing, v6_only: options.v6_only, connected: false }
}

const SOCKET_FULL: Reason = |counters| &mut counters.drop_socket_full;
const NO_SOCKET: Reason = |counters| &mut counters.drop_no_socket;

/// Whether it is a group that every station is in. Nobody can join others (`ip_check_mc_rcu`).
fn is_everyones_group(ip: IpAddr) -> bool {
    const ALL_SYSTEMS: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
    const ALL_NODES: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    ip == ALL_SYSTEMS || ip == ALL_NODES
}

/// Source port, destination port and length of a datagram.
type Header = (u16, u16, usize);

/// Reads them, once they and the checksum are right.
fn check(udp: &[u8], packet: &Packet) -> Result<Header, Reason> {
    if udp.len() < wire::UDP {
        return Err(MALFORMED);
    }
    let length = usize::from(be16(udp, 4));
    if length < wire::UDP || length > udp.len() || be16(udp, 2) == 0 {
        return Err(MALFORMED);
    }
    let absent = be16(udp, 6) == 0;
    // IPv6 has no header checksum, so UDP must have one (RFC 8200 section 8.1).
    if absent && packet.source.is_ipv6() && !packet.trusted {
        return Err(CHECKSUM);
    }
    let pseudo = wire::pseudo_sum(packet.source, packet.destination, wire::PROTOCOL_UDP, length);
    if !absent && !packet.trusted && !wire::adds_up(pseudo, &udp[..length]) {
        return Err(CHECKSUM);
    }
    Ok((be16(udp, 0), be16(udp, 2), length))
}
