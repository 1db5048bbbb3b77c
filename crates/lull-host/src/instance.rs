//! A NAPI instance with its surroundings: its interrupt, what stands above it, its thread.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lull_core::{Napi, Owner};

use crate::cpu::NEVER;
use crate::delivery::Delivery;
use crate::host::{DeviceId, NapiBinding};
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
    /// ([`Delivery::unlock`]).
    Handed,
}

/// What stands above a queue: it polls the queue's receive half and passes the frames up. A shard keeps the receive half
/// and itself under one [`crate::HandoffLock`].
pub trait Receiver: Send + Sync {
    /// Softirq's poll: must not wait for a lock. Parking the ownership is the last thing that it does.
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll;

    /// A busy poller's round: `None` if the lock is held, which counts as an empty round.
    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32>;

    /// A poll that has to happen (the last one of a busy poller, a NAPI thread's): may sleep for the lock.
    fn poll(&self, host: &Delivery, budget: u32) -> u32;

    /// Runs the receiver's own timers (TCP's), and says with [`Delivery::set_receiver_deadline`] when to call again. False
    /// if the lock is held: it is asked again shortly.
    fn timers(&self, host: &Delivery, now_ns: u64) -> bool;

    /// A panic took this queue down, for good: whoever waits for what it would bring is told. Locks the shard and gives it
    /// back with [`Delivery::unlock`], so that an ownership that was parked on it is let go.
    fn failed(&self, host: &Delivery);
}

/// One instance with its surroundings.
pub(crate) struct Instance {
    /// For those who keep it longer than the call that looked it up.
    pub(crate) me: Weak<Instance>,
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
    /// Why the queue was taken down.
    failure: OnceLock<String>,
    removed: AtomicBool,
}

impl Instance {
    /// A disabled instance at `index` of the host's table.
    pub(crate) fn new(index: u32, binding: NapiBinding) -> Arc<Instance> {
        Arc::new_cyclic(|me| Instance {
            me: me.clone(),
            napi: Napi::new(index),
            vector: Vector::new(binding.irq),
            receiver: binding.receiver,
            lateness: Lateness::default(),
            irqs: AtomicU64::new(0),
            device: binding.device,
            queue: binding.queue,
            cpu: AtomicU16::new(binding.cpu),
            receiver_deadline_ns: AtomicU64::new(NEVER),
            thread: OnceLock::new(),
            enabled: AtomicBool::new(false),
            failure: OnceLock::new(),
            removed: AtomicBool::new(false),
        })
    }

    /// Why the queue was taken down, if it was.
    #[inline]
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Notes why the queue is taken down. True for the first.
    pub(crate) fn fail(&self, why: String) -> bool {
        self.failure.set(why).is_ok()
    }

    /// Whether it is being removed: whoever still has it lets it go.
    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Whether nobody will ever poll it again.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.failure().is_some() || self.is_removed()
    }

    pub(crate) fn announce_removal(&self) {
        self.removed.store(true, Ordering::Release);
    }

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
