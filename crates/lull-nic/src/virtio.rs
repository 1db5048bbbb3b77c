//! The virtio-net header in front of a frame (virtio 1.2, section 5.1.6): what a peer in the same machine left undone.
//!
//! It says where a checksum is missing and how a segment above the MTU is to be cut. A TAP exchanges frames with it, and
//! so do the rings of a guest. What comes from there is checked before it is believed.

use crate::frame::{Checksum, Frame, Segmentation};
use crate::rss::ip_start;
use crate::wire::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV6, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, TCP};

/// Bytes of the header, without the field for merged buffers.
pub const BYTES: usize = 10;

/// The checksum is missing: it is to be made from `csum_start` on, and put `csum_offset` behind that.
const NEEDS_CSUM: u8 = 1;
/// The checksum was verified.
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Beside the others: the first segment says that the congestion window was reduced (RFC 3168).
const GSO_ECN: u8 = 0x80;

/// Where the fields are, all of them little-endian.
mod field {
    pub(super) const FLAGS: usize = 0;
    pub(super) const GSO_TYPE: usize = 1;
    pub(super) const HDR_LEN: usize = 2;
    pub(super) const GSO_SIZE: usize = 4;
    pub(super) const CSUM_START: usize = 6;
    pub(super) const CSUM_OFFSET: usize = 8;
}

/// The header contradicts itself or its frame, or speaks of what was not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a virtio-net header that does not fit its frame")]
pub struct Malformed;

/// Notes on a received frame what its header says. The frame is the one behind the header.
///
/// # Errors
/// [`Malformed`]; the frame is to be dropped.
pub fn received(header: [u8; BYTES], frame: &mut Frame) -> Result<(), Malformed> {
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let flags = header[field::FLAGS];
    if flags & NEEDS_CSUM != 0 {
        let start = usize::from(word(field::CSUM_START));
        let end = start + usize::from(word(field::CSUM_OFFSET)) + 2;
        if start < ETHERNET || end > frame.len() {
            return Err(Malformed);
        }
        frame.set_checksum(Checksum::Partial);
    } else if flags & DATA_VALID != 0 {
        frame.set_checksum(Checksum::Unnecessary);
    }
    let (kind, mss_bytes) = (header[field::GSO_TYPE] & !GSO_ECN, word(field::GSO_SIZE));
    match kind {
        GSO_NONE => {}
        GSO_TCPV4 | GSO_TCPV6 if mss_bytes > 0 && flags & NEEDS_CSUM != 0 => {
            frame.set_segmentation(Segmentation::Tcp { mss_bytes });
        }
        _ => return Err(Malformed),
    }
    Ok(())
}

/// The header that asks for what a frame leaves to the device: see [`Checksum::Partial`] and [`Segmentation::Tcp`]. The
/// frame's headers are in its first segment.
///
/// # Errors
/// [`Malformed`]: a segmentation without a checksum that is left out, or of something that is not TCP.
pub fn to_send(frame: &Frame) -> Result<[u8; BYTES], Malformed> {
    let mut header = [0; BYTES];
    let partial = frame.checksum() == Checksum::Partial;
    let mss_bytes = match frame.segmentation() {
        Segmentation::Tcp { mss_bytes } => mss_bytes,
        Segmentation::Udp { .. } => return Err(Malformed),
        Segmentation::None => {
            if partial && let Some(transport) = Transport::of(frame.data()) {
                transport.ask_for_checksum(&mut header);
            }
            return Ok(header);
        }
    };
    let transport = Transport::of(frame.data()).filter(|transport| transport.protocol == PROTOCOL_TCP);
    let transport = transport.filter(|_| partial && mss_bytes > 0).ok_or(Malformed)?;
    let tcp = frame.data().get(transport.start..).filter(|tcp| tcp.len() >= TCP).ok_or(Malformed)?;
    let headers = transport.start + usize::from(tcp[12] >> 4) * 4;
    transport.ask_for_checksum(&mut header);
    if frame.chain_len() > headers + usize::from(mss_bytes) {
        header[field::GSO_TYPE] = if transport.v4 { GSO_TCPV4 } else { GSO_TCPV6 };
        put_le16(&mut header, field::HDR_LEN, headers as u16);
        put_le16(&mut header, field::GSO_SIZE, mss_bytes);
    }
    Ok(header)
}

