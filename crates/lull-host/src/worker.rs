//! The application's side of a CPU: busy polling, suspending, resuming, sleeping.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use lull_core::{BusyLoop, BusyPlan, BusyRound, BusyStopped, Schedule};

use crate::affinity;
use crate::cpu::{Cpu, NEVER, Ran, relock};
use crate::delivery::Delivery;
use crate::error::HostError;
use crate::host::Host;
use crate::instance::{Instance, Receiver};
use crate::parker::Parker;
use crate::seat::{GUEST, Holder, WORKERS_MAX};

/// Interrupts that a worker watches while it sleeps in the seat: with its own descriptor, as many as the bits of
/// [`crate::parker::Readable`]. The interrupt thread watches the others.
const WATCHED_MAX: usize = 63;

/// An application thread's place on a CPU. It belongs to one thread at a time and may move to another: it is not `Sync`,
/// because two threads in one place would both believe to have the seat.
pub struct Worker {
    host: Host,
    cpu: u16,
    slot: u32,
    parker: Arc<Parker>,
    /// The thread whose timer slack was set.
    prepared: Cell<Option<ThreadId>>,
    /// The last id looked up, and its index.
    last_looked_up: Cell<u64>,
}

/// Wakes a worker that sleeps, from any thread.
#[derive(Clone)]
pub struct Waker {
    host: std::sync::Weak<Delivery>,
    parker: Arc<Parker>,
    cpu: u16,
}

