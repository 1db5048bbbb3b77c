//! Threads and the fair scheduler of a CPU.
//!
//! A thread is a [`Program`]: a step machine that says what to execute next. Scheduling is by virtual run time, as the kernel's
//! fair class: whoever ran least runs next; a woken thread is placed a little before the others and preempts a current thread
//! that is ahead by more than the granularity; a thread that used up its slice makes room.

use std::fmt;

use crate::engine::agenda::NEVER;
use crate::engine::cpu::{Irq, Level};
use crate::engine::id::{CpuId, ThreadId};
use crate::engine::sim::Sim;

/// How far before the others a woken thread is placed at most.
const SLEEPER_CREDIT_NS: u64 = 3_000_000;
/// How far ahead a current thread must be to be preempted by a woken one.
const WAKE_GRANULARITY_NS: u64 = 1_000_000;
/// What the runnable threads of a CPU share (`sched_latency` of one CPU) ...
const LATENCY_NS: u64 = 6_000_000;
/// ... and what each of them has at least (`sched_min_granularity`).
const SLICE_MIN_NS: u64 = 750_000;

/// A stretch of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// What it costs.
    pub cost_ns: u64,
    /// Share of it spent in user space, in 1/1024.
    pub user_share: u32,
    /// Whether softirq must wait until its end.
    pub bottom_halves_off: bool,
    /// Whether another thread may take the CPU before it begins or within it.
    pub preemptible: bool,
    pub(crate) rest_ns: u64,
}

impl Segment {
    /// System time; softirq may break in.
    pub fn sys(cost_ns: u64) -> Segment {
        Segment { cost_ns, ..Segment::default() }
    }

    /// System time with bottom halves off.
    pub fn bottom_halves_off(cost_ns: u64) -> Segment {
        Segment { cost_ns, bottom_halves_off: true, ..Segment::default() }
    }

    /// Time of which `user_ns` is user space; preemptible.
    pub fn mixed(sys_ns: u64, user_ns: u64) -> Segment {
        let cost_ns = sys_ns + user_ns;
        let user_share = (user_ns * 1_024 / cost_ns.max(1)) as u32;
        Segment { cost_ns, user_share, preemptible: true, ..Segment::default() }
    }
}

/// What a program does next.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Execute this, then step again.
    Run(Segment),
    /// Let others run first if any wait, then execute this.
    Yield(Segment),
    /// Sleep until woken or until this time ([`NEVER`]: no timeout), then step again.
    Sleep(u64),
    /// Run the CPU's pending softirqs in this thread (ksoftirqd), then step again.
    Softirqs,
}

/// A thread's program.
pub(crate) trait Program: fmt::Debug {
    /// The segment before ended (or the thread was woken): do its effects and say what comes next.
    fn step(&mut self, sim: &mut Sim, me: ThreadId) -> Next;

    /// An event that the program asked for.
    fn event(&mut self, _sim: &mut Sim, _me: ThreadId, _token: u32) {}

    /// Gives up what it owns at the end of a run.
    fn abandon(self: Box<Self>) {}
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Running,
    Sleeping,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) cpu: CpuId,
    pub(crate) state: ThreadState,
    pub(crate) vruntime_ns: u64,
    picked_vruntime_ns: u64,
    pub(crate) segment: Segment,
    pub(crate) timed_out: bool,
    pub(crate) program: Option<Box<dyn Program>>,
}

impl Sim {
    /// Adds a thread, runnable at once.
    pub(crate) fn spawn(&mut self, cpu: CpuId, program: Box<dyn Program>) -> ThreadId {
        self.agenda.grow(self.slots.thread(self.threads.next()) as usize + 1);
        self.threads.push(Thread {
            cpu,
            state: ThreadState::Sleeping,
            vruntime_ns: 0,
            picked_vruntime_ns: 0,
            segment: Segment::default(),
            timed_out: false,
            program: Some(program),
        })
    }