fn put_le16(header: &mut [u8; BYTES], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// A transport header.
#[derive(Clone, Copy, Debug)]
struct Transport {
    v4: bool,
    protocol: u8,
    /// Where it is in the frame.
    start: usize,
    /// Where its checksum is in it.
    checksum_at: u16,
}

impl Transport {
    /// The transport header right behind the IP header, if it has a checksum that we know.
    fn of(frame: &[u8]) -> Option<Transport> {
        let (kind, at) = ip_start(frame)?;
        let (v4, protocol, header) = match kind {
            ETHERTYPE_IPV4 => (true, *frame.get(at + 9)?, usize::from(frame[at] & 15) * 4),
            ETHERTYPE_IPV6 => (false, *frame.get(at + 6)?, IPV6),
            _ => return None,
        };
        let checksum_at = match protocol {
            PROTOCOL_TCP => 16,
            PROTOCOL_UDP => 6,
            PROTOCOL_ICMPV6 => 2,
            _ => return None,
        };
        let start = at + header;
        (start + usize::from(checksum_at) + 2 <= frame.len()).then_some(Transport { v4, protocol, start, checksum_at })
    }

    fn ask_for_checksum(&self, header: &mut [u8; BYTES]) {
        header[field::FLAGS] |= NEEDS_CSUM;
        put_le16(header, field::CSUM_START, self.start as u16);
        put_le16(header, field::CSUM_OFFSET, self.checksum_at);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::checksum::tests::udp_frame;

    fn tcp_frame(payload: usize) -> Frame {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        bytes.extend((40 + payload as u16).to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, PROTOCOL_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.resize(bytes.len() + payload, b'x');
        Frame::copy_from(&bytes)
    }

    #[test]
    fn what_a_frame_leaves_out_is_asked_for() {
        let mut frame = Frame::copy_from(&udp_frame(b"text"));
        assert_eq!(to_send(&frame), Ok([0; BYTES]));
        frame.set_checksum(Checksum::Partial);
        assert_eq!(to_send(&frame), Ok([1, 0, 0, 0, 0, 0, 34, 0, 6, 0]));
        let mut frame = tcp_frame(3000);
        frame.set_checksum(Checksum::Partial);
        frame.set_segmentation(Segmentation::Tcp { mss_bytes: 1460 });
        assert_eq!(to_send(&frame), Ok([1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0]));
        // What fits one segment is none to be cut.
        frame.set_segmentation(Segmentation::Tcp { mss_bytes: 3000 });
        assert_eq!(to_send(&frame), Ok([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let mut frame = tcp_frame(3000);
        frame.set_segmentation(Segmentation::Tcp { mss_bytes: 1460 });
        assert_eq!(to_send(&frame), Err(Malformed), "its checksum is said to be final");
        frame.set_checksum(Checksum::Partial);
        frame.set_segmentation(Segmentation::Tcp { mss_bytes: 0 });
        assert_eq!(to_send(&frame), Err(Malformed));
        let mut frame = Frame::copy_from(&udp_frame(b"text"));
        frame.set_checksum(Checksum::Partial);
        frame.set_segmentation(Segmentation::Tcp { mss_bytes: 2 });
        assert_eq!(to_send(&frame), Err(Malformed));
    }

    #[test]
    fn what_was_sent_is_what_is_received() {
        for (payload, segmentation) in [(3000, Segmentation::Tcp { mss_bytes: 1460 }), (10, Segmentation::None)] {
            let mut sent = tcp_frame(payload);
            sent.set_checksum(Checksum::Partial);
            sent.set_segmentation(segmentation);
            let mut frame = tcp_frame(payload);
            received(to_send(&sent).unwrap(), &mut frame).unwrap();
            assert_eq!((frame.checksum(), frame.segmentation()), (Checksum::Partial, segmentation));
        }
        let mut frame = tcp_frame(1);
        received([DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut frame).unwrap();
        assert_eq!(frame.checksum(), Checksum::Unnecessary);
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        let refused = [
            ("a checksum behind the end", [1, 0, 0, 0, 0, 0, 60, 0, 16, 0]),
            ("one in the Ethernet header", [1, 0, 0, 0, 0, 0, 2, 0, 16, 0]),
            ("one far away", [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            ("segments of no bytes", [1, 1, 54, 0, 0, 0, 34, 0, 16, 0]),
            ("segments whose checksum is final", [0, 1, 54, 0, 9, 0, 34, 0, 16, 0]),
            ("datagrams to be cut, which nobody offered", [1, 5, 42, 0, 9, 0, 34, 0, 6, 0]),
            ("an unknown kind", [1, 77, 54, 0, 9, 0, 34, 0, 16, 0]),
        ];
        for (what, header) in refused {
            assert_eq!(received(header, &mut tcp_frame(10)), Err(Malformed), "{what}");
        }
    }

    #[test]
    fn no_header_makes_it_panic() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let mut header: [u8; BYTES] = std::array::from_fn(|_| random() as u8);
            // Half of the time the high bytes are 0, so that offsets fall inside.
            if random() % 2 == 0 {
                (header[0], header[1]) = (header[0] & 3, header[1] & 0x85);
                [3, 5, 7, 9].iter().for_each(|&at| header[at] = 0);
            }
            let mut frame = tcp_frame(random() % 200);
            frame.set_len(random() % (frame.len() + 1));
            match received(header, &mut frame) {
                Ok(()) => {
                    taken += 1;
                    // Whatever was believed can be asked for again, or is refused.
                    let _ = to_send(&frame);
                }
                Err(Malformed) => refused += 1,
            }
        }
        assert!(taken > 10_000 && refused > 10_000, "{taken} taken, {refused} refused");
    }
}
