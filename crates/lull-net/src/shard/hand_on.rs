//! Connections that nobody has accepted when their listener is closed go to another stack that listens at their
//! address, if there is one (as with Linux's `net.ipv4.tcp_migrate_req`, `inet_csk_listen_stop`).
//!
//! On such a connection nothing was sent yet but the SYN-ACK and acknowledgements, and nothing was read. So one segment
//! can say all that there is of it: the segment that ends the handshake, with the options of the SYN and the data that
//! the peer has sent since. The other stack makes the connection from that. Until it is given away, the connection
//! stays here, where the peer's segments come.
//!
//! The end of a handshake may find that all listeners are closed, and that one will be open soon. It is held, and all stacks are asked
//! again: what the peer sends behind it may have made the connection somewhere by then.

use std::net::{IpAddr, SocketAddr};

use lull_nic::Frame;
use lull_nic::passing::{EVERYBODY, LAST_ROUND};

use super::connection::{Flags, Phase};
use super::demux::Reason;
use super::elsewhere::HandedOn;
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::half_open::Handshake;
use super::handing_on::{End, Left, WAIT_NS};
use super::listener::Waiting;
use super::options::Offer;
use super::segment::Arrived;
use super::socket::SocketId;
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;
use super::wire::{self, ACK, BareSegment, FIN, PSH, RST, SYN, seq_lt};

/// What was received and not read, at most, so that it fits an IP packet with its headers.
const UNREAD_BYTES_MAX: usize = 64_000;

/// What it takes to treat an accepted connection as one that nobody has accepted ([`Stack::tcp_leave`]).
#[derive(Clone, Copy, Debug)]
pub struct Unaccepted(pub(super) Handshake);

/// Whether a segment stands for a whole connection of another stack's.
#[inline]
pub(super) fn is_handed_over(arrived: &Arrived<'_>) -> bool {
    arrived.frame.seen_by() == EVERYBODY && arrived.segment.flags & (SYN | ACK | RST) == ACK
}

/// Our address and the peer's, of a connection that is kept as one segment ([`Elsewhere::keeps`](super::Elsewhere::keeps)); none of
/// any other frame.
pub fn addresses_of(frame: &Frame) -> Option<(SocketAddr, SocketAddr)> {
    const FLAGS: usize = 13;
    let ip = frame.data().get(wire::ETHERNET..)?;
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
    // They have no options of IP, and no extension headers.
    let (source, destination, protocol, l4) = match ip.first()? >> 4 {
        4 => (v4(12)?, v4(16)?, ip[9], wire::IPV4),
        6 => (v6(8)?, v6(24)?, ip[6], wire::IPV6),
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(<[u8; 2]>::try_from(ip.get(at..at + 2)?).ok()?));
    let is_one = frame.seen_by() & LAST_ROUND != 0
        && protocol == wire::PROTOCOL_TCP
        && ip.get(l4 + FLAGS)? & (SYN | ACK | RST) == ACK;
    is_one.then_some((SocketAddr::new(destination, port(l4 + 2)?), SocketAddr::new(source, port(l4)?)))
}

impl Stack {
    /// Whether the end of a handshake that was begun here, or by another stack with these addresses, is kept for
    /// whoever listens next.
    #[cold]
    pub(super) fn keeps_last_acknowledgement(&mut self, arrived: &mut Arrived<'_>, now_ns: u64) -> bool {
        let Arrived { flow, frame, segment, .. } = arrived;
        let (isn, peer_isn) = (segment.ack.wrapping_sub(1), segment.seq.wrapping_sub(1));
        let Some(elsewhere) = self.others(frame) else { return false };
        if self.secret.cookie_mss(flow, peer_isn, isn, now_ns).is_none() {
            return false;
        }
        frame.set_seen_by(frame.seen_by() | LAST_ROUND);
        match elsewhere.keeps(flow.local(), frame, 0) {
            HandedOn::Given => true,
            HandedOn::Later => self.handing_on.hold(arrived, now_ns),
            HandedOn::Nobody => false,
        }
    }

