//! One CPU: hard interrupts above softirq above threads above idle.
//!
//! What a CPU executes is a *segment*: a stretch of work with a cost, at whose end its effects happen. A hard interrupt stops
//! the segment of softirq or of a thread where it is, and the rest runs later. Softirq runs when an interrupt returns, when a
//! thread turns bottom halves back on, or in ksoftirqd. [`Sim::dispatch`] holds the order of precedence.

use std::collections::VecDeque;

use lull_core::event::EventKind;
use lull_core::{Schedule, Softnet};

use crate::engine::agenda::NEVER;
use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::idle::{Idle, IdleState};
use crate::engine::metrics::CpuUse;
use crate::engine::sim::Sim;
use crate::engine::softirq::Soft;
use crate::engine::thread::ThreadState;

/// Why a CPU is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irq {
    /// The device, for this queue.
    Device(QueueId),
    /// The timer of this queue's NAPI.
    NapiTimer(QueueId),
    /// The timeout of a sleeping thread.
    Sleeper(ThreadId),
    /// Another CPU woke a thread here.
    Resched,
    /// Whoever acts on the world from outside does so here: this step.
    Call(u32),
}

/// What a CPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Idle,
    Hard,
    Soft,
    Thread,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) level: Level,
    started_ns: u64,
    /// Interrupts that wait.
    pub(crate) pending: VecDeque<Irq>,
    hard: Option<Irq>,
    pub(crate) soft: Soft,
    pub(crate) softnet: Softnet,
    /// The softirq is raised but was handed to ksoftirqd: the next bottom-half enable, interrupt or ksoftirqd runs it.
    pub(crate) softirq_handed_over: bool,
    /// The thread that runs, or was interrupted.
    pub(crate) current: Option<ThreadId>,
    pub(crate) runnable: Vec<ThreadId>,
    pub(crate) need_resched: bool,
    /// Its ksoftirqd: there before anything runs.
    pub(crate) ksoftirqd: Option<ThreadId>,
    pub(crate) vruntime_min_ns: u64,
    /// What runs came out of idle, and no thread has been switched to yet.
    from_idle: bool,
    idle_since_ns: u64,
    /// Costs that were left when it went idle: nobody waits for them.
    owed_ns: u64,
    /// What is left of a switch out of idle, which accounting does not see.
    unseen_ns: u64,
    pub(crate) idle: Idle,
    /// Delivery took packets while the current thread was interrupted.
    pub(crate) broken_into: bool,
    /// The effects of a segment are happening: an interrupt waits until they have.
    in_effects: bool,
    /// Costs that effects incurred: the next segment bears them.
    pub(crate) debt_ns: u64,
    /// The clock of interference: requests worked on by this core.
    pub(crate) touched: u64,
    pub(crate) used: CpuUse,
}

impl Cpu {
    pub(crate) fn new() -> Cpu {
        Cpu {
            level: Level::Idle,
            started_ns: 0,
            pending: VecDeque::with_capacity(8),
            hard: None,
            soft: Soft::default(),
            softnet: Softnet::new(),
            softirq_handed_over: false,
            current: None,
            runnable: Vec::with_capacity(8),
            need_resched: false,
            ksoftirqd: None,
            vruntime_min_ns: 0,
            from_idle: false,
            idle_since_ns: 0,
            owed_ns: 0,
            unseen_ns: 0,
            idle: Idle::new(),
            broken_into: false,
            in_effects: false,
            debt_ns: 0,
            touched: 0,
            used: CpuUse::default(),
        }
    }

    /// The thread that runs, or was interrupted, where there has to be one.
    pub(crate) fn running(&self) -> ThreadId {
        self.current.expect("a CPU at thread level has a thread")
    }

    /// Whether a thread of this CPU has work in hand that delivery breaks into.
    pub(crate) fn is_breaking_in(&self) -> bool {
        self.current.is_some()
    }
}

impl Sim {
    /// Whether this interrupt was raised and its handler has not ended.
    pub(crate) fn is_in_flight(&self, irq: Irq) -> bool {
        self.cpus.iter().any(|cpu| cpu.hard == Some(irq) || cpu.pending.contains(&irq))
    }

