//! ICMP: echo replies, errors about our packets, errors that we send.

use std::net::IpAddr;

use lull_nic::Frame;

use super::demux::{CHECKSUM, Cast, MALFORMED, Packet, Reason};
use super::error::NetError;
use super::flow::Owner;
use super::quoted::{Quoted, Report, UNUSED};
use super::resolve::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use super::stack::{Io, Stack};
use super::wire::{self, IpFields, be16, be32};

/// Type, code, checksum and four bytes that depend on the type.
const HEADER: usize = 8;
const V4_ECHO_REPLY: u8 = 0;
const V4_UNREACHABLE: u8 = 3;
const V4_ECHO: u8 = 8;
const V4_NET_UNREACHABLE: u8 = 0;
const V4_HOST_UNREACHABLE: u8 = 1;
const V4_PORT_UNREACHABLE: u8 = 3;
const V4_TIME_EXCEEDED: u8 = 11;
const V4_PARAMETER_PROBLEM: u8 = 12;
const V4_FRAGMENTATION_NEEDED: u8 = 4;
const V6_UNREACHABLE: u8 = 1;
const V6_ADDRESS_UNREACHABLE: u8 = 3;
const V6_PACKET_TOO_BIG: u8 = 2;
const V6_PORT_UNREACHABLE: u8 = 4;
const V6_TIME_EXCEEDED: u8 = 3;
const V6_PARAMETER_PROBLEM: u8 = 4;
/// As much of a packet as an error quotes, so that it fits the smallest MTU (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4).
const V4_QUOTE_MAX: usize = 576 - wire::IPV4 - HEADER;
const V6_QUOTE_MAX: usize = 1280 - wire::IPV6 - HEADER;
/// Of both kinds of "time exceeded": the other fragments did not come.
const REASSEMBLY: u8 = 1;
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
            V4_ECHO if packet.cast == Cast::Unicast => self.echo(frame, V4_ECHO_REPLY, packet, io),
            V4_UNREACHABLE => {
                let quoted = Quoted::v4(&icmp[HEADER..])?;
                if icmp[1] == V4_FRAGMENTATION_NEEDED {
                    let mtu = be16(icmp, 6).into();
                    return self.packet_too_big(
                        frame,
                        &quoted,
                        report(NetError::MessageTooLong, icmp, mtu, frame, packet),
                        io,
                    );
                }
                let Some((error, is_hard)) = of_unreachable_v4(icmp[1]) else { return Err(UNUSED) };
                // A half-open connection outlives all other errors, hard ones among them, since a stranger can forge
                // them as easily (`tcp_v4_err`).
                let ends_request = matches!(icmp[1], V4_NET_UNREACHABLE | V4_HOST_UNREACHABLE);
                self.icmp_error(&quoted, report(error, icmp, 0, frame, packet), Weight { is_hard, ends_request }, io)
            }
            V4_TIME_EXCEEDED | V4_PARAMETER_PROBLEM => {
                let quoted = Quoted::v4(&icmp[HEADER..])?;
                let is_hard = icmp[0] == V4_PARAMETER_PROBLEM;
                let error = if is_hard { NetError::ProtocolError } else { NetError::HostUnreachable };
                self.icmp_error(
                    &quoted,
                    report(error, icmp, 0, frame, packet),
                    Weight { is_hard, ends_request: true },
                    io,
                )
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
            V6_ECHO if packet.cast == Cast::Unicast => self.echo(frame, V6_ECHO_REPLY, packet, io),
            V6_PACKET_TOO_BIG => {
                let quoted = Quoted::v6(&icmp[HEADER..])?;
                let mtu = be32(icmp, 4);
                self.packet_too_big(frame, &quoted, report(NetError::MessageTooLong, icmp, mtu, frame, packet), io)
            }
            V6_UNREACHABLE | V6_TIME_EXCEEDED | V6_PARAMETER_PROBLEM => {
                let quoted = Quoted::v6(&icmp[HEADER..])?;
                // icmpv6_err_convert
                let (error, is_hard) = match icmp[0] {
                    V6_UNREACHABLE => of_unreachable_v6(icmp[1]),
                    V6_TIME_EXCEEDED => (NetError::HostUnreachable, false),
                    _ => (NetError::ProtocolError, true),
                };
                // `tcp_v6_err`: a request ends by what is hard.
                let weight = Weight { is_hard, ends_request: is_hard };
                self.icmp_error(&quoted, report(error, icmp, 0, frame, packet), weight, io)
            }
            _ => Err(UNUSED),
        }
    }

    fn echo(&mut self, frame: &Frame, kind: u8, packet: &Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        let request = &frame.data()[packet.l4..packet.end];
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
        // The reply has the request's traffic class (`icmp_reply`).
        let (traffic_class, _) = wire::ip_fields(&frame.data()[packet.l3..]);
        wire::put_ip_fields(reply.data_mut(), IpFields { traffic_class: Some(traffic_class), hop_limit: None });
        self.routers_may_cut(&mut reply, own, peer);
        self.counters.icmp_echo_replies += 1;
        self.suggested(peer, packet.source_mac, io);
        self.send_ip_in_parts(reply, own, peer, io);
        Ok(())
    }

    /// Lets routers cut a message of ICMP over IPv4 (`icmp_sk_init`), and gives it an identification for that.
    fn routers_may_cut(&mut self, packet: &mut Frame, own: IpAddr, peer: IpAddr) {
        if own.is_ipv4() {
            let identification = self.identifications.next(own, peer);
            wire::set_fragment_v4(packet.data_mut(), identification as u16, 0);
        }
    }

    /// A router could pass at most as many bytes of a packet of ours as the report says.
    fn packet_too_big(
        &mut self,
        frame: &Frame,
        quoted: &Quoted<'_>,
        report: Report,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let is_taken = match self.flows.get(&quoted.flow).copied() {
            Some(Owner::Connection(index)) => self.path_mtu_input(index, be32(quoted.transport, 4), report.info, io),
            _ if quoted.protocol == wire::PROTOCOL_UDP => self.datagram_mtu_input(frame, quoted, report, io),
            // Over IPv4 routers may cut it.
            _ if quoted.protocol == wire::PROTOCOL_ICMPV6 && quoted.transport[0] == V6_ECHO_REPLY => {
                self.reply_mtu_input(frame, quoted, report, io)
            }
            _ => false,
        };
        self.counters.icmp_errors_taken += u64::from(is_taken);
        if is_taken { Ok(()) } else { Err(UNUSED) }
    }

    /// An error about a packet of ours.
    fn icmp_error(
        &mut self,
        quoted: &Quoted<'_>,
        report: Report,
        weight: Weight,
        io: &mut Io<'_>,
    ) -> Result<(), Reason> {
        let (transport, error) = (quoted.transport, report.error);
        match self.flows.get(&quoted.flow).copied() {
            Some(Owner::Connection(index)) => {
                if !self.connection_icmp(index, be32(transport, 4), error, io) {
                    return Err(UNUSED);
                }
            }
            Some(Owner::HalfOpen(index)) => {
                if !self.half_open_icmp(index, be32(transport, 4), weight.ends_request) {
                    return Err(UNUSED);
                }
            }
            _ if quoted.protocol == wire::PROTOCOL_UDP && self.udp_icmp(quoted, report, weight.is_hard, io) => {}
            _ => return Err(UNUSED),
        }
        self.counters.icmp_errors_taken += 1;
        Ok(())
    }

    /// A packet of ours has waited for its next hop in vain. Its socket is told what the message says that Linux sends to itself then
    /// (`ipv4_link_failure`, `ip6_link_failure`).
    pub(super) fn next_hop_does_not_answer(&mut self, packet: &Frame, io: &mut Io<'_>) {
        let bytes = packet.data();
        let up_to = |max: usize| &bytes[..bytes.len().min(max)];
        let (quoted, kind, code) = match bytes[0] >> 4 {
            4 => (Quoted::v4(up_to(V4_QUOTE_MAX)), V4_UNREACHABLE, V4_HOST_UNREACHABLE),
            _ => (Quoted::v6(up_to(V6_QUOTE_MAX)), V6_UNREACHABLE, V6_ADDRESS_UNREACHABLE),
        };
        // Fragments after the first do not say whose they are.
        let Some(quoted) = quoted.ok().filter(|quoted| quoted.protocol == wire::PROTOCOL_UDP) else { return };
        let offender = quoted.flow.local().ip();
        let report = Report {
            error: NetError::HostUnreachable,
            kind,
            code,
            info: 0,
            offender,
            own: offender,
            traffic_class: class_of_error(bytes),
            hop_limit: wire::HOP_LIMIT,
        };
        self.udp_icmp(&quoted, report, false, io);
    }

    /// Says that nobody has the UDP port that `packet` was for.
    pub(super) fn send_port_unreachable(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) {
        let v4 = [V4_UNREACHABLE, V4_PORT_UNREACHABLE];
        self.send_error((v4, [V6_UNREACHABLE, V6_PORT_UNREACHABLE]), frame.data(), packet, io);
    }

    /// Says that the rest of the packet did not come whose first fragment this is.
    pub(super) fn send_reassembly_time_exceeded(&mut self, first: &[u8], packet: &Packet, io: &mut Io<'_>) {
        let v4 = [V4_TIME_EXCEEDED, REASSEMBLY];
        self.send_error((v4, [V6_TIME_EXCEEDED, REASSEMBLY]), first, packet, io);
    }

    /// Sends an error about a packet that came in these bytes: type and code of IPv4 or of IPv6.
    fn send_error(&mut self, (v4, v6): ([u8; 2], [u8; 2]), bytes: &[u8], packet: &Packet, io: &mut Io<'_>) {
        // Never about what went to several (RFC 1122 section 3.2.2), and not faster than the allowance.
        if packet.cast != Cast::Unicast || !self.icmp_budget.take(io.now_ns) {
            return;
        }
        let (own, peer) = (packet.destination, packet.source);
        let (protocol, quote_max) = match own {
            IpAddr::V4(_) => (wire::PROTOCOL_ICMP, V4_QUOTE_MAX),
            IpAddr::V6(_) => (wire::PROTOCOL_ICMPV6, V6_QUOTE_MAX),
        };
        let quoted = &bytes[packet.l3..packet.end];
        let quoted = &quoted[..quoted.len().min(quote_max)];
        let length = HEADER + quoted.len();
        let mut error = wire::ip_frame(io.pool, own, peer, protocol, wire::HOP_LIMIT, length);
        let l4 = error.len() - length;
        let icmp = &mut error.data_mut()[l4..];
        icmp[HEADER..].copy_from_slice(quoted);
        let (kind, pseudo) = match own {
            IpAddr::V4(_) => (v4, 0),
            IpAddr::V6(_) => (v6, wire::pseudo_sum(own, peer, protocol, length)),
        };
        icmp[..2].copy_from_slice(&kind);
        wire::put_checksum(icmp, 2, pseudo);
        let traffic_class = Some(class_of_error(quoted));
        wire::put_ip_fields(error.data_mut(), IpFields { traffic_class, hop_limit: None });
        self.routers_may_cut(&mut error, own, peer);
        self.counters.icmp_errors_sent += 1;
        self.suggested(peer, packet.source_mac, io);
        self.send_ip(error, peer, io);
    }
}

