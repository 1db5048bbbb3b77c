//! Packets that come in fragments (RFC 791 section 3.2, RFC 8200 section 4.5): what came is kept until the rest is there, and then
//! the packet goes on as if it had come in one frame.
//!
//! The rules are Linux's (`ip_frag_queue`, `ip6_frag_queue`, `inet_frag_queue_insert`). A fragment that came before is
//! ignored, and one that overlaps another spoils its packet (RFC 5722), since nobody has an honest reason to send such.
//! A packet that is not whole in time is forgotten, and its sender is told if its first fragment came. All packets
//! together hold a bounded memory: the oldest makes room.
//!
//! The data is copied, because a frame may belong to a device, which cannot wait half a minute for it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;

use lull_nic::{Frame, FramePool};

use super::demux::{FRAGMENT, FRAGMENT_HEADER, Inbound, Packet, Reason};
use super::timers::NEVER_NS;
use super::wire::{self, be16, be32, put16};

/// How long fragments wait for the others (`net.ipv4.ipfrag_time`), and those of IPv6 (`net.ipv6.ip6frag_time`, RFC 8200).
const WAIT_V4_NS: u64 = 30_000_000_000;
const WAIT_V6_NS: u64 = 60_000_000_000;
/// What a shard holds of packets that are not whole (`net.ipv4.ipfrag_high_thresh`).
pub(super) const HELD_BYTES_MAX: usize = 4 << 20;
/// What a packet, and a fragment, counts for beside its data, so that many small ones are bounded, too.
const PACKET_BYTES: usize = 512;
const PIECE_BYTES: usize = 64;

pub(super) const REFUSED: Reason = |counters| &mut counters.drop_fragment;

/// What the fragments of a packet have in common. The protocol is compared for IPv4 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    protocol: u8,
}

/// Packets that are not whole yet.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partial: HashMap<Name, Partial>,
    /// The next to be given up first.
    pub(super) by_age: BTreeSet<(Age, Name)>,
    begun: u64,
    pub(super) held_bytes: usize,
}

/// When a packet is given up, and its number in the order in which packets began.
pub(super) type Age = (u64, u64);

/// What came of a packet.
#[derive(Debug)]
pub(super) struct Partial {
    age: Age,
    held_bytes: usize,
    /// The pieces of data, each with the place of its first byte, in the order in which they came.
    pieces: Vec<(usize, Box<[u8]>)>,
    /// The places for which there is data: in order, none touching another.
    runs: Vec<Range<usize>>,
    /// The length of the whole, once its last fragment has come.
    length: Option<usize>,
    /// The first fragment, from its Ethernet header on, and what was found of it.
    pub(super) first: Option<(Box<[u8]>, Packet)>,
}

/// A fragment.
pub(super) struct Piece {
    pub(super) name: Name,
    /// Of its data in the packet's, and in the frame.
    place: Range<usize>,
    data: Range<usize>,
    is_last: bool,
}

impl Piece {
    pub(super) fn of(frame: &Frame, packet: &Packet) -> Piece {
        let bytes = frame.data();
        let &Packet { l3, l4, end, source, destination, protocol, .. } = packet;
        let (id, word, data, protocol) = match source {
            // Three bits of flags, and the offset in units of eight bytes.
            IpAddr::V4(_) => (be16(bytes, l3 + 4).into(), be16(bytes, l3 + 6).rotate_left(3), l4..end, protocol),
            // The offset, two bits that mean nothing, and one flag.
            IpAddr::V6(_) => (be32(bytes, l4 + 4), be16(bytes, l4 + 2), l4 + FRAGMENT_HEADER..end, 0),
        };
        let offset = usize::from(word & !7);
        Piece {
            name: Name { source, destination, id, protocol },
            place: offset..offset + data.len(),
            data,
            is_last: word & 1 == 0,
        }
    }

