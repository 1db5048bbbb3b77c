//! A worker's time inside lull: busy polling, suspending, resuming, sleeping.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::{AfterResume, BusyPlan, GroFlush};
use lull_nic::IrqLine;

use crate::busy::BusyPoller;
use crate::deadlines::NEVER;
use crate::delivery::Receiver;
use crate::holder::{self, Ran, Sleeper};
use crate::on_cpu::OnCpu;
use crate::seat::Holder;
use crate::worker::Worker;

/// Interrupts that a worker watches while it sleeps in the seat: with its own descriptor, as many as the bits of
/// [`crate::parker::Readable`]. The interrupt thread watches the others.
const WATCHED_MAX: usize = 63;

/// How a worker wants to sleep.
pub struct Sleep<'a> {
    /// Until when, in nanoseconds of the host's clock; `None` is for ever.
    pub until_ns: Option<u64>,
    /// A descriptor of the kernel that ends the sleep when it is readable.
    pub fd: Option<BorrowedFd<'a>>,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woke {
    /// What the worker waits for is there.
    Ready,
    /// Time is up.
    TimedOut,
    /// The descriptor is readable.
    Fd,
}

/// A worker's time inside lull, from its call to its return. It keeps the seat that it takes on the way. When it
/// returns, and only then, it makes sure that somebody wakes for what is still to come, so that timers which a busy
/// poll starts and a suspension replaces cost no kernel timer.
pub struct Turn<'w> {
    worker: &'w Worker,
    in_seat: bool,
}

impl<'w> Turn<'w> {
    pub(crate) fn new(worker: &'w Worker) -> Turn<'w> {
        Turn { worker, in_seat: false }
    }

    /// `napi_busy_loop` (§7): polls the instance of `plan` until `ready` says so or the plan ends. Returns the most packets that
    /// one poll took; `None` if the id was gone, which ends it at once.
    #[inline]
    pub fn busy_loop(&mut self, plan: &BusyPlan, ready: &mut dyn FnMut(u64) -> bool) -> Option<u32> {
        let (host, cpu, me) = self.worker.place();
        let known = self.worker.instance(plan.napi_id).is_some();
        let polled = BusyPoller { host, cpu, me }.run(
            plan,
            &|id| self.worker.instance(id).map(|found| found.clone()),
            &mut self.in_seat,
            ready,
        );
        // The end of the turn leaves the seat.
        let most = polled.unwrap_or_else(|panic| resume_unwind(panic));
        known.then_some(most)
    }

    /// Whether nothing waits for a poll of the instance with this id. Returns false if that cannot be told, or if the
    /// instance is gone.
    #[inline]
    pub fn is_idle(&self, id: u32) -> bool {
        self.worker.instance(id).is_some_and(|instance| instance.receiver.is_idle())
    }

    /// `napi_suspend_irqs` for the instance with this id, on this CPU.
    #[inline]
    pub fn suspend(&mut self, id: u32) {
        let (host, cpu, _) = self.worker.place();
        let Some(instance) = self.worker.instance(id) else { return };
        if instance.receiver.gro_held() {
            // The timer that they would wait for is about to be stretched.
            let gro_flush = |receiver: &dyn Receiver| receiver.gro_flush(host, GroFlush::All);
            host.contain(&instance, "GRO", gro_flush);
        }
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(deadline_ns) = instance.napi.suspend(&cx) {
            host.note_timer(cpu, &instance, deadline_ns);
        }
    }

    /// `napi_resume_irqs` for the instance with this id: the poll runs here and now.
    pub fn resume(&mut self, id: u32) {
        let (host, cpu, me) = self.worker.place();
        let Some(instance) = self.worker.instance(id) else { return };
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(owner) = instance.napi.resume_to(host.after_resume, &cx) {
            // The seat is taken first; otherwise the interrupt thread would be woken for what this thread runs itself.
            self.in_seat = self.in_seat || cpu.seat.take(me);
            host.route_outside(cpu, &instance, owner, &cx);
            if self.in_seat && host.run(cpu) == Ran::Leftover {
                host.leave(cpu, me, Ran::Leftover);
                self.in_seat = false;
            }
        }
    }

    /// Sleeps until `ready`, a deadline or a descriptor says otherwise; while it sleeps it delivers for its CPU.
    /// Whatever makes `ready` true wakes this worker's [`Waker`](crate::Waker) afterwards.
    pub fn sleep(&mut self, sleep: &Sleep<'_>, ready: &mut dyn FnMut() -> bool) -> Woke {
        let (_, cpu, me) = self.worker.place();
        self.worker.prepare_thread();
        let slot = self.worker.slot;
        if let Some(slot) = slot {
            cpu.seat.sleeper_begins(slot);
            self.in_seat = self.in_seat || cpu.seat.take(me);
        }
        // A panic in `ready` must not leave the seat with a thread that is gone.
        let Turn { worker, in_seat } = self;
        let (host, _, _) = worker.place();
        let mut sleeper =
            OfWorker { worker, on: host.on(cpu), sleep, ready, now_ns: 0, wake_ns: NEVER, watched: Vec::new() };
        let sleeps = if slot.is_some() { holder::sleep } else { holder::sleep_beside };
        let slept = catch_unwind(AssertUnwindSafe(|| sleeps(&mut sleeper, in_seat)));
        self.in_seat |= slot.is_some_and(|slot| cpu.seat.sleeper_ends(slot));
        slept.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// An interrupt that is a descriptor, watched by a worker in its sleep. The line keeps the descriptor open meanwhile;
/// whoever removes the instance wakes the worker.
struct Watched {
    napi: u32,
    line: Arc<dyn IrqLine>,
}

/// The sleep of a worker.
struct OfWorker<'a> {
    worker: &'a Worker,
    on: OnCpu<'a>,
    sleep: &'a Sleep<'a>,
    ready: &'a mut dyn FnMut() -> bool,
    /// When it looked last.
    now_ns: u64,
    /// When it wakes up by itself.
    wake_ns: u64,
    /// Descriptors that are interrupts and are watched in this sleep.
    watched: Vec<Watched>,
}

impl<'a> Sleeper for OfWorker<'a> {
    type Work = OnCpu<'a>;
    type Woke = Woke;

    #[inline]
    fn work(&self) -> &OnCpu<'a> {
        &self.on
    }

    fn me(&self) -> Holder {
        self.worker.place().2
    }

    fn forget(&self) {
        self.worker.parker.forget();
    }

    fn over(&mut self) -> Option<Woke> {
        if (self.ready)() {
            return Some(Woke::Ready);
        }
        self.now_ns = self.on.host.clock.now_ns();
        self.wake_ns = self.sleep.until_ns.unwrap_or(NEVER);
        self.watched.clear();
        (self.wake_ns <= self.now_ns).then_some(Woke::TimedOut)
    }

    fn promise(&mut self) -> bool {
        let OnCpu { host, cpu } = self.on;
        if host.after_resume == AfterResume::Interrupt {
            // What this schedules is pending, and the sleep is refused until it was polled.
            host.end_deferrals(cpu, self.now_ns);
        }
        self.worker.watch_fd_vectors(&mut self.watched);
        self.wake_ns = self.wake_ns.min(host.exact_deadline_ns(cpu));
        cpu.deadlines.worker_will_look(self.wake_ns);
        self.wake_ns != NEVER || !self.watched.is_empty()
    }

    fn take_back(&mut self) {
        self.on.cpu.deadlines.worker_looks_no_more();
    }

    fn park(&mut self) -> Option<Woke> {
        let fired = self.worker.park(self.sleep, self.wake_ns, self.now_ns, &self.watched);
        let woken = &self.on.cpu.woken;
        let _ = woken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        fired.then_some(Woke::Fd)
    }
}

impl Drop for Turn<'_> {
    /// The thread goes back to the application: it leaves the seat, or sees to it that somebody wakes for the next deadline.
    #[inline]
    fn drop(&mut self) {
        let (host, cpu, me) = self.worker.place();
        if self.in_seat {
            host.leave(cpu, me, Ran::Done);
        } else {
            host.cover(cpu);
        }
    }
}

