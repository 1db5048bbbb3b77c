//! The host: its CPUs, the instances bound to them, and what an operator sets.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;

use lull_core::event::EventSink;
use lull_core::{DeviceConfig, EpollOptions, EpollParams, NapiSettings, Stats, Sysctl, Threaded};
use lull_nic::IrqLine;

use crate::affinity::ThreadUse;
use crate::clock::Clock;
use crate::contain::SinkOrEnd;
use crate::contexts::Contexts;
use crate::cpu::{Cpu, CpuStats, relock};
use crate::delivery::Delivery;
use crate::error::HostError;
use crate::instance::{Instance, Receiver};
use crate::lateness::LatenessSnapshot;
use crate::parker::Parker;
use crate::registry::{NapiChange, NapiInfo, Registry};
use crate::threads;
use crate::vector::VectorSink;

/// How a host is made.
pub struct HostConfig {
    /// One lull CPU per entry, with the machine's core that its interrupt contexts are pinned to, if any.
    pub cpus: Vec<Option<usize>>,
    /// System-wide settings.
    pub sysctl: Sysctl,
    /// Where the epoll policy differs from Linux; strictly not at all by default.
    pub epoll: EpollOptions,
    /// Whether the interrupt threads ask for SCHED_FIFO. A refusal is reported by [`Host::realtime_error`] and lived with.
    pub realtime: bool,
    /// How much later than its deadline the interrupt thread may be woken for a timer while the application computes, in
    /// nanoseconds. Every call into lull runs due timers on time; this is for an application that makes none. The default is
    /// Linux's timer slack for ordinary threads, 50 us.
    pub timer_slack_ns: u64,
    /// Most instances that the host can ever have.
    pub napis_max: usize,
    /// Who hears of every event. A panic in it ends the process.
    pub sink: Option<Box<dyn EventSink + Send>>,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            cpus: vec![None],
            sysctl: Sysctl::default(),
            epoll: EpollOptions::default(),
            realtime: false,
            timer_slack_ns: 50_000,
            napis_max: 1024,
            sink: None,
        }
    }
}

/// A device as the host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(pub(crate) usize);

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

