//! Hard interrupts, timers and the receive softirq of a CPU, run by whoever holds its seat; and what a completion owes.

use std::sync::atomic::Ordering;

use lull_core::event::EventKind;
use lull_core::{Completion, Cx, NetRx, Owner, Route, RxStep, Schedule, SoftirqNext, SoftirqRun, Softnet};

use crate::cpu::Cpu;
use crate::delivery::{Delivery, Instance, Receiver, TryPoll};
use crate::holder::{self, Ran};
use crate::sync::relock;
use crate::timed::Timed;

/// How long a receiver's timers wait when its lock is held, in nanoseconds.
const RECEIVER_RETRY_NS: u64 = 100_000;

impl Delivery {
    pub(crate) fn hard_interrupts(&self, cpu: &Cpu, softnet: &mut Softnet, now_ns: u64) {
        let cx = self.cx(cpu.index, now_ns);
        self.instances.take_raised(&cpu.raised, |instance| {
            let index = instance.napi.index();
            cpu.interrupts.fetch_add(1, Ordering::Relaxed);
            instance.irqs.fetch_add(1, Ordering::Relaxed);
            cx.emit(index, EventKind::Irq);
            // The one-shot line masked itself when it was raised.
            match instance.napi.schedule(&cx) {
                Schedule::Owned(owner) => {
                    cx.emit(index, EventKind::Mask);
                    self.route(&instance, softnet, owner, &cx);
                }
                Schedule::Group => self.member_raised(&instance, &cx),
                // The owner looks again; a disabled queue looks when it is enabled.
                Schedule::Missed | Schedule::Disabled => {}
            }
        });
        // There is seldom anything, because only threads that could not take the seat leave instances here.
        let routed = std::mem::take(&mut *relock(&cpu.routed));
        for owner in routed {
            self.route(&self.owned(&owner), softnet, owner, &cx);
        }
    }

    pub(crate) fn route(&self, instance: &Instance, softnet: &mut Softnet, owner: Owner, cx: &Cx<'_>) {
        match instance.napi.route(owner, cx) {
            Route::Softirq(owner) => softnet.push(owner),
            Route::Thread => instance.wake_thread(self),
        }
    }

    /// Fires the timers that are due: those of the instances (§6) and those of their receivers.
    pub(crate) fn timers(&self, cpu: &Cpu, softnet: &mut Softnet, now_ns: u64) {
        let cx = self.cx(cpu.index, now_ns);
        cpu.deadlines.forget();
        for instance in self.timed(cpu).all().iter() {
            if let Some((deadline_ns, pinned)) = instance.napi.timer().pending()
                && pinned == cpu.index
                && deadline_ns <= now_ns
                && let Some(owner) = instance.napi.timer_expired(&cx)
            {
                instance.lateness.record(now_ns - deadline_ns);
                self.route(instance, softnet, owner, &cx);
            }
            let timers = |receiver: &dyn Receiver| receiver.timers(self, now_ns);
            if instance.receiver_due(cpu.index, now_ns) && self.contain(instance, "timers", timers) == Some(false) {
                instance.set_receiver_deadline(now_ns + RECEIVER_RETRY_NS);
            }
            cpu.note_deadline(instance.deadline_on(cpu.index));
        }
    }

    /// `handle_softirqs`: runs passes of `net_rx_action` until nothing is raised, or until the rest is ksoftirqd's.
    pub(crate) fn softirqs(&self, cpu: &Cpu, softnet: &mut Softnet, start_ns: u64) -> Ran {
        let mut run = SoftirqRun::begin(start_ns);
        let ran = loop {
            self.net_rx_action(cpu, softnet);
            // Our threads cannot see whether the system wants the core for others; if it does, it takes the core.
            match run.after_pass(softnet.is_raised(), false, self.clock.now_ns()) {
                SoftirqNext::Done => break Ran::Done,
                SoftirqNext::Again => {}
                SoftirqNext::Ksoftirqd => {
                    self.cx(cpu.index, start_ns).emit(0, EventKind::Ksoftirqd);
                    break Ran::Leftover;
                }
            }
        };
        // The holder may have been moved to a core whose counter is a little behind.
        let took_ns = self.clock.now_ns().saturating_sub(start_ns);
        cpu.softirq_ns.fetch_add(took_ns, Ordering::Relaxed);
        ran
    }

