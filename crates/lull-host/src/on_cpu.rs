//! The work of the holder of a CPU's seat, as threads of the system do it: interrupts, timers and softirq, and the
//! descriptors and kernel timers for what is to come.

use std::sync::atomic::Ordering;

use lull_core::Softnet;
use lull_core::settings::SOFTIRQ_TIME_MAX_NS;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};

use crate::cpu::Cpu;
use crate::deadlines::NEVER;
use crate::delivery::Delivery;
use crate::holder::{self, Ran, SeatWork, Seated, Served};
use crate::or_end::or_end;
use crate::seat::{Holder, Seat};
use crate::sync::{MutexGuard, relock};

/// A CPU together with its host, on which the rules of the seat run.
#[derive(Clone, Copy)]
pub(crate) struct OnCpu<'h> {
    pub(crate) host: &'h Delivery,
    pub(crate) cpu: &'h Cpu,
}

/// A run of the seat's holder.
pub(crate) struct Run<'a> {
    softnet: MutexGuard<'a, Softnet>,
    /// How long it may go on; known from the first pass on.
    until_ns: Option<u64>,
}

impl Seated for OnCpu<'_> {
    #[inline]
    fn seat(&self) -> &Seat {
        &self.cpu.seat
    }

    fn wake(&self, holder: Holder) {
        self.cpu.wake(holder);
    }
}

impl SeatWork for OnCpu<'_> {
    type Run<'a>
        = Run<'a>
    where
        Self: 'a;

    #[inline]
    fn begin_run(&self) -> Run<'_> {
        Run { softnet: relock(&self.cpu.softnet), until_ns: None }
    }

    #[inline]
    fn serve(&self, run: &mut Run<'_>) -> Served {
        or_end(&|| format!("the delivery of CPU {}, outside any queue", self.cpu.index), || self.serve_once(run))
    }

    #[inline]
    fn arm(&self) {
        self.host.arm_fd_vectors(self.cpu);
    }

    #[inline]
    fn cover(&self) {
        self.host.cover(self.cpu);
    }

    fn is_late(&self) -> bool {
        self.cpu.next_deadline_ns() <= self.host.clock.now_ns()
    }

    fn wake_ksoftirqd(&self) {
        self.cpu.ksoftirqd_wakes.fetch_add(1, Ordering::Relaxed);
        self.cpu.ksoftirqd_parker.wake(&self.cpu.sleeps);
    }
}

impl OnCpu<'_> {
    #[inline]
    fn serve_once(&self, run: &mut Run<'_>) -> Served {
        let OnCpu { host, cpu } = *self;
        let now_ns = host.clock.now_ns();
        let until_ns = *run.until_ns.get_or_insert(now_ns + SOFTIRQ_TIME_MAX_NS);
        host.hard_interrupts(cpu, &mut run.softnet, now_ns);
        if cpu.next_deadline_ns() <= now_ns {
            host.timers(cpu, &mut run.softnet, now_ns);
        }
        if run.softnet.is_raised() && host.softirqs(cpu, &mut run.softnet, now_ns) == Ran::Leftover {
            return Served::Leftover;
        }
        if now_ns >= until_ns { Served::AllAndTimeIsUp } else { Served::All }
    }
}

impl Delivery {
    #[inline]
    pub(crate) fn on<'h>(&'h self, cpu: &'h Cpu) -> OnCpu<'h> {
        OnCpu { host: self, cpu }
    }

    /// [`holder::run`] on `cpu`: the holder of the seat does what there is to do.
    #[inline]
    pub(crate) fn run(&self, cpu: &Cpu) -> Ran {
        holder::run(&self.on(cpu))
    }

    /// [`holder::leave`] on `cpu`: the holder gives the seat up.
    pub(crate) fn leave(&self, cpu: &Cpu, me: Holder, ran: Ran) {
        holder::leave(&self.on(cpu), me, ran);
    }

