//! The fair scheduler of a CPU.
//!
//! Scheduling is by virtual run time, as in the kernel's fair class: the thread that ran least runs next. A woken
//! thread is placed a little before the others, and preempts a current thread that is ahead by more than the
//! granularity. A thread that has used up its slice lets another run.

use crate::engine::cpu::{Irq, Level};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{CpuId, Id, ThreadId};
use crate::engine::thread::{Next, Segment, Thread, ThreadState};

/// How far before the others a woken thread is placed at the most.
const SLEEPER_CREDIT_NS: u64 = 3_000_000;
/// How far ahead a current thread must be to be preempted by a woken one.
const WAKE_GRANULARITY_NS: u64 = 1_000_000;
/// One in this many wake-ups of a worker that may move finds another thread of the system on its CPU.
const BESIDE: u32 = 256;
/// The period that the runnable threads of a CPU share (`sched_latency` of one CPU).
const LATENCY_NS: u64 = 6_000_000;
/// The least slice of each of them (`sched_min_granularity`).
const SLICE_MIN_NS: u64 = 750_000;

impl Cpus {
    /// Adds a thread, which sleeps.
    pub(crate) fn spawn(&mut self, env: &mut Env, cpu: CpuId) -> ThreadId {
        env.agenda.grow(env.slots.thread(self.threads.next()) as usize + 1);
        self.threads.push(Thread {
            cpu,
            state: ThreadState::Sleeping,
            vruntime_ns: 0,
            picked_vruntime_ns: 0,
            segment: Segment::default(),
            bore_ns: 0,
            timed_out: false,
            spins: None,
            moves: false,
        })
    }

    /// A new thread runs from now on; its CPU notices it when it is dispatched next.
    pub(crate) fn start(&mut self, thread: ThreadId) {
        self.threads[thread].state = ThreadState::Running;
        let cpu = self.threads[thread].cpu;
        self.cpus[cpu].runnable.push(thread);
    }

    /// Does what a thread's program says comes next.
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

    /// Whether another thread waits for the CPU of this thread.
    pub(crate) fn need_resched(&self, thread: ThreadId) -> bool {
        self.cpus[self.threads[thread].cpu].need_resched
    }

    /// Makes a sleeping thread runnable; `by` is the CPU of the waker, which bears the cost.
    pub(crate) fn wake(&mut self, env: &mut Env, thread: ThreadId, by: CpuId) {
        if self.threads[thread].state != ThreadState::Sleeping {
            return;
        }
        self.threads[thread].state = ThreadState::Running;
        env.agenda.clear(env.slots.thread(thread));
        if !(self.woken_itself(env, by) && self.threads[thread].cpu == by) {
            self.cpus[by].debt_ns += u64::from(env.world.costs.wake_ns);
        }
        if self.threads[thread].moves {
            self.threads[thread].cpu = self.place(env, thread, by);
        }
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
                self.notices(env, current);
            }
            Some(_) => {}
        }
    }

    /// Returns where a thread that wakes is to run. It stays where it was if nobody else is there. Otherwise it goes to
    /// the waker's CPU (`wake_affine`, which prefers that if it is idle except for the interrupt), else to an idle one
    /// behind the same L3 (`select_idle_sibling`), else to any idle one, which would pull it (`newidle_balance`).
    fn place(&mut self, env: &Env, thread: ThreadId, by: CpuId) -> CpuId {
        let was = self.threads[thread].cpu;
        let idle = |cpu: CpuId| self.cpus[cpu].current.is_none() && self.cpus[cpu].runnable.is_empty();
        let disturbed = self.background.below(BESIDE) == 0;
        if idle(was) && !disturbed {
            return was;
        }
        let count = self.cpus.len() as u16;
        let others = (0..count).map(|step| CpuId::new((by.raw() + step) % count));
        let idle = others.filter(|&cpu| env.world.cpus[cpu.place()] && cpu != was && idle(cpu));
        idle.min_by_key(|&cpu| !env.world.cores.share_l3(cpu.raw(), by.raw())).unwrap_or(was)
    }

    /// A CPU that has nothing to run takes a thread that waits behind another on a busy CPU, from the same L3 first
    /// (`newidle_balance`).
    pub(crate) fn pull(&mut self, env: &Env, cpu: CpuId) -> Option<ThreadId> {
        let cores = env.world.cores;
        if !cores.workers_move || !env.world.cpus[cpu.place()] {
            return None;
        }
        let waiting = |from: CpuId| {
            let other = &self.cpus[from];
            let thread = other.runnable.iter().position(|&thread| self.threads[thread].moves)?;
            other.current.is_some().then_some((from, thread))
        };
        let from = self.cpus.ids().filter_map(waiting).min_by_key(|&(from, _)| !cores.share_l3(from.raw(), cpu.raw()));
        let (from, place) = from?;
        let thread = self.cpus[from].runnable.swap_remove(place);
        let behind_ns = self.threads[thread].vruntime_ns.saturating_sub(self.cpus[from].vruntime_min_ns);
        self.threads[thread].cpu = cpu;
        self.threads[thread].vruntime_ns = self.cpus[cpu].vruntime_min_ns + behind_ns;
        self.cpus[cpu].runnable.push(thread);
        self.pick(cpu)
    }

    /// Something happens that a thread in empty passes sees: its segment ends with the current pass.
    pub(crate) fn notices(&mut self, env: &mut Env, thread: ThreadId) {
        let Some(spin) = self.threads[thread].spins else { return };
        let cpu = self.threads[thread].cpu;
        if self.cpus[cpu].level == Level::Thread && self.cpus[cpu].current == Some(thread) {
            self.account(env, cpu);
            let ran_ns = u64::try_from(self.threads[thread].own_ns() - spin.own_ns).unwrap_or(0);
            let at_ns = env.now_ns + self.threads[thread].last_pass_ns(spin) - ran_ns % spin.pass_ns;
            let slot = env.slots.cpu(cpu);
            if env.agenda.slot_ns(slot).is_some_and(|due_ns| due_ns > at_ns) {
                env.agenda.set(slot, at_ns);
            }
        } else {
            let thread = &mut self.threads[thread];
            thread.segment.rest_ns = thread.segment.rest_ns.min(thread.last_pass_ns(spin));
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
