//! Listening sockets: who may take a SYN, how many may wait, and the ports of TCP and UDP.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use foldhash::fast::FixedState;

use super::error::NetError;
use super::socket::{ListenOptions, Ready};

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) options: ListenOptions,
    /// Established connections that nobody has accepted yet, by slab index.
    pub(super) accepted: VecDeque<u32>,
    /// Connections in SYN-RECEIVED.
    pub(super) half_open: usize,
    /// Until then an acknowledgement may be that of a cookie.
    pub(super) cookies_until_ns: u64,
    pub(super) ready: Ready,
    /// Shut down for reading: it takes no more connections.
    pub(super) stopped: bool,
}

impl Listener {
    /// `sk_acceptq_is_full`: more than the backlog, so that one more than it fits.
    pub(super) fn is_full(&self) -> bool {
        self.accepted.len() > self.options.backlog
    }

    /// Connections in SYN-RECEIVED, at most: Linux bounds them by the backlog (`inet_csk_reqsk_queue_is_full`), and here
    /// by the smaller of it and a limit of their own.
    pub(super) fn half_opens_max(&self) -> usize {
        self.options.backlog.min(self.options.syn_backlog)
    }
}

/// With whom a socket shares its address. Two share one if both say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    /// Packets are spread over those that say so (SO_REUSEPORT).
    pub(super) spread: bool,
    /// Packets go to whoever was bound last (SO_REUSEADDR of UDP).
    pub(super) last: bool,
}

impl Sharing {
    fn with(self, other: Sharing) -> bool {
        self.spread && other.spread || self.last && other.last
    }
}

/// A socket bound to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) index: u32,
    /// Unspecified: any own address.
    pub(super) ip: IpAddr,
    pub(super) sharing: Sharing,
    pub(super) v6_only: bool,
    /// It has a peer and is found by its 4-tuple instead. The port stays taken.
    pub(super) connected: bool,
}

impl Binding {
    fn takes(&self, ip: IpAddr) -> bool {
        self.ip == ip || self.is_wild_for(ip)
    }

    fn is_found(&self, ip: IpAddr) -> bool {
        !self.connected && self.takes(ip)
    }

    fn is_wild_for(&self, ip: IpAddr) -> bool {
        self.ip.is_unspecified() && (self.ip.is_ipv4() == ip.is_ipv4() || self.ip.is_ipv6() && !self.v6_only)
    }

    fn overlaps(&self, other: &Binding) -> bool {
        self.takes(other.ip) || other.takes(self.ip)
    }
}

/// Who is bound to which port. The application chooses the ports, so their hash needs no secret.
#[derive(Debug, Default)]
pub(super) struct PortTable(HashMap<u16, Vec<Binding>, FixedState>);

impl PortTable {
    /// Binds, unless another socket has the address and not both say that they share it.
    pub(super) fn bind(&mut self, port: u16, binding: Binding) -> Result<(), NetError> {
        let bound = self.0.entry(port).or_default();
        if bound.iter().any(|other| other.overlaps(&binding) && !other.sharing.with(binding.sharing)) {
            return Err(NetError::AddressInUse);
        }
        bound.push(binding);
        Ok(())
    }

    pub(super) fn unbind(&mut self, port: u16, index: u32) {
        if let Some(bound) = self.0.get_mut(&port) {
            bound.retain(|binding| binding.index != index);
            if bound.is_empty() {
                self.0.remove(&port);
            }
        }
    }

    pub(super) fn set_connected(&mut self, port: u16, index: u32, connected: bool) {
        let bound = self.0.get_mut(&port).into_iter().flatten();
        for binding in bound.filter(|binding| binding.index == index) {
            binding.connected = connected;
        }
    }

    pub(super) fn is_free(&self, port: u16) -> bool {
        !self.0.contains_key(&port)
    }

    /// The socket for a packet to `ip`: one bound to exactly that address comes before one bound to any; among equals
    /// the one that was bound last, and if packets are spread over it and others, `hash` chooses (`udp4_lib_lookup2`).
    pub(super) fn find(&self, ip: IpAddr, port: u16, hash: impl FnOnce() -> u64) -> Option<u32> {
        let bound = self.0.get(&port)?;
        if let [only] = bound.as_slice() {
            return only.is_found(ip).then_some(only.index);
        }
        let exact = bound.iter().any(|binding| binding.is_found(ip) && binding.ip == ip);
        let candidates = || bound.iter().filter(|b| b.is_found(ip) && (!exact || b.ip == ip));
        let last = candidates().next_back()?;
        if !last.sharing.spread {
            return Some(last.index);
        }
        let spread = || candidates().filter(|binding| binding.sharing.spread);
        let count = spread().count() as u64;
        let choice = if count > 1 { hash() % count } else { 0 };
        spread().nth(choice as usize).map(|binding| binding.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(index: u32, ip: &str, spread: bool) -> Binding {
        let sharing = Sharing { spread, last: false };
        Binding { index, ip: ip.parse().unwrap(), sharing, v6_only: false, connected: false }
    }

    #[test]
    fn exact_before_any_and_conflicts_are_refused() {
        let mut table = PortTable::default();
        table.bind(80, binding(0, "0.0.0.0", true)).unwrap();
        table.bind(80, binding(1, "10.0.0.1", true)).unwrap();
        assert_eq!(table.bind(80, binding(2, "10.0.0.1", false)), Err(NetError::AddressInUse));
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, || 0), Some(1));
        assert_eq!(table.find("10.0.0.9".parse().unwrap(), 80, || 0), Some(0));
        table.unbind(80, 1);
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, || 0), Some(0));
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 81, || 0), None);
    }

    #[test]
    fn any_ipv6_takes_ipv4_unless_told_otherwise() {
        let mut table = PortTable::default();
        table.bind(80, binding(0, "::", false)).unwrap();
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, || 0), Some(0));
        assert_eq!(table.bind(80, binding(1, "0.0.0.0", false)), Err(NetError::AddressInUse));
        table.bind(81, Binding { v6_only: true, ..binding(0, "::", false) }).unwrap();
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 81, || 0), None);
    }

    #[test]
    fn of_those_that_share_without_spreading_the_last_one_hears_everything() {
        let mut table = PortTable::default();
        let ip = "10.0.0.1".parse().unwrap();
        let sharing = Sharing { spread: false, last: true };
        for index in 0..3 {
            table.bind(80, Binding { sharing, ..binding(index, "0.0.0.0", false) }).unwrap();
        }
        assert_eq!((0..3).map(|h| table.find(ip, 80, || h)).collect::<Vec<_>>(), [Some(2); 3]);
        assert_eq!(table.bind(80, binding(3, "0.0.0.0", true)), Err(NetError::AddressInUse), "it says something else");
        table.unbind(80, 2);
        assert_eq!(table.find(ip, 80, || 0), Some(1));
    }

    #[test]
    fn sharers_are_chosen_by_the_hash() {
        let mut table = PortTable::default();
        for index in 0..3 {
            table.bind(80, binding(index, "0.0.0.0", true)).unwrap();
        }
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!((0..3).map(|h| table.find(ip, 80, || h)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    }
}
