//! Softirq on a simulated CPU: `handle_softirqs` and `net_rx_action`, which execute the core's step machines.

use lull_core::event::EventKind;
use lull_core::{Owner, RxStep, SoftirqNext, SoftirqRun};

use crate::engine::cpu::Level;
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;

impl Sim {
    /// A segment of softirq has ended.
    pub(crate) fn softirq_step(&mut self, cpu: CpuId) {
        debug_assert!(self.cpus[cpu].level == Level::Soft);
        if let Some(owner) = self.cpus[cpu].soft.polling.take() {
            let queue = QueueId::new(owner.napi());
            if let Some(cost_ns) = self.poll_goes_on(queue, cpu) {
                self.cpus[cpu].soft.polling = Some(owner);
                self.cpus[cpu].soft.rest_ns = cost_ns;
                return;
            }
            self.softirq_polled(queue, owner, cpu);
        }
        if self.cpus[cpu].soft.rx.is_none() {
            let rx = self.cpus[cpu].softnet.begin(&self.env.world.sysctl, self.env.now_ns);
            self.cpus[cpu].soft.rx = Some(rx);
        }
        self.net_rx_next(cpu);
    }

    fn net_rx_next(&mut self, cpu: CpuId) {
        let Some(mut rx) = self.cpus[cpu].soft.rx.take() else { return };
        match rx.next(&mut self.cpus[cpu].softnet) {
            RxStep::Poll(owner) => {
                let queue = QueueId::new(owner.napi());
                let napi = &self.nic.queues[queue].napi;
                let weight = napi.weight();
                napi.poll_begin(&owner, weight, &self.env.cx(cpu));
                let breaking_in = self.cpus[cpu].is_breaking_in() && !self.cpus[cpu].soft.in_thread;
                let cost_ns = self.poll_begins(queue, weight, cpu, breaking_in);
                self.cpus[cpu].broken_into |= breaking_in && self.nic.queues[queue].poll.work > 0;
                let soft = &mut self.cpus[cpu].soft;
                soft.rx = Some(rx);
                soft.polling = Some(owner);
                soft.rest_ns = cost_ns;
            }
            RxStep::End(end) => {
                drop(rx);
                if end.squeezed {
                    self.env.cx(cpu).emit(u32::MAX, EventKind::TimeSqueeze);
                }
                self.cpus.after_pass(&mut self.env, cpu, end.raised);
            }
        }
    }

    fn softirq_polled(&mut self, queue: QueueId, owner: Owner, cpu: CpuId) {
        self.env.tally.transitions += 1;
        let q = &self.nic.queues[queue];
        let work = q.reported(cpu);
        let gro_held = q.spec.gro_holds && work > 0;
        let polled = q.napi.softirq_polled(owner, work, gro_held, &self.env.cx(cpu), |_| ());
        let completion = match &mut self.cpus[cpu].soft.rx {
            Some(rx) => rx.polled(polled, work, self.env.now_ns),
            None => unreachable!("a softirq poll without its run"),
        };
        if let Some(completion) = completion {
            self.nic.completion(&mut self.env, &mut self.cpus, queue, completion, cpu);
        }
    }
}

impl Cpus {
    /// Begins `handle_softirqs` on this CPU; returns the cost of its first segment.
    pub(super) fn softirq_begin(&mut self, env: &Env, cpu: CpuId, in_thread: bool) -> u64 {
        let now_ns = env.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.soft.run = Some(SoftirqRun::begin(now_ns));
        cpu.soft.rest_ns = 0;
        cpu.soft.in_thread = in_thread;
        u64::from(env.world.costs.softirq_ns)
    }

    fn after_pass(&mut self, env: &mut Env, cpu: CpuId, raised: bool) {
        let waits =
            self.cpus[cpu].need_resched || (self.cpus[cpu].current.is_none() && !self.cpus[cpu].runnable.is_empty());
        let Some(mut run) = self.cpus[cpu].soft.run.take() else { return };
        match run.after_pass(raised, waits, env.now_ns) {
            SoftirqNext::Again => {
                env.tally.covered.add(Transition::SoftirqRestart);
                self.cpus[cpu].soft.run = Some(run);
                self.cpus[cpu].soft.rest_ns = u64::from(env.world.costs.softirq_ns);
            }
            SoftirqNext::Done => {}
            SoftirqNext::Ksoftirqd => {
                env.tally.counts.ksoftirqd += 1;
                env.cx(cpu).emit(u32::MAX, EventKind::Ksoftirqd);
                self.cpus[cpu].softirq_handed_over = true;
                if let Some(ksoftirqd) = self.cpus[cpu].ksoftirqd {
                    self.wake(env, ksoftirqd, cpu);
                }
            }
        }
    }
}
