//! A world file, resolved: a machine and a service, and their names.

use lull_core::Mode;
use lull_units::counted;

use super::group::{self, PollingGroup};
use super::load::Arrivals;
use super::plane::WorkerCores;
use super::request_cost::RequestCost;
use super::responder::AfXdp;
use super::transmit::TransmitQueues;
use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::traffic::FrameSizes;
use crate::instructions::Instructions;
use crate::profile::Profile;
use crate::world::{ModerationSpec, NetSpec, Period, Traffic, UpstreamSpec, UserHost};

/// How many events a call of `epoll_wait` returns at the most, if the file does not say it.
pub const EVENTS_DEFAULT: u32 = 1_024;

/// Memory that one event of the agenda takes.
pub(crate) const AGENDA_EVENT_BYTES: u64 = 64;
/// The memory of a request that waits for its connection: when it was due, in a queue that is half empty.
pub(super) const WAITING_REQUEST_BYTES: u64 = 16;

/// A second application whose connections arrive on the same queues (`[second]`). It has one thread, which waits in an
/// `epoll_wait` that never busy polls, on the first core that has no worker of the service, or else on the last core.
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
    /// The file's name without its extension.
    pub name: String,
    /// The cores that the service has, all of which count in `cpu_percent` (`machine.cores`).
    pub cores: u16,
    /// Worker threads, each with an epoll context (`service.workers`; default: one for each core).
    pub workers: u16,
    /// Which core each worker runs on (`service.worker_cores`; default: that of its queue's interrupt).
    pub worker_cores: WorkerCores,
    /// How many cores share an L3 cache (`machine.l3_cores`; default: all do, which is 0).
    pub l3_cores: u16,
    /// The CPU group of the modes that a group polls (`[group]`).
    pub group: Option<PollingGroup>,
    /// Transmit queues with a queueing discipline, by which answers leave (`[transmit]`; default: none, applications put their
    /// frames on the rings).
    pub transmit: Option<TransmitQueues>,
    /// lull's own host, if it delivers instead of the kernel (`machine.plane = "user"`).
    pub host: Option<UserHost>,
    /// Queues of the NIC (`nic.queues`; default: one for each worker).
    pub queues: u16,
    /// The number of connections of all workers together (`service.connections`).
    pub connections: u32,
    /// The measured cost of a request.
    pub request_cost: RequestCost,
    /// Interrupt moderation (`nic.adaptive`, or `nic.rx_usecs` and `nic.rx_frames`; default: adaptive).
    pub rx: ModerationSpec,
    /// The same for transmit completions (default: as receive).
    pub tx: ModerationSpec,
    /// When a moderation period of the receive side begins (`nic.restart` says whether each completion begins it anew;
    /// by default it does if moderation is adaptive).
    pub rx_period: Period,
    /// When a moderation period of the transmit side begins.
    pub tx_period: Period,
    /// Packets that a receive ring holds (`nic.ring`; default 1024).
    pub ring_packets: u32,
    /// Whether queues have as many connections as a hash gives them (`nic.rss = "hash"`, the default), or equally many.
    pub rss_spread: bool,
    /// Connections of each queue, if they were counted (`nic.spread`).
    pub spread: Option<Vec<u32>>,
    /// Whether the driver completes a full poll off its interrupt's core (`nic.driver = "mlx5"`).
    pub completes_off_affinity: bool,
    /// The NIC of the lab over which the values were found, if they were found so (`nic.calibrated`).
    pub calibrated_over: Option<&'static str>,
    /// The instructions that a query takes, if they are known (`[instructions]`).
    pub instructions: Option<Instructions>,
    /// Whether the NIC reports sent frames by completions (`nic.tx_completions`; default: on the kernel plane).
    pub tx_completions: bool,
    /// When clients of an open loop send (`load.arrivals`; default: as a Poisson process).
    pub arrivals: Arrivals,
    /// The sizes of frames, on which adaptive moderation depends (`load.sizes`; default: all as `service.request_size`
    /// and `service.answer_size` say).
    pub frames: FrameSizes,
    /// Whether the file gives the size of a request or an answer (`service.request_size`, `service.answer_size`).
    pub sized: bool,
    /// The wire, in bits per second (`nic.speed`).
    pub bits_per_s: u64,
    /// A request and its answer on the wire, in bits, frames and headers included.
    pub bits: (u64, u64),
    /// The network and the clients.
    pub net: NetSpec,
    /// The server behind the service, if it is a proxy.
    pub upstream: Option<UpstreamSpec>,
    /// Its properties, if the service is an AF_XDP responder.
    pub xdp: Option<AfXdp>,
    /// Events that a call of `epoll_wait` returns at most (`service.events_max`; default 1024).
    pub events_max: u32,
    /// Answers of a batch of events that leave by one doorbell, at the most (`service.answers_together`; default 1).
    pub answers_together: u32,
    /// How many returns in a row may come without a poll of the queue, before `epoll_wait` polls again
    /// (`service.poll_after_returns`; default 0: any number, as in Linux).
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
    /// What delivery and application cost each other through the caches.
    pub cache: CacheSpec,
    /// Virtual time before anything is counted (`run.warmup`; default 50 ms).
    pub warmup_ns: u64,
    /// The bounds of a run.
    pub bounds: Bounds,
}

