//! Segments that smoltcp would misread, put right before it sees them.

use lull_nic::{Frame, FramePool};
use smoltcp::socket::tcp::State;

use super::connection::{Connection, Flags};
use super::options::Offer;
use super::segment::{Arrived, Segment};
use super::stack::{Io, Stack};
use super::wire::{self, ACK, BareSegment, FIN, seq_lt};

/// Brings the acknowledgement of an overtaken segment up to date. smoltcp drops such a segment with its data, which the
/// peer then has to retransmit. The window goes with the acknowledgement (RFC 9293: SND.WL2). Returns
/// whether it did.
pub(super) fn stale_ack(connection: &Connection, arrived: &mut Arrived<'_>) -> bool {
    let segment = &mut arrived.segment;
    if segment.length == 0 && segment.flags & FIN == 0 {
        return false;
    }
    (segment.ack, segment.window) = (connection.snd_una, connection.peer_window);
    let tcp = arrived.tcp_mut();
    wire::put32(tcp, 8, connection.snd_una);
    wire::put16(tcp, 14, connection.peer_window);
    true
}

/// A closed window lets no data in, but acknowledgements have to pass (RFC 9293 section 3.10.7.4). smoltcp drops them with
/// their segment, and when it probes a window it counts the byte of the probe as sent, so that all its acknowledgements lie beyond.
/// Two peers whose receive buffers are full, and one of whom has missed an acknowledgement, would wait for each other for ever.
/// A probe that brings nothing new is left as it is: it wants an answer.
pub(super) fn at_closed_window(connection: &Connection, arrived: &mut Arrived<'_>) {
    let segment = &arrived.segment;
    let socket = connection.socket();
    if segment.flags & ACK == 0 || socket.recv_queue() < socket.recv_capacity() {
        return;
    }
    let next = connection.rcv_nxt();
    let is_near = segment.seq.wrapping_sub(next).wrapping_add(1) <= 2;
    let is_probe = segment.length > 0 || segment.flags & FIN != 0 || segment.seq.wrapping_add(1) == next;
    let is_news = segment.ack != connection.snd_una || segment.window != connection.peer_window;
    if !is_near || is_probe && !is_news {
        return;
    }
    is_bare(arrived, next, ACK);
}

/// Nothing can follow the peer's FIN (`tcp_rcv_state_process`), but smoltcp would take data that comes there for more
/// of the stream. Only the acknowledgement of such a segment counts.
#[cold]
pub(super) fn behind_the_end(connection: &Connection, arrived: &mut Arrived<'_>) {
    let segment = &arrived.segment;
    let next = connection.rcv_nxt();
    let window_end = next.wrapping_add(connection.socket().recv_capacity() as u32);
    // A segment outside of any window is ignored, and one that comes again wants an answer.
    if seq_lt(next, segment.end()) && !seq_lt(window_end, segment.seq) {
        is_bare(arrived, next, ACK);
    }
}

/// A reset may carry its reason (RFC 9293 section 3.5.3), which takes no room in the window; smoltcp would drop it at a
/// closed one.
#[cold]
pub(super) fn reset_with_a_reason(arrived: &mut Arrived<'_>) {
    let (seq, flags) = (arrived.segment.seq, arrived.segment.flags);
    is_bare(arrived, seq, flags);
}

/// Once smoltcp has begun to probe a closed window it sends nothing again of what is on its way, and in LAST-ACK it
/// hears of no window that opens. So when all has left with our FIN, smoltcp is not told of a window that closes: what
/// the peer no longer takes, or has no room for, leaves again as if it were lost (`tcp_retransmit_timer`).
#[inline]
pub(super) fn window_at_the_end(connection: &Connection, arrived: &mut Arrived<'_>) {
    if !connection.knows_of_no_closed_window() {
        return;
    }
    let units = connection.socket().send_queue().div_ceil(1 << (connection.scales >> 4));
    let window = u16::try_from(units).unwrap_or(u16::MAX);
    if arrived.segment.window < window {
        wire::put16(arrived.tcp_mut(), 14, window);
    }
}

/// Leaves nothing of a segment but its header, with this number and these flags.
fn is_bare(arrived: &mut Arrived<'_>, seq: u32, flags: u8) {
    let Arrived { frame, packet, segment, .. } = arrived;
    packet.truncate(frame, wire::TCP);
    let tcp = &mut frame.data_mut()[packet.l4..packet.end];
    (segment.seq, segment.flags, segment.length) = (seq, flags, 0);
    wire::put32(tcp, 4, seq);
    tcp[12] = (wire::TCP as u8 / 4) << 4;
    tcp[13] = flags;
}

