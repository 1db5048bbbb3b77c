//! A NAPI instance with its surroundings: its interrupt, what stands above it, its thread.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lull_core::{Napi, Owner};

use crate::cpu::NEVER;
use crate::delivery::Delivery;
use crate::host::DeviceId;
use crate::lateness::Lateness;
use crate::threads;
use crate::vector::Vector;

/// Outcome of a poll by softirq.
#[must_use]
#[derive(Debug)]
pub enum TryPoll {
    /// The device was polled: this many packets.
    Polled(Owner, u32),
    /// The shard's lock is held: its holder has the ownership now and polls before it unlocks
    /// ([`Delivery::polled_for_softirq`]).
    Handed,
}

/// What stands above a queue: it polls the queue's receive half and passes the frames up. A shard keeps the receive half
/// and itself under one [`crate::HandoffLock`].
pub trait Receiver: Send + Sync {
    /// Softirq's poll: must not wait for a lock.
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll;

    /// A busy poller's round: `None` if the lock is held, which counts as an empty round.
    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32>;

    /// A poll that has to happen (the last one of a busy poller, a NAPI thread's): may sleep for the lock.
    fn poll(&self, host: &Delivery, budget: u32) -> u32;

    /// Runs the receiver's own timers (TCP's), and says with [`Delivery::set_receiver_deadline`] when to call again. False
    /// if the lock is held: it is asked again shortly.
    fn timers(&self, host: &Delivery, now_ns: u64) -> bool;
}

/// One instance with its surroundings.
pub(crate) struct Instance {
    pub(crate) napi: Napi,
    pub(crate) vector: Vector,
    pub(crate) receiver: Arc<dyn Receiver>,
    pub(crate) lateness: Lateness,
    pub(crate) irqs: AtomicU64,
    pub(crate) device: DeviceId,
    pub(crate) queue: usize,
    pub(crate) cpu: AtomicU16,
    pub(crate) receiver_deadline_ns: AtomicU64,
    pub(crate) thread: OnceLock<threads::NapiThreadHandle>,
    /// Whether the last of `napi_enable` and `napi_disable` was an enable. Read and written under the control lock.
    pub(crate) enabled: AtomicBool,
}

impl Instance {
    pub(crate) fn cpu(&self) -> u16 {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Whether this made the deadline earlier.
    #[inline]
    pub(crate) fn set_receiver_deadline(&self, deadline_ns: u64) -> bool {
        deadline_ns < self.receiver_deadline_ns.fetch_min(deadline_ns, Ordering::AcqRel)
    }

    pub(crate) fn receiver_due(&self, cpu: u16, now_ns: u64) -> bool {
        self.cpu() == cpu && self.receiver_deadline_ns.load(Ordering::Acquire) <= now_ns && {
            self.receiver_deadline_ns.swap(NEVER, Ordering::AcqRel);
            true
        }
    }

    /// The earliest deadline that this instance has on `cpu`.
    pub(crate) fn deadline_on(&self, cpu: u16) -> u64 {
        let timer_ns = match self.napi.timer().pending() {
            Some((deadline_ns, pinned)) if pinned == cpu => deadline_ns,
            _ => NEVER,
        };
        let receiver_ns = if self.cpu() == cpu { self.receiver_deadline_ns.load(Ordering::Acquire) } else { NEVER };
        timer_ns.min(receiver_ns)
    }

    pub(crate) fn wake_thread(&self, host: &Delivery) {
        // THREADED is set only after the thread was started, and the handle outlives the bit.
        if let Some(thread) = self.thread.get() {
            thread.parker.wake(&host.cpu(self.cpu()).sleeps);
        }
    }
}
