//! Buffers that grow. A connection begins with little, because there may be ten thousand; but what is in flight at a time is never
//! more than the smaller of one end's transmit and the other's receive buffer, and a path of 50 ms carries a buffer of 16 KiB twenty
//! times a second.
//!
//! A buffer is doubled when it alone holds up the stream:
//!
//! - the transmit buffer when an acknowledgement finds it full, the peer's window is larger, and the peer has acknowledged all that
//!   was in flight when it was first found full, or last grew. So it grows by the rule of slow start (RFC 5681 section 3.1), and is
//!   the congestion window until something is lost; then there is one ([`cubic`](super::cubic)), for as long as the connection is busy.
//! - the receive buffer when the peer has used all of the window, or has sent half of one within a round trip (`tcp_rcv_space_adjust`),
//!   and the application has read all that came.
//!
//! A receive buffer gets the size that the program asks for (SO_RCVBUF) once the application has read all that came;
//! for a connection that is opened from here, and whose windows have to be scaled for it, once the handshake has ended.
//! A buffer shrinks in steps: a window that was offered is not taken back, so each time the buffer becomes what is left
//! of that.
//!
//! smoltcp's sockets cannot change their buffers, so the connection moves to a new one ([`resize`](super::resize)). The window scale
//! is agreed on by the SYN for the largest buffer that there may be ([`Stack::offered_scale`]); smoltcp goes by the one it has, and
//! its windows are shifted as they leave ([`Corrections`](super::device::Corrections)).

use smoltcp::socket::tcp::CongestionControl;

use super::agreed::SACK;
use super::config::BUFFER_BYTES_RANGE;
use super::connection::{Connection, HEADERS_BYTES, Phase};
use super::error::NetError;
use super::half_open::window_scale;
use super::opening::INITIAL_WINDOW_BYTES;
use super::segment::Segment;
use super::sender::Sender;
use super::socket::SocketId;
use super::stack::{Io, Stack};
use super::wire::seq_lt;

/// How long a transmit buffer that has grown is kept for more.
const GIVES_BACK_NS: u64 = 1_000_000_000;

/// The largest receive buffer without a window scale.
pub(super) const UNSCALED_BYTES_MAX: usize = u16::MAX as usize;

impl Connection {
    /// Notes which buffers shall stay as they are.
    pub(super) fn fix_buffers(&mut self, rx: bool, tx: bool) {
        if tx {
            self.room = 0;
        }
        if rx || tx {
            let growth = &mut self.asked_mut().growth;
            (growth.rx_fixed, growth.tx_fixed) = (rx, tx);
        }
    }

    /// Notes of data that comes whether it leaves a hole, and whether it uses all of the window.
    #[inline]
    pub(super) fn note_data(&mut self, segment: &Segment, now_ns: u64) {
        if segment.length == 0 {
            return;
        }
        // In a stream at least every other segment is a full one.
        if segment.length + HEADERS_BYTES >= (self.peer_mss & !SACK).into() {
            self.note_stream(segment, now_ns);
        }
        let end = segment.seq.wrapping_add(segment.length as u32);
        if seq_lt(self.rcv_nxt(), segment.seq) {
            self.note_hole(end);
        }
        // A sender that has no room for another segment waits.
        let edge = self.rcv_ack.wrapping_add(u32::from(self.rcv_window) << self.rcv_scale());
        if seq_lt(edge, end.wrapping_add((self.peer_mss & !SACK).into())) {
            let growth = &mut self.asked_mut().growth;
            growth.rx_filled = !growth.rx_fixed;
        }
    }

