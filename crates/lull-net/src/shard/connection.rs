//! What the shard keeps of a TCP connection beside smoltcp's socket.

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::{Duration, Instant};

use super::asked::Asked;
use super::clock::{ACK_DELAY_NS_MAX, RTO_NS_MIN, instant, instant_ns};
use super::device::{Sent, Windows};
use super::error::NetError;
use super::flow::FlowKey;
use super::paws::Timestamps;
use super::segment::Segment;
use super::socket::{Keepalive, Ready};
use super::timers::NEVER_NS;
use super::wire::{Mac, PSH, SYN, seq_lt};

/// The longest headers of a segment, IPv6's extensions left out: data that is longer than the MTU less this fills a
/// segment.
pub(super) const HEADERS_BYTES: usize = 40 + 20 + 40;

/// The unit of [`Connection::rtt_var`], so that its 16 bits reach half a second.
const RTT_VAR_US: u32 = 8;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Our SYN is out. A simultaneous open stays here until the peer acknowledges it.
    SynSent,
    /// From ESTABLISHED to the last acknowledgement.
    Open,
    /// The protocol is done with it; the application may still read what came, and the reason.
    Over,
}

/// Nothing is given up before a retransmission timer of Linux's could have run out (`TCP_RTO_MIN`): a shorter TCP_USER_TIMEOUT
/// would take a delayed acknowledgement for a dead peer.
const FIRST_LOOK_NS: u64 = 200_000_000;

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u16 {
        /// An application holds it.
        const HELD = 1;
        /// It waits in a listener's accept queue.
        const QUEUED = 2;
        /// The application shut down reading.
        const READ_SHUT = 4;
        /// The application shut down writing.
        const WRITE_SHUT = 8;
        /// It waits for room in the transmit ring.
        const BLOCKED = 16;
        /// It waits for its next hop's Ethernet address.
        const UNRESOLVED = 32;
        /// Keepalive probes are out.
        const PROBING = 64;
        /// Nagle's algorithm is off.
        const NODELAY = 512;
        /// A FIN came before the data in front of it.
        const EARLY_FIN = 2048;
        /// It waits for more to go with what was written, or for an answer to go with an acknowledgement: it is on the list of
        /// `coalesce`.
        const HELD_BACK = 4096;
        /// It was written to more than once in the batch that last wrote to it.
        const SEVERAL_WRITES = 8192;
        /// The peer's FIN was received (`SOCK_DONE`).
        const FIN_RECEIVED = 16384;
        /// What was sent at `progress_ns` is not acknowledged yet: its acknowledgement tells the round trip.
        const TIMED = 32768;
        /// It keeps bytes back, or was told to, or the program has said how much may be written to it
        /// ([`Asked::cork`]).
        const CORKED = 128;
        /// It is readable only from [`Asked::low_water`] bytes on.
        const LOW_WATER = 256;
        /// What comes is answered, so that acknowledgements wait for the answers to travel with (`inet_csk_in_pingpong_mode`).
        const ANSWERS = 1024;
    }
}

