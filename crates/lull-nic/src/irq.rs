//! The interrupt protocol: publish against unmask, and moderation, with no lost edge.
//!
//! Two sides race. A *publisher* makes work visible and asks whether to raise; the poller, once it found the ring
//! empty, *unmasks* and asks whether work came in between. Each side writes its own word and then reads the other's:
//! the pattern of Dekker's algorithm. With release and acquire alone both may read the old value (each store still in
//! its core's store buffer), and the frame waits for ever behind an armed line. A sequentially consistent fence
//! between the write and the read on *both* sides excludes that: the fences are totally ordered, and whoever is
//! second reads what the first wrote. The swap of `armed` then lets exactly one of them raise.
//!
//! This file uses nothing but atomics, so that `loom` can explore it whole: see the tests at the end.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// What the publisher owes after it made frames visible.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// Nothing: the line is masked, and the poller will look.
    Quiet,
    /// Call the sink.
    Raise,
    /// Moderation holds the interrupt back until its deadline. `fresh`: the deadline was set just now, so whoever
    /// keeps the deadlines must hear of it.
    Held {
        /// The deadline is new.
        fresh: bool,
    },
}

/// The state of one interrupt vector: armed or masked, moderation, and the moderation deadline.
#[derive(Debug)]
pub(crate) struct Vector {
    armed: AtomicBool,
    /// `rx_usecs << 32 | rx_frames`; 0: no moderation.
    moderation: AtomicU64,
    /// When the held interrupt is due, in nanoseconds of the device's clock; 0: none is held.
    due_ns: AtomicU64,
}

/// Packs a moderation setting into the word that [`Vector`] keeps; one frame is the same as no moderation.
pub(crate) fn moderation_word(rx_usecs: u32, rx_frames: u32) -> u64 {
    if rx_usecs == 0 || rx_frames == 1 { 0 } else { u64::from(rx_usecs) << 32 | u64::from(rx_frames) }
}

impl Vector {
    /// A masked vector without moderation.
    pub(crate) fn new() -> Vector {
        Vector { armed: AtomicBool::new(false), moderation: AtomicU64::new(0), due_ns: AtomicU64::new(0) }
    }

