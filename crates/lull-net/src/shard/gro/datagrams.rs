//! UDP datagrams of one flow, for a socket that takes several as one (UDP_GRO; `udp_gro_receive_segment`).
//!
//! All have the first one's length but the last, which may be shorter and then ends what is held, as does the
//! [`DATAGRAMS_MAX`]th. A longer one begins anew. One without a checksum, without payload, or with anything behind it is never
//! joined. Linux lets such a one overtake what is held of its flow; here it passes behind that, so that nothing of a flow ever
//! overtakes.

use lull_nic::{Checksum, Frame};

use super::{BYTES_MAX, Gro, Held, Seen};
use crate::shard::wire::{self, be16};

/// Datagrams in one (`UDP_GRO_CNT_MAX`).
const DATAGRAMS_MAX: usize = 64;

impl Seen {
    fn is_datagram_to_join(&self, frame: &Frame) -> bool {
        let udp = self.transport(frame.data());
        let (length, checksum) = (usize::from(be16(udp, 4)), be16(udp, 6));
        length > wire::UDP && length == udp.len() && checksum != 0 && self.adds_up(frame)
    }
}

impl Held {
    /// Whether a datagram of the same flow may join.
    fn takes(&self, seen: &Seen, frame: &Frame) -> bool {
        let fits = seen.length() <= self.segment_bytes
            && self.seen.payload - wire::ETHERNET + self.bytes + seen.length() < BYTES_MAX;
        fits && self.same_packets(self.first.data(), frame.data())
    }

    /// Whether nothing may follow the datagram of so many bytes that joined.
    fn ends_with(&self, bytes: usize) -> bool {
        bytes < self.segment_bytes || self.rest.len() + 1 == DATAGRAMS_MAX
    }
}

impl Gro {
    /// As [`Gro::receive`], for a frame to a UDP socket that takes several datagrams as one.
    pub fn receive_datagram(&mut self, mut frame: Frame, now_ns: u64, pass: &mut impl FnMut(Frame)) {
        let seen = if frame.next().is_none() { Seen::of(frame.data(), wire::PROTOCOL_UDP) } else { None };
        let Some(seen) = seen else { return pass(frame) };
        let joins = seen.is_datagram_to_join(&frame);
        if joins && frame.checksum() == Checksum::None {
            frame.set_checksum(Checksum::Unnecessary);
        }
        let same_flow = |held: &Held| held.seen.is_same_flow(held.first.data(), &seen, frame.data());
        if let Some(place) = self.held.iter().position(same_flow) {
            let held = &mut self.held[place];
            if joins && held.takes(&seen, &frame) {
                held.append(frame, &seen);
                if held.ends_with(seen.length()) {
                    self.give_up(place, pass);
                }
                return;
            }
            self.give_up(place, pass);
        }
        if joins { self.hold(frame, seen, now_ns, pass) } else { pass(frame) }
    }
}
