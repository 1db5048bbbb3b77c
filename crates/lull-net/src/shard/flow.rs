//! The 4-tuple and the table that finds a connection by it.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

/// Protocol and 4-tuple. IPv4 addresses are kept in their IPv4-mapped form; packets with such addresses *on the wire*
/// are refused earlier, so the two never meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowKey {
    local: [u64; 2],
    remote: [u64; 2],
    ports: u32,
    protocol: u8,
}

const MAPPED: u64 = 0xffff_0000_0000;

#[inline]
fn words(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(ip) => [0, MAPPED | u64::from(u32::from(ip))],
        IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            [(bits >> 64) as u64, bits as u64]
        }
    }
}

#[inline]
fn address(words: [u64; 2]) -> IpAddr {
    if words[0] == 0 && words[1] >> 32 == MAPPED >> 32 {
        IpAddr::V4(Ipv4Addr::from(words[1] as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from(u128::from(words[0]) << 64 | u128::from(words[1])))
    }
}

impl FlowKey {
    #[inline]
    pub(super) fn new(protocol: u8, local: IpAddr, local_port: u16, remote: IpAddr, remote_port: u16) -> FlowKey {
        FlowKey {
            local: words(local),
            remote: words(remote),
            ports: u32::from(local_port) << 16 | u32::from(remote_port),
            protocol,
        }
    }

    pub(super) fn protocol(&self) -> u8 {
        self.protocol
    }

    pub(super) fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local), (self.ports >> 16) as u16)
    }

    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote), self.ports as u16)
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}->{}", self.protocol, self.local(), self.remote())
    }
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.remote[0]) << 64 | u128::from(self.remote[1]));
        state.write_u128(u128::from(self.local[0]) << 64 | u128::from(self.local[1]));
        state.write_u64(u64::from(self.ports) << 8 | u64::from(self.protocol));
    }
}

/// Whose a 4-tuple is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A connection, by its slab index.
    Connection(u32),
    /// A connection in SYN-RECEIVED, by its record's index.
    HalfOpen(u32),
    /// A connection in TIME-WAIT, by its record's index.
    TimeWait(u32),
    /// A connected UDP socket, by its slab index.
    Udp(u32),
}

/// The table, with a hash that is seeded per shard: an outsider cannot aim at one bucket.
pub(super) type FlowTable = HashMap<FlowKey, Owner, SeedableRandomState>;

/// Entries for which room is always kept.
const ENTRIES_KEPT: usize = 256;

/// Forgets a flow, and gives back the room of a crowd that has left.
pub(super) fn forget(table: &mut FlowTable, flow: &FlowKey) {
    table.remove(flow);
    if table.capacity() > ENTRIES_KEPT && table.len() * 8 < table.capacity() {
        table.shrink_to(table.len() * 2);
    }
}

pub(super) fn hash_state(seed: u64) -> SeedableRandomState {
    SeedableRandomState::with_seed(seed, SharedSeed::global_fixed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_packed_form() {
        for (local, remote) in [("10.0.0.1:80", "192.168.1.2:50000"), ("[2001:db8::1]:443", "[fe80::2]:1")] {
            let (local, remote): (SocketAddr, SocketAddr) = (local.parse().unwrap(), remote.parse().unwrap());
            let key = FlowKey::new(6, local.ip(), local.port(), remote.ip(), remote.port());
            assert_eq!((key.local(), key.remote()), (local, remote));
        }
    }
}
