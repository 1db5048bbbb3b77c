//! The service's side of a run: the counters and clocks around a window.

use std::net::SocketAddr;
use std::sync::Arc;

use lull_core::{AfterResume, EpollOptions, Mode, Stats};
use lull_host::{CpuStats, Host, HostConfig, LatenessSnapshot, thread_cpu_ns, usable_cores};
use lull_net::{EpollStats, GroupCpus, Network, NetworkConfig};
use lull_nic::{Device, Moderation};

use super::spent::{Pollers, Spent, ThreadTimes};
use super::window::{Counted, Windowed, around, row};
use super::{BenchConfig, BenchError, GroupSetup, PORT, Run, SERVICE_IP};
use crate::cell::RunResult;
use crate::check::Evidence;
use crate::load::{Summary, Workload};
use crate::memcached::{Store, StoreConfig, StoreMode, StoreOutcome};
use crate::service::{Limits, OwnService, Silos, Steer};

/// The configuration of a server.
pub struct ServerConfig {
    /// Cores of the service's CPUs.
    pub cores: Vec<usize>,
    /// The group's pollers, for group modes. If it is set, every other core that the process may use also gets a lull
    /// CPU, so that it can be attached later.
    pub group: Option<GroupSetup>,
    /// The network's settings. If they have no addresses or CPUs, the server fills them in.
    pub network: NetworkConfig,
    /// Whether the interrupt threads ask for SCHED_FIFO.
    pub realtime: bool,
    /// What follows when the poll at a resume finds nothing.
    pub after_resume: AfterResume,
    /// Where epoll differs from Linux's.
    pub epoll: EpollOptions,
    /// Interrupt moderation of the device; `None` leaves it as it is.
    pub moderation: Option<Moderation>,
    /// Limits of the store.
    pub store: StoreConfig,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The limits for its clients.
    pub limits: Limits,
    /// If it is set, all workers listen on all queues, and this chooses the worker that gets a connection. `None` means
    /// that each worker listens on its own queues.
    pub steer: Option<Steer>,
}

impl ServerConfig {
    /// Returns the configuration of a bench's server.
    pub fn of_bench(config: &BenchConfig, cores: &[usize]) -> ServerConfig {
        let network = NetworkConfig {
            rx_buffer_bytes: config.buffer_bytes,
            tx_buffer_bytes: config.buffer_bytes,
            connections_max: config.connections + 64,
            qdisc: config.qdisc,
            ..NetworkConfig::default()
        };
        ServerConfig {
            cores: cores.to_vec(),
            group: config.group.clone(),
            network,
            realtime: config.realtime,
            after_resume: config.after_resume,
            epoll: config.epoll,
            moderation: config.moderation,
            store: StoreConfig::default(),
            address: SocketAddr::from((SERVICE_IP, PORT)),
            limits: Limits::default(),
            steer: None,
        }
    }
}

/// A memcached service on a device, with everything that is needed to measure it. It stops when it is dropped.
pub struct Server {
    // The fields stand in the order in which they have to be dropped.
    service: OwnService,
    network: Network,
    host: Host,
    store: Arc<Store>,
    /// Cores of the service's workers.
    workers: Vec<usize>,
    silos: Option<Arc<Silos>>,
}

/// All counters, read at one moment.
struct Counters {
    at_ns: u64,
    napi: Stats,
    cpu: Vec<CpuStats>,
    epoll: EpollStats,
    device_syscalls: u64,
    spent: Spent,
    lateness: Option<LatenessSnapshot>,
}