    /// Asks the program what comes next.
    pub(crate) fn thread_step(&mut self, thread: ThreadId) {
        let cpu = self.threads[thread].cpu;
        // A segment's end is where bottom halves go on again: what was left to ksoftirqd may run here.
        self.cpus[cpu].softirq_handed_over = false;
        let Some(mut program) = self.threads[thread].program.take() else { return };
        let next = program.step(self, thread);
        self.threads[thread].program = Some(program);
        match next {
            Next::Run(segment) | Next::Yield(segment) => {
                self.threads[thread].segment = Segment { rest_ns: segment.cost_ns, ..segment };
                let ran_ns = self.threads[thread].vruntime_ns - self.threads[thread].picked_vruntime_ns;
                let waiting = self.cpus[cpu].runnable.len() as u64;
                let slice_ns = (LATENCY_NS / (waiting + 1)).max(SLICE_MIN_NS);
                if waiting > 0 && (ran_ns > slice_ns || matches!(next, Next::Yield(_))) {
                    self.cpus[cpu].need_resched = true;
                    self.threads[thread].segment.preemptible = true;
                }
            }
            Next::Softirqs => {
                self.threads[thread].segment = Segment { preemptible: true, ..Segment::default() };
            }
            Next::Sleep(until_ns) => {
                self.threads[thread].state = ThreadState::Sleeping;
                self.threads[thread].timed_out = false;
                self.threads[thread].segment = Segment::default();
                self.cpus[cpu].current = None;
                if until_ns != NEVER {
                    self.agenda.set(self.slots.thread(thread), until_ns.max(self.now_ns));
                }
            }
        }
    }

    /// Whether somebody else waits for the CPU of this thread.
    pub(crate) fn need_resched(&self, thread: ThreadId) -> bool {
        self.cpus[self.threads[thread].cpu].need_resched
    }

    /// Makes a sleeping thread runnable; `by` is the CPU of whoever wakes it, which bears the cost.
    pub(crate) fn wake(&mut self, thread: ThreadId, by: CpuId) {
        if self.threads[thread].state != ThreadState::Sleeping {
            return;
        }
        self.threads[thread].state = ThreadState::Running;
        self.agenda.set(self.slots.thread(thread), NEVER);
        self.cpus[by].debt_ns += u64::from(self.world.costs.wake_ns);
        let cpu = self.threads[thread].cpu;
        let floor_ns = self.cpus[cpu].vruntime_min_ns.saturating_sub(SLEEPER_CREDIT_NS);
        let vruntime_ns = self.threads[thread].vruntime_ns.max(floor_ns);
        self.threads[thread].vruntime_ns = vruntime_ns;
        self.cpus[cpu].runnable.push(thread);
        match self.cpus[cpu].current {
            None if cpu != by && self.cpus[cpu].level == Level::Idle => self.interrupt(cpu, Irq::Resched),
            None => {}
            Some(current) if self.threads[current].vruntime_ns > vruntime_ns + WAKE_GRANULARITY_NS => {
                self.cpus[cpu].need_resched = true;
            }
            Some(_) => {}
        }
    }

    /// The timeout of a sleeping thread has passed.
    pub(crate) fn sleeper_expired(&mut self, thread: ThreadId) {
        if self.threads[thread].state == ThreadState::Sleeping {
            self.threads[thread].timed_out = true;
            let cpu = self.threads[thread].cpu;
            self.wake(thread, cpu);
        }
    }

    /// Takes the runnable thread with the least virtual run time.
    pub(crate) fn pick(&mut self, cpu: CpuId) -> Option<ThreadId> {
        let (place, &thread) = self.cpus[cpu]
            .runnable
            .iter()
            .enumerate()
            .min_by_key(|&(_, &thread)| (self.threads[thread].vruntime_ns, thread))?;
        self.cpus[cpu].runnable.swap_remove(place);
        let vruntime_ns = self.threads[thread].vruntime_ns;
        self.threads[thread].picked_vruntime_ns = vruntime_ns;
        self.cpus[cpu].vruntime_min_ns = self.cpus[cpu].vruntime_min_ns.max(vruntime_ns);
        Some(thread)
    }
}
