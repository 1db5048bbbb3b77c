//! Sending: when the doorbell rings, what a cork holds back, and who waits for room in the ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_host::Delivery;
use lull_nic::{Doorbell, Frame, IrqLine, IrqSink, TxQueue};

use super::{Inside, Queue};
use crate::shard::{SHARED_FRAMES_MAX, Stack};
use crate::transmit::{Ring, TxSide};

/// Frames that a cork holds back at most before the doorbell rings nevertheless: it bounds what batching adds to latency.
pub const CORKED_FRAMES_MAX: u32 = 8;

/// What a shard sends to, and how far it got.
pub(super) struct Sending {
    pub(super) tx: Box<dyn TxQueue>,
    /// The room interrupt of `tx`. It schedules the NAPI, whose poll serves those who wait.
    pub(super) room: Arc<dyn IrqLine>,
    /// Where a queueing discipline has the ring, and `tx` is its intake.
    pub(super) transmit: Option<Arc<TxSide>>,
    /// Frames were pushed into the intake since the lock was taken.
    kick: bool,
    /// Frames of the stack for which the doorbell has rung.
    rung_for: u64,
    /// The last doorbell left frames on the ring: it rings again once there is room behind it.
    unsent: bool,
}

impl Sending {
    pub(super) fn new(tx: Box<dyn TxQueue>, room: Arc<dyn IrqLine>) -> Sending {
        Sending { tx, room, transmit: None, kick: false, rung_for: 0, unsent: false }
    }

    /// Frames for which the doorbell has not rung.
    #[inline]
    pub(super) fn staged(&self, stack: &Stack) -> u64 {
        stack.tx_frames() - self.rung_for
    }

    /// The device may be what panicked: no doorbell rings for what was staged.
    pub(super) fn give_up(&mut self, stack: &Stack) {
        (self.rung_for, self.unsent) = (stack.tx_frames(), false);
    }

    /// The transmit queue that is to be told of frames, once the lock is given back.
    #[inline]
    pub(super) fn take_kick(&mut self) -> Option<Arc<TxSide>> {
        if !std::mem::take(&mut self.kick) {
            return None;
        }
        self.transmit.clone()
    }
}

impl Inside {
    /// Whether somebody waits for the device: sockets for room in its ring, or its ring for another doorbell.
    #[inline]
    pub(super) fn waits_for_room(&self) -> bool {
        self.sending.unsent || self.stack.has_blocked()
    }

    #[inline]
    fn ring(&mut self) {
        let sending = &mut self.sending;
        sending.rung_for = self.stack.tx_frames();
        self.stack.doorbell_rang();
        sending.unsent = sending.tx.doorbell() == Doorbell::Again;
        sending.kick = sending.transmit.is_some();
        sending.tx.reap_sent(&mut self.pool);
    }

    /// The shard sends elsewhere from now on. Returns the former ring, whose doorbell has rung.
    pub(crate) fn swap_ring(&mut self, ring: Ring, room: Arc<dyn IrqLine>, transmit: Option<Arc<TxSide>>) -> Ring {
        self.ring();
        let sending = &mut self.sending;
        (sending.room, sending.transmit) = (room, transmit);
        let tx = std::mem::replace(&mut sending.tx, ring.tx);
        Ring { tx, unsent: std::mem::replace(&mut sending.unsent, ring.unsent) }
    }

    /// The room interrupt of what the shard sends to goes there from now on. One that went elsewhere is lost: the caller looks.
    pub(crate) fn hear_of_room(&self, sink: Arc<dyn IrqSink>) {
        self.sending.room.connect(sink);
    }

    /// Puts so many of `frames` on the ring, as far as there is room, and rings for them. Returns how many.
    pub(crate) fn push(&mut self, frames: &mut VecDeque<Frame>, at_most: usize, now_ns: u64) -> usize {
        self.use_room(now_ns);
        let mut put = 0;
        while put < at_most
            && let Some(frame) = frames.pop_front()
        {
            if let Err(frame) = self.sending.tx.transmit(frame) {
                frames.push_front(frame);
                break;
            }
            put += 1;
        }
        if put != 0 {
            self.ring();
        }
        put
    }

    /// Whether the last doorbell left frames on the ring.
    pub(crate) fn is_unsent(&self) -> bool {
        self.sending.unsent
    }

    /// There may be room: completions first, then the ring's own frames, then the sockets that wait, in their order.
    pub(crate) fn use_room(&mut self, now_ns: u64) {
        self.sending.tx.reap_sent(&mut self.pool);
        if self.sending.unsent {
            self.ring();
        }
        self.call(now_ns, |stack, io| stack.flush_blocked(io));
    }
}

impl Queue {
    pub(crate) fn cork(&self) {
        self.corks.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a cork; the doorbell rings for what it held back.
    pub(crate) fn uncork(&self, host: &Delivery) {
        self.corks.fetch_sub(1, Ordering::Relaxed);
        self.with(host, |_, _| ());
    }

    /// Sends what connections hold back.
    pub(crate) fn let_go(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| inside.call(now_ns, |stack, io| stack.let_go_of_all(io)));
    }

    /// The NAPI was enabled. A room interrupt that came while it was not is lost, and a reset has masked the line; and nobody has
    /// heard of what other shards passed on.
    pub(crate) fn look_for_room(&self, host: &Delivery) {
        self.inbox().look_again();
        self.with(host, |inside, now_ns| inside.use_room(now_ns));
    }

    /// The room interrupt of what the shard sends to.
    pub(crate) fn room(&self, host: &Delivery) -> Arc<dyn IrqLine> {
        self.with(host, |inside, _| inside.sending.room.clone())
    }

    /// Who sends for the shard, if it has a queueing discipline.
    pub(crate) fn transmit(&self, host: &Delivery) -> Option<Arc<TxSide>> {
        self.with(host, |inside, _| inside.sending.transmit.clone())
    }

    /// Rings for what was staged, unless a cork holds it back, or the batch that the calling thread answers.
    #[inline]
    pub(super) fn ring_for_staged(&self, inside: &mut Inside) {
        let shares = std::mem::take(&mut inside.comes_back) && inside.stack.holds_doorbell_back();
        let staged = inside.sending.staged(&inside.stack);
        if staged == 0 {
            return;
        }
        let most = match shares {
            _ if self.corks.load(Ordering::Relaxed) != 0 => u64::from(CORKED_FRAMES_MAX),
            true => SHARED_FRAMES_MAX,
            false => 0,
        };
        // A full ring ends `xmit_more`, too: room comes only behind a doorbell. A group holds doorbells back itself.
        let is_grouped = || inside.sending.transmit.as_ref().is_some_and(|transmit| transmit.is_grouped());
        if staged >= most || inside.stack.has_blocked() || is_grouped() {
            inside.ring();
        }
    }

    /// Sees to it that whoever waits for room is told. Behind the doorbell, as the contract has it; if there is room
    /// already, the interrupt is raised now, and the NAPI scheduled.
    #[inline]
    pub(super) fn wait_for_room(&self, inside: &Inside) {
        let waits = inside.waits_for_room();
        if waits != self.blocked.load(Ordering::Relaxed) {
            self.blocked.store(waits, Ordering::Relaxed);
        }
        if waits {
            inside.sending.room.unmask();
        }
    }
}