    /// Notes whether the peer sends half of a window in a round trip: then it may be waiting for acknowledgements, though its segments
    /// do not come to the edge of the window, which each acknowledgement moves.
    fn note_stream(&mut self, segment: &Segment, now_ns: u64) {
        let end = segment.seq.wrapping_add(segment.length as u32);
        let window = self.socket().recv_capacity() as u64;
        let Some(round_trip_ns) = self.round_trip_ns(segment, now_ns) else { return };
        let growth = &mut self.asked_mut().growth;
        let (from, since_ns) = *growth.rx_from.get_or_insert((segment.seq, now_ns));
        if now_ns.saturating_sub(since_ns) < round_trip_ns {
            return;
        }
        // A peer that was silent for a while is counted anew.
        let within_two = now_ns - since_ns <= 2 * round_trip_ns;
        growth.rx_filled |= !growth.rx_fixed && within_two && u64::from(end.wrapping_sub(from)) * 2 >= window;
        growth.rx_from = Some((end, now_ns));
    }

    /// The round trip, if anything is known of it: what was measured of what was sent from here, or what a segment's timestamp tells.
    fn round_trip_ns(&self, segment: &Segment, now_ns: u64) -> Option<u64> {
        if self.rtt_us != 0 {
            return Some(u64::from(self.rtt_us) * 1000);
        }
        let (timestamps, option) = (self.timestamps?, segment.timestamp?);
        Some(timestamps.echoed_after_ns(option.echo, now_ns))
    }

    #[cold]
    fn note_hole(&mut self, end: u32) {
        // A segment may begin in the window and end beyond it; the part in the window is kept.
        let (next, window) = (self.rcv_nxt(), self.socket().recv_capacity() as u32);
        let end = next.wrapping_add(end.wrapping_sub(next).min(window));
        let holes_end = &mut self.asked_mut().growth.holes_end;
        *holes_end = Some(holes_end.filter(|before| seq_lt(end, *before)).unwrap_or(end));
    }

    /// Whether an acknowledgement has found the transmit buffer full (it held `queued` bytes before), or an earlier one
    /// has and nothing is on its way now.
    #[inline]
    pub(super) fn fills_its_buffer(&self, queued: usize, now_queued: usize) -> bool {
        queued + usize::from(self.peer_mss & !SACK) > self.socket().send_capacity()
            || now_queued == 0 && self.asks(|asked| asked.growth.tx_filled)
    }

    /// Whether the transmit buffer alone holds up what the application sends.
    fn has_too_little_to_send_from(&mut self) -> bool {
        let (una, next) = (self.snd_una, self.snd_nxt);
        let grow_at = *self.asked_mut().growth.grow_at.get_or_insert(next);
        let capacity = self.socket().send_capacity();
        let window = self.sender().and_then(Sender::congestion_window).map_or(usize::MAX, |window| window as usize);
        !is_under_way(grow_at, una, next) && self.peer_window_bytes() > capacity && window > capacity / 2
    }

    /// Whether smoltcp keeps a congestion window, within which it sends: since something was lost, or from the start with a transmit
    /// buffer that is larger than what may be in flight at first.
    pub(super) fn has_congestion_window(&self) -> bool {
        self.socket().congestion_control() != CongestionControl::None
    }

    /// When it gives back what its transmit buffer has grown by, if nothing is sent until then.
    #[inline]
    pub(super) fn gives_back_ns(&self) -> Option<u64> {
        let has_grown = self.asks(|asked| asked.growth.is_grown || asked.sender.is_some());
        has_grown.then(|| self.heard_ns.max(self.progress_ns).saturating_add(GIVES_BACK_NS))
    }

    /// The most that the peer may still send of what it was offered. Windows are told in units, so an earlier one may
    /// have ended behind the last.
    pub(super) fn offered_bytes(&self) -> usize {
        let scale = self.rcv_scale();
        let edge = self.rcv_ack.wrapping_add(u32::from(self.rcv_window) << scale);
        // A peer may send more than it was offered.
        let left = if seq_lt(edge, self.rcv_nxt()) { 0 } else { edge.wrapping_sub(self.rcv_nxt()) as usize };
        left + (1 << scale) - 1
    }
}

