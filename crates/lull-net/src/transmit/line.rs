//! The two room interrupts of a transmit queue with a discipline: the ring's, for its own NAPI, and the intake's, for the shard.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lull_nic::{IrqLine, IrqSink};

use super::TxSide;

/// The interrupt of the transmit queue's NAPI: the ring's room interrupt, unmasked only while frames wait for room. (Unmasked
/// with room it is raised at once.)
pub(crate) struct RingRoom {
    side: Weak<TxSide>,
    ring: Arc<dyn IrqLine>,
}

impl RingRoom {
    pub(crate) fn new(side: &Arc<TxSide>) -> RingRoom {
        RingRoom { side: Arc::downgrade(side), ring: side.ring_room.clone() }
    }
}

impl IrqLine for RingRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.ring.connect(sink);
    }

    fn mask(&self) {
        self.ring.mask();
    }

    fn unmask(&self) {
        if self.side.upgrade().is_some_and(|side| side.blocked.load(Ordering::Relaxed)) {
            self.ring.unmask();
        }
    }

    fn pending(&self) -> Option<bool> {
        self.side.upgrade().map(|side| side.pending())
    }
}

/// The intake's room interrupt (rule 4 of the device contract): armed by the shard when a sender found no room, raised by
/// whoever made some.
///
/// Whoever arms it does so before it looks whether there was progress since it found no room, and whoever makes progress counts
/// it before it looks whether somebody waits; all of it sequentially consistent.
#[derive(Default)]
pub(crate) struct IntakeRoom {
    armed: AtomicBool,
    progress: AtomicU64,
    /// The progress that the shard knew of when it last found no room. Written under the shard's lock.
    seen: AtomicU64,
    sink: OnceLock<Arc<dyn IrqSink>>,
}

impl IntakeRoom {
    /// Frames left the intake, or what a sender has in the queue became less.
    #[inline]
    pub(super) fn made(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) {
            self.fire();
        }
    }

    /// What `look` says of the room, with a note of the moment if it is none.
    #[inline]
    pub(super) fn look(&self, look: impl FnOnce() -> usize) -> usize {
        let progress = self.progress.load(Ordering::SeqCst);
        let room = look();
        if room == 0 {
            self.seen.store(progress, Ordering::Relaxed);
        }
        room
    }

    fn fire(&self) {
        if self.armed.swap(false, Ordering::SeqCst)
            && let Some(sink) = self.sink.get()
        {
            sink.raise();
        }
    }
}

impl IrqLine for IntakeRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        // It has one shard for as long as it is.
        let _ = self.sink.set(sink);
    }

    fn mask(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    fn unmask(&self) {
        self.armed.store(true, Ordering::SeqCst);
        if self.progress.load(Ordering::SeqCst) != self.seen.load(Ordering::Relaxed) {
            self.fire();
        }
    }
}
