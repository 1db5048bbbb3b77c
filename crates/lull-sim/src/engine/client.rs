//! Clients and network: which client asks when, and how long messages take.
//!
//! As with mutilate, a connection has one request outstanding at the most. An open-loop arrival for a connection that
//! waits for an answer is issued when the answer has come. Its latency counts from then on, as mutilate counts, or from
//! when it was due ([`World::counts_from_due`]).

use std::collections::VecDeque;

mod arrivals;
mod asking;
mod generator;

use self::asking::Generator;
pub(crate) use self::asking::Source;
use crate::engine::agenda::{Event, PacketKind};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{ConnId, ContextId, CpuId, QueueId, SourceId, Table};
use crate::engine::nic::{Nic, Packet};
use crate::engine::rng::{Component, Stream};
use crate::engine::thread::Segment;
use crate::world::{NetSpec, Traffic, World};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue: QueueId,
    /// The epoll context that it is in; `None` if it belongs to a socket of another kind.
    pub(crate) context: Option<ContextId>,
    /// The group of clients that sends on it, if there is one.
    source: Option<SourceId>,
    outstanding: bool,
    /// Open-loop arrivals that wait for the answer.
    backlog: u32,
    /// When these were due, if latency counts from then.
    due_ns: VecDeque<u64>,
    start_ns: u64,
    /// Whether the proxy has passed the request on.
    passed_on: bool,
    /// The clock of interference when the connection was last touched.
    touched: u64,
    /// The CPU that last touched it.
    touched_by: Option<CpuId>,
}

impl Connection {
    pub(crate) fn new(queue: QueueId, context: Option<ContextId>, source: Option<SourceId>) -> Connection {
        Connection {
            queue,
            context,
            source,
            outstanding: false,
            backlog: 0,
            due_ns: VecDeque::new(),
            start_ns: 0,
            passed_on: false,
            touched: 0,
            touched_by: None,
        }
    }

    /// Notes that this CPU touches the connection, and returns what that costs, if a cold connection costs `cold_ns`
    /// and one that was touched behind another L3 `cross_ns`.
    #[inline]
    pub(crate) fn touch(&mut self, env: &Env, cpus: &Cpus, cpu: CpuId, cold_ns: u32, cross_ns: u32) -> u64 {
        let clock = cpus.touched();
        let far = self.touched_by.is_some_and(|other| !env.world.cores.share_l3(other.raw(), cpu.raw()));
        let cost_ns = env.coldness.of(cold_ns, clock.saturating_sub(self.touched));
        self.touched = clock;
        self.touched_by = Some(cpu);
        cost_ns + if far { u64::from(cross_ns) } else { 0 }
    }
}

/// The clients: their connections, their load, and what is under way.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) connections: Table<ConnId, Connection>,
    pub(crate) sources: Table<SourceId, Source>,
    /// Draws how long answers and upstream servers take.
    network: Stream,
    /// Draws how long the service takes for a request.
    pub(crate) service: Stream,
    /// Requests inside the server.
    pub(crate) inside: u64,
    /// Requests between a client and the server, or an upstream server and a proxy.
    pub(crate) on_wire: u64,
    /// Open-loop arrivals that wait for their connections.
    pub(crate) backlog: u64,
    /// The threads of the generator, one for each context; there are none if nothing limits the clients.
    generators: Table<ContextId, Generator>,
}

impl Clients {
    pub(crate) fn new(seed: u64) -> Clients {
        let network = Stream::new(seed, Component::Network, 0);
        let service = Stream::new(seed, Component::Application, 0);
        Clients {
            connections: Table::new(),
            sources: Table::new(),
            network,
            service,
            inside: 0,
            on_wire: 0,
            backlog: 0,
            generators: Table::new(),
        }
    }

    /// Whether requests of this connection are not answered.
    pub(crate) fn is_datagram(&self, conn: ConnId) -> bool {
        let source = self.connections[conn].source;
        source.is_some_and(|source| matches!(self.sources[source].traffic, Traffic::Datagrams { .. }))
    }
}

impl Clients {
    /// Sends a request on a connection; its latency counts from `start_ns`.
    fn issue(&mut self, env: &mut Env, conn: ConnId, start_ns: u64) {
        if env.faults.quiet {
            return;
        }
        let connection = &mut self.connections[conn];
        connection.outstanding = true;
        connection.start_ns = start_ns;
        env.tally.counts.issued += 1;
        self.on_wire += 1;
        if !self.generator_sends(env, conn) {
            let at_ns = env.now_ns + u64::from(env.world.net.request_ns);
            env.agenda.push(at_ns, Event::Arrive { conn, kind: PacketKind::Request });
        }
    }