impl Stack {
    /// The window scale that a SYN offers, for the receive buffer that is asked for (0: none) or that it may grow to.
    ///
    /// A size that is asked for may be changed later, and a stack that takes the connection over may have been asked
    /// for another.
    pub(super) fn offered_scale(&self, rx_bytes_asked: usize) -> u8 {
        window_scale(self.config.rx_buffer_bytes.max(self.config.growth.rx_bytes_max).max(rx_bytes_asked))
    }

    /// Gives the receive buffer of a connection this size (`SO_RCVBUF`) once the application has read all that came; it
    /// does not grow by itself any more. If the agreed window scale is too small for it, it becomes as large as windows
    /// can say.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_receive_buffer(&mut self, id: SocketId, bytes: usize, io: &mut Io<'_>) -> Result<(), NetError> {
        let connection = self.connection_mut(id)?;
        let bytes = bytes.clamp(*BUFFER_BYTES_RANGE.start(), *BUFFER_BYTES_RANGE.end());
        let growth = &mut connection.asked_mut().growth;
        (growth.rx_fixed, growth.rx_filled, growth.rx_bytes) = (true, false, bytes);
        self.settle_receive_buffer(id.index(), 0, io);
        Ok(())
    }

    /// Gives a connection the receive buffer that was asked for, if it can have that now: but never a smaller window than it has
    /// offered. The application has just read so many bytes, for which nothing was offered yet.
    #[cold]
    pub(super) fn settle_receive_buffer(&mut self, index: u32, read: usize, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let asked = connection.asks(|asked| asked.growth.rx_bytes != 0);
        if !asked || connection.phase != Phase::Open {
            return;
        }
        let wanted = connection.asked_mut().growth.rx_bytes.min(UNSCALED_BYTES_MAX << connection.rcv_scale());
        let (rx, tx) = (connection.socket().recv_capacity(), connection.socket().send_capacity());
        // smoltcp takes what it has offered by whole units of a scale of its own, which is no larger for a smaller buffer.
        let offered = connection.offered_bytes().min(rx.saturating_sub(read));
        let least = match window_scale(rx) {
            0 => offered,
            scale => offered + (1 << scale),
        };
        let next = wanted.max(least.min(rx));
        let is_so = next == rx || self.move_to(index, next, tx, io);
        if let Some(connection) = self.connections.get_mut(index).filter(|_| is_so && next == wanted) {
            connection.asked_mut().growth.rx_bytes = 0;
        }
    }

    /// An acknowledgement has found the transmit buffer full.
    #[cold]
    pub(super) fn grow_to_send(&mut self, index: u32, io: &mut Io<'_>) {
        let doubled = self.doubles_to_send(index, io);
        self.push_what_had_no_room(index, io);
        if doubled {
            self.announce(index, false, io);
        }
    }

    /// Doubles the transmit buffer if it may grow now. What had no room in it follows: it does not belong to what was on its way.
    fn doubles_to_send(&mut self, index: u32, io: &mut Io<'_>) -> bool {
        let growth = self.config.growth;
        let Some(connection) = self.connections.get_mut(index) else { return false };
        // smoltcp's congestion window begins again in another socket, and so when all is acknowledged.
        let waits =
            connection.is_recovering() || connection.has_congestion_window() && connection.socket().send_queue() != 0;
        let asked = &mut connection.asked_mut().growth;
        asked.tx_filled = waits;
        if waits || asked.tx_fixed {
            return false;
        }
        let (rx, tx) = (connection.socket().recv_capacity(), connection.socket().send_capacity());
        let most = connection.room_asked().map_or(growth.tx_bytes_max, |asked| asked.min(growth.tx_bytes_max));
        let may = tx < most && connection.has_too_little_to_send_from();
        if !may || !self.move_to(index, rx, (tx * 2).min(most), io) {
            return false;
        }
        self.counters.tcp_buffers_grown += 1;
        if let Some(connection) = self.connections.get_mut(index) {
            let next = connection.snd_nxt;
            let growth = &mut connection.asked_mut().growth;
            (growth.grow_at, growth.is_grown) = (Some(next), true);
        }
        true
    }

    /// The peer has used all of its window, and the application has read what came.
    #[cold]
    pub(super) fn grow_to_receive(&mut self, index: u32, io: &mut Io<'_>) {
        let growth = self.config.growth;
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !std::mem::take(&mut connection.asked_mut().growth.rx_filled) {
            return;
        }
        let (rx, tx) = (connection.socket().recv_capacity(), connection.socket().send_capacity());
        let is_scaled = connection.rcv_scale() != 0;
        let most = if is_scaled { growth.rx_bytes_max } else { growth.rx_bytes_max.min(UNSCALED_BYTES_MAX) };
        if rx < most && self.move_to(index, (rx * 2).min(most), tx, io) {
            self.counters.tcp_buffers_grown += 1;
        }
    }

    /// The time has come for something: perhaps for a connection to give back what it does not use.
    pub(super) fn connection_idles(&mut self, index: u32, io: &mut Io<'_>) {
        let idles = |it: &&Connection| it.gives_back_ns().is_some_and(|at_ns| at_ns <= io.now_ns) && !it.outstanding();
        if self.connections.get(index).filter(idles).is_some() {
            self.give_back(index, io);
        }
    }

    /// A connection that has been idle for longer than a retransmission timeout begins again with what a new one has in flight
    /// (RFC 5681 section 4.1), and gives the rest of its transmit buffer back.
    #[cold]
    pub(super) fn give_back(&mut self, index: u32, io: &mut Io<'_>) {
        let first = self.config.tx_buffer_bytes;
        let Some(connection) = self.connections.get_mut(index) else { return };
        let asked = connection.asked_mut();
        (asked.growth.grow_at, asked.growth.is_grown, asked.sender) = (None, false, None);
        let is_fixed = asked.growth.tx_fixed;
        let (rx, tx) = (connection.socket().recv_capacity(), connection.socket().send_capacity());
        if connection.has_congestion_window() {
            return;
        }
        if is_fixed && tx > INITIAL_WINDOW_BYTES {
            connection.socket_mut().set_congestion_control(CongestionControl::Reno);
        } else if tx > first && !is_fixed && connection.kept_bytes() == 0 {
            self.move_to(index, rx, first, io);
        }
    }
}

