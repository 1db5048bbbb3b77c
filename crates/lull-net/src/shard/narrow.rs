//! Paths that are narrower than the device: what is known of them, and smoltcp's interfaces for them.

use std::collections::HashMap;
use std::net::IpAddr;

use smoltcp::iface::Interface;

use super::connection::Connection;
use super::device::{Port, interface};

/// For how long a narrower MTU is believed (`net.ipv4.route.mtu_expires`); then larger segments are tried again.
pub(super) const EXPIRES_S: u32 = 600;
/// Destinations remembered, so that a new connection need not learn it again. Only a peer of a connection gets here.
const DESTINATIONS_MAX: usize = 1024;

/// What is known of paths that are narrower than the device.
#[derive(Debug, Default)]
pub(super) struct PathMtus {
    /// MTU in bytes, and until when in seconds.
    known: HashMap<IpAddr, (u16, u32)>,
}

pub(super) fn seconds(now_ns: u64) -> u32 {
    (now_ns / 1_000_000_000) as u32
}

impl PathMtus {
    /// The MTU to `destination`, in bytes, and until when in seconds; 0: the device's.
    pub(super) fn get(&self, destination: IpAddr, now_ns: u64) -> (u16, u32) {
        match self.known.get(&destination) {
            Some(&(mtu, until_s)) if until_s > seconds(now_ns) => (mtu, until_s),
            _ => (0, 0),
        }
    }

    /// The device's own MTU is `mtu_bytes` now, so what is known of paths that are as wide is forgotten.
    pub(super) fn forget_from(&mut self, mtu_bytes: usize) {
        self.known.retain(|_, &mut (mtu, _)| usize::from(mtu) < mtu_bytes);
    }

    pub(super) fn insert(&mut self, destination: IpAddr, mtu: u16, now_ns: u64) {
        if self.known.len() >= DESTINATIONS_MAX {
            self.known.retain(|_, &mut (_, until_s)| until_s > seconds(now_ns));
        }
        if self.known.len() >= DESTINATIONS_MAX && !self.known.contains_key(&destination) {
            // The oldest makes room (`update_or_create_fnhe`). Of several that are as old, always the same one.
            let oldest = self.known.iter().min_by_key(|&(ip, &(_, until_s))| (until_s, *ip)).map(|(ip, _)| *ip);
            oldest.map(|oldest| self.known.remove(&oldest));
        }
        self.known.insert(destination, (mtu, seconds(now_ns) + EXPIRES_S));
    }
}

/// smoltcp's interfaces: an MTU belongs to an interface, and so do segments above it, so a connection with a narrower path,
/// or one that may have to send again, borrows another one.
pub(super) struct Interfaces {
    port: Port,
    pub(super) own: Interface,
    /// The own MTU, and nothing above it.
    plain: Option<Box<Interface>>,
    narrow: Option<Box<(u16, Interface)>>,
}

impl Interfaces {
    pub(super) fn new(port: Port) -> Interfaces {
        Interfaces { port, own: interface(port, 0, 0), plain: None, narrow: None }
    }

    /// The interface for a connection at this time.
    #[inline]
    pub(super) fn of(&mut self, connection: &Connection, now_ns: u64) -> &mut Interface {
        if connection.path_mtu != 0 {
            return self.narrow(connection.path_mtu);
        }
        if self.port.tx_segmentation_offload && connection.may_send_again(now_ns) {
            return self.plain();
        }
        &mut self.own
    }

    /// After a timeout one segment goes out, not all that is unacknowledged at once (RFC 5681 section 3.1).
    #[cold]
    fn plain(&mut self) -> &mut Interface {
        let port = Port { tx_segmentation_offload: false, ..self.port };
        self.plain.get_or_insert_with(|| Box::new(interface(port, 0, 0)))
    }

    #[cold]
    fn narrow(&mut self, mtu: u16) -> &mut Interface {
        let port = Port { mtu_bytes: mtu.into(), tx_segmentation_offload: false, ..self.port };
        let narrow = self.narrow.get_or_insert_with(|| Box::new((mtu, interface(port, 0, 0))));
        if narrow.0 != mtu {
            **narrow = (mtu, interface(port, 0, 0));
        }
        &mut narrow.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody can invent destinations; the last that a router says is believed all the same.
    #[test]
    fn the_oldest_of_many_destinations_makes_room() {
        let ip = |number: u32| IpAddr::from(number.to_be_bytes());
        let mut known = PathMtus::default();
        for number in 0..2 * DESTINATIONS_MAX as u32 {
            known.insert(ip(number), 552, u64::from(number) * 1_000_000);
            assert_eq!(known.get(ip(number), 0).0, 552);
        }
        assert_eq!((known.known.len(), known.get(ip(0), 0).0), (DESTINATIONS_MAX, 0));
    }
}
