//! The host: its CPUs, the instances bound to them, and what an operator sets.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use lull_core::event::EventSink;
use lull_core::{AfterResume, EpollOptions, EpollParams, Stats, Sysctl};
use lull_slo::Latencies;

use crate::affinity::ThreadUse;
use crate::clock::Clock;
use crate::contexts::Contexts;
use crate::cpu::{Cpu, CpuStats};
use crate::delivery::{Delivery, Instance};
use crate::devices::Devices;
use crate::error::HostError;
use crate::lateness::{Lateness, LatenessSnapshot};
use crate::or_end::SinkOrEnd;
use crate::registry::{NapiChange, NapiInfo, Registry};
use crate::sync::thread::JoinHandle;
use crate::sync::{Mutex, RwLock, relock, thread};
use crate::table::{NAPIS_MAX, Table};
use crate::threads;
use crate::timed::Listed;

/// How a host is made.
pub struct HostConfig {
    /// One lull CPU per entry, with the machine's core that its interrupt contexts are pinned to, if any.
    pub cpus: Vec<Option<usize>>,
    /// System-wide settings.
    pub sysctl: Sysctl,
    /// Where the epoll policy differs from Linux; by default it does not differ at all.
    pub epoll: EpollOptions,
    /// What follows the poll of a resume that finds nothing: deferral as in Linux by default.
    pub after_resume: AfterResume,
    /// Whether the interrupt threads ask for SCHED_FIFO. If that is refused they go on without, and
    /// [`Host::realtime_error`] says why.
    pub realtime: bool,
    /// How much later than its deadline the interrupt thread may be woken for a timer while the application computes, in
    /// nanoseconds. Every call into lull runs due timers on time; this is for an application that makes none. The default is
    /// Linux's timer slack for ordinary threads, 50 us.
    pub timer_slack_ns: u64,
    /// Most instances that the host can have at a time, 65,536 at most. Those that were removed make room for others.
    pub napis_max: usize,
    /// The numbers under which the devices' queues are shown, where they are not counted from 0: a process may have
    /// some queues of a device while another process has the others.
    pub queue_numbers: Vec<usize>,
    /// How many of the first ids are left to other processes, so that processes with queues of one device have
    /// different ids.
    pub napi_ids_left: u32,
    /// Who hears of every event. A panic in it ends the process.
    pub sink: Option<Box<dyn EventSink + Send>>,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            cpus: vec![None],
            sysctl: Sysctl::default(),
            epoll: EpollOptions::default(),
            after_resume: AfterResume::default(),
            realtime: false,
            timer_slack_ns: 50_000,
            napis_max: 1024,
            queue_numbers: Vec::new(),
            napi_ids_left: 0,
            sink: None,
        }
    }
}

/// A host: a cheap handle. The threads end when the last handle goes; every [`crate::Worker`] has one.
#[derive(Clone)]
pub struct Host(Arc<HostOwner>);

/// A handle of a host that does not keep its threads alive: for those who watch it, such as a control socket.
#[derive(Clone)]
pub struct WeakHost(Weak<HostOwner>);

impl WeakHost {
    /// The host, if somebody still has it.
    pub fn upgrade(&self) -> Option<Host> {
        self.0.upgrade().map(Host)
    }
}

struct HostOwner {
    inner: Arc<Delivery>,
}

impl Drop for HostOwner {
    fn drop(&mut self) {
        threads::stop(&self.inner);
        let joins = std::mem::take(&mut *relock(&self.inner.joins));
        let me = thread::current().id();
        for join in joins.into_iter().filter(|join| join.thread().id() != me) {
            // A thread that panicked has said so on stderr.
            let _ = join.join();
        }
    }
}

impl Host {
    /// Starts the interrupt threads and ksoftirqds of `config.cpus`.
    ///
    /// # Errors
    /// Settings outside their limits, no or too many CPUs, a core that does not exist.
    pub fn new(config: HostConfig) -> Result<Host, HostError> {
        let host = Host::without_threads(config)?;
        for index in 0..host.inner().cpu_count() as u16 {
            host.start(threads::irq_thread(host.inner(), index))?;
            host.start(threads::ksoftirqd(host.inner(), index))?;
        }
        Ok(host)
    }