    /// A packet of a connection reaches the server's NIC.
    pub(crate) fn arrive(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &mut Nic, conn: ConnId, kind: PacketKind) {
        let queue = self.connections[conn].queue;
        let raised = nic.queues[queue].raised();
        let taken = nic.packet_arrives(env, cpus, queue, Packet::new(conn, kind));
        if nic.queues[queue].raised() != raised {
            self.generator_raises(env, conn);
        }
        if kind == PacketKind::Request {
            if taken {
                self.on_wire -= 1;
                self.inside += 1;
            } else {
                let at_ns = env.now_ns + env.world.net.retransmit_ns;
                env.agenda.push(at_ns, Event::Arrive { conn, kind });
            }
        }
    }

    /// A packet inside the server was lost: the client sends it again after its timeout.
    pub(crate) fn send_again(&mut self, env: &mut Env, conn: ConnId, kind: PacketKind) {
        self.inside -= 1;
        self.on_wire += 1;
        env.agenda.push(env.now_ns + env.world.net.retransmit_ns, Event::Arrive { conn, kind });
    }

    /// Returns what serving the request of this connection costs now.
    pub(crate) fn request_cost(&mut self, env: &Env, cpus: &mut Cpus, conn: ConnId, cpu: CpuId) -> Segment {
        let costs = &env.world.costs;
        let connection = &mut self.connections[conn];
        let cache = &env.world.cache;
        let cold_ns = connection.touch(env, cpus, cpu, cache.cold_request_ns, cache.cross_request_ns);
        cpus.requests += 1;
        connection.touched = cpus.touched();
        if let Some(second) = env.world.second.filter(|_| is_second(&env.world, connection.source)) {
            return Segment::mixed(u64::from(second.request_ns) + cold_ns, 0);
        }
        let random_ns = if costs.request_random_ns == 0 {
            0
        } else {
            self.service.exponential_ns(f64::from(costs.request_random_ns))
        };
        Segment::mixed(u64::from(costs.request_sys_ns) + cold_ns + random_ns, u64::from(costs.request_user_ns))
    }

    /// A proxy's worker has passed the request on, and the answer of the server behind comes like a request. Returns
    /// false if it has come.
    fn pass_on(&mut self, env: &mut Env, nic: &Nic, conn: ConnId, cpu: CpuId) -> bool {
        let connection = &mut self.connections[conn];
        let Some(upstream) = env.world.upstream.filter(|_| !is_second(&env.world, connection.source)) else {
            return false;
        };
        connection.passed_on = !connection.passed_on;
        if !connection.passed_on {
            return false;
        }
        env.tally.counts.tx_packets += 1;
        self.inside -= 1;
        self.on_wire += 1;
        let mut answer_ns = u64::from(upstream.answer_ns);
        if upstream.random_ns != 0 {
            answer_ns += self.network.exponential_ns(f64::from(upstream.random_ns));
        }
        let now_ns = env.now_ns;
        if let Some(queue) = nic.tx_queue[cpu] {
            env.agenda.push(now_ns + u64::from(env.world.net.tx_done_ns), Event::TxDone { queue });
        }
        env.agenda.push(now_ns + answer_ns, Event::Arrive { conn, kind: PacketKind::Request });
        true
    }

    /// A worker has served a request, and has written the answer. Returns the transmit queue by which it leaves, if
    /// that has a discipline.
    pub(crate) fn answer(&mut self, env: &mut Env, nic: &Nic, conn: ConnId, cpu: CpuId) -> Option<QueueId> {
        if self.pass_on(env, nic, conn, cpu) {
            return None;
        }
        env.tally.counts.served += 1;
        self.inside -= 1;
        if self.is_datagram(conn) {
            return None;
        }
        env.tally.counts.tx_packets += 1;
        // A core transmits on its own queue (XPS).
        let queue = nic.tx_queue[cpu];
        if queue.is_some_and(|queue| nic.queues[queue].transmit.is_some()) {
            return queue;
        }
        if let Some(queue) = queue {
            env.agenda.push(env.now_ns + u64::from(env.world.net.tx_done_ns), Event::TxDone { queue });
        }
        self.answer_leaves(env, conn);
        None
    }

    /// An answer was dropped on its way: the client asks again after its timeout.
    pub(crate) fn answer_lost(&mut self, env: &mut Env, conn: ConnId) {
        self.on_wire += 1;
        env.agenda.push(env.now_ns + env.world.net.retransmit_ns, Event::Arrive { conn, kind: PacketKind::Request });
    }

    /// An answer goes onto the wire.
    pub(crate) fn answer_leaves(&mut self, env: &mut Env, conn: ConnId) {
        let now_ns = env.now_ns;
        let (kernel_ns, program_ns) = client_ns(&env.world.net, &mut self.network);
        let net = &env.world.net;
        env.agenda.push(now_ns + program_ns, Event::Answer { conn });
        if net.acks {
            let ack_at_ns = now_ns + kernel_ns + u64::from(net.ack_ns);
            env.agenda.push(ack_at_ns, Event::Arrive { conn, kind: PacketKind::Ack });
        }
    }

