//! Generic receive offload: TCP segments of one stream that came one behind the other go through the stack as one.
//!
//! The rules are Linux's (`inet_gro_receive`, `ipv6_gro_receive`, `tcp_gro_receive`, `skb_gro_receive`). A segment
//! joins the one that is held if both are of one flow, it begins where that ends, and nothing else differs:
//! acknowledgement, window, flags but PSH and FIN, every byte of the options (timestamps with them), traffic class, hop
//! limit, and the IPv4 identification goes on where fragments are allowed. What is held is passed up, in its order,
//! when
//!
//! ```text
//! the segment ends a burst   PSH, FIN, or shorter than those before it
//! it does not fit            something differs, 64 KB, or SEGMENTS_MAX segments
//! too many flows are held    the oldest (`MAX_GRO_SKBS`)
//! the executor says so       at the completion of a poll: all, or those older than a jiffy (`napi_gro_flush`)
//! ```
//!
//! Everything that is not plain data (SYN, RST, URG, no payload, PSH on the first) passes at once, behind what is held of its
//! flow. So the order of a flow's segments is what it was.
//!
//! A segment's checksums are looked at before it is held; one that is wrong passes as it is, and the stack refuses it.
//!
//! Datagrams are joined for a UDP socket that asks for it (`datagrams`).

mod datagrams;

use std::collections::VecDeque;

use lull_nic::{Checksum, Frame, Segmentation};

use super::wire::{self, ACK, FIN, PSH, RST, SYN, be16, be32, put16};

/// Flows that are held at once (`MAX_GRO_SKBS`; Linux has eight lists of as many).
const FLOWS_MAX: usize = 8;
/// Segments in one (`MAX_SKB_FRAGS`).
const SEGMENTS_MAX: usize = 17;
/// Bytes in one, from the IP header on (`GRO_LEGACY_MAX_SIZE`).
const BYTES_MAX: usize = 65_536;
/// What "older than a jiffy" means: HZ is 250 in most distributions.
const JIFFY_NS: u64 = 4_000_000;
const URG: u8 = 32;
const CWR: u8 = 128;
/// Don't fragment, in the third byte of IPv4's flags and offset.
const DONT_FRAGMENT: u8 = 0x40;

/// What a frame says, if it is of the protocol asked for and may be looked at further: no IP options, no fragment, no extension
/// headers.
#[derive(Clone, Copy)]
struct Seen {
    protocol: u8,
    l4: usize,
    payload: usize,
    end: usize,
    is_v4: bool,
}

impl Seen {
    fn of(data: &[u8], protocol: u8) -> Option<Seen> {
        const L3: usize = wire::ETHERNET;
        let (l4, end, is_v4) = match data.get(12..L3)? {
            [0x08, 0x00] => {
                let header = data.get(L3..L3 + wire::IPV4)?;
                let whole = header[6] & !DONT_FRAGMENT == 0 && header[7] == 0;
                if header[0] != 0x45 || header[9] != protocol || !whole {
                    return None;
                }
                (L3 + wire::IPV4, L3 + usize::from(be16(header, 2)), true)
            }
            [0x86, 0xdd] => {
                let header = data.get(L3..L3 + wire::IPV6)?;
                if header[0] >> 4 != 6 || header[6] != protocol {
                    return None;
                }
                (L3 + wire::IPV6, L3 + wire::IPV6 + usize::from(be16(header, 4)), false)
            }
            _ => return None,
        };
        let transport = data.get(l4..end)?;
        let (header, least) = match protocol {
            wire::PROTOCOL_UDP => (wire::UDP, wire::UDP),
            _ => (usize::from(*transport.get(12)? >> 4) * 4, wire::TCP),
        };
        let seen = Seen { protocol, l4, payload: l4 + header, end, is_v4 };
        (header >= least && header <= transport.len()).then_some(seen)
    }

