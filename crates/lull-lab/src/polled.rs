//! A receive ring without a stack: its frames go directly to the code that measures or forwards them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lull_core::Owner;
use lull_host::{Delivery, HandoffGuard, HandoffLock, Receiver, Shard, TryPoll};
use lull_nic::IrqLine;

/// The operations on a ring, in NAPI context.
pub trait Ring: Send {
    /// Takes up to `budget` frames off the ring. Returns their number.
    fn poll(&mut self, budget: usize) -> usize;

    /// Whether other work than frames is waiting.
    fn has_more(&self) -> bool {
        false
    }
}

/// The ring behind its lock.
struct Inside<R>(R);

impl<R: Ring> Shard for Inside<R> {
    fn take_down(&mut self) {}
}

/// A ring as the part above a queue.
pub struct Polled<R: Ring> {
    lock: HandoffLock<Inside<R>>,
    irq: Arc<dyn IrqLine>,
    /// Whether other work than frames is waiting, so that a poll without frames has work, too.
    more: AtomicBool,
}

impl<R: Ring> Polled<R> {
    /// Makes it of a ring and its interrupt.
    pub fn new(ring: R, irq: Arc<dyn IrqLine>) -> Polled<R> {
        Polled { lock: HandoffLock::new(Inside(ring)), irq, more: AtomicBool::new(false) }
    }

    fn poll_inside(&self, inside: &mut Inside<R>, budget: u32) -> u32 {
        let work = inside.0.poll(budget as usize) as u32;
        self.more.store(inside.0.has_more(), Ordering::Relaxed);
        work
    }

    /// Does the polls that were handed off meanwhile, and unlocks.
    fn finish(&self, host: &Delivery, guard: HandoffGuard<'_, Inside<R>>) {
        host.unlock(guard, |inside, budget| self.poll_inside(inside, budget));
    }
}

impl<R: Ring> Receiver for Polled<R> {
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll {
        let Some((mut guard, owner)) = self.lock.lock_or_park(owner, cpu) else { return TryPoll::Handed };
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        TryPoll::Polled(owner, work)
    }

    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        let mut guard = self.lock.try_lock()?;
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        Some(work)
    }

    fn poll(&self, host: &Delivery, budget: u32) -> u32 {
        let mut guard = self.lock.lock();
        let work = self.poll_inside(&mut guard, budget);
        self.finish(host, guard);
        work
    }

    fn is_idle(&self) -> bool {
        self.irq.pending() == Some(false) && !self.more.load(Ordering::Relaxed)
    }

    fn timers(&self, _host: &Delivery, _now_ns: u64) -> bool {
        true
    }

    fn failed(&self, host: &Delivery) {
        self.finish(host, self.lock.lock());
    }
}
