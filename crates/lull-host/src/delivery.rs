//! What the handles of a host share: the part that sockets, receivers and delivering contexts use.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
use std::thread::JoinHandle;

use lull_core::event::EventSink;
use lull_core::{AfterResume, Cx, EpollOptions, Sysctl};

use crate::affinity::ThreadUse;
use crate::clock::Clock;
use crate::contain::SinkOrEnd;
use crate::contexts::{Contexts, EpollContext};
use crate::cpu::Cpu;
use crate::host::Device;
use crate::instance::Instance;
use crate::registry::Registry;

/// What the handles of a host share: the part that sockets and receivers may call.
pub struct Delivery {
    pub(crate) clock: Clock,
    pub(crate) sysctl: Sysctl,
    pub(crate) timer_slack_ns: u64,
    pub(crate) epoll: EpollOptions,
    pub(crate) after_resume: AfterResume,
    pub(crate) cpus: Box<[Cpu]>,
    pub(crate) instances: Box<[OnceLock<Instance>]>,
    pub(crate) instance_count: AtomicU32,
    pub(crate) registry: Registry,
    pub(crate) contexts: Contexts,
    pub(crate) devices: Mutex<Vec<Device>>,
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

    /// An index comes from an instance of this host, so it is there.
    #[inline]
    pub(crate) fn instance(&self, index: u32) -> &Instance {
        match self.instances[index as usize].get() {
            Some(instance) => instance,
            None => unreachable!("NAPI {index} of this host was never made"),
        }
    }

    #[inline]
    pub(crate) fn instances(&self) -> impl Iterator<Item = &Instance> {
        let count = self.instance_count.load(Ordering::Acquire) as usize;
        self.instances[..count].iter().filter_map(OnceLock::get)
    }

    #[inline]
    pub(crate) fn cx(&self, cpu: u16, now_ns: u64) -> Cx<'_> {
        Cx { now_ns, cpu, sink: self.sink.as_ref().map(|sink| sink as &dyn EventSink) }
    }

    pub(crate) fn raise_irq(&self, napi: u32) {
        let instance = self.instance(napi);
        self.cpu(instance.cpu()).raise_irq(instance);
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
        let instance = self.instance(index);
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
        let cpu = self.cpu(self.instance(index).cpu());
        let now_ns = self.clock.now_ns();
        if cpu.is_due(now_ns) && cpu.seat.is_free() {
            self.visit(cpu, crate::seat::GUEST);
            return self.clock.now_ns();
        }
        now_ns
    }
}
