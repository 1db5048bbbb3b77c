//! From a frame to a checked packet: everything that decides whose a packet is, and whether it may be anybody's.
//!
//! smoltcp would parse the same fields again and, given a packet it cannot place, would answer it from whichever set of
//! sockets it was called with: a reset for a live connection. So nothing reaches it that is not parsed to its end here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lull_nic::{Checksum, Frame};

use super::counters::StackCounters;
use super::wire::{self, Mac, be16};

/// The counter that a refused frame goes to.
pub(super) type Reason = fn(&mut StackCounters) -> &mut u64;

pub(super) const MALFORMED: Reason = |counters| &mut counters.drop_malformed;
pub(super) const CHECKSUM: Reason = |counters| &mut counters.drop_checksum;

/// An own address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) prefix: u8,
    pub(super) broadcast: Option<Ipv4Addr>,
}

/// How a packet is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cast {
    Unicast,
    Broadcast,
    Multicast,
}

/// A packet whose headers up to the transport's are checked. Offsets are from the frame's first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) l3: usize,
    pub(super) l4: usize,
    pub(super) end: usize,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// To one station, or to several (at either layer): then nothing is ever answered by an error or a reset.
    pub(super) cast: Cast,
    /// The transport checksum needs no check.
    pub(super) trusted: bool,
    /// There is nothing between the IP header and the transport header.
    pub(super) plain: bool,
    /// It is a fragment. Of IPv6, the protocol is that of the fragment header, at which the transport's would begin.
    pub(super) is_fragment: bool,
    pub(super) hop_limit: u8,
    pub(super) source_mac: Mac,
}

/// What a frame is.
pub(super) enum Inbound {
    Arp,
    Ip(Packet),
    /// A part of a packet.
    Fragment(Packet),
    /// Behind a tag that has a priority and no VLAN.
    PriorityTagged,
}

impl Packet {
    pub(super) fn length(&self) -> usize {
        self.end - self.l4
    }

    /// Whether it is a message of RFC 4861: types 133 to 137, which no router passes on.
    pub(super) fn is_neighbour_discovery(&self, frame: &Frame) -> bool {
        let kind = frame.data().get(self.l4).filter(|_| self.length() > 0);
        self.protocol == wire::PROTOCOL_ICMPV6
            && self.hop_limit == 255
            && kind.is_some_and(|kind| (133..=137).contains(kind))
    }

    /// The pseudo header's share of the transport checksum.
    pub(super) fn pseudo_sum(&self) -> u64 {
        wire::pseudo_sum(self.source, self.destination, self.protocol, self.length())
    }

    /// Rewrites the packet without IP options and extension headers, in place, for a reader that knows neither.
    pub(super) fn make_plain(&mut self, frame: &mut Frame) {
        if self.plain {
            return;
        }
        let (l3, l4, length) = (self.l3, self.l4, self.length());
        let data = frame.data_mut();
        if self.source.is_ipv4() {
            let start = l4 - wire::IPV4;
            data.copy_within(l3..l3 + wire::IPV4, start);
            data[start] = 0x45;
            wire::put16(data, start + 2, (wire::IPV4 + length) as u16);
            self.l3 = start;
        } else {
            let start = l4 - wire::IPV6;
            data.copy_within(l3..l3 + wire::IPV6, start);
            wire::put16(data, start + 4, length as u16);
            data[start + 6] = self.protocol;
            self.l3 = start;
        }
        self.plain = true;
    }

    /// Cuts the packet to `length` bytes of transport header and payload.
    pub(super) fn truncate(&mut self, frame: &mut Frame, length: usize) {
        let data = frame.data_mut();
        if self.source.is_ipv4() {
            wire::put16(data, self.l3 + 2, (self.l4 - self.l3 + length) as u16);
        } else {
            wire::put16(data, self.l3 + 4, (self.l4 - self.l3 - wire::IPV6 + length) as u16);
        }
        self.end = self.l4 + length;
    }
}

