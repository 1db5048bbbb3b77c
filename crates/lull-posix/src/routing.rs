//! Which world an address belongs to. lull has its own addresses, their networks and the routes it was given;
//! everything else is the kernel's.

use std::net::{IpAddr, Ipv4Addr};

/// The addresses that are lull's.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Own addresses with the length of their network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Networks that are reached through lull's routers.
    pub routes: Vec<(IpAddr, u8)>,
    /// The ports that are lull's; if there are none here, all of them are. An answer to any other port would not reach
    /// lull.
    pub ports: Vec<u16>,
}

impl Routing {
    /// Whether it is an own address: what is bound to it is lull's.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }

    /// Whether what is bound to this port can be lull's. The port is 0 where none has been chosen yet.
    pub fn takes(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    /// Whether lull has addresses of the family of `ip`, or of any family if that is `[::]`, which stands for both: a wildcard
    /// listener of it is in both worlds.
    pub fn has_family(&self, ip: IpAddr, v6_only: bool) -> bool {
        let is_both = ip.is_ipv6() && !v6_only;
        self.addresses.iter().any(|(own, _)| is_both || own.is_ipv4() == ip.is_ipv4())
    }

    /// Whether it is the address of everybody on one of lull's networks, or on whatever network there is.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        let broadcast = |(network, prefix): &(IpAddr, u8)| {
            let IpAddr::V4(network) = network else { return false };
            let host_bits = u32::MAX.checked_shr(u32::from(*prefix)).unwrap_or(0);
            *prefix < 31 && ip == IpAddr::V4((network.to_bits() | host_bits).into())
        };
        ip == IpAddr::V4(Ipv4Addr::BROADCAST) || self.addresses.iter().any(broadcast)
    }

    /// Whether lull reaches it: what is connected or sent to it is lull's. Loopback is the kernel's, whatever the routes say.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        !ip.is_loopback()
            && self.addresses.iter().chain(&self.routes).any(|(network, prefix)| contains(*network, *prefix, ip))
    }
}

fn contains(network: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    let same = |network: u128, ip: u128, bits: u32| {
        let shift = bits.saturating_sub(u32::from(prefix));
        // Such a shift is by the whole width: the prefix is empty, and contains every address.
        network.checked_shr(shift).unwrap_or(0) == ip.checked_shr(shift).unwrap_or(0)
    };
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => same(network.to_bits().into(), ip.to_bits().into(), 32),
        (IpAddr::V6(network), IpAddr::V6(ip)) => same(network.to_bits(), ip.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_ports_all_others_are_the_kernels_and_so_is_what_is_not_bound() {
        let all = Routing::default();
        assert!(all.takes(0) && all.takes(9));
        let some = Routing { ports: vec![11211, 80], ..Routing::default() };
        assert!(some.takes(80) && some.takes(11211) && !some.takes(0) && !some.takes(81));
    }

    #[test]
    fn the_last_address_of_a_network_is_everybodys() {
        let routing = |prefix| Routing { addresses: vec![("10.0.0.2".parse().unwrap(), prefix)], ..Routing::default() };
        assert!(routing(24).is_broadcast("10.0.0.255".parse().unwrap()));
        assert!(!routing(24).is_broadcast("10.0.0.254".parse().unwrap()));
        assert!(!routing(31).is_broadcast("10.0.0.3".parse().unwrap()), "a network of two has none (RFC 3021)");
        assert!(!routing(32).is_broadcast("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn own_networks_and_routes_are_lulls_and_the_rest_is_the_kernels() {
        let of = |list: &[(&str, u8)]| list.iter().map(|(ip, prefix)| (ip.parse().unwrap(), *prefix)).collect();
        let routing = Routing {
            addresses: of(&[("10.0.0.2", 24), ("fd00::2", 64)]),
            routes: of(&[("10.9.0.0", 16)]),
            ports: vec![],
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(routing.is_own(ip("10.0.0.2")) && routing.is_own(ip("fd00::2")) && !routing.is_own(ip("10.0.0.3")));
        for (address, lulls) in
            [("10.0.0.77", true), ("10.9.8.7", true), ("fd00::9", true), ("10.8.0.1", false), ("127.0.0.1", false)]
        {
            assert_eq!(routing.reaches(ip(address)), lulls, "{address}");
        }
        assert!(!routing.reaches(ip("fd01::1")) && !routing.reaches(ip("::1")));
        let all = Routing { addresses: of(&[("10.0.0.2", 24)]), routes: of(&[("0.0.0.0", 0)]), ports: vec![] };
        assert!(!all.reaches(ip("127.0.0.1")), "loopback");
        assert!(
            all.reaches(ip("8.8.8.8"))
                && !all.reaches(ip("::1"))
                && !all.has_family(ip("::"), true)
                && all.has_family(ip("::"), false)
        );
    }
}
