//! A run: the state of a world in time, and the loop that takes one appointment after the other.

use std::sync::Arc;

use lull_core::Cx;
use lull_core::event::EventSink;

use crate::engine::agenda::{Agenda, Due, Event, NEVER};
use crate::engine::build::has_thread;
use crate::engine::cache::Coldness;
use crate::engine::client::Clients;
use crate::engine::cpu::{Cpu, Irq};
use crate::engine::ends::Ends;
use crate::engine::epoll::Context;
use crate::engine::error::RunError;
use crate::engine::faults::Faults;
use crate::engine::flood::Flood;
use crate::engine::guest::Guest;
use crate::engine::id::{ContextId, CpuId, QueueId, Table, ThreadId};
use crate::engine::metrics::{CpuUse, Outcome};
use crate::engine::nic::Nic;
use crate::engine::recorder::{Entry, Recorder, What, Whom};
use crate::engine::rng::{Component, Stream};
use crate::engine::slots::{SlotOwner, Slots};
use crate::engine::tally::Tally;
use crate::engine::thread::{Program, Thread};
use crate::engine::transition::Transition;
use crate::world::World;

/// Where events of the core go, if anybody listens.
pub type Sink = Option<Box<dyn EventSink>>;

/// The moment and place of a call into the core.
#[inline]
pub(crate) fn cx(now_ns: u64, cpu: CpuId, sink: &Sink) -> Cx<'_> {
    Cx { now_ns, cpu: cpu.raw(), sink: sink.as_deref().map(|sink| sink as &dyn EventSink) }
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
    pub(crate) threads: Table<ThreadId, Thread>,
    pub(crate) contexts: Table<ContextId, Context>,
    pub(crate) nic: Nic,
    pub(crate) clients: Clients,
    pub(crate) ends: Ends,
    pub(crate) flood: Option<Flood>,
    pub(crate) guest: Guest,
    /// How long the service takes over a request.
    pub(crate) service: Stream,
    pub(crate) coldness: Coldness,
    pub(crate) faults: Faults,
    /// Who acts on the world from outside, if anybody.
    pub(crate) operator: Option<Box<dyn Operator>>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) sink: Sink,
    pub(crate) tally: Tally,
    /// A digest of all appointments: equal for equal runs.
    digest: u64,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("now_ns", &self.now_ns).field("events", &self.tally.events).finish_non_exhaustive()
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
        let mut sim = Sim {
            now_ns: 1_000,
            agenda: Agenda::new(slots.count()),
            slots,
            cpus: world.cpus.iter().map(|_| Cpu::new()).collect(),
            threads: Table::new(),
            contexts: Table::new(),
            nic: Nic::new(world, seed),
            clients: Clients::new(seed),
            ends: Ends::new(),
            flood: None,
            guest: Guest::default(),
            service: Stream::new(seed, Component::Application, 0),
            coldness: Coldness::new(&world.cache),
            faults: Faults::new(&world.faults, seed),
            operator: None,
            recorder: None,
            sink,
            tally: Tally::new(world.cpus.len(), world.second.is_some()),
            digest: 0xcbf2_9ce4_8422_2325,
            world: world.clone(),
        };
        sim.build(seed);
        sim
    }

    /// Adds a thread that runs from now on; its CPU learns of it when it is dispatched next.
    pub(crate) fn start(&mut self, cpu: CpuId, program: Box<dyn Program>) -> ThreadId {
        let thread = self.spawn(cpu, program);
        self.threads[thread].state = crate::engine::thread::ThreadState::Running;
        self.cpus[cpu].runnable.push(thread);
        thread
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
            self.tally.events += 1;
            if self.tally.events > self.world.events_max {
                return Err(RunError::TooManyEvents { bound: self.world.events_max, at_ns });
            }
            if self.agenda.len() as u64 > self.world.pending_max {
                return Err(RunError::TooManyPending { bound: self.world.pending_max, at_ns });
            }
            if self.clients.backlog > self.world.backlog_max {
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
        self.tally.events += 1;
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
        self.tally.covered.add(transition);
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
                if let Some((_, cpu)) = self.nic.queues[queue].napi.timer().pending() {
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
        let pending = self.nic.queues[queue].napi.timer().pending();
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

    /// Begins to count.
    pub fn begin_window(&mut self) {
        for cpu in self.cpus.ids() {
            self.account(cpu);
        }
        let (napi, cpu, busy_ns) = (self.nic.napi_stats(), self.cpu_use(), self.busy_ns());
        self.tally.begin_window(self.now_ns, napi, cpu, busy_ns);
    }

    /// What was counted since the window began.
    pub fn outcome(&mut self) -> Outcome {
        for cpu in self.cpus.ids() {
            self.account(cpu);
        }
        self.close_rungs();
        let (now, before) = (self.cpu_use(), self.tally.cpu_before);
        let busy_ns = self.busy_ns();
        let busy_ns = busy_ns.iter().zip(&self.tally.busy_before_ns).map(|(now_ns, before_ns)| now_ns - before_ns);
        Outcome {
            window_ns: self.now_ns - self.tally.counting_since_ns,
            latency_ns: self.tally.latency_ns.clone(),
            latency_sum_ns: self.tally.latency_sum_ns,
            second: self.tally.second.clone(),
            counts: self.tally.counts,
            cpu: CpuUse {
                user_ns: now.user_ns - before.user_ns,
                sys_ns: now.sys_ns - before.sys_ns,
                softirq_ns: now.softirq_ns - before.softirq_ns,
                uncharged_ns: now.uncharged_ns - before.uncharged_ns,
                idle_ns: now.idle_ns - before.idle_ns,
            },
            busiest_ns: busy_ns.max().unwrap_or(0),
            napi: self.nic.napi_stats() - self.tally.napi_before,
            events: self.tally.events,
            transitions: self.tally.transitions,
            broken_into: self.tally.broken_into,
            digest: self.digest,
            inside: self.clients.inside,
            on_wire: self.clients.on_wire,
            rung_ns: self.tally.rung_ns,
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        for cpu in self.cpus.iter_mut() {
            cpu.soft.abandon();
        }
        for queue in self.nic.queues.iter_mut() {
            queue.unsettled.clear();
        }
        for thread in self.threads.iter_mut() {
            if let Some(program) = thread.program.take() {
                program.abandon();
            }
        }
    }
}
