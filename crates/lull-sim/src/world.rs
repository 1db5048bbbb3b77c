//! A world: what there is, before anything happens. A run is a world and a seed.

use lull_core::{AppPolicy, EpollOptions, EpollParams, Mode, NapiSettings, Sysctl};

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::engine::dim::Moderation;
use crate::engine::faults::FaultSpec;
use crate::engine::traffic::FrameSizes;

/// How a completion queue's interrupt is moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModerationSpec {
    /// Every completion interrupts at once.
    Off,
    /// A fixed profile.
    Fixed(Moderation),
    /// Adaptive: [`crate::engine::dim::Dim`] walks along the profiles.
    Adaptive,
}

/// From when a moderation period runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// From each completion anew: it ends when none came for so long (mlx5's receive queues from ConnectX-4 on).
    Completion,
    /// From the first completion that was not reported yet.
    First,
    /// From the interrupt before: it bounds the rate of interrupts (mlx5's transmit queues).
    Interrupt,
}

/// One queue pair of the NIC, with its NAPI.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    /// Where its interrupt goes.
    pub cpu: u16,
    /// The settings of its NAPI.
    pub napi: NapiSettings,
    /// Where its NAPI thread runs, if it is threaded.
    pub thread_cpu: u16,
    /// Packets after which its NAPI thread, while it goes on polling, lets other threads run. 0: after each poll, as Linux since
    /// 5.12; for the letter of 2016 `netdev_budget` is assumed.
    pub thread_packets: u32,
    /// Moderation of the receive completions.
    pub rx: ModerationSpec,
    /// Moderation of the transmit completions.
    pub tx: ModerationSpec,
    /// From when the receive side's moderation period runs.
    pub rx_period: Period,
    /// From when the transmit side's does.
    pub tx_period: Period,
    /// Packets that the receive ring holds; more are dropped.
    pub ring_packets: u32,
    /// Whether GRO holds packets after a poll that took some.
    pub gro_holds: bool,
    /// How the device masks.
    pub masking: Masking,
    /// Whether it has a NAPI thread even while it is not threaded, so that it may become so.
    pub has_thread: bool,
    /// The interrupt vector that it shares with the other queues of the same number; `None` is one of its own. What queues of a
    /// vector report until its handler has ended, that handler takes (mlx4: a transmit ring has the vector of its receive ring,
    /// and `mlx4_eq_int` goes on until the event queue is empty).
    pub vector: Option<u32>,
}

/// How a device's interrupt is masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masking {
    /// Raising disarms it, arming looks at the ring (completion queues of mlx5).
    #[default]
    Disarm,
    /// The handler masks it after it scheduled; unmasking reports what came while it was masked, and does not look at the
    /// ring (message-signalled interrupts of most others).
    Mask,
}

impl QueueSpec {
    /// A queue on this CPU with default settings, no moderation and a ring of 1024.
    pub fn new(cpu: u16) -> QueueSpec {
        QueueSpec {
            cpu,
            napi: NapiSettings::default(),
            thread_cpu: cpu,
            thread_packets: 0,
            rx: ModerationSpec::Off,
            tx: ModerationSpec::Off,
            rx_period: Period::Completion,
            tx_period: Period::Interrupt,
            ring_packets: 1_024,
            gro_holds: false,
            masking: Masking::Disarm,
            has_thread: false,
            vector: None,
        }
    }
}

/// One epoll context.
#[derive(Clone, Debug, Default)]
pub struct ContextSpec {
    /// Its busy-poll parameters.
    pub params: EpollParams,
    /// Where it may differ from Linux.
    pub options: EpollOptions,
}

/// A thread that waits in an epoll context and serves what comes.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its context.
    pub context: u32,
    /// Timeout of its `epoll_wait`, in nanoseconds; `None` waits for ever.
    pub timeout_ns: Option<u64>,
    /// Events per call at most.
    pub events_max: u32,
}

/// A group of connections of one queue, watched by one context.
#[derive(Clone, Debug)]
pub struct ConnectionsSpec {
    /// How many.
    pub count: u32,
    /// Their queue.
    pub queue: u32,
    /// The context that watches them.
    pub context: u32,
    /// How they are loaded.
    pub load: Load,
}

