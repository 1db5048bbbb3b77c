//! One façade over the atomics of the seat and the shard lock: the code under test does not know whether loom checks it.

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

/// Sleeps while `word` is `expected`; may return early.
#[cfg(not(loom))]
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    // Every outcome (woken, changed before, a signal) sends the caller back to look at the word.
    let _ = rustix::thread::futex::wait(word, rustix::thread::futex::Flags::PRIVATE, expected, None);
}

/// Wakes one sleeper on `word`.
#[cfg(not(loom))]
pub(crate) fn futex_wake(word: &AtomicU32) {
    // Waking cannot fail on a valid private word.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::PRIVATE, 1);
}

#[cfg(loom)]
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    while word.load(Ordering::Acquire) == expected {
        loom::thread::yield_now();
    }
}

#[cfg(loom)]
pub(crate) fn futex_wake(_word: &AtomicU32) {}
