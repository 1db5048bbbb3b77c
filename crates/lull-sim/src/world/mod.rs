//! A world: its parts, before anything happens. A run is a world and a seed.

mod clients;
mod cores;
mod flood;
mod group;
mod host;
mod pair;
mod queue;
mod xsk;

pub use clients::{ConnectionsSpec, NetSpec, SecondSpec, TraceSpec, Traffic, UpstreamSpec};
pub use cores::CoresSpec;
pub use flood::{FloodSpec, RelaySpec, SenderSpec, VcpuSpec};
pub use group::{GroupMemberSpec, GroupSpec};
pub use host::{GeneratorSpec, UserHost};
pub use pair::{PeerKind, PeerSpec, Receive, SocketSpec, Transmit};
pub use queue::{Masking, ModerationSpec, Period, QueueSpec, TransmitSpec};
pub use xsk::{XskSpec, XskThreadSpec, XskWait};

use lull_core::{AppPolicy, EpollOptions, EpollParams, Mode, Sysctl};

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::faults::FaultSpec;
use crate::engine::traffic::FrameSizes;

/// One epoll context.
#[derive(Clone, Debug, Default)]
pub struct ContextSpec {
    /// Its busy-poll parameters.
    pub params: EpollParams,
    /// Where it may differ from Linux.
    pub options: EpollOptions,
}

/// A thread that waits in an epoll context and serves requests.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its context.
    pub context: u32,
    /// Timeout of its `epoll_wait`, in nanoseconds; `None` waits for ever.
    pub timeout_ns: Option<u64>,
    /// How many events a call returns at the most.
    pub events_max: u32,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct World {
    /// The CPUs. Those with `true` are the service's, whose use is reported.
    pub cpus: Vec<bool>,
    /// What the CPUs share, and whether workers change their CPU.
    pub cores: CoresSpec,
    /// What things cost.
    pub costs: Costs,
    /// What delivery and application cost each other through the caches.
    pub cache: CacheSpec,
    /// lull's own host, if it delivers instead of a kernel.
    pub host: Option<UserHost>,
    /// System-wide settings.
    pub sysctl: Sysctl,
    /// Queues.
    pub queues: Vec<QueueSpec>,
    /// Busy-polling CPU groups.
    pub groups: Vec<GroupSpec>,
    /// Epoll contexts.
    pub contexts: Vec<ContextSpec>,
    /// Workers.
    pub workers: Vec<WorkerSpec>,
    /// The sockets at the ends of request/response pairs.
    pub sockets: Vec<SocketSpec>,
    /// The threads on these sockets.
    pub peers: Vec<PeerSpec>,
    /// AF_XDP sockets of responders, at most one a queue.
    pub xsks: Vec<XskSpec>,
    /// The threads on AF_XDP sockets that do not wait in epoll.
    pub xsk_threads: Vec<XskThreadSpec>,
    /// The clients' connections, group by group.
    pub connections: Vec<ConnectionsSpec>,
    /// The arrivals of connections with [`Traffic::Trace`].
    pub trace: Option<TraceSpec>,
    /// Which connections are a second application's, if there is one.
    pub second: Option<SecondSpec>,
    /// A flood of datagrams. A world with a flood has no other load.
    pub flood: Option<FloodSpec>,
    /// How many answers of one batch of events, which wait for one doorbell, leave together at the most.
    pub answers_together: u32,
    /// The parts of a hypervisor between its NIC and its guest's.
    pub relay: Option<RelaySpec>,
    /// The guest's CPU.
    pub vcpu: Option<VcpuSpec>,
    /// Network and clients.
    pub net: NetSpec,
    /// Whether the latency of an open-loop request counts from when it was due, as the lab's load counts, and not from
    /// when its connection was free for it, as mutilate counts. The times of waiting requests take memory
    /// ([`World::backlog_max`]).
    pub counts_from_due: bool,
    /// The sizes of frames, on which adaptive moderation depends.
    pub frames: FrameSizes,
    /// Which faults occur, and how often.
    pub faults: FaultSpec,
    /// The virtual time that passes before anything is counted, in nanoseconds.
    pub warmup_ns: u64,
    /// The virtual time in which a run counts, in nanoseconds.
    pub window_ns: u64,
    /// A server behind the service to which every request is passed on, if the service is a proxy.
    pub upstream: Option<UpstreamSpec>,
    /// The bound of a run's events.
    pub events_max: u64,
    /// The bound of the events that are pending at the same time, with which a run's memory grows.
    pub pending_max: u64,
    /// The bound of the open-loop requests that wait because their connection still waits for an answer.
    pub backlog_max: u64,
}

impl Default for World {
    fn default() -> World {
        World {
            cpus: vec![true],
            cores: CoresSpec::default(),
            costs: Costs::default(),
            cache: CacheSpec::default(),
            host: None,
            sysctl: Sysctl::default(),
            queues: Vec::new(),
            groups: Vec::new(),
            contexts: Vec::new(),
            workers: Vec::new(),
            sockets: Vec::new(),
            peers: Vec::new(),
            xsks: Vec::new(),
            xsk_threads: Vec::new(),
            connections: Vec::new(),
            trace: None,
            second: None,
            flood: None,
            answers_together: 1,
            relay: None,
            vcpu: None,
            net: NetSpec::default(),
            counts_from_due: false,
            frames: FrameSizes::Same(200),
            faults: FaultSpec::default(),
            warmup_ns: 50_000_000,
            window_ns: 200_000_000,
            upstream: None,
            events_max: 1_000_000_000,
            pending_max: 20_000_000,
            backlog_max: 1_000_000_000,
        }
    }
}

impl World {
    /// Returns how long going to sleep takes before the CPU is idle. On lull's own host the other half is the time in
    /// which the thread comes back, which is part of the way out of idle; a thread to which something comes meanwhile
    /// has no such way.
    pub(crate) fn falling_ns(&self) -> u64 {
        let both_ns = u64::from(self.costs.epoll_sleep_ns);
        if self.host.is_some() { both_ns / 2 } else { both_ns }
    }

    /// Makes `cores` cores, each with one queue, one worker and one epoll context under `mode`, and `connections`
    /// connections for each core. This has the shape of memcached with `-t N -N N`.
    pub fn epoll_service(cores: u16, mode: &Mode, connections: u32, traffic: Traffic) -> World {
        let timeout_ns = match mode.app {
            AppPolicy::Blocking => None,
            AppPolicy::TimeoutMs(ms) => Some(u64::from(ms) * 1_000_000),
        };
        let per_core = match traffic {
            Traffic::Open { per_s } => Traffic::Open { per_s: per_s / f64::from(cores) },
            Traffic::Renewal { per_s, shape } => Traffic::Renewal { per_s: per_s / f64::from(cores), shape },
            other => other,
        };
        World {
            cpus: vec![true; usize::from(cores)],
            queues: (0..cores).map(|cpu| QueueSpec { napi: mode.napi, ..QueueSpec::new(cpu) }).collect(),
            contexts: (0..cores)
                .map(|_| ContextSpec { params: mode.epoll, options: EpollOptions::default() })
                .collect(),
            workers: (0..cores)
                .map(|cpu| WorkerSpec { cpu, context: u32::from(cpu), timeout_ns, events_max: 4_096 })
                .collect(),
            connections: (0..cores)
                .map(|cpu| ConnectionsSpec {
                    count: connections,
                    queue: u32::from(cpu),
                    context: u32::from(cpu),
                    traffic: per_core,
                })
                .collect(),
            ..World::default()
        }
    }
}
