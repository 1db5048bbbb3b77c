//! CPUs on which lull's own host delivers ([`UserHost`]): what an interrupt costs there, and when timers are looked at.

use crate::engine::cpu::{Irq, Level};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::sim::Sim;
use crate::world::UserHost;

impl Cpus {
    /// What an interrupt costs before its softirq runs.
    pub(super) fn host_irq_ns(&mut self, env: &Env, cpu: CpuId, irq: Irq, was_idle: bool) -> u64 {
        let costs = &env.world.costs;
        if was_idle {
            let exit_ns = self.leave_idle(env, cpu);
            // A thread that sleeps until a deadline is woken by its own kernel timer.
            let is_timer = matches!(irq, Irq::NapiTimer(_) | Irq::Sleeper(_));
            return if is_timer { u64::from(costs.timer_late_ns) } else { exit_ns };
        }
        let held = match irq {
            Irq::NapiTimer(queue) => self.is_timer_held(env, queue),
            _ => self.cpus[cpu].in_turn,
        };
        match irq {
            _ if held => 0,
            Irq::Device(_) => u64::from(costs.irq_ns),
            Irq::NapiTimer(_) | Irq::Sleeper(_) => u64::from(costs.timer_irq_ns),
            Irq::Resched | Irq::Call(_) => u64::from(costs.ipi_ns),
        }
    }

    /// Whether the thread that runs out of idle is the one that was woken itself: it has been switched to already.
    pub(super) fn woken_itself(&self, env: &Env, cpu: CpuId) -> bool {
        env.world.host.is_some() && self.cpus[cpu].from_idle
    }

    /// Whether the timer of this queue's NAPI waits for a look of its CPU's worker, and no kernel timer has fired for it.
    fn is_timer_held(&self, env: &Env, queue: QueueId) -> bool {
        let (Some(host), Some((deadline_ns, _))) = (env.world.host, self.napi_timers[queue]) else { return false };
        env.now_ns < deadline_ns + u64::from(host.timer_slack_ns)
    }
}

impl Sim {
    /// A timer of a NAPI is due. Where a worker computes it waits until that looks, or until the kernel timer fires.
    pub(super) fn timer_waits(&mut self, queue: QueueId, (deadline_ns, cpu): (u64, CpuId)) -> bool {
        let Some(UserHost { timer_slack_ns, .. }) = self.env.world.host else { return false };
        let backstop_ns = deadline_ns + u64::from(timer_slack_ns);
        let computes = self.cpus[cpu].level != Level::Idle && !self.cpus[cpu].in_turn;
        if !computes || self.env.now_ns >= backstop_ns {
            return false;
        }
        self.env.agenda.set(self.env.slots.napi_timer(queue), backstop_ns);
        true
    }

    /// A worker is in a call of lull's: it looks whether a timer of its CPU is due.
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

    /// A worker is about to sleep for want of events: deferrals that are under way end first
    /// ([`lull_core::AfterResume`]). Whether one did, whose poll comes before the sleep.
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