    /// The interrupt line to this CPU.
    pub(crate) fn interrupt(&mut self, cpu: CpuId, irq: Irq) {
        if self.cpus[cpu].pending.contains(&irq) {
            return;
        }
        self.cpus[cpu].pending.push_back(irq);
        if self.guest.is_frozen(cpu) {
            self.guest_interrupted(irq);
            return;
        }
        // A CPU in the middle of its own effects takes it when it dispatches.
        if self.cpus[cpu].level != Level::Hard && !self.cpus[cpu].in_effects {
            self.pause(cpu);
            self.dispatch(cpu);
        }
    }

    /// Stops what the CPU executes; the rest of its segment is kept.
    pub(crate) fn pause(&mut self, cpu: CpuId) {
        let slot = self.slots.cpu(cpu);
        let rest_ns = self.agenda.slot_ns(slot).saturating_sub(self.now_ns);
        self.account(cpu);
        self.agenda.set(slot, NEVER);
        match self.cpus[cpu].level {
            Level::Thread => {
                let thread = self.cpus[cpu].running();
                self.threads[thread].segment.rest_ns = rest_ns;
                self.host_stops(cpu);
            }
            Level::Soft => self.cpus[cpu].soft.rest_ns = rest_ns,
            Level::Idle | Level::Hard => {}
        }
    }

    /// Charges the time since the CPU began what it executes.
    pub(crate) fn account(&mut self, cpu: CpuId) {
        if self.guest.is_frozen(cpu) {
            self.restart_clock(cpu);
            return;
        }
        let now_ns = self.now_ns;
        let cpu = &mut self.cpus[cpu];
        let spent_ns = now_ns - cpu.started_ns;
        cpu.started_ns = now_ns;
        match cpu.level {
            Level::Idle => {
                // What was owed when it went idle came first.
                let paid_ns = cpu.owed_ns.min(spent_ns);
                cpu.owed_ns -= paid_ns;
                cpu.used.softirq_ns += paid_ns;
                cpu.used.idle_ns += spent_ns - paid_ns;
            }
            // Accounting samples at ticks: an interrupt that finds the CPU idle, and the way out of idle, it never sees; of the
            // softirq that follows it sees most.
            Level::Hard if cpu.from_idle => cpu.used.uncharged_ns += spent_ns,
            Level::Hard | Level::Soft => {
                if cpu.from_idle {
                    let uncharged_ns = spent_ns * u64::from(self.world.costs.uncharged_in_idle) / 1_024;
                    cpu.used.uncharged_ns += uncharged_ns;
                    cpu.used.softirq_ns += spent_ns - uncharged_ns;
                } else if let Some(thread) = cpu.current.filter(|_| cpu.current == cpu.ksoftirqd) {
                    // ksoftirqd's time is system time in its thread clock, softirq time for the CPU; its scheduler counts it.
                    cpu.used.softirq_ns += spent_ns;
                    if cpu.level == Level::Soft {
                        self.threads[thread].vruntime_ns += spent_ns;
                    }
                } else {
                    cpu.used.softirq_ns += spent_ns;
                }
            }
            Level::Thread => {
                let thread = &mut self.threads[cpu.running()];
                thread.vruntime_ns += spent_ns;
                let unseen_ns = cpu.unseen_ns.min(spent_ns);
                cpu.unseen_ns -= unseen_ns;
                cpu.used.uncharged_ns += unseen_ns;
                let seen_ns = spent_ns - unseen_ns;
                let user_ns = seen_ns * u64::from(thread.segment.user_share) / 1_024;
                cpu.used.user_ns += user_ns;
                cpu.used.sys_ns += seen_ns - user_ns;
            }
        }
    }

    fn begin(&mut self, at: CpuId, level: Level, cost_ns: u64) {
        let cpu = at;
        let slot = self.slots.cpu(cpu);
        let now_ns = self.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.level = level;
        cpu.started_ns = now_ns;
        let cost_ns = cost_ns + std::mem::take(&mut cpu.debt_ns);
        self.agenda.set(slot, now_ns + cost_ns);
        if level == Level::Thread {
            self.host_runs(at);
        }
    }