    fn transport<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.l4..self.end]
    }

    fn length(&self) -> usize {
        self.end - self.payload
    }

    /// Addresses and ports, of stations as well.
    fn is_same_flow(&self, data: &[u8], other: &Seen, others: &[u8]) -> bool {
        let addresses = if self.is_v4 { wire::ETHERNET + 12 } else { wire::ETHERNET + 8 };
        // The ports stand right behind the addresses.
        let flow = addresses..self.l4 + 4;
        (self.is_v4, self.protocol) == (other.is_v4, other.protocol)
            && data[flow.clone()] == others[flow]
            && data[..wire::ETHERNET] == others[..wire::ETHERNET]
    }

    /// Both checksums are right, or need no look.
    fn adds_up(&self, frame: &Frame) -> bool {
        let data = frame.data();
        let header = &data[wire::ETHERNET..self.l4];
        if self.is_v4 && !wire::adds_up(0, header) {
            return false;
        }
        if frame.checksum() != Checksum::None {
            return true;
        }
        let addresses = if self.is_v4 { &header[12..] } else { &header[8..] };
        let transport = self.transport(data);
        wire::adds_up(wire::pseudo_sum_of(addresses, self.protocol, transport.len()), transport)
    }
}

/// Whether a frame is a TCP segment with PSH, if it is one, and one without options before it.
#[inline]
fn seems_to_push(data: &[u8]) -> bool {
    const FLAGS: usize = 13;
    let l4 = wire::ETHERNET + if data.get(12) == Some(&0x86) { wire::IPV6 } else { wire::IPV4 };
    data.get(l4 + FLAGS).is_some_and(|flags| flags & PSH != 0)
}

/// Segments that go on as one.
struct Held {
    first: Frame,
    seen: Seen,
    /// Those that joined it, their headers taken off.
    rest: Vec<Frame>,
    /// Payload of all.
    bytes: usize,
    /// Payload of the first (`gso_size`).
    segment_bytes: usize,
    next_seq: u32,
    /// Flags that those that joined brought.
    flags: u8,
    since_ns: u64,
}

impl Held {
    fn new(first: Frame, seen: Seen, now_ns: u64) -> Held {
        // A datagram has none, and is never asked for it.
        let next_seq = be32(seen.transport(first.data()), 4).wrapping_add(seen.length() as u32);
        let bytes = seen.length();
        Held { first, seen, rest: Vec::new(), bytes, segment_bytes: bytes, next_seq, flags: 0, since_ns: now_ns }
    }

    /// Whether a segment of the same flow goes on where this ends, and differs in nothing else.
    fn continues(&self, seen: &Seen, frame: &Frame) -> bool {
        let (ours, theirs) = (self.first.data(), frame.data());
        let (first, next) = (self.seen.transport(ours), seen.transport(theirs));
        let header = self.seen.payload - self.seen.l4;
        let same_headers = header == seen.payload - seen.l4
            && first[8..12] == next[8..12]
            && first[12] == next[12]
            && (first[13] ^ next[13]) & !(CWR | FIN | PSH) == 0
            && next[13] & CWR == 0
            && first[14..16] == next[14..16]
            && first[wire::TCP..header] == next[wire::TCP..header];
        let fits = seen.length() <= self.segment_bytes
            && self.rest.len() + 1 < SEGMENTS_MAX
            && self.seen.payload - wire::ETHERNET + self.bytes + seen.length() < BYTES_MAX;
        same_headers && fits && be32(next, 4) == self.next_seq && self.same_packets(ours, theirs)
    }

    /// Traffic class, hop limit; for IPv4, where fragments are allowed, an identification that goes on.
    fn same_packets(&self, ours: &[u8], theirs: &[u8]) -> bool {
        let (ours, theirs) = (&ours[wire::ETHERNET..], &theirs[wire::ETHERNET..]);
        if !self.seen.is_v4 {
            return ours[..4] == theirs[..4] && ours[7] == theirs[7];
        }
        let id = be16(ours, 4).wrapping_add(1 + self.rest.len() as u16);
        ours[1] == theirs[1]
            && ours[6] == theirs[6]
            && ours[8] == theirs[8]
            && (ours[6] & DONT_FRAGMENT != 0 || be16(theirs, 4) == id)
    }

    /// Takes a segment that continues it.
    fn join(&mut self, frame: Frame, seen: &Seen) {
        self.flags |= frame.data()[seen.l4 + 13] & (FIN | PSH);
        self.next_seq = self.next_seq.wrapping_add(seen.length() as u32);
        self.append(frame, seen);
    }

    fn append(&mut self, mut frame: Frame, seen: &Seen) {
        self.bytes += seen.length();
        frame.set_len(seen.end);
        frame.pull_front(seen.payload);
        self.rest.push(frame);
    }

