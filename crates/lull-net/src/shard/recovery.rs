//! What is lost and sent again.
//!
//! smoltcp sends the first segment again at the third duplicate of an acknowledgement, and everything from there on
//! when its timer runs out; it does not read selective acknowledgements. So at the first sign that something is
//! missing, or when smoltcp's timer has run out, a [`Sender`] takes charge of the connection: it decides what is lost
//! and when that leaves again, and what smoltcp sends a second time does not leave. When all is acknowledged, and the
//! connection has been idle for a second, the sender goes.

use smoltcp::socket::tcp::{CongestionControl, State};

use super::agreed::SACK;
use super::asked::Asked;
use super::clock::{RTO_NS_MIN, instant};
use super::connection::{Connection, Flags, Phase};
use super::cork::TIMESTAMP_BYTES;
use super::device::{Rehearsal, Shim};
use super::drain::on_its_way;
use super::options::{self, Offer};
use super::ranges::{Range, later};
use super::segment::{Arrived, Segment};
use super::sender::{Heard, Sender, Start, tail_probe_after_ns};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;
use super::wire::{self, ACK, BareSegment, FIN, PSH, RST, SYN, seq_lt};

/// Why a sender takes charge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// An acknowledgement says that something is missing.
    Sign,
    /// smoltcp's timer has run out, and it has sent this again.
    Timeout(Range),
    /// A router could not pass what is on its way.
    Path,
    /// Nothing tells whether the last segment that was sent has come.
    Tail,
}

impl Connection {
    /// The sender that is in charge of losses, if there is one.
    #[inline]
    pub(super) fn sender(&self) -> Option<&Sender> {
        self.asked.as_ref()?.sender.as_deref()
    }

    #[inline]
    pub(super) fn sender_mut(&mut self) -> Option<&mut Sender> {
        self.asked.as_mut()?.sender.as_deref_mut()
    }

    /// Takes the sender out, while smoltcp sends.
    #[inline]
    pub(super) fn take_sender(&mut self) -> Option<Box<Sender>> {
        self.asked.as_mut()?.sender.take()
    }

    /// The peer's window has opened. What leaves now is waited for from now on, although the probe of the window
    /// counted as being on its way. This is not progress: only an acknowledgement puts off the end of a connection,
    /// which a peer must not hold open for ever.
    #[cold]
    fn may_go_on(&mut self, now_ns: u64) {
        let (una, since_ns) = (self.snd_una, self.progress_ns);
        self.flags.remove(Flags::TIMED);
        self.progress_ns = now_ns;
        if self.may_wait_for_ever() {
            if let Some(asked) = &mut self.asked {
                asked.waits_since = None;
            }
        } else if self.outstanding() && !self.asks(|asked| asked.waits_since.is_some_and(|(first, _)| first == una)) {
            self.asked_mut().waits_since = Some((una, since_ns));
        }
    }

    /// Whether answers to probes of a closed window show that the peer is alive: as long as the program has the
    /// connection and has set no timeout of its own (`tcp_probe_timer` ends a connection that has been closed).
    #[inline]
    pub(super) fn may_wait_for_ever(&self) -> bool {
        self.flags.intersects(Flags::HELD | Flags::QUEUED) && !self.asks(|asked| asked.own_timeout)
    }

    /// Whether nothing but our FIN is on its way. smoltcp, which takes three duplicates of an acknowledgement for a loss of data, would
    /// stop its timer and send nothing.
    #[inline]
    pub(super) fn only_lacks_its_fin(&self, segment: &Segment) -> bool {
        self.is_acknowledged_again(segment) && self.socket().send_queue() == 0
    }

    /// Whether a segment says nothing to smoltcp, which in LAST-ACK would take it for a stranger's.
    #[inline]
    fn is_no_news_at_the_end(&self, segment: &Segment) -> bool {
        self.is_acknowledged_again(segment) && self.socket().state() == State::LastAck
    }

    /// When something that is on its way has to be looked at.
    #[inline]
    pub(super) fn lost_ns(&self) -> u64 {
        match self.asked.as_deref() {
            Some(Asked { sender: Some(sender), .. }) => sender.deadline_ns(),
            Some(asked) => self.probes_tail_ns().min(asked.untimed_ns.unwrap_or(NEVER_NS)),
            None => self.probes_tail_ns(),
        }
    }