    pub(crate) fn net_rx_action(&self, cpu: &Cpu, softnet: &mut Softnet) {
        let mut rx = softnet.begin(&self.sysctl, self.clock.now_ns());
        loop {
            match rx.next(softnet) {
                RxStep::Poll(owner) => self.softirq_poll(cpu, softnet, &mut rx, owner),
                RxStep::End(end) => {
                    if end.squeezed {
                        cpu.time_squeeze.store(softnet.time_squeeze(), Ordering::Relaxed);
                        self.cx(cpu.index, self.clock.now_ns()).emit(0, EventKind::TimeSqueeze);
                    }
                    return;
                }
            }
        }
    }

    pub(crate) fn softirq_poll(&self, cpu: &Cpu, softnet: &mut Softnet, rx: &mut NetRx, owner: Owner) {
        let instance = self.owned(&owner);
        let napi = &instance.napi;
        napi.poll_begin(&owner, napi.weight(), &self.cx(cpu.index, self.clock.now_ns()));
        match self.contained_try_poll(&instance, owner, cpu.index) {
            TryPoll::Polled(owner, work) => {
                let now_ns = self.clock.now_ns();
                let cx = self.cx(cpu.index, now_ns);
                let held = instance.receiver.gro_held();
                let polled = napi.softirq_polled(owner, work, held, &cx, |flush| {
                    if held {
                        let gro_flush = |receiver: &dyn Receiver| receiver.gro_flush(self, flush);
                        self.contain(&instance, "GRO", gro_flush);
                    }
                });
                if let Some(completion) = rx.polled(polled, work, now_ns)
                    && let Some(owner) = self.carry_out(&instance, completion, true, &cx)
                {
                    self.route(&instance, softnet, owner, &cx);
                }
                holder::between_polls(&cpu.seat, || self.hard_interrupts(cpu, softnet, now_ns));
            }
            TryPoll::Handed => {}
        }
    }

    /// Does what a completion owes: starts the timer or unmasks the interrupt. `in_seat` says that the caller holds the
    /// seat of `cx.cpu`. Returns an ownership that is to be routed again.
    pub(crate) fn carry_out(
        &self,
        instance: &Instance,
        completion: Completion,
        in_seat: bool,
        cx: &Cx<'_>,
    ) -> Option<Owner> {
        match completion {
            Completion::Kept(owner) => {
                // A busy poller completes through its own stop, and a NAPI thread keeps what is kept.
                debug_assert!(false, "softirq completed an instance that a busy poller owns");
                Some(owner)
            }
            Completion::Again(owner) => Some(owner),
            Completion::Released(release) => {
                let settled = release.settle(&instance.napi, cx);
                if let Some(deadline_ns) = settled.timer_ns {
                    self.note_timer(self.cpu(cx.cpu), instance, deadline_ns);
                }
                if settled.unmask {
                    // An instance may be polled on another CPU than its interrupt's, whose seat is then not ours.
                    self.unmask(instance, in_seat && instance.cpu() == cx.cpu);
                }
                None
            }
        }
    }

    /// Sends an instance that was scheduled outside the seat on its way: to its thread, or to the softirq of `cpu`.
    pub(crate) fn route_outside(&self, cpu: &Cpu, instance: &Instance, owner: Owner, cx: &Cx<'_>) {
        match instance.napi.route(owner, cx) {
            Route::Softirq(owner) => cpu.route_from_outside(owner),
            Route::Thread => instance.wake_thread(self),
        }
    }

    /// Unmasks the interrupt. `in_seat` says that the caller holds the seat of the interrupt's CPU, and so arms its
    /// descriptors when it leaves.
    pub(crate) fn unmask(&self, instance: &Instance, in_seat: bool) {
        if instance.failure().is_some() {
            return;
        }
        instance.vector.unmask();
        if !in_seat && instance.vector.is_fd() {
            let cpu = self.cpu(instance.cpu());
            if cpu.irq_epoll.arm(&instance.vector, instance.napi.index()) {
                cpu.sleeps.syscall();
            }
        }
    }
}
