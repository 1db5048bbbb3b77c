//! One façade over the atomics of the host's protocols: the code under test does not know whether loom checks it.

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    hint::spin_loop,
    panic::catch_unwind,
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
        mpsc,
    },
    thread::{self, yield_now},
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
        mpsc,
    },
    thread::{self, yield_now},
};
#[cfg(loom)]
pub(crate) use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A panic is what a model fails with: it is not caught.
#[cfg(loom)]
pub(crate) fn catch_unwind<R>(call: impl FnOnce() -> R) -> std::thread::Result<R> {
    Ok(call())
}

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
    /// A time that is out is no reason to wake up: what is shown does not count on it.
    pub(crate) fn wait_for(&self, expected: u32, _timeout: Option<&rustix::event::Timespec>) {
        self.wait(expected);
    }

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

/// As the standard library has it. Loom's own knows no thread that reads twice at a time.
#[cfg(loom)]
mod rwlock {
    use std::sync::{LockResult, TryLockError, TryLockResult};

    use super::{AtomicU32, Ordering, yield_now};

    const WRITER: u32 = 1 << 31;

    pub(crate) struct RwLock<T> {
        /// How many read, or that somebody writes.
        word: AtomicU32,
        /// Never waited for.
        value: std::sync::RwLock<T>,
    }

    /// The word is given back after the value.
    pub(crate) struct Guard<'a, G>(Option<G>, &'a AtomicU32, u32);
    pub(crate) type RwLockReadGuard<'a, T> = Guard<'a, std::sync::RwLockReadGuard<'a, T>>;
    pub(crate) type RwLockWriteGuard<'a, T> = Guard<'a, std::sync::RwLockWriteGuard<'a, T>>;

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock { word: AtomicU32::new(0), value: std::sync::RwLock::new(value) }
        }

        pub(crate) fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
            while self.word.fetch_add(1, Ordering::Acquire) & WRITER != 0 {
                self.word.fetch_sub(1, Ordering::Relaxed);
                yield_now();
            }
            Ok(Guard(self.value.try_read().ok(), &self.word, 1))
        }

        pub(crate) fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
            match self.word.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => Ok(Guard(self.value.try_write().ok(), &self.word, WRITER)),
                Err(_) => Err(TryLockError::WouldBlock),
            }
        }

        pub(crate) fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
            loop {
                match self.try_write() {
                    Ok(guard) => return Ok(guard),
                    Err(_) => yield_now(),
                }
            }
        }
    }

    impl<G: std::ops::Deref> std::ops::Deref for Guard<'_, G> {
        type Target = G::Target;

        fn deref(&self) -> &G::Target {
            self.0.as_deref().expect("the word excludes all others")
        }
    }

    impl<G: std::ops::DerefMut> std::ops::DerefMut for Guard<'_, G> {
        fn deref_mut(&mut self) -> &mut G::Target {
            self.0.as_deref_mut().expect("the word excludes all others")
        }
    }

    impl<G> Drop for Guard<'_, G> {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.fetch_sub(self.2, Ordering::Release);
        }
    }
}
