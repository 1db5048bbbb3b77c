//! Small writes of one batch of events leave in one segment.
//!
//! A program that answers pipelined requests writes each answer by itself, and TCP_NODELAY makes a segment of each.
//! Linux gathers such writes while a packet of theirs is still in the device (`tcp_autocorking`). Here the end of the
//! batch is known: the thread comes back to wait for events. So a connection that is written to for the second time in
//! a batch keeps what is written until then, and one that was written to several times in its last batch keeps the
//! first write as well. A connection that has one answer per batch is never held back, whatever the others do. But
//! where a doorbell costs much ([`lull_nic::DeviceInfo::dear_doorbell`]), one doorbell serves the answers of a batch to
//! several peers, if the thread is quick: the doorbell of an answer waits for the next answer if the thread's previous
//! one is at most [`QUICK_NS`] old. So the peer's machine is woken once, and what it does inside the doorbell, as with
//! a TAP, finds its code in the caches.
//!
//! Two things that often come next are waited for in the same way, because each would be a segment of its own
//! otherwise:
//!
//! - the answer to a first request, with which its acknowledgement travels. Linux sends that acknowledgement at once
//!   ("quick acknowledgement"), since the peer may not send the rest of its request before (Nagle's algorithm). Here it
//!   leaves when the thread that has read the request waits without having answered, or `coalesce_ns` after it was
//!   read, or after 5 ms if nobody has read it;
//! - the end of a stream, if the program has lately closed connections in the batch of their only answer. Then the
//!   first write to a connection is kept, and a close within the batch makes one segment of the answer and the FIN.
//!
//! What is held back leaves when
//!
//! ```text
//! the thread waits          (crate::batch: epoll_wait, a call that blocks, or would as often as there are events)
//! a segment is full         the full ones leave, the rest stays
//! another connection's turn the oldest leave when HELD_BACK_MAX are there, and the doorbell rings for SHARED_FRAMES_MAX
//! it was asked for          close and shutdown (with the FIN), TCP_NODELAY
//! time is up                `coalesce_ns` after the first: the thread computes, or waits where lull cannot see it
//! ```
//!
//! A flagged connection is always on the list, and both the list and a doorbell that waits always have a deadline, so
//! nothing can stay behind.

use smoltcp::time::Duration;

