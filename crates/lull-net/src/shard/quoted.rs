//! What an ICMP error says, and which packet of ours it quotes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::demux::{FRAGMENT, FRAGMENT_HEADER, MALFORMED, Reason};
use super::error::NetError;
use super::flow::FlowKey;
use super::wire::{self, be16};

/// Of no use to anybody here.
pub(super) const UNUSED: Reason = |counters| &mut counters.drop_icmp;

/// What an ICMP message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// What it means to a socket.
    pub(super) error: NetError,
    /// Its type.
    pub(super) kind: u8,
    pub(super) code: u8,
    /// The MTU, where the packet was longer.
    pub(super) info: u32,
    /// Who sent it.
    pub(super) offender: IpAddr,
    /// The own address that it came to.
    pub(super) own: IpAddr,
    /// What its IP header says.
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

/// What an error says of the packet that it is about, which is one of ours.
pub(super) struct Quoted<'a> {
    pub(super) protocol: u8,
    pub(super) flow: FlowKey,
    /// From the IP header on, in bytes.
    pub(super) length: usize,
    /// Eight bytes at least.
    pub(super) transport: &'a [u8],
}

impl<'a> Quoted<'a> {
    pub(super) fn v4(packet: &'a [u8]) -> Result<Quoted<'a>, Reason> {
        let header = usize::from(packet.first().ok_or(MALFORMED)? & 15) * 4;
        if header < wire::IPV4 || packet.len() < header + 8 || packet[0] >> 4 != 4 {
            return Err(MALFORMED);
        }
        // Behind the first fragment there is no transport header.
        if be16(packet, 6) & 0x1fff != 0 {
            return Err(UNUSED);
        }
        let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]));
        let length = usize::from(be16(packet, 2));
        Ok(Quoted::new(packet[9], (ip(12), ip(16)), length, &packet[header..]))
    }

    pub(super) fn v6(packet: &'a [u8]) -> Result<Quoted<'a>, Reason> {
        if packet.len() < wire::IPV6 + 8 || packet[0] >> 4 != 6 {
            return Err(MALFORMED);
        }
        let ip = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&packet[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let length = wire::IPV6 + usize::from(be16(packet, 4));
        // Our packets have no other extension header.
        let (mut protocol, mut transport) = (packet[6], &packet[wire::IPV6..]);
        if protocol == FRAGMENT {
            if transport.len() < FRAGMENT_HEADER + 8 || be16(transport, 2) & 0xfff8 != 0 {
                return Err(UNUSED);
            }
            (protocol, transport) = (transport[0], &transport[FRAGMENT_HEADER..]);
        }
        Ok(Quoted::new(protocol, (ip(8), ip(24)), length, transport))
    }

    fn new(protocol: u8, (own, peer): (IpAddr, IpAddr), length: usize, transport: &'a [u8]) -> Quoted<'a> {
        let flow = FlowKey::new(protocol, own, be16(transport, 0), peer, be16(transport, 2));
        Quoted { protocol, flow, length, transport }
    }
}
