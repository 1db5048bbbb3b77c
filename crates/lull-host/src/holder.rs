//! What the holder of a CPU's seat does: run what is pending, leave, and see to it that somebody wakes for the rest.

use std::sync::atomic::Ordering;

use lull_core::settings::SOFTIRQ_TIME_MAX_NS;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};

use crate::contain::or_end;
use crate::cpu::{Cpu, NEVER, Ran, relock};
use crate::delivery::Delivery;
use crate::seat::{Holder, IRQ_THREAD};
use crate::vector::IrqEpoll;

impl Delivery {
    /// Runs this CPU's delivery until nothing is pending, within Linux's bounds. The caller holds the seat, awake.
    #[inline]
    pub(crate) fn run(&self, cpu: &Cpu) -> Ran {
        or_end(&|| format!("the delivery of CPU {}, outside any queue", cpu.index), || self.run_pending(cpu))
    }

    pub(crate) fn run_pending(&self, cpu: &Cpu) -> Ran {
        let mut softnet = relock(&cpu.softnet);
        let mut until_ns = None;
        loop {
            cpu.seat.begin();
            let now_ns = self.clock.now_ns();
            let until_ns = *until_ns.get_or_insert(now_ns + SOFTIRQ_TIME_MAX_NS);
            self.hard_interrupts(cpu, &mut softnet, now_ns);
            if cpu.next_deadline_ns() <= now_ns {
                self.timers(cpu, &mut softnet, now_ns);
            }
            if softnet.is_raised() && self.softirqs(cpu, &mut softnet, now_ns) == Ran::Leftover {
                return Ran::Leftover;
            }
            if !cpu.seat.is_pending() {
                return Ran::Done;
            }
            // Interrupts that come as fast as they are handled must not keep a worker from what it was woken for.
            if now_ns >= until_ns {
                return Ran::Leftover;
            }
        }
    }

    /// Lets go of the seat: what is pending is run first, leftovers go to ksoftirqd, and a kernel timer stands behind
    /// every deadline that remains.
    pub(crate) fn leave(&self, cpu: &Cpu, me: Holder, mut ran: Ran) {
        loop {
            self.arm_fd_vectors(cpu);
            self.cover(cpu);
            if ran == Ran::Leftover {
                cpu.ksoftirqd_wakes.fetch_add(1, Ordering::Relaxed);
                cpu.seat.pass_to_ksoftirqd();
                cpu.ksoftirqd_parker.wake(&cpu.sleeps);
                return;
            }
            if cpu.seat.pass(me) {
                return;
            }
            ran = self.run(cpu);
        }
    }

    /// Runs what is due on `cpu` if its seat is free; a holder that is awake sees to it otherwise.
    pub(crate) fn visit(&self, cpu: &Cpu, me: Holder) {
        if cpu.seat.take(me) {
            let ran = self.run(cpu);
            self.leave(cpu, me, ran);
        } else if cpu.next_deadline_ns() <= self.clock.now_ns() {
            // The holder may be past its look at the clock.
            cpu.raise();
        }
    }

    /// Leaves the unmasked descriptors to the interrupt thread. Due whenever the seat is left, and by a holder that stays
    /// in it awake: nobody else watches them.
    #[inline]
    pub(crate) fn arm_fd_vectors(&self, cpu: &Cpu) {
        let Some(vectors) = cpu.fd_vectors() else { return };
        for &index in vectors.iter() {
            if cpu.irq_epoll.arm(&self.instance(index).vector, index) {
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

    /// The earliest deadline, looked up.
    pub(crate) fn exact_deadline_ns(&self, cpu: &Cpu) -> u64 {
        let deadlines_ns = || self.instances().map(|instance| instance.deadline_on(cpu.index));
        cpu.deadlines.look_up(|| deadlines_ns().min().unwrap_or(NEVER))
    }

    /// The interrupt thread's turn: `readable` says which of its descriptors woke it.
    pub(crate) fn irq_thread_woke(&self, cpu: &Cpu, timer: bool, interrupts: bool) {
        if timer {
            cpu.backstop_fired();
        }
        if interrupts {
            cpu.irq_epoll.fired(|index| {
                let instance = self.instance(index);
                IrqEpoll::disarmed(&instance.vector);
                if instance.vector.fire() {
                    cpu.raised.push(index, &instance.vector.link);
                }
            });
            cpu.sleeps.syscall();
        }
        if cpu.seat.take(IRQ_THREAD) {
            let ran = self.run(cpu);
            self.leave(cpu, IRQ_THREAD, ran);
        } else {
            // Awake in somebody else's hands: they look once more before they let go.
            cpu.raise();
        }
    }

    /// A worker that slept in the seat saw this instance's descriptor readable.
    pub(crate) fn fd_fired(&self, cpu: &Cpu, index: u32) {
        let instance = self.instance(index);
        if instance.vector.fire() && cpu.raised.push(index, &instance.vector.link) {
            cpu.raise();
        }
    }
}
