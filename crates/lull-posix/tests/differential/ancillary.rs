//! Ancillary data: what is asked for by it, and what is told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::c_int;
use proptest::prelude::*;
use proptest::sample::select;

use super::machine::Machine;
use super::words;

/// `cmsghdr`: length, level, type; what follows is aligned to eight bytes.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
/// How long each of several datagrams is that one call sends.
pub const EACH_BYTES: c_int = 100;
/// An address that is nobody's (RFC 5737).
const FOREIGN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Options that ask for it, and others that are numbers, of datagram sockets. Without UDP_GRO, as who joins datagrams on loopback
/// is nobody.
pub const OPTIONS: [(c_int, c_int); 14] = [
    (libc::SOL_IP, libc::IP_PKTINFO),
    (libc::SOL_IP, libc::IP_PKTINFO),
    (libc::SOL_IP, libc::IP_RECVTTL),
    (libc::SOL_IP, libc::IP_RECVTOS),
    (libc::SOL_IP, libc::IP_RECVERR),
    (libc::SOL_IP, libc::IP_RECVERR),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IP, libc::IP_TTL),
    (libc::SOL_IP, libc::IP_TOS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_UDP, libc::UDP_CORK),
    (libc::SOL_UDP, libc::UDP_SEGMENT),
    (libc::SOL_UDP, libc::UDP_GRO),
];

/// One header of ancillary data with what follows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// IP_PKTINFO: whose address it is to be sent from.
    Source(Source),
    /// Level, type and data.
    Plain(c_int, c_int, Vec<u8>),
    /// The same, with a length in its header that is so much longer.
    Wrong(c_int, c_int, Vec<u8>, isize),
    /// Fewer bytes than a header has.
    Rest(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    Own,
    Any,
    Foreign,
}

/// Without SO_PRIORITY, which is refused as by a kernel before 6.14 (docs/user_plane.md, Limits).
fn plain() -> impl Strategy<Value = (c_int, c_int, Vec<u8>)> {
    let int = |value: c_int| value.to_ne_bytes().to_vec();
    select(vec![
        (libc::SOL_IP, libc::IP_TTL, int(9)),
        (libc::SOL_IP, libc::IP_TTL, int(0)),
        (libc::SOL_IP, libc::IP_TTL, int(256)),
        (libc::SOL_IP, libc::IP_TTL, vec![9]),
        (libc::SOL_IP, libc::IP_TOS, int(0x10)),
        (libc::SOL_IP, libc::IP_TOS, vec![0x10]),
        (libc::SOL_IP, libc::IP_TOS, int(-1)),
        (libc::SOL_IP, libc::IP_TOS, vec![1, 2]),
        (libc::SOL_IP, libc::IP_PKTINFO, vec![0; 11]),
        (libc::SOL_IP, 99, int(1)),
        (libc::SOL_IP, libc::IP_RECVERR, int(1)),
        (libc::SOL_UDP, libc::UDP_SEGMENT, (EACH_BYTES as u16).to_ne_bytes().to_vec()),
        (libc::SOL_UDP, libc::UDP_SEGMENT, (EACH_BYTES as u16).to_ne_bytes().to_vec()),
        (libc::SOL_UDP, libc::UDP_SEGMENT, 0_u16.to_ne_bytes().to_vec()),
        (libc::SOL_UDP, libc::UDP_SEGMENT, int(EACH_BYTES)),
        (libc::SOL_UDP, 99, int(1)),
        (libc::SOL_IPV6, libc::IPV6_HOPLIMIT, int(9)),
        (libc::SOL_IPV6, libc::IPV6_HOPLIMIT, int(256)),
        (libc::SOL_IPV6, libc::IPV6_TCLASS, int(9)),
        (libc::SOL_IPV6, libc::IPV6_PKTINFO, vec![0; 20]),
        (libc::SOL_IPV6, 99, int(9)),
        (libc::SOL_SOCKET, libc::SCM_RIGHTS, Vec::new()),
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS, vec![0; 12]),
        (libc::SOL_SOCKET, 99, int(1)),
        (libc::SOL_TCP, 1, int(1)),
        (12345, 1, Vec::new()),
    ])
}