impl WorldFile {
    /// Checks whether the simulated service can be run in a mode.
    ///
    /// # Errors
    ///
    /// The error says why not: a mode that is not in force must not look as if it were.
    pub fn can_run(&self, mode: &Mode) -> Result<(), String> {
        if mode.group.is_some() && self.group.is_none() {
            return Err(group::missing(mode));
        }
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

    /// Returns what the program has to set on its sockets itself for a mode, if it has AF_XDP sockets and the mode busy
    /// polls in their calls.
    pub fn socket_options(&self, mode: &Mode) -> Option<String> {
        self.xdp.filter(|_| mode.socket_busy_poll_usecs != 0).map(|xdp| xdp.socket_options(mode))
    }

    /// Checks whether its clients can offer a load.
    ///
    /// # Errors
    ///
    /// The error says why not.
    pub fn can_offer(&self, traffic: Traffic) -> Result<(), String> {
        self.xdp.as_ref().map_or(Ok(()), |xdp| xdp.can_offer(traffic))
    }

    /// Returns the requests per second that the wire carries, in the direction that is full first.
    pub fn wire_per_s(&self) -> f64 {
        // A proxy's requests and answers pass in both directions.
        let (request, answer) = match self.upstream {
            None => self.bits,
            Some(_) => (self.bits.0 + self.bits.1, self.bits.0 + self.bits.1),
        };
        self.bits_per_s as f64 / request.max(answer) as f64
    }

    /// Returns the time of the network alone, there and back, in nanoseconds, and of the server behind a proxy: no
    /// answer comes sooner. Returns `None` for twins, whose wire is part of what is fitted.
    pub fn floor_ns(&self) -> Option<u64> {
        let twins = self.xdp.is_some_and(|xdp| xdp.twin_delay_ns.is_some());
        let behind_ns = self.upstream.map_or(0, |upstream| u64::from(upstream.answer_ns));
        (!twins).then(|| u64::from(self.net.request_ns) + u64::from(self.net.answer_ns) + behind_ns)
    }

    /// Returns a note on how workers and queues are matched, if they are not one to one.
    pub fn mismatch(&self) -> Option<String> {
        let (workers, queues) = (self.workers, self.queues);
        match workers.cmp(&queues) {
            std::cmp::Ordering::Greater => Some(format!(
                "{workers} workers share {}: a queue's packets are polled by whichever of its workers busy \
                 polls, and interrupts stay suspended for all of them; with a queue a worker (ethtool -L) each would \
                 have its own.",
                counted(queues, "queue")
            )),
            _ => None,
        }
    }

    /// Describes the file in a line.
    pub fn describe(&self) -> String {
        let moderation = match self.rx {
            ModerationSpec::Adaptive => "adaptive moderation".to_owned(),
            ModerationSpec::Off => "no moderation".to_owned(),
            ModerationSpec::Fixed(fixed) => format!("rx-usecs {}, rx-frames {}", fixed.usecs, fixed.frames),
        };
        let cost = match self.request_cost {
            RequestCost::Thread(ns) => format!("{} a request", lull_units::time_text(u64::from(ns))),
            RequestCost::Everything(ns) => format!("{} a request, all told", lull_units::time_text(u64::from(ns))),
            RequestCost::Own(ns) => format!("{} a request without delivery", lull_units::time_text(u64::from(ns))),
            RequestCost::Frame(_) => self.xdp.map_or(String::new(), |xdp| xdp.describe(&self.costs)),
        };
        let connections = match self.connections {
            0 => String::new(),
            connections => format!("{}, ", counted(connections, "connection")),
        };
        let group =
            self.group.as_ref().map_or(String::new(), |group| format!(", {}", group.describe(self.transmit.is_some())));
        let transmit = self.transmit.map_or(String::new(), |transmit| format!(", {}", transmit.describe()));
        let arrivals = self.arrivals.describe().map_or(String::new(), |arrivals| format!(", {arrivals}"));
        format!(
            "{}: {}{} at {:.1} GHz, NIC of {} Gbit/s with {} and {moderation}{transmit}{group}; {}{}, {connections}{cost}{arrivals}",
            self.name,
            if self.host.is_some() { "lull's own stack on " } else { "" },
            counted(self.cores, "core"),
            self.hz as f64 / 1e9,
            self.bits_per_s as f64 / 1e9,
            counted(self.queues, "queue"),
            if self.upstream.is_some() { "proxy, " } else { "" },
            counted(self.workers, "worker"),
        )
    }

    /// Says in a sentence where the costs come from.
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
        let part = match self.request_cost {
            RequestCost::Own(_) => "the world file's",
            _ => "fitted to the measured request cost",
        };
        format!(
            "All figures are simulated, not measured: costs of profile '{}' ({}){but}; the application's part of a \
             request ({}) is {part}.",
            self.profile.name,
            self.profile.what,
            lull_units::time_text(u64::from(
                self.costs.request_sys_ns + self.costs.request_user_ns + self.costs.request_random_ns
            )),
        )
    }
}