    /// The answer of an AF_XDP responder leaves by this queue. It is a datagram, so nobody acknowledges it.
    pub(crate) fn frame_answers(&mut self, env: &mut Env, conn: ConnId, queue: QueueId) {
        self.inside -= 1;
        env.tally.counts.tx_packets += 1;
        let (_, program_ns) = client_ns(&env.world.net, &mut self.network);
        let tx_done_ns = u64::from(env.world.net.tx_done_ns);
        env.agenda.push(env.now_ns + tx_done_ns, Event::TxDone { queue });
        env.agenda.push(env.now_ns + program_ns, Event::Answer { conn });
    }

    /// An answer has reached the client's machine.
    pub(crate) fn answer_arrives(&mut self, env: &mut Env, conn: ConnId) {
        if !(self.connections[conn].outstanding && self.generator_takes(env, conn)) {
            self.answered(env, conn);
        }
    }

    /// The client's program has its answer.
    fn answered(&mut self, env: &mut Env, conn: ConnId) {
        let now_ns = env.now_ns;
        let connection = &mut self.connections[conn];
        if connection.outstanding {
            let latency_ns = now_ns - connection.start_ns;
            connection.outstanding = false;
            match &mut env.tally.second {
                Some(second) if is_second(&env.world, connection.source) => second.record(latency_ns),
                _ => env.tally.answered(latency_ns),
            }
        }
        let source = connection.source;
        let closed = source.is_some_and(|source| self.sources[source].traffic == Traffic::Closed);
        if closed {
            self.issue(env, conn, now_ns);
        } else if connection.backlog > 0 {
            connection.backlog -= 1;
            self.backlog -= 1;
            let start_ns = connection.due_ns.pop_front().unwrap_or(now_ns);
            self.issue(env, conn, start_ns);
        }
    }
}

/// Whether a group of connections belongs to the second application.
fn is_second(world: &World, source: Option<SourceId>) -> bool {
    source.zip(world.second).is_some_and(|(source, second)| source >= SourceId::new(second.first_group))
}

/// Returns how long an answer takes to the client's kernel, and from there to its program.
fn client_ns(net: &NetSpec, rng: &mut Stream) -> (u64, u64) {
    let mut kernel_ns = u64::from(net.answer_ns);
    if net.slow_share != 0 && rng.below(1_024) < net.slow_share {
        kernel_ns += slow_ns(net, rng);
    }
    let random_ns = if net.client_random_ns == 0 { 0 } else { rng.exponential_ns(f64::from(net.client_random_ns)) };
    (kernel_ns, kernel_ns + random_ns)
}

/// How many answers a client's NIC holds back at the most (DIM's frames with its longest period).
const SLOW_FRAMES_MAX: u32 = 64;

/// Returns how much longer a slow answer takes: until its queue of the client's NIC has been quiet for the time that
/// the NIC holds answers back, or has as many as it holds.
fn slow_ns(net: &NetSpec, rng: &mut Stream) -> u64 {
    let held_back_ns = |rng: &mut Stream| rng.uniform_ns(f64::from(net.slow_min_ns), f64::from(net.slow_max_ns));
    let mut waited_ns = 0;
    let mut rest_ns = held_back_ns(rng);
    if net.slow_renewed_per_s == 0 {
        return rest_ns;
    }
    let gap_ns = 1e9 / f64::from(net.slow_renewed_per_s);
    for _ in 1..SLOW_FRAMES_MAX {
        let next_ns = rng.exponential_ns(gap_ns);
        if next_ns >= rest_ns {
            return waited_ns + rest_ns;
        }
        waited_ns += next_ns;
        rest_ns = held_back_ns(rng);
    }
    waited_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_waits_until_its_queue_was_quiet() {
        let mean_ns = |slow_renewed_per_s: u32| {
            let net = NetSpec { slow_min_ns: 64_000, slow_max_ns: 64_000, slow_renewed_per_s, ..NetSpec::default() };
            let mut rng = Stream::new(1, Component::Network, 0);
            (0..100_000).map(|_| slow_ns(&net, &mut rng)).sum::<u64>() as f64 / 1e5
        };
        assert_eq!(mean_ns(0), 64_000.0);
        // With 5,000 a second it is (e^(rate * period) - 1) / rate, which is 75.4 us.
        let expected_ns = libm::expm1(0.32) / 5e-6;
        assert!((mean_ns(5_000) / expected_ns - 1.0).abs() < 0.01, "{} {expected_ns}", mean_ns(5_000));
        // On a queue that is never quiet the number of frames ends the wait: 63 more come, each half a microsecond
        // after the last.
        assert!((mean_ns(2_000_000) / 31_500.0 - 1.0).abs() < 0.01, "{}", mean_ns(2_000_000));
    }
}
