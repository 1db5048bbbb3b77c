//! Which own address packets to other networks come from. Where the destination does not matter it is chosen once.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

use super::config::StackConfig;
use super::demux::Local;
use super::wire;

#[derive(Debug)]
pub(super) struct Sources {
    /// The first whose network has the gateway (`inet_select_addr`).
    v4: Option<IpAddr>,
    /// The IPv6 addresses that are not link-local, with their labels; if there are none, the first link-local one.
    v6: Vec<(Ipv6Addr, u8)>,
}

impl Sources {
    pub(super) fn new(locals: &[Local], config: &StackConfig) -> Sources {
        let has_gateway = |local: &&Local| {
            config.gateway4.is_some_and(|gateway| wire::inside(gateway.into(), local.ip, local.prefix))
        };
        let mut of_v4 = locals.iter().filter(|local| local.ip.is_ipv4());
        let v4 = of_v4.clone().find(has_gateway).or_else(|| of_v4.next()).map(|local| local.ip);
        let of_v6 = locals.iter().filter_map(|local| match local.ip {
            IpAddr::V6(ip) => Some((ip, label(ip))),
            IpAddr::V4(_) => None,
        });
        let mut v6: Vec<_> = of_v6.clone().filter(|(ip, _)| !ip.is_unicast_link_local()).collect();
        if v6.is_empty() {
            v6.extend(of_v6.take(1));
        }
        Sources { v4, v6 }
    }

    /// The own address that a packet to a network which is not this station's comes from.
    #[inline]
    pub(super) fn to_elsewhere(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(remote) => match &self.v6[..] {
                [] => None,
                [(only, _)] => Some(IpAddr::V6(*only)),
                several => nearest(several, remote).map(IpAddr::V6),
            },
        }
    }
}

/// The first of those with the same label, and among them with the longest prefix in common (RFC 6724, rules 6 and 8).
fn nearest(several: &[(Ipv6Addr, u8)], remote: Ipv6Addr) -> Option<Ipv6Addr> {
    let wanted = label(remote);
    let common = |ip: &Ipv6Addr| (u128::from(*ip) ^ u128::from(remote)).leading_zeros();
    several.iter().min_by_key(|(ip, label)| (*label != wanted, Reverse(common(ip)))).map(|(ip, _)| *ip)
}

/// The label of an address in the default policy table (RFC 6724 section 2.1), of those that a device has or sends to.
fn label(ip: Ipv6Addr) -> u8 {
    match ip.segments() {
        // 6to4, Teredo, the 6bone's.
        [0x2002, ..] => 2,
        [0x2001, 0, ..] => 5,
        [0x3ffe, ..] => 12,
        // Unique local ones, and those of a site.
        [first, ..] if first & 0xfe00 == 0xfc00 => 13,
        [first, ..] if first & 0xffc0 == 0xfec0 => 11,
        _ => 1,
    }
}
