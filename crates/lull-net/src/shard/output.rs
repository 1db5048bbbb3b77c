//! What a connection sends, what it waits for when it cannot, and what time does to it.

use std::net::IpAddr;

use smoltcp::time::{Duration, Instant};

use super::clock::{RTO_NS_MIN, duration};
use super::coalesce::ACK_SOON_NS;
use super::connection::{Connection, Flags, Phase};
use super::device::{Refused, Shim};
use super::error::NetError;
use super::ranges::later;
use super::recovery::Cause;
use super::socket::SocketId;
use super::stack::{Io, Stack};
use super::timers::{NEVER_NS, TICK_NS};
use super::wire::{FIN, Mac, PSH};

impl Stack {
    /// The connection's next hop, looked up again only if the neighbour table has changed.
    #[inline]
    pub(super) fn next_hop(&mut self, index: u32) -> Option<Mac> {
        let version = self.neighbours.version();
        let connection = self.connections.get(index)?;
        if connection.hop_version == version {
            return connection.next_hop;
        }
        let station = self.route(connection.flow.remote().ip());
        let mac = station.and_then(|station| self.mac_of(station));
        let connection = self.connections.get_mut(index)?;
        // An entry that the table dropped for want of room is still the best guess.
        connection.next_hop = mac.or(connection.next_hop);
        connection.hop_version = version;
        connection.next_hop
    }

    /// Polls smoltcp for segments until it has none, and sets the connection's deadline. `eager`: there is reason to
    /// think that it has one, so do not ask first.
    #[inline]
    pub(super) fn pump(&mut self, index: u32, eager: bool, io: &mut Io<'_>) {
        self.pump_at(index, eager, io.now_ns, io);
    }

    /// Sends the acknowledgement that smoltcp puts off ([`Stack::ack_soon`]), and whatever else there is.
    #[cold]
    pub(super) fn pump_put_off(&mut self, index: u32, io: &mut Io<'_>) {
        self.pump_at(index, true, io.now_ns + ACK_SOON_NS, io);
    }