/// How the frames of a socket reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// Within the send call (TCP).
    Doorbell,
    /// By the next poll of the NAPI, whoever makes it: the program makes no call.
    Poll,
    /// By a poll that the send call schedules on its own CPU (`ndo_xsk_wakeup` of drivers that call `napi_schedule`, as gve).
    Wakeup,
    /// By the round of busy polling that the send call makes (`xsk_sendmsg` of a socket with SO_BUSY_POLL); by the owner if
    /// somebody else polls.
    BusyPoll,
}

/// One end of a request/response pair.
#[derive(Clone, Debug)]
pub struct SocketSpec {
    /// The queue that its packets arrive on.
    pub queue: u32,
    /// The queue that it sends on.
    pub tx_queue: u32,
    /// The other end.
    pub peer: u32,
    /// How its frames reach the device.
    pub transmit: Transmit,
    /// From the device's doorbell to the other end's ring.
    pub wire_ns: u32,
    /// SO_BUSY_POLL, in microseconds; 0 is off.
    pub busy_poll_usecs: u32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer_busy_poll: bool,
    /// SO_BUSY_POLL_BUDGET; 0 is the default.
    pub busy_poll_budget: u32,
}

/// What a thread of a request/response pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// Sends a request, waits for the answer, and sends the next.
    Requester,
    /// Answers each message.
    Responder,
    /// Sends a message every so many nanoseconds, answered or not.
    Pacer {
        /// The period, in nanoseconds.
        period_ns: u64,
    },
    /// Takes answers, and is busy for so long after each.
    Taker {
        /// The application's delay, in nanoseconds.
        delay_ns: u64,
    },
    /// Makes receive calls for nothing but their polling.
    Poller,
}

/// How a thread waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// In a blocking call, which busy polls first if the socket's options say so.
    Block,
    /// By looking at the socket's ring in user space.
    Spin,
    /// By non-blocking calls while the ring is empty.
    Call,
}

/// A thread of a request/response pair.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its socket.
    pub socket: u32,
    /// What it does.
    pub kind: PeerKind,
    /// How it waits.
    pub receive: Receive,
}

/// An AF_XDP socket of a responder. It takes every request and message of its queue.
#[derive(Clone, Debug)]
pub struct XskSpec {
    /// The queue that it is bound to.
    pub queue: u32,
    /// The epoll context that watches it, if one does.
    pub context: Option<u32>,
    /// How its frames reach the device.
    pub transmit: Transmit,
    /// Frames that its program takes at a time, and answers with one send call.
    pub batch: u32,
    /// SO_BUSY_POLL, in microseconds; 0 is off.
    pub busy_poll_usecs: u32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer_busy_poll: bool,
    /// SO_BUSY_POLL_BUDGET; 0 is the default.
    pub busy_poll_budget: u32,
}

/// What a thread of an AF_XDP socket does that does not wait in epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XskWait {
    /// Answers frames, and looks at the ring in user space while there are none.
    Spin,
    /// Answers frames, and makes non-blocking receive calls while there are none.
    Call,
    /// Makes receive calls for nothing but their polling: somebody else answers.
    PollOnly,
}

/// A thread of an AF_XDP socket that does not wait in epoll; one that does is a [`WorkerSpec`].
#[derive(Clone, Copy, Debug)]
pub struct XskThreadSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its socket, by its place in [`World::xsks`].
    pub xsk: u32,
    /// What it does.
    pub wait: XskWait,
}

/// How a group of connections is loaded. A connection has at most one request outstanding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: arrivals of a Poisson process, spread evenly over the group. An arrival for a connection that still waits
    /// is issued when its answer has come; its latency counts from then on, as mutilate counts.
    Open {
        /// Requests per second, over the whole group.
        per_s: f64,
    },
    /// Open loop: every connection has gaps of its own, which are independent of one another and follow a generalised Pareto
    /// distribution (mutilate's `fb_ia`). An arrival for a connection that still waits is treated as under `Open`.
    Renewal {
        /// Requests per second, over the whole group.
        per_s: f64,
        /// Shape of the distribution, above 0 and below 1.
        shape: f64,
    },
    /// Closed loop: a connection issues its next request as soon as it has its answer.
    Closed,
    /// Datagrams that are served and not answered, as a Poisson process.
    Datagrams {
        /// Datagrams per second, over the whole group.
        per_s: f64,
    },
    /// Packets that nobody serves, as a Poisson process: other traffic of the machine.
    Noise {
        /// Packets per second.
        per_s: f64,
    },
}

