//! Bytes on the wire: header fields and checksums, for whoever reads or writes packets.

use std::net::IpAddr;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of a service VLAN tag (IEEE 802.1ad).
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Bytes of a VLAN tag.
pub const VLAN_TAG: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP: usize = 20;
/// Bytes of a UDP header.
pub const UDP: usize = 8;

/// IP protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// TCP's FIN flag.
pub const FIN: u8 = 0x01;
/// TCP's SYN flag.
pub const SYN: u8 = 0x02;
/// TCP's RST flag.
pub const RST: u8 = 0x04;
/// TCP's PSH flag.
pub const PSH: u8 = 0x08;
/// TCP's ACK flag.
pub const ACK: u8 = 0x10;

/// The 16 bits in network order at `at`.
///
/// # Panics
/// If they are not there.
#[inline]
pub fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

/// The 32 bits in network order at `at`.
///
/// # Panics
/// If they are not there.
#[inline]
pub fn be32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// Writes 16 bits in network order at `at`.
///
/// # Panics
/// If there is no room for them.
#[inline]
pub fn put16(data: &mut [u8], at: usize, value: u16) {
    data[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes 32 bits in network order at `at`.
///
/// # Panics
/// If there is no room for them.
#[inline]
pub fn put32(data: &mut [u8], at: usize, value: u32) {
    data[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// The ones' complement sum of RFC 1071, not yet folded, in the byte order of the machine: 32-bit halves are added into
/// 64 bits, which no frame can overflow.
#[inline]
pub fn sum(data: &[u8]) -> u64 {
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
pub fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The pseudo header's share of a transport checksum.
///
/// # Panics
/// If the addresses are of two families.
#[inline]
pub fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u64 {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => sum(&source.octets()) + sum(&destination.octets()),
        (IpAddr::V6(source), IpAddr::V6(destination)) => sum(&source.octets()) + sum(&destination.octets()),
        // Both come from one IP header.
        _ => unreachable!("addresses of two families in one packet"),
    };
    addresses + rest_of_pseudo(protocol, length)
}

/// [`pseudo_sum`] with both addresses as they stand in the IP header.
#[inline]
pub fn pseudo_sum_of(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    sum(addresses) + rest_of_pseudo(protocol, length)
}

#[inline]
fn rest_of_pseudo(protocol: u8, length: usize) -> u64 {
    u64::from(u16::from(protocol).to_be()) + sum(&(length as u32).to_be_bytes())
}

/// Whether the data, with its checksum in place, adds up.
#[inline]
pub fn adds_up(pseudo: u64, data: &[u8]) -> bool {
    fold(pseudo + sum(data)) == 0xffff
}

/// Writes the checksum of `data` at `at`; the two bytes there must be 0.
///
/// # Panics
/// If there is no room for it.
pub fn put_checksum(data: &mut [u8], at: usize, pseudo: u64) {
    let value = !fold(pseudo + sum(data));
    data[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(all(test, not(loom)))]
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
}
