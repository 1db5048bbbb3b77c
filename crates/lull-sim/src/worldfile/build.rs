//! Builds the world that a file describes, in a mode under a load.

use lull_core::{AppPolicy, EpollOptions, Mode, NapiSettings, Threaded};

use super::file::{AGENDA_EVENT_BYTES, EVENTS_DEFAULT, Second, WAITING_REQUEST_BYTES, WorldFile};
use super::plane::WorkerCores;
use super::responder::{AfXdp, BUSY_BUDGET, Wait};
use super::transmit::TransmitQueues;
use crate::engine::dim::Moderation;
use crate::world::{
    ConnectionsSpec, ContextSpec, CoresSpec, ModerationSpec, PeerKind, PeerSpec, Period, QueueSpec, Receive,
    SecondSpec, SocketSpec, Traffic, Transmit, TransmitSpec, WorkerSpec, World, XskSpec, XskThreadSpec, XskWait,
};

/// CPUs of a twin: receiver, sender, poller.
const TWIN_CPUS: u16 = 3;
impl WorldFile {
    /// Makes the world in a mode under a load: [`Traffic::Open`] over all connections, or [`Traffic::Closed`]. If the
    /// workers are not pinned, they begin as with the seed 0.
    pub fn world(&self, mode: &Mode, traffic: Traffic, window_ns: u64) -> World {
        self.seeded_world(mode, traffic, window_ns, 0)
    }