    /// The one frame that all have become.
    fn into_frame(mut self) -> Frame {
        if self.rest.is_empty() {
            return self.first;
        }
        self.first.set_len(self.seen.end);
        let (l4, payload, is_v4) = (self.seen.l4, self.seen.payload, self.seen.is_v4);
        let data = self.first.data_mut();
        match self.seen.protocol {
            wire::PROTOCOL_UDP => put16(data, l4 + 4, (payload - l4 + self.bytes) as u16),
            _ => data[l4 + 13] |= self.flags,
        }
        let packet = &mut data[wire::ETHERNET..];
        if is_v4 {
            put16(packet, 2, (payload - wire::ETHERNET + self.bytes) as u16);
            put16(packet, 10, 0);
            wire::put_checksum(&mut packet[..wire::IPV4], 10, 0);
        } else {
            put16(packet, 4, (payload - l4 + self.bytes) as u16);
        }
        // Each was right.
        self.first.set_checksum(Checksum::Unnecessary);
        if self.seen.protocol == wire::PROTOCOL_UDP {
            self.first.set_segmentation(Segmentation::Udp { datagram_bytes: self.segment_bytes as u16 });
        }
        let chain = self.rest.into_iter().rev().fold(None, |behind, mut frame| {
            frame.set_next(behind);
            Some(frame)
        });
        self.first.set_next(chain);
        self.first
    }
}

/// What one queue holds back, to go through the stack as one. The rules stand at the head of this file.
#[derive(Default)]
pub struct Gro {
    /// Oldest first.
    held: VecDeque<Held>,
}

impl Gro {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes a received frame: it is held, joins what is held, or passes. `pass` gets what goes on to the stack, in its order.
    #[inline]
    pub fn receive(&mut self, mut frame: Frame, now_ns: u64, pass: &mut impl FnMut(Frame)) {
        // The usual request while nothing is held takes no more than this look; whatever looks like one would pass in
        // any case.
        if self.held.is_empty() && seems_to_push(frame.data()) {
            return pass(frame);
        }
        // The device has done it already, or the memory is not in one piece.
        let seen = if frame.next().is_none() { Seen::of(frame.data(), wire::PROTOCOL_TCP) } else { None };
        let Some(seen) = seen else { return pass(frame) };
        let flags = frame.data()[seen.l4 + 13];
        let same_flow = |held: &Held| held.seen.is_same_flow(held.first.data(), &seen, frame.data());
        let place = self.held.iter().position(same_flow);
        // Where a frame has been is said of it alone.
        let is_passed_on = frame.seen_by() != 0;
        let holdable = flags & (SYN | RST | URG | FIN | PSH | ACK | CWR) == ACK && seen.length() > 0 && !is_passed_on;
        if place.is_none() && !holdable {
            return pass(frame);
        }
        let right = seen.adds_up(&frame);
        if right && frame.checksum() == Checksum::None {
            frame.set_checksum(Checksum::Unnecessary);
        }
        if let Some(place) = place {
            let held = &mut self.held[place];
            let joins = right && seen.length() > 0 && flags & (SYN | RST | URG) == 0 && !is_passed_on;
            if joins && held.continues(&seen, &frame) {
                let ends = flags & (FIN | PSH) != 0 || seen.length() < held.segment_bytes;
                held.join(frame, &seen);
                if ends {
                    self.give_up(place, pass);
                }
                return;
            }
            self.give_up(place, pass);
        }
        if !holdable || !right {
            return pass(frame);
        }
        self.hold(frame, seen, now_ns, pass);
    }

    /// Holds the first one of a flow.
    fn hold(&mut self, frame: Frame, seen: Seen, now_ns: u64, pass: &mut impl FnMut(Frame)) {
        if self.held.len() == FLOWS_MAX {
            self.give_up(0, pass);
        }
        self.held.push_back(Held::new(frame, seen, now_ns));
    }

    fn give_up(&mut self, place: usize, pass: &mut impl FnMut(Frame)) {
        if let Some(held) = self.held.remove(place) {
            pass(held.into_frame());
        }
    }

    /// Passes up everything (`napi_gro_flush`).
    pub fn flush(&mut self, pass: &mut impl FnMut(Frame)) {
        self.held.drain(..).for_each(|held| pass(held.into_frame()));
    }

    /// Passes up what is older than a jiffy; a timer takes care of the rest.
    pub fn flush_old(&mut self, now_ns: u64, pass: &mut impl FnMut(Frame)) {
        while self.held.front().is_some_and(|held| now_ns.saturating_sub(held.since_ns) > JIFFY_NS) {
            self.give_up(0, pass);
        }
    }
}
