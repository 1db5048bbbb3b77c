//! Path MTU discovery (RFC 1191, RFC 8201): a router that cannot pass a segment says how large one may be, and the
//! connection's segments shrink to that. Without it a connection would retransmit into a black hole.

use std::net::IpAddr;

use lull_nic::Frame;

use super::config::{MTU_BYTES_MAX, MTU_BYTES_MIN};
use super::connection::{Connection, Phase};
use super::device::Port;
use super::elsewhere::is_claim;
use super::flow::Owner;
use super::narrow::{EXPIRES_S, Interfaces, seconds};
use super::quoted::{Quoted, Report};
use super::stack::{Io, Stack};
use super::wire::seq_lt;

/// The smallest MTU in which a router is believed over IPv4 (`net.ipv4.route.min_pmtu`). A path narrower than this is
/// not served.
const PATH_MTU_BYTES_MIN_V4: u16 = 552;

impl Stack {
    /// The device's longest packet has so many bytes now (NETDEV_CHANGEMTU); fewer than [`MTU_BYTES_MIN`] count as that many. The
    /// segments of open connections shrink or grow with it, and what was on its way in longer ones than the device still takes
    /// leaves again at once.
    pub fn set_mtu(&mut self, mtu_bytes: usize, io: &mut Io<'_>) {
        let mtu_bytes = mtu_bytes.clamp(MTU_BYTES_MIN, MTU_BYTES_MAX);
        let former = std::mem::replace(&mut self.config.mtu_bytes, mtu_bytes);
        if mtu_bytes == former {
            return;
        }
        self.port = Port { mtu_bytes, ..self.port };
        self.iface = Interfaces::new(self.port);
        self.path_mtus.forget_from(mtu_bytes);
        self.datagram_path_mtus.forget_from(mtu_bytes);
        let connections: Vec<u32> = self.connections.iter().map(|(index, _)| index).collect();
        for index in connections {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            if usize::from(connection.path_mtu) >= mtu_bytes {
                connection.path_mtu = 0;
            }
            self.fits_segments_to_the_path(index);
            let Some(connection) = self.connections.get(index) else { continue };
            let on_its_way = connection.snd_nxt.wrapping_sub(connection.snd_una) as usize;
            // If the path was, and is, narrower than the device, no longer segments were sent.
            let is_cut = mtu_bytes < former && connection.path_mtu == 0 && on_its_way > self.segment_bytes(index);
            if is_cut && connection.phase == Phase::Open {
                self.is_too_large_for_the_path(index, io);
            }
        }
    }

    /// A router could pass at most `mtu` bytes of a packet with sequence number `seq` (`tcp_v4_mtu_reduced`). False: it
    /// cannot be about this connection, or means nothing.
    pub(super) fn path_mtu_input(&mut self, index: u32, seq: u32, mtu: u32, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        // It counts only for a number in flight, which a stranger would have to guess (RFC 5927 section 7.2).
        if seq_lt(seq, connection.snd_una) || seq_lt(connection.snd_nxt, seq) {
            self.counters.out_of_window_icmps += 1;
            return false;
        }
        let destination = connection.flow.remote().ip();
        let Some(mtu) = believed(destination, mtu) else { return false };
        let current = if connection.path_mtu == 0 { self.port.mtu_bytes } else { connection.path_mtu.into() };
        if usize::from(mtu) >= current {
            return true;
        }
        (connection.path_mtu, connection.path_mtu_until_s) = (mtu, seconds(io.now_ns) + EXPIRES_S);
        let resend = connection.phase == Phase::Open && connection.snd_una != connection.snd_nxt;
        self.counters.path_mtu_reduced += 1;
        self.path_mtus.insert(destination, mtu, io.now_ns);
        if resend {
            self.is_too_large_for_the_path(index, io);
        }
        true
    }

    /// A router could pass at most as many bytes of a datagram's packet as it says: later ones leave in fragments, and a socket with
    /// that peer, or one that asks for it, gets an error (`__udp4_lib_err`). False: nobody here can have sent it.
    pub(super) fn datagram_mtu_input(
        &mut self,
        frame: &Frame,
        quoted: &Quoted<'_>,
        report: Report,
        io: &mut Io<'_>,
    ) -> bool {
        let (own, peer) = (quoted.flow.local(), quoted.flow.remote().ip());
        let connected = match self.flows.get(&quoted.flow) {
            Some(&Owner::Udp(index)) => Some(index),
            _ => None,
        };
        let bound = connected.or_else(|| self.udp_ports.find(own.ip(), own.port(), |_| 0, || 0));
        let Some(mtu) = believed(peer, report.info).filter(|&mtu| bound.is_some() && quoted.length > mtu.into()) else {
            return false;
        };
        self.path_takes(peer, mtu, io);
        // A program's socket may have a part in each shard: all parts shrink what they send, and one tells the program.
        if is_claim(frame) {
            return true;
        }
        self.claim(frame);
        let hears = |index: &u32| self.udps.get(*index).is_some_and(|socket| socket.discovery(peer).hears_of_routers());
        if bound.filter(hears).is_some() {
            self.udp_icmp(quoted, report, true, io);
        }
        true
    }

    /// As [`Stack::datagram_mtu_input`], for the reply to an echo request, which any shard may send (`icmpv6_err`).
    pub(super) fn reply_mtu_input(
        &mut self,
        frame: &Frame,
        quoted: &Quoted<'_>,
        report: Report,
        io: &mut Io<'_>,
    ) -> bool {
        let (own, peer) = (quoted.flow.local().ip(), quoted.flow.remote().ip());
        let is_ours = self.is_local(own);
        let Some(mtu) = believed(peer, report.info).filter(|&mtu| is_ours && quoted.length > mtu.into()) else {
            return false;
        };
        self.path_takes(peer, mtu, io);
        if !is_claim(frame) {
            self.claim(frame);
        }
        true
    }

    /// Later packets to `peer` that belong to no connection leave in fragments of `mtu` bytes, unless shorter ones were known to do.
    fn path_takes(&mut self, peer: IpAddr, mtu: u16, io: &Io<'_>) {
        if usize::from(mtu) < self.datagram_mtu(peer, true, io.now_ns) {
            self.counters.path_mtu_reduced += 1;
            self.datagram_path_mtus.insert(peer, mtu, io.now_ns);
        }
    }
}

/// What is believed of a path to `destination`, if anything.
fn believed(destination: IpAddr, mtu: u32) -> Option<u16> {
    match destination {
        // Old routers say 0.
        IpAddr::V4(_) => Some(mtu.clamp(PATH_MTU_BYTES_MIN_V4.into(), u32::from(u16::MAX)) as u16),
        // RFC 8201 section 4: no path of IPv6 is narrower, whoever says so.
        IpAddr::V6(_) if (mtu as usize) < MTU_BYTES_MIN => None,
        IpAddr::V6(_) => Some(mtu.min(u32::from(u16::MAX)) as u16),
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
