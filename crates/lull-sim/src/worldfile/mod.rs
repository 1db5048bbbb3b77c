//! World files: a machine and a service, described in a short TOML file.
//!
//! ```toml
//! [machine]
//! cores = 8
//! [nic]
//! speed = "100Gbit/s"
//! adaptive = true
//! [network]
//! latency = "25us"
//! [service]
//! kind = "epoll"
//! connections = 4480
//! request_cost = "6.2us"
//! ```
//!
//! Commented examples are in the crate's `worlds` directory ([`EXAMPLES`]). Values carry their units. Whatever is
//! unknown, impossible or without its unit is refused with file, line, key and what is allowed ([`WorldFileError`]);
//! what is left out has the default that [`WorldFile`] names. Costs come from a profile ([`crate::profile`]) and can be
//! overridden one by one.
//!
//! There are three kinds of service: `epoll`, `proxy` (its [`upstream`](WorldFile::upstream)), and `af_xdp` ([`AfXdp`]), whose costs a
//! frame are given part by part and not calibrated.
//!
//! `request_cost` is what was measured, and a measured cost has parts that the simulator charges apart (`epoll_wait`,
//! interference). So it is not put into the world as it stands: [`calibrate`] finds the application's own part with
//! which the simulated service, saturated in `base`, shows the measured figure.

mod af_xdp;
pub mod calibrate;
mod error;
mod raw;
mod resolve;

use std::path::Path;

use lull_core::{AppPolicy, EpollOptions, Mode};

pub use self::af_xdp::{AfXdp, Wait};
pub use self::error::WorldFileError;
pub use self::resolve::WIRE_SHARE_MAX;
use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::dim::Moderation;
use crate::profile::Profile;
use crate::world::{
    ConnectionsSpec, ContextSpec, Load, ModerationSpec, NetSpec, Period, QueueSpec, SecondSpec, UpstreamSpec,
    WorkerSpec, World,
};

/// The examples that ship, by name.
pub const EXAMPLES: [(&str, &str); 3] = [
    ("af_xdp.toml", include_str!("../../worlds/af_xdp.toml")),
    ("memcached.toml", include_str!("../../worlds/memcached.toml")),
    ("proxy.toml", include_str!("../../worlds/proxy.toml")),
];

/// A measured cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCost {
    /// CPU time of the serving thread, user and system, in nanoseconds a request (`request_cost`).
    Thread(u32),
    /// CPU time of everything on the service's cores, in nanoseconds a request (`request_cost_total`).
    Everything(u32),
    /// CPU time of an AF_XDP responder for a frame that comes alone, in nanoseconds: given part by part
    /// (`receive_cost`, `handle_cost`, `send_cost`), and not calibrated.
    Frame(u32),
}

impl RequestCost {
    /// In nanoseconds.
    pub fn ns(self) -> u32 {
        let (RequestCost::Thread(ns) | RequestCost::Everything(ns) | RequestCost::Frame(ns)) = self;
        ns
    }
}

/// A second application whose connections arrive on the same queues (`[second]`). It has one thread, which waits in an `epoll_wait`
/// that never busy polls, on the first core that has no worker of the service, or else on the last core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// Connections, spread evenly over the queues (`second.connections`).
    pub connections: u32,
    /// Requests per second over all of them, open loop (`second.load`).
    pub per_s: u32,
    /// CPU time of its thread for a request, in nanoseconds (`second.request_cost`).
    pub request_ns: u32,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events (`run.events_max`; default 500M).
    pub events_max: u64,
    /// Memory, in bytes (`run.memory_max`; default 1 GiB).
    pub memory_max_bytes: u64,
    /// Requests that wait for a connection (`run.backlog_max`; default 50M).
    pub backlog_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { events_max: 500_000_000, memory_max_bytes: 1 << 30, backlog_max: 50_000_000 }
    }
}