/// Whether the data before `mark` is sent and not all acknowledged. A mark that nobody has looked at for long may seem to lie ahead,
/// as numbers come round.
fn is_under_way(mark: u32, una: u32, next: u32) -> bool {
    seq_lt(una, mark) && !seq_lt(next, mark)
}

/// Whether something before `end` is still to come, in a window of this many bytes, behind which nothing is taken.
pub(super) fn is_awaited(end: u32, next: u32, window: usize) -> bool {
    (1..=window).contains(&(end.wrapping_sub(next) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_of_long_ago_is_passed_though_numbers_have_come_round() {
        for una in [0, 7, u32::MAX - 99, 1 << 31] {
            let next = una.wrapping_add(100);
            assert!(is_under_way(next, una, next) && is_under_way(una.wrapping_add(1), una, next));
            assert!(!is_under_way(una, una, next));
            for ago in [1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 3 << 30] {
                assert!(!is_under_way(una.wrapping_sub(ago), una, next), "{ago} bytes ago");
            }
        }
    }

    #[test]
    fn a_hole_that_was_filled_long_ago_is_none_though_numbers_have_come_round() {
        const WINDOW: usize = 16_384;
        for next in [0, 7, u32::MAX - 99, 1 << 31] {
            assert!(
                is_awaited(next.wrapping_add(1), next, WINDOW) && is_awaited(next.wrapping_add(16_384), next, WINDOW)
            );
            for ago in [0, 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 3 << 30] {
                assert!(!is_awaited(next.wrapping_sub(ago), next, WINDOW), "{ago} bytes ago");
            }
        }
    }
}