use super::clock::duration;
use super::connection::{Connection, Flags, HEADERS_BYTES, Phase};
use super::held_back::{Batch, QUICK_NS};
use super::socket::{SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;

/// As many frames as a cork holds back ([`crate::Network::cork`]): it bounds what one batch adds to latency.
const HELD_BACK_MAX: usize = 8;
/// If this many connections in a row were closed in the batch of their only answer, the next one is expected to be.
const CLOSES_MIN: u8 = 2;
/// How long the acknowledgement of a first request waits for a program to read it. A program with many connections
/// takes milliseconds for a batch, and even a peer that waits for the acknowledgement could only send more to a program
/// that has not read what there is.
pub(super) const ACK_SOON_NS: u64 = 5_000_000;

impl Stack {
    /// Whether any connection holds something back, or a doorbell waits for more answers of a batch.
    #[inline]
    pub fn holds_back(&self) -> bool {
        !self.held_back.ids.is_empty() || self.held_back.doorbell
    }

    /// Whether the doorbell may wait for more answers, if the caller answers a batch and will come back for it
    /// ([`Stack::let_go_of_all`]).
    #[inline]
    pub fn holds_doorbell_back(&self) -> bool {
        self.held_back.doorbell
    }

    /// The doorbell has rung, or need not wait any more.
    #[inline]
    pub fn doorbell_rang(&mut self) {
        if std::mem::take(&mut self.held_back.doorbell) && self.held_back.ids.is_empty() {
            self.held_back.until_ns = NEVER_NS;
        }
    }

    /// When what is held back leaves at the latest: [`Stack::run_timers`] is wanted then, and must not be put off to a
    /// tick, as TCP's own timers may be.
    #[inline]
    pub fn held_back_until_ns(&self) -> u64 {
        self.held_back.until_ns
    }

    /// Decides whether so many bytes that were just written to a connection wait for what comes after it, and keeps it if so.
    #[inline]
    pub(super) fn hold_back(&mut self, id: SocketId, bytes: usize, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(id.index()) else { return false };
        if io.batch.is_none() || self.config.coalesce_ns == 0 {
            // Another thread's write takes along what is there.
            connection.flags.remove(Flags::HELD_BACK);
            return false;
        }
        let again = connection.batch == io.batch.number();
        let before = connection.flags.contains(Flags::SEVERAL_WRITES);
        let is_first = connection.batch == 0;
        let may_be_all = is_first && self.held_back.closes == CLOSES_MIN;
        if !is_first && !again {
            self.held_back.closes = 0;
        }
        connection.flags.set(Flags::SEVERAL_WRITES, again);
        connection.batch = io.batch.number();
        if again || before || may_be_all {
            self.counters.tcp_held_back += 1;
            self.keep(id, io);
            return true;
        }
        connection.flags.remove(Flags::HELD_BACK);
        self.hold_doorbell_back(bytes, io);
        false
    }

    /// An answer of so many bytes leaves by itself. Where doorbells are shared, its doorbell waits for the next answer
    /// if this one is small and the next is likely to follow soon. Otherwise it rings, also for the answers before.
    #[inline]
    pub(super) fn hold_doorbell_back(&mut self, bytes: usize, io: &mut Io<'_>) {
        if !self.config.share_doorbells || self.config.coalesce_ns == 0 || !io.batch.has_many() {
            return;
        }
        let since_last_ns = io.now_ns.saturating_sub(io.batch.answered_ns);
        io.batch.answered_ns = io.now_ns;
        if since_last_ns <= QUICK_NS && bytes <= self.config.mtu_bytes {
            self.begins_to_hold_back(io);
            self.held_back.doorbell = true;
        } else {
            self.doorbell_rang();
        }
    }

    /// How long smoltcp is to wait before it acknowledges a segment soon; `None`: not at all.
    #[inline]
    pub(super) fn ack_soon(&self) -> Option<Duration> {
        (self.config.coalesce_ns != 0).then_some(duration(ACK_SOON_NS))
    }

    /// The application has read all that came of a connection. A peer that may wait for the acknowledgement gets it before the
    /// application waits (`tcp_cleanup_rbuf`, which does not wait for that).
    #[inline]
    pub(super) fn has_read(&mut self, id: SocketId, io: &mut Io<'_>) {
        if !self.owes_an_acknowledgement(id) {
            return;
        }
        if io.batch.is_none() || self.config.coalesce_ns == 0 {
            self.pump_put_off(id.index(), io);
        } else {
            self.lists(id, io);
        }
    }

    /// Nothing more will be written to a connection: what it holds back leaves with the FIN.
    pub(super) fn holds_back_no_more(&mut self, id: SocketId, batch: Batch) {
        let Some(connection) = self.connections.get_mut(id.index()) else { return };
        connection.flags.remove(Flags::HELD_BACK);
        if !batch.is_none() && connection.batch == batch.number() {
            self.held_back.closes = (self.held_back.closes + 1).min(CLOSES_MIN);
        }
    }

    fn keep(&mut self, id: SocketId, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get(id.index()) else { return };
        let in_flight = connection.snd_nxt.wrapping_sub(connection.snd_una) as usize;
        let unsent = connection.socket().send_queue().saturating_sub(in_flight);
        let path_mtu = if connection.path_mtu != 0 { usize::from(connection.path_mtu) } else { self.config.mtu_bytes };
        // A device that cuts segments takes as much as the buffer holds.
        let fills = unsent + HEADERS_BYTES >= path_mtu && !self.config.tx_segmentation_offload;
        self.lists(id, io);
        if fills {
            self.pump(id.index(), true, io);
        }
    }

    /// Puts a connection on the list, if it is not there.
    fn lists(&mut self, id: SocketId, io: &mut Io<'_>) {
        let Some(connection) = self.connections.get_mut(id.index()) else { return };
        if connection.flags.contains(Flags::HELD_BACK) {
            return;
        }
        connection.flags.insert(Flags::HELD_BACK);
        self.begins_to_hold_back(io);
        self.held_back.ids.push(id);
        if self.held_back.ids.len() > HELD_BACK_MAX {
            self.let_go_of_all_but(1, io);
        }
    }

    /// Sets the time at which what is held back leaves at the latest, if nothing is yet.
    fn begins_to_hold_back(&mut self, io: &Io<'_>) {
        if !self.holds_back() {
            self.held_back.until_ns = io.now_ns.saturating_add(self.config.coalesce_ns);
        }
    }

    /// Sends what is held back. The caller rings the doorbell.
    pub fn let_go_of_all(&mut self, io: &mut Io<'_>) {
        self.let_go_of_all_but(0, io);
        self.held_back.doorbell = false;
        self.held_back.until_ns = NEVER_NS;
    }

    fn let_go_of_all_but(&mut self, newest: usize, io: &mut Io<'_>) {
        let mut ids = std::mem::take(&mut self.held_back.ids);
        let gone = ids.len().saturating_sub(newest);
        ids.drain(..gone).for_each(|id| self.let_go(id, io));
        self.held_back.ids = ids;
    }

    /// Sends what this connection holds back, if it does. Its place on the list means nothing from now on.
    pub(super) fn let_go(&mut self, id: SocketId, io: &mut Io<'_>) {
        if id.kind() != SocketKind::Tcp || self.connections.generation(id.index()) != id.generation() {
            return;
        }
        let Some(connection) = self.connections.get_mut(id.index()) else { return };
        if !connection.flags.contains(Flags::HELD_BACK) {
            return;
        }
        connection.flags.remove(Flags::HELD_BACK);
        if connection.socket().send_queue() > 0 {
            self.held_back.closes = 0;
            self.pump(id.index(), true, io);
        }
        if self.owes_an_acknowledgement(id) {
            self.pump_put_off(id.index(), io);
        }
    }

    #[inline]
    fn owes_an_acknowledgement(&self, id: SocketId) -> bool {
        let owes = |it: &Connection| it.phase == Phase::Open && it.owes_an_acknowledgement(self.config.mtu_bytes);
        self.connections.get(id.index()).is_some_and(owes)
    }
}
