//! The indices of a ring that is shared with the kernel: one side produces, the other consumes (`net/xdp/xsk_queue.h`).
//!
//! Both indices count for ever and wrap around; a ring of `size` slots is full when they are `size` apart. Who produces
//! writes the slots and then publishes its index with release; who consumes reads that index with acquire before it
//! reads the slots, reads them, and releases its own index, which the producer acquires before it writes them again.
//!
//! This file uses nothing but atomics, so that `loom` can explore it whole: see the tests at the end.

#[cfg(loom)]
pub(super) use loom::sync::atomic::AtomicU32;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The side of ours that produces: transmit and fill ring.
#[derive(Debug)]
pub(super) struct Producer {
    size: u32,
    /// The next slot to write.
    next: u32,
    published: u32,
    /// The consumer's index when it was last looked at.
    consumed: u32,
}

impl Producer {
    /// Of an empty ring of `size` slots, a power of two.
    pub(super) fn new(size: u32) -> Producer {
        debug_assert!(size.is_power_of_two());
        Producer { size, next: 0, published: 0, consumed: 0 }
    }

    /// The next free slot, to be written before [`Producer::publish`]; `None`: the ring is full.
    #[inline]
    pub(super) fn claim(&mut self, consumer: &AtomicU32) -> Option<u32> {
        if self.next.wrapping_sub(self.consumed) == self.size {
            // Acquire: the consumer has read the slots that it let go of.
            self.consumed = consumer.load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) == self.size {
                return None;
            }
        }
        let slot = self.next & (self.size - 1);
        self.next = self.next.wrapping_add(1);
        Some(slot)
    }

    /// The consumer may read all slots that were claimed. Returns how many it had not heard of.
    #[inline]
    pub(super) fn publish(&mut self, producer: &AtomicU32) -> u32 {
        let new = self.next.wrapping_sub(self.published);
        if new > 0 {
            producer.store(self.next, Ordering::Release);
            self.published = self.next;
        }
        new
    }

    /// Takes back the slots that were claimed and not published, and how many those were.
    pub(super) fn take_back(&mut self) -> u32 {
        let unpublished = self.next.wrapping_sub(self.published);
        self.next = self.published;
        unpublished
    }

    /// Slots that can be claimed.
    #[inline]
    pub(super) fn room(&self, consumer: &AtomicU32) -> u32 {
        room(self.size, self.next, consumer)
    }

    /// The index that the next claimed slot has.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The consumer's index when it was last looked at.
    pub(super) fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Published slots that the consumer has not let go of.
    #[inline]
    pub(super) fn left(&mut self, consumer: &AtomicU32) -> u32 {
        self.consumed = consumer.load(Ordering::Acquire);
        self.published.wrapping_sub(self.consumed)
    }
}

/// Whether the last doorbell left slots on a transmit ring, and up to where the kernel had consumed it: what whoever waits for
/// room goes by.
#[derive(Debug)]
pub(super) struct Stuck {
    /// An index of the consumer's. Above `u32`: nothing was left.
    at: AtomicU64,
}

const NOT_STUCK: u64 = u64::MAX;

impl Stuck {
    pub(super) fn new() -> Stuck {
        Stuck { at: AtomicU64::new(NOT_STUCK) }
    }

