//! What is lost and sent again before the retransmission timer runs out.
//!
//! smoltcp sends the first segment again at the third duplicate of an acknowledgement, and waits for its timer where a window lost
//! more than one, or where too little follows for three duplicates. So here are two rules more: an acknowledgement of a part of what
//! was on its way when the loss was seen tells of the next one (NewReno, RFC 6582 section 3.2), and a peer that has selectively
//! acknowledged the last that was sent has everything but what is missing (`tcp_rack_detect_loss`; some of a round trip later, in
//! case it was overtaken).

use super::agreed::SACK;
use super::connection::{Connection, RTO_NS_MIN};
use super::options;
use super::segment::Arrived;
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;
use super::wire::{ACK, BareSegment, FIN, RST, SYN, seq_lt};

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
        let rto_ns = RTO_NS_MIN.max(u64::from(self.rtt_us.saturating_add(4 * self.rtt_var_us())) * 1000);
        let by_timer = now_ns.saturating_sub(self.progress_ns) >= rto_ns;
        let next = self.snd_nxt;
        let recovery = &mut self.asked_mut().recovery;
        recovery.lost_ns = None;
        if by_timer || recovery.until.is_none() {
            (recovery.until, recovery.by_timer) = (Some(next), by_timer);
        }
    }

    /// When something counts as lost.
    #[inline]
    pub(super) fn lost_ns(&self) -> u64 {
        self.asked.as_ref().and_then(|asked| asked.recovery.lost_ns).unwrap_or(NEVER_NS)
    }

    /// Whether a segment acknowledges what was acknowledged before, and nothing else.
    #[inline]
    fn is_duplicate(&self, arrived: &Arrived<'_>) -> bool {
        let segment = &arrived.segment;
        let is_bare = segment.length == 0 && segment.flags & (SYN | FIN | RST | ACK) == ACK;
        is_bare && segment.ack == self.snd_una && self.snd_una != self.snd_nxt && self.peer_mss & SACK != 0
    }

    /// Whether something is known to be lost, or to be missing.
    #[inline]
    fn is_recovering(&self) -> bool {
        self.asks(|asked| asked.recovery.until.is_some() || asked.recovery.lost_ns.is_some())
    }

    /// Notes if the peer has the last of what was sent, and not the first. Whether it has.
    #[cold]
    fn note_missing(&mut self, arrived: &Arrived<'_>, now_ns: u64) -> bool {
        let next = self.snd_nxt;
        let is_missing =
            !self.is_recovering() && options::selectively_acknowledged(arrived.options()).any(|(_, edge)| edge == next);
        if is_missing {
            let reordering_ns = u64::from(self.rtt_us / 4) * 1000;
            self.asked_mut().recovery.lost_ns = Some(now_ns + reordering_ns);
        }
        is_missing
    }
}

impl Stack {
    /// Follows what an acknowledgement says of a loss. `una`: what had been acknowledged before.
    #[inline]
    pub(super) fn follow_loss(&mut self, index: u32, una: u32, arrived: &Arrived<'_>, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.snd_una != una {
            if connection.is_recovering() {
                self.partly_acknowledged(index, io);
            }
        } else if connection.is_duplicate(arrived) && connection.note_missing(arrived, io.now_ns) {
            self.pump(index, false, io);
        }
    }

    #[cold]
    fn partly_acknowledged(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let una = connection.snd_una;
        let recovery = &mut connection.asked_mut().recovery;
        recovery.lost_ns = None;
        match recovery.until {
            Some(until) if seq_lt(una, until) && recovery.by_timer => {}
            Some(until) if seq_lt(una, until) => self.send_first_again(index, io),
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
        let Some(connection) = self.connections.get(index) else { return };
        let duplicate = connection.bare(connection.rcv_nxt());
        // Whose window is closed is probed instead.
        let Some(smaller) = duplicate.window.checked_sub(1) else { return };
        let window = duplicate.window;
        for window in [smaller, window, window, window, window] {
            self.feed_bare(index, &BareSegment { window, ..duplicate }, io);
        }
    }
}
