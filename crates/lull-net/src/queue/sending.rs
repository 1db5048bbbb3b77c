//! Sending: when the doorbell rings, what a cork holds back, and which sockets wait for room in the ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_host::Delivery;
use lull_nic::{Doorbell, Frame, IrqLine, IrqSink, TxQueue};

use super::{Inside, Queue};
use crate::shard::{SHARED_FRAMES_MAX, Stack};
use crate::transmit::{Ring, TxSide};

/// How many frames a cork holds back before the doorbell rings nevertheless. It bounds the latency that batching adds.
pub const CORKED_FRAMES_MAX: u32 = 8;

/// The ring to which a shard sends, and how far it has sent.
pub(super) struct Sending {
    pub(super) tx: Box<dyn TxQueue>,
    /// The room interrupt of `tx`. It schedules the NAPI, whose poll serves the sockets that wait.
    pub(super) room: Arc<dyn IrqLine>,
    /// The transmit queue, if a queueing discipline has the ring; `tx` is its intake then.
    pub(super) transmit: Option<Arc<TxSide>>,
    /// Whether frames were pushed into the intake since the lock was taken.
    kick: bool,
    /// For how many of the stack's frames the doorbell has rung.
    rung_for: u64,
    /// Whether the last doorbell left frames on the ring. It rings again once there is room.
    unsent: bool,
}

impl Sending {
    pub(super) fn new(tx: Box<dyn TxQueue>, room: Arc<dyn IrqLine>) -> Sending {
        Sending { tx, room, transmit: None, kick: false, rung_for: 0, unsent: false }
    }

    /// How many frames there are for which the doorbell has not rung.
    #[inline]
    pub(super) fn staged(&self, stack: &Stack) -> u64 {
        stack.tx_frames() - self.rung_for
    }

    /// Gives up what was staged, and rings no doorbell for it, as the device may be what panicked.
    pub(super) fn give_up(&mut self, stack: &Stack) {
        (self.rung_for, self.unsent) = (stack.tx_frames(), false);
    }

    /// The transmit queue that has to be told of frames once the lock is given back.
    #[inline]
    pub(super) fn take_kick(&mut self) -> Option<Arc<TxSide>> {
        if !std::mem::take(&mut self.kick) {
            return None;
        }
        self.transmit.clone()
    }
}

impl Inside {
    /// Whether somebody waits for the device: sockets for room in its ring, or frames on the ring for another doorbell.
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

    /// Has the shard send to another ring from now on. Returns the former one, whose doorbell has rung.
    pub(crate) fn swap_ring(&mut self, ring: Ring, room: Arc<dyn IrqLine>, transmit: Option<Arc<TxSide>>) -> Ring {
        self.ring();
        let sending = &mut self.sending;
        (sending.room, sending.transmit) = (room, transmit);
        let tx = std::mem::replace(&mut sending.tx, ring.tx);
        Ring { tx, unsent: std::mem::replace(&mut sending.unsent, ring.unsent) }
    }

    /// Connects the room interrupt of what the shard sends to. An interrupt that went elsewhere before is lost, so the
    /// caller looks for room.
    pub(crate) fn hear_of_room(&self, sink: Arc<dyn IrqSink>) {
        self.sending.room.connect(sink);
    }

    /// Puts up to `at_most` of `frames` on the ring, as far as there is room, and rings for them. Returns how many it
    /// put there.
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

    /// Uses room that may have come: it reaps completions first, and then serves the ring's own frames, and then the
    /// sockets that wait, in their order.
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

    /// Ends a cork. The doorbell rings for what it held back.
    pub(crate) fn uncork(&self, host: &Delivery) {
        self.corks.fetch_sub(1, Ordering::Relaxed);
        self.with(host, |_, _| ());
    }

    /// Sends what connections hold back.
    pub(crate) fn let_go(&self, host: &Delivery) {
        self.with(host, |inside, now_ns| inside.call(now_ns, |stack, io| stack.let_go_of_all(io)));
    }

    /// Called when the NAPI was enabled. A room interrupt that came while it was disabled is lost, a reset has masked
    /// the line, and nobody was told of what other shards have passed on.
    pub(crate) fn look_for_room(&self, host: &Delivery) {
        self.inbox().look_again();
        self.with(host, |inside, now_ns| inside.use_room(now_ns));
    }

    /// The room interrupt of what the shard sends to.
    pub(crate) fn room(&self, host: &Delivery) -> Arc<dyn IrqLine> {
        self.with(host, |inside, _| inside.sending.room.clone())
    }

    /// The transmit queue that sends for the shard, if it has a queueing discipline.
    pub(crate) fn transmit(&self, host: &Delivery) -> Option<Arc<TxSide>> {
        self.with(host, |inside, _| inside.sending.transmit.clone())
    }

    /// Rings for what was staged, unless a cork holds it back, or the calling thread's batch does.
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
        // A full ring ends `xmit_more` as well, as room comes only after a doorbell. A group holds doorbells back by
        // itself.
        let is_grouped = || inside.sending.transmit.as_ref().is_some_and(|transmit| transmit.is_grouped());
        if staged >= most || inside.stack.has_blocked() || is_grouped() {
            inside.ring();
        }
    }

    /// Makes sure that whoever waits for room is told. This comes after the doorbell, as the contract demands; if there
    /// is room already, the interrupt is raised at once and the NAPI is scheduled.
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
