//! A run: the state of a world in time, and the loop that takes one appointment after the other.

use std::sync::Arc;

use hdrhistogram::Histogram;
use lull_core::event::EventSink;
use lull_core::{Cx, EpollBusy, NAPI_ID_MIN, Schedule, Stats, Threaded};

use crate::engine::agenda::{Agenda, Due, Event, NEVER};
use crate::engine::app::epoll_worker::EpollWorker;
use crate::engine::app::ksoftirqd::Ksoftirqd;
use crate::engine::app::napi_thread::NapiThreadProgram;
use crate::engine::app::peer::Peer;
use crate::engine::app::udp_sink::UdpSink;
use crate::engine::app::vhost::{VcpuThread, Vhost};
use crate::engine::app::xsk_responder::XskResponder;
use crate::engine::cache::Coldness;
use crate::engine::client::{Connection, Source};
use crate::engine::cpu::{Cpu, Irq};
use crate::engine::epoll::Context;
use crate::engine::faults::Faults;
use crate::engine::flood::Flood;
use crate::engine::id::{ConnId, ContextId, CpuId, Id, QueueId, SocketId, SourceId, Table, ThreadId, XskId};
use crate::engine::metrics::{Counts, CpuUse, Latencies, Outcome};
use crate::engine::nic::{Queue, Side};
use crate::engine::recorder::{Entry, Recorder, What, Whom};
use crate::engine::relay::Relay;
use crate::engine::rng::{Component, Stream};
use crate::engine::socket::Socket;
use crate::engine::thread::{Program, Thread};
use crate::engine::transition::{Coverage, Transition};
use crate::engine::vcpu::Vcpu;
use crate::engine::xsk::Xsk;
use crate::world::{QueueSpec, World};

/// Where events of the core go, if anybody listens.
pub type Sink = Option<Box<dyn EventSink>>;

/// Latencies beyond this are recorded as this: 100 s.
const LATENCY_MAX_NS: u64 = 100_000_000_000;

/// The moment and place of a call into the core.
#[inline]
pub(crate) fn cx(now_ns: u64, cpu: CpuId, sink: &Sink) -> Cx<'_> {
    Cx { now_ns, cpu: cpu.raw(), sink: sink.as_deref().map(|sink| sink as &dyn EventSink) }
}

/// Which slot of the agenda is whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    cpus: u32,
    queues: u32,
    threads: u32,
}

#[derive(Debug)]
enum SlotOwner {
    Cpu(CpuId),
    NapiTimer(QueueId),
    Moderation(QueueId, Side),
    Thread(ThreadId),
}

impl Slots {
    pub(crate) fn cpu(self, cpu: CpuId) -> u32 {
        u32::from(cpu.raw())
    }

    pub(crate) fn napi_timer(self, queue: QueueId) -> u32 {
        self.cpus + queue.raw()
    }

    pub(crate) fn moderation(self, queue: QueueId, side: Side) -> u32 {
        self.cpus + self.queues * if side == Side::Rx { 1 } else { 2 } + queue.raw()
    }

    pub(crate) fn thread(self, thread: ThreadId) -> u32 {
        self.cpus + 3 * self.queues + thread.raw()
    }

    fn count(self) -> usize {
        (self.cpus + 3 * self.queues + self.threads) as usize
    }

    fn owner(self, slot: u32) -> SlotOwner {
        if slot < self.cpus {
            return SlotOwner::Cpu(CpuId::new(slot as u16));
        }
        let slot = slot - self.cpus;
        match slot / self.queues.max(1) {
            0 if self.queues > 0 => SlotOwner::NapiTimer(QueueId::new(slot)),
            1 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - self.queues), Side::Rx),
            2 if self.queues > 0 => SlotOwner::Moderation(QueueId::new(slot - 2 * self.queues), Side::Tx),
            _ => SlotOwner::Thread(ThreadId::new(slot - 3 * self.queues)),
        }
    }
}

