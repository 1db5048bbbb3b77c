//! The frames: Ethernet, IPv4 and UDP headers, and a payload with a number in it.

use std::ops::RangeInclusive;

use lull_nic::wire::{ETHERNET, ETHERTYPE_IPV4, PROTOCOL_UDP, be16, put_checksum, put16};

/// Ethernet, IPv4 and UDP headers.
pub const HEADERS: usize = ETHERNET + 20 + 8;
/// The mark of this program's payloads.
const MAGIC: [u8; 8] = *b"lullxskr";
/// The size of the mark and the number, in bytes.
const NUMBERED: usize = MAGIC.len() + 8;
/// The size of a payload in bytes: at least the mark and the number, and at most what an Ethernet frame carries.
pub const PAYLOAD_RANGE: RangeInclusive<usize> = NUMBERED..=1500 - 28;
/// The longest frame.
pub const FRAME_BYTES_MAX: usize = HEADERS + *PAYLOAD_RANGE.end();
/// The discard port, in case a frame ever reaches a network stack.
const PORT: u16 = 9;

/// The addresses of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client's Ethernet address.
    pub from: [u8; 6],
    /// The server's Ethernet address.
    pub to: [u8; 6],
}

/// Makes a request with number 0.
pub fn request(addresses: Addresses, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADERS + payload_bytes];
    frame[..6].copy_from_slice(&addresses.to);
    frame[6..12].copy_from_slice(&addresses.from);
    put16(&mut frame, 12, ETHERTYPE_IPV4);
    let ip = &mut frame[ETHERNET..];
    ip[0] = 0x45;
    put16(ip, 2, (28 + payload_bytes) as u16);
    ip[8] = 64;
    ip[9] = PROTOCOL_UDP;
    // The address is in the range for benchmarks (RFC 2544).
    ip[12..16].copy_from_slice(&[198, 18, 0, 1]);
    ip[16..20].copy_from_slice(&[198, 18, 0, 2]);
    put_checksum(&mut ip[..20], 10, 0);
    // There is no UDP checksum (RFC 768): the frame's own checksum and the numbers in it are enough.
    put16(ip, 20, PORT);
    put16(ip, 22, PORT);
    put16(ip, 24, (8 + payload_bytes) as u16);
    frame[HEADERS..][..MAGIC.len()].copy_from_slice(&MAGIC);
    number(&mut frame, 0);
    frame
}

fn pattern(number: u64, at: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(at as u8)
}

/// Writes a number into a request, and the bytes that depend on it behind it.
pub fn number(frame: &mut [u8], number: u64) {
    let payload = &mut frame[HEADERS..];
    payload[MAGIC.len()..NUMBERED].copy_from_slice(&number.to_be_bytes());
    for (at, byte) in payload.iter_mut().enumerate().skip(NUMBERED) {
        *byte = pattern(number, at);
    }
}

/// Returns the number of a frame, or `None` if it does not belong to this program.
pub fn read(frame: &[u8]) -> Option<u64> {
    let payload = frame.get(HEADERS..)?;
    let number = payload.strip_prefix(&MAGIC)?.first_chunk()?;
    (be16(frame, 12) == ETHERTYPE_IPV4).then(|| u64::from_be_bytes(*number))
}

/// Whether everything behind the number of a frame of `payload_bytes` is as it was sent.
pub fn is_whole(frame: &[u8], number: u64, payload_bytes: usize) -> bool {
    let payload = &frame[HEADERS..];
    // A short frame is padded on its way (IEEE 802.3 clause 4.2.3.3).
    payload.len() >= payload_bytes
        && payload[..payload_bytes].iter().enumerate().skip(NUMBERED).all(|(at, byte)| *byte == pattern(number, at))
}

/// Turns a request into the answer to it, from the server's own address.
pub fn turn_around(frame: &mut [u8], own: [u8; 6]) {
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&own);
    let (from, to) = frame[ETHERNET + 12..ETHERNET + 20].split_at_mut(4);
    from.swap_with_slice(to);
}

#[cfg(test)]
mod tests {
    use lull_nic::wire::adds_up;

    use super::*;

    const ADDRESSES: Addresses = Addresses { from: [2, 0, 0, 0, 0, 1], to: [2, 0, 0, 0, 0, 2] };

    #[test]
    fn a_request_is_an_ipv4_packet_with_a_right_checksum() {
        let frame = request(ADDRESSES, 100);
        assert_eq!(frame.len(), 142);
        assert!(adds_up(0, &frame[ETHERNET..][..20]));
        assert_eq!(be16(&frame[ETHERNET..], 2), 128);
    }

    #[test]
    fn numbers_are_read_back_and_damage_is_seen() {
        for payload_bytes in [*PAYLOAD_RANGE.start(), 17, 64, *PAYLOAD_RANGE.end()] {
            let mut frame = request(ADDRESSES, payload_bytes);
            number(&mut frame, 0x0102_0304_0506_0708);
            assert_eq!(read(&frame), Some(0x0102_0304_0506_0708));
            let padded: Vec<u8> = frame.iter().copied().chain([0; 5]).collect();
            assert!(is_whole(&padded, 0x0102_0304_0506_0708, payload_bytes));
            assert!(!is_whole(&frame[..frame.len() - 1], 0x0102_0304_0506_0708, payload_bytes));
            if payload_bytes > NUMBERED {
                *frame.last_mut().unwrap() ^= 1;
                assert!(!is_whole(&frame, 0x0102_0304_0506_0708, payload_bytes));
            }
        }
        assert_eq!(read(&[0; 10]), None);
        assert_eq!(read(&[0; 200]), None);
    }

    #[test]
    fn an_answer_goes_back_to_where_the_request_came_from() {
        let mut frame = request(ADDRESSES, 16);
        turn_around(&mut frame, [2, 9, 9, 9, 9, 9]);
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 9, 9, 9, 9, 9]);
        assert_eq!(frame[ETHERNET + 12..ETHERNET + 20], [198, 18, 0, 2, 198, 18, 0, 1]);
        assert_eq!(read(&frame), Some(0));
    }
}