    /// When the last segment on its way is sent again although no sender is in charge. A single segment is left out,
    /// because the peer may put its acknowledgement off for longer than the retransmission timer waits.
    #[inline]
    fn probes_tail_ns(&self) -> u64 {
        let on_its_way = self.snd_nxt.wrapping_sub(self.snd_una);
        let may = on_its_way > u32::from(self.peer_mss & !SACK) && self.peer_mss & SACK != 0 && self.peer_window != 0;
        if !may || self.asks(|asked| asked.probed_at == Some(self.snd_una)) {
            return NEVER_NS;
        }
        tail_probe_after_ns(self.rtt_us).map_or(NEVER_NS, |wait_ns| self.progress_ns.saturating_add(wait_ns))
    }

    /// smoltcp has no timer for what is on its way: its timer ends when a window opens that it had begun to probe.
    #[cold]
    pub(super) fn has_no_timer(&mut self, now_ns: u64) {
        if self.phase == Phase::Open && self.snd_una != self.snd_nxt && self.socket().send_queue() > 0 {
            self.asked_mut().untimed_ns.get_or_insert(now_ns + RTO_NS_MIN);
        }
    }

    /// Whether smoltcp, which has nothing more to send, probes a closed window by nothing that a peer would answer, while something is
    /// on its way.
    #[inline]
    pub(super) fn probes_in_vain(&self) -> bool {
        let has_sent_all = self.peer_window == 0 && self.snd_una != self.snd_nxt && self.unsent() == 0;
        has_sent_all && !self.knows_of_no_closed_window()
    }

    /// Whether a segment acknowledges what was acknowledged before, and nothing else, while something is on its way.
    #[inline]
    fn is_acknowledged_again(&self, segment: &Segment) -> bool {
        self.says_nothing_else(segment) && self.snd_una != self.snd_nxt
    }

    /// Whether a segment acknowledges what was acknowledged before, and nothing else.
    #[inline]
    fn says_nothing_else(&self, segment: &Segment) -> bool {
        segment.length == 0 && segment.flags & (SYN | FIN | RST | ACK) == ACK && segment.ack == self.snd_una
    }

    /// Whether an acknowledgement is a duplicate by RFC 5681; one that tells another window is not.
    #[inline]
    fn is_duplicate(&self, window_before: u16, segment: &Segment) -> bool {
        segment.window == window_before && self.is_acknowledged_again(segment)
    }

    /// Whether something is known to be lost.
    #[inline]
    pub(super) fn is_recovering(&self) -> bool {
        self.sender().is_some_and(Sender::is_recovering)
    }

    /// Whether a segment may say that something is missing.
    #[inline]
    fn tells_of_a_loss(&self, window_before: u16, arrived: &Arrived<'_>) -> bool {
        if self.snd_una == self.snd_nxt {
            return false;
        }
        let segment = &arrived.segment;
        let usual_bytes = if segment.timestamp.is_some() { wire::TCP + TIMESTAMP_BYTES } else { wire::TCP };
        match self.peer_mss & SACK != 0 {
            true => arrived.tcp().len() - segment.length > usual_bytes && self.has_hole(arrived),
            false => self.is_duplicate(window_before, segment),
        }
    }

    #[cold]
    fn has_hole(&self, arrived: &Arrived<'_>) -> bool {
        options::selectively_acknowledged(arrived.options()).any(|(_, edge)| seq_lt(arrived.segment.ack, edge))
    }

    /// The window to show smoltcp with an acknowledgement, as a header says it.
    fn shown_window(&self, ack: u32) -> u16 {
        let Some(sender) = self.sender() else { return self.peer_window };
        let units = sender.window_from(ack, 1 << (self.scales >> 4));
        // It is never 0: smoltcp would probe a window that it takes for closed.
        units.clamp(1, u16::MAX.into()).min(self.peer_window.into()) as u16
    }
}

