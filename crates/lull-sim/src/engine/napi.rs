//! NAPI instances of the NIC's queues: who schedules them, what a completion leads to, and their timers.
//!
//! Every rule is the core's; here an interrupt, a timer or a system call applies it, and its outcome is executed.

use lull_core::event::EventKind;
use lull_core::{AfterResume, Completion, Owner, Release, Route, Schedule, Settled, state};

use crate::engine::agenda::Event;
use crate::engine::cpu::Irq;
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, QueueId};
use crate::engine::nic::Nic;
use crate::engine::recorder::Whom;
use crate::engine::transition::Transition;

impl Nic {
    /// Does what a completion leads to.
    pub(crate) fn completion(
        &mut self,
        env: &mut Env,
        cpus: &mut Cpus,
        queue: QueueId,
        completion: Completion,
        cpu: CpuId,
    ) {
        match completion {
            Completion::Kept(owner) | Completion::Again(owner) => {
                // Yielding to a preferring poller may have started the timer.
                self.sync_timer(env, cpus, queue);
                self.route(env, cpus, owner, cpu);
            }
            Completion::Released(release) => {
                let late_ns = env.faults.settle_late_ns();
                if late_ns == 0 {
                    self.settle(env, cpus, queue, release, cpu);
                } else {
                    // What holds up the completion also holds up its CPU.
                    cpus[cpu].debt_ns += late_ns;
                    self.queues[queue].unsettled.push_back((release, cpu));
                    env.agenda.push(env.now_ns + late_ns, Event::Settle { queue });
                }
            }
        }
    }

    fn settle(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, release: Release, cpu: CpuId) {
        env.tally.transitions += 1;
        let cx = env.cx(cpu);
        let Settled { unmask, .. } = release.settle(&self.queues[queue].napi, &cx);
        self.sync_timer(env, cpus, queue);
        if unmask {
            self.unmask(env, cpus, queue);
        }
    }

    /// A completion that was held up goes on.
    pub(crate) fn settle_late(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        if let Some((release, cpu)) = self.queues[queue].unsettled.pop_front() {
            let napi = &self.queues[queue].napi;
            if napi.snapshot().has(state::SCHED) || napi.timer().pending().is_some() {
                env.note(cpu, Whom::Queue(queue), Transition::SettledLate);
            }
            self.settle(env, cpus, queue, release, cpu);
        }
    }

    /// `____napi_schedule`.
    pub(crate) fn route(&self, env: &mut Env, cpus: &mut Cpus, owner: Owner, cpu: CpuId) {
        let queue = QueueId::new(owner.napi());
        env.tally.transitions += 1;
        let cx = env.cx(cpu);
        match self.queues[queue].napi.route(owner, &cx) {
            Route::Softirq(owner) => cpus[cpu].softnet.push(owner),
            Route::Thread => {
                if let Some(thread) = self.queues[queue].thread {
                    cpus.wake(env, thread, cpu);
                }
            }
        }
    }
    /// The queue whose NAPI has this id (`napi_by_id`).
    pub(crate) fn lookup(&self, id: u32) -> Option<QueueId> {
        self.queues.rows().find(|(_, queue)| queue.napi.id() == id && id != 0).map(|(queue, _)| queue)
    }

    /// Whether a poll of the instance with this id would find nothing.
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        self.lookup(id).is_some_and(|queue| !self.queues[queue].has_work())
    }

    /// `napi_suspend_irqs`.
    pub(crate) fn suspend(&self, env: &mut Env, cpus: &mut Cpus, id: u32, cpu: CpuId) {
        if let Some(queue) = self.lookup(id) {
            env.tally.transitions += 1;
            match self.queues[queue].napi.suspend(&env.cx(cpu)) {
                Some(_) => self.sync_timer(env, cpus, queue),
                None => env.note(cpu, Whom::Queue(queue), Transition::SuspendOff),
            }
        }
    }

    /// `napi_resume_irqs`: the caller's next bottom-half enable runs the poll.
    pub(crate) fn resume(&self, env: &mut Env, cpus: &mut Cpus, id: u32, cpu: CpuId) {
        if let Some(queue) = self.lookup(id) {
            env.tally.transitions += 1;
            let after = env.world.host.map_or(AfterResume::Deferral, |host| host.after_resume);
            let owner = self.queues[queue].napi.resume_to(after, &env.cx(cpu));
            if let Some(owner) = owner {
                if after == AfterResume::Interrupt {
                    // Its timer was cancelled.
                    self.sync_timer(env, cpus, queue);
                }
                self.route(env, cpus, owner, cpu);
            }
        }
    }
    /// Schedules the NAPI on this CPU: when it is enabled, or for a driver's own kick.
    pub(crate) fn schedule(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) {
        match self.queues[queue].napi.schedule(&env.cx(cpu)) {
            Schedule::Owned(owner) => self.route(env, cpus, owner, cpu),
            Schedule::Group => self.member_raised(env, cpus, queue, cpu),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    /// `ndo_xsk_wakeup` of a driver that schedules the NAPI on the caller's CPU.
    pub(crate) fn xsk_wakeup(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) {
        env.tally.transitions += 1;
        self.schedule(env, cpus, queue, cpu);
    }

    /// A hard interrupt: the device reports events of this queue, and of queues that share its vector and have reported
    /// since.
    pub(crate) fn interrupted(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) {
        self.device_interrupts(env, cpus, queue, cpu);
        while let Some(sharing) = self.pending_on_vector(cpus, queue, cpu) {
            self.device_interrupts(env, cpus, sharing, cpu);
        }
    }

    fn device_interrupts(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) {
        env.tally.transitions += 1;
        let cx = env.cx(cpu);
        cx.emit(queue.raw(), EventKind::Irq);
        match self.queues[queue].napi.schedule(&cx) {
            Schedule::Owned(owner) => {
                cx.emit(queue.raw(), EventKind::Mask);
                self.mask(env, queue);
                self.route(env, cpus, owner, cpu);
            }
            Schedule::Group => self.member_raised(env, cpus, queue, cpu),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    /// Takes another queue of the same vector that has reported events to this CPU since.
    fn pending_on_vector(&self, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) -> Option<QueueId> {
        let vector = self.queues[queue].spec.vector?;
        let (queues, pending) = (&self.queues, &mut cpus[cpu].pending);
        let shares = |irq: &Irq| matches!(irq, Irq::Device(other) if queues[*other].spec.vector == Some(vector));
        match pending.iter().position(shares).and_then(|place| pending.remove(place)) {
            Some(Irq::Device(sharing)) => Some(sharing),
            _ => None,
        }
    }

    /// A hard interrupt: the timer of this queue's NAPI has expired.
    pub(crate) fn timer_expired(&self, env: &mut Env, cpus: &mut Cpus, queue: QueueId, cpu: CpuId) {
        env.tally.transitions += 1;
        if let Some(owner) = self.queues[queue].napi.timer_expired(&env.cx(cpu)) {
            self.route(env, cpus, owner, cpu);
        }
        self.sync_timer(env, cpus, queue);
    }

    /// Updates the alarm of a NAPI's timer after the timer may have been started.
    #[inline]
    pub(crate) fn sync_timer(&self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        let pending = self.queues[queue].napi.timer().pending();
        cpus.set_napi_timer(env, queue, pending.map(|(at_ns, cpu)| (at_ns, CpuId::new(cpu))));
    }
}
