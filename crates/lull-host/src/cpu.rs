//! One lull CPU: hard interrupts, timers and softirq, run by whoever holds its seat.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use lull_core::event::EventKind;
use lull_core::settings::SOFTIRQ_TIME_MAX_NS;
use lull_core::{Completion, Cx, NetRx, Owner, Route, RxStep, Schedule, SoftirqNext, SoftirqRun, Softnet};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::contain::or_end;
use crate::deadlines::Deadlines;
pub(crate) use crate::deadlines::NEVER;
use crate::delivery::Delivery;
use crate::instance::{Instance, Receiver, TryPoll};
use crate::parker::{Parker, SleepCounters};
use crate::raised::Raised;
use crate::seat::{Holder, IRQ_THREAD, KSOFTIRQD, Seat, WORKERS_MAX};
use crate::vector::IrqEpoll;

/// How long a receiver's timers wait when its lock is held, in nanoseconds.
const RECEIVER_RETRY_NS: u64 = 100_000;

/// Counters of one CPU since the host was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Hard interrupts taken.
    pub interrupts: u64,
    /// Nanoseconds in softirq, ksoftirqd's included.
    pub softirq_ns: u64,
    /// Runs of `net_rx_action` that ran out of budget or time.
    pub time_squeeze: u64,
    /// Times that leftovers went to ksoftirqd.
    pub ksoftirqd_wakes: u64,
    /// Threads woken.
    pub wakeups: u64,
    /// Kernel timers set.
    pub timer_ops: u64,
    /// System calls made for delivery: sleeps, wake-ups, timers, watches. A device's own I/O is its own to count.
    pub syscalls: u64,
}

impl std::ops::Sub for CpuStats {
    type Output = CpuStats;
    fn sub(self, before: CpuStats) -> CpuStats {
        CpuStats {
            interrupts: self.interrupts - before.interrupts,
            softirq_ns: self.softirq_ns - before.softirq_ns,
            time_squeeze: self.time_squeeze - before.time_squeeze,
            ksoftirqd_wakes: self.ksoftirqd_wakes - before.ksoftirqd_wakes,
            wakeups: self.wakeups - before.wakeups,
            timer_ops: self.timer_ops - before.timer_ops,
            syscalls: self.syscalls - before.syscalls,
        }
    }
}

/// Whether softirq work was left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Done,
    /// It goes to ksoftirqd when the seat is left.
    Leftover,
}

pub(crate) struct Cpu {
    pub(crate) index: u16,
    pub(crate) core: Option<usize>,
    pub(crate) seat: Seat,
    softnet: Mutex<Softnet>,
    raised: Raised,
    /// Instances scheduled for this CPU by threads that could not take its seat.
    routed: Mutex<Vec<Owner>>,
    pub(crate) deadlines: Deadlines,
    /// Held while the kernel timer is moved.
    backstop: Mutex<()>,
    timer: OwnedFd,
    pub(crate) irq_epoll: IrqEpoll,
    /// Instances whose interrupt is a descriptor.
    fd_vectors: Mutex<Vec<u32>>,
    fd_vector_count: AtomicU32,
    pub(crate) irq_parker: Parker,
    pub(crate) ksoftirqd_parker: Parker,
    pub(crate) workers: Mutex<[Option<Arc<Parker>>; WORKERS_MAX as usize]>,
    /// Workers that were woken and do not run yet: somebody waits for the CPU.
    pub(crate) woken: AtomicU32,
    pub(crate) sleeps: SleepCounters,
    interrupts: AtomicU64,
    softirq_ns: AtomicU64,
    ksoftirqd_wakes: AtomicU64,
}

impl Cpu {
    pub(crate) fn new(index: u16, core: Option<usize>) -> std::io::Result<Cpu> {
        Ok(Cpu {
            index,
            core,
            seat: Seat::new(),
            softnet: Mutex::new(Softnet::new()),
            raised: Raised::new(),
            routed: Mutex::new(Vec::new()),
            deadlines: Deadlines::new(),
            backstop: Mutex::new(()),
            timer: rustix::time::timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            irq_epoll: IrqEpoll::new()?,
            fd_vectors: Mutex::new(Vec::new()),
            fd_vector_count: AtomicU32::new(0),
            irq_parker: Parker::new()?,
            ksoftirqd_parker: Parker::new()?,
            workers: Mutex::new([const { None }; WORKERS_MAX as usize]),
            woken: AtomicU32::new(0),
            sleeps: SleepCounters::default(),
            interrupts: AtomicU64::new(0),
            softirq_ns: AtomicU64::new(0),
            ksoftirqd_wakes: AtomicU64::new(0),
        })
    }

