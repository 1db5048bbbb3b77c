//! Two services on one queue: the batch limit of the first, and how long the packets of the second wait.
//!
//! While the first suspends interrupts, only it polls their queue, between two of its batches. Linux polls when the
//! first has no events left (§13 edge 18), so a small batch is no bound: everything that the last poll delivered is
//! served first. With `poll_after_returns` the first service polls after that number of batches, and the batch limit is
//! the bound.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lull_core::{AfterResume, EpollOptions, Mode};
use lull_host::{Host, HostConfig, pin_thread};
use lull_net::{EpollStats, Network, NetworkConfig};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_sim::{ConnectionsSpec, ContextSpec, QueueSpec, SecondSpec, Sim, Traffic, WorkerSpec, World};

use super::{CaseTable, Effort, Measure, Observed, Placed};
use crate::bench::{BenchError, PORT, TscClock};
use crate::cell::Standing;
use crate::cell::verdict::GENERATOR_BUSY_PERCENT_MAX;
use crate::check::{Evidence, enforcement};
use crate::load::clock::Clock;
use crate::load::recorder::Window;
use crate::load::wire::{CONNECTIONS_MAX, WireClient, WireConfig};
use crate::load::{Pace, Summary, Workload, WorkloadConfig};
use crate::memcached::{Store, StoreConfig, StoreMode};
use crate::service::{EVENTS_MAX, Limits, OwnService};

const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The addresses of the two generators; that of the second service has one of its own.
const CLIENT_IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 3)];
/// The port of the second service.
const SECOND_PORT: u16 = PORT + 1;
/// Connections of the second service's clients.
const SECOND_CONNECTIONS: usize = 4;
/// How long all connections may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the services may take to close their ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Virtual time that the simulator measures for a row, behind a warm-up.
const SIMULATED_NS: u64 = 300_000_000;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct BatchLimit {
    /// The batch limits of the first service.
    pub events_max: Vec<usize>,
    /// The first service's mode; the second waits for interrupts, as in `base`.
    pub mode: Mode,
    /// Connections of the first service, each of which always has an outstanding request.
    pub connections: usize,
    /// Requests that the second service gets each second.
    pub second_qps: f64,
    /// Cores for the first service, the second one and the generator. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
}