    /// A segment ended: its effects happen, and the CPU goes on.
    pub(crate) fn segment_ended(&mut self, cpu: CpuId) {
        self.account(cpu);
        self.cpus[cpu].in_effects = true;
        match self.cpus[cpu].level {
            Level::Idle => unreachable!("an idle CPU has no segment"),
            Level::Hard => {
                if let Some(irq) = self.cpus[cpu].hard.take() {
                    self.handle(cpu, irq);
                }
            }
            Level::Soft => self.softirq_step(cpu),
            Level::Thread => {
                let thread = self.cpus[cpu].running();
                self.host_stops(cpu);
                self.threads[thread].segment.rest_ns = 0;
                self.thread_step(thread);
            }
        }
        self.cpus[cpu].in_effects = false;
        self.dispatch(cpu);
    }

    /// Decides what the CPU executes now: interrupts, softirq, the thread it has, another thread, or nothing.
    pub(crate) fn dispatch(&mut self, cpu: CpuId) {
        if self.guest.is_frozen(cpu) {
            return;
        }
        // Whatever was going on before this call has been accounted for.
        let was_idle = self.cpus[cpu].level == Level::Idle;
        if let Some(irq) = self.cpus[cpu].pending.pop_front() {
            let mut cost_ns = u64::from(match irq {
                Irq::Device(_) => self.world.costs.irq_ns,
                Irq::NapiTimer(_) | Irq::Sleeper(_) => self.world.costs.timer_irq_ns,
                Irq::Resched | Irq::Call(_) => self.world.costs.ipi_ns,
            });
            if was_idle {
                cost_ns += self.leave_idle(cpu);
            }
            if self.guest.is_cpu(cpu) {
                cost_ns += self.guest.vm_exit_ns();
            }
            self.cpus[cpu].hard = Some(irq);
            self.begin(cpu, Level::Hard, cost_ns);
            return;
        }
        if self.cpus[cpu].soft.is_active() {
            let rest_ns = std::mem::take(&mut self.cpus[cpu].soft.rest_ns);
            self.begin(cpu, Level::Soft, rest_ns);
            return;
        }
        let current = self.cpus[cpu].current;
        let bottom_halves_off = current.is_some_and(|thread| self.threads[thread].segment.bottom_halves_off);
        let held = self.cpus[cpu].softirq_handed_over;
        if self.cpus[cpu].softnet.is_raised() && !bottom_halves_off && !held {
            let in_thread = current.is_some() && self.cpus[cpu].level == Level::Thread;
            let cost_ns = self.softirq_begin(cpu, in_thread);
            self.begin(cpu, Level::Soft, cost_ns);
            return;
        }
        self.run_thread(cpu, was_idle);
    }

    fn run_thread(&mut self, cpu: CpuId, was_idle: bool) {
        let mut switch_ns = 0;
        if let Some(current) = self.cpus[cpu].current
            && self.cpus[cpu].need_resched
            && self.threads[current].segment.preemptible
        {
            self.cpus[cpu].current = None;
            self.cpus[cpu].runnable.push(current);
        }
        if self.cpus[cpu].current.is_none() {
            let Some(next) = self.pick(cpu) else {
                self.enter_idle(cpu);
                return;
            };
            if was_idle {
                switch_ns += self.leave_idle(cpu);
            }
            switch_ns += u64::from(self.world.costs.switch_ns);
            self.tally.counts.switches += 1;
            self.cpus[cpu].current = Some(next);
            self.cpus[cpu].need_resched = false;
            // The idle task switches with interrupts off: the tick comes when another thread runs.
            let out_of_idle = std::mem::take(&mut self.cpus[cpu].from_idle);
            self.cpus[cpu].unseen_ns = if out_of_idle { switch_ns } else { 0 };
        }
        if std::mem::take(&mut self.cpus[cpu].broken_into) && switch_ns == 0 {
            self.cpus[cpu].debt_ns += u64::from(self.world.cache.broken_thread_ns);
            self.tally.broken_into += 1;
        }
        let thread = &self.threads[self.cpus[cpu].running()];
        debug_assert!(thread.state == ThreadState::Running, "a thread runs that should not");
        self.begin(cpu, Level::Thread, thread.segment.rest_ns + switch_ns);
    }

