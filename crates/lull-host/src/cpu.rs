//! One lull CPU: what its seat's holder finds, and how others reach it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lull_core::{CondResched, Owner, Softnet};
use lull_nic::own;
use rustix::time::{TimerfdClockId, TimerfdFlags};

use crate::deadlines::Deadlines;
use crate::holder::Seated;
use crate::parker::{Parker, SleepCounters};
use crate::raised::Raised;
use crate::seat::{Holder, KSOFTIRQD, Seat, WORKERS_MAX};
use crate::sync::{Mutex, MutexGuard, relock, yield_now};
use crate::vector::{IrqEpoll, Vector};

/// Counters of one CPU since the host was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Nanoseconds that threads polled without pause here and found nothing: rounds of busy loops, and of NAPI threads that busy
    /// poll. A thread adds what it has spent at the end of its loop, and each millisecond.
    pub vain_ns: u64,
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
            vain_ns: self.vain_ns - before.vain_ns,
        }
    }
}

/// The longest that a round of polling which found nothing can be. In a longer one the poller did not run, so the time
/// was somebody else's.
const VAIN_ROUND_NS_MAX: u64 = 20_000;

/// A thread adds to its CPU's count when it has spent this much in vain.
const VAIN_TOLD_NS: u64 = 1_000_000;

/// What a thread that polls without pause has spent in vain and not yet added to its CPU's count.
#[derive(Default)]
pub(crate) struct Vain(u64);

impl Vain {
    /// A round found nothing.
    #[inline]
    pub(crate) fn round(&mut self, cpu: &Cpu, took_ns: u64) {
        if took_ns <= VAIN_ROUND_NS_MAX {
            self.0 += took_ns;
        }
        if self.0 >= VAIN_TOLD_NS {
            self.tell(cpu);
        }
    }

    /// Adds it to what the CPU counts. Not every round does so, because others write there, too.
    #[inline]
    pub(crate) fn tell(&mut self, cpu: &Cpu) {
        if self.0 != 0 {
            cpu.vain_ns.fetch_add(std::mem::take(&mut self.0), Ordering::Relaxed);
        }
    }
}

pub(crate) struct Cpu {
    pub(crate) index: u16,
    pub(crate) core: Option<usize>,
    pub(crate) seat: Seat,
    pub(crate) softnet: Mutex<Softnet>,
    pub(crate) raised: Raised,
    /// Instances scheduled for this CPU by threads that could not take its seat.
    pub(crate) routed: Mutex<Vec<Owner>>,
    pub(crate) deadlines: Deadlines,
    /// Held while the kernel timer is moved.
    pub(crate) backstop: Mutex<()>,
    pub(crate) timer: OwnedFd,
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
    pub(crate) interrupts: AtomicU64,
    pub(crate) softirq_ns: AtomicU64,
    pub(crate) ksoftirqd_wakes: AtomicU64,
    /// A copy of what `softnet` counts, for those who must not wait for it.
    pub(crate) time_squeeze: AtomicU64,
    pub(crate) vain_ns: AtomicU64,
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
            timer: own::made(|| {
                rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            })?,
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
            time_squeeze: AtomicU64::new(0),
            vain_ns: AtomicU64::new(0),
        })
    }

    /// Takes no lock: whoever asks never waits for a softirq.
    pub(crate) fn stats(&self) -> CpuStats {
        CpuStats {
            interrupts: self.interrupts.load(Ordering::Relaxed),
            softirq_ns: self.softirq_ns.load(Ordering::Relaxed),
            time_squeeze: self.time_squeeze.load(Ordering::Relaxed),
            ksoftirqd_wakes: self.ksoftirqd_wakes.load(Ordering::Relaxed),
            wakeups: self.sleeps.wakeups.load(Ordering::Relaxed),
            timer_ops: self.sleeps.timer_ops.load(Ordering::Relaxed),
            syscalls: self.sleeps.syscalls.load(Ordering::Relaxed),
            vain_ns: self.vain_ns.load(Ordering::Relaxed),
        }
    }

    // ---- deadlines ----

    /// Notes that something falls due here.
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

    /// Whether a thread is known to wait for this CPU's core.
    #[inline]
    pub(crate) fn need_resched(&self) -> bool {
        self.woken.load(Ordering::Relaxed) != 0
    }

    /// Lets other threads of the core run. Whoever waited for the core is taken to have had it.
    pub(crate) fn let_others_run(&self) {
        self.woken.store(0, Ordering::Relaxed);
        yield_now();
    }

    /// `cond_resched` of a thread that polls for ever.
    #[inline]
    pub(crate) fn cond_resched(&self, resched: &mut CondResched, now_ns: u64) {
        if resched.is_due(self.need_resched(), now_ns) {
            self.let_others_run();
        }
    }

    /// Gives this CPU a scheduled instance for softirq from outside its seat. [`Delivery::route_outside`] decides first
    /// whether it is one for softirq.
    pub(crate) fn route_from_outside(&self, owner: Owner) {
        relock(&self.routed).push(owner);
        self.raise();
    }

    // ---- descriptors as interrupts ----

    /// The interrupt of instance `index` is a descriptor, to be watched here.
    pub(crate) fn add_fd_vector(&self, vector: &Vector, index: u32) -> std::io::Result<()> {
        self.irq_epoll.add(vector, index)?;
        let mut vectors = relock(&self.fd_vectors);
        vectors.push(index);
        self.fd_vector_count.store(vectors.len() as u32, Ordering::Release);
        Ok(())
    }

    /// Nobody watches the interrupt of instance `index` any more.
    pub(crate) fn remove_fd_vector(&self, vector: &Vector, index: u32) {
        {
            let mut vectors = relock(&self.fd_vectors);
            vectors.retain(|watched| *watched != index);
            self.fd_vector_count.store(vectors.len() as u32, Ordering::Release);
        }
        self.irq_epoll.remove(vector);
        // A worker that sleeps in the seat may be watching the descriptor itself, and keeps it open.
        let parkers: Vec<Arc<Parker>> = relock(&self.workers).iter().flatten().cloned().collect();
        parkers.iter().for_each(|parker| {
            parker.wake(&self.sleeps);
        });
    }

    #[inline]
    pub(crate) fn fd_vectors(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
        (self.fd_vector_count.load(Ordering::Acquire) != 0).then(|| relock(&self.fd_vectors))
    }
}

impl Seated for Cpu {
    #[inline]
    fn seat(&self) -> &Seat {
        &self.seat
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
}

impl Drop for Cpu {
    fn drop(&mut self) {
        relock(&self.routed).drain(..).for_each(Owner::abandon);
    }
}
