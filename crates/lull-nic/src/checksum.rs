//! Filling in transport checksums in software, where a frame asks for it and no device will do it.

use crate::frame::{Checksum, Frame};
use crate::rss::ip_start;
use crate::wire::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP};

/// Gathers a chain into one segment; a single segment stays as it is.
pub(crate) fn linear(mut frame: Frame) -> Frame {
    let Some(mut next) = frame.set_next(None) else { return frame };
    let mut whole = Frame::with_capacity(frame.len() + next.chain_len());
    whole.set_checksum(frame.checksum());
    whole.set_segmentation(frame.segmentation());
    whole.set_rss_hash(frame.rss_hash());
    append(&mut whole, frame.data());
    loop {
        append(&mut whole, next.data());
        match next.set_next(None) {
            Some(following) => next = following,
            None => return whole,
        }
    }
}

fn append(frame: &mut Frame, data: &[u8]) {
    let at = frame.len();
    frame.set_len(at + data.len());
    frame.data_mut()[at..].copy_from_slice(data);
}

/// Does what [`Checksum::Partial`] asks for: the frame comes back whole, with final bytes. Other frames, and frames of
/// protocols without a checksum that we know, keep their bytes.
pub(crate) fn complete(frame: Frame) -> Frame {
    if frame.checksum() != Checksum::Partial {
        return frame;
    }
    let mut frame = linear(frame);
    frame.set_checksum(Checksum::None);
    fill(frame.data_mut());
    frame
}

/// Writes the TCP, UDP or ICMPv6 checksum of an Ethernet frame; `None` if it has none that we know.
fn fill(frame: &mut [u8]) -> Option<()> {
    let (pseudo, protocol, start, end) = transport(frame)?;
    let offset = match protocol {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        PROTOCOL_ICMPV6 => 2,
        _ => return None,
    };
    let segment = frame.get_mut(start..end)?;
    segment.get_mut(offset..offset + 2)?.fill(0);
    wire::put_checksum(segment, offset, pseudo);
    // A UDP checksum of 0 would say that there is none (RFC 768).
    if protocol == PROTOCOL_UDP && segment[offset..offset + 2] == [0, 0] {
        segment[offset..offset + 2].fill(0xff);
    }
    Some(())
}

/// Sum of the pseudo header, protocol, and where the transport segment starts and ends.
fn transport(frame: &[u8]) -> Option<(u64, u8, usize, usize)> {
    let (kind, at) = ip_start(frame)?;
    let packet = frame.get(at..)?;
    let word = |at: usize| -> Option<usize> {
        Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])))
    };
    let (addresses, protocol, header, total) = match kind {
        ETHERTYPE_IPV4 => (packet.get(12..20)?, *packet.get(9)?, usize::from(packet[0] & 15) * 4, word(2)?),
        ETHERTYPE_IPV6 => (packet.get(8..40)?, *packet.get(6)?, 40, 40 + word(4)?),
        _ => return None,
    };
    let len = total.checked_sub(header)?;
    let pseudo = wire::pseudo_sum_of(addresses, protocol, len);
    Some((pseudo, protocol, at + header, at + total))
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// A UDP frame over IPv4 with a zero checksum.
    pub(crate) fn udp_frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let total = (28 + payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, PROTOCOL_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x30, 0x39, 0x00, 0x35]);
        frame.extend((total - 20).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn completed_checksum_verifies_to_all_ones() {
        let bytes = udp_frame(b"odd length!");
        let mut frame = Frame::copy_from(&bytes[..30]);
        frame.set_next(Some(Frame::copy_from(&bytes[30..])));
        frame.set_checksum(Checksum::Partial);
        let frame = complete(frame);
        assert_eq!((frame.checksum(), frame.len(), frame.next().is_none()), (Checksum::None, bytes.len(), true));
        let (pseudo, _, start, end) = transport(frame.data()).unwrap();
        assert!(wire::adds_up(pseudo, &frame.data()[start..end]));
    }

    #[test]
    fn what_is_no_transport_stays() {
        let mut frame = Frame::copy_from(&[0xff; 20]);
        frame.set_checksum(Checksum::Partial);
        assert_eq!(complete(frame).data(), [0xff; 20]);
    }
}
