//! Path MTU discovery (RFC 1191, RFC 8201): a router that cannot pass a segment says how large one may be, and the
//! connection's segments shrink to that. Without it a connection would retransmit into a black hole.

use std::collections::HashMap;
use std::net::IpAddr;

use smoltcp::iface::Interface;

use super::config::MTU_BYTES_MIN;
use super::connection::{Connection, Phase};
use super::device::{Port, Shim};
use super::stack::{Io, Stack, instant, interface};
use super::wire::seq_lt;

/// The smallest that a router is believed over IPv4 (`net.ipv4.route.min_pmtu`). A path narrower than this is not served.
const PATH_MTU_BYTES_MIN_V4: u16 = 552;
/// For how long it is believed (`net.ipv4.route.mtu_expires`); then larger segments are tried again.
const EXPIRES_S: u32 = 600;
/// Destinations remembered, so that a new connection need not learn it again. Only a peer of a connection gets here.
const DESTINATIONS_MAX: usize = 1024;

/// What is known of paths that are narrower than the device.
#[derive(Debug, Default)]
pub(super) struct PathMtus {
    /// MTU in bytes, and until when in seconds.
    known: HashMap<IpAddr, (u16, u32)>,
}

fn seconds(now_ns: u64) -> u32 {
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

    fn insert(&mut self, destination: IpAddr, mtu: u16, now_ns: u64) {
        if self.known.len() >= DESTINATIONS_MAX {
            self.known.retain(|_, &mut (_, until_s)| until_s > seconds(now_ns));
        }
        if self.known.len() < DESTINATIONS_MAX || self.known.contains_key(&destination) {
            self.known.insert(destination, (mtu, seconds(now_ns) + EXPIRES_S));
        }
    }
}

/// smoltcp's interfaces: an MTU belongs to an interface, so a connection with a narrower path borrows another one.
pub(super) struct Interfaces {
    port: Port,
    pub(super) own: Interface,
    narrow: Option<Box<(u16, Interface)>>,
}

impl Interfaces {
    pub(super) fn new(port: Port) -> Interfaces {
        Interfaces { port, own: interface(port, 0, 0), narrow: None }
    }

    /// The interface for a connection.
    #[inline]
    pub(super) fn of(&mut self, connection: &Connection) -> &mut Interface {
        if connection.path_mtu == 0 { &mut self.own } else { self.narrow(connection.path_mtu) }
    }

    #[cold]
    fn narrow(&mut self, mtu: u16) -> &mut Interface {
        let port = Port { mtu_bytes: mtu.into(), ..self.port };
        let narrow = self.narrow.get_or_insert_with(|| Box::new((mtu, interface(port, 0, 0))));
        if narrow.0 != mtu {
            **narrow = (mtu, interface(port, 0, 0));
        }
        &mut narrow.1
    }
}

impl Stack {
    /// A router could pass at most `mtu` bytes of a packet with sequence number `seq` (`tcp_v4_mtu_reduced`). False: it
    /// cannot be about this connection, or means nothing.
    pub(super) fn path_mtu_input(&mut self, index: u32, seq: u32, mtu: u32, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        // Only for what is in flight: a stranger would have to guess that (RFC 5927 section 7.2).
        if seq_lt(seq, connection.snd_una) || seq_lt(connection.snd_nxt, seq) {
            self.counters.out_of_window_icmps += 1;
            return false;
        }
        let destination = connection.flow.remote().ip();
        let mtu = match destination {
            // Old routers say 0.
            IpAddr::V4(_) => mtu.clamp(PATH_MTU_BYTES_MIN_V4.into(), u32::from(u16::MAX)) as u16,
            // RFC 8201 section 4: no path of IPv6 is narrower, whoever says so.
            IpAddr::V6(_) if (mtu as usize) < MTU_BYTES_MIN => return false,
            IpAddr::V6(_) => mtu.min(u32::from(u16::MAX)) as u16,
        };
        let current = if connection.path_mtu == 0 { self.port.mtu_bytes } else { connection.path_mtu.into() };
        if usize::from(mtu) >= current {
            return true;
        }
        (connection.path_mtu, connection.path_mtu_until_s) = (mtu, seconds(io.now_ns) + EXPIRES_S);
        let resend = connection.phase == Phase::Open && connection.snd_una != connection.snd_nxt;
        self.counters.path_mtu_reduced += 1;
        self.path_mtus.insert(destination, mtu, io.now_ns);
        if resend {
            self.resend(index, io);
        }
        true
    }

    /// Sends again what is unacknowledged, at once (`tcp_simple_retransmit`). smoltcp does so only when its timer is due,
    /// so it is told that it is.
    fn resend(&mut self, index: u32, io: &mut Io<'_>) {
        /// The delayed acknowledgement may be due first.
        const DEADLINES_MAX: u32 = 3;
        let next_hop = self.next_hop(index);
        for _ in 0..DEADLINES_MAX {
            let Some(connection) = self.connections.get_mut(index) else { return };
            if let Some(timestamps) = &connection.timestamps {
                timestamps.announce(io.now_ns);
            }
            let iface = self.iface.of(connection);
            let Some(due) = iface.poll_at(instant(io.now_ns), &connection.sockets) else { break };
            let mut shim = Shim::new(None, self.port, next_hop, connection.snd_nxt, io.tx, io.pool);
            iface.poll_egress(due, &mut shim, &mut connection.sockets);
            let exit = shim.exit;
            self.counters.tx_frames += u64::from(exit.frames);
            self.counters.tx_dropped += u64::from(exit.dropped);
            if exit.frames == 0 {
                break;
            }
            connection.sent(exit.last);
            if exit.last.occupied {
                break;
            }
        }
        self.pump(index, false, io);
    }
}

impl Connection {
    /// Larger segments are tried again when what the router said is old.
    #[inline]
    pub(super) fn forget_path_mtu(&mut self, now_ns: u64) {
        if self.path_mtu != 0 && self.path_mtu_until_s <= seconds(now_ns) {
            self.path_mtu = 0;
        }
    }
}