/// A connection. Its socket, with smoltcp's state, is one allocation behind `sockets`.
///
/// The order is that of use: what every segment touches is in the first two cache lines, in the order of `repr(C)`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Connection {
    pub(super) sockets: SocketSet<'static>,
    /// Oldest unacknowledged sequence number.
    pub(super) snd_una: u32,
    /// Next sequence number that was never sent.
    pub(super) snd_nxt: u32,
    /// What was last acknowledged.
    pub(super) rcv_ack: u32,
    /// Bytes received in order since then, and the FIN.
    pub(super) unanswered: u32,
    /// The number behind the last segment that emptied the transmit buffer, and so may have been small.
    pub(super) small_end: u32,
    /// The window field that went with `rcv_ack`.
    pub(super) rcv_window: u16,
    /// The peer's last window field.
    pub(super) peer_window: u16,
    /// Bytes read since the last segment went out.
    pub(super) consumed: u32,
    /// In milliseconds, as `TCP_USER_TIMEOUT` is.
    pub(super) user_timeout_ms: u32,
    pub(super) timestamps: Option<Timestamps>,
    pub(super) flags: Flags,
    /// What the path to the peer carries, in bytes, if that is less than the device; else 0.
    pub(super) path_mtu: u16,
    /// The largest segment that the peer takes, in bytes, as its SYN says, and [`SACK`](super::agreed::SACK).
    pub(super) peer_mss: u16,
    pub(super) next_hop: Option<Mac>,
    pub(super) phase: Phase,
    pub(super) ready: Ready,
    pub(super) error: Option<NetError>,
    /// What `rcv_window` is shifted by, in the lower half, and `peer_window`, in the upper.
    pub(super) scales: u8,
    pub(super) windows: Windows,
    /// How much may be written to it and not acknowledged, where that is more than its buffer has, in units of
    /// [`ROOM_UNIT_BYTES`](super::cork).
    pub(super) room: u8,
    /// The batch of events that last wrote to it.
    pub(super) batch: u8,
    /// Version of the neighbour table that `next_hop` is from.
    pub(super) hop_version: u32,
    /// Last time that the peer acknowledged something, or that there began to be something to acknowledge.
    pub(super) progress_ns: u64,
    /// Last time that a segment came in.
    pub(super) heard_ns: u64,
    /// When the present state ends by itself.
    pub(super) state_until_ns: u64,
    pub(super) asked: Option<Box<Asked>>,
    /// No challenge is answered before this.
    pub(super) quiet_until_ns: u64,
    /// When `path_mtu` is forgotten, in seconds.
    pub(super) path_mtu_until_s: u32,
    /// The number of the peer's SYN, of a connection that the peer began.
    pub(super) peer_isn: u32,
    /// The smoothed round trip in microseconds (RFC 6298 section 2); 0 before the first.
    pub(super) rtt_us: u32,
    /// Times that something was sent again.
    pub(super) retransmits: u16,
    /// How far round trips lie from the smoothed one (RTTVAR), in units of [`RTT_VAR_US`], because there was room for
    /// 16 bits here.
    pub(super) rtt_var: u16,
    pub(super) flow: FlowKey,
}

// With ten thousand connections one line more would be one cache miss more per request.
const _: () = assert!(size_of::<Option<Connection>>() <= 3 * 64);
const _: () = assert!(std::mem::offset_of!(Connection, quiet_until_ns) <= 2 * 64);