    /// [`holder::visit`] on `cpu`: takes the seat if it is free, runs what is due, and leaves.
    pub(crate) fn visit(&self, cpu: &Cpu, me: Holder) {
        holder::visit(&self.on(cpu), me);
    }

    /// Leaves the unmasked descriptors to the interrupt thread. This is due whenever the seat is left, and for a holder
    /// that stays in it awake, because nobody else watches them.
    #[inline]
    pub(crate) fn arm_fd_vectors(&self, cpu: &Cpu) {
        self.arm_fd_vectors_but(cpu, None);
    }

    /// As [`Delivery::arm_fd_vectors`], but leaves out the descriptor of an instance that the caller polls itself.
    #[inline]
    pub(crate) fn arm_fd_vectors_but(&self, cpu: &Cpu, polled: Option<u32>) {
        let Some(vectors) = cpu.fd_vectors() else { return };
        for &index in vectors.iter().filter(|index| Some(**index) != polled) {
            if let Some(instance) = self.instance(index)
                && cpu.irq_epoll.arm(&instance.vector, index)
            {
                cpu.sleeps.syscall();
            }
        }
    }

    /// Sees to it that somebody wakes for the earliest deadline: a worker that sleeps until then, or the interrupt
    /// thread's kernel timer, which is only ever moved to an earlier time, by at least the slack.
    pub(crate) fn cover(&self, cpu: &Cpu) {
        let is_covered = |deadline_ns| cpu.deadlines.is_covered(deadline_ns, self.timer_slack_ns);
        if is_covered(cpu.next_deadline_ns()) {
            return;
        }
        // The hint may be the deadline of a timer that was replaced since.
        let deadline_ns = self.exact_deadline_ns(cpu);
        if is_covered(deadline_ns) {
            return;
        }
        let _moving = relock(&cpu.backstop);
        let target_ns = deadline_ns.saturating_add(self.timer_slack_ns);
        if cpu.deadlines.backstop_ns() <= target_ns {
            return;
        }
        let delay_ns = target_ns.saturating_sub(self.clock.now_ns()).max(1);
        let it_value =
            Timespec { tv_sec: (delay_ns / 1_000_000_000) as i64, tv_nsec: (delay_ns % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // A relative time in range on our own descriptor is always accepted.
        let set = rustix::time::timerfd_settime(&cpu.timer, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "{set:?}");
        cpu.deadlines.backstop_is_set(target_ns);
        cpu.sleeps.syscall();
        cpu.sleeps.timer_ops.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker is about to sleep in the seat: see [`lull_core::AfterResume`].
    pub(crate) fn end_deferrals(&self, cpu: &Cpu, now_ns: u64) {
        if cpu.next_deadline_ns() == NEVER {
            return;
        }
        let cx = self.cx(cpu.index, now_ns);
        for instance in self.timed(cpu).all().iter() {
            if let Some(owner) = instance.napi.end_deferral(&cx) {
                self.route_outside(cpu, instance, owner, &cx);
            }
        }
    }

    /// The interrupt thread's turn: `readable` says which of its descriptors woke it.
    pub(crate) fn irq_thread_woke(&self, cpu: &Cpu, timer: bool, interrupts: bool) {
        if timer {
            self.clock.woken_by_the_kernel();
            cpu.backstop_fired();
        }
        if interrupts {
            cpu.irq_epoll.fired(|index| {
                let Some(instance) = self.instance(index) else { return };
                if instance.vector.reported() {
                    instance.receiver.raised(self);
                    self.push_raised(cpu, &instance);
                }
            });
            cpu.sleeps.syscall();
        }
        holder::irq_thread_woke(&self.on(cpu));
    }

    /// A worker that slept in the seat saw this instance's descriptor readable.
    pub(crate) fn fd_fired(&self, cpu: &Cpu, index: u32) {
        let Some(instance) = self.instance(index) else { return };
        if instance.vector.fire() {
            instance.receiver.raised(self);
            if self.push_raised(cpu, &instance) {
                cpu.raise();
            }
        }
    }
}