    /// As [`WorldFile::world`]; the seed places workers that are not pinned.
    pub fn seeded_world(&self, mode: &Mode, traffic: Traffic, window_ns: u64, seed: u64) -> World {
        let timeout_ns = match mode.app {
            AppPolicy::Blocking => None,
            AppPolicy::TimeoutMs(ms) => Some(u64::from(ms) * 1_000_000),
        };
        // Workers have the first cores; NAPI threads have the rest, if there is any.
        let spare = self.cores - self.workers.min(self.cores);
        let thread_cpu = |queue: u16| match spare {
            0 => queue % self.cores,
            spare => self.workers + queue % spare,
        };
        // A mode that uses the NIC's coalescing has that of the mode instead of the file's.
        let fixed = mode.rx_usecs.map(|usecs| ModerationSpec::Fixed(Moderation { usecs, frames: u32::MAX }));
        let queue = |queue: u16| QueueSpec {
            napi: mode.napi,
            thread_cpu: thread_cpu(queue),
            rx: fixed.unwrap_or(self.rx),
            tx: fixed.unwrap_or(self.tx),
            rx_period: if fixed.is_some() { Period::First } else { self.rx_period },
            tx_period: if fixed.is_some() { Period::First } else { self.tx_period },
            ring_packets: self.ring_packets,
            completes_off_affinity: self.completes_off_affinity,
            tx_completions: self.tx_completions,
            ..QueueSpec::new(queue % self.workers.min(self.cores))
        };
        let mut queues: Vec<QueueSpec> = (0..self.queues).map(queue).collect();
        if let Some(transmit) = &self.transmit {
            let beside = (0..self.queues).map(|queue| transmit.beside(self, queue, &queues[usize::from(queue)]));
            queues.extend(beside.collect::<Vec<_>>());
        }
        let group = |polling| Some(self.group.as_ref()?.spec(polling, self.transmit.as_ref(), self.queues));
        let places = self.worker_cores.places(self.workers.min(self.cores), seed);
        let worker = |worker: u16| WorkerSpec {
            cpu: places[usize::from(worker) % places.len()],
            context: u32::from(worker),
            timeout_ns,
            events_max: self.events_max,
        };
        let options = EpollOptions { poll_after_returns: self.poll_after_returns, ..EpollOptions::strict_linux() };
        let world = World {
            cpus: vec![true; usize::from(self.cores)],
            cores: CoresSpec {
                per_l3: self.l3_cores,
                // In a closed loop no worker ever sleeps, so each stays where the run began.
                workers_move: self.worker_cores == WorkerCores::Any && traffic != Traffic::Closed,
                ..CoresSpec::default()
            },
            host: self.host,
            costs: self.costs.clone(),
            frames: self.frames,
            trace: self.arrivals.trace(),
            cache: self.cache.clone(),
            queues,
            contexts: (0..self.workers).map(|_| ContextSpec { params: mode.epoll, options }).collect(),
            workers: (0..self.workers).map(worker).collect(),
            groups: mode.group.and_then(group).into_iter().collect(),
            connections: self.connections_of(traffic),
            net: self.net.clone(),
            counts_from_due: true,
            upstream: self.upstream,
            answers_together: self.answers_together,
            warmup_ns: self.warmup_ns,
            window_ns,
            events_max: self.bounds.events_max,
            pending_max: self.bounds.memory_max_bytes / AGENDA_EVENT_BYTES,
            backlog_max: self.bounds.backlog_max.min(self.bounds.memory_max_bytes / WAITING_REQUEST_BYTES),
            ..World::default()
        };
        match (&self.xdp, &self.second) {
            (Some(xdp), _) => xdp.complete(self, mode, traffic, world),
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
                world.connections.push(ConnectionsSpec { count, queue, context, traffic: Traffic::Open { per_s } });
            }
        }
        world
    }

    /// Returns the connections by queue and worker. A worker has the queue of its number; with more queues than workers
    /// it has several, and with fewer a queue has several workers.
    fn connections_of(&self, traffic: Traffic) -> Vec<ConnectionsSpec> {
        let count = self.workers.max(self.queues);
        let counts = self.connections_by_group(count);
        let group = |index: u16| {
            let count = counts[usize::from(index)];
            let share = f64::from(count) / f64::from(self.connections);
            let traffic = match traffic {
                Traffic::Open { per_s } => self.arrivals.traffic(per_s, share),
                other => other,
            };
            ConnectionsSpec {
                count,
                queue: u32::from(index % self.queues),
                context: u32::from(index % self.workers),
                traffic,
            }
        };
        (0..count).map(group).filter(|group| group.count > 0).collect()
    }

    /// Returns how many connections each group has. A hash spreads them binomially. So that a world needs no seed, the
    /// groups are at equally likely places of that distribution (the normal one, by its logistic approximation).
    fn connections_by_group(&self, groups: u16) -> Vec<u32> {
        if let Some(spread) = &self.spread {
            return spread.clone();
        }
        let mean = f64::from(self.connections) / f64::from(groups);
        let deviation = if self.rss_spread { libm::sqrt(mean * (1.0 - 1.0 / f64::from(groups))) } else { 0.0 };
        let place = |group: u16| {
            let p = (f64::from(group) + 0.5) / f64::from(groups);
            mean + deviation * libm::log(p / (1.0 - p)) / 1.702
        };
        // The numbers are rounded so that the sum is right: each group ends where its running sum does.
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
}

impl AfXdp {
    /// Adds its part of the world: sockets, threads, and clients that are twins.
    fn complete(&self, file: &WorldFile, mode: &Mode, traffic: Traffic, mut world: World) -> World {
        let calls = mode.socket_busy_poll_usecs != 0;
        let transmit = match mode.napi.threaded {
            Threaded::BusyPoll => Transmit::Poll,
            _ if calls && self.separate => Transmit::Poll,
            _ if calls => Transmit::BusyPoll,
            _ => Transmit::Wakeup,
        };
        let xsk = |worker: u16| XskSpec {
            queue: u32::from(worker),
            context: (self.wait == Wait::Epoll).then_some(u32::from(worker)),
            transmit,
            batch: self.batch,
            busy_poll_usecs: mode.socket_busy_poll_usecs,
            prefer_busy_poll: calls,
            busy_poll_budget: BUSY_BUDGET,
        };
        world.xsks = (0..file.workers).map(xsk).collect();
        if self.wait == Wait::Epoll {
            return world;
        }
        let wait = if calls && !self.separate { XskWait::Call } else { XskWait::Spin };
        for (xsk, worker) in std::mem::take(&mut world.workers).into_iter().enumerate() {
            world.xsk_threads.push(XskThreadSpec { cpu: worker.cpu, xsk: xsk as u32, wait });
            if calls && self.separate {
                let cpu = world.queues[xsk].thread_cpu;
                world.xsk_threads.push(XskThreadSpec { cpu, xsk: xsk as u32, wait: XskWait::PollOnly });
            }
        }
        world.contexts.clear();
        match (self.twin_delay_ns, traffic) {
            (Some(delay_ns), Traffic::Open { per_s }) => {
                self.with_twins(file, per_s, delay_ns, (mode, transmit), world)
            }
            _ => world,
        }
    }

