//! The bytes of an Ethernet frame with an IPv4 TCP segment or an ARP message: written from a template, read with the
//! checks that a TCP endpoint owes.

use std::net::Ipv4Addr;

use lull_nic::wire::{PROTOCOL_TCP, adds_up, be16, be32, fold, pseudo_sum_of, sum};
use lull_nic::{Checksum, Frame};

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const HEADER_BYTES: usize = ETHERNET_BYTES + 20 + 20;
const IP_AT: usize = ETHERNET_BYTES;
const TCP_AT: usize = ETHERNET_BYTES + 20;
const ARP_BYTES: usize = ETHERNET_BYTES + 28;

pub(super) use lull_nic::wire::{ACK, FIN, PSH, RST, SYN};

/// The receive window that every segment offers: what arrives in order is consumed at once, so it is always open.
pub(super) const WINDOW: u16 = 65_535;

/// A received segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Maximum segment size option, 0 if there is none.
    pub mss: u16,
    /// Where the payload begins in the frame.
    pub payload_at: usize,
    pub payload_bytes: usize,
}

/// An ARP message's sender, and the address that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arp {
    pub request: bool,
    pub sender_mac: [u8; 6],
    pub sender: Ipv4Addr,
    pub target: Ipv4Addr,
}

/// The content of a frame, as far as this client uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Segment(Segment),
    Arp(Arp),
    /// The frame is for another station, malformed, or has a wrong checksum.
    Other,
}

/// The header of one client's segments: all its connections differ only in the source port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    header: [u8; HEADER_BYTES],
    /// Sums of the constant words of the IP header and of the pseudo-header: addresses and protocol.
    ip_sum: u64,
    pseudo_sum: u64,
    /// Whether the device fills the TCP checksum in.
    offload: bool,
    local: Ipv4Addr,
    peer: Ipv4Addr,
    peer_port: u16,
}

/// One segment to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
}

impl Template {
    pub fn new(
        (local_mac, local): ([u8; 6], Ipv4Addr),
        (peer_mac, peer, peer_port): ([u8; 6], Ipv4Addr, u16),
        offload: bool,
    ) -> Template {
        let mut header = [0; HEADER_BYTES];
        header[0..6].copy_from_slice(&peer_mac);
        header[6..12].copy_from_slice(&local_mac);
        header[12..14].copy_from_slice(&[0x08, 0x00]);
        header[IP_AT] = 0x45;
        header[IP_AT + 6] = 0x40; // do not fragment
        header[IP_AT + 8] = 64; // hops
        header[IP_AT + 9] = 6; // TCP
        header[IP_AT + 12..IP_AT + 16].copy_from_slice(&local.octets());
        header[IP_AT + 16..IP_AT + 20].copy_from_slice(&peer.octets());
        header[TCP_AT + 2..TCP_AT + 4].copy_from_slice(&peer_port.to_be_bytes());
        header[TCP_AT + 14..TCP_AT + 16].copy_from_slice(&WINDOW.to_be_bytes());
        let ip_sum = sum(&header[IP_AT..TCP_AT]);
        let pseudo_sum = pseudo_sum_of(&header[IP_AT + 12..TCP_AT], PROTOCOL_TCP, 0);
        Template { header, ip_sum, pseudo_sum, offload, local, peer, peer_port }
    }

    /// Writes the header into a frame that already holds the payload (and options) behind it.
    #[inline]
    pub fn write(&self, frame: &mut Frame, fields: Fields, option_bytes: usize) {
        let tcp_bytes = frame.len() - TCP_AT;
        let data = frame.data_mut();
        data[..HEADER_BYTES].copy_from_slice(&self.header);
        let ip_bytes = (tcp_bytes + 20) as u16;
        data[IP_AT + 2..IP_AT + 4].copy_from_slice(&ip_bytes.to_be_bytes());
        let ip_checksum = !fold(self.ip_sum + u64::from(ip_bytes.to_be()));
        data[IP_AT + 10..IP_AT + 12].copy_from_slice(&ip_checksum.to_ne_bytes());
        data[TCP_AT..TCP_AT + 2].copy_from_slice(&fields.port.to_be_bytes());
        data[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&fields.seq.to_be_bytes());
        data[TCP_AT + 8..TCP_AT + 12].copy_from_slice(&fields.ack.to_be_bytes());
        data[TCP_AT + 12] = (5 + (option_bytes / 4) as u8) << 4;
        data[TCP_AT + 13] = fields.flags;
        let pseudo = self.pseudo_sum + u64::from((tcp_bytes as u32).to_be());
        let checksum = if self.offload {
            // A device that completes checksums expects to find the sum of the pseudo-header here.
            fold(pseudo)
        } else {
            !fold(pseudo + sum(&data[TCP_AT..]))
        };
        data[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&checksum.to_ne_bytes());
        if self.offload {
            frame.set_checksum(Checksum::Partial);
        }
    }