impl Connection {
    #[inline]
    pub(super) fn socket(&self) -> &Socket<'static> {
        self.sockets.get(SocketHandle::default())
    }

    #[inline]
    pub(super) fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(SocketHandle::default())
    }

    /// Sends the FIN behind what is still to be sent.
    ///
    /// With the peer's FIN there already that is LAST-ACK, in which smoltcp takes a window that opens for a duplicate
    /// acknowledgement, and waits for its next probe. So the FIN is given to smoltcp only once the window that the peer
    /// has opened has room for all that is left, since a peer does not take a window back (RFC 9293 section 3.8.6).
    /// Where a [`Sender`](super::sender::Sender) is in charge, all that has not left must be allowed to leave, too; and
    /// the FIN waits for what smoltcp had no room for.
    pub(super) fn finish(&mut self) {
        if self.kept_bytes() != 0 {
            return;
        }
        let peers = self.peer_window_bytes();
        let room = self.sender().map_or(peers, |sender| {
            let left = if self.is_probe() { 0 } else { self.snd_nxt.wrapping_sub(self.snd_una) as usize };
            left.saturating_add(sender.room()).min(peers).max(left)
        });
        if self.socket().state() != State::CloseWait || self.socket().send_queue() <= room {
            self.socket_mut().close();
        }
    }

    /// Whether the application has written all that it will, and the FIN waits for room in the peer's window or in smoltcp's buffer.
    #[inline]
    pub(super) fn is_to_finish(&self) -> bool {
        let is_over = self.flags.contains(Flags::WRITE_SHUT) || !self.flags.intersects(Flags::HELD | Flags::QUEUED);
        match self.socket().state() {
            State::CloseWait => is_over,
            State::Established => is_over && self.kept_bytes() != 0,
            _ => false,
        }
    }

    /// What a connection costs besides its buffers and its slot.
    pub(super) fn overhead_bytes() -> usize {
        size_of::<SocketStorage<'static>>() + 2 * size_of::<u64>()
    }

    /// Sets when its present state ends by itself.
    pub(super) fn expires(&mut self, at_ns: u64) {
        self.state_until_ns = at_ns;
    }

    /// `tcp_stream_is_readable`, of a stream that goes on.
    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.socket().can_recv() && (!self.flags.contains(Flags::LOW_WATER) || self.reaches_low_water())
    }

    /// SO_RCVLOWAT is reached; or the peer has no room for another segment, so that each side would wait for the other.
    #[cold]
    fn reaches_low_water(&self) -> bool {
        const SEGMENT_BYTES: usize = 1460;
        let (there, room) = (self.socket().recv_queue(), self.socket().recv_capacity());
        there + SEGMENT_BYTES >= room || !self.asks(|asked| there < asked.low_water as usize)
    }

    /// What an attempt to reach the peer met with.
    pub(super) fn soft_error(&self) -> Option<NetError> {
        self.asked.as_ref()?.soft_error
    }

    /// As [`Connection::soft_error`], and forgets it, so that it is told only once.
    pub(super) fn take_soft_error(&mut self) -> Option<NetError> {
        self.asked.as_mut()?.soft_error.take()
    }

    /// How it is probed while it is idle.
    pub(super) fn keepalive(&self) -> Option<Keepalive> {
        self.asked.as_ref()?.keepalive
    }

    /// Whether something is asked for.
    pub(super) fn asks(&self, what: impl FnOnce(&Asked) -> bool) -> bool {
        self.asked.as_deref().is_some_and(what)
    }

    /// What is asked for, to be changed.
    pub(super) fn asked_mut(&mut self) -> &mut Asked {
        self.asked.get_or_insert_default()
    }

    /// The peer's next sequence number.
    pub(super) fn rcv_nxt(&self) -> u32 {
        self.rcv_ack.wrapping_add(self.unanswered)
    }

    /// Something is sent, or to be sent, that the peer has not acknowledged.
    pub(super) fn outstanding(&self) -> bool {
        self.snd_una != self.snd_nxt || self.socket().send_queue() > 0
    }

    /// `tcp_poll`.
    #[inline(always)]
    pub(super) fn readiness(&self) -> Ready {
        if self.flags.contains(Flags::CORKED) {
            return self.readiness_by_its_own_room();
        }
        // `sk_stream_is_writeable`: a third of what may be written is free. A writer is not woken for every acknowledged byte.
        self.readiness_if(|socket| {
            let all = self.room_at_first(socket);
            (all - socket.send_queue()) * 3 >= all
        })
    }

    /// This is a function of its own, so that all other connections pay for no call.
    #[cold]
    #[inline(never)]
    fn readiness_by_its_own_room(&self) -> Ready {
        self.readiness_if(|_| self.has_room_to_write())
    }

    #[inline(always)]
    fn readiness_if(&self, has_room: impl FnOnce(&Socket<'static>) -> bool) -> Ready {
        let socket = self.socket();
        let mut ready = if self.error.is_some() { Ready::ERR } else { Ready::empty() };
        let over = match self.phase {
            Phase::SynSent => return ready,
            Phase::Open => false,
            Phase::Over => true,
        };
        let read_over = over || self.flags.contains(Flags::READ_SHUT) || fin_received(socket.state());
        let write_over = over || self.flags.contains(Flags::WRITE_SHUT);
        if read_over {
            ready |= Ready::READABLE | Ready::RDHUP;
        } else if self.is_readable() {
            ready |= Ready::READABLE;
        }
        if write_over || has_room(socket) {
            ready |= Ready::WRITABLE;
        }
        if read_over && write_over {
            ready |= Ready::HUP;
        }
        ready
    }

    /// The number of a bare acknowledgement (`tcp_acceptable_seq`), when the peer has acknowledged `acked`.
    ///
    /// It is SND.NXT (RFC 9293 section 3.10.7.4). After a timeout smoltcp counts from the oldest unacknowledged byte again, in
    /// bare acknowledgements too; the peer finds such a one below its window and discards it, and if it does the same,
    /// neither ever hears what the other has received. But it must not lie beyond a window that is closed: what smoltcp
    /// probes it with counts as sent, and Linux discards all that comes behind its window, so that it would never hear of
    /// ours having opened.
    #[inline]
    pub(super) fn acceptable_seq(&self, acked: u32) -> u32 {
        if self.peer_window != 0 {
            return self.snd_nxt;
        }
        if seq_lt(self.snd_una, acked) { acked } else { self.snd_una }
    }

    /// The time as the connection's smoltcp has it when it is asked for what is to be sent. While our SYN is out it goes on as ours
    /// does, from where the SYN left: the SYN is repeated after a second (RFC 6298 section 2.1).
    #[inline]
    pub(super) fn instant(&self, now_ns: u64) -> Instant {
        match self.phase {
            Phase::SynSent => {
                instant(self.progress_ns) + Duration::from_micros(now_ns.saturating_sub(self.progress_ns) / 1000)
            }
            Phase::Open | Phase::Over => instant(now_ns),
        }
    }

    /// The time of ours for such a time of smoltcp's.
    #[inline]
    pub(super) fn instant_ns(&self, at: Instant) -> u64 {
        match self.phase {
            Phase::SynSent => {
                let since = at - instant(self.progress_ns).min(at);
                self.progress_ns.saturating_add(since.total_micros().saturating_mul(1000))
            }
            Phase::Open | Phase::Over => instant_ns(at),
        }
    }

    /// Until when nothing is sent again for want of an acknowledgement: the peer may put one off for 200 ms beyond the
    /// round trip (`TCP_DELACK_MAX`; `tcp_set_rto` adds as much).
    #[inline]
    pub(super) fn waits_for_acknowledgement_ns(&self) -> u64 {
        if self.snd_una == self.snd_nxt || self.peer_window == 0 || self.unanswered != 0 || self.phase != Phase::Open {
            return 0;
        }
        self.progress_ns.saturating_add(u64::from(self.rtt_us) * 1000 + ACK_DELAY_NS_MAX)
    }

    /// Whether smoltcp's retransmission timer may have expired: it was started, at the latest, by the last progress.
    #[inline]
    pub(super) fn may_send_again(&self, now_ns: u64) -> bool {
        self.snd_una != self.snd_nxt && now_ns.saturating_sub(self.progress_ns) >= RTO_NS_MIN
    }

    /// Whether a segment that repeats what has been sent only probes the peer: for a keepalive's probe nothing is
    /// missing, and for a probe of a closed window nothing but its one byte, or our FIN if that is all there is.
    #[cold]
    fn is_probe(&self) -> bool {
        let on_its_way = self.snd_nxt.wrapping_sub(self.snd_una);
        on_its_way == 0 || self.peer_window == 0 && (on_its_way == 1 || self.socket().send_queue() == 1)
    }

    /// Notes what was sent. Returns whether it had been sent before, and does not only probe the peer.
    #[inline]
    pub(super) fn sent(&mut self, last: Sent, now_ns: u64) -> bool {
        let mut again = false;
        if self.phase != Phase::Open && last.flags & SYN != 0 {
            (self.snd_una, self.snd_nxt, self.small_end) = (last.seq_end, last.seq_end, last.seq_end);
        } else if seq_lt(self.snd_nxt, last.seq_end) {
            if self.snd_una == self.snd_nxt {
                self.progress_ns = now_ns;
                self.flags.insert(Flags::TIMED);
            }
            self.snd_nxt = last.seq_end;
            self.flags.insert(Flags::ANSWERS);
            if last.flags & PSH != 0 {
                self.small_end = last.seq_end;
            }
        } else if last.occupied {
            // The next acknowledgement may be of the first transmission or of this one (Karn's rule), so it tells no
            // round trip.
            self.flags.remove(Flags::TIMED);
            again = !self.is_probe();
            self.retransmits = self.retransmits.saturating_add(again.into());
        }
        self.rcv_ack = last.ack;
        self.rcv_window = last.window;
        self.consumed = 0;
        self.unanswered = 0;
        again
    }

    /// Whether a segment is acknowledged as it comes (`__tcp_ack_snd_check`): GRO or the device has made it of several,
    /// of which the second would be.
    #[inline]
    pub(super) fn is_acknowledged_at_once(&self, segment: &Segment, mtu_bytes: usize) -> bool {
        segment.length > mtu_bytes
    }

    /// Whether a segment is acknowledged soon: it is not a full one, so that a peer with Nagle's algorithm on may wait for that, and there
    /// is no answer that is known to come (quick-acknowledgement mode).
    #[inline]
    pub(super) fn is_acknowledged_soon(&self, segment: &Segment, mtu_bytes: usize) -> bool {
        segment.flags & PSH != 0 && self.may_be_waited_for(segment.length, mtu_bytes)
    }

    /// Whether the peer may wait for an acknowledgement of what was not answered yet, and there is no answer that is known to come.
    #[inline]
    pub(super) fn owes_an_acknowledgement(&self, mtu_bytes: usize) -> bool {
        self.may_be_waited_for(self.unanswered as usize, mtu_bytes)
    }

    fn may_be_waited_for(&self, bytes: usize, mtu_bytes: usize) -> bool {
        bytes != 0 && bytes + HEADERS_BYTES < mtu_bytes && !self.flags.contains(Flags::ANSWERS)
    }

    /// Whether new data finds both directions shut down (`tcp_rcv_state_process`, FIN-WAIT).
    #[inline]
    pub(super) fn takes_no_more(&self, segment: &Segment) -> bool {
        if !self.flags.contains(Flags::READ_SHUT) || segment.length == 0 {
            return false;
        }
        let end = segment.seq.wrapping_add(segment.length as u32);
        matches!(self.socket().state(), State::FinWait1 | State::FinWait2) && seq_lt(self.rcv_nxt(), end)
    }

    /// Something new was acknowledged.
    #[inline]
    pub(super) fn progressed(&mut self, now_ns: u64) {
        if self.flags.contains(Flags::TIMED) {
            self.flags.remove(Flags::TIMED);
            let sample_us = u32::try_from(now_ns.saturating_sub(self.progress_ns) / 1_000).unwrap_or(u32::MAX).max(1);
            self.note_round_trip(sample_us);
        }
        self.progress_ns = now_ns;
    }

    /// A handshake tells the first round trip, if it took any time. One that took a second may be of a repeated SYN.
    pub(super) fn shook_hands(&mut self, sent_ns: Option<u64>, now_ns: u64) {
        let took_us = sent_ns.map_or(0, |sent_ns| now_ns.saturating_sub(sent_ns) / 1000);
        if (1..1_000_000).contains(&took_us) {
            self.note_round_trip(took_us as u32);
        }
    }

    /// RFC 6298 section 2.
    #[inline]
    fn note_round_trip(&mut self, sample_us: u32) {
        let units = |us: u32| (us / RTT_VAR_US).min(u16::MAX.into()) as u16;
        if self.rtt_us == 0 {
            (self.rtt_us, self.rtt_var) = (sample_us, units(sample_us / 2));
            return;
        }
        let var = units(self.rtt_us.abs_diff(sample_us));
        self.rtt_var = self.rtt_var - self.rtt_var / 4 + var / 4;
        self.rtt_us = (self.rtt_us - self.rtt_us / 8 + sample_us / 8).max(1);
    }

    /// How far round trips lie from the smoothed one, in microseconds; 0 before the first.
    pub(super) fn rtt_var_us(&self) -> u32 {
        if self.rtt_us == 0 { 0 } else { (u32::from(self.rtt_var) * RTT_VAR_US).max(1) }
    }

    /// Nagle's algorithm as Linux has it (`tcp_minshall_check`): a small segment waits only for an earlier *small* one.
    /// smoltcp's own rule would hold back the tail of every response longer than a segment until the peer's delayed
    /// acknowledgement. What `coalesce` holds back is held in the same way, and so is a part of a segment that a
    /// congestion window leaves.
    #[inline]
    pub(super) fn set_nagle(&mut self) {
        let held_back = self.flags.contains(Flags::HELD_BACK);
        let is_small = !self.flags.contains(Flags::NODELAY) && seq_lt(self.snd_una, self.small_end);
        let hold = held_back || is_small || self.sender().is_some_and(|sender| sender.room() < self.unsent());
        self.socket_mut().set_nagle_enabled(hold);
    }

    /// When data that stays unacknowledged ends the connection.
    #[inline]
    pub(super) fn gives_up_ns(&self) -> u64 {
        let waits_since = self.asked.as_ref().and_then(|asked| asked.waits_since);
        let since_ns = waits_since.filter(|(first, _)| *first == self.snd_una).map_or(self.progress_ns, |(_, ns)| ns);
        since_ns.saturating_add((u64::from(self.user_timeout_ms) * 1_000_000).max(FIRST_LOOK_NS))
    }

    /// When probes that nobody answers end the connection (`tcp_keepalive_timer`): after their full number; or, if the
    /// program has set TCP_USER_TIMEOUT, when the next one is due after that time.
    pub(super) fn keeps_alive_until_ns(&self, keepalive: Keepalive) -> u64 {
        let Keepalive { idle_ns, interval_ns, probes } = keepalive;
        let probes = if self.asks(|asked| asked.own_timeout) {
            (u64::from(self.user_timeout_ms) * 1_000_000).saturating_sub(idle_ns).div_ceil(interval_ns).max(1)
        } else {
            probes.into()
        };
        self.heard_ns.saturating_add(idle_ns).saturating_add(interval_ns.saturating_mul(probes))
    }

    /// When it is probed, or gives back what it does not use, if it goes on being idle.
    fn idle_deadline_ns(&self, asked: &Asked) -> u64 {
        let probe_ns = asked.keepalive.map(|keepalive| {
            if self.flags.contains(Flags::PROBING) {
                self.keeps_alive_until_ns(keepalive)
            } else {
                self.heard_ns.saturating_add(keepalive.idle_ns)
            }
        });
        [probe_ns, self.gives_back_ns()].into_iter().flatten().min().unwrap_or(NEVER_NS)
    }

    /// The earliest of smoltcp's deadline and ours.
    #[inline(always)]
    pub(super) fn deadline_ns(&self, smoltcp_ns: u64) -> u64 {
        let mut deadline_ns = smoltcp_ns.min(self.state_until_ns).min(self.corked_until_ns());
        if self.phase != Phase::Open {
            return deadline_ns;
        }
        if self.outstanding() {
            return deadline_ns.min(self.gives_up_ns()).min(self.lost_ns());
        }
        if let Some(asked) = &self.asked {
            deadline_ns = deadline_ns.min(self.idle_deadline_ns(asked));
        }
        deadline_ns
    }
}

/// A user timeout as `TCP_USER_TIMEOUT` has it: whole milliseconds in 32 bits, and never 0.
pub(super) fn timeout_ms(timeout_ns: u64) -> u32 {
    u32::try_from(timeout_ns.div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1)
}

/// Whether the peer's FIN was received, by the state.
pub(super) fn fin_received(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed)
}