/// A machine and a service.
#[derive(Clone, Debug)]
pub struct WorldFile {
    /// The file's name without its ending.
    pub name: String,
    /// Cores that the service has, all of which count in `cpu_percent` (`machine.cores`).
    pub cores: u16,
    /// Worker threads, each with an epoll context (`service.workers`; default: one a core).
    pub workers: u16,
    /// Whether a worker runs on another core than its queue's interrupt (`service.worker_cores`; default: on the same).
    pub workers_elsewhere: bool,
    /// Queues of the NIC (`nic.queues`; default: one a worker).
    pub queues: u16,
    /// Connections over all workers (`service.connections`).
    pub connections: u32,
    /// What was measured of a request.
    pub request_cost: RequestCost,
    /// Interrupt moderation (`nic.adaptive`, or `nic.rx_usecs` and `nic.rx_frames`; default: adaptive).
    pub rx: ModerationSpec,
    /// The same for transmit completions (default: as receive).
    pub tx: ModerationSpec,
    /// From when the receive side's moderation period runs (`nic.restart`: whether each completion starts it again;
    /// default: as adaptive).
    pub rx_period: Period,
    /// From when the transmit side's does.
    pub tx_period: Period,
    /// Packets that a receive ring holds (`nic.ring`; default 1024).
    pub ring_packets: u32,
    /// Whether queues have as many connections as a hash gives them (`nic.rss = "hash"`, the default), or equally many.
    pub rss_spread: bool,
    /// The wire, in bits per second (`nic.speed`).
    pub bits_per_s: u64,
    /// A request and its answer on the wire, in bits, frames and headers included.
    pub bits: (u64, u64),
    /// Network and clients.
    pub net: NetSpec,
    /// The server behind, if the service is a proxy.
    pub upstream: Option<UpstreamSpec>,
    /// What it is, if the service is an AF_XDP responder.
    pub xdp: Option<AfXdp>,
    /// Events that a call of `epoll_wait` returns at most (`service.events_max`; default 1024).
    pub events_max: u32,
    /// Returns in a row that did not poll the queue, after which `epoll_wait` polls before it returns more events
    /// (`service.poll_after_returns`; default 0: never, as Linux).
    pub poll_after_returns: u32,
    /// A second application on the same queues.
    pub second: Option<Second>,
    /// Core frequency, in Hz (`machine.frequency`; default: the profile's).
    pub hz: u64,
    /// The profile of costs.
    pub profile: &'static Profile,
    /// Costs that the file overrides.
    pub overridden: Vec<&'static str>,
    /// Costs, with the calibrated request.
    pub costs: Costs,
    /// Interference.
    pub cache: CacheSpec,
    /// Virtual time before anything is counted (`run.warmup`; default 50 ms).
    pub warmup_ns: u64,
    /// Bounds.
    pub bounds: Bounds,
}