impl Waker {
    /// Ends the worker's sleep, or its next one.
    #[inline]
    pub fn wake(&self) {
        if let Some(host) = self.host.upgrade() {
            let cpu = host.cpu(self.cpu);
            if self.parker.wake(&cpu.sleeps) {
                cpu.woken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether both wake the same worker.
    pub fn is_same(&self, other: &Waker) -> bool {
        Arc::ptr_eq(&self.parker, &other.parker)
    }
}

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

impl Worker {
    /// A place on CPU `cpu` of `host`.
    ///
    /// # Errors
    /// No such CPU, or it has its 64 workers already.
    pub fn new(host: &Host, cpu: u16) -> Result<Worker, HostError> {
        let inner = host.inner();
        if usize::from(cpu) >= inner.cpu_count() {
            return Err(HostError::NoCpu { cpu, cpus: inner.cpu_count() });
        }
        let os = |source| HostError::Os { what: "create a worker's event descriptor".to_owned(), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let mut workers = relock(&inner.cpu(cpu).workers);
        let Some(slot) = workers.iter().position(Option::is_none) else {
            return Err(HostError::Full { what: "workers on one CPU", max: WORKERS_MAX as usize });
        };
        workers[slot] = Some(parker.clone());
        drop(workers);
        Ok(Worker {
            host: host.clone(),
            cpu,
            slot: slot as u32,
            parker,
            prepared: Cell::new(None),
            last_looked_up: Cell::new(0),
        })
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The CPU.
    pub fn cpu(&self) -> u16 {
        self.cpu
    }

    /// What wakes this worker.
    pub fn waker(&self) -> Waker {
        Waker { host: Arc::downgrade(self.host.inner()), parker: self.parker.clone(), cpu: self.cpu }
    }

    /// Pins the calling thread to the CPU's core, if the CPU has one.
    ///
    /// # Errors
    /// The system refused.
    pub fn pin_thread(&self) -> Result<(), HostError> {
        let Some(core) = self.host.core(self.cpu) else { return Ok(()) };
        let os = |source| HostError::Os { what: format!("pin a worker to core {core}"), source };
        affinity::pin_to(core).map_err(os)
    }

    fn place(&self) -> (&Delivery, &Cpu, Holder) {
        let inner = &**self.host.inner();
        (inner, inner.cpu(self.cpu), Holder::worker(self.slot))
    }

    /// Runs what is due on this CPU, if anything is and nobody else is at it.
    #[inline]
    pub fn poll_point(&self) {
        let (host, cpu, me) = self.place();
        if cpu.is_due(host.clock.now_ns()) && cpu.seat.is_free() {
            host.visit(cpu, me);
        }
    }

    /// `napi_by_id`. The last answer is kept, and believed while the instance still has that id.
    #[inline]
    fn instance(&self, id: u32) -> Option<&Instance> {
        let inner = self.host.inner();
        let last = self.last_looked_up.get();
        if (last >> 32) as u32 == id {
            let instance = inner.instance(last as u32);
            if instance.napi.id() == id {
                return Some(instance);
            }
        }
        let index = inner.registry.by_id(id)?;
        self.last_looked_up.set((u64::from(id) << 32) | u64::from(index));
        Some(inner.instance(index))
    }

    /// Begins a turn in lull: a call of `epoll_wait`, say.
    #[inline]
    pub fn turn(&self) -> Turn<'_> {
        Turn { worker: self, in_seat: false }
    }

    /// Which descriptors are interrupts to be watched by whoever sleeps in the seat; the interrupt thread need not.
    fn watch_fd_vectors(&self, watched: &mut Vec<u32>) {
        let (host, cpu, _) = self.place();
        let Some(vectors) = cpu.fd_vectors() else { return };
        for &index in vectors.iter() {
            let vector = &host.instance(index).vector;
            if watched.len() == WATCHED_MAX {
                if cpu.irq_epoll.arm(vector, index) {
                    cpu.sleeps.syscall();
                }
            } else if vector.is_watched() {
                if cpu.irq_epoll.disarm(vector, index) {
                    cpu.sleeps.syscall();
                }
                watched.push(index);
            }
        }
    }

    /// Returns whether the caller's descriptor is readable. Interrupts that fired are raised.
    fn park(&self, sleep: &Sleep<'_>, wake_ns: u64, now_ns: u64, watched: &[u32]) -> bool {
        let (host, cpu, _) = self.place();
        let timeout_ns = (wake_ns != NEVER).then(|| wake_ns.saturating_sub(now_ns).max(1));
        let vectors = watched.iter().filter_map(|&index| host.instance(index).vector.fd());
        let fds: Vec<BorrowedFd<'_>> = sleep.fd.into_iter().chain(vectors).collect();
        let readable = self.parker.park(timeout_ns, &fds, &cpu.sleeps);
        let first = u32::from(sleep.fd.is_some());
        for (bit, &index) in (first..).zip(watched) {
            if readable & (1 << bit) != 0 {
                host.fd_fired(cpu, index);
            }
        }
        sleep.fd.is_some() && readable & 1 != 0
    }

    fn prepare_thread(&self) {
        let thread = std::thread::current().id();
        if self.prepared.replace(Some(thread)) != Some(thread) {
            affinity::no_timer_slack();
        }
    }
}

/// A worker's time inside lull, from its call to its return. The seat that it takes on the way it keeps, and when it
/// returns, and only then, sees to it that somebody wakes for what is still to come: the timers that a busy poll starts
/// and a suspension replaces cost no kernel timer.
pub struct Turn<'w> {
    worker: &'w Worker,
    in_seat: bool,
}

impl Turn<'_> {
    /// `napi_busy_loop` (§7): polls the instance of `plan` until `ready` says so or the plan ends. An id that is gone ends it
    /// at once.
    #[inline]
    pub fn busy_loop(&mut self, plan: &BusyPlan, ready: &mut dyn FnMut(u64) -> bool) {
        let (host, cpu, me) = self.worker.place();
        let polled = BusyPoller { host, cpu, me }.run(plan, &|id| self.worker.instance(id), &mut self.in_seat, ready);
        // The end of the turn leaves the seat.
        polled.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// `napi_suspend_irqs` for the instance with this id, on this CPU.
    #[inline]
    pub fn suspend(&mut self, id: u32) {
        let (host, cpu, _) = self.worker.place();
        let Some(instance) = self.worker.instance(id) else { return };
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(deadline_ns) = instance.napi.suspend(&cx) {
            cpu.note_deadline(deadline_ns);
        }
    }

    /// `napi_resume_irqs` for the instance with this id: the poll runs here and now.
    pub fn resume(&mut self, id: u32) {
        let (host, cpu, me) = self.worker.place();
        let Some(instance) = self.worker.instance(id) else { return };
        let cx = host.cx(cpu.index, host.clock.now_ns());
        if let Some(owner) = instance.napi.resume(&cx) {
            // The seat first: else the interrupt thread is woken for what this thread runs itself.
            self.in_seat = self.in_seat || cpu.seat.take(me);
            host.route_outside(cpu, owner, &cx);
            if self.in_seat && host.run(cpu) == Ran::Leftover {
                host.leave(cpu, me, Ran::Leftover);
                self.in_seat = false;
            }
        }
    }

    /// Sleeps until `ready`, a deadline or a descriptor says otherwise; while it sleeps it delivers for its CPU.
    /// Whatever makes `ready` true wakes this worker's [`Waker`] afterwards.
    pub fn sleep(&mut self, sleep: &Sleep<'_>, ready: &mut dyn FnMut() -> bool) -> Woke {
        let (_, cpu, me) = self.worker.place();
        self.worker.prepare_thread();
        cpu.seat.sleeper_begins(self.worker.slot);
        self.in_seat = self.in_seat || cpu.seat.take(me);
        // A panic in `ready` must not leave the seat with a thread that is gone.
        let slept = catch_unwind(AssertUnwindSafe(|| self.sleep_until(sleep, ready)));
        self.in_seat |= cpu.seat.sleeper_ends(self.worker.slot);
        slept.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn sleep_until(&mut self, sleep: &Sleep<'_>, ready: &mut dyn FnMut() -> bool) -> Woke {
        let Turn { worker, in_seat } = self;
        let (host, cpu, me) = worker.place();
        let mut fired = false;
        let mut watched = Vec::new();
        loop {
            if *in_seat && host.run(cpu) == Ran::Leftover {
                host.leave(cpu, me, Ran::Leftover);
                *in_seat = false;
            }
            if fired {
                break Woke::Fd;
            }
            worker.parker.forget();
            // The seat may have been passed to us since we looked, and the wake-up just forgotten meant for it.
            if !*in_seat && cpu.seat.wake_up(me) {
                *in_seat = true;
                continue;
            }
            if ready() {
                break Woke::Ready;
            }
            let now_ns = host.clock.now_ns();
            if sleep.until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                break Woke::TimedOut;
            }
            let mut wake_ns = sleep.until_ns.unwrap_or(NEVER);
            watched.clear();
            if *in_seat {
                worker.watch_fd_vectors(&mut watched);
                wake_ns = wake_ns.min(host.exact_deadline_ns(cpu));
                cpu.deadlines.worker_will_look(wake_ns);
                if !cpu.seat.sleep(me) {
                    cpu.deadlines.worker_looks_no_more();
                    continue;
                }
            }
            fired = worker.park(sleep, wake_ns, now_ns, &watched);
            let promised = *in_seat && (wake_ns != NEVER || !watched.is_empty());
            if promised {
                cpu.deadlines.worker_looks_no_more();
            }
            let woken = &cpu.woken;
            let _ = woken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
            *in_seat = cpu.seat.take(me);
            if promised && !*in_seat {
                // Somebody has the seat awake, and may count on our looking at the clock and at the descriptors.
                host.arm_fd_vectors(cpu);
                cpu.raise();
            }
        }
    }
}

impl Drop for Turn<'_> {
    /// Back to the application.
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

impl Drop for Worker {
    fn drop(&mut self) {
        let (_, cpu, _) = self.place();
        relock(&cpu.workers)[self.slot as usize] = None;
    }
}

impl Host {
    /// Schedules an instance as its interrupt would.
    pub fn schedule(&self, index: u32) {
        let inner = self.inner();
        let instance = inner.instance(index);
        let cx = inner.cx(instance.cpu(), self.now_ns());
        if let Schedule::Owned(owner) = instance.napi.schedule(&cx) {
            inner.route_outside(inner.cpu(instance.cpu()), owner, &cx);
        }
    }
}

/// A thread in the busy loop, with or without a place of its own on the CPU.
#[derive(Clone, Copy)]
struct BusyPoller<'h> {
    host: &'h Delivery,
    cpu: &'h Cpu,
    me: Holder,
}

impl BusyPoller<'_> {
    /// `napi_busy_loop` (§7): polls the instance of `plan` until `ready` says so or the plan ends. An id that is gone ends it
    /// at once. The error is a panic of `ready`, after which nothing is owned and the seat is the caller's to leave.
    fn run<'h>(
        &self,
        plan: &BusyPlan,
        lookup: &dyn Fn(u32) -> Option<&'h Instance>,
        in_seat: &mut bool,
        ready: &mut dyn FnMut(u64) -> bool,
    ) -> std::thread::Result<()> {
        let BusyPoller { host, cpu, me } = *self;
        let start_ns = host.clock.now_ns();
        // One round is over before a seat would pay for itself.
        *in_seat = *in_seat || (plan.end != lull_core::BusyEnd::OneRound && cpu.seat.take(me));
        while let Some(instance) = lookup(plan.napi_id) {
            let yielded = self.rounds(instance, plan, start_ns, in_seat, ready)?;
            if !yielded {
                break;
            }
            // Somebody waits for the core (`need_resched`): let them have it, then look the instance up again.
            if std::mem::take(in_seat) {
                let ran = host.run(cpu);
                host.leave(cpu, me, ran);
            }
            cpu.woken.store(0, Ordering::Relaxed);
            std::thread::yield_now();
            let now_ns = host.clock.now_ns();
            if ready(now_ns) || plan.end.reached(start_ns, now_ns) {
                break;
            }
        }
        Ok(())
    }