/// Parses a frame for the station `mac` with the addresses `locals`. One that `looped` comes from one of them.
#[inline]
pub(super) fn classify(frame: &Frame, mac: Mac, locals: &[Local], looped: bool) -> Result<Inbound, Reason> {
    let data = frame.data();
    if data.len() < wire::ETHERNET {
        return Err(MALFORMED);
    }
    let group = data[0] & 1 != 0;
    if !group && data[..6] != mac {
        return Err(|counters| &mut counters.drop_not_ours);
    }
    // A group address as the source: no station sends that (IEEE 802.3 clause 3.2.3).
    if data[6] & 1 != 0 {
        return Err(|counters| &mut counters.drop_martian);
    }
    let mut packet = match be16(data, 12) {
        wire::ETHERTYPE_IPV4 => ipv4(data, locals, looped)?,
        wire::ETHERTYPE_IPV6 => ipv6(data, locals, looped)?,
        wire::ETHERTYPE_ARP => return Ok(Inbound::Arp),
        wire::ETHERTYPE_VLAN | wire::ETHERTYPE_SERVICE_VLAN => return tagged(data),
        _ => return Err(|counters| &mut counters.drop_ethertype),
    };
    if group && packet.cast == Cast::Unicast {
        // A unicast packet in a broadcast frame is for nobody (RFC 1122 section 3.3.6).
        return Err(|counters| &mut counters.drop_not_ours);
    }
    packet.trusted = frame.checksum() != Checksum::None;
    packet.source_mac.copy_from_slice(&data[6..12]);
    Ok(if packet.is_fragment { Inbound::Fragment(packet) } else { Inbound::Ip(packet) })
}

/// VLAN 0 is no VLAN, only a priority (IEEE 802.1Q clause 6.9.1): such a frame is everybody's. Of others we are no member
/// (`__netif_receive_skb_core`: another host's).
#[cold]
fn tagged(data: &[u8]) -> Result<Inbound, Reason> {
    if data.len() < wire::ETHERNET + wire::VLAN_TAG {
        return Err(MALFORMED);
    }
    match be16(data, wire::ETHERNET) & 0x0fff {
        0 => Ok(Inbound::PriorityTagged),
        _ => Err(|counters| &mut counters.drop_vlan),
    }
}

/// Takes the tag out: the addresses move up to what it tagged.
pub(super) fn untag(frame: &mut Frame) {
    frame.data_mut().copy_within(..12, wire::VLAN_TAG);
    frame.pull_front(wire::VLAN_TAG);
}

#[inline]
fn ipv4(data: &[u8], locals: &[Local], looped: bool) -> Result<Packet, Reason> {
    const L3: usize = wire::ETHERNET;
    if data.len() < L3 + wire::IPV4 || data[L3] >> 4 != 4 {
        return Err(MALFORMED);
    }
    let header = usize::from(data[L3] & 15) * 4;
    let total = usize::from(be16(data, L3 + 2));
    if header < wire::IPV4 || total < header || data.len() < L3 + total {
        return Err(MALFORMED);
    }
    if wire::fold(wire::sum(&data[L3..L3 + header])) != 0xffff {
        return Err(CHECKSUM);
    }
    let ip = |at: usize| Ipv4Addr::new(data[at], data[at + 1], data[at + 2], data[at + 3]);
    let (source, destination) = (ip(L3 + 12), ip(L3 + 16));
    // Loopback, groups and broadcast (RFC 1122 section 3.2.1.3); our own, from outside. A station without an address
    // sends to everybody, to be given one. The rest of 0.0.0.0/8, and class E, are addresses like any others
    // (`ip_route_input_slow`).
    let nobody = source.is_unspecified() && !destination.is_broadcast();
    let mut martian = nobody || source.is_loopback() || source.is_multicast() || source.is_broadcast();
    let mut cast = None;
    for local in locals {
        if local.ip == IpAddr::V4(destination) {
            cast = Some(Cast::Unicast);
        } else if local.broadcast == Some(destination) {
            cast = Some(Cast::Broadcast);
        }
        martian |= !looped && local.ip == IpAddr::V4(source) || local.broadcast == Some(source);
    }
    if martian {
        return Err(|counters| &mut counters.drop_martian);
    }
    let cast = match cast {
        Some(cast) => cast,
        None if destination.is_broadcast() => Cast::Broadcast,
        None if destination.is_multicast() => Cast::Multicast,
        None => return Err(|counters| &mut counters.drop_not_ours),
    };
    if header > wire::IPV4 {
        ipv4_options(&data[L3 + wire::IPV4..L3 + header])?;
    }
    Ok(Packet {
        l3: L3,
        l4: L3 + header,
        end: L3 + total,
        source: IpAddr::V4(source),
        destination: IpAddr::V4(destination),
        protocol: data[L3 + 9],
        cast,
        trusted: false,
        plain: header == wire::IPV4,
        // More of them, or an offset.
        is_fragment: be16(data, L3 + 6) & 0x3fff != 0,
        hop_limit: data[L3 + 8],
        source_mac: [0; 6],
    })
}