/// How a run ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunError {
    /// It took more events than the world allows.
    TooManyEvents {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More events lay ahead at the same time than the world allows.
    TooManyPending {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
    /// More open-loop arrivals waited for their connections than the world allows.
    Backlog {
        /// The bound.
        bound: u64,
        /// The virtual time at which it was hit.
        at_ns: u64,
    },
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunError::TooManyEvents { bound, at_ns } => write!(
                f,
                "the world took its bound of {bound} events by {} ms of virtual time: raise events_max or shorten the window",
                at_ns / 1_000_000
            ),
            RunError::TooManyPending { bound, at_ns } => write!(
                f,
                "the world had its bound of {bound} events ahead at {} ms of virtual time: raise memory_max (pending_max), or \
                 shorten what its latencies keep under way",
                at_ns / 1_000_000
            ),
            RunError::Backlog { bound, at_ns } => write!(
                f,
                "the world had its bound of {bound} requests waiting for a connection at {} ms of virtual time: it cannot carry \
                 the load; lower the load, add connections, or raise backlog_max",
                at_ns / 1_000_000
            ),
        }
    }
}

impl std::error::Error for RunError {}

/// Whether a queue's NAPI has a thread.
fn has_thread(queue: &QueueSpec) -> bool {
    queue.has_thread || queue.napi.threaded != Threaded::Off
}

/// Somebody who acts on a running world from outside: an operator, a device that is reset, another program.
///
/// A step acts in an inter-processor call on its CPU, so that what it schedules is delivered there as after any interrupt.
/// The engine knows when a step is due and where; what it does is the operator's own affair.
pub(crate) trait Operator: std::fmt::Debug {
    /// The CPU on which this step acts.
    fn cpu_of(&self, step: u32) -> CpuId;

    /// The step acts.
    fn act(&mut self, sim: &mut Sim, step: u32, cpu: CpuId);
}

/// See the [module](self).
pub struct Sim {
    pub(crate) world: World,
    pub(crate) now_ns: u64,
    pub(crate) agenda: Agenda,
    pub(crate) slots: Slots,
    pub(crate) cpus: Table<CpuId, Cpu>,
    pub(crate) queues: Table<QueueId, Queue>,
    pub(crate) threads: Table<ThreadId, Thread>,
    pub(crate) contexts: Table<ContextId, Context>,
    pub(crate) connections: Table<ConnId, Connection>,
    pub(crate) sources: Table<SourceId, Source>,
    pub(crate) sockets: Table<SocketId, Socket>,
    /// The connection of the first socket: each socket has one, after those of the groups.
    pub(crate) first_socket: ConnId,
    /// The second application's latencies, if there is one.
    pub(crate) second: Option<Latencies>,
    pub(crate) flood: Option<Flood>,
    pub(crate) relay: Option<Relay>,
    pub(crate) vcpu: Option<Vcpu>,
    pub(crate) xsks: Table<XskId, Xsk>,
    /// The connection of the first AF_XDP socket of a responder: each has one, after those of the sockets.
    pub(crate) first_xsk: ConnId,
    pub(crate) service: Stream,
    pub(crate) network: Stream,
    pub(crate) sizes: Stream,
    pub(crate) faults: Faults,
    /// Who acts on the world from outside, if anybody.
    pub(crate) operator: Option<Box<dyn Operator>>,
    pub(crate) covered: Coverage,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) coldness: Coldness,
    /// The transmit queue of each CPU.
    pub(crate) tx_queue: Table<CpuId, Option<QueueId>>,
    pub(crate) sink: Sink,
    pub(crate) counts: Counts,
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) latency_sum_ns: u128,
    pub(crate) inside: u64,
    pub(crate) on_wire: u64,
    /// Open-loop arrivals that wait for their connections.
    pub(crate) backlog: u64,
    pub(crate) events: u64,
    pub(crate) transitions: u64,
    pub(crate) broken_into: u64,
    pub(crate) rung_ns: [u64; 5],
    pub(crate) counting_since_ns: u64,
    napi_before: Stats,
    cpu_before: CpuUse,
    /// Busy time of each CPU of the service when the window began.
    busy_before_ns: Vec<u64>,
    digest: u64,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("now_ns", &self.now_ns).field("events", &self.events).finish_non_exhaustive()
    }
}

impl Sim {
    /// A world at time 0.
    pub fn new(world: &World, seed: u64) -> Sim {
        Sim::with_sink(world, seed, None)
    }