    /// One acquisition of the loop; true if it ended only to yield the core.
    #[inline]
    fn rounds(
        &self,
        instance: &Instance,
        plan: &BusyPlan,
        start_ns: u64,
        in_seat: &mut bool,
        ready: &mut dyn FnMut(u64) -> bool,
    ) -> std::thread::Result<bool> {
        let BusyPoller { host, cpu, .. } = *self;
        let mut now_ns = start_ns;
        let mut busy = BusyLoop::begin(&instance.napi, plan, &host.cx(cpu.index, now_ns));
        // A panic in `ready` must not take the ownership along.
        let yielded = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let cx = host.cx(cpu.index, now_ns);
                if let BusyRound::Poll { budget } = busy.round(&instance.napi, &cx) {
                    // A shard whose lock is held is being served by whoever holds it: an empty round.
                    let poll = |receiver: &dyn Receiver| receiver.poll_if_free(host, budget).unwrap_or(0);
                    let work = host.contained_poll(instance, "busy polling", budget, poll);
                    busy.polled(&instance.napi, work, &cx);
                }
                now_ns = host.clock.now_ns();
                self.pending_softirqs(in_seat, now_ns);
                if ready(now_ns) || plan.end.reached(start_ns, now_ns) || instance.failure().is_some() {
                    break false;
                }
                if cpu.woken.load(Ordering::Relaxed) != 0 {
                    break true;
                }
                std::hint::spin_loop();
            }
        }));
        let cx = host.cx(cpu.index, now_ns);
        let Some(stop) = busy.stop(&instance.napi, &cx) else { return yielded };
        let last = |receiver: &dyn Receiver| receiver.poll(host, stop.budget());
        let work = host.contained_poll(instance, "the last poll of a busy loop", stop.budget(), last);
        let cx = host.cx(cpu.index, host.clock.now_ns());
        let owner = match stop.polled(&instance.napi, work, false, &cx, |_| ()) {
            BusyStopped::Completed(completion) => host.settle(instance, completion, *in_seat, &cx),
            BusyStopped::ToSoftirq(owner) => Some(owner),
        };
        if let Some(owner) = owner {
            // The seat first: else the interrupt thread is woken for what this thread runs itself.
            if !*in_seat {
                *in_seat = cpu.seat.take(self.me);
            }
            host.route_outside(cpu, owner, &cx);
            self.pending_softirqs(in_seat, cx.now_ns);
        }
        yielded
    }

    /// `local_bh_enable`: each busy iteration ends by running this CPU's pending softirqs.
    #[inline]
    fn pending_softirqs(&self, in_seat: &mut bool, now_ns: u64) {
        let BusyPoller { host, cpu, me } = *self;
        if !cpu.is_due(now_ns) {
            return;
        }
        if !*in_seat {
            *in_seat = cpu.seat.take(me);
        }
        if *in_seat {
            if host.run(cpu) == Ran::Leftover {
                host.leave(cpu, me, Ran::Leftover);
                *in_seat = false;
            } else {
                // The loop may last: the descriptors that softirq unmasked are to be watched meanwhile.
                host.arm_fd_vectors(cpu);
            }
        }
    }
}