impl Stack {
    /// Learns what a segment says of a loss before smoltcp hears of it, and shows smoltcp what may leave. Returns
    /// whether smoltcp need not hear of the segment.
    #[inline]
    pub(super) fn hears_of_loss(
        &mut self,
        index: u32,
        window_before: u16,
        arrived: &mut Arrived<'_>,
        io: &mut Io<'_>,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(index).filter(|it| it.phase == Phase::Open) else {
            return false;
        };
        if window_before == 0 && connection.peer_window != 0 {
            connection.may_go_on(io.now_ns);
        }
        if connection.sender().is_none()
            && (!connection.tells_of_a_loss(window_before, arrived) || !self.takes_charge(index, Cause::Sign, io))
        {
            return false;
        }
        self.heeds(index, window_before, arrived, io)
    }

    #[cold]
    fn heeds(&mut self, index: u32, window_before: u16, arrived: &mut Arrived<'_>, io: &mut Io<'_>) -> bool {
        let mss = self.segment_bytes_to(index);
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let segment = arrived.segment;
        // smoltcp believes no acknowledgement that comes with a number out of nowhere, which a stranger may have sent, nor with what
        // has come before.
        let next = connection.rcv_nxt();
        let off = segment.seq.wrapping_sub(next) as i32;
        let has_come = seq_lt(segment.seq, next) && !seq_lt(next, segment.end());
        if has_come || off.unsigned_abs() as usize > connection.socket().recv_capacity() {
            return false;
        }
        let ranges: Vec<Range> = match connection.peer_mss & SACK {
            0 => Vec::new(),
            _ => options::selectively_acknowledged(arrived.options()).collect(),
        };
        let is_again = segment.window == window_before && connection.says_nothing_else(&segment);
        let both = connection.timestamps.as_ref().zip(segment.timestamp);
        let echoed_after_ns = both.map(|(timestamps, option)| timestamps.echoed_after_ns(option.echo, io.now_ns));
        let capacity = connection.socket().send_capacity();
        let Some(sender) = connection.sender_mut() else { return false };
        sender.set_mss(mss);
        sender.may_have_on_its_way(capacity as u32);
        sender.hears(Heard { ack: segment.ack, ranges: &ranges, is_again, echoed_after_ns, now_ns: io.now_ns });
        let (reordering, is_of_no_use) = (sender.reordering(), sender.is_of_no_use());
        connection.asked_mut().reordering = reordering;
        if is_of_no_use {
            connection.asked_mut().sender = None;
            return false;
        }
        let window = connection.shown_window(later(segment.ack, connection.snd_una));
        wire::put16(arrived.tcp_mut(), 14, window);
        connection.is_no_news_at_the_end(&segment)
    }

    /// Puts a sender in charge of what is on its way. Returns false if nothing is, or if smoltcp does not give it out.
    #[cold]
    pub(super) fn takes_charge(&mut self, index: u32, cause: Cause, io: &mut Io<'_>) -> bool {
        let mss = self.segment_bytes_to(index);
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let (una, next) = (connection.snd_una, connection.snd_nxt);
        // After a timeout a segment leaves again whatever the window says (`tcp_retransmit_timer`).
        let may_leave = connection.peer_window != 0 || matches!(cause, Cause::Timeout(_));
        let is_due = connection.phase == Phase::Open && una != next && may_leave;
        if !is_due || connection.sender().is_some() || connection.socket().send_queue() == 0 {
            return false;
        }
        let has_congestion_window = connection.has_congestion_window();
        let before = connection.socket().congestion_control();
        connection.socket_mut().set_congestion_control(CongestionControl::None);
        let Some(kept) = on_its_way(connection, &mut self.iface, self.port, io.now_ns) else {
            connection.socket_mut().set_congestion_control(before);
            return false;
        };
        self.counters.tcp_copied_bytes += kept.len() as u64;
        let waited_ns = io.now_ns.saturating_sub(connection.progress_ns);
        let start = Start {
            una,
            next,
            has_fin: next.wrapping_sub(una) as usize > connection.socket().send_queue(),
            kept,
            mss,
            says: connection.peer_mss & SACK != 0,
            rtt_us: connection.rtt_us,
            rtt_var_us: connection.rtt_var_us(),
            // A buffer that grows is at most twice as large as what was on its way at one time and arrived.
            may_be: if has_congestion_window { 0 } else { connection.socket().send_capacity() as u32 },
            waited_ns,
            reordering: connection.asked.as_ref().map_or(0, |asked| asked.reordering),
        };
        let mut sender = Sender::new(start, io.now_ns);
        if has_congestion_window {
            sender.keeps_a_congestion_window();
        }
        match cause {
            Cause::Sign => {}
            Cause::Tail => sender.began_with_a_probe(waited_ns, io.now_ns),
            Cause::Timeout(range) => sender.began_with_a_timeout(range, io.now_ns),
            Cause::Path => sender.is_too_large_for_the_path(),
        }
        connection.snd_nxt = sender.next();
        connection.asked_mut().sender = Some(Box::new(sender));
        self.shows_window(index, io);
        self.tells_what_came(index, io);
        true
    }

    /// smoltcp has sent an acknowledgement with something that went nowhere: the peer is told by one of its own.
    #[cold]
    pub(super) fn tells_what_came(&mut self, index: u32, io: &mut Io<'_>) {
        let (next_hop, leaving) = (self.next_hop(index), self.leaves_as(index));
        let Some(connection) = self.connections.get_mut(index).filter(|it| it.unanswered != 0) else { return };
        // This is a byte that came long ago: smoltcp answers each of those, but a segment without data only once in a
        // second of its own.
        let probe = connection.frame_with_zeros(&connection.window_probe(), 1, io.now_ns, io.pool);
        let mut shim = Shim::new(
            Some(probe.data()),
            self.port,
            (next_hop, leaving),
            connection.corrections(connection.snd_una),
            io.tx,
            &mut self.looped,
            io.pool,
        );
        if !shim.exit.has_room() && shim.exit.next_hop.is_some() {
            // The peer is told when there is room in the ring.
            io.pool.recycle(probe);
            return self.block(index);
        }
        let iface = self.iface.of(connection, io.now_ns);
        iface.poll_ingress_single(instant(io.now_ns), &mut shim, &mut connection.sockets);
        let exit = shim.exit;
        exit.count(&mut self.counters);
        if exit.frames > 0 {
            connection.sent(exit.last, io.now_ns);
        }
        io.pool.recycle(probe);
    }

    /// A router could not pass what is on its way, so that leaves again at once, in smaller segments.
    pub(super) fn is_too_large_for_the_path(&mut self, index: u32, io: &mut Io<'_>) {
        self.fits_segments_to_the_path(index);
        if let Some(sender) = self.connections.get_mut(index).and_then(Connection::sender_mut) {
            sender.is_too_large_for_the_path();
        } else {
            self.takes_charge(index, Cause::Path, io);
        }
        self.shows_window(index, io);
        self.pump(index, false, io);
    }

    /// What is sent again leaves in segments as large as the path now takes.
    pub(super) fn fits_segments_to_the_path(&mut self, index: u32) {
        let mss = self.segment_bytes_to(index);
        if let Some(sender) = self.connections.get_mut(index).and_then(Connection::sender_mut) {
            sender.set_mss(mss);
        }
    }

    /// The largest segment that the path and the peer take, in bytes of data.
    fn segment_bytes_to(&self, index: u32) -> u32 {
        let path = self.segment_bytes(index);
        let Some(connection) = self.connections.get(index) else { return 1 };
        let options = if connection.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        path.min(usize::from(connection.peer_mss & !SACK).saturating_sub(options)).max(1) as u32
    }

    /// The time has come to look at what is on its way.
    #[cold]
    pub(super) fn is_lost(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if let Some(sender) = connection.sender_mut() {
            sender.looks(io.now_ns);
            return self.shows_window(index, io);
        }
        if connection.probes_tail_ns() <= io.now_ns {
            let una = connection.snd_una;
            connection.asked_mut().probed_at = Some(una);
            if self.takes_charge(index, Cause::Tail, io) {
                return;
            }
        }
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.asks(|asked| asked.untimed_ns.is_some_and(|at_ns| at_ns <= io.now_ns)) {
            return;
        }
        connection.asked_mut().untimed_ns = None;
        let iface = self.iface.of(connection, io.now_ns);
        let is_untimed = iface.poll_at(instant(io.now_ns), &connection.sockets).is_none();
        if connection.peer_window == 0 && (is_untimed || connection.probes_in_vain()) {
            // The peer has taken its window back: smoltcp is made to send what was on its way, and no more.
            let on_its_way = connection.snd_nxt.wrapping_sub(connection.snd_una);
            let units = u16::try_from((on_its_way >> (connection.scales >> 4)) + 1).unwrap_or(u16::MAX);
            for window in [units - 1, units, units, units, units] {
                self.shows(index, window, io);
            }
        } else if is_untimed && connection.socket().send_queue() > 0 && connection.socket().state() != State::LastAck {
            // It sends at the third duplicate of an acknowledgement, and counts from the beginning when the window has changed.
            let duplicate = connection.bare(connection.rcv_nxt());
            let Some(smaller) = duplicate.window.checked_sub(1) else { return };
            for window in [smaller, duplicate.window, duplicate.window, duplicate.window, duplicate.window] {
                self.feed_bare(index, &BareSegment { window, ..duplicate }, io);
            }
        }
    }

    /// Shows smoltcp the window that the sender in charge leaves it.
    pub(super) fn shows_window(&mut self, index: u32, io: &mut Io<'_>) {
        if let Some(connection) = self.connections.get(index).filter(|it| it.sender().is_some()) {
            let window = connection.shown_window(connection.snd_una);
            self.shows(index, window, io);
        }
    }

    /// Shows smoltcp a window, of which nothing comes.
    pub(super) fn shows(&mut self, index: u32, window: u16, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.socket().state() == State::LastAck {
            return;
        }
        let bare = BareSegment { window, ..connection.bare(connection.rcv_nxt()) };
        let frame = bare.build(io.pool);
        let mut rehearsal = Rehearsal::new(self.port, frame.data());
        let iface = self.iface.of(connection, io.now_ns);
        iface.poll_ingress_single(instant(io.now_ns), &mut rehearsal, &mut connection.sockets);
        io.pool.recycle(frame);
    }

    /// Sends again what is lost, as far as it may leave. Returns false if it waits for room in the ring.
    #[cold]
    pub(super) fn sends_again(&mut self, index: u32, io: &mut Io<'_>) -> bool {
        let (next_hop, leaving) = (self.next_hop(index), self.leaves_as(index));
        loop {
            let Some(connection) = self.connections.get_mut(index) else { return true };
            let Some(range) = connection.sender().and_then(Sender::to_send_again) else { return true };
            let mut shim = Shim::new(
                None,
                self.port,
                (next_hop, leaving),
                connection.corrections(connection.snd_una),
                io.tx,
                &mut self.looped,
                io.pool,
            );
            if !shim.exit.has_room() {
                return shim.exit.next_hop.is_none();
            }
            let (frame, bytes) = connection.cut(range, shim.exit.pool, io.now_ns);
            shim.exit.sends_as_it_is(frame);
            shim.exit.count(&mut self.counters);
            connection.flags.remove(Flags::TIMED);
            connection.retransmits = connection.retransmits.saturating_add(1);
            let range = (range.0, range.0.wrapping_add(bytes));
            if let Some(sender) = connection.sender_mut() {
                sender.is_sent_again(range, io.now_ns);
            }
        }
    }
}