pub(crate) struct Device {
    pub(crate) name: String,
    ifindex: u32,
    config: DeviceConfig,
    /// Index of the instance of each queue.
    napis: Vec<Option<u32>>,
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
        let me = std::thread::current().id();
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
        config.sysctl.check()?;
        let cpus_max = usize::from(lull_core::timer::CPU_MAX) + 1;
        if config.cpus.is_empty() || config.cpus.len() > cpus_max {
            return Err(HostError::Full { what: "CPUs (and not fewer than one)", max: cpus_max });
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
            cpus: cpus.collect::<io::Result<Box<[Cpu]>>>().map_err(os("create a CPU's event descriptors"))?,
            instances: (0..config.napis_max).map(|_| OnceLock::new()).collect(),
            instance_count: AtomicU32::new(0),
            registry: Registry::default(),
            contexts: Contexts::default(),
            devices: Mutex::new(Vec::new()),
            sink: config.sink.map(SinkOrEnd),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            joins: Mutex::new(Vec::new()),
            control: Mutex::new(()),
            realtime: config.realtime,
            realtime_error: Mutex::new(None),
        });
        let host = Host(Arc::new(HostOwner { inner }));
        for index in 0..host.inner().cpu_count() as u16 {
            host.start(threads::irq_thread(host.inner(), index))?;
            host.start(threads::ksoftirqd(host.inner(), index))?;
        }
        Ok(host)
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

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.inner().clock
    }

    /// CPUs of this host.
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

    // ---- devices and instances ----

    /// Makes a device known. `persistent` says whether its queues keep their settings and ids over a disable.
    pub fn add_device(&self, name: &str, queues: usize, persistent: bool) -> DeviceId {
        let mut devices = relock(&self.inner().devices);
        let id = DeviceId(devices.len());
        let ifindex = devices.len() as u32 + 1;
        devices.push(Device {
            name: name.to_owned(),
            ifindex,
            config: DeviceConfig::new(queues, persistent),
            napis: vec![None; queues],
        });
        id
    }

    /// The device's index, as NAPIs are keyed by.
    pub fn ifindex(&self, device: DeviceId) -> u32 {
        relock(&self.inner().devices)[device.0].ifindex
    }

    /// Makes the instance of a queue, disabled. Returns its place in the host's table.
    ///
    /// # Errors
    /// No such CPU, the table is full, or the interrupt's descriptor cannot be watched.
    pub fn add_napi(&self, binding: NapiBinding) -> Result<u32, HostError> {
        let inner = self.inner();
        if usize::from(binding.cpu) >= inner.cpu_count() {
            return Err(HostError::NoCpu { cpu: binding.cpu, cpus: inner.cpu_count() });
        }
        let mut devices = relock(&inner.devices);
        let index = inner.instance_count.load(Ordering::Acquire);
        let Some(slot) = inner.instances.get(index as usize) else {
            return Err(HostError::Full { what: "NAPI instances", max: inner.instances.len() });
        };
        let (device, queue, cpu) = (binding.device, binding.queue, binding.cpu);
        let instance = slot.get_or_init(|| Instance::new(index, binding));
        inner.instance_count.store(index + 1, Ordering::Release);
        // Last, for a line that was raised before raises at once.
        instance.vector.line.connect(Arc::new(VectorSink { host: Arc::downgrade(inner), napi: index }));
        if instance.vector.is_fd() {
            let what = "watch the device's descriptor";
            let watched = inner.cpu(cpu).add_fd_vector(instance);
            watched.map_err(|source| HostError::Os { what: what.to_owned(), source })?;
        }
        devices[device.0].napis[queue] = Some(index);
        Ok(index)
    }

    /// `napi_enable`: gives the instance its id and settings, lets it go and unmasks its interrupt.
    ///
    /// # Errors
    /// It is enabled already, a panic took its queue down, or its NAPI thread cannot be started.
    pub fn enable(&self, index: u32) -> Result<u32, HostError> {
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if instance.enabled.load(Ordering::Relaxed) {
            return Err(HostError::Enabled { napi: index });
        }
        if let Some(why) = instance.failure() {
            return Err(HostError::Failed { napi: index, why: why.to_owned() });
        }
        let (ifindex, id, settings) = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            let (id, settings) = device.config.enabled(instance.queue, || inner.registry.fresh_id());
            (device.ifindex, id, settings)
        };
        if settings.threaded != Threaded::Off {
            self.start_napi_thread(instance)?;
        }
        instance.enabled.store(true, Ordering::Relaxed);
        instance.napi.enable(id, Some(&settings));
        inner.registry.enabled(ifindex, id, index);
        inner.unmask(instance, false);
        if settings.threaded == Threaded::BusyPoll {
            self.kick(instance);
        }
        drop(control);
        inner.registry.tell(NapiChange::Enabled { ifindex, id });
        Ok(id)
    }

    /// `napi_disable`: waits until nobody owns the instance, and takes it. Settings are kept if the device keeps them.
    ///
    /// # Errors
    /// It is not enabled: waiting for the owner would be waiting for the disable that came first.
    pub fn disable(&self, index: u32) -> Result<(), HostError> {
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if !instance.enabled.swap(false, Ordering::Relaxed) {
            return Err(HostError::Disabled { napi: index });
        }
        let id = instance.napi.id();
        instance.napi.disable_begin();
        instance.wake_thread(inner);
        while !instance.napi.disable_claim() {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        instance.vector.mask();
        instance.napi.disable_end(&inner.cx(instance.cpu(), self.now_ns()));
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            device.config.disabled(instance.queue, id);
            device.ifindex
        };
        inner.registry.disabled(ifindex, id);
        drop(control);
        inner.registry.tell(NapiChange::Disabled { ifindex, id });
        Ok(())
    }

    /// Settings of one instance (`napi-set`), in force from the next decision on and kept over a disable.
    ///
    /// # Errors
    /// A value above its limit, or a NAPI thread that cannot be started; nothing is changed then.
    pub fn set_napi(&self, index: u32, settings: &NapiSettings) -> Result<(), HostError> {
        settings.check()?;
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if settings.threaded != Threaded::Off {
            self.start_napi_thread(instance)?;
        }
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            device.config.set_queue(instance.queue, settings)?;
            device.ifindex
        };
        self.put_in_force(instance, settings);
        drop(control);
        inner.registry.tell(NapiChange::Settings { ifindex, id: instance.napi.id() });
        Ok(())
    }

    /// Device-level settings (sysfs): overwrite every queue's, but for `irq_suspend_timeout`, which has no device level.
    ///
    /// # Errors
    /// As [`Host::set_napi`].
    pub fn set_device(&self, device: DeviceId, settings: &NapiSettings) -> Result<(), HostError> {
        let inner = self.inner();
        let queues: Vec<(u32, NapiSettings)> = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[device.0];
            device.config.set_device(settings)?;
            let napis = device.napis.iter().enumerate();
            napis.filter_map(|(queue, napi)| napi.map(|index| (index, device.config.queue(queue)))).collect()
        };
        for (index, settings) in queues {
            self.set_napi(index, &settings)?;
        }
        Ok(())
    }

    fn put_in_force(&self, instance: &Instance, settings: &NapiSettings) {
        let before = instance.napi.settings().threaded;
        instance.napi.set(settings);
        if before == settings.threaded || instance.napi.id() == 0 {
            return;
        }
        match settings.threaded {
            Threaded::Off => {
                while !instance.napi.threaded_off() {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                // The thread leaves the instance at its next completion; it stays for the next time.
                while instance.napi.thread_has_round() {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            Threaded::On => instance.napi.threaded_on(false),
            Threaded::BusyPoll => {
                instance.napi.threaded_on(true);
                self.kick(instance);
            }
        }
    }

    /// Busy-poll threads start lazily, with the first schedule. There is no reason to wait for a packet with it.
    fn kick(&self, instance: &Instance) {
        self.schedule(instance.napi.index());
    }

    fn start_napi_thread(&self, instance: &Instance) -> Result<(), HostError> {
        if instance.thread.get().is_some() {
            return Ok(());
        }
        let os = |source| HostError::Os { what: "start a NAPI thread".to_owned(), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let index = instance.napi.index();
        let name = format!("napi/{}", index);
        let (join, tid) = threads::napi_thread(self.inner(), index, parker.clone(), name).map_err(os)?;
        if instance.thread.set(threads::NapiThreadHandle { parker, tid }).is_err() {
            unreachable!("NAPI threads are started under the control lock");
        }
        relock(&self.inner().joins).push(join);
        Ok(())
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

    /// The id of an instance; 0 while it is disabled.
    pub fn napi_id(&self, index: u32) -> u32 {
        self.inner().instance(index).napi.id()
    }

    /// The CPU of an instance's interrupt.
    pub fn napi_cpu(&self, index: u32) -> u16 {
        self.inner().instance(index).cpu()
    }

    /// Counters of an instance.
    pub fn napi_stats(&self, index: u32) -> Stats {
        self.inner().instance(index).napi.stats()
    }

    /// Interrupts of an instance that were taken.
    pub fn napi_irqs(&self, index: u32) -> u64 {
        self.inner().instance(index).irqs.load(Ordering::Relaxed)
    }

    /// How late the timer of an instance was.
    pub fn napi_lateness(&self, index: u32) -> LatenessSnapshot {
        self.inner().instance(index).lateness.snapshot()
    }

    /// All instances.
    pub fn napis(&self) -> Vec<NapiInfo> {
        let devices = relock(&self.inner().devices);
        let info = |instance: &Instance| NapiInfo {
            ifindex: devices[instance.device.0].ifindex,
            device: devices[instance.device.0].name.clone(),
            queue: instance.queue,
            id: instance.napi.id(),
            index: instance.napi.index(),
            cpu: instance.cpu(),
            settings: instance.napi.settings(),
            state: instance.napi.snapshot(),
            stats: instance.napi.stats(),
            thread: instance.thread.get().map(|thread| thread.tid),
            failure: instance.failure().map(str::to_owned),
        };
        self.inner().instances().map(info).collect()
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