    /// Reads a frame. A chain's headers are in its first segment.
    #[inline]
    pub fn read(&self, frame: &Frame) -> Received {
        let data = frame.data();
        if data.len() < ARP_BYTES {
            return Received::Other;
        }
        match [data[12], data[13]] {
            [0x08, 0x00] => self.read_segment(frame, data).map_or(Received::Other, Received::Segment),
            [0x08, 0x06] => read_arp(data).map_or(Received::Other, Received::Arp),
            _ => Received::Other,
        }
    }

    #[inline]
    fn read_segment(&self, frame: &Frame, data: &[u8]) -> Option<Segment> {
        if data.len() < HEADER_BYTES || data[IP_AT] >> 4 != 4 {
            return None;
        }
        let ip_header = usize::from(data[IP_AT] & 0x0f) * 4;
        let ip_bytes = usize::from(be16(data, IP_AT + 2));
        let fragment = be16(data, IP_AT + 6) & 0x3fff;
        let tcp_at = IP_AT + ip_header;
        if ip_header < 20 || fragment != 0 || data[IP_AT + 9] != 6 || data.len() < tcp_at + 20 {
            return None;
        }
        let for_us = data[IP_AT + 16..IP_AT + 20] == self.local.octets()
            && data[IP_AT + 12..IP_AT + 16] == self.peer.octets()
            && be16(data, tcp_at) == self.peer_port;
        let tcp_header = usize::from(data[tcp_at + 12] >> 4) * 4;
        let payload_at = tcp_at + tcp_header;
        let in_frame = if frame.next().is_none() { data.len() } else { frame.chain_len() };
        // With segmentation offload the total length may be more than the field holds, and is then 0.
        let end = if ip_bytes == 0 { in_frame } else { IP_AT + ip_bytes };
        if !for_us || tcp_header < 20 || payload_at > data.len() || end > in_frame || end < payload_at {
            return None;
        }
        if frame.checksum() == Checksum::None && !checksums_hold(frame, tcp_at, end) {
            return None;
        }
        Some(Segment {
            port: be16(data, tcp_at + 2),
            seq: be32(data, tcp_at + 4),
            ack: be32(data, tcp_at + 8),
            flags: data[tcp_at + 13],
            window: be16(data, tcp_at + 14),
            mss: if data[tcp_at + 13] & SYN != 0 { mss_option(&data[tcp_at + 20..payload_at]) } else { 0 },
            payload_at,
            payload_bytes: end - payload_at,
        })
    }
}

/// Writes an ARP message.
pub(super) fn write_arp(frame: &mut Frame, request: bool, from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) {
    frame.set_len(ARP_BYTES);
    let data = frame.data_mut();
    data[0..6].copy_from_slice(if request { &[0xff; 6] } else { &to.0 });
    data[6..12].copy_from_slice(&from.0);
    // The fields are type ARP; Ethernet and IPv4 addresses of 6 and 4 bytes; the operation.
    data[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, if request { 1 } else { 2 }]);
    data[22..28].copy_from_slice(&from.0);
    data[28..32].copy_from_slice(&from.1.octets());
    data[32..38].copy_from_slice(if request { &[0; 6] } else { &to.0 });
    data[38..42].copy_from_slice(&to.1.octets());
}

fn read_arp(data: &[u8]) -> Option<Arp> {
    if data[14..20] != [0, 1, 0x08, 0x00, 6, 4] {
        return None;
    }
    Some(Arp {
        request: be16(data, 20) == 1,
        sender_mac: std::array::from_fn(|index| data[22 + index]),
        sender: Ipv4Addr::from(be32(data, 28)),
        target: Ipv4Addr::from(be32(data, 38)),
    })
}

fn mss_option(mut options: &[u8]) -> u16 {
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return 0,
            1 => options = rest,
            2 if rest.len() >= 3 && rest[0] == 4 => return be16(rest, 1),
            _ => match rest.first() {
                Some(len) if *len >= 2 && usize::from(*len) <= options.len() => {
                    options = &options[usize::from(*len)..];
                }
                _ => return 0,
            },
        }
    }
    0
}

/// Whether the IP header's and the segment's checksums are right. `end` is where the segment ends in the chain.
fn checksums_hold(frame: &Frame, tcp_at: usize, end: usize) -> bool {
    let data = frame.data();
    if !adds_up(0, &data[IP_AT..tcp_at]) {
        return false;
    }
    let mut total = pseudo_sum_of(&data[IP_AT + 12..IP_AT + 20], PROTOCOL_TCP, end - tcp_at);
    let mut odd = false;
    let mut from = tcp_at;
    let mut left = end - tcp_at;
    let mut at = Some(frame);
    while let Some(part) = at {
        let bytes = &part.data()[from..];
        let bytes = &bytes[..bytes.len().min(left)];
        let part_sum = fold(sum(bytes));
        // A part that begins at an odd offset has its bytes in the other halves of the words.
        total += u64::from(if odd { part_sum.swap_bytes() } else { part_sum });
        odd ^= bytes.len() % 2 == 1;
        left -= bytes.len();
        from = 0;
        at = part.next();
    }
    fold(total) == 0xffff
}
