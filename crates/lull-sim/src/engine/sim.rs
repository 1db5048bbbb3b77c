//! A run: the state of a world in time, and the loop that takes one entry of the agenda after the other.

use crate::engine::agenda::{Agenda, Due, Event, PacketKind};
use crate::engine::cache::Coldness;
use crate::engine::client::Clients;
use crate::engine::cpu::Irq;
use crate::engine::cpus::Cpus;
use crate::engine::ends::Ends;
use crate::engine::env::Env;
pub use crate::engine::env::Sink;
use crate::engine::epoll::Context;
use crate::engine::error::RunError;
use crate::engine::faults::Faults;
use crate::engine::flood::Flood;
use crate::engine::id::{ContextId, CpuId, StepId, Table, ThreadId};
use crate::engine::metrics::{CpuUse, Outcome};
use crate::engine::nic::Nic;
use crate::engine::relay::Relay;
use crate::engine::slots::{SlotOwner, Slots};
use crate::engine::tally::Tally;
use crate::engine::thread::Next;
use crate::world::World;

/// Acts on a running world from outside: an operator, a device that is reset, or another program.
///
/// A step acts in an inter-processor call on its CPU, so that what it schedules is delivered there as after any
/// interrupt. The engine knows when a step is due and on which CPU; the operator decides what it does.
pub(crate) trait Operator: std::fmt::Debug {
    /// Returns the CPU on which this step acts.
    fn cpu_of(&self, step: StepId) -> CpuId;

    /// Executes the step.
    fn act(&mut self, sim: &mut Sim, step: StepId, cpu: CpuId);
}

/// A thread's program. Its steps make system calls, and a system call may reach every part of the world.
pub(crate) trait Program: std::fmt::Debug {
    /// The former segment has ended, or the thread was woken: does its effects and returns what comes next.
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next;

    /// Handles an event that the program asked for.
    fn event(&mut self, _sim: &mut Sim, _me: ThreadId, _token: u32) {}

    /// Releases what it owns at the end of a run.
    fn abandon(self: Box<Self>) {}
}

/// See the [module](self).
pub struct Sim {
    pub(crate) env: Env,
    pub(crate) cpus: Cpus,
    pub(crate) nic: Nic,
    /// What the threads run; `None` while the thread takes a step.
    pub(crate) programs: Table<ThreadId, Option<Box<dyn Program>>>,
    pub(crate) contexts: Table<ContextId, Context>,
    pub(crate) clients: Clients,
    pub(crate) ends: Ends,
    pub(crate) flood: Option<Flood>,
    /// The way of frames to a guest, if there is one.
    pub(crate) relay: Option<Relay>,
    /// The operator who acts on the world from outside, if there is one.
    pub(crate) operator: Option<Box<dyn Operator>>,
    /// A digest of all entries of the agenda, which is equal for equal runs.
    digest: u64,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim")
            .field("now_ns", &self.env.now_ns)
            .field("events", &self.env.tally.events)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// Makes a world at time 0.
    pub fn new(world: &World, seed: u64) -> Sim {
        Sim::with_sink(world, seed, None)
    }

    /// Makes a world at time 0, with a listener for what the core does.
    pub fn with_sink(world: &World, seed: u64, sink: Sink) -> Sim {
        let threaded = world.queues.iter().filter(|queue| queue.may_have_thread()).count();
        let slots = Slots {
            cpus: world.cpus.len() as u32,
            queues: world.queues.len() as u32,
            threads: (world.cpus.len() + threaded + world.workers.len() + world.peers.len()) as u32
                + world.xsk_threads.len() as u32,
        };
        let mut sim = Sim {
            env: Env {
                now_ns: 1_000,
                agenda: Agenda::new(slots.count()),
                slots,
                coldness: Coldness::new(&world.cache),
                faults: Faults::new(&world.faults, seed),
                tally: Tally::new(world.cpus.len(), world.second.is_some()),
                recorder: None,
                sink,
                world: world.clone(),
            },
            cpus: Cpus::new(&world.cpus, world.queues.len(), seed),
            nic: Nic::new(world, seed),
            programs: Table::new(),
            contexts: Table::new(),
            clients: Clients::new(seed),
            ends: Ends::new(),
            flood: None,
            relay: None,
            operator: None,
            digest: 0xcbf2_9ce4_8422_2325,
        };
        sim.build(seed);
        sim
    }

