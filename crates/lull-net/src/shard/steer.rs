//! What a program that is attached to a reuseport group sees of a packet (SO_ATTACH_REUSEPORT_CBPF and _EBPF).

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use lull_bpf::{Ancillary, Chooser, Packet};
use lull_nic::Frame;

use super::config::Place;
use super::demux;
use super::error::NetError;
use super::socket::{SocketId, SocketKind};
use super::stack::Stack;
use super::wire;

/// ARPHRD_ETHER.
const HARDWARE_ETHERNET: u32 = 1;

/// A received packet, as `run_bpf_filter` shows it: from the payload on, with the headers at negative offsets.
pub(super) struct Steered<'a> {
    frame: &'a [u8],
    l3: usize,
    payload: usize,
    end: usize,
    hash: u32,
    is_ipv4: bool,
    place: Place,
}

impl<'a> Steered<'a> {
    /// Shows the packet of a TCP segment whose header was checked, or of a UDP datagram whose length may not have been:
    /// GRO asks whether a datagram may be joined (UDP_GRO) before anything has looked at its length, which may say more
    /// than came.
    pub(super) fn new(frame: &'a Frame, packet: &demux::Packet, place: Place) -> Steered<'a> {
        let (data, l4) = (frame.data(), packet.l4);
        let (header, end) = match packet.protocol {
            wire::PROTOCOL_TCP => (usize::from(data[l4 + 12] >> 4) * 4, packet.end),
            // What the IP packet has behind the datagram was cut off before (`pskb_trim_rcsum` in `__udp4_lib_rcv`).
            _ => (wire::UDP, packet.end.min(l4 + usize::from(wire::be16(data, l4 + 4)))),
        };
        Steered {
            frame: data,
            l3: packet.l3,
            payload: (l4 + header).min(end),
            end,
            hash: frame.rss_hash(),
            is_ipv4: matches!(packet.destination, IpAddr::V4(_)),
            place,
        }
    }
}

impl Packet for Steered<'_> {
    fn data(&self) -> &[u8] {
        &self.frame[self.payload..self.end]
    }

    fn network(&self) -> Option<&[u8]> {
        Some(&self.frame[self.l3..self.end])
    }

    fn link(&self) -> Option<&[u8]> {
        Some(&self.frame[..self.end])
    }

    fn ancillary(&self, which: Ancillary) -> u32 {
        match which {
            Ancillary::Protocol if self.is_ipv4 => u32::from(wire::ETHERTYPE_IPV4),
            Ancillary::Protocol => u32::from(wire::ETHERTYPE_IPV6),
            // A driver that records it counts from 1 (`skb_record_rx_queue`).
            Ancillary::Queue => self.place.queue + 1,
            Ancillary::Cpu => self.place.cpu,
            Ancillary::Hash => self.hash,
            Ancillary::HardwareType => HARDWARE_ETHERNET,
            Ancillary::Random => std::collections::hash_map::RandomState::new().build_hasher().finish() as u32,
            Ancillary::PacketType
            | Ancillary::Interface
            | Ancillary::Mark
            | Ancillary::VlanTag
            | Ancillary::VlanTagPresent
            | Ancillary::VlanProtocol => 0,
        }
    }
}

impl Stack {
    /// Attaches a program to the reuseport group of a listener or a UDP socket, in place of the one that it has; `None` takes that
    /// away. The program returns which socket of the group gets a SYN or a datagram, counted in the order in which they were
    /// bound; for a number that none has the 4-tuple's hash chooses.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`]. [`NetError::Invalid`]: the socket does not share its address (`SO_REUSEPORT`).
    /// [`NetError::NoProgram`]: there is none to take away.
    pub fn set_reuseport_program(&mut self, id: SocketId, program: Option<Arc<Chooser>>) -> Result<(), NetError> {
        match id.kind() {
            SocketKind::Listener => {
                let port = self.listener_mut(id)?.local.port();
                self.listener_ports.set_program(port, id.index(), program)
            }
            SocketKind::Udp => {
                let port = self.udp(id)?.local.port();
                self.udp_ports.set_program(port, id.index(), program)
            }
            SocketKind::Tcp => Err(NetError::Invalid),
        }
    }
}