/// Options are skipped (RFC 1122 section 3.2.1.8), except source routes, which are refused as Linux does
/// (`accept_source_route` = 0).
fn ipv4_options(mut options: &[u8]) -> Result<(), Reason> {
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    while let [kind, rest @ ..] = options {
        match kind {
            0 => break,
            1 => options = rest,
            &LOOSE_ROUTE | &STRICT_ROUTE => return Err(|counters| &mut counters.drop_ip_option),
            _ => {
                let length = usize::from(*rest.first().ok_or(MALFORMED)?);
                options = options.get(length..).filter(|_| length >= 2).ok_or(MALFORMED)?;
            }
        }
    }
    Ok(())
}

fn ipv6(data: &[u8], locals: &[Local], looped: bool) -> Result<Packet, Reason> {
    const L3: usize = wire::ETHERNET;
    if data.len() < L3 + wire::IPV6 || data[L3] >> 4 != 6 {
        return Err(MALFORMED);
    }
    let end = L3 + wire::IPV6 + usize::from(be16(data, L3 + 4));
    if data.len() < end {
        return Err(MALFORMED);
    }
    let ip = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&data[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (ip(L3 + 8), ip(L3 + 24));
    // Loopback must not be on a link (RFC 4291 section 2.5.3); mapped addresses stand for IPv4 in our tables.
    let mapped = source.to_ipv4_mapped().is_some() || destination.to_ipv4_mapped().is_some();
    let own = !looped && locals.iter().any(|local| local.ip == IpAddr::V6(source));
    if source.is_multicast() || source.is_loopback() || destination.is_loopback() || mapped || own {
        return Err(|counters| &mut counters.drop_martian);
    }
    let cast = if locals.iter().any(|local| local.ip == IpAddr::V6(destination)) {
        Cast::Unicast
    } else if destination.is_multicast() {
        Cast::Multicast
    } else {
        return Err(|counters| &mut counters.drop_not_ours);
    };
    let (protocol, l4) = ipv6_extensions(data, data[L3 + 6], L3 + wire::IPV6, end)?;
    // The unspecified source is for neighbour discovery alone (RFC 4291 section 2.5.2).
    if source.is_unspecified() && protocol != wire::PROTOCOL_ICMPV6 {
        return Err(|counters| &mut counters.drop_martian);
    }
    Ok(Packet {
        l3: L3,
        l4,
        end,
        source: IpAddr::V6(source),
        destination: IpAddr::V6(destination),
        protocol,
        cast,
        trusted: false,
        plain: l4 == L3 + wire::IPV6,
        is_fragment: protocol == FRAGMENT,
        hop_limit: data[L3 + 7],
        source_mac: [0; 6],
    })
}

/// The next header that says that a fragment header follows.
pub(super) const FRAGMENT: u8 = 44;
/// That header, in bytes.
pub(super) const FRAGMENT_HEADER: usize = 8;

/// Walks the extension headers to the transport header, or to a fragment's (RFC 8200 section 4).
fn ipv6_extensions(data: &[u8], mut next: u8, mut at: usize, end: usize) -> Result<(u8, usize), Reason> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    const HEADERS_MAX: usize = 8;
    let mut was_fragment = false;
    for position in 0..HEADERS_MAX {
        if !matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
            return Ok((next, at));
        }
        if end < at + 8 {
            return Err(MALFORMED);
        }
        let length = if next == FRAGMENT { 8 } else { 8 + usize::from(data[at + 1]) * 8 };
        if end < at + length {
            return Err(MALFORMED);
        }
        match next {
            // Only right behind the IPv6 header.
            HOP_BY_HOP if position != 0 => return Err(|counters| &mut counters.drop_ip_option),
            HOP_BY_HOP | DESTINATION => ipv6_options(&data[at + 2..at + length])?,
            // Segments left: we are not the last destination, and no router (RFC 5095).
            ROUTING if data[at + 3] != 0 => return Err(|counters| &mut counters.drop_ip_option),
            // There is one such header (`ipv6_frag_rcv`: `IP6SKB_FRAGMENTED`).
            FRAGMENT if was_fragment => return Err(MALFORMED),
            // A fragment that is the whole packet is none (RFC 6946).
            FRAGMENT if be16(data, at + 2) & 0xfff9 != 0 => return Ok((next, at)),
            _ => {}
        }
        was_fragment |= next == FRAGMENT;
        next = data[at];
        at += length;
    }
    Err(|counters| &mut counters.drop_ip_option)
}

/// Unknown options are skipped if their two highest bits say so, else the packet is refused (RFC 8200 section 4.2).
fn ipv6_options(mut options: &[u8]) -> Result<(), Reason> {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            options = rest;
            continue;
        }
        let length = usize::from(*rest.first().ok_or(MALFORMED)?);
        if kind >> 6 != 0 {
            return Err(|counters| &mut counters.drop_ip_option);
        }
        options = options.get(2 + length..).ok_or(MALFORMED)?;
    }
    Ok(())
}