impl Connection {
    /// Makes a segment that carries a range of what was sent, and returns how much of it that carries. It acknowledges
    /// what was acknowledged before.
    fn cut(&self, range: Range, pool: &mut lull_nic::FramePool, now_ns: u64) -> (lull_nic::Frame, u32) {
        let (own, peer) = (self.flow.local(), self.flow.remote());
        let length = range.1.wrapping_sub(range.0);
        let data: usize = self.sender().map_or(0, |sender| sender.copy(range).map(<[u8]>::len).sum());
        let fin = if self.sender().is_some_and(|sender| sender.ends_with_fin(range)) { FIN } else { 0 };
        let push = if range.1 == self.snd_nxt && data > 0 { PSH } else { 0 };
        let segment = BareSegment {
            source: own.ip(),
            source_port: own.port(),
            destination: peer.ip(),
            destination_port: peer.port(),
            seq: range.0,
            ack: self.rcv_ack,
            flags: ACK | fin | push,
            window: self.rcv_window,
        };
        let timestamp = self.timestamps.map(|timestamps| timestamps.option(now_ns));
        let option = Offer { timestamp, ..Offer::default() };
        let frame = segment.build_carrying(&option.write(), data, pool, |payload| {
            let mut at = 0;
            for part in self.sender().into_iter().flat_map(|sender| sender.copy(range)) {
                payload[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        });
        (frame, length)
    }
}