    /// Notes that slots were left, as this index of the consumer's showed ([`Producer::consumed`]), or that none were.
    /// It must not be a later index: others may have made the kernel send the rest meanwhile, and somebody would wait
    /// for room that is there.
    pub(super) fn set(&self, consumed: Option<u32>) {
        self.at.store(consumed.map_or(NOT_STUCK, u64::from), Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.at.load(Ordering::Acquire) != NOT_STUCK
    }

    /// Whether the kernel has consumed more since slots were left, if some were.
    pub(super) fn gets_on(&self, consumer: &AtomicU32) -> Option<bool> {
        let at = self.at.load(Ordering::Acquire);
        (at != NOT_STUCK).then(|| at != u64::from(consumer.load(Ordering::Acquire)))
    }
}

/// Whether the kernel wants to be woken for what was just published (need_wakeup). A driver that stops looking sets the
/// flag and looks at the ring once more; whoever publishes looks at the flag: Dekker's pattern, with a fence on both
/// sides.
#[inline]
pub(super) fn wants_wakeup(flags: &AtomicU32, bit: u32) -> bool {
    fence(Ordering::SeqCst);
    flags.load(Ordering::Relaxed) & bit != 0
}

/// The side of ours that consumes: receive and completion ring.
#[derive(Debug)]
pub(super) struct Consumer {
    size: u32,
    /// The next slot to read.
    next: u32,
    released: u32,
    /// The producer's index when it was last looked at.
    produced: u32,
}

impl Consumer {
    /// Of an empty ring of `size` slots, a power of two.
    pub(super) fn new(size: u32) -> Consumer {
        debug_assert!(size.is_power_of_two());
        Consumer { size, next: 0, released: 0, produced: 0 }
    }

