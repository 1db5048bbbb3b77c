//! Clients and network: who asks when, and how long the way takes.
//!
//! As mutilate: a connection has one request outstanding at most. An open-loop arrival for a connection that waits is issued
//! when the answer has come, and its latency counts from then on; that is why latencies stay finite in overload.

use crate::engine::agenda::{Event, PacketKind};
use crate::engine::id::{ConnId, ContextId, CpuId, QueueId, SourceId, Table};
use crate::engine::nic::Packet;
use crate::engine::rng::{Component, Stream};
use crate::engine::sim::Sim;
use crate::engine::thread::Segment;
use crate::engine::traffic::GeneralizedPareto;
use crate::world::{Load, NetSpec, World};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue: QueueId,
    /// The epoll context that it is in; none if it is a socket's own.
    pub(crate) context: Option<ContextId>,
    /// Who loads it, if a group of clients does.
    source: Option<SourceId>,
    outstanding: bool,
    /// Open-loop arrivals that wait for the answer.
    backlog: u32,
    start_ns: u64,
    /// The proxy has passed the request on.
    passed_on: bool,
    /// The core's clock of interference when the connection was last touched.
    pub(crate) touched: u64,
}

/// One group of connections.
#[derive(Debug)]
pub(crate) struct Source {
    first: ConnId,
    count: u32,
    load: Load,
    rng: Stream,
}

impl Source {
    pub(crate) fn new(first: ConnId, count: u32, load: Load, rng: Stream) -> Source {
        Source { first, count, load, rng }
    }
}

impl Source {
    /// Its connections.
    fn connections(&self) -> impl Iterator<Item = ConnId> + use<> {
        (self.first.raw()..self.first.raw() + self.count).map(ConnId::new)
    }
}

impl Connection {
    pub(crate) fn new(queue: QueueId, context: Option<ContextId>, source: Option<SourceId>) -> Connection {
        Connection { queue, context, source, outstanding: false, backlog: 0, start_ns: 0, passed_on: false, touched: 0 }
    }
}

/// The clients: their connections, what loads them, and what is under way.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) connections: Table<ConnId, Connection>,
    pub(crate) sources: Table<SourceId, Source>,
    /// How long answers and upstream servers take.
    pub(crate) network: Stream,
    /// Requests inside the server.
    pub(crate) inside: u64,
    /// Requests between a client and the server, or an upstream server and a proxy.
    pub(crate) on_wire: u64,
    /// Open-loop arrivals that wait for their connections.
    pub(crate) backlog: u64,
}

impl Clients {
    pub(crate) fn new(seed: u64) -> Clients {
        let network = Stream::new(seed, Component::Network, 0);
        Clients { connections: Table::new(), sources: Table::new(), network, inside: 0, on_wire: 0, backlog: 0 }
    }

    /// Whether requests of this connection are not answered.
    pub(crate) fn is_datagram(&self, conn: ConnId) -> bool {
        let source = self.connections[conn].source;
        source.is_some_and(|source| matches!(self.sources[source].load, Load::Datagrams { .. }))
    }
}

impl Sim {
    /// Begins the load.
    pub(crate) fn start_load(&mut self) {
        for source in self.clients.sources.ids() {
            let Source { count, load, .. } = self.clients.sources[source];
            let connections = self.clients.sources[source].connections();
            match load {
                Load::Open { per_s } | Load::Noise { per_s } | Load::Datagrams { per_s } => {
                    if per_s > 0.0 && count > 0 {
                        self.next_arrival(source, per_s);
                    }
                }
                Load::Renewal { per_s, .. } => {
                    for conn in connections {
                        if per_s > 0.0 {
                            self.next_request(source, conn, true);
                        }
                    }
                }
                Load::Closed => {
                    for (nth, conn) in connections.enumerate() {
                        // Clients connect one after the other; the first answers spread them further.
                        let spread_ns = (nth as u64 + 1) * 2_000;
                        self.clients.connections[conn].backlog = 1;
                        self.agenda.push(self.now_ns + spread_ns, Event::Answer { conn });
                    }
                }
            }
        }
    }

    fn next_arrival(&mut self, source: SourceId, per_s: f64) {
        let gap_ns = self.clients.sources[source].rng.exponential_ns(1e9 / per_s);
        self.agenda.push(self.now_ns + gap_ns, Event::Issue { source });
    }

