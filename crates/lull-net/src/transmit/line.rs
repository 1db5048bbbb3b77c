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
    /// The progress that the shard knew of when it first found no room since it last armed the interrupt: a sender that
    /// looked before another one may have been made room for in between. Written under the shard's lock.
    seen: AtomicU64,
    /// The shard has found no room since it last armed the interrupt. Written under the shard's lock.
    found_none: AtomicBool,
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

    /// What `look` says of the room, with a note of the moment if it is the first time that there is none.
    #[inline]
    pub(super) fn look(&self, look: impl FnOnce() -> usize) -> usize {
        let progress = self.progress.load(Ordering::SeqCst);
        let room = look();
        if room == 0 && !self.found_none.swap(true, Ordering::Relaxed) {
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
        self.found_none.store(false, Ordering::Relaxed);
        if self.progress.load(Ordering::SeqCst) != self.seen.load(Ordering::Relaxed) {
            self.fire();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Raised(AtomicU64);

    impl IrqSink for Raised {
        fn raise(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn room_that_was_made_for_one_sender_before_another_found_none_is_told() {
        let (room, raised) = (IntakeRoom::default(), Arc::new(Raised::default()));
        room.connect(raised.clone());
        let times = || raised.0.load(Ordering::Relaxed);
        // Under one hold of the shard's lock: the first sender finds its own limit reached, its frames leave, and the second
        // sender finds its limit reached.
        assert_eq!(room.look(|| 0), 0);
        room.made();
        assert_eq!(room.look(|| 0), 0);
        room.unmask();
        assert_eq!(times(), 1, "the first sender has room");

        // Both look again, in the poll that this brings, and nothing happens meanwhile.
        assert_eq!((room.look(|| 0), room.look(|| 0)), (0, 0));
        room.unmask();
        assert_eq!(times(), 1, "there is nothing to tell");
        room.made();
        assert_eq!(times(), 2);
        room.made();
        assert_eq!(times(), 2, "it was told, and nobody has armed it again");
    }
}