    /// The host before anybody stands by for its CPUs.
    fn without_threads(config: HostConfig) -> Result<Host, HostError> {
        config.sysctl.check()?;
        let cpus_max = usize::from(lull_core::timer::CPU_MAX) + 1;
        if config.cpus.is_empty() || config.cpus.len() > cpus_max {
            return Err(HostError::Full { what: "CPUs (and not fewer than one)", max: cpus_max });
        }
        if config.napis_max > NAPIS_MAX {
            return Err(HostError::Full { what: "NAPI instances (HostConfig::napis_max)", max: NAPIS_MAX });
        }
        let os = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| HostError::Os { what, source }
        };
        let cpus = config.cpus.iter().enumerate().map(|(index, core)| Cpu::new(index as u16, *core));
        let inner = Arc::new(Delivery {
            clock: Clock::new(),
            sysctl: config.sysctl,
            timer_slack_ns: config.timer_slack_ns,
            epoll: config.epoll,
            after_resume: config.after_resume,
            cpus: cpus.collect::<io::Result<Box<[Cpu]>>>().map_err(os("create a CPU's event descriptors"))?,
            instances: Table::new(config.napis_max),
            timed: (0..config.cpus.len()).map(|index| Listed::new(index as u16)).collect(),
            registry: Registry::after(config.napi_ids_left),
            queue_numbers: config.queue_numbers,
            contexts: Contexts::default(),
            groups: RwLock::new(Vec::new()),
            devices: Mutex::new(Devices::default()),
            sink: config.sink.map(SinkOrEnd),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            joins: Mutex::new(Vec::new()),
            control: Mutex::new(()),
            realtime: config.realtime,
            realtime_error: Mutex::new(None),
        });
        Ok(Host(Arc::new(HostOwner { inner })))
    }

    /// A host of a loom model, which starts the contexts that it is about: loom has few threads.
    ///
    /// # Errors
    /// As [`Host::new`].
    #[cfg(loom)]
    pub fn of_a_model(config: HostConfig) -> Result<Host, HostError> {
        Host::without_threads(config)
    }

    /// Starts the interrupt thread of a CPU.
    ///
    /// # Errors
    /// As [`Host::new`].
    #[cfg(loom)]
    pub fn start_irq_thread(&self, cpu: u16) -> Result<(), HostError> {
        self.start(threads::irq_thread(self.inner(), cpu))
    }

    /// A handle that does not keep the host alive.
    pub fn downgrade(&self) -> WeakHost {
        WeakHost(Arc::downgrade(&self.0))
    }

    pub(crate) fn inner(&self) -> &Arc<Delivery> {
        &self.0.inner
    }

    fn start(&self, started: io::Result<JoinHandle<()>>) -> Result<(), HostError> {
        let join = started.map_err(|source| HostError::Os { what: "start a delivery thread".to_owned(), source })?;
        relock(&self.inner().joins).push(join);
        Ok(())
    }

    /// Now, in nanoseconds of the host's clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.inner().clock.now_ns()
    }

    /// The host's clock.
    pub fn clock(&self) -> &Clock {
        &self.inner().clock
    }

    /// Whether this is the host that `delivery` is of.
    pub fn is_of(&self, delivery: &Arc<Delivery>) -> bool {
        Arc::ptr_eq(self.inner(), delivery)
    }

    /// How many CPUs this host has.
    pub fn cpus(&self) -> usize {
        self.inner().cpu_count()
    }

    /// The core that a CPU is pinned to.
    pub fn core(&self, cpu: u16) -> Option<usize> {
        self.inner().cpu(cpu).core
    }

    /// Counters of a CPU.
    pub fn cpu_stats(&self, cpu: u16) -> CpuStats {
        self.inner().cpu(cpu).stats()
    }

    /// System-wide settings.
    pub fn sysctl(&self) -> &Sysctl {
        &self.inner().sysctl
    }

    /// Where the epoll policy differs from Linux.
    pub fn epoll_options(&self) -> EpollOptions {
        self.inner().epoll
    }

    /// The threads that deliver, for accounting their CPU time.
    pub fn threads(&self) -> Vec<ThreadUse> {
        relock(&self.inner().threads).clone()
    }

    /// Why SCHED_FIFO was refused, if it was asked for and refused.
    pub fn realtime_error(&self) -> Option<String> {
        relock(&self.inner().realtime_error).as_ref().map(ToString::to_string)
    }

    /// The instance with this id, if it is enabled (`napi_by_id`).
    pub fn napi_by_id(&self, id: u32) -> Option<u32> {
        self.inner().registry.by_id(id)
    }

    /// The instance of a device with this id.
    ///
    /// # Errors
    /// There is none.
    pub fn napi(&self, ifindex: u32, id: u32) -> Result<u32, HostError> {
        self.inner().registry.by_key(ifindex, id).ok_or(HostError::NoNapi { ifindex, id })
    }

    /// The id of an instance; 0 while it is disabled, and after it was removed.
    pub fn napi_id(&self, index: u32) -> u32 {
        self.inner().instance(index).map_or(0, |instance| instance.napi.id())
    }

    /// The CPU of an instance's interrupt; `None` if it was removed.
    pub fn napi_cpu(&self, index: u32) -> Option<u16> {
        self.inner().instance(index).map(|instance| instance.cpu())
    }

    /// Counters of an instance; all zero if it was removed.
    pub fn napi_stats(&self, index: u32) -> Stats {
        self.inner().instance(index).map_or_else(Stats::default, |instance| instance.napi.stats())
    }

    /// Interrupts of an instance that were taken; 0 if it was removed.
    pub fn napi_irqs(&self, index: u32) -> u64 {
        self.inner().instance(index).map_or(0, |instance| instance.irqs.load(Ordering::Relaxed))
    }

    /// Times requests on all instances until they are answered, from now on or no longer.
    pub fn time_answers(&self, on: bool) {
        let host = self.inner();
        // Looked up first: a receiver may look instances up itself.
        let receivers: Vec<_> = host.instances.iter().map(|instance| instance.receiver.clone()).collect();
        receivers.iter().for_each(|receiver| receiver.time_answers(host, on));
    }

    /// What requests on an instance took so far, if they are timed.
    pub fn answer_times(&self, index: u32) -> Option<Latencies> {
        let receiver = self.inner().instance(index)?.receiver.clone();
        receiver.answer_times(self.inner())
    }

    /// How late the timer of an instance was; nothing if it was removed.
    pub fn napi_lateness(&self, index: u32) -> LatenessSnapshot {
        self.inner()
            .instance(index)
            .map_or_else(|| Lateness::default().snapshot(), |instance| instance.lateness.snapshot())
    }

    /// Lists all instances.
    pub fn napis(&self) -> Vec<NapiInfo> {
        let devices = relock(&self.inner().devices);
        let info = |instance: &Instance| NapiInfo {
            ifindex: instance.device.ifindex(),
            device: devices.get(instance.device).map_or_else(String::new, |device| device.name.clone()),
            queue: self.inner().queue_numbers.get(instance.queue).copied().unwrap_or(instance.queue),
            id: instance.napi.id(),
            index: instance.napi.index(),
            cpu: instance.cpu(),
            settings: instance.napi.settings(),
            state: instance.napi.snapshot(),
            stats: instance.napi.stats(),
            thread: instance.thread.get().map(|thread| thread.tid),
            qdisc: instance.receiver.transmitter().map(|transmitter| transmitter.qdisc()),
            failure: instance.failure().map(str::to_owned),
        };
        self.inner().instances.iter().map(|instance| info(&instance)).collect()
    }

    /// Of each live epoll context: how many of its sockets hear from each NAPI (by id), and its parameters.
    pub fn epoll_contexts(&self) -> Vec<(BTreeMap<u32, usize>, EpollParams)> {
        self.inner().contexts.list()
    }

    /// Calls `watcher` on every later change of the registry, from the thread that makes it.
    pub fn watch(&self, watcher: Box<dyn Fn(NapiChange) + Send + Sync>) {
        self.inner().registry.watch(watcher);
    }

    /// What sockets keep of the host.
    pub fn delivery(&self) -> Arc<Delivery> {
        self.inner().clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_pinned_is_not_among_those_that_deliver() {
        // No machine has the last core of a set, and the set has no room for those behind it.
        const LAST: usize = rustix::thread::CpuSet::MAX_CPU - 1;
        for nowhere in [LAST, LAST + 1, usize::MAX] {
            let host =
                Host::without_threads(HostConfig { cpus: vec![Some(nowhere)], ..HostConfig::default() }).unwrap();
            let refused = host.start(threads::irq_thread(host.inner(), 0)).unwrap_err().to_string();
            let core = format!("cannot pin it to core {nowhere}");
            assert!(refused.contains(&core) && refused.contains("taskset"), "{refused}");
            assert_eq!(host.threads(), []);
        }
    }
}
