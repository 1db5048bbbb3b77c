//! Path MTU discovery (RFC 1191, RFC 8201): a router that cannot pass a segment says how large one may be, and the
//! connection's segments shrink to that. Without it a connection would retransmit into a black hole.

use std::net::IpAddr;

use super::config::MTU_BYTES_MIN;
use super::connection::{Connection, Phase};
use super::device::{Shim, instant};
use super::narrow::{EXPIRES_S, seconds};
use super::stack::{Io, Stack};
use super::wire::seq_lt;

/// The smallest that a router is believed over IPv4 (`net.ipv4.route.min_pmtu`). A path narrower than this is not served.
const PATH_MTU_BYTES_MIN_V4: u16 = 552;

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
        let sender = self.sender_of(index);
        for _ in 0..DEADLINES_MAX {
            let Some(connection) = self.connections.get_mut(index) else { return };
            if let Some(timestamps) = &connection.timestamps {
                timestamps.announce(io.now_ns);
            }
            let iface = self.iface.of(connection, io.now_ns);
            let Some(due) = iface.poll_at(instant(io.now_ns), &connection.sockets) else { break };
            let mut shim = Shim::new(
                None,
                self.port,
                (next_hop, sender),
                connection.corrections(connection.snd_una),
                io.tx,
                &mut self.looped,
                io.pool,
            );
            iface.poll_egress(due, &mut shim, &mut connection.sockets);
            let exit = shim.exit;
            exit.count(&mut self.counters);
            if exit.frames == 0 {
                break;
            }
            connection.sent(exit.last, io.now_ns);
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
