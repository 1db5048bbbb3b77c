//! What becomes of datagrams that are longer than the path takes: IP_MTU_DISCOVER, IPV6_MTU_DISCOVER and IPV6_DONTFRAG.
//! The placeholder judges and keeps the values, and lull's sockets follow them.

use libc::c_int;
use lull_net::PathMtuDiscovery;

use super::Sockets;
use crate::kernel;
use crate::socket::options::Name;

const NAMES: [Name; 3] = [
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_DONTFRAG),
];

/// Whether an option is one of them.
pub(super) fn concerns(name: Name) -> bool {
    NAMES.contains(&name)
}

/// Puts in force what a socket of the kernel's has. An IPv4 socket has no options of IPv6, and a socket that is over
/// needs none.
pub(super) fn put(fd: c_int, sockets: &Sockets) {
    let [v4, v6, dont_fragment] = NAMES.map(|(level, name)| kernel::int_option(fd, level, name).ok());
    let v6 = v6.map(|value| if dont_fragment == Some(1) { dont_fragment_v6(how(value)) } else { how(value) });
    for (is_v6, how) in [(false, v4.map(how)), (true, v6)] {
        if let Some(how) = how {
            sockets.set_path_mtu_discovery(is_v6, how);
        }
    }
}

fn how(value: c_int) -> PathMtuDiscovery {
    match value {
        libc::IP_PMTUDISC_DONT => PathMtuDiscovery::Dont,
        libc::IP_PMTUDISC_DO => PathMtuDiscovery::Do,
        libc::IP_PMTUDISC_PROBE => PathMtuDiscovery::Probe,
        libc::IP_PMTUDISC_INTERFACE => PathMtuDiscovery::Interface,
        libc::IP_PMTUDISC_OMIT => PathMtuDiscovery::Omit,
        _ => PathMtuDiscovery::Want,
    }
}

/// With IPV6_DONTFRAG a datagram that would leave in fragments is refused (`__ip6_append_data`).
fn dont_fragment_v6(how: PathMtuDiscovery) -> PathMtuDiscovery {
    match how {
        PathMtuDiscovery::Dont | PathMtuDiscovery::Want => PathMtuDiscovery::Do,
        PathMtuDiscovery::Omit => PathMtuDiscovery::Interface,
        other => other,
    }
}
