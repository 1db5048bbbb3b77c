//! The primitives of which the ready list and its like consist, or loom's in their place: the code under test does not
//! know whether loom checks it.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::yield_now,
};

/// A ring of one producer and one consumer.
#[cfg(not(loom))]
pub(crate) mod ring {
    pub(crate) use rtrb::{Consumer, Producer, PushError, RingBuffer};
}

/// The same for loom, which cannot see into the ring of `rtrb`. How far each end has come is written and read relaxed,
/// so that only the code around the ring orders its ends.
#[cfg(loom)]
pub(crate) mod ring {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::{AtomicUsize, Ordering};

    struct Shared<T> {
        slots: usize,
        inside: Mutex<VecDeque<T>>,
        pushed: AtomicUsize,
        popped: AtomicUsize,
    }

    pub(crate) struct Producer<T>(Arc<Shared<T>>);
    pub(crate) struct Consumer<T>(Arc<Shared<T>>);
    pub(crate) struct RingBuffer;

    pub(crate) enum PushError<T> {
        Full(T),
    }

    impl RingBuffer {
        #[allow(clippy::new_ret_no_self)]
        pub(crate) fn new<T>(slots: usize) -> (Producer<T>, Consumer<T>) {
            let (pushed, popped) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let shared = Arc::new(Shared { slots, inside: Mutex::new(VecDeque::new()), pushed, popped });
            (Producer(shared.clone()), Consumer(shared))
        }
    }

    impl<T> Shared<T> {
        fn filled(&self) -> usize {
            self.pushed.load(Ordering::Relaxed) - self.popped.load(Ordering::Relaxed)
        }

        fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
            f(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    impl<T> Producer<T> {
        pub(crate) fn slots(&self) -> usize {
            self.0.slots - self.0.filled()
        }

        pub(crate) fn push(&mut self, value: T) -> Result<(), PushError<T>> {
            if self.slots() == 0 {
                return Err(PushError::Full(value));
            }
            self.0.with(|inside| inside.push_back(value));
            self.0.pushed.store(self.0.pushed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(())
        }
    }

    impl<T> Consumer<T> {
        pub(crate) fn slots(&self) -> usize {
            self.0.filled()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.slots() == 0
        }

        pub(crate) fn pop(&mut self) -> Result<T, ()> {
            if self.is_empty() {
                return Err(());
            }
            let value = self.0.with(VecDeque::pop_front).ok_or(())?;
            self.0.popped.store(self.0.popped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(value)
        }
    }
}