    /// Whether it can be one: there is data, and the next one begins at a multiple of eight bytes.
    pub(super) fn is_sound(&self) -> bool {
        !self.data.is_empty() && (self.is_last || self.data.len().is_multiple_of(8))
    }

    /// Whether the packet has the length that its header can tell.
    fn fits(&self, packet: &Packet) -> bool {
        let counted = if packet.source.is_ipv4() { packet.l3 } else { packet.l3 + wire::IPV6 };
        packet.l4 - counted + self.place.end <= usize::from(u16::MAX)
    }
}

/// What a fragment is to those that came before.
#[derive(PartialEq, Eq)]
pub(super) enum Fit {
    New,
    Known,
    Contradiction,
}

impl Partial {
    fn new(age: Age) -> Partial {
        Partial { age, held_bytes: PACKET_BYTES, pieces: Vec::new(), runs: Vec::new(), length: None, first: None }
    }

    /// Notes the place of a fragment's data.
    fn take_place(&mut self, piece: &Piece) -> Fit {
        let Range { start, end } = piece.place;
        let beyond = match self.length {
            Some(length) => end > length || piece.is_last && end != length,
            None => piece.is_last && self.runs.last().is_some_and(|run| run.end > end),
        };
        let next = self.runs.partition_point(|run| run.end <= start);
        match self.runs.get(next) {
            _ if beyond => return Fit::Contradiction,
            Some(run) if run.start <= start && end <= run.end => return Fit::Known,
            Some(run) if run.start < end => return Fit::Contradiction,
            _ => {}
        }
        let joins_next = self.runs.get(next).is_some_and(|run| run.start == end);
        match next.checked_sub(1).filter(|&before| self.runs[before].end == start) {
            Some(before) if joins_next => self.runs[before].end = self.runs.remove(next).end,
            Some(before) => self.runs[before].end = end,
            None if joins_next => self.runs[next].start = start,
            None => self.runs.insert(next, start..end),
        }
        if piece.is_last {
            self.length = Some(end);
        }
        Fit::New
    }

    fn keep(&mut self, piece: &Piece, frame: &Frame, packet: &Packet) {
        let data = &frame.data()[piece.data.clone()];
        let mut cost = data.len() + PIECE_BYTES;
        if piece.place.start == 0 {
            self.first = Some((frame.data()[..packet.end].into(), *packet));
            cost += packet.end;
        }
        self.pieces.push((piece.place.start, data.into()));
        self.held_bytes += cost;
    }

    fn whole_length(&self) -> Option<usize> {
        let [run] = self.runs.as_slice() else { return None };
        self.length.filter(|&length| *run == (0..length))
    }

    /// The packet in one frame, with the headers of its first fragment.
    pub(super) fn into_whole(self, pool: &mut FramePool) -> Option<Frame> {
        let length = self.whole_length()?;
        let (first, packet) = self.first?;
        let mut frame = wire::frame_of(pool, packet.l4 + length);
        let bytes = frame.data_mut();
        bytes[..packet.l4].copy_from_slice(&first[..packet.l4]);
        for (start, data) in &self.pieces {
            bytes[packet.l4 + start..][..data.len()].copy_from_slice(data);
        }
        make_whole(bytes, &first, &packet);
        Some(frame)
    }
}

/// Has the header say that the packet is no fragment, and how long it is.
fn make_whole(bytes: &mut [u8], first: &[u8], packet: &Packet) {
    let (l3, l4, end) = (packet.l3, packet.l4, bytes.len());
    if packet.source.is_ipv4() {
        put16(bytes, l3 + 2, (end - l3) as u16);
        put16(bytes, l3 + 6, 0);
        put16(bytes, l3 + 10, 0);
        wire::put_checksum(&mut bytes[l3..l4], 10, 0);
        return;
    }
    put16(bytes, l3 + 4, (end - l3 - wire::IPV6) as u16);
    // The header before the fragment's names what followed that.
    let (mut names, mut next) = (l3 + 6, l3 + wire::IPV6);
    while bytes[names] != FRAGMENT && next < l4 {
        (names, next) = (next, next + 8 + usize::from(bytes[next + 1]) * 8);
    }
    bytes[names] = first[l4];
}

