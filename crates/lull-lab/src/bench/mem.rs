//! The bench on the in-memory NIC, which needs no root, no NIC and only one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lull_core::Mode;
use lull_host::{Clock as HostClock, pin_thread};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig, MemPort};

use super::measure::{Server, ServerConfig, epoll_note};
use super::window::pace;
use super::{Bench, BenchConfig, BenchError, CLIENT_IP, Cores, PORT, Run, SERVICE_IP, group_note, shares};
use crate::cell::RunResult;
use crate::load::wire::{CONNECTIONS_MAX, WireClient, WireConfig};
use crate::load::{Clock, Pace, Recorder, Summary, Workload};

/// How long all connections may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the service may take to close its ends. Connections that are left over are reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The host's clock, for a thread of the generator.
#[derive(Clone)]
pub struct TscClock(Arc<HostClock>);

impl Default for TscClock {
    fn default() -> TscClock {
        TscClock(Arc::new(HostClock::new()))
    }
}

impl Clock for TscClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

/// A service and polling generators at the two ends of an in-memory NIC.
pub struct MemBench {
    /// The core and the clients of each of the generator's threads. A client has a queue and an address of its own.
    clients: Vec<(usize, Vec<WireClient<TscClock>>)>,
    // The server is dropped after the clients, which hold queues of its peer.
    server: Server,
    _client_port: Arc<MemPort>,
    cores: Cores,
    config: BenchConfig,
}

impl MemBench {
    /// Starts the service, stores the records and opens the connections.
    ///
    /// # Errors
    ///
    /// This fails if there are more workers than cores, or if the service or the generator fails.
    pub fn start(config: BenchConfig) -> Result<MemBench, BenchError> {
        MemBench::start_with(config, Ok)
    }

    /// Starts the bench with decorators around the service's end of the NIC, such as [`lull_nic::pcap`] or
    /// [`lull_nic::fault`].
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`MemBench::start`], and if `decorate` fails.
    pub fn start_with(
        config: BenchConfig,
        decorate: impl FnOnce(Arc<dyn Device>) -> Result<Arc<dyn Device>, BenchError>,
    ) -> Result<MemBench, BenchError> {
        let cores = Cores::split(&config)?;
        MemBench::start_on(config, cores, decorate)
    }

    /// Starts the bench on the given cores, among which workers may share one.
    pub(crate) fn start_on(
        config: BenchConfig,
        cores: Cores,
        decorate: impl FnOnce(Arc<dyn Device>) -> Result<Arc<dyn Device>, BenchError>,
    ) -> Result<MemBench, BenchError> {
        config.validate()?;
        let generators = cores.generator.len();
        // Each connection has a port of its own at its client, so a large number of connections takes several clients.
        let clients = generators.max(config.connections.div_ceil(CONNECTIONS_MAX));
        if clients > CLIENTS_MAX {
            return Err(BenchError::Invalid(format!(
                "cannot make {clients} generators: their network has {CLIENTS_MAX} addresses; give fewer cores (--cores) or \
                 connections"
            )));
        }
        let (service_port, client_port) = mem::pair(MemConfig {
            queues: config.queues(),
            peer_queues: Some(clients),
            ring_slots: 4096.max((config.connections / config.queues() * 2).next_power_of_two()),
            ..MemConfig::default()
        });
        let (service_mac, client_mac) = (service_port.info().mac, client_port.info().mac);
        let client_port = Arc::new(client_port);
        let mut server_config = ServerConfig::of_bench(&config, &cores.service);
        server_config.network.neighbours = (0..clients).map(|index| (client_ip(index).into(), client_mac)).collect();
        let server = Server::start(decorate(Arc::new(service_port))?, server_config)?;
        let workload = Arc::new(Workload::new(config.workload)?);
        server.preload(&workload)?;
        let clock = TscClock::default();
        let threads = cores.generator.iter().map(|core| (*core, Vec::new())).collect();
        let mut bench =
            MemBench { clients: threads, server, _client_port: client_port.clone(), cores, config: config.clone() };
        for index in 0..clients {
            let share = config.connections / clients + usize::from(index < config.connections % clients);
            if share == 0 {
                continue;
            }
            let mut wire = WireConfig::new((client_mac, client_ip(index)), (SERVICE_IP, PORT), share);
            wire.peer_mac = Some(service_mac);
            wire.tx_checksum_offload = true;
            wire.seed = 1 + index as u64;
            let mut client = WireClient::new(wire, workload.clone(), client_port.take_queue(index)?, clock.clone())?;
            let port = client_port.clone();
            client.set_raise_counter(move || port.raise_ns(index));
            if clients > 1 {
                let port = client_port.clone();
                client.set_comes_back(move |local| {
                    let [from, to] = [(SERVICE_IP, PORT), (client_ip(index), local)].map(SocketAddr::from);
                    port.rss_queue(from, to) == Some(index)
                })?;
            }
            client.connect_all(CONNECT_TIMEOUT)?;
            bench.clients[index % generators].1.push(client);
        }
        Ok(bench)
    }

    /// Returns which cores a mode would need and the machine lacks, or `None` if the generator, the service and a
    /// group's pollers have cores of their own.
    pub fn short_of_cores(&self, mode: &Mode) -> Option<String> {
        if self.cores.shared {
            return Some("the generator shares a core with the service".to_owned());
        }
        let group = self.config.group.as_ref().filter(|_| mode.group.is_some())?;
        let short = |whom: &str| format!("the group's pollers share a core with {whom}");
        match (shares(group, &self.cores.service), shares(group, &self.cores.generator)) {
            (true, _) => Some(short("the service")),
            (false, true) => Some(short("the generator")),
            (false, false) => None,
        }
    }

    /// Returns the first core of the service and that of the generator.
    pub(crate) fn cores(&self) -> (usize, usize) {
        (self.cores.service[0], self.cores.generator[0])
    }

    /// Returns the number of the service's workers.
    pub fn workers(&self) -> usize {
        self.config.workers
    }

    /// Returns the service's side.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