    /// As smoltcp would at this time.
    #[inline]
    fn pump_at(&mut self, index: u32, mut eager: bool, at_ns: u64, io: &mut Io<'_>) {
        /// Polls without a segment that smoltcp may need to put its timers in order.
        const IDLE_POLLS: u32 = 3;
        let next_hop = self.next_hop(index);
        let leaving = self.leaves_as(index);
        let mut idle = 0;
        let Some(connection) = self.connections.get_mut(index) else { return };
        let mut in_charge = connection.sender().is_some();
        if in_charge && !self.sends_again(index, io) {
            self.block(index);
        }
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.set_nagle();
        connection.forget_path_mtu(io.now_ns);
        if let Some(timestamps) = &connection.timestamps {
            timestamps.announce(io.now_ns);
        }
        let all_acknowledged = connection.snd_una == connection.snd_nxt;
        let now = connection.instant(at_ns);
        let (mut asked, mut untold) = (eager, false);
        let smoltcp_ns = loop {
            let Some(connection) = self.connections.get_mut(index) else { return };
            let iface = self.iface.of(connection, io.now_ns);
            if !eager {
                match iface.poll_at(now, &connection.sockets) {
                    None => {
                        if !in_charge {
                            connection.has_no_timer(io.now_ns);
                        }
                        break NEVER_NS;
                    }
                    Some(at) if at > now => break connection.instant_ns(at),
                    // What has no time is to be sent now.
                    Some(at) if at != Instant::ZERO && connection.waits_for_acknowledgement_ns() > io.now_ns => {
                        break connection.waits_for_acknowledgement_ns();
                    }
                    Some(_) => {}
                }
            }
            eager = false;
            let mut shim = Shim::new(
                None,
                self.port,
                (next_hop, leaving),
                connection.corrections(connection.snd_una),
                io.tx,
                &mut self.looped,
                io.pool,
            );
            shim.exit.sender = connection.take_sender().map(|sender| (sender, io.now_ns));
            shim.exit.probes = connection.peer_window == 0 && !connection.knows_of_no_closed_window();
            iface.poll_egress(now, &mut shim, &mut connection.sockets);
            let exit = shim.exit;
            exit.count(&mut self.counters);
            if let Some((sender, _)) = exit.sender {
                if exit.swallowed > 0 {
                    connection.snd_nxt = later(connection.snd_nxt, sender.next());
                }
                in_charge = !sender.is_broken();
                connection.asked_mut().sender = in_charge.then_some(sender);
            }
            if exit.swallowed > 0 {
                // And its acknowledgement with it.
                untold = true;
                continue;
            }
            if exit.frames > 0 {
                if !exit.last.occupied && !in_charge && connection.probes_in_vain() {
                    connection.has_no_timer(io.now_ns);
                }
                // The first segment of a response that is also its last: smoltcp has nothing more to send, and has
                // just started its retransmission timer. That never runs for less than RTO_NS_MIN.
                let quiet = all_acknowledged && exit.last.flags & PSH != 0 && exit.last.flags & FIN == 0;
                let only = std::mem::take(&mut asked) && quiet;
                let again = connection.sent(exit.last, io.now_ns);
                idle = 0;
                if again && !in_charge {
                    let range = (connection.snd_una, exit.last.seq_end);
                    in_charge = self.takes_charge(index, Cause::Timeout(range), io);
                    continue;
                }
                if only {
                    break io.now_ns + RTO_NS_MIN;
                }
                continue;
            }
            match exit.refused {
                Some(Refused::RingFull) => {
                    self.block(index);
                    break NEVER_NS;
                }
                Some(Refused::NoNeighbour) => break self.unresolved_until(index, io),
                None => {
                    idle += 1;
                    if idle >= IDLE_POLLS {
                        // `poll_at` says now and `poll_egress` has nothing: do not spin.
                        self.counters.tcp_stalls += 1;
                        break io.now_ns + TICK_NS;
                    }
                }
            }
        };
        if untold {
            self.tells_what_came(index, io);
            // What smoltcp held may be sent from the copy now, too.
            if !self.sends_again(index, io) {
                self.block(index);
            }
        }
        let Some(connection) = self.connections.get(index) else { return };
        let deadline_ns = connection.deadline_ns(smoltcp_ns).max(io.now_ns + 1);
        self.timers.set(index, deadline_ns);
    }

    pub(super) fn block(&mut self, index: u32) {
        let id = self.connection_id(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.flags.contains(Flags::BLOCKED) {
            connection.flags.insert(Flags::BLOCKED);
            self.blocked.push_back(id);
        }
    }

    pub(super) fn connection_unblocked(&mut self, id: SocketId, io: &mut Io<'_>) {
        if self.connections.generation(id.index()) != id.generation() {
            return;
        }
        if let Some(connection) = self.connections.get_mut(id.index()) {
            connection.flags.remove(Flags::BLOCKED);
            self.follow_up(id.index(), None, false, io);
            // The sender that was in charge when there was no room may have gone since.
            if self.connections.get(id.index()).is_some_and(|connection| connection.phase == Phase::Open) {
                self.tells_what_came(id.index(), io);
            }
        }
    }

    /// Lets the connection wait for its next hop; returns when to try without an answer.
    pub(super) fn unresolved_until(&mut self, index: u32, io: &mut Io<'_>) -> u64 {
        /// After a failure, or when too much is being asked for.
        const RETRY_NS: u64 = 1_000_000_000;
        let Some(connection) = self.connections.get_mut(index) else { return NEVER_NS };
        if connection.flags.contains(Flags::UNRESOLVED) {
            return NEVER_NS;
        }
        let Some(station) = ({
            let remote = connection.flow.remote().ip();
            self.route(remote)
        }) else {
            return io.now_ns + RETRY_NS;
        };
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.insert(Flags::UNRESOLVED);
        }
        if self.wait_with_connection(station, index, io) {
            return NEVER_NS;
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.remove(Flags::UNRESOLVED);
        }
        io.now_ns + RETRY_NS
    }