impl Server {
    /// Starts a service on `device`, with one lull CPU and one worker per core. The device's queues are dealt out to
    /// them in turn.
    ///
    /// # Errors
    ///
    /// This fails if the host, the network or the service refuses a setting.
    pub fn start(device: Arc<dyn Device>, config: ServerConfig) -> Result<Server, BenchError> {
        if let Some(moderation) = config.moderation {
            device.set_moderation(moderation)?;
        }
        let mut cores = config.cores.clone();
        let workers = cores.clone();
        if config.group.is_some() {
            cores.extend(usable_cores().into_iter().filter(|core| !config.cores.contains(core)));
        }
        let cpus = cores.iter().map(|core| Some(*core)).collect::<Vec<_>>();
        let host = Host::new(HostConfig {
            cpus,
            realtime: config.realtime,
            after_resume: config.after_resume,
            epoll: config.epoll,
            ..HostConfig::default()
        })?;
        let mut network = config.network;
        if network.addresses.is_empty() {
            network.addresses = vec![(config.address.ip(), 24)];
        }
        network.cpus = (0..workers.len() as u16).collect();
        if let Some(group) = &config.group {
            // The core comes from `usable_cores`, or was checked against it.
            let cpu = |core: &usize| cores.iter().position(|known| known == core).map(|cpu| cpu as u16);
            network.group =
                Some(GroupCpus { cpus: group.cores.iter().filter_map(cpu).collect(), options: group.options });
        }
        let network = Network::new(&host, device, network)?;
        let store = Arc::new(Store::new(config.store));
        let (address, limits) = (config.address, config.limits);
        let (service, silos) = match &config.steer {
            None => (OwnService::on_network(&network, address, store.clone(), limits)?, None),
            Some(steer) => {
                let (service, silos) = OwnService::steered(&network, address, store.clone(), limits, steer)?;
                (service, Some(silos))
            }
        };
        Ok(Server { service, network, host, store, workers, silos })
    }

    /// Returns how many connections came through a queue of their worker's. They are only counted if all workers listen
    /// on all queues.
    pub fn silos(&self) -> Option<&Silos> {
        self.silos.as_deref()
    }

    /// Stores every record of a workload, without going through the network.
    ///
    /// # Errors
    ///
    /// This fails if the store has no room for all of them, because reads would then find some missing.
    pub fn preload(&self, workload: &Workload) -> Result<(), BenchError> {
        let now_s = 1;
        let evicted = || self.store.stats().counters.evictions;
        let (evicted_before, mut refused) = (evicted(), 0);
        workload.for_each_record(|key, value| {
            let stored = self.store.store(StoreMode::Set, key, value, 0, 0, now_s);
            refused += u64::from(stored != StoreOutcome::Stored);
        });
        let missing = refused + evicted() - evicted_before;
        if missing == 0 {
            return Ok(());
        }
        Err(BenchError::Invalid(format!(
            "cannot keep {} records in the service's store of {} MiB: {missing} of them would be missing; lower --records",
            workload.records(),
            self.store.config().memory_bytes_max >> 20
        )))
    }

    /// Returns the service.
    pub fn service(&self) -> &OwnService {
        &self.service
    }

