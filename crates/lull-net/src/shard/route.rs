//! Which own address, which next station, which Ethernet address: the way of a packet that leaves.

use std::cmp::Reverse;
use std::net::IpAddr;

use lull_nic::Frame;

use super::fragment::cut;
use super::neighbour::Hop;
use super::stack::{Io, Stack};
use super::wire::{self, Mac};

impl Stack {
    /// The own address that a packet to `remote` should come from: the one whose network has it, the narrowest if several do, and of
    /// those the first; or what [`Sources`] says.
    pub(super) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        if self.is_local(remote) {
            return Some(remote);
        }
        let same_family = self.locals.iter().filter(|local| local.ip.is_ipv4() == remote.is_ipv4());
        same_family
            .filter(|local| wire::inside(remote, local.ip, local.prefix))
            .min_by_key(|local| Reverse(local.prefix))
            .map(|local| local.ip)
            .or_else(|| self.sources.to_elsewhere(remote))
    }

    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.locals.iter().any(|local| local.ip == ip)
    }

    pub(super) fn on_link(&self, ip: IpAddr) -> bool {
        self.locals.iter().any(|local| wire::inside(ip, local.ip, local.prefix))
    }

    pub(super) fn is_broadcast(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(ip)
            if ip.is_broadcast() || self.locals.iter().any(|local| local.broadcast == Some(ip)))
    }

    /// The device is gone: nothing has a route any more, as in Linux when an interface is deleted.
    pub fn set_unreachable(&mut self) {
        self.unreachable = true;
    }

    /// The station that a packet to `remote` goes to next.
    pub(super) fn route(&self, remote: IpAddr) -> Option<IpAddr> {
        if self.unreachable {
            return None;
        }
        if self.on_link(remote) {
            return Some(remote);
        }
        match remote {
            IpAddr::V4(_) => self.config.gateway4.map(IpAddr::V4),
            IpAddr::V6(_) => self.config.gateway6.map(IpAddr::V6),
        }
    }

    /// The Ethernet address of a station, through this shard's own view of the shared table.
    pub(super) fn mac_of(&mut self, station: IpAddr) -> Option<Mac> {
        let version = self.neighbours.version();
        let slot = slot_of(station);
        match self.hops[slot] {
            Some(hop) if hop.ip == station && hop.version == version => Some(hop.mac),
            _ => {
                let (mac, used_ns) = match self.is_local(station) {
                    true => (self.port.mac, 0),
                    false => self.neighbours.find(station)?,
                };
                self.hops[slot] = Some(Hop { ip: station, mac, version, used_ns });
                Some(mac)
            }
        }
    }

    /// The longest packet that can go to `destination` in one piece: what the device takes, or what routers have said of datagrams.
    /// An own address takes all.
    pub(super) fn datagram_mtu(&self, destination: IpAddr, heeds_routers: bool, now_ns: u64) -> usize {
        if self.is_local(destination) {
            return wire::IPV6 + usize::from(u16::MAX);
        }
        match self.datagram_path_mtus.get(destination, now_ns) {
            (mtu, _) if mtu != 0 && heeds_routers => self.config.mtu_bytes.min(mtu.into()),
            _ => self.config.mtu_bytes,
        }
    }

    /// Sends an IP packet that no connection's state hangs on, in fragments if it is too long.
    pub(super) fn send_ip_in_parts(&mut self, frame: Frame, source: IpAddr, destination: IpAddr, io: &mut Io<'_>) {
        let mtu = self.datagram_mtu(destination, true, io.now_ns);
        if frame.len() <= mtu {
            return self.send_ip(frame, destination, io);
        }
        let id = self.identifications.next(source, destination);
        for part in cut(&frame, mtu, id, io.pool) {
            self.send_ip(part, destination, io);
        }
        io.pool.recycle(frame);
    }

    /// Sends an IP packet that no connection's state hangs on, or lets it wait for its next hop's address.
    pub(super) fn send_ip(&mut self, frame: Frame, destination: IpAddr, io: &mut Io<'_>) {
        if destination.is_multicast() {
            return self.send_frame(frame, wire::multicast_mac(destination), io);
        }
        if self.is_broadcast(destination) {
            return self.send_frame(frame, wire::BROADCAST, io);
        }
        let Some(hop) = self.route(destination) else {
            self.counters.drop_unreachable += 1;
            return io.pool.recycle(frame);
        };
        match self.mac_of(hop) {
            Some(mac) => {
                self.send_frame(frame, mac, io);
                self.ask_again(hop, io);
            }
            None => self.wait_with_frame(hop, frame, io),
        }
    }

    /// A packet has gone to a station whose address is known. It may be another one's by now, and no acknowledgement tells: from time
    /// to time it is asked for again, as Linux does (`neigh_timer_handler`).
    fn ask_again(&mut self, station: IpAddr, io: &mut Io<'_>) {
        let Some(hop) = self.hops[slot_of(station)].as_mut().filter(|hop| !hop.is_young(io.now_ns)) else { return };
        let (used_ns, is_old) = self.neighbours.grows_old(station, io.now_ns);
        hop.used_ns = used_ns;
        if is_old {
            self.request(station, io);
        }
    }

    /// Sends an answer to a packet that came from the station `mac`. Nothing is remembered of a stranger on an own network:
    /// a flood with forged source addresses must not fill the neighbour table.
    pub(super) fn send_back(&mut self, frame: Frame, destination: IpAddr, mac: Mac, io: &mut Io<'_>) {
        if self.on_link(destination) && self.mac_of(destination).is_none() {
            return self.send_frame(frame, mac, io);
        }
        self.send_ip(frame, destination, io);
    }

    /// Puts an IP packet on the ring, or drops it if that is full.
    pub(super) fn send_frame(&mut self, mut frame: Frame, mac: Mac, io: &mut Io<'_>) {
        let ethertype = if frame.data()[0] >> 4 == 4 { wire::ETHERTYPE_IPV4 } else { wire::ETHERTYPE_IPV6 };
        wire::push_ethernet(&mut frame, mac, self.port.mac, ethertype);
        if mac == self.port.mac {
            return self.looped.push_back(frame);
        }
        self.transmit(frame, io);
    }

    pub(super) fn transmit(&mut self, frame: Frame, io: &mut Io<'_>) {
        match io.tx.transmit(frame) {
            Ok(()) => self.counters.tx_frames += 1,
            Err(frame) => {
                self.counters.tx_dropped += 1;
                io.pool.recycle(frame);
            }
        }
    }
}

/// Where a station stands in the shard's view of the neighbour table. Any spreading will do: a collision costs a look into the shared
/// one.
pub(super) fn slot_of(station: IpAddr) -> usize {
    let octet = match station {
        IpAddr::V4(ip) => u32::from(ip),
        IpAddr::V6(ip) => u128::from(ip) as u32,
    };
    octet.wrapping_mul(0x9e37_79b1) as usize >> 24
}