/// The number of clients that can have addresses on the service's network, whose prefix has 24 bits.
const CLIENTS_MAX: usize = 253;

/// Returns the address of a client on the service's network. Each client has its own, so that their ports cannot
/// collide.
fn client_ip(index: usize) -> Ipv4Addr {
    let [a, b, c, first] = CLIENT_IP.octets();
    // The service has the address after the first client's.
    let host = if index == 0 { first } else { first + 1 + index as u8 };
    Ipv4Addr::new(a, b, c, host)
}

/// Runs the clients of one thread in turn, until the last has ended.
fn take_turns(
    clients: &mut [WireClient<TscClock>],
    run: &Run<'_>,
    pace: &(impl Fn(usize) -> Pace + Sync),
) -> Result<Vec<(Summary, Recorder)>, BenchError> {
    for client in &mut *clients {
        let pace = pace(client.connections());
        client.set_run(run.run);
        client.begin(pace, run.warm_up, run.window)?;
    }
    let mut stopped = false;
    loop {
        if !WireClient::poll_each(&mut *clients)? {
            return Ok(clients.iter_mut().map(|client| (client.finish(), client.recorder().clone())).collect());
        }
        if run.stop.load(Ordering::Relaxed) && !stopped {
            stopped = true;
            clients.iter_mut().for_each(WireClient::stop);
        }
    }
}

/// Runs the clients on their cores, and makes one summary of their recorders.
fn generate(
    clients: &mut [(usize, Vec<WireClient<TscClock>>)],
    run: &Run<'_>,
    pace: impl Fn(usize) -> Pace + Sync,
) -> Result<Summary, BenchError> {
    let open_loop = run.offered_qps.is_some();
    let pace = &pace;
    let summaries = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter_mut()
            .map(|(core, clients)| {
                scope.spawn(move || {
                    pin_thread(&[*core])?;
                    take_turns(clients, run, pace)
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(_) => Err(BenchError::Invalid("the generator panicked".to_owned())),
        };
        running.into_iter().map(join).collect::<Result<Vec<_>, BenchError>>()
    })?;
    let mut all = summaries.into_iter().flatten();
    let Some((mut summary, mut recorder)) = all.next() else {
        return Err(BenchError::Invalid("there is no generator".to_owned()));
    };
    for (other, other_recorder) in all {
        recorder.merge(&other_recorder);
        let unanswered = summary.unanswered + other.unanswered;
        let backlog = summary.backlog + other.backlog;
        let (retransmits, reconnects) =
            (summary.retransmits + other.retransmits, summary.reconnects + other.reconnects);
        summary = Summary { retransmits, reconnects, ..recorder.summarize(open_loop, unanswered, backlog) };
    }
    Ok(summary)
}

/// Runs the load of `run`. Each client has its share of the rate.
fn load(
    clients: &mut [(usize, Vec<WireClient<TscClock>>)],
    config: &BenchConfig,
    run: &Run<'_>,
) -> Result<Summary, BenchError> {
    generate(clients, run, |connections| match pace(config, run) {
        Pace::Open { qps, arrivals, depth } => {
            Pace::Open { qps: qps * connections as f64 / config.connections as f64, arrivals, depth }
        }
        pace => pace,
    })
}

impl MemBench {
    /// Runs the load with the settings that are in force, and leaves them so.
    ///
    /// # Errors
    ///
    /// This fails if the generator fails.
    pub fn observe(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let MemBench { clients, server, config, .. } = self;
        server.observe(run, |run| load(clients, config, run))
    }
}

impl Bench for MemBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let MemBench { clients, server, config, .. } = self;
        server.measure(run, |run| load(clients, config, run))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.server.notes();
        notes.extend(epoll_note(&self.config));
        notes.extend(group_note(&self.config, &self.cores));
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}

