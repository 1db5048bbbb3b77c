//! Softirq on a simulated CPU: `handle_softirqs` and `net_rx_action`, executed as the core's step machines say.

use lull_core::event::EventKind;
use lull_core::{Completion, NetRx, Owner, Polled, Release, Route, RxStep, Settled, SoftirqNext, SoftirqRun, state};

use crate::engine::agenda::Event;
use crate::engine::cpu::Level;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::recorder::Whom;
use crate::engine::sim::{Sim, cx};
use crate::engine::transition::Transition;

/// Where a run of softirq is.
#[derive(Debug, Default)]
pub(crate) struct Soft {
    run: Option<SoftirqRun>,
    rx: Option<NetRx>,
    polling: Option<Owner>,
    /// What is left of a segment that was interrupted.
    pub(crate) rest_ns: u64,
    /// It runs inside a thread's system call, whose time it is.
    pub(crate) in_thread: bool,
}

impl Soft {
    pub(crate) fn is_active(&self) -> bool {
        self.run.is_some()
    }

    pub(crate) fn abandon(&mut self) {
        if let Some(owner) = self.polling.take() {
            owner.abandon();
        }
    }
}

impl Sim {
    /// Begins `handle_softirqs` on this CPU; returns the cost of its first segment.
    pub(crate) fn softirq_begin(&mut self, cpu: CpuId, in_thread: bool) -> u64 {
        let now_ns = self.now_ns;
        let cpu = &mut self.cpus[cpu];
        cpu.soft.run = Some(SoftirqRun::begin(now_ns));
        cpu.soft.rest_ns = 0;
        cpu.soft.in_thread = in_thread;
        u64::from(self.world.costs.softirq_ns)
    }

    /// A segment of softirq ended.
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
            let rx = self.cpus[cpu].softnet.begin(&self.world.sysctl, self.now_ns);
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
                napi.poll_begin(&owner, weight, &cx(self.now_ns, cpu, &self.sink));
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
                    cx(self.now_ns, cpu, &self.sink).emit(u32::MAX, EventKind::TimeSqueeze);
                }
                self.after_pass(cpu, end.raised);
            }
        }
    }

    fn after_pass(&mut self, cpu: CpuId, raised: bool) {
        let waits =
            self.cpus[cpu].need_resched || (self.cpus[cpu].current.is_none() && !self.cpus[cpu].runnable.is_empty());
        let Some(mut run) = self.cpus[cpu].soft.run.take() else { return };
        match run.after_pass(raised, waits, self.now_ns) {
            SoftirqNext::Again => {
                self.tally.covered.add(Transition::SoftirqRestart);
                self.cpus[cpu].soft.run = Some(run);
                self.cpus[cpu].soft.rest_ns = u64::from(self.world.costs.softirq_ns);
            }
            SoftirqNext::Done => {}
            SoftirqNext::Ksoftirqd => {
                self.tally.counts.ksoftirqd += 1;
                cx(self.now_ns, cpu, &self.sink).emit(u32::MAX, EventKind::Ksoftirqd);
                self.cpus[cpu].softirq_handed_over = true;
                if let Some(ksoftirqd) = self.cpus[cpu].ksoftirqd {
                    self.wake(ksoftirqd, cpu);
                }
            }
        }
    }

    fn softirq_polled(&mut self, queue: QueueId, owner: Owner, cpu: CpuId) {
        let work = self.nic.queues[queue].poll.work;
        let cx = cx(self.now_ns, cpu, &self.sink);
        let gro_held = self.nic.queues[queue].spec.gro_holds && work > 0;
        self.tally.transitions += 1;
        let polled: Polled = self.nic.queues[queue].napi.softirq_polled(owner, work, gro_held, &cx, |_| ());
        let completion = match &mut self.cpus[cpu].soft.rx {
            Some(rx) => rx.polled(polled, work, self.now_ns),
            None => unreachable!("a softirq poll without its run"),
        };
        if let Some(completion) = completion {
            self.completion(queue, completion, cpu);
        }
    }

    /// What a completion owes.
    pub(crate) fn completion(&mut self, queue: QueueId, completion: Completion, cpu: CpuId) {
        match completion {
            Completion::Kept(owner) | Completion::Again(owner) => {
                // Yielding to a preferring poller may have started the timer.
                self.sync_timer(queue);
                self.route(owner, cpu);
            }
            Completion::Released(release) => {
                let late_ns = self.faults.settle_late_ns();
                if late_ns == 0 {
                    self.settle(queue, release, cpu);
                } else {
                    // What holds the completion up holds up its CPU.
                    self.cpus[cpu].debt_ns += late_ns;
                    self.nic.queues[queue].unsettled.push_back((release, cpu));
                    self.agenda.push(self.now_ns + late_ns, Event::Settle { queue });
                }
            }
        }
    }

    fn settle(&mut self, queue: QueueId, release: Release, cpu: CpuId) {
        let cx = cx(self.now_ns, cpu, &self.sink);
        self.tally.transitions += 1;
        let Settled { unmask, .. } = release.settle(&self.nic.queues[queue].napi, &cx);
        self.sync_timer(queue);
        if unmask {
            self.unmask(queue);
        }
    }

    /// A completion that was held up goes on.
    pub(crate) fn settle_late(&mut self, queue: QueueId) {
        if let Some((release, cpu)) = self.nic.queues[queue].unsettled.pop_front() {
            let napi = &self.nic.queues[queue].napi;
            if napi.snapshot().has(state::SCHED) || napi.timer().pending().is_some() {
                self.note(cpu, Whom::Queue(queue), Transition::SettledLate);
            }
            self.settle(queue, release, cpu);
        }
    }

    /// `____napi_schedule`.
    pub(crate) fn route(&mut self, owner: Owner, cpu: CpuId) {
        let queue = QueueId::new(owner.napi());
        let cx = cx(self.now_ns, cpu, &self.sink);
        self.tally.transitions += 1;
        match self.nic.queues[queue].napi.route(owner, &cx) {
            Route::Softirq(owner) => self.cpus[cpu].softnet.push(owner),
            Route::Thread => {
                if let Some(thread) = self.nic.queues[queue].thread {
                    self.wake(thread, cpu);
                }
            }
        }
    }
}