/// smoltcp cuts off the data of a segment that ends beyond the window, but takes the FIN behind it.
pub(super) fn fin_beyond_the_window(connection: &Connection, arrived: &mut Arrived<'_>) {
    let fin_at = arrived.segment.seq.wrapping_add(arrived.segment.length as u32);
    if seq_lt(connection.offered_to(), fin_at) {
        arrived.segment.flags &= !FIN;
        arrived.tcp_mut()[13] &= !FIN;
    }
}

impl Connection {
    /// Whether smoltcp has nothing that a closed window could hold back: all that is left has been sent with our FIN, or was offered
    /// room when LAST-ACK began ([`Connection::finish`]). A byte that is left alone may have been sent to probe a closed window, which
    /// smoltcp goes on doing.
    #[inline]
    pub(super) fn knows_of_no_closed_window(&self) -> bool {
        match self.socket().state() {
            State::LastAck => true,
            State::FinWait1 | State::Closing => self.unsent() == 0 && self.socket().send_queue() != 1,
            _ => false,
        }
    }

    /// Where the window ends that the peer was told last.
    fn offered_to(&self) -> u32 {
        self.rcv_ack.wrapping_add(u32::from(self.rcv_window) << self.rcv_scale())
    }

    /// Whether an acknowledgement is older than the largest window that there ever was, as no genuine one is (RFC 5961
    /// section 5.2).
    #[inline]
    pub(super) fn is_too_old(&self, ack: u32) -> bool {
        self.snd_una.wrapping_sub(ack) as usize > self.socket().send_capacity()
    }

    /// Notes a FIN that came before the data in front of it. smoltcp would forget it, and the peer would have to send it
    /// again a retransmission timeout later; Linux keeps it in its queue of segments out of order.
    #[inline]
    pub(super) fn note_early_fin(&mut self, segment: &Segment) {
        let next = self.rcv_nxt();
        let fin_at = segment.seq.wrapping_add(segment.length as u32);
        if segment.flags & FIN != 0 && seq_lt(next, segment.seq) && !seq_lt(self.offered_to(), fin_at) {
            self.flags.insert(Flags::EARLY_FIN);
            self.asked_mut().fin_at = fin_at;
        }
    }

    /// A frame of a segment of the peer's that smoltcp is to answer: with the option that every segment of a connection with timestamps
    /// has (RFC 7323 section 3.2), so that the answer has it too.
    pub(super) fn frame_of_the_peers(&self, bare: &BareSegment, now_ns: u64, pool: &mut FramePool) -> Frame {
        self.frame_with_zeros(bare, 0, now_ns, pool)
    }

    /// As [`Connection::frame_of_the_peers`], with this many bytes of data, which the receiver is not to use.
    pub(super) fn frame_with_zeros(
        &self,
        bare: &BareSegment,
        bytes: usize,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> Frame {
        let timestamp = self.timestamps.as_ref().map(|timestamps| {
            timestamps.announce(now_ns);
            let (own, peers) = timestamps.option(now_ns);
            (peers, own)
        });
        let options = Offer { timestamp, ..Offer::default() };
        bare.build_carrying(&options.write(), bytes, pool, |data| data.fill(0))
    }
}

impl Stack {
    /// Gives smoltcp the FIN that came early, once everything in front of it is there.
    pub(super) fn early_fin(&mut self, index: u32, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let fin_at = connection.asked_mut().fin_at;
        if connection.rcv_nxt() != fin_at {
            return;
        }
        connection.flags.remove(Flags::EARLY_FIN);
        let (own, peer) = (connection.flow.local(), connection.flow.remote());
        let fin = BareSegment {
            source: peer.ip(),
            source_port: peer.port(),
            destination: own.ip(),
            destination_port: own.port(),
            seq: fin_at,
            ack: connection.snd_una,
            flags: FIN | ACK,
            window: connection.peer_window,
        };
        self.feed_bare(index, &fin, io);
    }

    /// Gives smoltcp a segment without data that the peer has not sent, or not in this form.
    #[cold]
    pub(super) fn feed_bare(&mut self, index: u32, bare: &BareSegment, io: &mut Io<'_>) {
        let segment = Segment {
            source_port: bare.source_port,
            destination_port: bare.destination_port,
            seq: bare.seq,
            ack: bare.ack,
            flags: bare.flags,
            window: bare.window,
            length: 0,
            timestamp: None,
        };
        let Some(connection) = self.connections.get(index) else { return };
        let frame = connection.frame_of_the_peers(bare, io.now_ns, io.pool);
        self.feed(index, frame.data(), &segment, io);
        io.pool.recycle(frame);
    }
}