impl BatchLimit {
    /// Measures every batch limit as Linux polls, and with a poll after each return.
    ///
    /// # Errors
    ///
    /// This fails for an impossible batch limit, or if the services or the generator fail.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        self.check()?;
        let placed = Placed::new(&self.cores, &["the first service", "the second service", "the generator"])?;
        let mut table = self.table(&placed, effort)?;
        let options =
            [0, 1].map(|poll_after_returns| EpollOptions { poll_after_returns, ..EpollOptions::strict_linux() });
        let mut pairs = Vec::new();
        for options in options {
            pairs.push(Pair::start(self, &placed.cores, options)?);
        }
        let per_rule = self.events_max.len();
        table.measure(0..table.rows.len(), effort, &mut |row, run| {
            let pair = &mut pairs[row / per_rule];
            // The rows of one run have the same arrivals.
            pair.clients.iter_mut().for_each(|client| client.set_run(run));
            pair.run(&self.mode, self.events_max[row % per_rule], self.second_qps, effort)
        })?;
        Ok(table)
    }

    fn check(&self) -> Result<(), BenchError> {
        if self.events_max.is_empty() {
            return Err(BenchError::Invalid("cannot compare no batch limit: name one, such as 8".to_owned()));
        }
        if let Some(limit) = self.events_max.iter().find(|limit| !(1..=EVENTS_MAX).contains(limit)) {
            let what = format!("cannot take {limit} events at a time: use 1 to {EVENTS_MAX}");
            return Err(BenchError::Invalid(what));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            let what = format!("cannot have {} connections: use 1 to {CONNECTIONS_MAX}", self.connections);
            return Err(BenchError::Invalid(what));
        }
        if self.second_qps == 0.0 {
            let what = "cannot ask the second service 0 times a second, whose latency is measured: use at least 1";
            return Err(BenchError::Invalid(what.to_owned()));
        }
        Ok(())
    }

    /// Makes the rows, with the simulator's prediction for each.
    fn table(&self, placed: &Placed, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let measures = [
            Measure { name: "second_p50_us", help: "median latency of the second service" },
            Measure { name: "second_p99_us", help: "its 99th percentile" },
            Measure { name: "first_kqps", help: "what the first service answers, in thousands a second" },
            Measure {
                name: "first_events",
                help: "events that it gets of a call of epoll_wait that has any, on average",
            },
            Measure { name: "polls_per_s", help: "polls of the queue" },
        ];
        let title = format!(
            "Two services on one queue: the first, in {} and always busy, takes so many events from epoll at a time; the \
             second waits for whoever polls the queue.",
            self.mode
        );
        let mut table = CaseTable::new("batch-limit", &title, &["events-max", "poll-after-returns"], &measures);
        table.set_up = format!(
            "nic mem, {} and {SECOND_CONNECTIONS} connections, {} requests/s to the second; {}",
            self.connections,
            self.second_qps,
            effort.words()
        );
        for poll_after_returns in [0, 1] {
            for limit in &self.events_max {
                let simulated = self.simulated(*limit, poll_after_returns)?;
                let row = table.row(vec![limit.to_string(), after_returns(poll_after_returns).to_owned()]);
                row.short_of_cores.clone_from(&placed.short);
                for (value, simulated) in row.values.iter_mut().zip(simulated) {
                    value.simulated = Some(simulated);
                }
            }
        }
        table.notes.push(
            "Nothing of this is published; the simulated column is the fitted machine of the published runs, on which a \
             request of the first service costs more than here."
                .to_owned(),
        );
        Ok(table)
    }

    /// Simulates the same workload. Returns p50 and p99 of the second service.
    fn simulated(&self, events_max: usize, poll_after_returns: u32) -> Result<[f64; 2], BenchError> {
        let mut world = World::epoll_service(1, &self.mode, self.connections as u32, Traffic::Closed);
        world.cpus = vec![true; 2];
        world.queues = vec![QueueSpec { napi: self.mode.napi, ..QueueSpec::new(0) }];
        let options = EpollOptions { poll_after_returns, ..EpollOptions::strict_linux() };
        world.contexts = vec![ContextSpec { params: self.mode.epoll, options }, ContextSpec::default()];
        world.workers[0].events_max = events_max as u32;
        world.workers.push(WorkerSpec { cpu: 1, context: 1, timeout_ns: None, events_max: EVENTS_MAX as u32 });
        world.connections.push(ConnectionsSpec {
            count: SECOND_CONNECTIONS as u32,
            queue: 0,
            context: 1,
            traffic: Traffic::Open { per_s: self.second_qps },
        });
        let request_ns = world.costs.request_sys_ns + world.costs.request_user_ns;
        world.second = Some(SecondSpec { first_group: 1, request_ns });
        world.window_ns = SIMULATED_NS;
        world.counts_from_due = true;
        let outcome = Sim::new(&world, 1).run().map_err(|error| BenchError::Invalid(error.to_string()))?;
        let none = || BenchError::Invalid("the simulated second service answered nothing: raise its rate".to_owned());
        let second = outcome.second.filter(|second| !second.ns.is_empty()).ok_or_else(none)?;
        Ok([50.0, 99.0].map(|percentile| second.us(percentile)))
    }
}

fn after_returns(poll_after_returns: u32) -> &'static str {
    if poll_after_returns == 0 { "never (Linux)" } else { "1" }
}

/// Two services on the one queue of a network, with a generator for each in one thread.
struct Pair {
    // The fields are dropped in this order: clients hold queues of the network's peer, and services hold sockets of the
    // network.
    clients: [WireClient<TscClock>; 2],
    core: usize,
    first: OwnService,
    second: OwnService,
    network: Network,
    host: Host,
    _client_port: Arc<MemPort>,
}

