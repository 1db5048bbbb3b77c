//! The fair scheduler of a CPU.
//!
//! Scheduling is by virtual run time, as the kernel's fair class: whoever ran least runs next; a woken thread is placed
//! a little before the others and preempts a current thread that is ahead by more than the granularity; a thread that
//! used up its slice makes room.

use crate::engine::cpu::{Irq, Level};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, ThreadId};
use crate::engine::thread::{Next, Segment, Thread, ThreadState};

/// How far before the others a woken thread is placed at most.
const SLEEPER_CREDIT_NS: u64 = 3_000_000;
/// How far ahead a current thread must be to be preempted by a woken one.
const WAKE_GRANULARITY_NS: u64 = 1_000_000;
/// What the runnable threads of a CPU share (`sched_latency` of one CPU) ...
const LATENCY_NS: u64 = 6_000_000;
/// ... and what each of them has at least (`sched_min_granularity`).
const SLICE_MIN_NS: u64 = 750_000;

impl Cpus {
    /// Adds a thread, asleep.
    pub(crate) fn spawn(&mut self, env: &mut Env, cpu: CpuId) -> ThreadId {
        env.agenda.grow(env.slots.thread(self.threads.next()) as usize + 1);
        self.threads.push(Thread {
            cpu,
            state: ThreadState::Sleeping,
            vruntime_ns: 0,
            picked_vruntime_ns: 0,
            segment: Segment::default(),
            timed_out: false,
        })
    }

    /// A new thread runs from now on; its CPU learns of it when it is dispatched next.
    pub(crate) fn start(&mut self, thread: ThreadId) {
        self.threads[thread].state = ThreadState::Running;
        let cpu = self.threads[thread].cpu;
        self.cpus[cpu].runnable.push(thread);
    }

    /// What a thread's program says comes next.
    pub(crate) fn goes_on(&mut self, env: &mut Env, thread: ThreadId, next: Next) {
        let cpu = self.threads[thread].cpu;
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
                if let Some(until_ns) = until_ns {
                    env.agenda.set(env.slots.thread(thread), until_ns.max(env.now_ns));
                }
            }
        }
    }

    /// Whether somebody else waits for the CPU of this thread.
    pub(crate) fn need_resched(&self, thread: ThreadId) -> bool {
        self.cpus[self.threads[thread].cpu].need_resched
    }

    /// Makes a sleeping thread runnable; `by` is the CPU of whoever wakes it, which bears the cost.
    pub(crate) fn wake(&mut self, env: &mut Env, thread: ThreadId, by: CpuId) {
        if self.threads[thread].state != ThreadState::Sleeping {
            return;
        }
        self.threads[thread].state = ThreadState::Running;
        env.agenda.clear(env.slots.thread(thread));
        self.cpus[by].debt_ns += u64::from(env.world.costs.wake_ns);
        let cpu = self.threads[thread].cpu;
        let floor_ns = self.cpus[cpu].vruntime_min_ns.saturating_sub(SLEEPER_CREDIT_NS);
        let vruntime_ns = self.threads[thread].vruntime_ns.max(floor_ns);
        self.threads[thread].vruntime_ns = vruntime_ns;
        self.cpus[cpu].runnable.push(thread);
        match self.cpus[cpu].current {
            None if cpu != by && self.cpus[cpu].level == Level::Idle => self.interrupt(env, cpu, Irq::Resched),
            None => {}
            Some(current) if self.threads[current].vruntime_ns > vruntime_ns + WAKE_GRANULARITY_NS => {
                self.cpus[cpu].need_resched = true;
            }
            Some(_) => {}
        }
    }

    /// The timeout of a sleeping thread has passed.
    pub(crate) fn sleeper_expired(&mut self, env: &mut Env, thread: ThreadId) {
        if self.threads[thread].state == ThreadState::Sleeping {
            self.threads[thread].timed_out = true;
            let cpu = self.threads[thread].cpu;
            self.wake(env, thread, cpu);
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
