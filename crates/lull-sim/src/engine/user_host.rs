//! CPUs on which lull's own host delivers ([`UserHost`]): what an interrupt costs there, and when timers are checked.

use crate::engine::cpu::{Irq, Level};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::CpuId;
use crate::engine::sim::Sim;
use crate::world::UserHost;

impl Cpus {
    /// Returns what an interrupt costs before its softirq runs.
    pub(super) fn host_irq_ns(&mut self, env: &Env, cpu: CpuId, irq: Irq, was_idle: bool) -> u64 {
        let costs = &env.world.costs;
        if was_idle {
            let exit_ns = self.leave_idle(env, cpu);
            // A thread that sleeps until a deadline is woken by its own kernel timer.
            let is_timer = matches!(irq, Irq::NapiTimer(_) | Irq::Sleeper(_) | Irq::Backstop);
            if irq == Irq::Backstop {
                // The worker sleeps in the seat, so the interrupt thread wakes beside it for nothing, and sleeps again.
                self.cpus[cpu].owed_ns += u64::from(costs.epoll_sleep_ns);
            }
            let out_ns = if is_timer { u64::from(costs.timer_late_ns) } else { exit_ns };
            // The time in which the thread comes back is part of the way out of idle; if its own timer fires, it is all
            // of it.
            let back_ns = u64::from(costs.epoll_sleep_ns) - env.world.falling_ns();
            self.cpus[cpu].owed_ns += if is_timer { out_ns } else { back_ns };
            return out_ns;
        }
        match irq {
            // A worker has looked, or is about to, so no thread wakes for it.
            Irq::NapiTimer(_) => 0,
            // The thread wakes whichever thread has the seat.
            Irq::Backstop => u64::from(costs.timer_irq_ns),
            _ if self.cpus[cpu].in_turn => 0,
            Irq::Device(_) => u64::from(costs.irq_ns),
            Irq::Sleeper(_) => u64::from(costs.timer_irq_ns),
            Irq::Resched | Irq::Call(_) => u64::from(costs.ipi_ns),
        }
    }

    /// Whether the thread that runs out of idle is the one that was woken itself, and so has been switched to already.
    pub(super) fn woken_itself(&self, env: &Env, cpu: CpuId) -> bool {
        env.world.host.is_some() && self.cpus[cpu].from_idle
    }
}

impl Sim {
    /// A timer of a NAPI is due. If a worker computes, the timer waits until the worker looks, or until the kernel
    /// timer fires.
    pub(super) fn timer_waits(&mut self, cpu: CpuId) -> bool {
        let computes = self.cpus[cpu].level != Level::Idle && !self.cpus[cpu].in_turn;
        if self.env.world.host.is_none() || !computes {
            return false;
        }
        self.cover(cpu);
        true
    }

    /// A worker leaves lull's calls: the kernel timer of the interrupt thread has to fire for the earliest deadline, at
    /// most the slack later. It is only moved to earlier times and never cancelled, so that a deadline that the worker
    /// meets by a look of its own takes no system call; then the thread wakes for nothing.
    pub(crate) fn cover(&mut self, cpu: CpuId) {
        let Some(UserHost { timer_slack_ns, .. }) = self.env.world.host else { return };
        let Some(deadline_ns) = self.cpus.next_timer_ns(cpu) else { return };
        let target_ns = deadline_ns.max(self.env.now_ns) + u64::from(timer_slack_ns);
        if self.cpus[cpu].backstop_ns.is_some_and(|at_ns| at_ns <= target_ns) {
            return;
        }
        self.cpus[cpu].backstop_ns = Some(target_ns);
        self.cpus[cpu].debt_ns += u64::from(self.env.world.costs.timer_start_ns);
        self.env.agenda.set(self.env.slots.backstop(cpu), target_ns);
    }

    /// The kernel timer of the interrupt thread has fired, and the thread looks.
    pub(super) fn backstop_fired(&mut self, cpu: CpuId) {
        self.env.tally.counts.backstops += 1;
        for queue in self.nic.queues.ids() {
            let pending = self.nic.queues[queue].napi.timer().pending();
            if pending.is_some_and(|(deadline_ns, on)| CpuId::new(on) == cpu && deadline_ns <= self.env.now_ns) {
                self.env.tally.counts.timer_irqs += 1;
                self.nic.timer_expired(&mut self.env, &mut self.cpus, queue, cpu);
            }
        }
        // A worker that sleeps wakes for the next deadline itself.
        if self.cpus[cpu].current.is_some() {
            self.cover(cpu);
        }
    }

    /// A worker is in one of lull's calls: it looks whether a timer of its CPU is due.
    pub(crate) fn look_at_timers(&mut self, cpu: CpuId) {
        if self.env.world.host.is_none() {
            return;
        }
        for queue in self.nic.queues.ids() {
            let pending = self.nic.queues[queue].napi.timer().pending();
            if pending.is_some_and(|(deadline_ns, on)| CpuId::new(on) == cpu && deadline_ns <= self.env.now_ns) {
                self.cpus.interrupt(&mut self.env, cpu, Irq::NapiTimer(queue));
            }
        }
    }

    /// A worker is about to sleep because there are no events: deferrals that are under way end first
    /// ([`lull_core::AfterResume`]). Returns whether one did; then its poll comes before the sleep.
    pub(crate) fn end_deferrals(&mut self, cpu: CpuId) -> bool {
        let interrupts = |host: UserHost| host.after_resume == lull_core::AfterResume::Interrupt;
        if !self.env.world.host.is_some_and(interrupts) {
            return false;
        }
        let mut ended = false;
        for queue in self.nic.queues.ids() {
            if let Some(owner) = self.nic.queues[queue].napi.end_deferral(&self.env.cx(cpu)) {
                self.nic.sync_timer(&mut self.env, &mut self.cpus, queue);
                self.nic.route(&mut self.env, &mut self.cpus, owner, cpu);
                ended = true;
            }
        }
        ended
    }
}