/// Network and clients.
#[derive(Clone, Debug, PartialEq)]
pub struct NetSpec {
    /// From the client's call until the request is in the server's NIC.
    pub request_ns: u32,
    /// From the server's NIC until the answer is in the client's NIC and handled there, without what follows.
    pub answer_ns: u32,
    /// Further time until the client's program has it: mean of an exponential part.
    pub client_random_ns: u32,
    /// Share of answers that the client takes longer for (its interrupt moderation, its other connections), in 1/1024.
    pub slow_share: u32,
    /// How much longer: from.
    pub slow_min_ns: u32,
    /// How much longer: to.
    pub slow_max_ns: u32,
    /// From the answer's arrival in the client until its acknowledgement is in the server's NIC.
    pub ack_ns: u32,
    /// From the server's doorbell until the transmit completion is written.
    pub tx_done_ns: u32,
    /// After which a lost request is sent again.
    pub retransmit_ns: u64,
}

impl Default for NetSpec {
    fn default() -> NetSpec {
        NetSpec {
            request_ns: 10_000,
            answer_ns: 10_000,
            client_random_ns: 2_000,
            slow_share: 0,
            slow_min_ns: 0,
            slow_max_ns: 0,
            ack_ns: 8_000,
            tx_done_ns: 2_000,
            retransmit_ns: 200_000_000,
        }
    }
}

/// The server behind a proxy. A request is served twice: it is passed on, and what comes back is passed to the client. Its
/// answer reaches the same queue as the client's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// From the proxy's NIC to the server behind it and back.
    pub answer_ns: u32,
    /// Further time: mean of an exponential part.
    pub random_ns: u32,
}

/// A second application on the queues of the first: a service with an epoll context, worker and connections of its own.
///
/// Its packets are taken off the ring by whoever polls the queue. While the first application suspends interrupts, that is the first
/// application alone, between two of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondSpec {
    /// Groups of connections from this one on are its.
    pub first_group: u32,
    /// What a request costs it, in nanoseconds; the first application's is [`Costs::request_sys_ns`] and
    /// [`Costs::request_user_ns`].
    pub request_ns: u32,
}

/// The machine that a flood comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SenderSpec {
    /// A send call of one frame, without its bytes, in nanoseconds.
    pub datagram_ns: u32,
    /// Each further frame of a datagram, in nanoseconds.
    pub fragment_ns: u32,
    /// A byte, in picoseconds.
    pub byte_ps: u32,
    /// Senders that make progress at once, at most: its cores, less what they take from each other.
    pub cores: f64,
}

/// A flood of datagrams, and a sink for each of its flows.
#[derive(Clone, Debug, PartialEq)]
pub struct FloodSpec {
    /// Flows, each with a sender and a sink.
    pub flows: u32,
    /// Payload of a datagram, in bytes.
    pub bytes: u32,
    /// The wire's MTU, in bytes.
    pub mtu: u32,
    /// The wire, in bits per second.
    pub wire_bits_per_s: u64,
    /// The queues that the flows arrive on, in turn. Fragments carry no ports: their flows have one queue.
    pub queues: Vec<u32>,
    /// The senders.
    pub sender: SenderSpec,
    /// The CPU of the sinks.
    pub sink_cpu: u16,
    /// SO_RCVBUF as the kernel counts it, in bytes.
    pub receive_buffer_bytes: u32,
    /// Memory that a packet takes in it (`truesize`), in bytes.
    pub buffer_small_bytes: u32,
    /// What is added to that by a packet that is not copied into its head, in bytes.
    pub buffer_large_bytes: u32,
    /// Packets up to this size are copied into their head, in bytes.
    pub copied_bytes: u32,
}

impl Default for FloodSpec {
    /// 10 Gbit/s, and the buffers of Linux's virtio_net.
    fn default() -> FloodSpec {
        FloodSpec {
            flows: 1,
            bytes: 64,
            mtu: 1_500,
            wire_bits_per_s: 10_000_000_000,
            queues: vec![0],
            sender: SenderSpec::default(),
            sink_cpu: 0,
            receive_buffer_bytes: 212_992,
            buffer_small_bytes: 768,
            buffer_large_bytes: 1_536,
            copied_bytes: 114,
        }
    }
}