    pub(super) fn connection_resolved(&mut self, index: u32, io: &mut Io<'_>) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.flags.remove(Flags::UNRESOLVED);
            connection.hop_version = 0;
            self.follow_up(index, None, false, io);
        }
    }

    /// Nobody answers for the next hop: the end of an attempt to connect, a hiccup for a connection.
    pub(super) fn connection_unreachable(&mut self, index: u32, error: NetError, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.remove(Flags::UNRESOLVED);
        match connection.phase {
            Phase::SynSent => self.over(index, Some(error), io),
            Phase::Open => {
                connection.asked_mut().soft_error = Some(error);
                let retry = connection.deadline_ns(io.now_ns + 1_000_000_000);
                self.timers.set(index, retry.max(io.now_ns + 1));
            }
            Phase::Over => {}
        }
    }

    /// Does what is due on a connection whose deadline has come.
    pub(super) fn connection_timer(&mut self, index: u32, io: &mut Io<'_>) {
        let now_ns = io.now_ns;
        self.cork_timer(index, now_ns);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.state_until_ns <= now_ns {
            match connection.phase {
                Phase::SynSent => {
                    self.counters.timeout_syn_sent += 1;
                    let error = connection.soft_error().unwrap_or(NetError::TimedOut);
                    return self.over(index, Some(error), io);
                }
                Phase::Open => {
                    self.counters.timeout_fin_wait_2 += 1;
                    return self.over(index, None, io);
                }
                Phase::Over => return,
            }
        }
        if connection.phase == Phase::SynSent {
            // The SYN was sent, and is about to be sent again: the next hop may have another address by now.
            let remote = connection.flow.remote().ip();
            self.doubt(remote, io);
        } else if connection.phase == Phase::Open {
            if connection.outstanding() {
                if connection.gives_up_ns() <= now_ns {
                    self.counters.timeout_user += 1;
                    let error = connection.soft_error().unwrap_or(NetError::TimedOut);
                    return self.over(index, Some(error), io);
                }
                let is_to_be_looked_at = connection.lost_ns() <= now_ns;
                // Linux: `dst_negative_advice` after a few retransmissions. Has the next hop moved?
                const DOUBT_NS: u64 = 3_000_000_000;
                let silent = connection.heard_ns.max(connection.progress_ns) + DOUBT_NS <= now_ns;
                if silent && connection.peer_window != 0 {
                    let remote = connection.flow.remote().ip();
                    self.doubt(remote, io);
                }
                if is_to_be_looked_at {
                    self.is_lost(index, io);
                    return self.follow_up(index, None, false, io);
                }
            } else if let Some(keepalive) = connection.keepalive()
                && connection.heard_ns.saturating_add(keepalive.idle_ns) <= now_ns
            {
                if connection.keeps_alive_until_ns(keepalive) <= now_ns {
                    self.counters.timeout_keepalive += 1;
                    self.send_reset(index, io);
                    return self.over(index, Some(NetError::TimedOut), io);
                }
                if !connection.flags.contains(Flags::PROBING) {
                    connection.flags.insert(Flags::PROBING);
                    // smoltcp sends the first probe at its next poll and the others at this interval.
                    let interval = duration(keepalive.interval_ns).max(Duration::from_micros(1));
                    connection.socket_mut().set_keep_alive(Some(interval));
                }
            }
        }
        self.connection_idles(index, io);
        let waits = self.connections.get(index).filter(|it| it.unanswered != 0).map(|it| it.snd_nxt);
        self.follow_up(index, None, false, io);
        // An acknowledgement that had to leave without an answer (`tcp_delack_timer_handler`).
        let in_vain = |it: &&mut Connection| it.unanswered == 0 && waits == Some(it.snd_nxt);
        if let Some(connection) = self.connections.get_mut(index).filter(in_vain) {
            connection.flags.remove(Flags::ANSWERS);
        }
    }

    /// Asks again for the next hop to a peer that has fallen silent.
    pub(super) fn doubt(&mut self, remote: IpAddr, io: &mut Io<'_>) {
        let Some(station) = self.route(remote).filter(|station| !self.is_local(*station)) else { return };
        match self.neighbours.may_be_asked(station, io.now_ns) {
            Some(true) => self.request(station, io),
            Some(false) => {}
            None => self.wait_for(station, io),
        }
    }
}
