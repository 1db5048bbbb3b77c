//! One façade over the atomics of the host's protocols: the code under test does not know whether loom checks it.

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
};

/// Lets others run before the caller looks again at what they have.
pub(crate) fn a_short_while() {
    #[cfg(not(loom))]
    std::thread::sleep(std::time::Duration::from_micros(50));
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// A word that threads sleep on.
#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    queue: Mutex<()>,
    #[cfg(loom)]
    woken: loom::sync::Condvar,
}

impl Futex {
    pub(crate) fn new(value: u32) -> Futex {
        Futex {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            queue: Mutex::new(()),
            #[cfg(loom)]
            woken: loom::sync::Condvar::new(),
        }
    }
}

impl std::ops::Deref for Futex {
    type Target = AtomicU32;
    #[inline]
    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(not(loom))]
impl Futex {
    /// Sleeps while the word is `expected`; may return early.
    pub(crate) fn wait(&self, expected: u32) {
        self.wait_for(expected, None);
    }

    /// As [`Futex::wait`], for at most this long.
    pub(crate) fn wait_for(&self, expected: u32, timeout: Option<&rustix::event::Timespec>) {
        // Every outcome (woken, timed out, changed before, a signal) sends the caller back to look at the word.
        let _ = rustix::thread::futex::wait(&self.word, rustix::thread::futex::Flags::PRIVATE, expected, timeout);
    }

    /// Wakes one sleeper.
    pub(crate) fn wake(&self) {
        // Waking cannot fail on a valid private word.
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::PRIVATE, 1);
    }

    /// Wakes every sleeper.
    pub(crate) fn wake_all(&self) {
        let all = i32::MAX as u32;
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::PRIVATE, all);
    }
}

/// As the kernel does it: the word is looked at under the lock of the queue that the waker takes. A thread that nobody
/// wakes sleeps for ever, and loom reports the deadlock.
#[cfg(loom)]
impl Futex {
    pub(crate) fn wait(&self, expected: u32) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            let _queue = self.woken.wait(queue).unwrap();
        }
    }

    pub(crate) fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_one();
    }

    pub(crate) fn wake_all(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

/// The data behind these locks is moved in and out whole: a panic elsewhere cannot leave it half-written.
pub(crate) fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
