//! The CPUs: hard interrupts have priority over softirq, softirq over threads, and threads over idle.
//!
//! A CPU executes *segments*: pieces of work with a cost, at whose end their effects happen. A hard interrupt stops the
//! segment of softirq or of a thread where it is, and the rest runs later. Softirq runs when an interrupt returns, when
//! a thread enables bottom halves again, or in ksoftirqd. [`Cpus::dispatch`] has the order of priority.

use std::ops::{Index, IndexMut};

use crate::engine::agenda::Event;
use crate::engine::cpu::{Cpu, Irq, Level};
use crate::engine::env::Env;
use crate::engine::id::{CpuId, QueueId, Table, ThreadId};
use crate::engine::idle::IdleState;
use crate::engine::metrics::CpuUse;
use crate::engine::rng::{Component, Stream};
use crate::engine::thread::{Thread, ThreadState};
use crate::engine::vcpu::Vcpu;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Cpus {
    pub(super) cpus: Table<CpuId, Cpu>,
    pub(crate) threads: Table<ThreadId, Thread>,
    /// The guest's CPU, if there is a guest.
    pub(super) vcpu: Option<Vcpu>,
    /// The pending timers of NAPIs: when they are due, and on which CPU.
    pub(super) napi_timers: Table<QueueId, Option<(u64, CpuId)>>,
    /// How many requests were worked on, by all cores together.
    pub(crate) requests: u64,
    /// How many cores work on requests.
    serving: u64,
    /// Draws what runs beside the service.
    pub(super) background: Stream,
}

impl Index<CpuId> for Cpus {
    type Output = Cpu;
    #[inline]
    fn index(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu]
    }
}

impl IndexMut<CpuId> for Cpus {
    #[inline]
    fn index_mut(&mut self, cpu: CpuId) -> &mut Cpu {
        &mut self.cpus[cpu]
    }
}