    /// Whether a segment that no stack knows comes behind the end of a handshake that is held here. It belongs to what will be made of
    /// that: its sender sends it again, and must not be refused.
    #[cold]
    pub(super) fn holds_the_end_of_its_handshake(&self, arrived: &Arrived<'_>) -> bool {
        let segment = &arrived.segment;
        let is_in_front =
            |end: &End| end.flow == arrived.flow && end.ack == segment.ack && seq_lt(end.seq, segment.seq);
        self.handing_on.ends.iter().any(is_in_front)
    }

    /// Whether a segment only acknowledges a SYN-ACK, although its sender has sent data already. This happens where
    /// several stacks have the address: one that has not heard the sender yet sends the SYN-ACK again, and may end
    /// before anybody has the connection. The sender then sends the data again, and either a connection is made of that
    /// or it is refused.
    #[cold]
    pub(super) fn answers_a_syn_ack_again(&self, arrived: &Arrived<'_>, now_ns: u64) -> bool {
        let Arrived { flow, frame, segment, .. } = arrived;
        let says_more = segment.length > 0 || segment.flags & FIN != 0;
        !says_more
            && self.others(frame).is_some()
            && self.secret.is_behind_a_cookie(flow, segment.seq, segment.ack.wrapping_sub(1), now_ns)
    }

    /// Takes a frame that was kept for whoever listens.
    pub(crate) fn take_kept(&mut self, frame: Frame, io: &mut Io<'_>) {
        self.take(frame, false, io);
    }

