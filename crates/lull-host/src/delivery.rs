//! What the handles of a host share: the part that sockets, receivers and delivering contexts use.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, Weak};
use std::thread::JoinHandle;

use lull_core::event::EventSink;
use lull_core::{AfterResume, Cx, EpollOptions, Owner, Sysctl};

use crate::affinity::ThreadUse;
use crate::clock::Clock;
use crate::contain::SinkOrEnd;
use crate::contexts::{Contexts, EpollContext};
use crate::cpu::Cpu;
use crate::holder::Seated;
use crate::host::Devices;
use crate::instance::Instance;
use crate::registry::Registry;
use crate::table::{Found, Table};

/// What the handles of a host share: the part that sockets and receivers may call.
pub struct Delivery {
    pub(crate) clock: Clock,
    pub(crate) sysctl: Sysctl,
    pub(crate) timer_slack_ns: u64,
    pub(crate) epoll: EpollOptions,
    pub(crate) after_resume: AfterResume,
    pub(crate) cpus: Box<[Cpu]>,
    pub(crate) instances: Table,
    pub(crate) registry: Registry,
    pub(crate) contexts: Contexts,
    pub(crate) devices: Mutex<Devices>,
    pub(crate) sink: Option<SinkOrEnd>,
    pub(crate) stopping: AtomicBool,
    pub(crate) threads: Mutex<Vec<ThreadUse>>,
    pub(crate) joins: Mutex<Vec<JoinHandle<()>>>,
    /// Held while an instance is enabled, disabled or set (`rtnl`). Watchers are called without it.
    pub(crate) control: Mutex<()>,
    pub(crate) realtime: bool,
    pub(crate) realtime_error: Mutex<Option<io::Error>>,
}

impl Delivery {
    /// Lists an epoll context among those that tools are shown, for as long as it lives.
    pub fn list_context(&self, context: Weak<dyn EpollContext>) {
        self.contexts.add(context);
    }

    #[inline]
    pub(crate) fn cpu(&self, index: u16) -> &Cpu {
        &self.cpus[usize::from(index)]
    }

    pub(crate) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// The instance at `index`, unless it was removed.
    #[inline]
    pub(crate) fn instance(&self, index: u32) -> Option<Found<'_>> {
        self.instances.find(index)
    }

    /// The instance that `owner` owns.
    #[inline]
    pub(crate) fn owned(&self, owner: &Owner) -> Found<'_> {
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
        let slot = self.instances.slot(instance.napi.index());
        cpu.raised.push(slot, self.instances.link(slot))
    }

    #[inline]
    pub(crate) fn raise_irq(&self, instance: &Instance) {
        let cpu = self.cpu(instance.cpu());
        if self.push_raised(cpu, instance) {
            cpu.raise();
        }
    }
}

/// The grain of receivers' timers.
const RECEIVER_TICK_NS: u64 = 10_000_000;

/// What receivers and sockets ask of their host.
impl Delivery {
    /// The receiver of instance `index` wants [`crate::Receiver::timers`] to be called at `deadline_ns`. An earlier deadline
    /// replaces a later one, never the other way round: being called too early is harmless, and far ones are cheap.
    /// It is put off to the next tick of 10 ms, a jiffy of Linux at HZ=100: protocol timers are coarse, and fewer
    /// deadlines are fewer kernel timers.
    #[inline]
    pub fn set_receiver_deadline(&self, index: u32, deadline_ns: u64) {
        // A removed instance is asked for nothing any more.
        let Some(instance) = self.instance(index) else { return };
        let deadline_ns = deadline_ns.div_ceil(RECEIVER_TICK_NS).saturating_mul(RECEIVER_TICK_NS);
        if instance.set_receiver_deadline(deadline_ns) {
            let cpu = self.cpu(instance.cpu());
            cpu.note_deadline(deadline_ns);
            self.cover(cpu);
        }
    }

    /// Now, in nanoseconds of the host's clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Runs what is due on the CPU of instance `index`, if anything is: every call into lull begins with it. Returns the
    /// time.
    #[inline]
    pub fn poll_point(&self, index: u32) -> u64 {
        let cpu = self.cpu(self.instances.cpu(index));
        let now_ns = self.clock.now_ns();
        if cpu.is_due(now_ns) && cpu.seat.is_free() {
            self.visit(cpu, crate::seat::GUEST);
            return self.clock.now_ns();
        }
        now_ns
    }
}