impl Pair {
    fn start(case: &BatchLimit, cores: &[usize], epoll: EpollOptions) -> Result<Pair, BenchError> {
        let ring_slots = 4096.max((case.connections * 2).next_power_of_two());
        let (service_port, client_port) =
            mem::pair(MemConfig { peer_queues: Some(2), ring_slots, ..MemConfig::default() });
        let client_port = Arc::new(client_port);
        let (service_mac, client_mac) = (service_port.info().mac, client_port.info().mac);
        let cpus = vec![Some(cores[0]), Some(cores[1])];
        let host =
            Host::new(HostConfig { cpus, epoll, after_resume: AfterResume::Interrupt, ..HostConfig::default() })?;
        let config = NetworkConfig {
            addresses: vec![(SERVICE_IP.into(), 24)],
            neighbours: CLIENT_IPS.map(|ip| (IpAddr::V4(ip), client_mac)).to_vec(),
            cpus: vec![0],
            connections_max: case.connections + 64,
            ..NetworkConfig::default()
        };
        let network = Network::new(&host, Arc::new(service_port), config)?;
        let store = Arc::new(Store::new(StoreConfig::default()));
        let workload = Arc::new(Workload::new(WorkloadConfig { records: 1_000, ..WorkloadConfig::default() })?);
        workload.for_each_record(|key, value| {
            let _ = store.store(StoreMode::Set, key, value, 0, 0, 1);
        });
        let service = |cpu, port| {
            let address = SocketAddr::from((SERVICE_IP, port));
            OwnService::on_cpu(&network, cpu, address, store.clone(), Limits::default())
        };
        let (first, second) = (service(0, PORT)?, service(1, SECOND_PORT)?);
        let client = |index: usize, port: u16, connections: usize| {
            let mut wire = WireConfig::new((client_mac, CLIENT_IPS[index]), (SERVICE_IP, port), connections);
            wire.peer_mac = Some(service_mac);
            wire.tx_checksum_offload = true;
            wire.seed = 1 + index as u64;
            let clock = TscClock::default();
            let mut client = WireClient::new(wire, workload.clone(), client_port.take_queue(index)?, clock)?;
            let device = client_port.clone();
            client.set_comes_back(move |local| {
                let [from, to] = [(SERVICE_IP, port), (CLIENT_IPS[index], local)].map(SocketAddr::from);
                device.rss_queue(from, to) == Some(index)
            })?;
            client.connect_all(CONNECT_TIMEOUT)?;
            Ok::<_, BenchError>(client)
        };
        let clients = [client(0, PORT, case.connections)?, client(1, SECOND_PORT, SECOND_CONNECTIONS)?];
        Ok(Pair { clients, core: cores[2], first, second, network, host, _client_port: client_port })
    }

    /// Gives the first service its batch limit. Of the two waits that it begins meanwhile, the second certainly has the
    /// limit.
    fn limit_first(&self, events_max: usize) -> Result<(), BenchError> {
        let calls = || self.first.epolls().map(|epoll| epoll.stats().calls).sum::<u64>();
        for _ in 0..2 {
            let before = calls();
            self.first.set_events_max(events_max)?;
            while calls() == before {
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        mode: &Mode,
        events_max: usize,
        second_qps: f64,
        effort: &Effort<'_>,
    ) -> Result<Observed, BenchError> {
        // The application's half is put in force on both services, each with a mode of its own.
        let _ = self.network.set_mode(mode)?;
        self.first.set_mode(mode)?;
        self.limit_first(events_max)?;
        let base: Mode =
            "base".parse().map_err(|error: lull_core::ModeError| BenchError::Invalid(error.to_string()))?;
        self.second.set_mode(&base)?;
        let napi = self.network.napis()[0];
        let events = |service: &OwnService| service.epolls().map(lull_net::Epoll::stats).sum::<EpollStats>();
        let (host, service) = (&self.host, &self.first);
        let read = || (host.now_ns(), host.napi_stats(napi), events(service));
        let (clients, core) = (&mut self.clients, self.core);
        let (summaries, busy_percent, marks) = std::thread::scope(|scope| {
            let generating = scope.spawn(|| generate(clients, core, second_qps, effort, read));
            generating.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))?
        })?;
        let [(began_ns, before, events_before), (ended_ns, after, events_after)] = marks;
        let seconds = ended_ns.saturating_sub(began_ns).max(1) as f64 / 1e9;
        let calls = events_after.with_events - events_before.with_events;
        let events = events_after.events - events_before.events;
        let napi = after - before;
        let [first, second] = summaries;
        let evidence = Evidence::of_core(&napi, None, first.received);
        let answered = second.received > 0;
        let us = |ns: u64| answered.then(|| ns as f64 / 1e3);
        Ok(Observed {
            values: vec![
                us(second.latency_p50_ns),
                us(second.latency_p99_ns),
                Some(first.qps / 1e3),
                (calls > 0).then(|| events as f64 / calls as f64),
                Some(napi.polls as f64 / seconds),
            ],
            verdict: enforcement(mode, &evidence),
            load: Some(load_of(&second, busy_percent)),
        })
    }
}