    /// Adds clients that are machines like this one in the same mode, on CPUs, queues and sockets after its own.
    fn with_twins(
        &self,
        file: &WorldFile,
        per_s: f64,
        delay_ns: u32,
        (mode, transmit): (&Mode, Transmit),
        mut world: World,
    ) -> World {
        let pairs = file.workers;
        let calls = mode.socket_busy_poll_usecs != 0;
        let socket = |own: u16, peer: u16, queue: u16, wire_ns: u32| SocketSpec {
            queue: u32::from(queue),
            tx_queue: u32::from(queue),
            peer: u32::from(peer),
            transmit,
            wire_ns,
            busy_poll_usecs: if own < pairs { mode.socket_busy_poll_usecs } else { 0 },
            prefer_busy_poll: calls,
            busy_poll_budget: BUSY_BUDGET,
        };
        let receive = if calls && !self.separate { Receive::Call } else { Receive::Spin };
        let kind = PeerKind::Taker { delay_ns: u64::from(delay_ns) };
        let period_ns = (1e9 * f64::from(pairs) / per_s).round().max(1.0) as u64;
        world.connections.clear();
        for pair in 0..pairs {
            let first = world.cpus.len() as u16;
            let (receiver, sender, poller) = (first, first + 1, first + 2);
            world.cpus.extend([false; TWIN_CPUS as usize]);
            let like = world.queues[usize::from(pair)].clone();
            world.queues.push(QueueSpec { cpu: receiver, thread_cpu: poller, ..like });
            let peer =
                |cpu: u16, kind: PeerKind, receive: Receive| PeerSpec { cpu, socket: u32::from(pair), kind, receive };
            world.peers.push(peer(receiver, kind, receive));
            world.peers.push(peer(sender, PeerKind::Pacer { period_ns }, Receive::Spin));
            if calls && self.separate {
                world.peers.push(peer(poller, PeerKind::Poller, Receive::Call));
            }
        }
        world.sockets = (0..pairs).map(|pair| socket(pair, pairs + pair, pairs + pair, world.net.request_ns)).collect();
        let servers = (0..pairs).map(|pair| socket(pairs + pair, pair, pair, world.net.answer_ns));
        world.sockets.extend(servers);
        world
    }
}

impl TransmitQueues {
    /// Makes the transmit queue beside a queue. As with lull's own stack it has a NAPI of its own, which neither defers
    /// nor has a thread, because it only handles what a sender's run leaves.
    fn beside(&self, file: &WorldFile, queue: u16, like: &QueueSpec) -> QueueSpec {
        let (_, answer_bits) = file.bits;
        QueueSpec {
            napi: NapiSettings::default(),
            transmits: Some(TransmitSpec {
                qdisc: self.qdisc,
                limits: self.limits,
                ring_frames: self.ring_frames,
                frame_bytes: (answer_bits / 8) as u32,
                frame_wire_ns: (answer_bits * 1_000_000_000).div_ceil(file.bits_per_s) as u32,
                reaped_by: file.tx_completions.then_some(u32::from(queue)),
            }),
            ..QueueSpec::new(like.cpu)
        }
    }
}
