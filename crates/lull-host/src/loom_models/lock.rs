//! The shard lock.

use loom::sync::Arc;
use loom::thread;
use lull_core::{Cx, Napi, Owner, Schedule};

use super::check;
use crate::lock::{HandoffGuard, HandoffLock};

/// A shard: how often it was entered by a call, and how often polled.
#[derive(Default)]
struct Shard {
    calls: u32,
    polls: u32,
}

impl crate::lock::Shard for Shard {
    fn take_down(&mut self) {}
}

fn owner(napi: &Napi) -> Owner {
    napi.enable(9000, None);
    let Schedule::Owned(owner) = napi.schedule(&Cx::new(0, 0)) else { panic!("nobody else owns it") };
    owner
}

fn unlock(mut guard: HandoffGuard<'_, Shard>) {
    while let Err((mut held, parked)) = guard.unlock() {
        held.with_mut(|shard| shard.polls += 1);
        parked.owner.abandon();
        guard = held;
    }
}

fn call(lock: &HandoffLock<Shard>) {
    let mut guard = lock.lock();
    guard.with_mut(|shard| shard.calls += 1);
    unlock(guard);
}

fn softirq(lock: &HandoffLock<Shard>, owner: Owner) {
    if let Some((mut guard, owner)) = lock.lock_or_park(owner, 0) {
        guard.with_mut(|shard| shard.polls += 1);
        owner.abandon();
        unlock(guard);
    }
}

fn lock_model(preemptions: usize, callers: usize, with_softirq: bool) {
    check(preemptions, move || {
        let lock = Arc::new(HandoffLock::new(Shard::default()));
        let callers_run: Vec<_> = (0..callers)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || call(&lock))
            })
            .collect();
        if with_softirq {
            softirq(&lock, owner(&Napi::new(0)));
        } else {
            call(&lock);
        }
        callers_run.into_iter().for_each(|caller| caller.join().unwrap());
        let mut guard = lock.lock();
        let (calls, polls) = guard.with_mut(|shard| (shard.calls, shard.polls));
        unlock(guard);
        assert_eq!((calls as usize, polls as usize), (callers + usize::from(!with_softirq), usize::from(with_softirq)));
    });
}

/// Softirq comes while a caller holds the lock and unlocks: the ownership is polled once, by one of them. Four
/// preemptions.
#[test]
fn loom_lock_an_ownership_parked_while_unlocking_is_polled_once() {
    lock_model(4, 1, true);
}

/// As before with a second caller that sleeps for the lock. Three preemptions.
#[test]
fn loom_lock_parks_beside_a_sleeping_waiter() {
    lock_model(3, 2, true);
}

/// Three callers: nobody sleeps for ever. Three preemptions.
#[test]
fn loom_lock_leaves_no_waiter_behind() {
    lock_model(3, 2, false);
}

/// Who only tries neither gets in beside the holder nor throws them out. Four preemptions.
#[test]
fn loom_lock_a_failed_try_leaves_the_holder_alone() {
    check(4, || {
        let lock = Arc::new(HandoffLock::new(Shard::default()));
        let caller = {
            let lock = lock.clone();
            thread::spawn(move || call(&lock))
        };
        for _ in 0..2 {
            if let Some(mut guard) = lock.try_lock() {
                guard.with_mut(|shard| shard.calls += 1);
                unlock(guard);
            }
        }
        caller.join().unwrap();
    });
}
