//! The effects at the end of what a CPU executed: an interrupt is handled, or a step of softirq or of a program is
//! done.

use crate::engine::cpu::{Irq, Level};
use crate::engine::id::CpuId;
use crate::engine::sim::Sim;

impl Sim {
    /// A segment has ended: its effects happen, and the CPU goes on.
    pub(super) fn segment_ended(&mut self, cpu: CpuId) {
        self.cpus.account(&mut self.env, cpu);
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
                let thread = self.cpus.thread_stops(&mut self.env, cpu);
                self.thread_step(thread);
            }
        }
        self.cpus[cpu].in_effects = false;
        self.cpus.dispatch(&mut self.env, cpu);
    }

    /// Runs the handler of an interrupt.
    fn handle(&mut self, cpu: CpuId, irq: Irq) {
        let (env, cpus) = (&mut self.env, &mut self.cpus);
        match irq {
            Irq::Device(queue) => {
                env.tally.counts.irqs += 1;
                self.nic.interrupted(env, cpus, queue, cpu);
            }
            Irq::NapiTimer(queue) => {
                env.tally.counts.timer_irqs += 1;
                self.nic.timer_expired(env, cpus, queue, cpu);
            }
            Irq::Backstop => self.backstop_fired(cpu),
            Irq::Sleeper(thread) => cpus.sleeper_expired(env, thread),
            Irq::Resched => {}
            Irq::Call(step) => self.operator_acts(step, cpu),
        }
        // The return of an interrupt runs pending softirqs, also those that were handed to ksoftirqd.
        self.cpus[cpu].softirq_handed_over = false;
    }
}