    /// A connection with gaps of its own draws the next; the first of a run is what is left of one.
    fn next_request(&mut self, source: SourceId, conn: ConnId, first: bool) {
        let group = &mut self.clients.sources[source];
        let Load::Renewal { per_s, shape } = group.load else { return };
        let gaps = GeneralizedPareto::with_mean(1e9 * f64::from(group.count) / per_s, shape);
        let gaps = if first { gaps.residual() } else { gaps };
        let gap_ns = gaps.draw(&mut group.rng) as u64;
        self.agenda.push(self.now_ns + gap_ns, Event::Request { conn });
    }

    /// The next request of a connection with gaps of its own.
    pub(crate) fn request_due(&mut self, conn: ConnId) {
        if self.faults.quiet {
            return;
        }
        if let Some(source) = self.clients.connections[conn].source {
            self.next_request(source, conn, false);
        }
        self.request_or_wait(conn);
    }

    /// An arrival of an open loop: the connection issues it, or it waits for the answer to the one before.
    fn request_or_wait(&mut self, conn: ConnId) {
        if self.clients.connections[conn].outstanding {
            self.clients.connections[conn].backlog += 1;
            self.clients.backlog += 1;
        } else {
            self.issue(conn);
        }
    }

    /// An arrival of an open loop, or a packet of noise.
    pub(crate) fn arrival(&mut self, source: SourceId) {
        if self.faults.quiet {
            return;
        }
        let group = &mut self.clients.sources[source];
        let conn = ConnId::new(group.first.raw() + group.rng.below(group.count));
        let load = group.load;
        match load {
            Load::Open { per_s } => {
                self.next_arrival(source, per_s);
                self.request_or_wait(conn);
            }
            Load::Noise { per_s } => {
                self.next_arrival(source, per_s);
                let queue = self.clients.connections[conn].queue;
                let _ = self.packet_arrives(queue, Packet::new(conn, PacketKind::Ack));
            }
            Load::Datagrams { per_s } => {
                self.next_arrival(source, per_s);
                self.tally.counts.issued += 1;
                let queue = self.clients.connections[conn].queue;
                // A lost one is lost.
                if self.packet_arrives(queue, Packet::new(conn, PacketKind::Request)) {
                    self.clients.inside += 1;
                }
            }
            Load::Renewal { .. } | Load::Closed => {}
        }
    }

    fn issue(&mut self, conn: ConnId) {
        if self.faults.quiet {
            return;
        }
        let at_ns = self.now_ns + u64::from(self.world.net.request_ns);
        let connection = &mut self.clients.connections[conn];
        connection.outstanding = true;
        connection.start_ns = self.now_ns;
        self.tally.counts.issued += 1;
        self.clients.on_wire += 1;
        self.agenda.push(at_ns, Event::Arrive { conn, kind: PacketKind::Request });
    }

    /// A packet of a connection reaches the server's NIC.
    pub(crate) fn arrive(&mut self, conn: ConnId, kind: PacketKind) {
        if kind == PacketKind::Message {
            self.message_arrives(conn);
            return;
        }
        let queue = self.clients.connections[conn].queue;
        let taken = self.packet_arrives(queue, Packet::new(conn, kind));
        if kind == PacketKind::Request {
            if taken {
                self.clients.on_wire -= 1;
                self.clients.inside += 1;
            } else {
                let at_ns = self.now_ns + self.world.net.retransmit_ns;
                self.agenda.push(at_ns, Event::Arrive { conn, kind });
            }
        }
    }

    /// What serving the request of this connection costs now.
    pub(crate) fn request_cost(&mut self, conn: ConnId, cpu: CpuId) -> Segment {
        let costs = &self.world.costs;
        let cpu = &mut self.cpus[cpu];
        let connection = &mut self.clients.connections[conn];
        let cold_ns =
            self.coldness.of(self.world.cache.cold_request_ns, cpu.touched.saturating_sub(connection.touched));
        cpu.touched += 1;
        connection.touched = cpu.touched;
        if let Some(second) = self.world.second.filter(|_| is_second(&self.world, connection.source)) {
            return Segment::mixed(u64::from(second.request_ns) + cold_ns, 0);
        }
        let random_ns = if costs.request_random_ns == 0 {
            0
        } else {
            self.service.exponential_ns(f64::from(costs.request_random_ns))
        };
        Segment::mixed(u64::from(costs.request_sys_ns) + cold_ns + random_ns, u64::from(costs.request_user_ns))
    }