    /// Returns the virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.env.now_ns
    }

    /// Runs until this time.
    ///
    /// # Errors
    ///
    /// This fails with the bound that was hit.
    pub fn run_until(&mut self, until_ns: u64) -> Result<(), RunError> {
        let end = Event::End;
        self.env.agenda.push(until_ns.max(self.env.now_ns), end);
        while let Some((at_ns, due)) = self.env.agenda.pop() {
            debug_assert!(at_ns >= self.env.now_ns, "time runs backwards");
            self.env.now_ns = at_ns;
            if due == Due::Event(end) {
                break;
            }
            self.env.tally.events += 1;
            if self.env.tally.events > self.env.world.events_max {
                return Err(RunError::TooManyEvents { bound: self.env.world.events_max, at_ns });
            }
            if self.env.agenda.len() as u64 > self.env.world.pending_max {
                return Err(RunError::TooManyPending { bound: self.env.world.pending_max, at_ns });
            }
            if self.clients.backlog > self.env.world.backlog_max {
                return Err(RunError::Backlog { bound: self.env.world.backlog_max, at_ns });
            }
            self.take(at_ns, due);
        }
        Ok(())
    }

    /// Takes the next entry of the agenda; returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some((at_ns, due)) = self.env.agenda.pop() else { return false };
        self.env.now_ns = at_ns;
        self.env.tally.events += 1;
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

    fn take_digest(&mut self, at_ns: u64, due: Due) {
        let word = match due {
            Due::Slot(slot) => u64::from(slot),
            Due::Event(Event::Arrive { conn, kind }) => (1 << 40) | ((kind as u64) << 32) | u64::from(conn.raw()),
            Due::Event(Event::TxDone { queue }) => (2 << 40) | u64::from(queue.raw()),
            Due::Event(Event::Answer { conn }) => (3 << 40) | u64::from(conn.raw()),
            Due::Event(Event::Issue { source }) => (4 << 40) | u64::from(source.raw()),
            Due::Event(Event::End) => 5 << 40,
            Due::Event(Event::Operator { step }) => (7 << 40) | u64::from(step.raw()),
            Due::Event(Event::Settle { queue }) => (8 << 40) | u64::from(queue.raw()),
            Due::Event(Event::Flood) => 9 << 40,
            Due::Event(Event::TxRun { queue }) => (11 << 40) | u64::from(queue.raw()),
            Due::Event(Event::TxDue { queue }) => (12 << 40) | u64::from(queue.raw()),
            Due::Event(Event::Generator { context }) => (13 << 40) | u64::from(context.raw()),
            Due::Event(Event::Request { conn }) => (10 << 40) | u64::from(conn.raw()),
            Due::Event(Event::Program { thread, token }) => {
                (6 << 40) | (u64::from(thread.raw()) << 20) | u64::from(token)
            }
        };
        self.digest = (self.digest ^ at_ns.rotate_left(20) ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrive { conn, kind: PacketKind::Message } => {
                self.ends.message_arrives(&mut self.env, &mut self.cpus, &mut self.nic, conn);
            }
            Event::Arrive { conn, kind } => {
                self.clients.arrive(&mut self.env, &mut self.cpus, &mut self.nic, conn, kind);
            }
            Event::TxDone { queue } if self.nic.queues[queue].transmit.is_some() => self.frame_left(queue),
            Event::TxRun { queue } => self.run_goes_on(queue),
            Event::TxDue { queue } => self.transmit_due(queue),
            Event::TxDone { queue } => self.nic.frame_sent(&mut self.env, &mut self.cpus, queue),
            Event::Answer { conn } => self.clients.answer_arrives(&mut self.env, conn),
            Event::Issue { source } => self.clients.arrival(&mut self.env, &mut self.cpus, &mut self.nic, source),
            Event::Generator { context } => self.clients.generator_turn(&mut self.env, context),
            Event::Request { conn } => self.clients.request_due(&mut self.env, conn),
            // An end that an earlier call left behind means nothing.
            Event::End => {}
            Event::Operator { step } => self.operator_due(step),
            Event::Settle { queue } => self.nic.settle_late(&mut self.env, &mut self.cpus, queue),
            Event::Flood => {
                if let Some(flood) = &mut self.flood {
                    flood.due(&mut self.env, &mut self.cpus, &mut self.nic);
                }
            }
            Event::Program { thread, token } => {
                if let Some(mut program) = self.programs[thread].take() {
                    program.event(self, thread, token);
                    self.programs[thread] = Some(program);
                }
            }
        }
    }

    /// An operator's step is due.
    fn operator_due(&mut self, step: StepId) {
        if let Some(operator) = &self.operator {
            let cpu = operator.cpu_of(step);
            self.cpus.interrupt(&mut self.env, cpu, Irq::Call(step));
        }
    }

    /// An operator's step acts on its CPU.
    pub(crate) fn operator_acts(&mut self, step: StepId, cpu: CpuId) {
        if let Some(mut operator) = self.operator.take() {
            operator.act(self, step, cpu);
            self.operator = Some(operator);
        }
    }

    fn slot(&mut self, slot: u32) {
        match self.env.slots.owner(slot) {
            SlotOwner::Cpu(cpu) => self.segment_ended(cpu),
            SlotOwner::NapiTimer(queue) => {
                if let Some((_, cpu)) = self.nic.queues[queue].napi.timer().pending() {
                    let cpu = CpuId::new(cpu);
                    if !self.timer_waits(cpu) {
                        self.cpus.interrupt(&mut self.env, cpu, Irq::NapiTimer(queue));
                    }
                }
            }
            SlotOwner::Moderation(queue, side) => {
                self.nic.moderation_expired(&mut self.env, &mut self.cpus, queue, side)
            }
            SlotOwner::Backstop(cpu) => {
                self.cpus[cpu].backstop_ns = None;
                self.cpus.interrupt(&mut self.env, cpu, Irq::Backstop);
            }
            SlotOwner::Thread(thread) => {
                let cpu = self.cpus.threads[thread].cpu;
                self.cpus.interrupt(&mut self.env, cpu, Irq::Sleeper(thread));
            }
        }
    }

    /// Runs the warm-up and the window, and returns the outcome.
    ///
    /// # Errors
    ///
    /// This fails with the bound that was hit.
    pub fn run(mut self) -> Result<Outcome, RunError> {
        self.run_until(self.env.world.warmup_ns)?;
        self.begin_window();
        let window_ns = self.env.world.window_ns;
        self.run_until(self.env.now_ns + window_ns)?;
        Ok(self.outcome())
    }

    /// Begins to count.
    pub fn begin_window(&mut self) {
        for cpu in self.cpus.ids() {
            self.cpus.account(&mut self.env, cpu);
        }
        let (napi, cpu, busy_ns) =
            (self.nic.napi_stats(), self.cpus.used(&self.env.world.cpus), self.cpus.busy_ns(&self.env.world.cpus));
        self.env.tally.begin_window(self.env.now_ns, napi, cpu, busy_ns);
    }

    /// Returns what was counted since the window began.
    pub fn outcome(&mut self) -> Outcome {
        for cpu in self.cpus.ids() {
            self.cpus.account(&mut self.env, cpu);
        }
        self.nic.close_rungs(&mut self.env);
        let (now, before) = (self.cpus.used(&self.env.world.cpus), self.env.tally.cpu_before);
        let busy_ns = self.cpus.busy_ns(&self.env.world.cpus);
        let busy_ns = busy_ns.iter().zip(&self.env.tally.busy_before_ns).map(|(now_ns, before_ns)| now_ns - before_ns);
        Outcome {
            window_ns: self.env.now_ns - self.env.tally.counting_since_ns,
            latency_ns: self.env.tally.latency_ns.clone(),
            latency_sum_ns: self.env.tally.latency_sum_ns,
            second: self.env.tally.second.clone(),
            counts: self.env.tally.counts,
            cpu: CpuUse {
                user_ns: now.user_ns - before.user_ns,
                sys_ns: now.sys_ns - before.sys_ns,
                softirq_ns: now.softirq_ns - before.softirq_ns,
                uncharged_ns: now.uncharged_ns - before.uncharged_ns,
                idle_ns: now.idle_ns - before.idle_ns,
            },
            busiest_ns: busy_ns.max().unwrap_or(0),
            napi: self.nic.napi_stats() - self.env.tally.napi_before,
            events: self.env.tally.events,
            transitions: self.env.tally.transitions,
            broken_into: self.env.tally.broken_into,
            digest: self.digest,
            inside: self.clients.inside,
            on_wire: self.clients.on_wire,
            rung_ns: self.env.tally.rung_ns,
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.cpus.abandon();
        for queue in self.nic.queues.iter_mut() {
            queue.unsettled.clear();
        }
        for (_, stop) in self.nic.groups.leaving.drain(..) {
            std::mem::forget(stop);
        }
        for group in self.nic.groups.table.iter_mut() {
            group.seats.iter_mut().filter_map(|seat| seat.arriving.take()).for_each(lull_core::GroupPoller::abandon);
        }
        for program in self.programs.iter_mut().filter_map(Option::take) {
            program.abandon();
        }
    }
}
