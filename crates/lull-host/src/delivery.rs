//! The part of a host that its handles share, its instances, and the receivers above them.
//!
//! The three stand in one file because they know one another: a [`Receiver`] is called with the [`Delivery`], which has
//! the table of instances, each of which has its receiver.

use std::io;
// Loom does not explore what only counts, nor the beginning and the end of instances and of the host.
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64 as PlainU64};
use std::sync::{Arc, OnceLock, Weak};

use lull_core::event::EventSink;
use lull_core::group::Transmitted;
use lull_core::tx::TxOwned;
use lull_core::{AfterResume, Cx, EpollOptions, GroFlush, Napi, Owner, Sysctl};
use lull_nic::IrqLine;
use lull_slo::Latencies;

use crate::affinity::ThreadUse;
use crate::clock::Clock;
use crate::contexts::Contexts;
use crate::cpu::Cpu;
use crate::deadlines::NEVER;
use crate::devices::{DeviceId, Devices};
use crate::group::parts::HostGroup;
use crate::holder::Seated;
use crate::lateness::Lateness;
use crate::or_end::SinkOrEnd;
use crate::parker::Parker;
use crate::registry::Registry;
use crate::sync::thread::{JoinHandle, ThreadId};
use crate::sync::{AtomicU64, Mutex, Ordering, RwLock};
use crate::table::{Found, Removable, Table};
use crate::timed::{Listed, Timed};
use crate::vector::Vector;

/// What the handles of a host share, and what sockets and receivers may call.
pub struct Delivery {
    pub(crate) clock: Clock,
    pub(crate) sysctl: Sysctl,
    pub(crate) timer_slack_ns: u64,
    pub(crate) epoll: EpollOptions,
    pub(crate) after_resume: AfterResume,
    pub(crate) cpus: Box<[Cpu]>,
    pub(crate) instances: Table<Instance>,
    /// By CPU: the instances that may have a deadline there (`timed`).
    pub(crate) timed: Box<[Listed<Instance>]>,
    pub(crate) registry: Registry,
    pub(crate) queue_numbers: Vec<usize>,
    pub(crate) contexts: Contexts,
    /// Busy-polling CPU groups, by their number; none is given out twice.
    pub(crate) groups: RwLock<Vec<Option<Arc<HostGroup>>>>,
    pub(crate) devices: Mutex<Devices>,
    pub(crate) sink: Option<SinkOrEnd>,
    pub(crate) stopping: AtomicBool,
    pub(crate) threads: Mutex<Vec<ThreadUse>>,
    pub(crate) joins: Mutex<Vec<JoinHandle<()>>>,
    /// Held while an instance is enabled, disabled or set, like Linux's `rtnl`. Watchers are called without it.
    pub(crate) control: Mutex<()>,
    pub(crate) realtime: bool,
    pub(crate) realtime_error: Mutex<Option<io::Error>>,
}

impl Delivery {
    #[inline]
    pub(crate) fn cpu(&self, index: u16) -> &Cpu {
        &self.cpus[usize::from(index)]
    }

    pub(crate) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// The instance at `index`, unless it was removed.
    #[inline]
    pub(crate) fn instance(&self, index: u32) -> Option<Found<'_, Instance>> {
        self.instances.find(index)
    }

    /// The instances that may have a deadline on a CPU.
    #[inline]
    pub(crate) fn timed(&self, cpu: &Cpu) -> &Listed<Instance> {
        &self.timed[usize::from(cpu.index)]
    }

    /// The earliest deadline of a CPU, looked up.
    pub(crate) fn exact_deadline_ns(&self, cpu: &Cpu) -> u64 {
        self.timed(cpu).earliest_ns(&cpu.deadlines)
    }

    /// A timer of `instance` that falls due on `cpu` was started.
    #[inline]
    pub(crate) fn note_timer(&self, cpu: &Cpu, instance: &Instance, deadline_ns: u64) {
        self.timed(cpu).timer_started(instance, deadline_ns, &cpu.deadlines);
    }

    /// The instance that `owner` owns.
    #[inline]
    pub(crate) fn owned(&self, owner: &Owner) -> Found<'_, Instance> {
        match self.instances.find(owner.napi()) {
            Some(instance) => instance,
            None => unreachable!("NAPI {} was removed, and a disable waits for the owner", owner.napi()),
        }
    }

    #[inline]
    pub(crate) fn cx(&self, cpu: u16, now_ns: u64) -> Cx<'_> {
        Cx { now_ns, cpu, sink: self.sink.as_ref().map(|sink| sink as &dyn EventSink) }
    }

    /// Puts the interrupt on its CPU's list. False if it is there already: whoever put it there announces it.
    #[inline]
    pub(crate) fn push_raised(&self, cpu: &Cpu, instance: &Instance) -> bool {
        self.instances.push_raised(&cpu.raised, instance.napi.index())
    }

    #[inline]
    pub(crate) fn raise_irq(&self, instance: &Instance) {
        if instance.group.load(Ordering::Relaxed) != 0 {
            self.raise_member(instance);
            return;
        }
        let cpu = self.cpu(instance.cpu());
        if self.push_raised(cpu, instance) {
            cpu.raise();
        }
    }
}

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
    /// Softirq's poll, which must not wait for a lock. If it parks the ownership, that is the last thing that it does.
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll;

    /// A busy poller's round: `None` if the lock is held, which counts as an empty round.
    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32>;

    /// A poll that has to happen (the last one of a busy poller, or a NAPI thread's) and may sleep for the lock.
    fn poll(&self, host: &Delivery, budget: u32) -> u32;

    /// Whether GRO holds packets that the last poll by softirq took ([`Napi::softirq_polled`](lull_core::Napi)).
    fn gro_held(&self) -> bool {
        false
    }

    /// Passes up what GRO holds, because a completion says so. Called without the shard's lock, and only if something is held.
    fn gro_flush(&self, _host: &Delivery, _flush: GroFlush) {}

    /// Whether a poll would find nothing to do, as far as can be told without a lock; false if that cannot be told.
    fn is_idle(&self) -> bool {
        false
    }

    /// Touches what the next poll with a packet will touch, and changes nothing that can be seen. Must not wait for a lock.
    fn dry_run(&self, _host: &Delivery) {}

    /// Runs the receiver's own timers (TCP's), and says with [`Delivery::set_receiver_deadline`] when to call again. False
    /// if the lock is held: it is asked again shortly.
    fn timers(&self, host: &Delivery, now_ns: u64) -> bool;

    /// The queue as a transmit queue, if it is one: its NAPI may be a member of a CPU group that sends (§16).
    fn transmitter(&self) -> Option<&dyn Transmitter> {
        None
    }

    /// The queue's interrupt was raised; whoever hears of that first calls this.
    fn raised(&self, _host: &Delivery) {}

    /// Begins to time requests until they are answered, or ends it.
    fn time_answers(&self, _host: &Delivery, _on: bool) {}

    /// What requests took so far, if they are timed.
    fn answer_times(&self, _host: &Delivery) -> Option<Latencies> {
        None
    }

    /// A panic took this queue down for good. Tells whoever waits for what it would bring. Locks the shard and gives it
    /// back with [`Delivery::unlock`], so that an ownership that was parked on it is let go.
    fn failed(&self, host: &Delivery);
}

