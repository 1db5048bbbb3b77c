//! Bytes on the wire: checksums, header fields and the few segments that this shard builds itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lull_nic::{Frame, FramePool};

pub(super) use lull_nic::wire::*;

pub(super) type Mac = [u8; 6];
pub(super) const BROADCAST: Mac = [0xff; 6];

/// Hop limit of packets for which none is asked for (RFC 1700, and Linux's `ip_default_ttl`).
pub const HOP_LIMIT: u8 = 64;

/// What the IP headers of packets say. None: what the stack says by itself, 0 and 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// DSCP and ECN (IP_TOS, IPV6_TCLASS).
    pub traffic_class: Option<u8>,
    /// IP_TTL, IPV6_UNICAST_HOPS.
    pub hop_limit: Option<u8>,
}

impl IpFields {
    /// These values, and none where the stack says the same by itself.
    pub fn new(traffic_class: u8, hop_limit: u8) -> IpFields {
        IpFields {
            traffic_class: Some(traffic_class).filter(|class| *class != 0),
            hop_limit: Some(hop_limit).filter(|limit| *limit != HOP_LIMIT),
        }
    }

    /// These, and `others` where there is none.
    pub(super) fn or(self, others: IpFields) -> IpFields {
        IpFields {
            traffic_class: self.traffic_class.or(others.traffic_class),
            hop_limit: self.hop_limit.or(others.hop_limit),
        }
    }
}

/// `a < b` in sequence space (RFC 9293 section 3.4).
#[inline]
pub(super) fn seq_lt(a: u32, b: u32) -> bool {
    #[cfg(test)]
    looks::one();
    (a.wrapping_sub(b) as i32) < 0
}

/// Counts what is looked at, for tests of what something costs.
#[cfg(test)]
pub(super) mod looks {
    use std::cell::Cell;

    thread_local! {
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    pub(in crate::shard) fn one() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// How many there were in this thread since this was last asked.
    pub(in crate::shard) fn taken() -> u64 {
        LOOKS.take()
    }
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
    let mut frame = pool.alloc_for(length);
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

    /// As `build`, with options, whose length is a multiple of four bytes.
    pub(super) fn build_with(&self, options: &[u8], pool: &mut FramePool) -> Frame {
        self.build_carrying(options, 0, pool, |_| {})
    }

    /// The same with so many bytes of payload, which `fill` writes.
    pub(super) fn build_carrying(
        &self,
        options: &[u8],
        payload: usize,
        pool: &mut FramePool,
        fill: impl FnOnce(&mut [u8]),
    ) -> Frame {
        let header = TCP + options.len();
        let length = header + payload;
        let mut frame = ip_frame(pool, self.source, self.destination, PROTOCOL_TCP, HOP_LIMIT, length);
        let l4 = frame.len() - length;
        let tcp = &mut frame.data_mut()[l4..];
        put16(tcp, 0, self.source_port);
        put16(tcp, 2, self.destination_port);
        put32(tcp, 4, self.seq);
        put32(tcp, 8, self.ack);
        tcp[12] = (header as u8 / 4) << 4;
        tcp[13] = self.flags;
        put16(tcp, 14, self.window);
        tcp[TCP..header].copy_from_slice(options);
        fill(&mut tcp[header..]);
        put_checksum(tcp, 16, pseudo_sum(self.source, self.destination, PROTOCOL_TCP, length));
        frame
    }
}

/// Puts what is asked for into the IP header of a packet without options.
pub(super) fn put_ip_fields(packet: &mut [u8], fields: IpFields) {
    let IpFields { traffic_class, hop_limit } = fields;
    if packet[0] >> 4 == 4 {
        packet[1] = traffic_class.unwrap_or(packet[1]);
        packet[8] = hop_limit.unwrap_or(packet[8]);
        put16(packet, 10, 0);
        put_checksum(&mut packet[..IPV4], 10, 0);
    } else {
        // The class stands between the version and the flow label.
        let class = traffic_class.unwrap_or(packet[0] << 4 | packet[1] >> 4);
        packet[0] = 0x60 | class >> 4;
        packet[1] = class << 4 | packet[1] & 0x0f;
        packet[7] = hop_limit.unwrap_or(packet[7]);
    }
}

/// Traffic class and hop limit of an IP packet.
pub(super) fn ip_fields(packet: &[u8]) -> (u8, u8) {
    match packet[0] >> 4 {
        4 => (packet[1], packet[8]),
        _ => (packet[0] << 4 | packet[1] >> 4, packet[7]),
    }
}

/// The IP header of a packet to `ip`, without options, in bytes.
pub(super) fn ip_header(ip: IpAddr) -> usize {
    if ip.is_ipv4() { IPV4 } else { IPV6 }
}

/// Sets identification, flags and offset of an IPv4 packet without options.
pub(super) fn set_fragment_v4(packet: &mut [u8], id: u16, flags_and_offset: u16) {
    put16(packet, 4, id);
    put16(packet, 6, flags_and_offset);
    put16(packet, 10, 0);
    put_checksum(&mut packet[..IPV4], 10, 0);
}

/// Takes one from the hops that an IP packet of ours without options may still go, and returns how many were taken by
/// now. Returns `None` if none is left, and leaves the packet as it is.
pub(super) fn take_hop(packet: &mut [u8]) -> Option<u8> {
    const TTL: usize = 8;
    const V6_HOP_LIMIT: usize = 7;
    const CHECKSUM: usize = 10;
    let is_v4 = packet[0] >> 4 == 4;
    let at = if is_v4 { TTL } else { V6_HOP_LIMIT };
    if packet[at] <= 1 {
        return None;
    }
    packet[at] -= 1;
    let taken = HOP_LIMIT.saturating_sub(packet[at]);
    if is_v4 {
        put16(packet, CHECKSUM, 0);
        put_checksum(&mut packet[..IPV4], CHECKSUM, 0);
    }
    Some(taken)
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
    fn fields_that_are_put_are_read_and_leave_the_others() {
        let mut pool = FramePool::new(1);
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let mut frame =
                ip_frame(&mut pool, source.parse().unwrap(), destination.parse().unwrap(), PROTOCOL_UDP, 9, 8);
            let packet = frame.data_mut();
            assert_eq!(ip_fields(packet), (0, 9));
            put_ip_fields(packet, IpFields { traffic_class: Some(0xb9), hop_limit: None });
            assert_eq!(ip_fields(packet), (0xb9, 9));
            put_ip_fields(packet, IpFields { traffic_class: None, hop_limit: Some(255) });
            assert_eq!(ip_fields(packet), (0xb9, 255));
            let is_v4 = packet[0] >> 4 == 4;
            assert!(!is_v4 || adds_up(0, &packet[..IPV4]));
            assert!(is_v4 || (packet[0] >> 4, packet[1] & 15, packet[2], packet[3]) == (6, 0, 0, 0), "no flow label");
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