impl Worker {
    /// Begins a turn in lull: a call of `epoll_wait`, say.
    #[inline]
    pub fn turn(&self) -> Turn<'_> {
        Turn::new(self)
    }

    /// Collects the descriptors of interrupts that whoever sleeps in the seat has to watch; the interrupt thread need
    /// not watch them.
    fn watch_fd_vectors(&self, watched: &mut Vec<Watched>) {
        let (host, cpu, _) = self.place();
        let Some(vectors) = cpu.fd_vectors() else { return };
        for &index in vectors.iter() {
            let Some(instance) = host.instance(index) else { continue };
            let vector = &instance.vector;
            if watched.len() == WATCHED_MAX {
                if cpu.irq_epoll.arm(vector, index) {
                    cpu.sleeps.syscall();
                }
            } else if vector.is_watched() {
                if cpu.irq_epoll.disarm(vector, index) {
                    cpu.sleeps.syscall();
                }
                watched.push(Watched { napi: index, line: vector.line.clone() });
            }
        }
    }

    /// Returns whether the caller's descriptor is readable. Interrupts that fired are raised.
    fn park(&self, sleep: &Sleep<'_>, wake_ns: u64, now_ns: u64, watched: &[Watched]) -> bool {
        let (host, cpu, _) = self.place();
        let timeout_ns = (wake_ns != NEVER).then(|| wake_ns.saturating_sub(now_ns).max(1));
        let vectors = watched.iter().filter_map(|watched| watched.line.fd());
        let fds: Vec<BorrowedFd<'_>> = sleep.fd.into_iter().chain(vectors).collect();
        let readable = self.parker.park(timeout_ns, &fds, &cpu.sleeps);
        if timeout_ns.is_some() {
            host.clock.woken_by_the_kernel();
        }
        let first = u32::from(sleep.fd.is_some());
        for (bit, watched) in (first..).zip(watched) {
            if readable & (1 << bit) != 0 {
                host.fd_fired(cpu, watched.napi);
            }
        }
        sleep.fd.is_some() && readable & 1 != 0
    }
}
