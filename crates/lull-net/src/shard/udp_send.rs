//! Sending datagrams.

use std::net::{IpAddr, SocketAddr};

use lull_nic::Checksum;
use lull_nic::frame::Sender;

use super::error::NetError;
use super::socket::{Ready, SocketId};
use super::stack::{Io, Stack};
use super::wire::{self, put16};

impl Stack {
    /// Sends a datagram to the socket's peer.
    ///
    /// # Errors
    /// [`NetError::DestinationRequired`]: it has none. Otherwise those of [`Stack::udp_send_to`].
    pub fn udp_send(&mut self, id: SocketId, data: &[u8], io: &mut Io<'_>) -> Result<usize, NetError> {
        let to = self.udp(id)?.peer.ok_or(NetError::DestinationRequired)?;
        self.udp_send_vectored(id, &[std::io::IoSlice::new(data)], Some(to), None, io)
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// Those of [`Stack::udp_send_vectored`].
    pub fn udp_send_to(
        &mut self,
        id: SocketId,
        data: &[u8],
        to: SocketAddr,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        self.udp_send_vectored(id, &[std::io::IoSlice::new(data)], Some(to), None, io)
    }

    /// Sends one datagram that is gathered from several buffers, to `to` or to the socket's peer. `from` is the own address
    /// that it comes from, if the socket is bound to none (IP_PKTINFO).
    ///
    /// # Errors
    /// [`NetError::WouldBlock`]: the transmit ring is full; `WRITABLE` follows.
    /// [`NetError::AddressNotAvailable`]: `from` is no own address.
    /// [`NetError::MessageTooLong`]: it does not fit the MTU. [`NetError::NetworkUnreachable`]: no route.
    /// [`NetError::BrokenPipe`]: writing is shut down. [`NetError::Invalid`]: port 0, or a family that the socket
    /// cannot send to. Otherwise an earlier datagram's error, once ([`NetError::ConnectionRefused`]).
    pub fn udp_send_vectored(
        &mut self,
        id: SocketId,
        data: &[std::io::IoSlice<'_>],
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        io: &mut Io<'_>,
    ) -> Result<usize, NetError> {
        let (mtu_bytes, offload) = (self.config.mtu_bytes, self.config.tx_checksum_offload);
        let socket = self.udp_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.write_shut {
            return Err(NetError::BrokenPipe);
        }
        let to = to.or(socket.peer).ok_or(NetError::DestinationRequired)?;
        let local = socket.local;
        let length: usize = data.iter().map(|part| part.len()).sum();
        let header = if to.is_ipv4() { wire::IPV4 } else { wire::IPV6 };
        if header + wire::UDP + length > mtu_bytes {
            return Err(NetError::MessageTooLong);
        }
        let unfit = to.is_ipv6() && local.is_ipv4() || to.is_ipv4() && local.is_ipv6() && !local.ip().is_unspecified();
        if to.port() == 0 || to.ip().is_unspecified() || unfit {
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
        let sender = self.udps.get(id.index()).map_or_else(Sender::default, |socket| socket.sender(id.index()));
        if io.tx.room_for(sender) == 0 && !self.is_local(to.ip()) {
            if let Some(socket) = self.udps.get_mut(id.index())
                && !socket.blocked
            {
                socket.blocked = true;
                self.blocked.push_back(id);
            }
            return Err(NetError::WouldBlock);
        }
        let total = wire::UDP + length;
        let hop_limit = if to.ip().is_multicast() { 1 } else { wire::HOP_LIMIT };
        let mut frame = wire::ip_frame(io.pool, source, to.ip(), wire::PROTOCOL_UDP, hop_limit, total);
        let udp = &mut frame.data_mut()[header..];
        put16(udp, 0, local.port());
        put16(udp, 2, to.port());
        put16(udp, 4, total as u16);
        let mut at = wire::UDP;
        for part in data {
            udp[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let pseudo = wire::pseudo_sum(source, to.ip(), wire::PROTOCOL_UDP, total);
        if offload {
            udp[6..8].copy_from_slice(&wire::fold(pseudo).to_ne_bytes());
            frame.set_checksum(Checksum::Partial);
        } else {
            wire::put_checksum(udp, 6, pseudo);
            if udp[6..8] == [0, 0] {
                // 0 says that there is none (RFC 768).
                udp[6..8].fill(0xff);
            }
        }
        frame.set_sender(sender);
        self.send_ip(frame, to.ip(), io);
        Ok(length)
    }

    pub(super) fn udp_unblocked(&mut self, id: SocketId, io: &mut Io<'_>) {
        if let Ok(socket) = self.udp_mut(id) {
            socket.blocked = false;
            let ready = socket.ready();
            self.notify(id, ready, Ready::WRITABLE, io);
        }
    }
}
