//! Bytes on the wire: checksums, header fields and the few segments that this shard builds itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lull_nic::{Frame, FramePool};

pub(super) const ETHERNET: usize = 14;
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// A VLAN tag: IEEE 802.1Q, and 802.1ad's outer one.
pub(super) const ETHERTYPE_VLAN: u16 = 0x8100;
pub(super) const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
pub(super) const VLAN_TAG: usize = 4;
pub(super) const IPV4: usize = 20;
pub(super) const IPV6: usize = 40;
pub(super) const TCP: usize = 20;
pub(super) const UDP: usize = 8;

pub(super) const PROTOCOL_ICMP: u8 = 1;
pub(super) const PROTOCOL_TCP: u8 = 6;
pub(super) const PROTOCOL_UDP: u8 = 17;
pub(super) const PROTOCOL_ICMPV6: u8 = 58;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// TTL and hop limit of what is sent (RFC 1700, and Linux's `ip_default_ttl`).
pub(super) const HOP_LIMIT: u8 = 64;

pub(super) type Mac = [u8; 6];
pub(super) const BROADCAST: Mac = [0xff; 6];

#[inline]
pub(super) fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

#[inline]
pub(super) fn be32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

#[inline]
pub(super) fn put16(data: &mut [u8], at: usize, value: u16) {
    data[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(super) fn put32(data: &mut [u8], at: usize, value: u32) {
    data[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// `a < b` in sequence space (RFC 9293 section 3.4).
#[inline]
pub(super) fn seq_lt(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The ones' complement sum of RFC 1071, not yet folded, in the byte order of the machine: 32-bit halves are added into
/// 64 bits, which no frame can overflow.
#[inline]
pub(super) fn sum(data: &[u8]) -> u64 {
    let mut total = 0u64;
    let mut words = data.chunks_exact(8);
    for word in &mut words {
        // The chunk has eight bytes.
        let word = u64::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    let mut rest = words.remainder();
    while rest.len() >= 2 {
        total += u64::from(u16::from_ne_bytes([rest[0], rest[1]]));
        rest = &rest[2..];
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Folds a [`sum`] to 16 bits, still in the byte order of the machine.
#[inline]
pub(super) fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The pseudo header's share of a transport checksum.
#[inline]
pub(super) fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u64 {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => sum(&source.octets()) + sum(&destination.octets()),
        (IpAddr::V6(source), IpAddr::V6(destination)) => sum(&source.octets()) + sum(&destination.octets()),
        // Both come from one IP header.
        _ => unreachable!("addresses of two families in one packet"),
    };
    addresses + u64::from(u16::from(protocol).to_be()) + sum(&(length as u32).to_be_bytes())
}

/// Whether the data, with its checksum in place, adds up.
#[inline]
pub(super) fn adds_up(pseudo: u64, data: &[u8]) -> bool {
    fold(pseudo + sum(data)) == 0xffff
}

/// Writes the checksum of `data` at `at`; the two bytes there must be 0.
pub(super) fn put_checksum(data: &mut [u8], at: usize, pseudo: u64) {
    let value = !fold(pseudo + sum(data));
    data[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

/// Replaces four bytes at an even offset and corrects the checksum that covers them (RFC 1624 equation 3).
pub(super) fn replace32(data: &mut [u8], at: usize, value: u32, checksum_at: usize) {
    let half = |data: &[u8], at: usize| u64::from(u16::from_ne_bytes([data[at], data[at + 1]]));
    let mut total = 0xffff - half(data, checksum_at) + 2 * 0xffff - half(data, at) - half(data, at + 2);
    put32(data, at, value);
    total += half(data, at) + half(data, at + 2);
    let checksum = !fold(total);
    data[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_ne_bytes());
}

/// A frame that holds an IP header and `payload` bytes behind it, of which the first 40 are zero and the others
/// arbitrary, without its Ethernet header.
pub(super) fn ip_frame(
    pool: &mut FramePool,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    hop_limit: u8,
    payload: usize,
) -> Frame {
    let header = if source.is_ipv4() { IPV4 } else { IPV6 };
    let mut frame = frame_of(pool, header + payload);
    let data = frame.data_mut();
    let zeroed = data.len().min(header + 40);
    data[..zeroed].fill(0);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            data[0] = 0x45;
            put16(data, 2, (IPV4 + payload) as u16);
            data[6] = 0x40; // do not fragment
            data[8] = hop_limit;
            data[9] = protocol;
            data[12..16].copy_from_slice(&source.octets());
            data[16..20].copy_from_slice(&destination.octets());
            put_checksum(&mut data[..IPV4], 10, 0);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            data[0] = 0x60;
            put16(data, 4, payload as u16);
            data[6] = protocol;
            data[7] = hop_limit;
            data[8..24].copy_from_slice(&source.octets());
            data[24..40].copy_from_slice(&destination.octets());
        }
        _ => unreachable!("addresses of two families in one packet"),
    }
    frame
}

/// An empty frame of `length` bytes whose content is arbitrary.
#[inline]
pub(super) fn frame_of(pool: &mut FramePool, length: usize) -> Frame {
    let mut frame = pool.alloc();
    if frame.capacity() < length {
        pool.recycle(frame);
        frame = Frame::with_capacity(length);
    }
    frame.set_len(length);
    frame
}

/// Puts the Ethernet header in front of an IP packet.
#[inline]
pub(super) fn push_ethernet(frame: &mut Frame, destination: Mac, source: Mac, ethertype: u16) {
    let header = frame.push_front(ETHERNET);
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..14].copy_from_slice(&ethertype.to_be_bytes());
}

/// The fields of a segment that carries no data.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareSegment {
    pub(super) source: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination: IpAddr,
    pub(super) destination_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
}

impl BareSegment {
    pub(super) fn build(&self, pool: &mut FramePool) -> Frame {
        self.build_with(&[], pool)
    }

    /// The same with options, a multiple of four bytes.
    pub(super) fn build_with(&self, options: &[u8], pool: &mut FramePool) -> Frame {
        let length = TCP + options.len();
        let mut frame = ip_frame(pool, self.source, self.destination, PROTOCOL_TCP, HOP_LIMIT, length);
        let l4 = frame.len() - length;
        let tcp = &mut frame.data_mut()[l4..];
        put16(tcp, 0, self.source_port);
        put16(tcp, 2, self.destination_port);
        put32(tcp, 4, self.seq);
        put32(tcp, 8, self.ack);
        tcp[12] = (length as u8 / 4) << 4;
        tcp[13] = self.flags;
        put16(tcp, 14, self.window);
        tcp[TCP..].copy_from_slice(options);
        put_checksum(tcp, 16, pseudo_sum(self.source, self.destination, PROTOCOL_TCP, length));
        frame
    }
}

/// The Ethernet address of a multicast group.
pub(super) fn multicast_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let octets = group.octets();
            [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

/// The group in which an address's owner is asked for its Ethernet address (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let octets = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, octets[13], octets[14], octets[15]])
}

/// The link-local address that an Ethernet address gives (RFC 4291 appendix A).
pub(super) fn link_local(mac: Mac) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]])
}

/// Whether it is an IPv6 address of one link only.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether `ip` is inside `network`/`prefix`.
pub(super) fn inside(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            u32::from(ip) & mask == u32::from(network) & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            u128::from(ip) & mask == u128::from(network) & mask
        }
        _ => false,
    }
}