/// What threads do that have no worker: blocking and busy-polling socket calls, a context that is freed.
impl Delivery {
    /// [`Turn::busy_loop`] for a socket call: the poller passes by on the CPU of the instance's interrupt.
    pub fn busy_loop(&self, plan: &BusyPlan, ready: &mut dyn FnMut(u64) -> bool) {
        let lookup = |id| self.registry.by_id(id).map(|index| self.instance(index));
        let Some(instance) = lookup(plan.napi_id) else { return };
        let cpu = self.cpu(instance.cpu());
        let mut in_seat = false;
        let polled = BusyPoller { host: self, cpu, me: GUEST }.run(plan, &lookup, &mut in_seat, ready);
        if in_seat {
            let ran = self.run(cpu);
            self.leave(cpu, GUEST, ran);
        } else {
            self.cover(cpu);
        }
        polled.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// `napi_resume_irqs` from outside any CPU: the poll runs on the CPU of the instance's interrupt.
    pub fn resume(&self, id: u32) {
        let Some(index) = self.registry.by_id(id) else { return };
        let instance = self.instance(index);
        let cx = self.cx(instance.cpu(), self.clock.now_ns());
        if let Some(owner) = instance.napi.resume(&cx) {
            self.route_outside(self.cpu(instance.cpu()), owner, &cx);
        }
    }
}