impl Cpus {
    pub(crate) fn new(cpus: &[bool], queues: usize, seed: u64) -> Cpus {
        Cpus {
            background: Stream::new(seed, Component::Background, 0),
            requests: 0,
            serving: cpus.iter().filter(|serves| **serves).count().max(1) as u64,
            cpus: cpus.iter().map(|_| Cpu::new()).collect(),
            threads: Table::new(),
            vcpu: None,
            napi_timers: (0..queues).map(|_| None).collect(),
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        self.cpus.ids()
    }

    /// The clock of interference: how many requests a core has worked on, as a mean of all cores. If each core had its
    /// own clock, a connection's age would depend on which of two cores has worked on more since the run began.
    #[inline]
    pub(crate) fn touched(&self) -> u64 {
        self.requests / self.serving
    }

    /// Returns what the CPUs that `counted` selects were used for, together.
    pub(crate) fn used(&self, counted: &[bool]) -> CpuUse {
        let mut sum = CpuUse::default();
        for (cpu, _) in self.cpus.iter().zip(counted).filter(|(_, counted)| **counted) {
            sum.add(&cpu.used);
        }
        sum
    }

    /// Returns the busy time of each CPU that `counted` selects, and 0 for others.
    pub(crate) fn busy_ns(&self, counted: &[bool]) -> Vec<u64> {
        let counted = self.cpus.iter().zip(counted);
        counted.map(|(cpu, counted)| if *counted { cpu.used.busy_ns() } else { 0 }).collect()
    }

    /// Releases what the CPUs own at the end of a run.
    pub(crate) fn abandon(&mut self) {
        for cpu in self.cpus.iter_mut() {
            cpu.soft.abandon();
        }
    }

    /// Whether this interrupt was raised and its handler has not ended.
    pub(crate) fn is_in_flight(&self, irq: Irq) -> bool {
        self.cpus.iter().any(|cpu| cpu.hard == Some(irq) || cpu.pending.contains(&irq))
    }

    /// Raises an interrupt on this CPU.
    pub(crate) fn interrupt(&mut self, env: &mut Env, cpu: CpuId, irq: Irq) {
        if self.cpus[cpu].pending.contains(&irq) {
            return;
        }
        self.cpus[cpu].pending.push_back(irq);
        if self.is_guest_frozen(cpu) {
            self.guest_interrupted(env);
            return;
        }
        // A CPU in the middle of its own effects takes the interrupt when it dispatches.
        if self.cpus[cpu].level != Level::Hard && !self.cpus[cpu].in_effects {
            self.pause(env, cpu);
            self.dispatch(env, cpu);
        }
    }

    /// Stops what the CPU executes; the rest of its segment is kept.
    pub(crate) fn pause(&mut self, env: &mut Env, cpu: CpuId) {
        let slot = env.slots.cpu(cpu);
        let rest_ns = env.agenda.slot_ns(slot).map_or(0, |at_ns| at_ns - env.now_ns);
        self.account(env, cpu);
        env.agenda.clear(slot);
        match self.cpus[cpu].level {
            Level::Thread => {
                let running = self.cpus[cpu].running();
                let thread = &mut self.threads[running];
                thread.segment.rest_ns = rest_ns;
                if let Some(spin) = thread.spins {
                    // A thread that makes passes sees at the end of one how long it was interrupted, and others see
                    // what it has done.
                    thread.segment.rest_ns = rest_ns.min(thread.last_pass_ns(spin));
                    env.agenda.push(env.now_ns, Event::Program { thread: running, token: 0 });
                }
                self.host_stops(env, cpu);
            }
            Level::Soft => self.cpus[cpu].soft.rest_ns = rest_ns,
            Level::Idle | Level::Hard => {}
        }
    }

    /// Charges the time since the CPU began what it executes.
    pub(crate) fn account(&mut self, env: &mut Env, cpu: CpuId) {
        if self.is_guest_frozen(cpu) {
            self.restart_clock(env, cpu);
            return;
        }
        let now_ns = env.now_ns;
        let cpu = &mut self.cpus[cpu];
        let spent_ns = now_ns - cpu.started_ns;
        cpu.started_ns = now_ns;
        // On lull's own host CPU time is that of threads, and a thread that is still coming out of idle has none yet.
        let comes_out_of_idle = cpu.level == Level::Hard && cpu.from_idle && env.world.host.is_some();
        match cpu.level {
            Level::Idle => cpu.rested(spent_ns),
            Level::Hard if comes_out_of_idle => cpu.rested(spent_ns),
            // Accounting samples at ticks: it never sees an interrupt that finds the CPU idle, nor the way out of idle,
            // but it sees most of the softirq that follows.
            Level::Hard if cpu.from_idle => cpu.used.uncharged_ns += spent_ns,
            Level::Hard | Level::Soft => {
                if cpu.from_idle {
                    let uncharged_ns = spent_ns * u64::from(env.world.costs.uncharged_in_idle) / 1_024;
                    cpu.used.uncharged_ns += uncharged_ns;
                    cpu.used.softirq_ns += spent_ns - uncharged_ns;
                } else if let Some(thread) = cpu.current.filter(|_| cpu.current == cpu.ksoftirqd) {
                    // ksoftirqd's time is system time of its thread, and softirq time of the CPU; the scheduler counts
                    // it as the thread's.
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

    fn begin(&mut self, env: &mut Env, at: CpuId, level: Level, cost_ns: u64) {
        let cpu = at;
        let slot = env.slots.cpu(cpu);
        let now_ns = env.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.level = level;
        cpu.started_ns = now_ns;
        let cost_ns = cost_ns + std::mem::take(&mut cpu.debt_ns);
        env.agenda.set(slot, now_ns + cost_ns);
        if level == Level::Thread {
            self.host_runs(env, at);
        }
    }

    /// The segment of the thread that runs has ended.
    pub(super) fn thread_stops(&mut self, env: &mut Env, cpu: CpuId) -> ThreadId {
        let thread = self.cpus[cpu].running();
        self.host_stops(env, cpu);
        self.threads[thread].segment.rest_ns = 0;
        thread
    }

    /// Decides what the CPU executes now: interrupts, softirq, the thread it has, another thread, or nothing.
    pub(crate) fn dispatch(&mut self, env: &mut Env, cpu: CpuId) {
        if self.is_guest_frozen(cpu) {
            return;
        }
        // Everything before this call has been accounted for.
        let was_idle = self.cpus[cpu].level == Level::Idle;
        if let Some(irq) = self.cpus[cpu].pending.pop_front() {
            let mut cost_ns = match env.world.host {
                Some(_) => self.host_irq_ns(env, cpu, irq, was_idle),
                None => self.irq_ns(env, cpu, irq, was_idle),
            };
            if matches!(irq, Irq::Resched) {
                cost_ns += std::mem::take(&mut self.cpus[cpu].stolen_ns);
            }
            if self.is_guest(cpu) {
                cost_ns += self.vm_exit_ns();
            }
            self.cpus[cpu].hard = Some(irq);
            self.begin(env, cpu, Level::Hard, cost_ns);
            return;
        }
        if self.cpus[cpu].soft.is_active() {
            let rest_ns = std::mem::take(&mut self.cpus[cpu].soft.rest_ns);
            self.begin(env, cpu, Level::Soft, rest_ns);
            return;
        }
        let current = self.cpus[cpu].current;
        let bottom_halves_off = current.is_some_and(|thread| self.threads[thread].segment.bottom_halves_off);
        let held = self.cpus[cpu].softirq_handed_over;
        if self.cpus[cpu].softnet.is_raised() && !bottom_halves_off && !held {
            let in_thread = current.is_some() && self.cpus[cpu].level == Level::Thread;
            let cost_ns = self.softirq_begin(env, cpu, in_thread);
            self.begin(env, cpu, Level::Soft, cost_ns);
            return;
        }
        self.run_thread(env, cpu, was_idle);
    }

    /// Returns what an interrupt costs before its softirq runs, with the cost of leaving idle.
    fn irq_ns(&mut self, env: &Env, cpu: CpuId, irq: Irq, was_idle: bool) -> u64 {
        let cost_ns = u64::from(match irq {
            Irq::Device(_) => env.world.costs.irq_ns,
            Irq::NapiTimer(_) | Irq::Sleeper(_) => env.world.costs.timer_irq_ns,
            // Only lull's own host has such a thread.
            Irq::Resched | Irq::Call(_) | Irq::Backstop => env.world.costs.ipi_ns,
        });
        cost_ns + if was_idle { self.leave_idle(env, cpu) } else { 0 }
    }

    fn run_thread(&mut self, env: &mut Env, cpu: CpuId, was_idle: bool) {
        let mut switch_ns = 0;
        if let Some(current) = self.cpus[cpu].current
            && self.cpus[cpu].need_resched
            && self.threads[current].segment.preemptible
        {
            self.cpus[cpu].current = None;
            self.cpus[cpu].runnable.push(current);
        }
        if self.cpus[cpu].current.is_none() {
            let Some(next) = self.pick(cpu).or_else(|| self.pull(env, cpu)) else {
                self.enter_idle(env, cpu);
                return;
            };
            if was_idle {
                switch_ns += self.leave_idle(env, cpu);
            }
            if !self.woken_itself(env, cpu) {
                switch_ns += u64::from(env.world.costs.switch_ns);
            }
            env.tally.counts.switches += 1;
            self.cpus[cpu].current = Some(next);
            self.cpus[cpu].need_resched = false;
            // The idle task switches with interrupts off, so the tick comes when another thread runs.
            let out_of_idle = std::mem::take(&mut self.cpus[cpu].from_idle);
            self.cpus[cpu].unseen_ns = if out_of_idle { switch_ns } else { 0 };
        }
        if std::mem::take(&mut self.cpus[cpu].broken_into) && switch_ns == 0 {
            self.cpus[cpu].debt_ns += u64::from(env.world.cache.broken_thread_ns);
            env.tally.broken_into += 1;
        }
        let owed_ns = self.cpus[cpu].debt_ns;
        let running = self.cpus[cpu].running();
        let thread = &mut self.threads[running];
        debug_assert!(thread.state == ThreadState::Running, "a thread runs that should not");
        thread.bore_ns += switch_ns + owed_ns;
        let cost_ns = thread.segment.rest_ns + switch_ns;
        self.begin(env, cpu, Level::Thread, cost_ns);
    }

    fn enter_idle(&mut self, env: &mut Env, at: CpuId) {
        let cpu = at;
        if self.cpus[cpu].level != Level::Idle {
            let timer_ns = self.next_timer_ns(cpu).map(|at_ns| at_ns.saturating_sub(env.now_ns));
            let expected_ns = self.cpus[cpu].idle.expected_ns(timer_ns);
            let deep = expected_ns >= u64::from(env.world.costs.idle_deep_residency_ns);
            let cpu = &mut self.cpus[cpu];
            cpu.idle.state = if deep { IdleState::Deep } else { IdleState::Shallow };
            cpu.idle_since_ns = env.now_ns;
        }
        let now_ns = env.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.level = Level::Idle;
        cpu.owed_ns += std::mem::take(&mut cpu.debt_ns);
        cpu.started_ns = now_ns;
        cpu.from_idle = false;
        self.guest_halts(env, at);
    }

    /// The CPU continues what it was stopped in.
    pub(crate) fn restart_clock(&mut self, env: &Env, cpu: CpuId) {
        self.cpus[cpu].started_ns = env.now_ns;
    }

    /// Returns what leaving idle costs now.
    pub(super) fn leave_idle(&mut self, env: &Env, cpu: CpuId) -> u64 {
        let costs = &env.world.costs;
        let cpu = &mut self.cpus[cpu];
        cpu.idle.note(env.now_ns - cpu.idle_since_ns);
        cpu.from_idle = true;
        let exit_ns = match cpu.idle.state {
            IdleState::Shallow => costs.idle_shallow_exit_ns,
            IdleState::Deep => costs.idle_deep_exit_ns,
        };
        u64::from(exit_ns)
    }

    /// Returns when the next timer of this CPU fires, if one is pending.
    pub(super) fn next_timer_ns(&self, cpu: CpuId) -> Option<u64> {
        let napi = self.napi_timers.iter().flatten().filter(|&&(_, on)| on == cpu);
        napi.map(|&(at_ns, _)| at_ns).min()
    }

    /// Notes that the timer of a NAPI is due at this time on this CPU, or was cancelled.
    pub(crate) fn set_napi_timer(&mut self, env: &mut Env, queue: QueueId, pending: Option<(u64, CpuId)>) {
        self.napi_timers[queue] = pending;
        let slot = env.slots.napi_timer(queue);
        let Some((deadline_ns, cpu)) = pending else {
            env.agenda.clear(slot);
            return;
        };
        let at_ns = deadline_ns.max(env.now_ns).saturating_add(env.faults.timer_late_ns());
        if env.world.host.is_none() && env.world.costs.timer_start_ns != 0 && env.agenda.slot_ns(slot) != Some(at_ns) {
            self.cpus[cpu].debt_ns += u64::from(env.world.costs.timer_start_ns);
        }
        env.agenda.set(slot, at_ns);
    }
}
