//! Small writes of one batch of events leave in one segment.
//!
//! A program that answers pipelined requests writes each answer by itself, and TCP_NODELAY makes a segment of each. Linux
//! gathers such writes while a packet of theirs is still in the device (`tcp_autocorking`). Here the end of the batch is known:
//! the thread comes back to wait for events. So a connection that is written to for the second time in a batch keeps what is
//! written until then, and one that was written to several times in its last batch keeps the first write as well. A
//! connection that has one answer per batch is never held back, whatever the others do; but where a doorbell is dear
//! ([`lull_nic::DeviceInfo::dear_doorbell`]) everything is, and answers to several peers leave by one doorbell.
//!
//! What is held back leaves when
//!
//! ```text
//! the thread waits          (crate::batch: epoll_wait, a call that blocks or would, the thread's end)
//! a segment is full         the full ones leave, the rest stays
//! another connection's turn the oldest leave when HELD_BACK_MAX are there
//! it was asked for          close, shutdown, TCP_NODELAY
//! time is up                `coalesce_ns` after the first: the thread computes, or waits where lull cannot see it
//! ```
//!
//! A flagged connection is always on the list, and the list always has a time: nothing can stay behind.

use super::connection::{Flags, HEADERS_BYTES};
use super::socket::{SocketId, SocketKind};
use super::stack::{Io, Stack};
use super::timers::NEVER_NS;

/// As many frames as a cork holds back ([`crate::Network::cork`]): it bounds what one batch adds to latency.
const HELD_BACK_MAX: usize = 8;

/// The connections that hold something back, oldest first.
#[derive(Debug)]
pub(super) struct HeldBack {
    ids: Vec<SocketId>,
    until_ns: u64,
}

impl HeldBack {
    pub(super) fn new() -> HeldBack {
        HeldBack { ids: Vec::new(), until_ns: NEVER_NS }
    }
}

impl Stack {
    /// Whether any connection holds something back.
    #[inline]
    pub fn holds_back(&self) -> bool {
        !self.held_back.ids.is_empty()
    }

    /// When that ends at the latest: [`Stack::run_timers`] is wanted then. Not put off to a tick, as TCP's own timers may be.
    #[inline]
    pub fn held_back_until_ns(&self) -> u64 {
        self.held_back.until_ns
    }

    /// Decides whether what was just written to a connection waits for what comes after it, and keeps it if so.
    #[inline]
    pub(super) fn hold_back(&mut self, id: SocketId, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(id.index()) else { return false };
        if io.batch == 0 || self.config.coalesce_ns == 0 {
            // Another thread's write takes along what is there.
            connection.flags.remove(Flags::HELD_BACK);
            return false;
        }
        let again = connection.batch == io.batch as u8;
        let before = connection.flags.contains(Flags::SEVERAL_WRITES);
        connection.flags.set(Flags::SEVERAL_WRITES, again);
        connection.batch = io.batch as u8;
        if again || before || self.config.share_doorbells { self.keep(id, io) } else { false }
    }

    fn keep(&mut self, id: SocketId, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(id.index()) else { return false };
        self.counters.tcp_held_back += 1;
        let in_flight = connection.snd_nxt.wrapping_sub(connection.snd_una) as usize;
        let unsent = connection.socket().send_queue().saturating_sub(in_flight);
        let path_mtu = if connection.path_mtu != 0 { usize::from(connection.path_mtu) } else { self.config.mtu_bytes };
        // A device that cuts segments takes as much as the buffer holds.
        let fills = unsent + HEADERS_BYTES >= path_mtu && !self.config.tx_segmentation_offload;
        if !connection.flags.contains(Flags::HELD_BACK) {
            connection.flags.insert(Flags::HELD_BACK);
            if self.held_back.ids.is_empty() {
                self.held_back.until_ns = io.now_ns.saturating_add(self.config.coalesce_ns);
            }
            self.held_back.ids.push(id);
            if self.held_back.ids.len() > HELD_BACK_MAX {
                self.let_go_of_all_but(1, io);
            }
        }
        if fills {
            self.pump(id.index(), true, io);
        }
        true
    }

    /// Sends what is held back.
    pub fn let_go_of_all(&mut self, io: &mut Io<'_>) {
        self.let_go_of_all_but(0, io);
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
        if connection.flags.contains(Flags::HELD_BACK) {
            connection.flags.remove(Flags::HELD_BACK);
            self.pump(id.index(), true, io);
        }
    }
}
