//! One CPU: what it executes, and what is pending.

use std::collections::VecDeque;

use lull_core::{NetRx, Owner, SoftirqRun, Softnet};

use crate::engine::id::{QueueId, StepId, ThreadId};
use crate::engine::idle::Idle;
use crate::engine::metrics::CpuUse;

/// The reason of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irq {
    /// The device, for this queue.
    Device(QueueId),
    /// The timer of this queue's NAPI.
    NapiTimer(QueueId),
    /// The kernel timer of the interrupt thread, on lull's own host.
    Backstop,
    /// The timeout of a sleeping thread.
    Sleeper(ThreadId),
    /// Another CPU has woken a thread here.
    Resched,
    /// The operator who acts on the world from outside does so here, by this step.
    Call(StepId),
}

/// What a CPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Idle,
    Hard,
    Soft,
    Thread,
}

/// The state of a run of softirq.
#[derive(Debug, Default)]
pub(crate) struct Soft {
    pub(super) run: Option<SoftirqRun>,
    pub(super) rx: Option<NetRx>,
    pub(super) polling: Option<Owner>,
    /// What is left of a segment that was interrupted.
    pub(crate) rest_ns: u64,
    /// Whether it runs inside a thread's system call, whose time it counts as.
    pub(crate) in_thread: bool,
}

impl Soft {
    pub(crate) fn is_active(&self) -> bool {
        self.run.is_some()
    }

    pub(crate) fn abandon(&mut self) {
        if let Some(owner) = self.polling.take() {
            owner.abandon();
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) level: Level,
    pub(super) started_ns: u64,
    /// Interrupts that are pending.
    pub(crate) pending: VecDeque<Irq>,
    pub(super) hard: Option<Irq>,
    pub(crate) soft: Soft,
    pub(crate) softnet: Softnet,
    /// Whether softirq is raised but was handed to ksoftirqd: the next bottom-half enable, interrupt or ksoftirqd runs
    /// it.
    pub(crate) softirq_handed_over: bool,
    /// The thread that runs, or was interrupted.
    pub(crate) current: Option<ThreadId>,
    pub(crate) runnable: Vec<ThreadId>,
    pub(crate) need_resched: bool,
    /// Its ksoftirqd, which exists before anything runs.
    pub(crate) ksoftirqd: Option<ThreadId>,
    pub(crate) vruntime_min_ns: u64,
    /// Whether the CPU has come out of idle, and no thread has been switched to yet.
    pub(super) from_idle: bool,
    pub(super) idle_since_ns: u64,
    /// Costs that were left when it went idle, for which nobody waits.
    pub(super) owed_ns: u64,
    /// What is left of a switch out of idle, which accounting does not see.
    pub(super) unseen_ns: u64,
    pub(crate) idle: Idle,
    /// Whether delivery took packets while the current thread was interrupted.
    pub(crate) broken_into: bool,
    /// Whether the effects of a segment are happening, for whose end interrupts wait.
    pub(super) in_effects: bool,
    /// Whether its worker is awake in `epoll_wait`, so that on lull's own host it looks for interrupts itself.
    pub(crate) in_turn: bool,
    /// When the kernel timer of its interrupt thread fires, on lull's own host.
    pub(super) backstop_ns: Option<u64>,
    /// How much longer its next inter-processor interrupt takes, because something else has the CPU.
    pub(crate) stolen_ns: u64,
    /// Costs of effects, which the next segment bears.
    pub(crate) debt_ns: u64,
    pub(crate) used: CpuUse,
}

impl Cpu {
    /// Adds time in which it was idle; what is owed is taken off first.
    pub(super) fn rested(&mut self, spent_ns: u64) {
        let paid_ns = self.owed_ns.min(spent_ns);
        self.owed_ns -= paid_ns;
        self.used.softirq_ns += paid_ns;
        self.used.idle_ns += spent_ns - paid_ns;
    }

    pub(crate) fn new() -> Cpu {
        Cpu {
            level: Level::Idle,
            started_ns: 0,
            pending: VecDeque::with_capacity(8),
            hard: None,
            soft: Soft::default(),
            softnet: Softnet::new(),
            softirq_handed_over: false,
            current: None,
            runnable: Vec::with_capacity(8),
            need_resched: false,
            ksoftirqd: None,
            vruntime_min_ns: 0,
            from_idle: false,
            idle_since_ns: 0,
            owed_ns: 0,
            unseen_ns: 0,
            idle: Idle::new(),
            broken_into: false,
            in_effects: false,
            in_turn: false,
            backstop_ns: None,
            stolen_ns: 0,
            debt_ns: 0,
            used: CpuUse::default(),
        }
    }

    /// Returns the thread that runs, or was interrupted, if there has to be one.
    pub(crate) fn running(&self) -> ThreadId {
        self.current.expect("a CPU at thread level has a thread")
    }

    /// Whether a thread of this CPU has work that delivery interrupts.
    pub(crate) fn is_breaking_in(&self) -> bool {
        self.current.is_some()
    }
}