    /// Prevents further raises.
    #[inline]
    pub(crate) fn mask(&self) {
        // The word is written only when it changes, since publishers read its cache line.
        if self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::Release);
        }
    }

    /// Whether a raise would go through. A hint, unless a fence stands before it (`room.rs`).
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Arms the vector; `true`: work was pending, and the caller raises now. Moderation does not hold this one back:
    /// the poller has just said that it is done, and work already there is not the first of a batch.
    #[must_use]
    pub(crate) fn unmask(&self, pending: impl FnOnce() -> bool) -> bool {
        // Release, for whoever takes the line acquires what the poller did before.
        self.armed.store(true, Ordering::Release);
        // Dekker, poller's side (see the head of this file).
        fence(Ordering::SeqCst);
        pending() && self.take()
    }

    /// To be called after work was made visible. One fence and one load when the line is masked.
    #[inline]
    pub(crate) fn published(&self, pending_frames: impl FnOnce() -> u64, now_ns: impl FnOnce() -> u64) -> Owed {
        // Dekker, publisher's side.
        fence(Ordering::SeqCst);
        if !self.armed.load(Ordering::Relaxed) {
            return Owed::Quiet;
        }
        let moderation = self.moderation.load(Ordering::Relaxed);
        if moderation == 0 {
            return self.raise_or_quiet();
        }
        self.moderate(moderation, pending_frames, now_ns)
    }

    #[cold]
    fn moderate(&self, moderation: u64, pending_frames: impl FnOnce() -> u64, now_ns: impl FnOnce() -> u64) -> Owed {
        let rx_frames = moderation & 0xffff_ffff;
        if rx_frames != 0 && pending_frames() >= rx_frames {
            return self.raise_or_quiet();
        }
        // A publisher that finds a deadline leaves its frames to whoever takes that deadline. The taker looks for work
        // only after a fence behind the taking (`expire`, `take`), which is Dekker's pattern again.
        if self.due_ns.load(Ordering::Relaxed) != 0 {
            return Owed::Held { fresh: false };
        }
        let due_ns = now_ns() + (moderation >> 32) * 1000;
        let fresh = self.due_ns.compare_exchange(0, due_ns.max(1), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Owed::Held { fresh }
    }

    /// The deadline of the held interrupt, 0 if none is held.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Acquire)
    }

    /// Ends the hold if its deadline has passed; `true`: the caller raises.
    #[must_use]
    pub(crate) fn expire(&self, now_ns: u64, pending: impl FnOnce() -> bool) -> bool {
        let due_ns = self.due_ns();
        if due_ns == 0 || due_ns > now_ns {
            return false;
        }
        if self.due_ns.compare_exchange(due_ns, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        fence(Ordering::SeqCst);
        // Frames that a busy poller took meanwhile need no interrupt.
        pending() && self.take()
    }

    /// Changes the moderation; `true`: the caller raises, for frames that the former setting held back. A publisher
    /// that still saw the former setting published before the fence, so `pending` sees its frame.
    #[must_use]
    pub(crate) fn set_moderation(&self, word: u64, pending: impl FnOnce() -> bool) -> bool {
        self.moderation.store(word, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        pending() && self.take()
    }

    /// Takes the right to raise; masks the line. The held deadline ends here, before the sink is called, so frames
    /// left to it are covered by this raise.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        if !self.armed.swap(false, Ordering::AcqRel) {
            return false;
        }
        if self.due_ns.load(Ordering::Relaxed) != 0 {
            self.due_ns.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        true
    }

    #[inline]
    fn raise_or_quiet(&self) -> Owed {
        if self.take() { Owed::Raise } else { Owed::Quiet }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_raise_masks_until_unmasked() {
        let vector = Vector::new();
        assert_eq!(vector.published(|| 1, || 0), Owed::Quiet);
        assert!(!vector.unmask(|| false));
        assert_eq!(vector.published(|| 1, || 0), Owed::Raise);
        assert_eq!(vector.published(|| 2, || 0), Owed::Quiet);
        assert!(vector.unmask(|| true));
        assert!(!vector.take(), "the raise masked the line");
    }

    #[test]
    fn moderation_holds_until_frames_or_deadline() {
        let vector = Vector::new();
        assert!(!vector.set_moderation(moderation_word(10, 3), || false));
        assert!(!vector.unmask(|| false));
        assert_eq!(vector.published(|| 1, || 5), Owed::Held { fresh: true });
        assert_eq!(vector.published(|| 2, || 6), Owed::Held { fresh: false });
        assert!(!vector.expire(10_004, || true));
        assert_eq!(vector.published(|| 3, || 7), Owed::Raise);
        assert_eq!(vector.due_ns(), 0);
        assert!(!vector.unmask(|| false));
        assert_eq!(vector.published(|| 1, || 5), Owed::Held { fresh: true });
        assert!(vector.expire(10_005, || true));
        assert!(!vector.expire(10_005, || true));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct World {
        vector: Vector,
        published: AtomicU64,
        raises: AtomicU64,
    }

    impl World {
        fn new(word: u64) -> Arc<World> {
            let world = World { vector: Vector::new(), published: AtomicU64::new(0), raises: AtomicU64::new(0) };
            let _ = world.vector.set_moderation(word, || false);
            Arc::new(world)
        }

        fn raise(&self) {
            self.raises.fetch_add(1, Ordering::Relaxed);
        }

        fn raises(&self) -> u64 {
            self.raises.load(Ordering::Relaxed)
        }

        fn publish(&self) -> Owed {
            self.published.fetch_add(1, Ordering::Release);
            let owed = self.vector.published(|| self.published.load(Ordering::Relaxed), || 1);
            if owed == Owed::Raise {
                self.raise();
            }
            owed
        }

        fn pending(&self) -> bool {
            self.published.load(Ordering::Acquire) > 0
        }

        fn unmask(&self) {
            if self.vector.unmask(|| self.pending()) {
                self.raise();
            }
        }
    }

    #[test]
    fn publish_against_unmask_raises_exactly_once() {
        loom::model(|| {
            let world = World::new(0);
            let publisher = {
                let world = world.clone();
                thread::spawn(move || {
                    let _ = world.publish();
                })
            };
            world.unmask();
            publisher.join().unwrap();
            assert_eq!(world.raises(), 1);
        });
    }

    #[test]
    fn two_publishers_against_unmask_raise_exactly_once() {
        loom::model(|| {
            let world = World::new(0);
            let publishers: Vec<_> = (0..2)
                .map(|_| {
                    let world = world.clone();
                    thread::spawn(move || {
                        let _ = world.publish();
                    })
                })
                .collect();
            world.unmask();
            for publisher in publishers {
                publisher.join().unwrap();
            }
            assert_eq!(world.raises(), 1);
        });
    }

    /// The protocol without its fences loses an edge in the model: the model can see the bug it guards against.
    #[test]
    #[should_panic]
    fn without_fences_an_edge_is_lost() {
        loom::model(|| {
            let armed = Arc::new(AtomicBool::new(false));
            let published = Arc::new(AtomicU64::new(0));
            let publisher = {
                let (armed, published) = (armed.clone(), published.clone());
                thread::spawn(move || {
                    published.store(1, Ordering::Release);
                    armed.load(Ordering::Acquire)
                })
            };
            armed.store(true, Ordering::Release);
            let poller_raises = published.load(Ordering::Acquire) > 0;
            assert!(publisher.join().unwrap() || poller_raises);
        });
    }

    /// A moderated publisher against the deadline of an earlier frame: either that deadline's taker raises for both,
    /// or a deadline stays behind.
    #[test]
    fn publish_against_expiry_leaves_a_raise_or_a_deadline() {
        loom::model(|| {
            let world = World::new(moderation_word(1, 0));
            // A deadline whose frame a busy poller has already taken.
            world.unmask();
            let _ = world.vector.published(|| 1, || 1);
            let publisher = {
                let world = world.clone();
                thread::spawn(move || {
                    let _ = world.publish();
                })
            };
            if world.vector.expire(u64::MAX, || world.pending()) {
                world.raise();
            }
            publisher.join().unwrap();
            assert!(world.raises() == 1 || world.vector.due_ns() != 0);
        });
    }

    #[test]
    fn publish_against_the_end_of_moderation_raises() {
        loom::model(|| {
            let world = World::new(moderation_word(1, 0));
            world.unmask();
            let publisher = {
                let world = world.clone();
                thread::spawn(move || {
                    let _ = world.publish();
                })
            };
            if world.vector.set_moderation(0, || world.pending()) {
                world.raise();
            }
            publisher.join().unwrap();
            assert_eq!(world.raises(), 1);
        });
    }

    /// A moderated publisher against a raise by another (frames reached): its frame is visible to whoever handles the
    /// raise, or a deadline stays behind.
    #[test]
    fn publish_against_another_raise_is_covered() {
        loom::model(|| {
            let world = World::new(moderation_word(1, 0));
            world.unmask();
            let _ = world.vector.published(|| 1, || 1);
            let publisher = {
                let world = world.clone();
                thread::spawn(move || {
                    let _ = world.publish();
                })
            };
            // The raiser takes the line; the interrupt's handler then polls what it sees and unmasks.
            let mut covered = false;
            if world.vector.take() {
                covered = world.pending();
                world.unmask();
            }
            publisher.join().unwrap();
            assert!(covered || world.raises() >= 1 || world.vector.due_ns() != 0);
        });
    }
}
