//! A UDP socket: the datagrams that came and were not read yet.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use lull_nic::frame::Sender;
use lull_nic::{Frame, FramePool, Segmentation};

use super::error::NetError;
use super::flow::FlowKey;
use super::fragment::PathMtuDiscovery;
use super::quoted::Report;
use super::socket::{Egress, Ready, SocketKind};
use super::wire::{self, IpFields};

#[derive(Debug)]
pub(super) struct Datagram {
    /// The frame, cut to the payload, or to all payloads if several datagrams were joined.
    pub(super) frame: Frame,
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    /// The destination is not a station's own address.
    pub(super) to_several: bool,
    /// What the IP header said.
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) came_ns: u64,
}

impl Datagram {
    /// How much it counts for in its socket: the whole buffer, since what was cut off the front is still held.
    pub(super) fn held_bytes(&self) -> usize {
        self.frame.headroom() + self.frame.capacity()
    }

    /// Moves the datagram to memory that may be held until the program reads it, which may never happen.
    pub(super) fn into_kept(self, pool: &mut FramePool) -> Datagram {
        if !self.frame.is_bounded() {
            return self;
        }
        let mut frame = wire::frame_of(pool, self.frame.len());
        frame.data_mut().copy_from_slice(self.frame.data());
        frame.set_segmentation(self.frame.segmentation());
        Datagram { frame, ..self }
    }

    /// If several datagrams were joined, how many bytes each has but the last.
    pub(super) fn each_bytes(&self) -> Option<u16> {
        match self.frame.segmentation() {
            Segmentation::Udp { datagram_bytes } => Some(datagram_bytes),
            _ => None,
        }
    }
}

/// An error that a socket has not read.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) report: Report,
    pub(super) to: SocketAddr,
    pub(super) data: Vec<u8>,
    pub(super) came_ns: u64,
}

/// The errors that few sockets keep.
#[derive(Debug, Default)]
pub(super) struct Errors {
    /// Whether they are kept, over IPv4 and over IPv6.
    pub(super) takes: [bool; 2],
    pub(super) kept: VecDeque<Kept>,
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
    pub(super) errors: Option<Box<Errors>>,
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    pub(super) blocked: bool,
    /// It takes several datagrams as one (UDP_GRO).
    pub(super) joins: bool,
    /// Packets, each with its destination, that the ring had no room for: those of a call that sends several at once.
    pub(super) unsent: VecDeque<(Frame, IpAddr)>,
    pub(super) egress: Egress,
    /// Over IPv4, and over IPv6.
    pub(super) discovery: [PathMtuDiscovery; 2],
}

impl UdpSocket {
    /// Takes a datagram, or gives it back: as in `__udp_enqueue_schedule_skb` it may exceed the limit, another may not follow, and
    /// whether reading was shut down is not asked.
    pub(super) fn enqueue(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        if self.held_bytes >= self.held_bytes_max {
            return Err(datagram);
        }
        self.held_bytes += datagram.held_bytes();
        self.datagrams.push_back(datagram);
        Ok(())
    }

    /// Takes joined datagrams one by one again, for a program that does not know of joining (`udp_queue_rcv_skb`). Returns how
    /// many there was no room for.
    pub(super) fn enqueue_cut(&mut self, joined: Datagram, each_bytes: usize, pool: &mut FramePool) -> u64 {
        let Datagram { frame: whole, from, to, to_several, traffic_class, hop_limit, came_ns } = joined;
        let mut lost = 0;
        for part in whole.data().chunks(each_bytes.max(1)) {
            let mut frame = wire::frame_of(pool, part.len());
            frame.data_mut().copy_from_slice(part);
            let part = Datagram { frame, from, to, to_several, traffic_class, hop_limit, came_ns };
            if let Err(datagram) = self.enqueue(part) {
                lost += 1;
                pool.recycle(datagram.frame);
            }
        }
        pool.recycle(whole);
        lost
    }

    /// How it heeds the MTU of the path to `to`.
    pub(super) fn discovery(&self, to: IpAddr) -> PathMtuDiscovery {
        self.discovery[usize::from(to.is_ipv6())]
    }

    /// What the header of a packet to `to` says, for which `asked` is asked over IPv4 and over IPv6. IP_TTL does not
    /// say how far a packet to a group goes (`ip_select_ttl`).
    pub(super) fn ip_fields(&self, to: IpAddr, asked: [IpFields; 2]) -> IpFields {
        let family = usize::from(to.is_ipv6());
        let mut sockets = self.egress.ip[family];
        sockets.hop_limit = sockets.hop_limit.filter(|_| !to.is_multicast());
        asked[family].or(sockets)
    }

    #[inline]
    pub(super) fn sender(&self, index: u32, generation: u32) -> Sender {
        self.egress.sender(SocketKind::Udp, index, generation)
    }

    pub(super) fn ready(&self) -> Ready {
        let mut ready = Ready::empty();
        ready.set(Ready::READABLE, !self.datagrams.is_empty() || self.read_shut);
        ready.set(Ready::RDHUP, self.read_shut);
        ready.set(Ready::WRITABLE, !self.blocked);
        ready.set(Ready::HUP, self.read_shut && self.write_shut);
        ready.set(Ready::ERR, self.error.is_some() || self.has_errors());
        ready.set(Ready::KEPT, self.error.is_none() && self.has_errors());
        ready
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<UdpSocket>() + self.held_bytes + self.datagrams.capacity() * size_of::<Datagram>()
    }

    pub(super) fn flow(&self) -> Option<FlowKey> {
        let peer = self.peer?;
        Some(FlowKey::new(wire::PROTOCOL_UDP, self.local.ip(), self.local.port(), peer.ip(), peer.port()))
    }

    pub(super) fn takes_errors(&self, is_v6: bool) -> bool {
        self.errors.as_ref().is_some_and(|errors| errors.takes[usize::from(is_v6)])
    }

    /// Whether there are errors to read.
    pub(super) fn has_errors(&self) -> bool {
        self.errors.as_ref().is_some_and(|errors| !errors.kept.is_empty())
    }
}