/// A transmit queue, as a CPU group knows it: from entering until leaving the group alone sends (§16).
pub trait Transmitter: Send + Sync {
    /// The group runs from now on ([`lull_core::tx::TxWord::group_enter`]).
    ///
    /// # Errors
    /// A sender runs just now.
    fn group_enter(&self) -> Result<(), TxOwned>;

    /// The group runs no more. Makes one more run, with its doorbell, for the frames that senders have left to the
    /// group.
    fn group_leave(&self, host: &Delivery);

    /// As `group_leave`, but for a queue that a panic took down: nothing runs, and frames go nowhere
    /// ([`lull_core::tx::TxWord::lost_in_a_panic`]).
    fn group_lost(&self);

    /// A visit by the holder of the member's claim: up to `budget` frames, and no doorbell.
    fn visit(&self, host: &Delivery, budget: u32) -> Transmitted;

    /// Rings the doorbell, for the holder of the claim.
    fn ring(&self, host: &Delivery);

    /// The name of its queueing discipline, for those who list instances.
    fn qdisc(&self) -> &'static str;
}

/// A queue that is to become an instance.
pub struct NapiBinding {
    /// The device.
    pub device: DeviceId,
    /// Its queue.
    pub queue: usize,
    /// The CPU of its interrupt.
    pub cpu: u16,
    /// The interrupt.
    pub irq: Arc<dyn IrqLine>,
    /// What is polled.
    pub receiver: Arc<dyn Receiver>,
}

/// One instance with its surroundings.
pub(crate) struct Instance {
    /// A handle for those who keep the instance for longer than the call that looked it up.
    me: Weak<Instance>,
    pub(crate) napi: Napi,
    pub(crate) vector: Vector,
    pub(crate) receiver: Arc<dyn Receiver>,
    pub(crate) lateness: Lateness,
    pub(crate) irqs: PlainU64,
    pub(crate) device: DeviceId,
    pub(crate) queue: usize,
    pub(crate) cpu: AtomicU16,
    pub(crate) receiver_deadline_ns: AtomicU64,
    pub(crate) thread: OnceLock<NapiThreadHandle>,
    /// Where it is a member ([`crate::group::parts::membership`]). Written under the control lock.
    pub(crate) group: AtomicU64,
    /// Whether the last of `napi_enable` and `napi_disable` was an enable. Read and written under the control lock.
    pub(crate) enabled: AtomicBool,
    /// Why the queue was taken down.
    failure: OnceLock<String>,
    removed: AtomicBool,
}

pub(crate) struct NapiThreadHandle {
    pub(crate) parker: Arc<Parker>,
    pub(crate) tid: i32,
    /// Its place among the host's threads to be joined.
    pub(crate) thread: ThreadId,
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
            irqs: PlainU64::new(0),
            device: binding.device,
            queue: binding.queue,
            cpu: AtomicU16::new(binding.cpu),
            receiver_deadline_ns: AtomicU64::new(NEVER),
            thread: OnceLock::new(),
            group: AtomicU64::new(0),
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

    pub(crate) fn wake_thread(&self, host: &Delivery) {
        // THREADED is set only after the thread was started, and the handle outlives the bit.
        if let Some(thread) = self.thread.get() {
            thread.parker.wake(&host.cpu(self.cpu()).sleeps);
        }
    }
}

impl Removable for Instance {
    #[inline]
    fn is_removed(&self) -> bool {
        Instance::is_removed(self)
    }

    fn announce_removal(&self) {
        self.removed.store(true, Ordering::Release);
    }
}

impl Timed for Instance {
    fn to_keep(&self) -> Option<Arc<Instance>> {
        self.me.upgrade()
    }

    #[inline]
    fn cpu(&self) -> u16 {
        Instance::cpu(self)
    }

    fn deadline_on(&self, cpu: u16) -> u64 {
        let timer_ns = match self.napi.timer().pending() {
            Some((deadline_ns, pinned)) if pinned == cpu => deadline_ns,
            _ => NEVER,
        };
        let receiver_ns = if self.cpu() == cpu { self.receiver_deadline_ns.load(Ordering::Acquire) } else { NEVER };
        timer_ns.min(receiver_ns)
    }
}