    /// Gives up a connection that was accepted for another process, on which nothing was read or sent, and that nobody
    /// here wants any more: it is as if it had not been accepted and its listener were closed. The id is void
    /// afterwards.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn tcp_leave(&mut self, id: SocketId, was: Unaccepted, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        if connection.phase != Phase::Open {
            return self.close(id, io);
        }
        connection.flags.remove(Flags::HELD);
        connection.flags.insert(Flags::QUEUED);
        self.leave(Waiting { index: id.index(), handshake: was.0 }, io);
        Ok(())
    }

    /// The listener of a connection that nobody has accepted is closed.
    pub(super) fn leave(&mut self, waiting: Waiting, io: &mut Io<'_>) {
        self.leave_until(waiting, io.now_ns + WAIT_NS, io);
    }

    /// The listener of a connection that nobody has accepted is shut down: somebody who listens now may take it.
    pub(super) fn leave_at_once(&mut self, waiting: Waiting, io: &mut Io<'_>) {
        self.leave_until(waiting, io.now_ns, io);
    }

    fn leave_until(&mut self, waiting: Waiting, until_ns: u64, io: &mut Io<'_>) {
        let generation = self.connections.generation(waiting.index);
        self.give_away(Left { waiting, generation, until_ns }, io);
    }

    /// Connections that wait for somebody who listens.
    pub(crate) fn handing_on(&self) -> usize {
        self.handing_on.left.len()
    }

    /// Looks again for somebody who listens.
    pub(super) fn run_handing_on(&mut self, io: &mut Io<'_>) {
        if self.handing_on.again_ns <= io.now_ns {
            self.handing_on.again_ns = NEVER_NS;
            for left in std::mem::take(&mut self.handing_on.left) {
                self.give_away(left, io);
            }
            for End { mut frame, until_ns, .. } in std::mem::take(&mut self.handing_on.ends) {
                // A stack that has the connection by now is asked before one that could make a connection of it.
                frame.set_seen_by(0);
                self.handing_on.held_until_ns = Some(until_ns);
                self.take(frame, false, io);
                self.handing_on.held_until_ns = None;
            }
        }
    }

    /// Ends the wait for somebody who listens: what can be kept for whoever listens next is kept.
    pub fn end_handing_on(&mut self, io: &mut Io<'_>) {
        self.handing_on.again_ns = NEVER_NS;
        for left in std::mem::take(&mut self.handing_on.left) {
            if self.is_kept(&left, io) { self.goes_on(&left) } else { self.give_up(&left, io) }
        }
        let ends = std::mem::take(&mut self.handing_on.ends);
        let Some(elsewhere) = self.config.others() else { return };
        for End { frame, flow, .. } in ends {
            // Another stack goes on to hold it. If it finds nobody either, the peer sends its data again.
            let _ = elsewhere.takes_last_acknowledgement(&frame)
                || elsewhere.keeps(flow.local(), &frame, 0) == HandedOn::Given;
        }
    }

    fn is_kept(&mut self, left: &Left, io: &mut Io<'_>) -> bool {
        let Some(local) = self.open_flow(left.waiting.index, left.generation).map(|flow| flow.local()) else {
            return false;
        };
        let Some(elsewhere) = self.config.others().cloned() else { return false };
        self.as_one_segment(&left.waiting, io).is_some_and(|mut frame| {
            frame.set_seen_by(EVERYBODY);
            elsewhere.keeps(local, &frame, 0) == HandedOn::Given
        })
    }

    /// Gives a connection to whoever listens, keeps it while somebody will, and resets it otherwise.
    fn give_away(&mut self, left: Left, io: &mut Io<'_>) {
        match self.given_away(&left.waiting, left.generation, io) {
            HandedOn::Given => self.goes_on(&left),
            HandedOn::Later if io.now_ns < left.until_ns => {
                self.handing_on.look_again(io.now_ns);
                self.handing_on.left.push(left);
            }
            HandedOn::Later | HandedOn::Nobody => self.give_up(&left, io),
        }
    }

    fn given_away(&mut self, waiting: &Waiting, generation: u32, io: &mut Io<'_>) -> HandedOn {
        let index = waiting.index;
        let Some(local) = self.open_flow(index, generation).map(|flow| flow.local()) else { return HandedOn::Nobody };
        // A stack without others does as Linux does by default.
        let Some(elsewhere) = self.config.others().cloned() else { return HandedOn::Nobody };
        let here = self.listener_ports.find(local.ip(), local.port(), |_| u32::MAX, || 0).is_some();
        let Some(mut frame) = self.as_one_segment(waiting, io) else { return HandedOn::Nobody };
        if !here {
            return elsewhere.takes_over(local, &frame);
        }
        // Another listener of this stack has the address.
        let _ = self.free_what_goes_on(index);
        frame.set_seen_by(EVERYBODY);
        self.take(frame, false, io);
        HandedOn::Given
    }

    /// The flow of a connection that is still open.
    fn open_flow(&self, index: u32, generation: u32) -> Option<FlowKey> {
        let connection = self.connections.get(index).filter(|_| self.connections.generation(index) == generation)?;
        (connection.phase == Phase::Open).then_some(connection.flow)
    }

    fn give_up(&mut self, left: &Left, io: &mut Io<'_>) {
        if self.open_flow(left.waiting.index, left.generation).is_some() {
            self.send_reset(left.waiting.index, io);
        }
        if self.is_still(left) {
            self.free(left.waiting.index);
        }
    }

    /// The connection is another stack's from now on.
    fn goes_on(&mut self, left: &Left) {
        if self.is_still(left) {
            let _ = self.free_what_goes_on(left.waiting.index);
        }
    }

    fn is_still(&self, left: &Left) -> bool {
        self.connections.generation(left.waiting.index) == left.generation
    }

    /// Returns a connection on which nothing was sent or read as one segment, as its peer would send it. Returns
    /// nothing if it does not fit one, or if the peer is this stack itself or cannot be reached.
    fn as_one_segment(&mut self, waiting: &Waiting, io: &mut Io<'_>) -> Option<Frame> {
        let mac = self.next_hop(waiting.index)?;
        let remote = self.connections.get(waiting.index)?.flow.remote();
        let is_own = self.is_local(remote.ip());
        let connection = self.connections.get_mut(waiting.index).filter(|_| !is_own)?;
        let (own, handshake) = (connection.flow.local(), waiting.handshake);
        let unread = connection.socket().recv_queue();
        if unread > UNREAD_BYTES_MAX {
            return None;
        }
        // The peer's value, and one of ours that it has seen.
        let swapped = |(value, recent)| (recent, value);
        let timestamp = connection.timestamps.map(|timestamps| swapped(timestamps.option(io.now_ns)));
        let end = if connection.flags.contains(Flags::FIN_RECEIVED) { FIN } else { 0 };
        let segment = BareSegment {
            source: remote.ip(),
            source_port: remote.port(),
            destination: own.ip(),
            destination_port: own.port(),
            seq: handshake.peer_isn.wrapping_add(1),
            ack: handshake.isn.wrapping_add(1),
            flags: ACK | PSH | end,
            window: connection.peer_window,
        };
        let options = Offer { timestamp, ..handshake.offer }.write();
        let socket = connection.socket_mut();
        let mut read = 0;
        let mut frame = segment.build_carrying(&options, unread, io.pool, |payload| {
            // It fails where the peer has sent its end alone, so that there is nothing.
            read = if unread == 0 { 0 } else { socket.peek_slice(payload).unwrap_or(0) };
        });
        let ethertype = if own.is_ipv4() { wire::ETHERTYPE_IPV4 } else { wire::ETHERTYPE_IPV6 };
        wire::push_ethernet(&mut frame, self.port.mac, mac, ethertype);
        (read == unread).then_some(frame)
    }

    /// Takes a connection of another stack's whose listener there is closed. Nobody else has it any more, so the peer
    /// is told if it cannot be taken.
    #[cold]
    pub(super) fn take_over(&mut self, arrived: &mut Arrived<'_>, io: &mut Io<'_>) -> Result<(), Reason> {
        let Arrived { flow, segment, .. } = *arrived;
        if let Some(&Owner::TimeWait(index)) = self.flows.get(&flow) {
            // The TIME-WAIT record is of a former connection: this one was open elsewhere until now.
            self.time_waits.forget(index, &mut self.flows);
        }
        if segment.length == 0 && self.claimed.contains(&flow, segment.seq.wrapping_sub(1)) {
            return Ok(());
        }
        let Some(listener) = self.listener_for(arrived) else {
            return self.hand_further(arrived, io);
        };
        let mut offer = Offer::read(arrived.options());
        offer.timestamp = offer.timestamp.filter(|_| self.config.timestamps);
        let (isn, peer_isn) = (segment.ack.wrapping_sub(1), segment.seq.wrapping_sub(1));
        let handshake = Handshake { isn, peer_isn, offer, sent_ns: None };
        let taken = self.complete(listener, &handshake, arrived, io);
        if !matches!(self.flows.get(&flow), Some(Owner::Connection(_))) {
            self.reset_stranger(arrived, io);
        }
        // A stack that is newer than the connection has not been told of it.
        self.claim_if_made(arrived);
        taken
    }

    /// Hands a connection further whose listener here has been closed meanwhile, too. Each such step takes one from the
    /// hop limit, so that this ends.
    fn hand_further(&mut self, arrived: &mut Arrived<'_>, io: &mut Io<'_>) -> Result<(), Reason> {
        let Arrived { flow, frame, packet, .. } = &mut *arrived;
        if let Some(asked) = wire::take_hop(&mut frame.data_mut()[packet.l3..])
            && let Some(elsewhere) = self.config.others()
            && (elsewhere.takes_over(flow.local(), frame) == HandedOn::Given
                || elsewhere.keeps(flow.local(), frame, asked) == HandedOn::Given)
        {
            self.counters.passed_on += 1;
            return Ok(());
        }
        self.reset_stranger(arrived, io);
        Err(|counters| &mut counters.drop_no_connection)
    }
}
