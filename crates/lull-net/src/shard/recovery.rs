//! What is lost and sent again before the retransmission timer runs out.
//!
//! smoltcp sends the first segment again at the third duplicate of an acknowledgement, and waits for its timer where a window lost
//! more than one, or where too little follows for three duplicates. So here are two rules more: an acknowledgement of a part of what
//! was on its way when the loss was seen tells of the next one (NewReno, RFC 6582 section 3.2), and a peer that has selectively
//! acknowledged the last that was sent has everything but what is missing (`tcp_rack_detect_loss`; some of a round trip later, in
//! case it was overtaken).

use smoltcp::socket::tcp::State;

use super::agreed::SACK;
use super::connection::{Connection, Phase, RTO_NS_MIN};
use super::options;
use super::segment::{Arrived, Segment};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;
use super::wire::{ACK, BareSegment, FIN, RST, SYN, seq_lt};

/// How long something may be overtaken while no round trip is known.
const REORDERING_NS: u64 = 10_000_000;

/// What a connection knows of a loss.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Behind what had been sent when it was seen; none once all of that is acknowledged.
    until: Option<u32>,
    /// It was seen by the timer: smoltcp sends everything again, as far as it is not acknowledged by then.
    by_timer: bool,
    /// When what is missing counts as lost.
    lost_ns: Option<u64>,
}

impl Connection {
    /// A segment that was sent before has been sent again.
    pub(super) fn recovers(&mut self, now_ns: u64) {
        let (una, next) = (self.snd_una, self.snd_nxt);
        if una == next {
            // It was a probe.
            return;
        }
        // A round trip that is longer than the shortest timeout is taken for one: then the next hole waits for the timer as well.
        let by_timer = now_ns.saturating_sub(self.progress_ns) >= RTO_NS_MIN;
        let recovery = &mut self.asked_mut().recovery;
        recovery.lost_ns = None;
        if by_timer || !recovery.until.is_some_and(|until| seq_lt(una, until)) {
            (recovery.until, recovery.by_timer) = (Some(next), by_timer);
        }
    }

    /// smoltcp has been made to believe that what is on its way has just left, a long time from now: it sends nothing of it again.
    #[cold]
    pub(super) fn was_sent_nowhere(&mut self, now_ns: u64) {
        self.asked_mut().recovery.lost_ns = Some(now_ns);
    }

    /// Nothing tells smoltcp to send again what is on its way: it forgets a segment that the ring had no room for.
    #[cold]
    pub(super) fn has_no_timer(&mut self, now_ns: u64) {
        if self.phase == Phase::Open && self.snd_una != self.snd_nxt && self.socket().send_queue() > 0 {
            self.asked_mut().recovery.lost_ns.get_or_insert(now_ns + RTO_NS_MIN);
        }
    }

    /// Whether nothing but our FIN is on its way. smoltcp, which takes three duplicates of an acknowledgement for a loss of data, would
    /// stop its timer and send nothing.
    #[inline]
    pub(super) fn only_lacks_its_fin(&self, segment: &Segment) -> bool {
        self.is_acknowledged_again(segment) && self.socket().send_queue() == 0
    }

    /// When something counts as lost.
    #[inline]
    pub(super) fn lost_ns(&self) -> u64 {
        self.asked.as_ref().and_then(|asked| asked.recovery.lost_ns).unwrap_or(NEVER_NS)
    }

    /// Whether a segment acknowledges what was acknowledged before, and nothing else, while something is on its way.
    #[inline]
    fn is_acknowledged_again(&self, segment: &Segment) -> bool {
        let is_bare = segment.length == 0 && segment.flags & (SYN | FIN | RST | ACK) == ACK;
        is_bare && segment.ack == self.snd_una && self.snd_una != self.snd_nxt
    }

    /// Whether something is known to be lost, or to be missing.
    #[inline]
    pub(super) fn is_recovering(&self) -> bool {
        self.asks(|asked| asked.recovery.until.is_some() || asked.recovery.lost_ns.is_some())
    }

    /// Notes if the peer has the last of what was sent, and not the first. Whether it has.
    #[cold]
    fn note_missing(&mut self, arrived: &Arrived<'_>, now_ns: u64) -> bool {
        let next = self.snd_nxt;
        let says = self.peer_mss & SACK != 0;
        let is_missing = says
            && !self.is_recovering()
            && options::selectively_acknowledged(arrived.options()).any(|(_, edge)| edge == next);
        if is_missing {
            let reordering_ns = if self.rtt_us == 0 { REORDERING_NS } else { u64::from(self.rtt_us / 4) * 1000 };
            self.asked_mut().recovery.lost_ns = Some(now_ns + reordering_ns);
        }
        is_missing
    }
}

impl Stack {
    /// Follows what an acknowledgement says of a loss. `una`: what had been acknowledged before.
    #[inline]
    pub(super) fn follow_loss(&mut self, index: u32, una: u32, arrived: &Arrived<'_>, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index).filter(|it| it.phase == Phase::Open) else { return };
        if connection.snd_una != una {
            if connection.is_recovering() {
                self.partly_acknowledged(index, arrived, io);
            }
        } else if connection.is_acknowledged_again(&arrived.segment) && connection.note_missing(arrived, io.now_ns) {
            self.pump(index, false, io);
        }
    }

    /// A peer that selectively acknowledges, and has nothing behind this, has no hole: what was sent again had been overtaken.
    #[cold]
    fn partly_acknowledged(&mut self, index: u32, arrived: &Arrived<'_>, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (una, says) = (connection.snd_una, connection.peer_mss & SACK != 0);
        let has_hole = || options::selectively_acknowledged(arrived.options()).any(|(_, edge)| seq_lt(una, edge));
        let recovery = &mut connection.asked_mut().recovery;
        recovery.lost_ns = None;
        match recovery.until {
            Some(until) if seq_lt(una, until) => {
                if !recovery.by_timer && (!says || has_hole()) {
                    self.send_first_again(index, io);
                }
            }
            _ => recovery.until = None,
        }
    }

    /// Time has told that something is lost.
    #[cold]
    pub(super) fn is_lost(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.asked_mut().recovery.lost_ns = None;
        self.send_first_again(index, io);
    }

    /// Makes smoltcp send the first segment that is not acknowledged again. It does so at the third duplicate of an acknowledgement,
    /// and counts from the beginning when the window has changed: so it hears of one that is smaller, and that it is not.
    fn send_first_again(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        // Without data it would stop its timer, and in LAST-ACK it counts no duplicates.
        if connection.socket().send_queue() == 0 || connection.socket().state() == State::LastAck {
            return;
        }
        // Until it is sent: there may be no room for it now.
        connection.asked_mut().recovery.lost_ns = Some(io.now_ns + RTO_NS_MIN);
        let duplicate = connection.bare(connection.rcv_nxt());
        // Whose window is closed is probed instead.
        let Some(smaller) = duplicate.window.checked_sub(1) else { return };
        let window = duplicate.window;
        for window in [smaller, window, window, window, window] {
            self.feed_bare(index, &BareSegment { window, ..duplicate }, io);
        }
    }
}
