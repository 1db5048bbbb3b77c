//! Datagrams that are longer than the path takes leave in fragments (`ip_fragment`, `ip6_fragment`). Segments never do: TCP makes
//! them as long as the path takes.

use std::net::IpAddr;

use lull_nic::{Frame, FramePool};

use super::demux::{FRAGMENT, FRAGMENT_HEADER};
use super::isn::Secret;
use super::wire::{self, put16, put32};

/// "More fragments", in the word of IPv4's flags and offset.
const MORE_V4: u16 = 0x2000;
const COUNTERS: usize = 256;

/// How a datagram socket heeds the path's MTU (IP_MTU_DISCOVER).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtuDiscovery {
    /// What is too long leaves in fragments, and routers may cut what is not (IP_PMTUDISC_DONT).
    Dont,
    /// What is too long leaves in fragments; the rest must not be cut (IP_PMTUDISC_WANT).
    #[default]
    Want,
    /// What is too long for the path is refused (IP_PMTUDISC_DO).
    Do,
    /// As `Do`, by the device's MTU alone (IP_PMTUDISC_PROBE).
    Probe,
    /// As `Probe`, but routers may cut (IP_PMTUDISC_INTERFACE).
    Interface,
    /// As `Dont`, by the device's MTU alone (IP_PMTUDISC_OMIT).
    Omit,
}

impl PathMtuDiscovery {
    /// Whether what is too long leaves in fragments (`ip_sk_ignore_df`).
    pub(super) fn cuts(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Omit)
    }

    /// Whether what routers have said counts (`ip_sk_use_pmtu`).
    pub(super) fn heeds_routers(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Do)
    }

    /// Whether a socket with a peer gets an error when a router could not pass what it sent.
    pub(super) fn hears_of_routers(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    /// Whether routers may cut what leaves in one piece (`ip_dont_fragment`).
    pub(super) fn lets_routers_cut(self) -> bool {
        matches!(self, Self::Dont | Self::Interface | Self::Omit)
    }
}

/// What tells the fragments of a packet from those of others between the same addresses. An outsider cannot tell from one how many
/// packets go to others (`ip_idents_reserve`): pairs of addresses share a counter with few, and each begins elsewhere.
#[derive(Debug)]
pub(super) struct Identifications {
    secret: Secret,
    counters: Box<[u32]>,
}

impl Identifications {
    pub(super) fn new(seed: u64) -> Identifications {
        Identifications { secret: Secret::new(seed), counters: vec![0; COUNTERS].into() }
    }

    pub(super) fn next(&mut self, source: IpAddr, destination: IpAddr) -> u32 {
        let hash = self.secret.hash(0, &(source, destination));
        let counter = &mut self.counters[hash as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        ((hash >> 32) as u32).wrapping_add(*counter)
    }
}

/// The fragments of an IP packet without options or extension headers, each of `mtu_bytes` at most. Its checksums are complete.
pub(super) fn cut(packet: &Frame, mtu_bytes: usize, id: u32, pool: &mut FramePool) -> Vec<Frame> {
    let bytes = packet.data();
    let is_v4 = bytes[0] >> 4 == 4;
    let header = if is_v4 { wire::IPV4 } else { wire::IPV6 };
    let room = mtu_bytes - header - if is_v4 { 0 } else { FRAGMENT_HEADER };
    let (header, payload) = bytes.split_at(header);
    let extension: &[u8] = if is_v4 { &[] } else { &[0; FRAGMENT_HEADER] };
    let mut offset = 0;
    let parts = payload.chunks(room & !7).map(|part| {
        let more = offset + part.len() < payload.len();
        let mut frame = gathered(&[header, extension, part], pool);
        let bytes = frame.data_mut();
        if is_v4 {
            put16(bytes, 2, (header.len() + part.len()) as u16);
            wire::set_fragment_v4(bytes, id as u16, (offset / 8) as u16 | if more { MORE_V4 } else { 0 });
        } else {
            put16(bytes, 4, (FRAGMENT_HEADER + part.len()) as u16);
            bytes[6] = FRAGMENT;
            let extension = &mut bytes[header.len()..];
            extension[0] = header[6];
            put16(extension, 2, offset as u16 | u16::from(more));
            put32(extension, 4, id);
        }
        frame.set_sender(packet.sender());
        offset += part.len();
        frame
    });
    parts.collect()
}

fn gathered(parts: &[&[u8]], pool: &mut FramePool) -> Frame {
    let mut frame = wire::frame_of(pool, parts.iter().map(|part| part.len()).sum());
    let mut at = 0;
    for part in parts {
        frame.data_mut()[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    frame
}
