//! A UDP socket: the datagrams that came and were not read yet.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use lull_nic::Frame;
use lull_nic::frame::Sender;

use super::egress::Egress;
use super::error::NetError;
use super::flow::FlowKey;
use super::socket::{Ready, SocketKind};
use super::wire;

#[derive(Debug)]
pub(super) struct Datagram {
    /// Cut to the payload.
    pub(super) frame: Frame,
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
}

/// A UDP socket.
#[derive(Debug)]
pub(super) struct UdpSocket {
    /// What it was bound to: its address again when it has no peer any more.
    pub(super) bound: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) peer: Option<SocketAddr>,
    pub(super) datagrams: VecDeque<Datagram>,
    /// Bytes of the buffers of `datagrams` (Linux accounts `truesize` as well).
    pub(super) held_bytes: usize,
    pub(super) held_bytes_max: usize,
    pub(super) error: Option<NetError>,
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    pub(super) blocked: bool,
    pub(super) egress: Egress,
}

impl UdpSocket {
    #[inline]
    pub(super) fn sender(&self, index: u32) -> Sender {
        self.egress.sender(SocketKind::Udp, index)
    }

    pub(super) fn ready(&self) -> Ready {
        let mut ready = Ready::empty();
        ready.set(Ready::READABLE, !self.datagrams.is_empty() || self.read_shut);
        ready.set(Ready::RDHUP, self.read_shut);
        ready.set(Ready::WRITABLE, !self.blocked);
        ready.set(Ready::HUP, self.read_shut && self.write_shut);
        ready.set(Ready::ERR, self.error.is_some());
        ready
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<UdpSocket>() + self.held_bytes + self.datagrams.capacity() * size_of::<Datagram>()
    }

    pub(super) fn flow(&self) -> Option<FlowKey> {
        let peer = self.peer?;
        Some(FlowKey::new(wire::PROTOCOL_UDP, self.local.ip(), self.local.port(), peer.ip(), peer.port()))
    }
}