    /// Returns the store that the service serves from.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    fn threads(&self) -> Vec<i32> {
        let delivering = self.host.threads().into_iter().map(|thread| thread.tid);
        self.service.tids().into_iter().chain(delivering).collect()
    }

    fn counters(&self) -> Counters {
        let napis = self.network.napis();
        let sum = |each: &dyn Fn(u32) -> Stats| napis.iter().fold(Stats::default(), |all, napi| all + each(*napi));
        let mut lateness: Option<LatenessSnapshot> = None;
        for napi in &napis {
            let of_napi = self.host.napi_lateness(*napi);
            match &mut lateness {
                None => lateness = Some(of_napi),
                Some(all) => all.merge(&of_napi),
            }
        }
        let device = self.network.device();
        let epoll = self.service.epolls().map(|epoll| epoll.stats()).sum();
        let cpu: Vec<CpuStats> = (0..self.host.cpus() as u16).map(|cpu| self.host.cpu_stats(cpu)).collect();
        Counters {
            at_ns: self.host.now_ns(),
            napi: sum(&|napi| self.host.napi_stats(napi)),
            spent: Spent {
                threads: ThreadTimes::read(self.threads(), |tid| thread_cpu_ns(tid).ok()),
                pollers: Pollers::of(&self.host),
                vain_ns: cpu.iter().map(|cpu| cpu.vain_ns).sum(),
            },
            cpu,
            epoll,
            device_syscalls: (0..device.info().queues).map(|queue| device.counters(queue).syscalls).sum(),
            lateness,
        }
    }

    /// Puts the mode in force, measures while `generate` runs its warm-up and window, and makes the row. If the
    /// hardware counts events, `generate` is called a second time, for a short run in which they are counted.
    ///
    /// # Errors
    ///
    /// This fails if the service refuses the mode or the generator fails.
    pub fn measure(
        &self,
        run: &Run<'_>,
        generate: impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send,
    ) -> Result<RunResult, BenchError> {
        self.set_mode(run.mode)?;
        self.row_of(run, &self.threads(), generate)
    }

    /// Measures with the settings that are in force. The hardware does not count events: `generate` is called once.
    ///
    /// # Errors
    ///
    /// This fails if the generator fails.
    pub fn observe(
        &self,
        run: &Run<'_>,
        generate: impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send,
    ) -> Result<RunResult, BenchError> {
        self.row_of(run, &[], generate)
    }

    fn row_of(
        &self,
        run: &Run<'_>,
        counted: &[i32],
        generate: impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send,
    ) -> Result<RunResult, BenchError> {
        let window = around(run, counted, generate, || self.counters(), || Ok(()))?;
        Ok(self.row(run, &window))
    }

    fn row(&self, run: &Run<'_>, window: &Windowed<Counters>) -> RunResult {
        let Windowed { summary, before, after, hardware } = window;
        let napi = after.napi - before.napi;
        let cpu = |each: &dyn Fn(&CpuStats) -> u64| -> u64 {
            after.cpu.iter().zip(&before.cpu).map(|(after, before)| each(&(*after - *before))).sum()
        };
        let lateness = after.lateness.as_ref().zip(before.lateness.as_ref()).map(|(now, then)| now.since(then));
        let lateness_ns = lateness.and_then(|lateness| lateness.median_ns());
        let interrupts = cpu(&|cpu| cpu.interrupts);
        let epoll_calls = after.epoll.calls - before.epoll.calls;
        let with_events = after.epoll.with_events - before.epoll.with_events;
        let epoll_syscalls = after.epoll.syscalls - before.epoll.syscalls;
        let window_ns = after.at_ns - before.at_ns;
        let counted = Counted {
            seconds: window_ns as f64 / 1e9,
            cpu_s: after.spent.threads.since(&before.spent.threads) as f64 / 1e9,
            cores: self.workers.len(),
            busy_percent: Some(after.spent.busy_percent(&before.spent, window_ns, &self.workers)),
            tsc_khz: self.host.clock().tsc_khz(),
            hardware: *hardware,
            evidence: Evidence::of_core(&napi, lateness_ns, summary.received),
        };
        RunResult {
            interrupts: Some(interrupts),
            polls: Some(napi.polls),
            mean_work: (napi.polls > 0).then(|| napi.work as f64 / napi.polls as f64),
            empty_polls: Some(napi.empty_polls),
            softirq_ms: Some(cpu(&|cpu| cpu.softirq_ns) as f64 / 1e6),
            epoll_calls: Some(epoll_calls),
            mean_events: (with_events > 0)
                .then(|| (after.epoll.events - before.epoll.events) as f64 / with_events as f64),
            wakeups: Some(cpu(&|cpu| cpu.wakeups)),
            timer_ops: Some(cpu(&|cpu| cpu.timer_ops)),
            syscalls: Some(cpu(&|cpu| cpu.syscalls) + epoll_syscalls + after.device_syscalls - before.device_syscalls),
            raise_us: Some(summary.raise_ns as f64 / 1_000.0),
            resumes: Some(napi.resumes),
            ..row(run, summary, &counted)
        }
    }

    /// Returns notes on the set-up.
    pub fn notes(&self) -> Vec<String> {
        let realtime = self.host.realtime_error();
        realtime
            .map(|error| format!("the interrupt threads run without SCHED_FIFO: {error}"))
            .into_iter()
            .chain(self.host.clock().tsc_khz().is_none().then(|| {
                "the cycle counter is not steady here: times come from the kernel's clock and cycles are not given"
                    .to_owned()
            }))
            .collect()
    }

    /// Puts a delivery mode in force: on the device, on every NAPI, on every worker's epoll context, and in how the
    /// workers wait.
    ///
    /// # Errors
    ///
    /// This fails if a setting is one that the kernel would refuse too, or if the mode coalesces interrupts and the
    /// device cannot.
    pub fn set_mode(&self, mode: &Mode) -> Result<(), BenchError> {
        // The service puts the application's half in force, on the contexts of its workers.
        let _ = self.network.set_mode(mode)?;
        Ok(self.service.set_mode(mode)?)
    }
}