    /// The next slot to read; `None`: the ring is empty.
    #[inline]
    pub(super) fn take(&mut self, producer: &AtomicU32) -> Option<u32> {
        if self.next == self.produced {
            self.produced = producer.load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        let slot = self.next & (self.size - 1);
        self.next = self.next.wrapping_add(1);
        Some(slot)
    }

    /// The producer may write the slots that were taken again.
    #[inline]
    pub(super) fn release(&mut self, consumer: &AtomicU32) {
        if self.next != self.released {
            consumer.store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }
}

/// Slots of a ring that can be claimed, for any thread: who produces has claimed those before `next`.
#[inline]
pub(super) fn room(size: u32, next: u32, consumer: &AtomicU32) -> u32 {
    // Acquire: the consumer has read the slots that it let go of.
    size.saturating_sub(next.wrapping_sub(consumer.load(Ordering::Acquire)))
}

/// Whether a ring holds anything, for a thread that is neither of its sides. A hint.
#[inline]
pub(super) fn holds_any(producer: &AtomicU32, consumer: &AtomicU32) -> bool {
    producer.load(Ordering::Relaxed) != consumer.load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn indices_wrap_around_and_a_full_ring_refuses() {
        const START: u32 = u32::MAX - 2;
        let (shared_producer, shared_consumer) = (AtomicU32::new(START), AtomicU32::new(START));
        let mut producer = Producer { size: 4, next: START, published: START, consumed: START };
        let mut consumer = Consumer { size: 4, next: START, released: START, produced: START };
        let claimed: Vec<_> = (0..4).filter_map(|_| producer.claim(&shared_consumer)).collect();
        assert_eq!((claimed, producer.room(&shared_consumer)), (vec![1, 2, 3, 0], 0));
        assert_eq!(producer.claim(&shared_consumer), None);
        assert_eq!(consumer.take(&shared_producer), None, "nothing is published");
        assert_eq!((producer.publish(&shared_producer), producer.publish(&shared_producer)), (4, 0));
        assert_eq!(consumer.take(&shared_producer), Some(1));
        assert_eq!((producer.left(&shared_consumer), producer.claim(&shared_consumer)), (4, None));
        consumer.release(&shared_consumer);
        assert_eq!((producer.left(&shared_consumer), producer.room(&shared_consumer)), (3, 1));
        assert_eq!((producer.claim(&shared_consumer), producer.room(&shared_consumer)), (Some(1), 0));
        assert_eq!((producer.take_back(), producer.publish(&shared_producer)), (1, 0));
        assert_eq!(producer.claim(&shared_consumer), Some(1), "the slot that was taken back");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const SIZE: u32 = 2;
    const BIT: u32 = 1;

    /// A ring of two slots. The cells panic if both sides touch one at a time.
    struct World {
        producer: AtomicU32,
        consumer: AtomicU32,
        flags: AtomicU32,
        slots: [UnsafeCell<u32>; SIZE as usize],
    }

    impl World {
        fn new() -> Arc<World> {
            Arc::new(World {
                producer: AtomicU32::new(0),
                consumer: AtomicU32::new(0),
                flags: AtomicU32::new(0),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            })
        }

        fn produce(&self, producer: &mut Producer, value: u32) -> bool {
            let Some(slot) = producer.claim(&self.consumer) else { return false };
            // SAFETY: the slot is the producer's; loom checks exactly that.
            self.slots[slot as usize].with_mut(|at| unsafe { *at = value });
            producer.publish(&self.producer);
            true
        }

        fn consume(&self, consumer: &mut Consumer) -> Option<u32> {
            let slot = consumer.take(&self.producer)?;
            // SAFETY: as above, the consumer's.
            let value = self.slots[slot as usize].with(|at| unsafe { *at });
            consumer.release(&self.consumer);
            Some(value)
        }
    }

    /// What is consumed is what was produced, in order, through a ring that is full in between; each slot has one owner
    /// at a time. Either side is the kernel's on some ring, and the kernel's side does what ours does.
    #[test]
    fn a_ring_passes_on_what_was_written() {
        loom::model(|| {
            let world = World::new();
            let other = world.clone();
            let producing = thread::spawn(move || {
                let mut producer = Producer::new(SIZE);
                (1..=3).take_while(|value| other.produce(&mut producer, *value)).count() as u32
            });
            let mut consumer = Consumer::new(SIZE);
            let mut seen: Vec<u32> = (0..3).filter_map(|_| world.consume(&mut consumer)).collect();
            let produced = producing.join().unwrap();
            seen.extend(std::iter::from_fn(|| world.consume(&mut consumer)));
            assert!(produced >= 2 && seen == (1..=produced).collect::<Vec<_>>());
        });
    }

    /// A driver that stops looking sets the flag and looks once more; whoever publishes then looks at the flag. One of
    /// the two sees the other.
    #[test]
    fn a_driver_that_goes_to_sleep_is_woken_or_sees_the_frame() {
        loom::model(|| {
            let world = World::new();
            let other = world.clone();
            let driver = thread::spawn(move || {
                other.flags.store(BIT, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                other.consume(&mut Consumer::new(SIZE)).is_some()
            });
            world.produce(&mut Producer::new(SIZE), 1);
            let woken = wants_wakeup(&world.flags, BIT);
            assert!(driver.join().unwrap() || woken);
        });
    }

    /// A doorbell finds that slots are left while another thread makes the kernel send them. Whoever then waits for room hears
    /// that the kernel has got on.
    #[test]
    fn what_leaves_while_a_doorbell_gives_up_is_no_lost_room() {
        loom::model(|| {
            let world = World::new();
            let stuck = Arc::new(Stuck::new());
            let mut producer = Producer::new(SIZE);
            world.produce(&mut producer, 1);
            let other = world.clone();
            let sending = thread::spawn(move || other.consume(&mut Consumer::new(SIZE)).is_some());
            let left = producer.left(&world.consumer);
            stuck.set((left > 0).then(|| producer.consumed()));
            assert!(sending.join().unwrap(), "the kernel has sent it");
            assert_ne!(stuck.gets_on(&world.consumer), Some(false), "room is waited for that is there");
        });
    }

    /// A thread that is neither side, which asks whether frames wait, disturbs nobody.
    #[test]
    fn a_look_from_outside_is_late_at_worst() {
        loom::model(|| {
            let world = World::new();
            let other = world.clone();
            let looking = thread::spawn(move || holds_any(&other.producer, &other.consumer));
            world.produce(&mut Producer::new(SIZE), 1);
            let _ = looking.join().unwrap();
            assert!(holds_any(&world.producer, &world.consumer));
        });
    }
}