/// The broadcast address of an IPv4 network that has one.
pub(super) fn subnet_broadcast(ip: Ipv4Addr, prefix: u8) -> Option<Ipv4Addr> {
    // A /31 has two hosts and no broadcast address (RFC 3021).
    (prefix < 31).then(|| Ipv4Addr::from(u32::from(ip) | u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_rfc_1071_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(u16::from_be_bytes(fold(sum(&data)).to_ne_bytes()), 0xddf2);
        // Odd lengths and lengths that leave every remainder agree with a bytewise sum.
        let long: Vec<u8> = (0..255).collect();
        for end in 0..long.len() {
            let slow: u64 = long[..end]
                .chunks(2)
                .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
                .sum();
            assert_eq!(u16::from_be_bytes(fold(sum(&long[..end])).to_ne_bytes()), fold(slow), "length {end}");
        }
    }

    #[test]
    fn a_built_segment_adds_up() {
        let mut pool = FramePool::new(1);
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            let segment = BareSegment {
                source,
                source_port: 1,
                destination,
                destination_port: 2,
                seq: 3,
                ack: 4,
                flags: ACK,
                window: 5,
            };
            let frame = segment.build(&mut pool);
            let l4 = frame.len() - TCP;
            assert!(adds_up(pseudo_sum(source, destination, PROTOCOL_TCP, TCP), &frame.data()[l4..]));
        }
    }

    #[test]
    fn a_replaced_word_keeps_the_sum() {
        for value in [0, 1, 0xffff_ffff, 0x1234_5678, 0x8000_0000] {
            let mut data: Vec<u8> = (0..40u8).map(|i| i.wrapping_mul(37)).collect();
            data[16..18].fill(0);
            put_checksum(&mut data, 16, 77);
            replace32(&mut data, 4, value, 16);
            assert!(adds_up(77, &data), "{value:x}");
        }
    }

    #[test]
    fn subnets() {
        assert!(inside("10.1.2.3".parse().unwrap(), "10.1.0.0".parse().unwrap(), 16));
        assert!(!inside("10.2.2.3".parse().unwrap(), "10.1.0.0".parse().unwrap(), 16));
        assert!(inside("1.2.3.4".parse().unwrap(), "10.1.0.0".parse().unwrap(), 0));
        assert_eq!(subnet_broadcast("10.1.2.3".parse().unwrap(), 24), Some("10.1.2.255".parse().unwrap()));
        assert_eq!(subnet_broadcast("10.1.2.3".parse().unwrap(), 31), None);
    }
}
