//! The room interrupt on the side that makes room: consume against unmask, with no lost edge and hardly a fence.
//!
//! A *consumer* takes frames off a ring and asks whether somebody waits for the room; a transmitter that found the
//! ring full *unmasks* and asks whether room came in between. That is Dekker's pattern again (`irq.rs`), and with a
//! fence on both sides nothing is lost. But a ring is full seldom, and a fence for each poll would be paid always. So
//! the consumer fences only once for every so many frames, at most the ring's slots:
//!
//! - A transmitter that waits has rung the doorbell for a whole ring of frames and published nothing since. All of them
//!   are consumed some time, because the receive interrupt loses no edge either, so the consumer passes a fence among
//!   them.
//! - Take the consumer's first fence after a consumption that the transmitter, looking after its own fence, did not
//!   see. Of the two fences the transmitter's was the earlier then, so the consumer's look at the line finds it armed.
//!
//! Between fences the consumer looks all the same, with one relaxed load: the line is nearly always seen at once.

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

use crate::irq::Vector;

/// What the consumer of one ring keeps.
#[derive(Debug)]
pub(crate) struct Consumption {
    /// Frames that were consumed since the last fence.
    unfenced: usize,
    /// Frames after which a fence is due.
    fence_after: usize,
}

impl Consumption {
    /// For a ring of `slots` slots.
    pub(crate) fn new(slots: usize) -> Consumption {
        Consumption { unfenced: 0, fence_after: slots.div_ceil(2) }
    }

    /// To be called after the consumption of `count` frames was made visible. `true`: somebody waits on `line`, and
    /// the caller raises it if there is room and [`Vector::take`] gives it the right to.
    #[inline]
    #[must_use]
    pub(crate) fn consumed(&mut self, count: usize, line: &Vector) -> bool {
        self.unfenced += count;
        if self.unfenced >= self.fence_after {
            self.unfenced = 0;
            fence(Ordering::SeqCst);
        }
        line.is_armed()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    const SLOTS: u64 = 2;

    /// A full ring of two slots, and who is told that it has room.
    struct World {
        line: Vector,
        published: AtomicU64,
        consumed: AtomicU64,
        raises: AtomicU64,
    }

    impl World {
        fn full() -> Arc<World> {
            Arc::new(World {
                line: Vector::new(),
                published: AtomicU64::new(SLOTS),
                consumed: AtomicU64::new(0),
                raises: AtomicU64::new(0),
            })
        }

        fn has_room(&self) -> bool {
            let consumed = self.consumed.load(Ordering::Acquire);
            self.published.load(Ordering::Acquire) - consumed < SLOTS
        }

        fn raise(&self) {
            self.raises.fetch_add(1, Ordering::Relaxed);
        }

        fn unmask(&self) {
            if self.line.unmask(|| self.has_room()) {
                self.raise();
            }
        }

        /// Consumes what the ring holds, a frame at a time.
        fn consume(&self, state: &mut Consumption, frames: u64) {
            for _ in 0..frames {
                self.consumed.store(self.consumed.load(Ordering::Relaxed) + 1, Ordering::Release);
                if state.consumed(1, &self.line) && self.has_room() && self.line.take() {
                    self.raise();
                }
            }
        }
    }

    fn consumer(world: &Arc<World>, fence_after: usize) -> thread::JoinHandle<()> {
        let world = world.clone();
        thread::spawn(move || world.consume(&mut Consumption { unfenced: 0, fence_after }, SLOTS))
    }

    #[test]
    fn consume_against_unmask_raises_exactly_once() {
        // With a fence for each frame, and with one for the whole ring.
        for fence_after in 1..=SLOTS as usize {
            loom::model(move || {
                let world = World::full();
                let consumer = consumer(&world, fence_after);
                world.unmask();
                consumer.join().unwrap();
                assert_eq!(world.raises.load(Ordering::Relaxed), 1);
            });
        }
    }

    /// A fence that comes more seldom than the ring is consumed comes too late.
    #[test]
    #[should_panic]
    fn a_fence_for_more_than_a_ring_loses_an_edge() {
        loom::model(|| {
            let world = World::full();
            let consumer = consumer(&world, SLOTS as usize + 1);
            world.unmask();
            consumer.join().unwrap();
            assert_eq!(world.raises.load(Ordering::Relaxed), 1);
        });
    }

    /// The transmitter goes on after the raise, and waits again: every wait ends, though the count of frames since
    /// the last fence goes on where it was.
    #[test]
    fn a_second_wait_is_answered_too() {
        loom::model(|| {
            let world = World::full();
            let first = {
                let world = world.clone();
                thread::spawn(move || {
                    let mut state = Consumption { unfenced: 0, fence_after: SLOTS as usize };
                    world.consume(&mut state, 1);
                    state
                })
            };
            world.unmask();
            let mut state = first.join().unwrap();
            let mut waits = 1;
            if world.raises.load(Ordering::Relaxed) == 1 {
                // The room that it was told of is used up at once.
                world.published.store(world.consumed.load(Ordering::Relaxed) + SLOTS, Ordering::Release);
                waits = 2;
            }
            let left = world.published.load(Ordering::Relaxed) - world.consumed.load(Ordering::Relaxed);
            let second = {
                let world = world.clone();
                thread::spawn(move || world.consume(&mut state, left))
            };
            if waits == 2 {
                world.unmask();
            }
            second.join().unwrap();
            assert_eq!(world.raises.load(Ordering::Relaxed), waits);
        });
    }
}
