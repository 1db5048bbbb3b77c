//! The room interrupt of the intake (rule 4 of the device contract), for a shard whose senders found no room. The shard
//! arms it, and whoever makes room raises it.
//!
//! A thread that arms the interrupt does so before it looks whether there was progress since it found no room. A thread
//! that makes progress counts it before it looks whether somebody waits. One of the two has to see the other, as in
//! Dekker's algorithm. Here this holds because both make a read-modify-write of the progress in between: a thread that
//! makes progress second acquires what the arming released, and a thread that arms second finds the progress. A thread
//! that looks for room acquires what was made before the progress that it notes.
//!
//! This file is explored by loom.

use std::sync::{Arc, OnceLock};

use lull_nic::{IrqLine, IrqSink};

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct IntakeRoom {
    armed: AtomicBool,
    progress: AtomicU64,
    /// The progress that the shard knew of when it first found no room since it last armed the interrupt. Room may have
    /// been made for one sender before another one looked. It is written under the shard's lock.
    seen: AtomicU64,
    /// Whether the shard has found no room since it last armed the interrupt. It is written under the shard's lock.
    found_none: AtomicBool,
    sink: OnceLock<Arc<dyn IrqSink>>,
}

impl IntakeRoom {
    /// Called when frames have left the intake, or when a sender has fewer frames in the queue.
    #[inline]
    pub(crate) fn made(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
        if self.armed.load(Ordering::Relaxed) {
            self.fire();
        }
    }

    /// Returns what `look` says of the room, and notes the moment if there is none for the first time.
    #[inline]
    pub(crate) fn look(&self, look: impl FnOnce() -> usize) -> usize {
        let progress = self.progress.load(Ordering::Acquire);
        let room = look();
        if room == 0 && !self.found_none.swap(true, Ordering::Relaxed) {
            self.seen.store(progress, Ordering::Relaxed);
        }
        room
    }

    /// This orders nothing: what the shard looks at next is ordered by the progress.
    fn fire(&self) {
        if self.armed.swap(false, Ordering::Relaxed)
            && let Some(sink) = self.sink.get()
        {
            sink.raise();
        }
    }
}

impl IrqLine for IntakeRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        // The intake belongs to one shard for as long as it exists.
        let _ = self.sink.set(sink);
    }

    fn mask(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    fn unmask(&self) {
        // This is a read-modify-write, as in `fire`, so that a thread that takes an earlier arming late does so before
        // this one, or takes this one.
        self.armed.swap(true, Ordering::Relaxed);
        self.found_none.store(false, Ordering::Relaxed);
        // This adds nothing, and is a read-modify-write nevertheless: the head of this file says why. It need not
        // acquire, because the next look for room does, which finds this progress or a later one.
        if self.progress.fetch_add(0, Ordering::Release) != self.seen.load(Ordering::Relaxed) {
            self.fire();
        }
    }
}

#[cfg(all(test, not(loom)))]
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
        // All of this happens while the shard's lock is held once: the first sender finds its own limit reached, its
        // frames leave, and the second sender finds its limit reached.
        assert_eq!(room.look(|| 0), 0);
        room.made();
        assert_eq!(room.look(|| 0), 0);
        room.unmask();
        assert_eq!(times(), 1, "the first sender has room");

        // Both senders look again, in the poll that this brings, and nothing happens meanwhile.
        assert_eq!((room.look(|| 0), room.look(|| 0)), (0, 0));
        room.unmask();
        assert_eq!(times(), 1, "there is nothing to tell");
        room.made();
        assert_eq!(times(), 2);
        room.made();
        assert_eq!(times(), 2, "it was told, and nobody has armed it again");
    }
}