    /// A world at time 0, and somebody who is told what the core does.
    pub fn with_sink(world: &World, seed: u64, sink: Sink) -> Sim {
        let threaded = world.queues.iter().filter(|queue| has_thread(queue)).count();
        let slots = Slots {
            cpus: world.cpus.len() as u32,
            queues: world.queues.len() as u32,
            threads: (world.cpus.len() + threaded + world.workers.len() + world.peers.len()) as u32
                + world.xsk_threads.len() as u32,
        };
        let latency_ns = match Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3) {
            Ok(histogram) => histogram,
            Err(_) => unreachable!("constant bounds in order"),
        };
        let mut sim = Sim {
            now_ns: 1_000,
            agenda: Agenda::new(slots.count()),
            slots,
            cpus: world.cpus.iter().map(|_| Cpu::new()).collect(),
            queues: Table::new(),
            threads: Table::new(),
            contexts: Table::new(),
            connections: Table::new(),
            sources: Table::new(),
            sockets: Table::new(),
            first_socket: ConnId::new(0),
            second: world.second.map(|_| Latencies::default()),
            flood: None,
            relay: None,
            vcpu: None,
            xsks: Table::new(),
            first_xsk: ConnId::new(0),
            service: Stream::new(seed, Component::Application, 0),
            network: Stream::new(seed, Component::Network, 0),
            sizes: Stream::new(seed, Component::Sizes, 0),
            faults: Faults::new(&world.faults, seed),
            operator: None,
            covered: Coverage::default(),
            recorder: None,
            coldness: Coldness::new(&world.cache),
            tx_queue: (0..world.cpus.len())
                .map(|cpu| {
                    let own = world.queues.iter().position(|queue| usize::from(queue.cpu) == cpu);
                    own.or(if world.queues.is_empty() { None } else { Some(cpu % world.queues.len()) }).map(QueueId::at)
                })
                .collect(),
            sink,
            counts: Counts::default(),
            latency_ns,
            latency_sum_ns: 0,
            inside: 0,
            on_wire: 0,
            backlog: 0,
            events: 0,
            transitions: 0,
            broken_into: 0,
            rung_ns: [0; 5],
            counting_since_ns: 0,
            napi_before: Stats::default(),
            cpu_before: CpuUse::default(),
            busy_before_ns: vec![0; world.cpus.len()],
            digest: 0xcbf2_9ce4_8422_2325,
            world: world.clone(),
        };
        sim.build(seed);
        sim
    }

    fn build(&mut self, seed: u64) {
        for cpu in self.cpus.ids() {
            let thread = self.spawn(cpu, Box::new(Ksoftirqd { cpu }));
            self.cpus[cpu].ksoftirqd = Some(thread);
        }
        for index in 0..self.world.queues.len() {
            let spec = &self.world.queues[index];
            let (has_thread, thread_cpu) = (has_thread(spec), spec.thread_cpu);
            let queue = Queue::new(QueueId::at(index), spec);
            queue.napi.enable(NAPI_ID_MIN + index as u32, None);
            let queue = self.queues.push(queue);
            if has_thread {
                let cpu = CpuId::new(thread_cpu);
                let thread = self.spawn(cpu, Box::new(NapiThreadProgram::new(queue, cpu)));
                self.queues[queue].thread = Some(thread);
            }
        }
        for spec in &self.world.contexts {
            let ep = EpollBusy::new(&self.world.sysctl, spec.options);
            // A world's parameters are its author's own, with every privilege.
            let _ = ep.set_params(&spec.params, true);
            self.contexts.push(Context::new(ep));
        }
        for (index, spec) in self.world.connections.clone().iter().enumerate() {
            let first = self.connections.next();
            let (queue, context) = (QueueId::new(spec.queue), ContextId::new(spec.context));
            // Packets of noise wake nobody, and need no context.
            let context = (context.place() < self.contexts.len()).then_some(context);
            for _ in 0..spec.count {
                self.connections.push(Connection::new(queue, context, Some(SourceId::at(index))));
            }
            let rng = Stream::new(seed, Component::Load, index as u32);
            self.sources.push(Source::new(first, spec.count, spec.load, rng));
            if let Some(context) = context
                && spec.count > 0
            {
                // EPOLL_CTL_ADD notes the socket's NAPI.
                let _ = self.contexts[context].ep.note_napi(self.queues[queue].napi.id());
            }
        }
        self.first_socket = self.connections.next();
        for spec in &self.world.sockets {
            self.connections.push(Connection::new(QueueId::new(spec.queue), None, None));
            self.sockets.push(Socket::new(spec, &self.world.sysctl));
        }
        self.first_xsk = self.connections.next();
        for spec in self.world.xsks.clone() {
            let (queue, context) = (QueueId::new(spec.queue), spec.context.map(ContextId::new));
            self.connections.push(Connection::new(queue, context, None));
            if let Some(context) = context {
                // EPOLL_CTL_ADD notes the NAPI that the socket got when it was bound.
                let _ = self.contexts[context].ep.note_napi(self.queues[queue].napi.id());
            }
            let xsk = self.xsks.push(Xsk::new(&spec, &self.world.sysctl));
            self.queues[queue].xsk = Some(xsk);
        }
        for queue in self.queues.ids() {
            self.unmask(queue);
            if self.queues[queue].spec.napi.threaded == Threaded::BusyPoll {
                self.start_busy_thread(queue);
            }
        }
        for spec in self.world.workers.clone() {
            let (context, cpu) = (ContextId::new(spec.context), CpuId::new(spec.cpu));
            self.start(cpu, Box::new(EpollWorker::new(context, cpu, spec.timeout_ns, spec.events_max)));
        }
        for spec in self.world.peers.clone() {
            self.start(CpuId::new(spec.cpu), Box::new(Peer::new(&spec)));
        }
        self.build_flood(seed);
        for spec in self.world.xsk_threads.clone() {
            self.start(CpuId::new(spec.cpu), Box::new(XskResponder::new(spec)));
        }
        for cpu in self.cpus.ids() {
            self.dispatch(cpu);
        }
        self.start_load();
        self.start_flood();
    }

    /// The guest's CPU, the relay to it, and the flood with its sinks.
    fn build_flood(&mut self, seed: u64) {
        if let Some(spec) = self.world.vcpu.clone() {
            let thread = self.start(CpuId::new(spec.host_cpu), Box::new(VcpuThread));
            self.vcpu = Some(Vcpu::new(&spec, thread));
        }
        if let Some(spec) = self.world.relay.clone() {
            let thread = self.start(CpuId::new(spec.cpu), Box::new(Vhost::new()));
            self.relay = Some(Relay::new(&spec, thread));
        }
        if let Some(spec) = self.world.flood.clone() {
            self.flood = Some(Flood::new(&spec, self.connections.next(), seed));
            for flow in 0..spec.flows {
                self.connections.push(Connection::new(QueueId::new(spec.queues[0]), None, None));
                self.start(CpuId::new(spec.sink_cpu), Box::new(UdpSink::new(flow)));
            }
        }
    }

    /// Adds a thread that runs from now on; its CPU learns of it when it is dispatched next.
    pub(crate) fn start(&mut self, cpu: CpuId, program: Box<dyn Program>) -> ThreadId {
        let thread = self.spawn(cpu, program);
        self.threads[thread].state = crate::engine::thread::ThreadState::Running;
        self.cpus[cpu].runnable.push(thread);
        thread
    }

    /// A busy-polling thread is there from the start: enabling such an instance schedules it once, and the thread never lets go.
    fn start_busy_thread(&mut self, queue: QueueId) {
        let cpu = CpuId::new(self.queues[queue].spec.thread_cpu);
        if let Schedule::Owned(owner) = self.queues[queue].napi.schedule(&cx(self.now_ns, cpu, &self.sink)) {
            self.route(owner, cpu);
        }
    }

    /// Now, in virtual nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Runs until then.
    ///
    /// # Errors
    /// The bound that was hit.
    pub fn run_until(&mut self, until_ns: u64) -> Result<(), RunError> {
        let end = Event::End;
        self.agenda.push(until_ns.max(self.now_ns), end);
        while let Some((at_ns, due)) = self.agenda.pop() {
            debug_assert!(at_ns >= self.now_ns, "time runs backwards");
            self.now_ns = at_ns;
            if due == Due::Event(end) {
                break;
            }
            self.events += 1;
            if self.events > self.world.events_max {
                return Err(RunError::TooManyEvents { bound: self.world.events_max, at_ns });
            }
            if self.agenda.len() as u64 > self.world.pending_max {
                return Err(RunError::TooManyPending { bound: self.world.pending_max, at_ns });
            }
            if self.backlog > self.world.backlog_max {
                return Err(RunError::Backlog { bound: self.world.backlog_max, at_ns });
            }
            self.take(at_ns, due);
        }
        Ok(())
    }

    /// Takes the next appointment; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some((at_ns, due)) = self.agenda.pop() else { return false };
        self.now_ns = at_ns;
        self.events += 1;
        self.take(at_ns, due);
        true
    }

    #[inline]
    fn take(&mut self, at_ns: u64, due: Due) {
        self.take_digest(at_ns, due);
        match due {
            Due::Event(event) => self.event(event),
            Due::Slot(slot) => self.slot(slot),
        }
    }

    /// The executor takes a named step of the core.
    #[inline]
    pub(crate) fn note(&mut self, cpu: CpuId, whom: Whom, transition: Transition) {
        self.covered.add(transition);
        self.tell(cpu, What::Note(whom, transition));
    }

    /// Something that only a reader of the timeline wants to know.
    #[inline]
    pub(crate) fn tell(&self, cpu: CpuId, what: What) {
        if let Some(recorder) = &self.recorder {
            recorder.tell(Entry { at_ns: self.now_ns, cpu, what });
        }
    }

    fn take_digest(&mut self, at_ns: u64, due: Due) {
        let word = match due {
            Due::Slot(slot) => u64::from(slot),
            Due::Event(Event::Arrive { conn, kind }) => (1 << 40) | ((kind as u64) << 32) | u64::from(conn.raw()),
            Due::Event(Event::TxDone { queue }) => (2 << 40) | u64::from(queue.raw()),
            Due::Event(Event::Answer { conn }) => (3 << 40) | u64::from(conn.raw()),
            Due::Event(Event::Issue { source }) => (4 << 40) | u64::from(source.raw()),
            Due::Event(Event::End) => 5 << 40,
            Due::Event(Event::Operator { step }) => (7 << 40) | u64::from(step),
            Due::Event(Event::Settle { queue }) => (8 << 40) | u64::from(queue.raw()),
            Due::Event(Event::Flood) => 9 << 40,
            Due::Event(Event::Request { conn }) => (10 << 40) | u64::from(conn.raw()),
            Due::Event(Event::Program { thread, token }) => {
                (6 << 40) | (u64::from(thread.raw()) << 20) | u64::from(token)
            }
        };
        self.digest = (self.digest ^ at_ns.rotate_left(20) ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrive { conn, kind } => self.arrive(conn, kind),
            Event::TxDone { queue } => self.frame_sent(queue),
            Event::Answer { conn } => self.answered(conn),
            Event::Issue { source } => self.arrival(source),
            Event::Request { conn } => self.request_due(conn),
            // One that an earlier end left behind says nothing.
            Event::End => {}
            Event::Operator { step } => self.operator_due(step),
            Event::Settle { queue } => self.settle_late(queue),
            Event::Flood => self.flood_due(),
            Event::Program { thread, token } => {
                if let Some(mut program) = self.threads[thread].program.take() {
                    program.event(self, thread, token);
                    self.threads[thread].program = Some(program);
                }
            }
        }
    }

    /// The time of an operator's step has come.
    fn operator_due(&mut self, step: u32) {
        if let Some(operator) = &self.operator {
            let cpu = operator.cpu_of(step);
            self.interrupt(cpu, Irq::Call(step));
        }
    }

    /// An operator's step acts on its CPU.
    pub(crate) fn operator_acts(&mut self, step: u32, cpu: CpuId) {
        if let Some(mut operator) = self.operator.take() {
            operator.act(self, step, cpu);
            self.operator = Some(operator);
        }
    }

    fn slot(&mut self, slot: u32) {
        match self.slots.owner(slot) {
            SlotOwner::Cpu(cpu) => self.segment_ended(cpu),
            SlotOwner::NapiTimer(queue) => {
                if let Some((_, cpu)) = self.queues[queue].napi.timer().pending() {
                    self.interrupt(CpuId::new(cpu), Irq::NapiTimer(queue));
                }
            }
            SlotOwner::Moderation(queue, side) => self.moderation_expired(queue, side),
            SlotOwner::Thread(thread) => {
                let cpu = self.threads[thread].cpu;
                self.interrupt(cpu, Irq::Sleeper(thread));
            }
        }
    }

    /// Follows the timer of a NAPI after it may have been started.
    #[inline]
    pub(crate) fn sync_timer(&mut self, queue: QueueId) {
        let pending = self.queues[queue].napi.timer().pending();
        let late_ns = if pending.is_some() { self.faults.timer_late_ns() } else { 0 };
        let at_ns = pending.map_or(NEVER, |(deadline_ns, _)| deadline_ns.max(self.now_ns).saturating_add(late_ns));
        let slot = self.slots.napi_timer(queue);
        if let Some((_, cpu)) = pending
            && self.world.costs.timer_start_ns != 0
            && self.agenda.slot_ns(slot) != at_ns
        {
            self.cpus[CpuId::new(cpu)].debt_ns += u64::from(self.world.costs.timer_start_ns);
        }
        self.agenda.set(slot, at_ns);
    }

    /// Warm-up, window, outcome.
    ///
    /// # Errors
    /// The bound that was hit.
    pub fn run(mut self) -> Result<Outcome, RunError> {
        self.run_until(self.world.warmup_ns)?;
        self.begin_window();
        let window_ns = self.world.window_ns;
        self.run_until(self.now_ns + window_ns)?;
        Ok(self.outcome())
    }

    fn cpu_use(&self) -> CpuUse {
        let mut sum = CpuUse::default();
        for (cpu, counted) in self.cpus.iter().zip(&self.world.cpus) {
            if *counted {
                sum.add(&cpu.used);
            }
        }
        sum
    }

    /// Busy time of each CPU of the service; 0 for others.
    fn busy_ns(&self) -> Vec<u64> {
        let counted = self.cpus.iter().zip(&self.world.cpus);
        counted.map(|(cpu, counted)| if *counted { cpu.used.busy_ns() } else { 0 }).collect()
    }

    fn napi_stats(&self) -> Stats {
        self.queues.iter().fold(Stats::default(), |sum, queue| sum + queue.napi.stats())
    }

    /// Begins to count.
    pub fn begin_window(&mut self) {
        for cpu in self.cpus.ids() {
            self.account(cpu);
        }
        self.counts = Counts::default();
        self.latency_ns.reset();
        self.latency_sum_ns = 0;
        self.second.iter_mut().for_each(Latencies::reset);
        self.rung_ns = [0; 5];
        self.broken_into = 0;
        self.counting_since_ns = self.now_ns;
        self.napi_before = self.napi_stats();
        self.cpu_before = self.cpu_use();
        self.busy_before_ns = self.busy_ns();
    }

    /// What was counted since the window began.
    pub fn outcome(&mut self) -> Outcome {
        for cpu in self.cpus.ids() {
            self.account(cpu);
        }
        self.close_rungs();
        let (now, before) = (self.cpu_use(), self.cpu_before);
        let busy_ns = self.busy_ns();
        let busy_ns = busy_ns.iter().zip(&self.busy_before_ns).map(|(now_ns, before_ns)| now_ns - before_ns);
        Outcome {
            window_ns: self.now_ns - self.counting_since_ns,
            latency_ns: self.latency_ns.clone(),
            latency_sum_ns: self.latency_sum_ns,
            second: self.second.clone(),
            counts: self.counts,
            cpu: CpuUse {
                user_ns: now.user_ns - before.user_ns,
                sys_ns: now.sys_ns - before.sys_ns,
                softirq_ns: now.softirq_ns - before.softirq_ns,
                uncharged_ns: now.uncharged_ns - before.uncharged_ns,
                idle_ns: now.idle_ns - before.idle_ns,
            },
            busiest_ns: busy_ns.max().unwrap_or(0),
            napi: self.napi_stats() - self.napi_before,
            events: self.events,
            transitions: self.transitions,
            broken_into: self.broken_into,
            digest: self.digest,
            inside: self.inside,
            on_wire: self.on_wire,
            rung_ns: self.rung_ns,
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        for cpu in self.cpus.iter_mut() {
            cpu.soft.abandon();
        }
        for queue in self.queues.iter_mut() {
            queue.unsettled.clear();
        }
        for thread in self.threads.iter_mut() {
            if let Some(program) = thread.program.take() {
                program.abandon();
            }
        }
    }
}
