//! The lock of a shard: one word with a pending bit.
//!
//! Softirq must not wait for a lock, and nobody may spin on one that a preempted thread may hold. So softirq that
//! finds it held leaves the frames in the device's ring and hands its NAPI ownership to the holder, which polls before it
//! unlocks; anybody else that finds it held sleeps on a futex.
//!
//! ```text
//! 0 → LOCKED → 0                          the fast path, one swap each way
//! LOCKED|WAITERS                          somebody sleeps: unlocking wakes one
//! LOCKED|PARKED                           an ownership waits: unlocking polls it first
//! PARKED                                  the holder panicked: the next one polls
//! ```

#![allow(unsafe_code)]

#[cfg(not(loom))]
use std::ops::Deref;
use std::ops::DerefMut;

use lull_core::Owner;

use crate::sync::{Futex, Mutex, Ordering, UnsafeCell};

const LOCKED: u32 = 1;
const WAITERS: u32 = 2;
const PARKED: u32 = 4;

/// An ownership that softirq handed over, with the CPU that it came from.
#[derive(Debug)]
pub struct Parked {
    /// The ownership.
    pub owner: Owner,
    /// The CPU whose softirq it was: timers go there, and a repoll goes back there.
    pub cpu: u16,
}

/// What a shard's lock protects.
pub trait Shard {
    /// A thread panicked while it changed the value, which may be half-written. Leaves a state on which all later calls
    /// may rely: sockets that fail, and nobody who waits. Called with the lock held.
    fn take_down(&mut self);
}

/// The lock of a shard. Softirq that finds it held hands its NAPI ownership to the holder, who polls before unlocking;
/// anybody else sleeps on a futex.
#[derive(Debug)]
pub struct HandoffLock<T> {
    word: Futex,
    parked: Mutex<Option<Parked>>,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one holder at a time, so sharing the lock only ever moves access to T between threads.
unsafe impl<T: Send> Sync for HandoffLock<T> {}

impl<T: Shard> HandoffLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> HandoffLock<T> {
        HandoffLock { word: Futex::new(0), parked: Mutex::new(None), value: UnsafeCell::new(value) }
    }

    /// Locks, sleeping while somebody else holds it.
    #[inline]
    pub fn lock(&self) -> HandoffGuard<'_, T> {
        if self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        HandoffGuard { lock: self }
    }

    #[cold]
    fn lock_slow(&self) {
        loop {
            let now = self.word.load(Ordering::Relaxed);
            if now & LOCKED == 0 {
                // A thread that slept cannot know whether others still do, so it keeps WAITERS, at the price of one
                // wake-up for nobody.
                let next = now | LOCKED | WAITERS;
                if self.word.compare_exchange(now, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            let next = now | WAITERS;
            if next == now || self.word.compare_exchange(now, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.word.wait(next);
            }
        }
    }

    /// Locks if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<HandoffGuard<'_, T>> {
        // A guard made before the swap has succeeded would unlock for somebody else when it is dropped.
        let locked = self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        locked.then(|| HandoffGuard { lock: self })
    }

    /// Softirq's way to lock: it has the lock, or it leaves the ownership with the holder, who polls before unlocking
    /// (`None`). At most one ownership exists per NAPI and a lock serves one NAPI, so the place is free.
    #[inline]
    pub fn lock_or_park(&self, owner: Owner, cpu: u16) -> Option<(HandoffGuard<'_, T>, Owner)> {
        match self.try_lock() {
            Some(guard) => Some((guard, owner)),
            None => self.park(owner, cpu),
        }
    }

    #[cold]
    fn park(&self, owner: Owner, cpu: u16) -> Option<(HandoffGuard<'_, T>, Owner)> {
        // The ownership is published before the bit that announces it.
        let before = self.parked_slot().replace(Parked { owner, cpu });
        debug_assert!(before.is_none(), "two owners of one NAPI");
        loop {
            let now = self.word.load(Ordering::Acquire);
            if now & LOCKED != 0 {
                let next = now | PARKED;
                if self.word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return None;
                }
            } else if self.word.compare_exchange(now, now | LOCKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // The lock was given back meanwhile. Nobody saw the bit, so we may take the ownership back.
                let parked = self.parked_slot().take();
                let Some(parked) = parked else { unreachable!("only an announced ownership is taken by others") };
                return Some((HandoffGuard { lock: self }, parked.owner));
            }
        }
    }

    fn parked_slot(&self) -> impl DerefMut<Target = Option<Parked>> + '_ {
        match self.parked.lock() {
            Ok(slot) => slot,
            // The slot is only moved in and out of: a panic elsewhere cannot leave it half-written.
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Unlocks, unless an ownership was parked: then the caller, who still holds the lock, polls it and tries again.
    #[inline]
    fn unlock(&self) -> Option<Parked> {
        if self.word.compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        self.unlock_slow()
    }

    #[cold]
    fn unlock_slow(&self) -> Option<Parked> {
        loop {
            let now = self.word.load(Ordering::Acquire);
            if now & PARKED != 0 {
                self.word.fetch_and(!PARKED, Ordering::AcqRel);
                return self.parked_slot().take();
            }
            if self.word.compare_exchange(now, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
                if now & WAITERS != 0 {
                    self.word.wake();
                }
                return None;
            }
        }
    }
}

/// Access to the value. Ends with [`HandoffGuard::unlock`], which says what is owed; dropping it is for panics only: the
/// shard is taken down, and a parked ownership stays parked for whoever locks next.
#[must_use]
#[derive(Debug)]
pub struct HandoffGuard<'a, T: Shard> {
    lock: &'a HandoffLock<T>,
}

impl<'a, T: Shard> HandoffGuard<'a, T> {
    /// Unlocks, or returns the ownership that is to be polled first, together with the guard.
    #[inline]
    pub fn unlock(self) -> Result<(), (HandoffGuard<'a, T>, Parked)> {
        match self.lock.unlock() {
            None => {
                std::mem::forget(self);
                Ok(())
            }
            Some(parked) => Err((self, parked)),
        }
    }
}

impl<T: Shard> Drop for HandoffGuard<'_, T> {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a shard was unlocked without polling what was parked on it");
        self.with_mut(T::take_down);
        // Whoever parked an ownership relies on the next holder, and the host locks once more when it takes the queue
        // down.
        let before = self.lock.word.fetch_and(PARKED, Ordering::Release);
        if before & WAITERS != 0 {
            self.lock.word.wake_all();
        }
    }
}

#[cfg(not(loom))]
impl<T: Shard> Deref for HandoffGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while this thread holds the word.
        unsafe { &*self.lock.value.get() }
    }
}

#[cfg(not(loom))]
impl<T: Shard> DerefMut for HandoffGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while this thread holds the word, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Shard> HandoffGuard<'_, T> {
    /// Loom's cells are accessed through closures, which check that nobody else does.
    #[inline]
    pub(crate) fn with_mut<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(not(loom))]
        return f(self);
        // SAFETY: as above; loom verifies the claim.
        #[cfg(loom)]
        self.lock.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}