/// Returns what the reader of a table has to know about the contexts' NAPIs (§13 edges 14, 15 and 17), or `None` if
/// each context has one and follows Linux.
pub(super) fn epoll_note(config: &BenchConfig) -> Option<String> {
    match (config.epoll.every_napi, config.queues() > config.workers) {
        (false, _) => config.several_napis(
            "as in Linux a context busy polls and suspends only the NAPI that woke it last, and one that it left suspended \
             waits for irq_suspend_timeout (--epoll every-napi mends it).",
        ),
        (true, true) => config.several_napis(
            "with --epoll every-napi a context busy polls each of its NAPIs in turn and suspends them all, where Linux does \
             so with the one that woke it last.",
        ),
        (true, false) => {
            Some("With --epoll every-napi a context attends to all NAPIs of its sockets, which is one here.".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use lull_host::GroupOptions;
    use lull_nic::mem::{self, MemConfig};

    use super::*;
    use crate::cell::Load;
    use crate::load::WorkloadConfig;

    #[test]
    fn records_that_the_store_has_no_room_for_are_refused_before_anything_is_measured() {
        let (service, _client) = mem::pair(MemConfig::default());
        let config = BenchConfig { connections: 1, ..BenchConfig::default() };
        let store =
            StoreConfig { memory_bytes_max: 1 << 20, shards: 1, item_bytes_max: 1 << 16, ..StoreConfig::default() };
        let core = lull_host::usable_cores()[0];
        let server =
            Server::start(Arc::new(service), ServerConfig { store, ..ServerConfig::of_bench(&config, &[core]) })
                .unwrap();
        let records = |records| Workload::new(WorkloadConfig { records, ..WorkloadConfig::default() }).unwrap();
        server.preload(&records(100)).unwrap();
        let error = server.preload(&records(100_000)).unwrap_err().to_string();
        assert!(error.contains("100000 records") && error.contains("1 MiB") && error.contains("--records"), "{error}");
    }

    #[test]
    fn a_poller_that_is_detached_in_a_window_takes_no_time_from_the_other_threads() {
        let [first, second, ..] = lull_host::usable_cores()[..] else {
            println!("SKIP: the machine has one core, and a group's pollers have one each");
            return;
        };
        let options = GroupOptions { oversubscribe: true, any_node: true, ..GroupOptions::default() };
        let group = Some(GroupSetup { cores: vec![first, second], options });
        let config = BenchConfig { connections: 1, group, ..BenchConfig::default() };
        let (service, _client) = mem::pair(MemConfig::default());
        let server = Server::start(Arc::new(service), ServerConfig::of_bench(&config, &[first])).unwrap();
        let mode = "group".parse().unwrap();
        server.set_mode(&mode).unwrap();
        let group = server.host().groups().remove(0);
        // One of the two pollers polls, and the other parks.
        let has_polled = |tid| thread_cpu_ns(tid).unwrap() >= 20_000_000;
        let poller = loop {
            if let Some(poller) = group.pollers.iter().find(|poller| has_polled(poller.tid)) {
                break poller;
            }
            std::thread::yield_now();
        };
        let before = server.counters();
        server.host().group_detach(group.id, poller.info.cpu).unwrap();
        let after = server.counters();
        let (warm_up, window, stop) = (Duration::ZERO, Duration::ZERO, AtomicBool::new(false));
        let run = Run { mode: &mode, load: Load::Max, offered_qps: None, run: 0, warm_up, window, stop: &stop };
        let row = server.row(&run, &Windowed { summary: Summary::default(), before, after, hardware: None });
        let percent = row.cpu_percent.unwrap();
        let most = 100.0 * server.threads().len() as f64;
        assert!((0.0..=most).contains(&percent), "{percent} % of a core");
    }
}