impl Drop for MemBench {
    fn drop(&mut self) {
        for client in self.clients.iter_mut().flat_map(|(_, clients)| clients) {
            client.close_all(CLOSE_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;
    use crate::cell::{Load, Standing};
    use crate::load::{DEPTH_MAX, WorkloadConfig};

    #[test]
    fn several_generators_have_addresses_and_answers_of_their_own() {
        assert!((0..CLIENTS_MAX).all(|index| client_ip(index) != SERVICE_IP));
        let core = lull_host::usable_cores()[0];
        let cores = Cores { service: vec![core], generator: vec![core; 2], spare: Vec::new(), shared: true };
        let workload = WorkloadConfig { records: 100, ..WorkloadConfig::default() };
        let config = BenchConfig { connections: 8, workload, ..BenchConfig::default() };
        let mut bench = MemBench::start_on(config, cores, Ok).unwrap();
        let (mode, stop) = ("base".parse().unwrap(), AtomicBool::new(false));
        let [warm_up, mut window] = [20, 200].map(Duration::from_millis);
        loop {
            let run = Run { mode: &mode, load: Load::Max, offered_qps: None, run: 0, warm_up, window, stop: &stop };
            if bench.run(&run).unwrap().qps > 0.0 {
                break;
            }
            assert!(window < Duration::from_secs(20), "nothing was answered in {window:?}");
            window *= 4;
        }
        assert!(bench.clients.iter().all(|(_, clients)| clients.len() == 1));
    }

    /// Without a warm-up every request counts that was due in the window.
    #[test]
    fn runs_have_arrivals_of_their_own_and_modes_of_one_run_the_same() {
        let core = lull_host::usable_cores()[0];
        let cores = Cores { service: vec![core], generator: vec![core], spare: Vec::new(), shared: true };
        let workload = WorkloadConfig { records: 100, ..WorkloadConfig::default() };
        // No connection reaches this depth. Otherwise a stall would give the later times to other connections.
        let config = BenchConfig { connections: 8, depth: DEPTH_MAX, workload, ..BenchConfig::default() };
        let mut bench = MemBench::start_on(config, cores, Ok).unwrap();
        let stop = AtomicBool::new(false);
        let mut due = |mode: &str, run| {
            let mode = mode.parse().unwrap();
            let (load, offered_qps) = (Load::Rate { qps: 1000 }, Some(1000.0));
            let [warm_up, window] = [0, 200].map(Duration::from_millis);
            let run = Run { mode: &mode, load, offered_qps, run, warm_up, window, stop: &stop };
            for _ in 0..100 {
                let answers = bench.run(&run).unwrap().answers.unwrap();
                // On a busy machine not all requests leave before the end.
                if answers.backlog == 0 {
                    return answers.asked();
                }
            }
            panic!("no run sends all that is due");
        };
        let first = due("base", 0);
        assert_eq!(due("suspend20", 0), first);
        let second = due("base", 1);
        assert_ne!(second, first);
        assert_eq!(due("suspend20", 1), second);
    }

    #[test]
    fn a_worker_that_spins_for_one_connection_is_not_the_limit() {
        let usable = lull_host::usable_cores();
        let [service, generator, ..] = usable[..] else {
            println!("SKIP: the machine has {} core, and a spinning worker needs one of its own", usable.len());
            return;
        };
        let cores = Cores { service: vec![service], generator: vec![generator], spare: Vec::new(), shared: false };
        let workload = WorkloadConfig { records: 100, ..WorkloadConfig::default() };
        let config = BenchConfig { connections: 1, workload, ..BenchConfig::default() };
        let mut bench = MemBench::start_on(config, cores, Ok).unwrap();
        let (mode, stop) = ("fullbusy".parse().unwrap(), AtomicBool::new(false));
        let [warm_up, window] = [20, 300].map(Duration::from_millis);
        let mut run_at = |load, offered_qps| {
            bench.run(&Run { mode: &mode, load, offered_qps, run: 0, warm_up, window, stop: &stop }).unwrap()
        };
        let max = run_at(Load::Max, None);
        assert!(!Standing::of_runs(Load::Max, std::slice::from_ref(&max)).counts(), "{max:?}");
        // At fifty requests a second the worker polls in vain for much of the time. On a busy machine the calls that it
        // makes each millisecond take most of the rest.
        let slow = run_at(Load::Rate { qps: 50 }, Some(50.0));
        let [all, busy] = [slow.cpu_percent, slow.server_cpu_percent].map(Option::unwrap);
        assert!(busy < all * 0.9, "{busy} % of {all} %");
    }
}