/// The class that an error about a packet is sent with (`icmp_send`, `icmp6_send`).
fn class_of_error(packet: &[u8]) -> u8 {
    const TYPE_OF_SERVICE: u8 = 0x1e;
    const INTERNETWORK_CONTROL: u8 = 0xc0;
    match packet[0] >> 4 {
        4 => packet[1] & TYPE_OF_SERVICE | INTERNETWORK_CONTROL,
        _ => 0,
    }
}

/// What an error does beside being told.
#[derive(Clone, Copy)]
struct Weight {
    /// A UDP socket with a peer hears of it unasked (`fatal` of `icmp_err_convert`).
    is_hard: bool,
    /// A half-open connection is forgotten.
    ends_request: bool,
}

/// What an "unreachable" of IPv4 means by its code, and whether it is hard (`icmp_err_convert`). Those beyond mean nothing
/// (`NR_ICMP_UNREACH`).
fn of_unreachable_v4(code: u8) -> Option<(NetError, bool)> {
    Some(match code {
        V4_NET_UNREACHABLE | 11 => (NetError::NetworkUnreachable, false),
        V4_HOST_UNREACHABLE | 12 => (NetError::HostUnreachable, false),
        2 => (NetError::ProtocolUnreachable, true),
        V4_PORT_UNREACHABLE => (NetError::ConnectionRefused, true),
        5 => (NetError::NotSupported, false),
        6 | 9 => (NetError::NetworkUnreachable, true),
        7 => (NetError::HostDown, true),
        8 => (NetError::Isolated, true),
        10 | 13..=15 => (NetError::HostUnreachable, true),
        _ => return None,
    })
}

/// The same of IPv6 (`tab_unreach`).
fn of_unreachable_v6(code: u8) -> (NetError, bool) {
    match code {
        0 => (NetError::NetworkUnreachable, false),
        1 | 5 | 6 => (NetError::Prohibited, true),
        2 | 3 => (NetError::HostUnreachable, false),
        V6_PORT_UNREACHABLE => (NetError::ConnectionRefused, true),
        _ => (NetError::ProtocolError, true),
    }
}

/// What a message about a packet of ours says; `mtu` is what the path takes, where it says so.
fn report(error: NetError, icmp: &[u8], mtu: u32, frame: &Frame, packet: &Packet) -> Report {
    let (traffic_class, hop_limit) = wire::ip_fields(&frame.data()[packet.l3..]);
    let (offender, own) = (packet.source, packet.destination);
    Report { error, kind: icmp[0], code: icmp[1], info: mtu, offender, own, traffic_class, hop_limit }
}