impl WorldFile {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`WorldFileError`].
    pub fn read(path: &Path) -> Result<WorldFile, WorldFileError> {
        let file = path.display().to_string();
        let unreadable = |error: std::io::Error| WorldFileError {
            file: file.clone(),
            line: 0,
            key: String::new(),
            problem: format!("cannot read the world file: {error}"),
        };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(unreadable(std::io::Error::other(format!(
                "it has {bytes} bytes, and at most {FILE_BYTES_MAX} are read"
            ))));
        }
        WorldFile::parse(&file, &std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads the text of a file that is named `file` in errors.
    ///
    /// # Errors
    /// See [`WorldFileError`].
    pub fn parse(file: &str, text: &str) -> Result<WorldFile, WorldFileError> {
        let source = error::Source { file, text };
        let raw = toml::from_str(text).map_err(|error| source.refused(&error))?;
        resolve::resolve(&source, &raw)
    }

    /// Whether the simulated service can be run in a mode.
    ///
    /// # Errors
    /// Why not: a mode that is not in force must not look as if it were.
    pub fn can_run(&self, mode: &Mode) -> Result<(), String> {
        if let Some(xdp) = &self.xdp {
            return xdp.can_run(mode, (self.cores, self.workers));
        }
        if mode.socket_busy_poll_usecs != 0 {
            return Err(format!(
                "{mode} busy polls in receive calls, and the simulated service waits in epoll: leave {mode} out"
            ));
        }
        Ok(())
    }

    /// What the program has to set on its sockets itself for a mode, if it has AF_XDP sockets and the mode busy polls in their calls.
    pub fn socket_options(&self, mode: &Mode) -> Option<String> {
        self.xdp.filter(|_| mode.socket_busy_poll_usecs != 0).map(|xdp| xdp.socket_options(mode))
    }

    /// Whether its clients can be asked for a load.
    ///
    /// # Errors
    /// Why not.
    pub fn can_offer(&self, load: Load) -> Result<(), String> {
        self.xdp.as_ref().map_or(Ok(()), |xdp| xdp.can_offer(load))
    }

    /// Requests per second that the wire carries, in the direction that is full first.
    pub fn wire_per_s(&self) -> f64 {
        // A proxy's requests and answers pass in both directions.
        let (request, answer) = match self.upstream {
            None => self.bits,
            Some(_) => (self.bits.0 + self.bits.1, self.bits.0 + self.bits.1),
        };
        self.bits_per_s as f64 / request.max(answer) as f64
    }

    /// The world in a mode under a load: [`Load::Open`] over all connections, or [`Load::Closed`].
    pub fn world(&self, mode: &Mode, load: Load, window_ns: u64) -> World {
        let timeout_ns = match mode.app {
            AppPolicy::Blocking => None,
            AppPolicy::TimeoutMs(ms) => Some(u64::from(ms) * 1_000_000),
        };
        // Workers have the first cores; NAPI threads what is left, if there is any.
        let spare = self.cores - self.workers.min(self.cores);
        let thread_cpu = |queue: u16| match spare {
            0 => queue % self.cores,
            spare => self.workers + queue % spare,
        };
        // A mode that asks the NIC for coalescing has it instead of the file's.
        let fixed = mode.rx_usecs.map(|usecs| ModerationSpec::Fixed(Moderation { usecs, frames: u32::MAX }));
        let queue = |queue: u16| QueueSpec {
            napi: mode.napi,
            thread_cpu: thread_cpu(queue),
            rx: fixed.unwrap_or(self.rx),
            tx: fixed.unwrap_or(self.tx),
            rx_period: if fixed.is_some() { Period::First } else { self.rx_period },
            tx_period: if fixed.is_some() { Period::First } else { self.tx_period },
            ring_packets: self.ring_packets,
            ..QueueSpec::new(queue % self.workers.min(self.cores))
        };
        let worker = |worker: u16| WorkerSpec {
            cpu: (worker + u16::from(self.workers_elsewhere)) % self.workers.min(self.cores),
            context: u32::from(worker),
            timeout_ns,
            events_max: self.events_max,
        };
        let options = EpollOptions { poll_after_returns: self.poll_after_returns, ..EpollOptions::strict_linux() };
        let world = World {
            cpus: vec![true; usize::from(self.cores)],
            costs: self.costs.clone(),
            cache: self.cache.clone(),
            queues: (0..self.queues).map(queue).collect(),
            contexts: (0..self.workers).map(|_| ContextSpec { params: mode.epoll, options }).collect(),
            workers: (0..self.workers).map(worker).collect(),
            connections: self.groups(load),
            net: self.net.clone(),
            upstream: self.upstream,
            warmup_ns: self.warmup_ns,
            window_ns,
            events_max: self.bounds.events_max,
            pending_max: self.bounds.memory_max_bytes / AGENDA_EVENT_BYTES,
            backlog_max: self.bounds.backlog_max,
            ..World::default()
        };
        match (&self.xdp, &self.second) {
            (Some(xdp), _) => xdp.complete(self, mode, load, world),
            (None, Some(second)) => self.with_second(world, second),
            (None, None) => world,
        }
    }

    fn with_second(&self, mut world: World, second: &Second) -> World {
        let cpu = if self.cores > self.workers { self.workers } else { self.cores - 1 };
        let context = world.contexts.len() as u32;
        world.contexts.push(ContextSpec::default());
        world.workers.push(WorkerSpec { cpu, context, timeout_ns: None, events_max: EVENTS_DEFAULT });
        world.second = Some(SecondSpec { first_group: world.connections.len() as u32, request_ns: second.request_ns });
        let queues = u32::from(self.queues);
        for queue in 0..queues {
            let count = second.connections / queues + u32::from(queue < second.connections % queues);
            let per_s = f64::from(second.per_s) * f64::from(count) / f64::from(second.connections);
            if count > 0 {
                world.connections.push(ConnectionsSpec { count, queue, context, load: Load::Open { per_s } });
            }
        }
        world
    }

    /// The connections by queue and worker: a worker has the queue of its number; with more queues than workers
    /// several, with fewer a queue has several workers.
    fn groups(&self, load: Load) -> Vec<ConnectionsSpec> {
        let count = self.workers.max(self.queues);
        let counts = self.connections_by_group(count);
        let group = |index: u16| {
            let count = counts[usize::from(index)];
            let share = f64::from(count) / f64::from(self.connections);
            let load = match load {
                Load::Open { per_s } => Load::Open { per_s: per_s * share },
                other => other,
            };
            ConnectionsSpec {
                count,
                queue: u32::from(index % self.queues),
                context: u32::from(index % self.workers),
                load,
            }
        };
        (0..count).map(group).filter(|group| group.count > 0).collect()
    }

    /// How many connections each group has. A hash spreads them binomially; so that a world needs no seed, the groups
    /// stand at equally likely places of that distribution (the normal one, by its logistic approximation).
    fn connections_by_group(&self, groups: u16) -> Vec<u32> {
        let mean = f64::from(self.connections) / f64::from(groups);
        let deviation = if self.rss_spread { libm::sqrt(mean * (1.0 - 1.0 / f64::from(groups))) } else { 0.0 };
        let place = |group: u16| {
            let p = (f64::from(group) + 0.5) / f64::from(groups);
            mean + deviation * libm::log(p / (1.0 - p)) / 1.702
        };
        // Rounded so that the sum is right: each group ends where its running sum does.
        let (mut sum, mut given) = (0.0, 0);
        (0..groups)
            .map(|group| {
                sum += place(group).max(0.0);
                let count = (libm::round(sum) as u32).clamp(given, self.connections) - given;
                given += count;
                if group + 1 == groups { count + self.connections - given } else { count }
            })
            .collect()
    }

    /// What it is, in a line.
    pub fn describe(&self) -> String {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let moderation = match self.rx {
            ModerationSpec::Adaptive => "adaptive moderation".to_owned(),
            ModerationSpec::Off => "no moderation".to_owned(),
            ModerationSpec::Fixed(fixed) => format!("rx-usecs {}, rx-frames {}", fixed.usecs, fixed.frames),
        };
        let cost = match self.request_cost {
            RequestCost::Thread(ns) => format!("{} a request", lull_units::time_text(u64::from(ns))),
            RequestCost::Everything(ns) => format!("{} a request, all told", lull_units::time_text(u64::from(ns))),
            RequestCost::Frame(_) => self.xdp.map_or(String::new(), |xdp| xdp.describe(&self.costs)),
        };
        let connections = match self.connections {
            0 => String::new(),
            connections => format!("{}, ", plural(connections, "connection")),
        };
        format!(
            "{}: {} at {:.1} GHz, NIC of {} Gbit/s with {} and {moderation}; {}{}, {connections}{cost}",
            self.name,
            plural(u32::from(self.cores), "core"),
            self.hz as f64 / 1e9,
            self.bits_per_s as f64 / 1e9,
            plural(u32::from(self.queues), "queue"),
            if self.upstream.is_some() { "proxy, " } else { "" },
            plural(u32::from(self.workers), "worker"),
        )
    }

    /// Where the costs come from, in a sentence.
    pub fn provenance(&self) -> String {
        let but = match self.overridden.as_slice() {
            [] => String::new(),
            keys => format!(", but for {} from the world file", keys.join(", ")),
        };
        if let Some(xdp) = &self.xdp {
            let counted = match xdp.twin_delay_ns {
                None => "",
                Some(_) => " Interrupts and polls are those of both ends, CPU is the responder's.",
            };
            return format!(
                "All figures are simulated, not measured: costs of profile '{}' ({}){but}; what a frame costs the \
                 responder is the world file's.{counted}",
                self.profile.name, self.profile.what
            );
        }
        format!(
            "All figures are simulated, not measured: costs of profile '{}' ({}){but}; the application's part of a \
             request \
             ({}) is fitted to the measured request cost.",
            self.profile.name,
            self.profile.what,
            lull_units::time_text(u64::from(
                self.costs.request_sys_ns + self.costs.request_user_ns + self.costs.request_random_ns
            )),
        )
    }
}

/// Events that a call of `epoll_wait` returns at most, if nobody says otherwise.
const EVENTS_DEFAULT: u32 = 1_024;

/// Longer world files are not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Memory that one event of the agenda takes.
pub(crate) const AGENDA_EVENT_BYTES: u64 = 64;