    fn enter_idle(&mut self, at: CpuId) {
        let cpu = at;
        if self.cpus[cpu].level != Level::Idle {
            let timer_ns = self.next_timer_ns(cpu).saturating_sub(self.now_ns);
            let expected_ns = self.cpus[cpu].idle.expected_ns(timer_ns);
            let deep = expected_ns >= u64::from(self.world.costs.idle_deep_residency_ns);
            let cpu = &mut self.cpus[cpu];
            cpu.idle.state = if deep { IdleState::Deep } else { IdleState::Shallow };
            cpu.idle_since_ns = self.now_ns;
        }
        let now_ns = self.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.level = Level::Idle;
        cpu.owed_ns += std::mem::take(&mut cpu.debt_ns);
        cpu.started_ns = now_ns;
        cpu.from_idle = false;
        self.guest_halts(at);
    }

    /// The CPU begins to execute what it was stopped in.
    pub(crate) fn restart_clock(&mut self, cpu: CpuId) {
        self.cpus[cpu].started_ns = self.now_ns;
    }

    /// What leaving idle costs now.
    fn leave_idle(&mut self, cpu: CpuId) -> u64 {
        let costs = &self.world.costs;
        let cpu = &mut self.cpus[cpu];
        cpu.idle.note(self.now_ns - cpu.idle_since_ns);
        cpu.from_idle = true;
        let exit_ns = match cpu.idle.state {
            IdleState::Shallow => costs.idle_shallow_exit_ns,
            IdleState::Deep => costs.idle_deep_exit_ns,
        };
        u64::from(exit_ns)
    }

    /// When the next timer of this CPU fires.
    fn next_timer_ns(&self, cpu: CpuId) -> u64 {
        let napi = self.nic.queues.iter().filter_map(|queue| queue.napi.timer().pending());
        napi.filter(|&(_, on)| on == cpu.raw()).map(|(at_ns, _)| at_ns).min().unwrap_or(NEVER)
    }

    /// The handler of an interrupt.
    fn handle(&mut self, cpu: CpuId, irq: Irq) {
        match irq {
            Irq::Device(queue) => {
                self.tally.counts.irqs += 1;
                self.device_interrupts(queue, cpu);
                while let Some(sharing) = self.pending_on_vector(queue, cpu) {
                    self.device_interrupts(sharing, cpu);
                }
            }
            Irq::NapiTimer(queue) => {
                self.tally.counts.timer_irqs += 1;
                let cx = crate::engine::sim::cx(self.now_ns, cpu, &self.sink);
                self.tally.transitions += 1;
                if let Some(owner) = self.nic.queues[queue].napi.timer_expired(&cx) {
                    self.route(owner, cpu);
                }
                self.sync_timer(queue);
            }
            Irq::Sleeper(thread) => self.sleeper_expired(thread),
            Irq::Resched => {}
            Irq::Call(step) => self.operator_acts(step, cpu),
        }
        // An interrupt's return runs pending softirqs, whoever they were handed to.
        self.cpus[cpu].softirq_handed_over = false;
    }

    /// The device reports events of this queue.
    fn device_interrupts(&mut self, queue: QueueId, cpu: CpuId) {
        let cx = crate::engine::sim::cx(self.now_ns, cpu, &self.sink);
        let napi = &self.nic.queues[queue].napi;
        cx.emit(queue.raw(), EventKind::Irq);
        self.tally.transitions += 1;
        if let Schedule::Owned(owner) = napi.schedule(&cx) {
            cx.emit(queue.raw(), EventKind::Mask);
            self.mask(queue);
            self.route(owner, cpu);
        }
    }

    /// Takes another queue of the same vector that has reported events to this CPU since.
    fn pending_on_vector(&mut self, queue: QueueId, cpu: CpuId) -> Option<QueueId> {
        let vector = self.nic.queues[queue].spec.vector?;
        let (queues, pending) = (&self.nic.queues, &mut self.cpus[cpu].pending);
        let shares = |irq: &Irq| matches!(irq, Irq::Device(other) if queues[*other].spec.vector == Some(vector));
        match pending.iter().position(shares).and_then(|place| pending.remove(place)) {
            Some(Irq::Device(sharing)) => Some(sharing),
            _ => None,
        }
    }
}
