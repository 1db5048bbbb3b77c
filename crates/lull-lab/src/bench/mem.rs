//! The bench on the in-memory NIC: no root, no NIC, one process.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lull_host::{Clock as HostClock, pin_thread};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig, MemPort};

use super::measure::{Server, ServerConfig, epoll_note};
use super::window::pace;
use super::{Bench, BenchConfig, BenchError, CLIENT_IP, Cores, PORT, Run, SERVICE_IP, group_note};
use crate::cell::RunResult;
use crate::load::wire::{WireClient, WireConfig};
use crate::load::{Clock, Pace, Recorder, Summary, Workload};

/// How long all connections may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the service may take to close its ends; connections left over are reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The host's clock, for a generator's thread.
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
    clients: Vec<(usize, WireClient<TscClock>)>,
    // It is dropped after the clients, which hold queues of its peer.
    server: Server,
    _client_port: Arc<MemPort>,
    cores: Cores,
    config: BenchConfig,
}

impl MemBench {
    /// Starts the service, stores the records and opens the connections.
    ///
    /// # Errors
    /// More workers than cores, or what the service or the generator meets.
    pub fn start(config: BenchConfig) -> Result<MemBench, BenchError> {
        MemBench::start_with(config, Ok)
    }

    /// The same with decorators around the service's end of the NIC, such as [`lull_nic::pcap`] or [`lull_nic::fault`].
    ///
    /// # Errors
    /// As [`MemBench::start`], and what `decorate` meets.
    pub fn start_with(
        config: BenchConfig,
        decorate: impl FnOnce(Arc<dyn Device>) -> Result<Arc<dyn Device>, BenchError>,
    ) -> Result<MemBench, BenchError> {
        let cores = Cores::split(&config)?;
        let (service_port, client_port) = mem::pair(MemConfig {
            queues: config.queues(),
            peer_queues: Some(cores.generator.len()),
            ring_slots: 4096.max((config.connections / config.queues() * 2).next_power_of_two()),
            ..MemConfig::default()
        });
        let (service_mac, client_mac) = (service_port.info().mac, client_port.info().mac);
        let client_port = Arc::new(client_port);
        let mut server_config = ServerConfig::of_bench(&config, &cores.service);
        server_config.network.neighbours = vec![(CLIENT_IP, client_mac)];
        let server = Server::start(decorate(Arc::new(service_port))?, server_config)?;
        let workload = Arc::new(Workload::new(config.workload)?);
        server.preload(&workload);
        let clock = TscClock::default();
        let mut bench =
            MemBench { clients: Vec::new(), server, _client_port: client_port.clone(), cores, config: config.clone() };
        let (IpAddr::V4(client_ip), IpAddr::V4(service_ip)) = (CLIENT_IP, SERVICE_IP) else {
            unreachable!("both are IPv4 literals")
        };
        let generators = bench.cores.generator.len();
        for (index, core) in bench.cores.generator.clone().into_iter().enumerate() {
            let share = config.connections / generators + usize::from(index < config.connections % generators);
            if share == 0 {
                continue;
            }
            // Each generator has an address of its own, so that their ports cannot collide.
            let octets = client_ip.octets();
            let own_ip = std::net::Ipv4Addr::new(octets[0], octets[1], index as u8, octets[3]);
            let own_ip = if index == 0 { client_ip } else { own_ip };
            let mut wire = WireConfig::new((client_mac, own_ip), (service_ip, PORT), share);
            wire.peer_mac = Some(service_mac);
            wire.tx_checksum_offload = true;
            wire.seed = 1 + index as u64;
            let mut client = WireClient::new(wire, workload.clone(), client_port.take_queue(index)?, clock.clone())?;
            let port = client_port.clone();
            client.set_raise_counter(move || port.raise_ns(index));
            client.connect_all(CONNECT_TIMEOUT)?;
            bench.clients.push((core, client));
        }
        Ok(bench)
    }

    /// The service's side.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

/// Runs every client on its core; their recorders make one summary.
fn generate(
    clients: &mut [(usize, WireClient<TscClock>)],
    run: &Run<'_>,
    pace: impl Fn(usize) -> Pace + Sync,
) -> Result<Summary, BenchError> {
    let open_loop = run.offered_qps.is_some();
    let pace = &pace;
    let summaries = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter_mut()
            .map(|(core, client)| {
                scope.spawn(move || {
                    pin_thread(&[*core])?;
                    let pace = pace(client.connections());
                    let summary = client.run(pace, run.warm_up, run.window, run.stop)?;
                    Ok::<(Summary, Recorder), BenchError>((summary, client.recorder().clone()))
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(_) => Err(BenchError::Invalid("the generator panicked".to_owned())),
        };
        running.into_iter().map(join).collect::<Result<Vec<_>, BenchError>>()
    })?;
    let mut all = summaries.into_iter();
    let Some((mut summary, mut recorder)) = all.next() else {
        return Err(BenchError::Invalid("there is no generator".to_owned()));
    };
    for (other, other_recorder) in all {
        recorder.merge(&other_recorder);
        let unanswered = summary.unanswered + other.unanswered;
        let backlog = summary.backlog + other.backlog;
        summary = recorder.summarize(open_loop, unanswered, backlog);
    }
    Ok(summary)
}

impl Bench for MemBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let MemBench { clients, server, config, .. } = self;
        // Each client has its share of the rate.
        let pace = |connections: usize| match pace(config, run) {
            Pace::Open { qps, arrivals, depth } => {
                Pace::Open { qps: qps * connections as f64 / config.connections as f64, arrivals, depth }
            }
            pace => pace,
        };
        server.measure(run, move || generate(clients, run, pace))
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
        for (_, client) in &mut self.clients {
            client.close_all(CLOSE_TIMEOUT);
        }
    }
}