/// The interval at which to check whether a service waits again.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Counters at the beginning and at the end of the window, so that polls and events cover the same time as the
/// latencies.
struct Marks<M>(Option<M>, Option<M>);

impl<M> Marks<M> {
    /// Reads the counters at the first moment in the window, and at the first one behind it.
    fn at(&mut self, now_ns: u64, window: Window, read: impl FnOnce() -> M) {
        if self.0.is_none() && window.contains(now_ns) {
            self.0 = Some(read());
        } else if self.0.is_some() && self.1.is_none() && now_ns >= window.to_ns {
            self.1 = Some(read());
        }
    }

    /// Returns both readings. A run that was stopped before its window began reads them now.
    fn both(self, read: impl Fn() -> M) -> [M; 2] {
        [self.0.unwrap_or_else(&read), self.1.unwrap_or_else(&read)]
    }
}

/// Whether the one generator of both services was fast enough for what the row says: requests to the second were on
/// time, and the first always had some.
fn load_of(second: &Summary, busy_percent: f64) -> Standing {
    if !second.kept_up {
        return Standing::GeneratorLate { reason: "the generator sent late to the second service".to_owned() };
    }
    if busy_percent > GENERATOR_BUSY_PERCENT_MAX {
        let reason = format!("generator {busy_percent:.1} % busy: the first service may have waited for it");
        return Standing::GeneratorBound { reason };
    }
    Standing::Counts
}

/// Generates both loads in one thread on one core: closed to the first service, open to the second. Returns what they
/// measured, how busy the thread was in percent, and what `read` returned at both ends of the window.
fn generate<M>(
    clients: &mut [WireClient<TscClock>; 2],
    core: usize,
    second_qps: f64,
    effort: &Effort<'_>,
    read: impl Fn() -> M,
) -> Result<([Summary; 2], f64, [M; 2]), BenchError> {
    pin_thread(&[core])?;
    let [first, second] = clients;
    first.begin(Pace::Closed { depth: 1 }, effort.warm_up, effort.window)?;
    second.begin(Pace::open(second_qps), effort.warm_up, effort.window)?;
    let mut stopped = false;
    let mut marks = Marks(None, None);
    loop {
        let goes_on = WireClient::poll_each([&mut *first, &mut *second])?;
        marks.at(first.clock().now_ns(), first.recorder().window(), &read);
        if !goes_on {
            let summaries = [first.finish(), second.finish()];
            let mut both = first.recorder().clone();
            both.merge(second.recorder());
            let busy_percent = 100.0 * both.summarize(false, 0, 0).busy_fraction;
            return Ok((summaries, busy_percent, marks.both(read)));
        }
        if effort.stop.load(Ordering::Relaxed) && !stopped {
            stopped = true;
            first.stop();
            second.stop();
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for client in &mut self.clients {
            client.close_all(CLOSE_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_that_is_late_or_has_no_time_left_is_told() {
        let second = |kept_up| Summary { kept_up, ..Summary::default() };
        assert!(load_of(&second(true), 90.0).counts());
        assert_eq!(load_of(&second(true), 90.1).to_string(), "generator-bound");
        assert_eq!(load_of(&second(false), 10.0).to_string(), "generator-late");
    }

    #[test]
    fn counters_are_read_where_the_window_begins_and_ends_and_not_around_warm_up_and_drain() {
        let mut marks = Marks(None, None);
        let mut window = Window { from_ns: 100, to_ns: 1_000 };
        for now_ns in [0, 50, 99, 103, 500, 999, 1_004, 1_500, 2_000] {
            marks.at(now_ns, window, || now_ns);
        }
        assert_eq!(marks.both(|| 0), [103, 1_004]);
        // A run that is stopped ends its window sooner.
        let mut stopped = Marks(None, None);
        stopped.at(200, window, || 200);
        window.to_ns = 300;
        stopped.at(400, window, || 400);
        assert_eq!(stopped.both(|| 0), [200, 400]);
        assert_eq!(Marks(None, None).both(|| 7), [7, 7]);
    }
}