/// What a hypervisor puts between its NIC and its guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelaySpec {
    /// The CPU of the thread that copies frames to the guest (vhost).
    pub cpu: u16,
    /// The guest's queue; all others are the hypervisor's.
    pub guest_queue: u32,
    /// Frames that the guest's device holds in the hypervisor (tun).
    pub queue_frames: u32,
    /// Receiving a frame and handing it to that device, in nanoseconds.
    pub forward_ns: u32,
    /// Copying a frame to the guest, without its bytes, in nanoseconds.
    pub copy_ns: u32,
    /// How long a CPU holds the lock of the device's queue, with the lock's way between caches, in nanoseconds.
    pub lock_ns: u32,
    /// Interrupting the guest, in nanoseconds of the thread that does.
    pub signal_ns: u32,
}

/// A CPU that is a thread of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuSpec {
    /// The guest's CPU.
    pub guest_cpu: u16,
    /// The hypervisor's CPU that its thread runs on.
    pub host_cpu: u16,
    /// The hypervisor's CPU that interrupts it, and wakes its thread.
    pub interrupted_by: u16,
    /// Leaving the guest and coming back, in nanoseconds.
    pub exit_ns: u32,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct World {
    /// CPUs: those with `true` are the service's, whose use is reported.
    pub cpus: Vec<bool>,
    /// What things cost.
    pub costs: Costs,
    /// Interference.
    pub cache: CacheSpec,
    /// System-wide settings.
    pub sysctl: Sysctl,
    /// Queues.
    pub queues: Vec<QueueSpec>,
    /// Epoll contexts.
    pub contexts: Vec<ContextSpec>,
    /// Workers.
    pub workers: Vec<WorkerSpec>,
    /// Ends of request/response pairs.
    pub sockets: Vec<SocketSpec>,
    /// Their threads.
    pub peers: Vec<PeerSpec>,
    /// AF_XDP sockets of responders, at most one a queue.
    pub xsks: Vec<XskSpec>,
    /// Their threads that do not wait in epoll.
    pub xsk_threads: Vec<XskThreadSpec>,
    /// Connections.
    pub connections: Vec<ConnectionsSpec>,
    /// Which connections are a second application's, if there is one.
    pub second: Option<SecondSpec>,
    /// A flood of datagrams. A world that has one has no other load.
    pub flood: Option<FloodSpec>,
    /// What a hypervisor puts between its NIC and its guest's.
    pub relay: Option<RelaySpec>,
    /// The guest's CPU.
    pub vcpu: Option<VcpuSpec>,
    /// Network and clients.
    pub net: NetSpec,
    /// Sizes of frames, which adaptive moderation looks at.
    pub frames: FrameSizes,
    /// What goes wrong.
    pub faults: FaultSpec,
    /// Before anything is counted.
    pub warmup_ns: u64,
    /// What is counted.
    pub window_ns: u64,
    /// A server behind the service that every request is passed on to, if the service is a proxy.
    pub upstream: Option<UpstreamSpec>,
    /// Bound of a run: events of the agenda.
    pub events_max: u64,
    /// Bound of a run: events that lie ahead at the same time, which is what a run's memory grows with.
    pub pending_max: u64,
    /// Bound of a run: open-loop arrivals that wait because their connection still waits for an answer.
    pub backlog_max: u64,
}

impl Default for World {
    fn default() -> World {
        World {
            cpus: vec![true],
            costs: Costs::default(),
            cache: CacheSpec::default(),
            sysctl: Sysctl::default(),
            queues: Vec::new(),
            contexts: Vec::new(),
            workers: Vec::new(),
            sockets: Vec::new(),
            peers: Vec::new(),
            xsks: Vec::new(),
            xsk_threads: Vec::new(),
            connections: Vec::new(),
            second: None,
            flood: None,
            relay: None,
            vcpu: None,
            net: NetSpec::default(),
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
    /// `cores` cores, each with one queue, one worker and one epoll context under `mode`, and `connections` connections a
    /// core: the shape of memcached with `-t N -N N`.
    pub fn epoll_service(cores: u16, mode: &Mode, connections: u32, load: Load) -> World {
        let timeout_ns = match mode.app {
            AppPolicy::Blocking => None,
            AppPolicy::TimeoutMs(ms) => Some(u64::from(ms) * 1_000_000),
        };
        let per_core = match load {
            Load::Open { per_s } => Load::Open { per_s: per_s / f64::from(cores) },
            Load::Renewal { per_s, shape } => Load::Renewal { per_s: per_s / f64::from(cores), shape },
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
                    load: per_core,
                })
                .collect(),
            ..World::default()
        }
    }
}