/// What a packet is once it is whole again. A fragment within fragments is ignored, and so is neighbour discovery in
/// fragments (RFC 6980).
pub(super) fn of_whole(frame: &Frame) -> impl FnOnce(Inbound) -> Result<Inbound, Reason> {
    move |inbound| match inbound {
        Inbound::Ip(packet) if !packet.is_neighbour_discovery(frame) => Ok(inbound),
        _ => Err(REFUSED),
    }
}

impl Reassembly {
    /// When the next packet is given up.
    #[inline]
    pub(super) fn next_deadline_ns(&self) -> u64 {
        self.by_age.first().map_or(NEVER_NS, |&((until_ns, _), _)| until_ns)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<Partial> {
        let partial = self.partial.remove(name)?;
        self.by_age.remove(&(partial.age, *name));
        self.held_bytes -= partial.held_bytes;
        Some(partial)
    }

    /// Takes a fragment in. Returns what its packet is now, and whether all of it is there.
    pub(super) fn add(&mut self, piece: &Piece, frame: &Frame, packet: &Packet, now_ns: u64) -> (Fit, bool) {
        let wait_ns = if packet.source.is_ipv4() { WAIT_V4_NS } else { WAIT_V6_NS };
        let partial = self.partial.entry(piece.name).or_insert_with(|| {
            self.begun += 1;
            let age = (now_ns.saturating_add(wait_ns), self.begun);
            self.by_age.insert((age, piece.name));
            self.held_bytes += PACKET_BYTES;
            Partial::new(age)
        });
        let fit = if piece.fits(packet) { partial.take_place(piece) } else { Fit::Contradiction };
        if fit == Fit::New {
            let before = partial.held_bytes;
            partial.keep(piece, frame, packet);
            self.held_bytes += partial.held_bytes - before;
        }
        let is_whole = partial.whole_length().is_some();
        (fit, is_whole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(place: Range<usize>, is_last: bool) -> Piece {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let name = Name { source: ip, destination: ip, id: 0, protocol: 0 };
        Piece { name, data: place.clone(), place, is_last }
    }

    proptest! {
        /// However they come, fragments are a whole packet when all of it is there and not before, and an overlap is never taken.
        #[test]
        fn places_are_whole_when_all_are_there(
            cuts in proptest::collection::btree_set(1_usize..60, 0..10),
            order in any::<u64>(),
            overlap in (0_usize..60, 1_usize..60),
        ) {
            let mut bounds: Vec<usize> = std::iter::once(0).chain(cuts).chain([60]).collect();
            let mut pieces: Vec<_> = bounds.windows(2).map(|pair| piece(pair[0]..pair[1], pair[1] == 60)).collect();
            bounds.clear();
            let mut random = order;
            for last in (1..pieces.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(last, (random >> 33) as usize % (last + 1));
            }
            let mut partial = Partial::new((0, 0));
            let mut there = [false; 60];
            for piece in pieces {
                prop_assert!(partial.whole_length().is_none());
                prop_assert!(partial.take_place(&piece) == Fit::New);
                prop_assert!(partial.take_place(&piece) == Fit::Known);
                there[piece.place.clone()].fill(true);
                let (start, end) = (overlap.0, (overlap.0 + overlap.1).min(60));
                let old = there[start..end].iter().filter(|is_there| **is_there).count();
                if old > 0 {
                    let again = self::piece(start..end, false);
                    let fit = partial.take_place(&again);
                    let expected = if old == end - start { Fit::Known } else { Fit::Contradiction };
                    prop_assert!(fit == expected);
                }
            }
            prop_assert!(partial.whole_length() == Some(60));
        }
    }
}