/// What a message asks for.
pub fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        4 => select(vec![Source::Own, Source::Own, Source::Any, Source::Foreign]).prop_map(Piece::Source),
        8 => plain().prop_map(|(level, kind, data)| Piece::Plain(level, kind, data)),
        1 => (plain(), select(vec![1, 8, 100, -1, -17, isize::MAX]))
            .prop_map(|((level, kind, data), more)| Piece::Wrong(level, kind, data, more)),
        1 => (1..HEADER_BYTES).prop_map(Piece::Rest),
    ];
    prop_oneof![3 => Just(Vec::new()), 3 => prop::collection::vec(piece, 1..4)]
}

/// How many bytes there is room for.
pub fn room() -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(0_usize), 6 => Just(512_usize), 2 => 1..130_usize]
}

/// The bytes of ancillary data on a side, whose own address this is where it is sent from.
pub fn bytes(pieces: &[Piece], own: Ipv4Addr) -> Vec<u8> {
    let mut all = Vec::new();
    let mut put = |level: c_int, kind: c_int, data: &[u8], more: isize| {
        let length = (HEADER_BYTES + data.len()).wrapping_add_signed(more);
        all.extend(length.to_ne_bytes());
        all.extend([level, kind].map(c_int::to_ne_bytes).concat());
        all.extend(data);
        all.resize(all.len().next_multiple_of(ALIGN), 0);
    };
    let mut rest = 0;
    for piece in pieces {
        match piece {
            Piece::Source(source) => {
                let ip = match source {
                    Source::Own => own,
                    Source::Any => Ipv4Addr::UNSPECIFIED,
                    Source::Foreign => FOREIGN,
                };
                put(libc::SOL_IP, libc::IP_PKTINFO, &[[0; 4], ip.octets(), [0; 4]].concat(), 0);
            }
            Piece::Plain(level, kind, data) => put(*level, *kind, data, 0),
            Piece::Wrong(level, kind, data, more) => put(*level, *kind, data, *more),
            Piece::Rest(length) => rest = *length,
        }
    }
    all.resize(all.len() + rest, 0);
    all
}

/// Ancillary data that came, in words that are the same on both sides.
pub fn in_words(machine: Machine, mut control: &[u8]) -> String {
    let mut all = Vec::new();
    while control.len() >= HEADER_BYTES {
        let number = |at: usize| c_int::from_ne_bytes(control[at..at + 4].try_into().unwrap());
        let length = usize::from_ne_bytes(control[..8].try_into().unwrap());
        let (level, kind) = (number(8), number(12));
        let data = &control[HEADER_BYTES.min(length)..length.min(control.len())];
        let data = match (level, kind) {
            // Neither clocks nor interfaces are the same.
            (libc::SOL_SOCKET, _) => "a time".to_owned(),
            (libc::SOL_IP, libc::IP_PKTINFO) if data.len() == 12 => {
                format!("{} {}", whose(machine, &data[4..8]), whose(machine, &data[8..12]))
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) if data.len() == 20 => whose(machine, &data[..16]),
            (libc::SOL_IP, libc::IP_RECVERR) if data.len() == 32 => {
                format!("{:?} of {}", &data[..20], whose(machine, &data[20..24]))
            }
            (libc::SOL_IPV6, libc::IPV6_RECVERR) if data.len() == 44 => {
                format!("{:?} of {}", &data[..20], whose(machine, &data[24..40]))
            }
            // What was cut off may be an address.
            _ if data.len() > 4 => format!("{} bytes", data.len()),
            _ => format!("{data:?}"),
        };
        all.push(format!("{level} {kind} in {length}: {data}"));
        control = control.get(length.next_multiple_of(ALIGN).max(HEADER_BYTES)..).unwrap_or(&[]);
    }
    format!("[{}] and {} bytes", all.join("; "), control.len())
}

/// An address in words.
fn whose(machine: Machine, bytes: &[u8]) -> String {
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_canonical(),
    };
    words::whose(machine, ip).map_or_else(|| ip.to_string(), str::to_owned)
}
