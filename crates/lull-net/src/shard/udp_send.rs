//! Sending datagrams.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use lull_nic::frame::Sender;
use lull_nic::{Checksum, Frame, Segmentation};

use super::error::NetError;
use super::fragment::{self, PathMtuDiscovery};
use super::socket::{Ready, SendOptions, SocketId};
use super::stack::{Io, Stack};
use super::wire::{self, IpFields, put16};

/// Datagrams of one call, at most (`UDP_MAX_SEGMENTS`).
const DATAGRAMS_MAX: usize = 128;

/// Where a packet comes from and goes to.
struct Names {
    source: SocketAddr,
    to: SocketAddr,
}

impl Stack {
    /// Sends a datagram to the socket's peer.
    ///
    /// # Errors
    /// [`NetError::DestinationRequired`]: it has none. Otherwise those of [`Stack::udp_send_to`].
    pub fn udp_send(&mut self, id: SocketId, data: &[u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let to = self.udp(id)?.peer.ok_or(NetError::DestinationRequired)?;
        self.udp_send_with(id, &[IoSlice::new(data)], Some(to), SendOptions::default(), io)
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// Those of [`Stack::udp_send_with`].
    pub fn udp_send_to(
        &mut self,
        id: SocketId,
        data: &[u8],
        to: SocketAddr,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        self.udp_send_with(id, &[IoSlice::new(data)], Some(to), SendOptions::default(), io)
    }

    /// Sends a datagram that is gathered from several buffers, to `to` or to the socket's peer, as `options` say. Of several at once,
    /// those that the ring has no room for wait, and block the socket.
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: the transmit ring is full; `WRITABLE` follows.
    /// [`NetError::AddressNotAvailable`]: [`SendOptions::from`] is no own address.
    /// [`NetError::MessageTooLong`]: it exceeds 64 KB, or the MTU where the socket does not let it leave in fragments
    /// ([`Stack::udp_set_path_mtu_discovery`]). [`NetError::NetworkUnreachable`]: no route.
    /// [`NetError::BrokenPipe`]: writing is shut down. [`NetError::Invalid`]: port 0, or a family that the socket
    /// cannot send to, or more than [`DATAGRAMS_MAX`] at once. Otherwise an earlier datagram's error, once
    /// ([`NetError::ConnectionRefused`]).
    pub fn udp_send_with(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        options: SendOptions,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let SendOptions { from, each_bytes, ip } = options;
        let socket = self.udp(id)?;
        let has_no_port = to.is_some_and(|to| to.port() == 0);
        let to = to.or(socket.peer).ok_or(NetError::DestinationRequired)?;
        let (local, waits) = (socket.local, !socket.unsent.is_empty());
        let length: usize = data.iter().map(|part| part.len()).sum();
        let each_bytes = self.check_length(length, each_bytes.into(), to)?;
        let discovery = socket.discovery(to.ip());
        let fields = socket.ip_fields(to.ip(), ip);
        let unfit = to.is_ipv6() && local.is_ipv4() || to.is_ipv4() && local.is_ipv6() && !local.ip().is_unspecified();
        if has_no_port || to.ip().is_unspecified() || unfit {
            return Err(NetError::Invalid);
        }
        let source = match from {
            Some(from) if !self.is_local(from) => return Err(NetError::AddressNotAvailable),
            Some(from) if from.is_ipv4() != to.is_ipv4() => return Err(NetError::Invalid),
            Some(from) => from,
            None if !local.ip().is_unspecified() => local.ip(),
            None => self.source_for(to.ip()).ok_or(NetError::NetworkUnreachable)?,
        };
        let everyone = to.ip().is_multicast() || self.is_broadcast(to.ip());
        if !everyone && self.route(to.ip()).is_none() {
            return Err(NetError::NetworkUnreachable);
        }
        let mtu = self.datagram_mtu(to.ip(), discovery.heeds_routers(), io.now_ns);
        if !discovery.cuts() && wire::ip_header(to.ip()) + wire::UDP + each_bytes > mtu {
            return Err(NetError::MessageTooLong);
        }
        // As in `sock_alloc_send_pskb`, where the datagram is known to have somewhere to go.
        let socket = self.udp_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.write_shut {
            return Err(NetError::BrokenPipe);
        }
        let sender = self.udp_sender(id);
        let loops = self.is_local(to.ip());
        if waits || io.tx.room_for(sender) == 0 && !loops {
            self.udp_block(id);
            return Err(NetError::WouldBlock);
        }
        // What does not leave the station need not be cut: a socket that takes several as one gets it whole.
        let at_once = if loops { length.max(1) } else { each_bytes };
        let names = Names { source: SocketAddr::new(source, local.port()), to };
        // An empty one is a datagram, too.
        for begin in (0..length.max(1)).step_by(at_once) {
            let end = length.min(begin + at_once);
            let is_cut = wire::ip_header(to.ip()) + wire::UDP + (end - begin) > mtu;
            let mut frame = self.udp_frame(&names, data, begin..end, is_cut, io);
            if fields != IpFields::default() {
                wire::put_ip_fields(frame.data_mut(), fields);
            }
            if end - begin > each_bytes {
                frame.set_segmentation(Segmentation::Udp { datagram_bytes: each_bytes as u16 });
            }
            frame.set_sender(sender);
            if is_cut {
                self.udp_emit_in_parts(id, frame, &names, mtu, io);
                continue;
            }
            if discovery.lets_routers_cut() && to.is_ipv4() {
                let identification = self.identifications.next(source, to.ip());
                wire::set_fragment_v4(frame.data_mut(), identification as u16, 0);
            }
            self.udp_emit(id, frame, to.ip(), io);
        }
        self.hold_doorbell_back(length, io);
        Ok(length)
    }

    /// Sends a packet that is longer than `mtu`.
    fn udp_emit_in_parts(&mut self, id: SocketId, frame: Frame, names: &Names, mtu: usize, io: &mut Io<'_>) {
        let to = names.to.ip();
        let identification = self.identifications.next(names.source.ip(), to);
        for part in fragment::cut(&frame, mtu, identification, io.pool) {
            self.udp_emit(id, part, to, io);
        }
        io.pool.recycle(frame);
    }

    /// The MTU of the path to the peer (IP_MTU), as far as routers have told of it.
    ///
    /// # Errors
    /// [`NetError::NotConnected`]: the socket has no peer. [`NetError::InvalidSocket`].
    pub fn udp_path_mtu(&self, id: SocketId, now_ns: u64) -> Result<usize, NetError> {
        let peer = self.udp(id)?.peer.ok_or(NetError::NotConnected)?;
        Ok(self.datagram_mtu(peer.ip(), true, now_ns))
    }

    /// Sets how the socket heeds the path's MTU, over IPv4 or over IPv6 (IP_MTU_DISCOVER, IPV6_MTU_DISCOVER).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_set_path_mtu_discovery(
        &mut self,
        id: SocketId,
        is_v6: bool,
        how: PathMtuDiscovery,
    ) -> Result<(), NetError> {
        self.udp_mut(id)?.discovery[usize::from(is_v6)] = how;
        Ok(())
    }

    /// How long each datagram is, if they may be sent (`udp_send_skb`).
    fn check_length(&self, length: usize, each_bytes: usize, to: SocketAddr) -> Result<usize, NetError> {
        // IPv4's total length counts its own header.
        let counted = if to.is_ipv4() { wire::IPV4 } else { 0 };
        let each = if each_bytes == 0 { length } else { length.min(each_bytes) };
        let fits = each_bytes == 0 || wire::ip_header(to.ip()) + wire::UDP + each <= self.config.mtu_bytes;
        if counted + wire::UDP + length > usize::from(u16::MAX) || !fits {
            return Err(NetError::MessageTooLong);
        }
        if each_bytes != 0 && length > each_bytes * DATAGRAMS_MAX {
            return Err(NetError::Invalid);
        }
        Ok(each.max(1))
    }

    fn udp_sender(&self, id: SocketId) -> Sender {
        self.udps.get(id.index()).map_or_else(Sender::default, |socket| socket.sender(id.index(), id.generation()))
    }

    fn udp_block(&mut self, id: SocketId) {
        if let Some(socket) = self.udps.get_mut(id.index())
            && !socket.blocked
        {
            socket.blocked = true;
            self.blocked.push_back(id);
        }
    }

    /// Makes a packet with a part of the data. If the packet is to be cut into fragments, its checksum has to be
    /// complete, since it covers all of them.
    fn udp_frame(
        &self,
        names: &Names,
        data: &[IoSlice<'_>],
        part: Range<usize>,
        is_cut: bool,
        io: &mut Io<'_>,
    ) -> Frame {
        let Names { source, to } = *names;
        let total = wire::UDP + part.len();
        let hop_limit = if to.ip().is_multicast() { 1 } else { wire::HOP_LIMIT };
        let mut frame = wire::ip_frame(io.pool, source.ip(), to.ip(), wire::PROTOCOL_UDP, hop_limit, total);
        let header = frame.len() - total;
        let udp = &mut frame.data_mut()[header..];
        put16(udp, 0, source.port());
        put16(udp, 2, to.port());
        put16(udp, 4, total as u16);
        gather(data, part.start, &mut udp[wire::UDP..]);
        let pseudo = wire::pseudo_sum(source.ip(), to.ip(), wire::PROTOCOL_UDP, total);
        if self.config.tx_checksum_offload && !is_cut {
            udp[6..8].copy_from_slice(&wire::fold(pseudo).to_ne_bytes());
            frame.set_checksum(Checksum::Partial);
        } else {
            wire::put_checksum(udp, 6, pseudo);
            if udp[6..8] == [0, 0] {
                // 0 says that there is none (RFC 768).
                udp[6..8].fill(0xff);
            }
        }
        frame
    }

    /// Sends a packet of a socket, or keeps it until there is room.
    fn udp_emit(&mut self, id: SocketId, frame: Frame, to: IpAddr, io: &mut Io<'_>) {
        let is_full = io.tx.room_for(self.udp_sender(id)) == 0 && !self.is_local(to);
        match self.udps.get_mut(id.index()) {
            Some(socket) if is_full || !socket.unsent.is_empty() => {
                socket.unsent.push_back((frame, to));
                self.udp_block(id);
            }
            _ => self.send_ip(frame, to, io),
        }
    }

    /// There is room: what waits leaves first, and then whoever wants to write is told.
    pub(super) fn udp_unblocked(&mut self, id: SocketId, io: &mut Io<'_>) {
        let Ok(socket) = self.udp_mut(id) else { return };
        socket.blocked = false;
        for (frame, to) in std::mem::take(&mut socket.unsent) {
            self.udp_emit(id, frame, to, io);
        }
        // There may be none below the socket's own limit yet.
        if io.tx.room_for(self.udp_sender(id)) == 0 {
            self.udp_block(id);
        }
        if let Ok(socket) = self.udp(id)
            && !socket.blocked
        {
            self.notify(id, socket.ready(), Ready::WRITABLE, io);
        }
    }
}

/// Copies what the buffers hold from `skipped` on.
fn gather(data: &[IoSlice<'_>], mut skipped: usize, mut out: &mut [u8]) {
    for part in data {
        let begin = skipped.min(part.len());
        skipped -= begin;
        let count = out.len().min(part.len() - begin);
        let (now, rest) = out.split_at_mut(count);
        now.copy_from_slice(&part[begin..begin + count]);
        out = rest;
    }
}