    /// A proxy's worker passed the request on: its answer comes as a request does. False if it has come.
    fn pass_on(&mut self, conn: ConnId, cpu: CpuId) -> bool {
        let connection = &mut self.clients.connections[conn];
        let Some(upstream) = self.world.upstream.filter(|_| !is_second(&self.world, connection.source)) else {
            return false;
        };
        connection.passed_on = !connection.passed_on;
        if !connection.passed_on {
            return false;
        }
        self.tally.counts.tx_packets += 1;
        self.clients.inside -= 1;
        self.clients.on_wire += 1;
        let mut answer_ns = u64::from(upstream.answer_ns);
        if upstream.random_ns != 0 {
            answer_ns += self.clients.network.exponential_ns(f64::from(upstream.random_ns));
        }
        let now_ns = self.now_ns;
        if let Some(queue) = self.nic.tx_queue[cpu] {
            self.agenda.push(now_ns + u64::from(self.world.net.tx_done_ns), Event::TxDone { queue });
        }
        self.agenda.push(now_ns + answer_ns, Event::Arrive { conn, kind: PacketKind::Request });
        true
    }

    /// A worker has served a request, and wrote the answer.
    pub(crate) fn answer(&mut self, conn: ConnId, cpu: CpuId) {
        if self.pass_on(conn, cpu) {
            return;
        }
        self.tally.counts.served += 1;
        self.clients.inside -= 1;
        if self.clients.is_datagram(conn) {
            return;
        }
        self.tally.counts.tx_packets += 1;
        // XPS: a core transmits on its own queue.
        let queue = self.nic.tx_queue[cpu];
        let now_ns = self.now_ns;
        let (kernel_ns, program_ns) = client_ns(&self.world.net, &mut self.clients.network);
        let net = &self.world.net;
        if let Some(queue) = queue {
            self.agenda.push(now_ns + u64::from(net.tx_done_ns), Event::TxDone { queue });
        }
        self.agenda.push(now_ns + program_ns, Event::Answer { conn });
        let ack_at_ns = now_ns + kernel_ns + u64::from(net.ack_ns);
        self.agenda.push(ack_at_ns, Event::Arrive { conn, kind: PacketKind::Ack });
    }

    /// The answer of an AF_XDP responder leaves by this queue. Nobody acknowledges it: it is a datagram.
    pub(crate) fn frame_answers(&mut self, conn: ConnId, queue: QueueId) {
        self.clients.inside -= 1;
        self.tally.counts.tx_packets += 1;
        let (_, program_ns) = client_ns(&self.world.net, &mut self.clients.network);
        let tx_done_ns = u64::from(self.world.net.tx_done_ns);
        self.agenda.push(self.now_ns + tx_done_ns, Event::TxDone { queue });
        self.agenda.push(self.now_ns + program_ns, Event::Answer { conn });
    }

    /// The client has its answer.
    pub(crate) fn answered(&mut self, conn: ConnId) {
        let now_ns = self.now_ns;
        let connection = &mut self.clients.connections[conn];
        if connection.outstanding {
            let latency_ns = now_ns - connection.start_ns;
            connection.outstanding = false;
            match &mut self.tally.second {
                Some(second) if is_second(&self.world, connection.source) => second.record(latency_ns),
                _ => self.tally.answered(latency_ns),
            }
        }
        let source = connection.source;
        let closed = source.is_some_and(|source| self.clients.sources[source].load == Load::Closed);
        if closed {
            self.issue(conn);
        } else if connection.backlog > 0 {
            connection.backlog -= 1;
            self.clients.backlog -= 1;
            self.issue(conn);
        }
    }
}

/// Whether a group of connections is the second application's.
fn is_second(world: &World, source: Option<SourceId>) -> bool {
    source.zip(world.second).is_some_and(|(source, second)| source >= SourceId::new(second.first_group))
}

/// How long an answer takes to the client's kernel, and to its program.
fn client_ns(net: &NetSpec, rng: &mut Stream) -> (u64, u64) {
    let mut kernel_ns = u64::from(net.answer_ns);
    if net.slow_share != 0 && rng.below(1_024) < net.slow_share {
        kernel_ns += rng.uniform_ns(f64::from(net.slow_min_ns), f64::from(net.slow_max_ns));
    }
    let random_ns = if net.client_random_ns == 0 { 0 } else { rng.exponential_ns(f64::from(net.client_random_ns)) };
    (kernel_ns, kernel_ns + random_ns)
}