    pub(crate) fn stats(&self) -> CpuStats {
        CpuStats {
            interrupts: self.interrupts.load(Ordering::Relaxed),
            softirq_ns: self.softirq_ns.load(Ordering::Relaxed),
            time_squeeze: relock(&self.softnet).time_squeeze(),
            ksoftirqd_wakes: self.ksoftirqd_wakes.load(Ordering::Relaxed),
            wakeups: self.sleeps.wakeups.load(Ordering::Relaxed),
            timer_ops: self.sleeps.timer_ops.load(Ordering::Relaxed),
            syscalls: self.sleeps.syscalls.load(Ordering::Relaxed),
        }
    }

    // ---- deadlines ----

    /// A timer that falls due here was started.
    #[inline]
    pub(crate) fn note_deadline(&self, deadline_ns: u64) {
        self.deadlines.note(deadline_ns);
    }

    /// Whether something waits for the seat's holder.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.seat.is_pending() || self.deadlines.is_due(now_ns)
    }

    pub(crate) fn next_deadline_ns(&self) -> u64 {
        self.deadlines.earliest_ns()
    }

    pub(crate) fn timer_fd(&self) -> impl AsFd + '_ {
        self.timer.as_fd()
    }

    /// The kernel timer fired: it is not set any more.
    pub(crate) fn backstop_fired(&self) {
        let _moving = relock(&self.backstop);
        let mut count = [0u8; 8];
        // Nothing to read means that it was moved meanwhile.
        let _ = rustix::io::read(&self.timer, &mut count);
        self.deadlines.backstop_has_fired();
    }

    /// Whoever hears an interrupt of this CPU next. Called after the interrupt was published.
    #[inline]
    pub(crate) fn raise(&self) {
        if let Some(holder) = self.seat.raise() {
            self.wake(holder);
        }
    }

    #[cold]
    fn wake(&self, holder: Holder) {
        match holder.slot() {
            Some(slot) => {
                let parker = relock(&self.workers)[slot as usize].clone();
                match parker {
                    Some(parker) => parker.wake(&self.sleeps),
                    // The worker is gone: it passed the seat on before it went, so the new holder has the interrupt.
                    None => false,
                }
            }
            None if holder == KSOFTIRQD => self.ksoftirqd_parker.wake(&self.sleeps),
            None => self.irq_parker.wake(&self.sleeps),
        };
    }

    pub(crate) fn raise_irq(&self, instance: &Instance) {
        if self.raised.push(instance.napi.index(), &instance.vector.link) {
            self.raise();
        }
    }

    /// Gives this CPU a scheduled instance for softirq from outside its seat. [`Delivery::route_outside`] decides first
    /// whether it is one for softirq.
    pub(crate) fn route_from_outside(&self, owner: Owner) {
        relock(&self.routed).push(owner);
        self.raise();
    }

    // ---- descriptors as interrupts ----

    pub(crate) fn add_fd_vector(&self, instance: &Instance) -> std::io::Result<()> {
        self.irq_epoll.add(&instance.vector, instance.napi.index())?;
        let mut vectors = relock(&self.fd_vectors);
        vectors.push(instance.napi.index());
        self.fd_vector_count.store(vectors.len() as u32, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn fd_vectors(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
        (self.fd_vector_count.load(Ordering::Acquire) != 0).then(|| relock(&self.fd_vectors))
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        relock(&self.routed).drain(..).for_each(Owner::abandon);
    }
}

/// The data behind these locks is moved in and out whole: a panic elsewhere cannot leave it half-written.
pub(crate) fn relock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What the holder of a CPU's seat does.
impl Delivery {
    /// Runs this CPU's delivery until nothing is pending, within Linux's bounds. The caller holds the seat, awake.
    #[inline]
    pub(crate) fn run(&self, cpu: &Cpu) -> Ran {
        or_end(&|| format!("the delivery of CPU {}, outside any queue", cpu.index), || self.run_pending(cpu))
    }

    fn run_pending(&self, cpu: &Cpu) -> Ran {
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

    fn hard_interrupts(&self, cpu: &Cpu, softnet: &mut Softnet, now_ns: u64) {
        let cx = self.cx(cpu.index, now_ns);
        let mut at = cpu.raised.take();
        while let Some(index) = at {
            let instance = self.instance(index);
            at = Raised::next(&instance.vector.link);
            cpu.interrupts.fetch_add(1, Ordering::Relaxed);
            instance.irqs.fetch_add(1, Ordering::Relaxed);
            cx.emit(index, EventKind::Irq);
            // The one-shot line masked itself when it was raised.
            match instance.napi.schedule(&cx) {
                Schedule::Owned(owner) => {
                    cx.emit(index, EventKind::Mask);
                    self.route(cpu, softnet, owner, &cx);
                }
                // The owner looks again; a disabled queue looks when it is enabled.
                Schedule::Missed | Schedule::Disabled => {}
            }
        }
        // Seldom anything: only threads that could not take the seat leave instances here.
        let routed = std::mem::take(&mut *relock(&cpu.routed));
        for owner in routed {
            self.route(cpu, softnet, owner, &cx);
        }
    }

    fn route(&self, _cpu: &Cpu, softnet: &mut Softnet, owner: Owner, cx: &Cx<'_>) {
        let instance = self.instance(owner.napi());
        match instance.napi.route(owner, cx) {
            Route::Softirq(owner) => softnet.push(owner),
            Route::Thread => instance.wake_thread(self),
        }
    }

    /// Fires the timers that are due: those of the instances (§6) and those of their receivers.
    fn timers(&self, cpu: &Cpu, softnet: &mut Softnet, now_ns: u64) {
        let cx = self.cx(cpu.index, now_ns);
        cpu.deadlines.forget();
        for instance in self.instances() {
            if let Some((deadline_ns, pinned)) = instance.napi.timer().pending()
                && pinned == cpu.index
                && deadline_ns <= now_ns
                && let Some(owner) = instance.napi.timer_expired(&cx)
            {
                instance.lateness.record(now_ns - deadline_ns);
                self.route(cpu, softnet, owner, &cx);
            }
            let timers = |receiver: &dyn Receiver| receiver.timers(self, now_ns);
            if instance.receiver_due(cpu.index, now_ns) && self.contain(instance, "timers", timers) == Some(false) {
                instance.set_receiver_deadline(now_ns + RECEIVER_RETRY_NS);
            }
            cpu.note_deadline(instance.deadline_on(cpu.index));
        }
    }

    /// `handle_softirqs`.
    fn softirqs(&self, cpu: &Cpu, softnet: &mut Softnet, start_ns: u64) -> Ran {
        let mut run = SoftirqRun::begin(start_ns);
        let ran = loop {
            self.net_rx_action(cpu, softnet);
            // Our threads cannot see whether the system wants the core for others; it takes it.
            match run.after_pass(softnet.is_raised(), false, self.clock.now_ns()) {
                SoftirqNext::Done => break Ran::Done,
                SoftirqNext::Again => {}
                SoftirqNext::Ksoftirqd => {
                    self.cx(cpu.index, start_ns).emit(0, EventKind::Ksoftirqd);
                    break Ran::Leftover;
                }
            }
        };
        cpu.softirq_ns.fetch_add(self.clock.now_ns() - start_ns, Ordering::Relaxed);
        ran
    }

    fn net_rx_action(&self, cpu: &Cpu, softnet: &mut Softnet) {
        let mut rx = softnet.begin(&self.sysctl, self.clock.now_ns());
        loop {
            match rx.next(softnet) {
                RxStep::Poll(owner) => self.softirq_poll(cpu, softnet, &mut rx, owner),
                RxStep::End(end) => {
                    if end.squeezed {
                        self.cx(cpu.index, self.clock.now_ns()).emit(0, EventKind::TimeSqueeze);
                    }
                    return;
                }
            }
        }
    }

    fn softirq_poll(&self, cpu: &Cpu, softnet: &mut Softnet, rx: &mut NetRx, owner: Owner) {
        let instance = self.instance(owner.napi());
        let napi = &instance.napi;
        napi.poll_begin(&owner, napi.weight(), &self.cx(cpu.index, self.clock.now_ns()));
        match self.contained_try_poll(instance, owner, cpu.index) {
            TryPoll::Polled(owner, work) => {
                let now_ns = self.clock.now_ns();
                let cx = self.cx(cpu.index, now_ns);
                let polled = napi.softirq_polled(owner, work, false, &cx, |_| ());
                if let Some(completion) = rx.polled(polled, work, now_ns)
                    && let Some(owner) = self.settle(instance, completion, true, &cx)
                {
                    self.route(cpu, softnet, owner, &cx);
                }
                // Hard interrupts come in between polls, as they would between instructions.
                if cpu.seat.is_pending() {
                    cpu.seat.begin();
                    self.hard_interrupts(cpu, softnet, now_ns);
                }
            }
            TryPoll::Handed => {}
        }
    }

    /// Sees to what a completion owes: timer, interrupt. `in_seat`: the caller holds the seat of `cx.cpu`. Returns an
    /// ownership that is to be routed again.
    pub(crate) fn settle(
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
                    self.cpu(cx.cpu).note_deadline(deadline_ns);
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
    pub(crate) fn route_outside(&self, cpu: &Cpu, owner: Owner, cx: &Cx<'_>) {
        let instance = self.instance(owner.napi());
        match instance.napi.route(owner, cx) {
            Route::Softirq(owner) => cpu.route_from_outside(owner),
            Route::Thread => instance.wake_thread(self),
        }
    }

    /// `in_seat`: the caller holds the seat of the interrupt's CPU, and arms its descriptors when it leaves.
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
