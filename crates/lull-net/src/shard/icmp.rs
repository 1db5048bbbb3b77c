//! ICMP: echo replies, errors about our packets, errors that we send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lull_nic::Frame;

use super::demux::{CHECKSUM, Cast, MALFORMED, Packet, Reason};
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::resolve::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use super::stack::{Io, Stack};
use super::wire::{self, be16, be32};

const UNUSED: Reason = |counters| &mut counters.drop_icmp;
/// Type, code, checksum and four bytes that depend on the type.
const HEADER: usize = 8;
const V4_ECHO_REPLY: u8 = 0;
const V4_UNREACHABLE: u8 = 3;
const V4_ECHO: u8 = 8;
const V4_PORT_UNREACHABLE: u8 = 3;
const V4_FRAGMENTATION_NEEDED: u8 = 4;
const V6_UNREACHABLE: u8 = 1;
const V6_PACKET_TOO_BIG: u8 = 2;
const V6_PORT_UNREACHABLE: u8 = 4;
const V6_ECHO: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;

impl Stack {
    pub(super) fn icmpv4_input(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        let icmp = &frame.data()[packet.l4..packet.end];
        if icmp.len() < HEADER {
            return Err(MALFORMED);
        }
        if wire::fold(wire::sum(icmp)) != 0xffff {
            return Err(CHECKSUM);
        }
        match icmp[0] {
            // A broadcast echo would let one packet draw many (RFC 1122 section 3.2.2.6 permits silence).
            V4_ECHO if packet.cast == Cast::Unicast => self.echo(icmp, V4_ECHO_REPLY, packet, io),
            V4_UNREACHABLE => {
                let about = &icmp[HEADER..];
                let header = usize::from(about.first().ok_or(MALFORMED)? & 15) * 4;
                if header < wire::IPV4 || about.len() < header + 8 || about[0] >> 4 != 4 {
                    return Err(MALFORMED);
                }
                let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(about[at], about[at + 1], about[at + 2], about[at + 3]));
                if icmp[1] == V4_FRAGMENTATION_NEEDED {
                    let mtu = u32::from(be16(icmp, 6));
                    return self.packet_too_big(about[9], ip(12), ip(16), &about[header..], mtu, io);
                }
                // icmp_err_convert
                let (error, hard) = match icmp[1] {
                    0 | 6 | 11 => (NetError::NetworkUnreachable, false),
                    2 => (NetError::ProtocolUnreachable, true),
                    V4_PORT_UNREACHABLE => (NetError::ConnectionRefused, true),
                    9 | 10 | 13..=15 => (NetError::HostUnreachable, true),
                    _ => (NetError::HostUnreachable, false),
                };
                self.icmp_error(about[9], ip(12), ip(16), &about[header..], error, hard, io)
            }
            _ => Err(UNUSED),
        }
    }

    pub(super) fn icmpv6_input(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        let icmp = &frame.data()[packet.l4..packet.end];
        if icmp.len() < HEADER {
            return Err(MALFORMED);
        }
        if !wire::adds_up(packet.pseudo_sum(), icmp) {
            return Err(CHECKSUM);
        }
        match icmp[0] {
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => self.ndisc_input(frame, packet, io),
            _ if packet.source.is_unspecified() => Err(|counters| &mut counters.drop_martian),
            V6_ECHO if packet.cast == Cast::Unicast => self.echo(icmp, V6_ECHO_REPLY, packet, io),
            V6_UNREACHABLE | V6_PACKET_TOO_BIG => {
                let about = &icmp[HEADER..];
                if about.len() < wire::IPV6 + 8 || about[0] >> 4 != 6 {
                    return Err(MALFORMED);
                }
                let ip = |at: usize| {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&about[at..at + 16]);
                    IpAddr::V6(Ipv6Addr::from(octets))
                };
                if icmp[0] == V6_PACKET_TOO_BIG {
                    let mtu = be32(icmp, 4);
                    return self.packet_too_big(about[6], ip(8), ip(24), &about[wire::IPV6..], mtu, io);
                }
                // icmpv6_err_convert
                let (error, hard) = match icmp[1] {
                    0 => (NetError::NetworkUnreachable, false),
                    V6_PORT_UNREACHABLE => (NetError::ConnectionRefused, true),
                    1 => (NetError::HostUnreachable, true),
                    _ => (NetError::HostUnreachable, false),
                };
                // Our packets have no extension headers, so the quoted one has none either.
                self.icmp_error(about[6], ip(8), ip(24), &about[wire::IPV6..], error, hard, io)
            }
            _ => Err(UNUSED),
        }
    }

    fn echo(&mut self, request: &[u8], kind: u8, packet: &Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        let (own, peer) = (packet.destination, packet.source);
        let length = request.len();
        let mut reply = wire::ip_frame(io.pool, own, peer, packet.protocol, wire::HOP_LIMIT, length);
        let l4 = reply.len() - length;
        let icmp = &mut reply.data_mut()[l4..];
        icmp.copy_from_slice(request);
        icmp[0] = kind;
        icmp[2..4].fill(0);
        let pseudo = match own {
            IpAddr::V4(_) => 0,
            IpAddr::V6(_) => wire::pseudo_sum(own, peer, packet.protocol, length),
        };
        wire::put_checksum(icmp, 2, pseudo);
        self.counters.icmp_echo_replies += 1;
        self.suggested(peer, packet.source_mac, io);
        self.send_ip(reply, peer, io);
        Ok(())
    }

    /// A router could pass at most `mtu` bytes of a packet from `source` to `destination` that began with `transport`.
    fn packet_too_big(
        &mut self,
        protocol: u8,
        source: IpAddr,
        destination: IpAddr,
        transport: &[u8],
        mtu: u32,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let key = FlowKey::new(protocol, source, be16(transport, 0), destination, be16(transport, 2));
        match self.flows.get(&key).copied() {
            Some(Owner::Connection(index)) if self.path_mtu_input(index, be32(transport, 4), mtu, io) => {
                self.counters.icmp_errors_taken += 1;
                Ok(())
            }
            _ => Err(UNUSED),
        }
    }

    /// An error about a packet from `source` to `destination` that began with `transport`.
    #[expect(clippy::too_many_arguments)]
    fn icmp_error(
        &mut self,
        protocol: u8,
        source: IpAddr,
        destination: IpAddr,
        transport: &[u8],
        error: NetError,
        hard: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let key = FlowKey::new(protocol, source, be16(transport, 0), destination, be16(transport, 2));
        match self.flows.get(&key) {
            Some(&Owner::Connection(index)) => {
                if !self.connection_icmp(index, be32(transport, 4), error, hard, io) {
                    return Err(UNUSED);
                }
            }
            Some(&Owner::HalfOpen(index)) => {
                if !self.half_open_icmp(index, be32(transport, 4), hard) {
                    return Err(UNUSED);
                }
            }
            Some(&Owner::Udp(index)) if hard => self.udp_error(index, error, io),
            _ => return Err(UNUSED),
        }
        self.counters.icmp_errors_taken += 1;
        Ok(())
    }

    /// Says that nobody has the UDP port that `packet` was for.
    pub(super) fn send_port_unreachable(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) {
        // Never about what went to several (RFC 1122 section 3.2.2), and not faster than the allowance.
        if packet.cast != Cast::Unicast || !self.icmp_budget.take(io.now_ns) {
            return;
        }
        let (own, peer) = (packet.destination, packet.source);
        // RFC 1812 section 4.3.2.3 and RFC 4443 section 2.4: as much of the packet as fits the smallest MTU.
        let (protocol, quote_max) = match own {
            IpAddr::V4(_) => (wire::PROTOCOL_ICMP, 576 - wire::IPV4 - HEADER),
            IpAddr::V6(_) => (wire::PROTOCOL_ICMPV6, 1280 - wire::IPV6 - HEADER),
        };
        let quoted = &frame.data()[packet.l3..packet.end];
        let quoted = &quoted[..quoted.len().min(quote_max)];
        let length = HEADER + quoted.len();
        let mut error = wire::ip_frame(io.pool, own, peer, protocol, wire::HOP_LIMIT, length);
        let l4 = error.len() - length;
        let icmp = &mut error.data_mut()[l4..];
        icmp[HEADER..].copy_from_slice(quoted);
        let pseudo = match own {
            IpAddr::V4(_) => {
                icmp[..2].copy_from_slice(&[V4_UNREACHABLE, V4_PORT_UNREACHABLE]);
                0
            }
            IpAddr::V6(_) => {
                icmp[..2].copy_from_slice(&[V6_UNREACHABLE, V6_PORT_UNREACHABLE]);
                wire::pseudo_sum(own, peer, protocol, length)
            }
        };
        wire::put_checksum(icmp, 2, pseudo);
        self.counters.icmp_errors_sent += 1;
        self.suggested(peer, packet.source_mac, io);
        self.send_ip(error, peer, io);
    }
}
