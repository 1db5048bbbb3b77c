//! A toy machine around the core, under virtual time: queues with a ring, an interrupt mask and a one-shot line; CPUs
//! with their softirq; epoll contexts with a ready list; NAPI threads. It holds no delivery rule: it does what the core
//! says, in a fixed order, and keeps a record of who polled what and when.

// Every test file uses a part of it.
#![allow(dead_code)]

mod polls;
mod time;
mod waits;

use std::collections::BTreeMap;

use lull_core::{
    AfterResume, BusyDone, BusyEnd, BusyLoop, BusyPlan, BusyRound, BusyStop, BusyStopped, Completion, Cx, DisableClaim,
    EpollBusy, EpollOptions, EpollParams, EpollWait, GroFlush, NAPI_ID_MIN, Napi, NapiSettings, NapiThread, Owner,
    Polled, Route, RxStep, Schedule, Settled, SoftirqNext, SoftirqRun, Softnet, Sysctl, ThreadStep, WaitStep, state,
};

/// Every test's microsecond.
pub const US: u64 = 1_000;
/// Every test's millisecond.
pub const MS: u64 = 1_000_000;
/// A limit on every loop that waits for the machine to become quiet.
const STEPS_MAX: u32 = 100_000;

/// Who polled the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Softirq,
    Thread,
    /// A round of a busy loop.
    Busy,
    /// The last poll of a busy loop.
    Stop,
}

/// One poll of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    pub at_ns: u64,
    pub queue: usize,
    pub cpu: u16,
    pub by: By,
    pub work: u32,
}

/// One queue of the device and its instance.
pub struct Queue {
    pub napi: Napi,
    /// Packets in the ring.
    pub ring: u32,
    pub masked: bool,
    /// An interrupt was raised and not taken yet.
    pub latched: bool,
    /// Message-signalled: unmasking reports what arrived while masked, and does not look at the ring.
    pub edge: bool,
    /// Of an edge queue: something arrived while masked.
    pub pending: bool,
    /// Where its interrupt goes.
    pub irq_cpu: u16,
    /// Packets passed on.
    pub delivered: u64,
    /// Interrupts taken.
    pub irqs: u64,
    /// Packets that GRO holds after each poll that took any.
    pub gro_holds: bool,
    /// Flushes that the core asked for.
    pub flushes: Vec<GroFlush>,
    thread: Option<NapiThread>,
    thread_woken: bool,
    thread_cpu: u16,
}

/// One CPU.
#[derive(Default)]
pub struct Cpu {
    pub softnet: Softnet,
    /// ksoftirqd was woken.
    pub ksoftirqd: bool,
    /// How often it was.
    pub ksoftirqd_wakes: u32,
    /// A thread waits for this CPU.
    pub need_resched: bool,
}

/// An epoll context and the queues whose sockets it watches.
pub struct Context {
    pub ep: EpollBusy,
    pub watches: Vec<usize>,
    /// Ready events.
    pub ready: usize,
}

/// How an `epoll_wait` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Events(usize),
    Timeout,
    /// It sleeps, and nothing that the machine knows of will wake it.
    Asleep,
}

/// A busy loop between two of its rounds.
pub struct Busier {
    pub queue: usize,
    pub cpu: u16,
    pub start_ns: u64,
    pub plan: BusyPlan,
    pub busy: BusyLoop,
}

type Hook = Box<dyn FnOnce(&mut Toy)>;

/// See the [module](self).
pub struct Toy {
    pub now_ns: u64,
    pub queues: Vec<Queue>,
    pub cpus: Vec<Cpu>,
    pub contexts: Vec<Context>,
    pub polls: Vec<Poll>,
    pub sysctl: Sysctl,
    pub after_resume: AfterResume,
    /// What a poll costs, and each packet of it.
    pub poll_ns: u64,
    pub packet_ns: u64,
    arrivals: BTreeMap<(u64, u64), (usize, u32)>,
    arrivals_seen: u64,
    during_poll: Option<Hook>,
    next_id: u32,
}

pub fn settings(defer_hard_irqs: u32, gro_flush_timeout_ns: u64, irq_suspend_timeout_ns: u64) -> NapiSettings {
    NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns, ..NapiSettings::default() }
}

/// The recommended suspension parameters: one round, a budget of 64, prefer.
pub fn suspending() -> EpollParams {
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true }
}

/// A busy call of one round that prefers, as epoll makes it.
pub fn one_round(toy: &Toy, queue: usize, prefer: bool) -> BusyPlan {
    BusyPlan { napi_id: toy.queues[queue].napi.id(), prefer, budget: 64, end: BusyEnd::OneRound, catch_up: false }
}

impl Toy {
    /// `queues` enabled queues with these settings, interrupts of queue q on CPU q modulo two; four CPUs.
    pub fn new(queues: usize, with: NapiSettings) -> Toy {
        let mut toy = Toy {
            now_ns: MS,
            queues: Vec::new(),
            cpus: (0..4).map(|_| Cpu::default()).collect(),
            contexts: Vec::new(),
            polls: Vec::new(),
            sysctl: Sysctl::default(),
            after_resume: AfterResume::default(),
            poll_ns: 0,
            packet_ns: 0,
            arrivals: BTreeMap::new(),
            arrivals_seen: 0,
            during_poll: None,
            next_id: NAPI_ID_MIN,
        };
        for index in 0..queues {
            let napi = Napi::new(index as u32);
            napi.set(&with);
            toy.queues.push(Queue {
                napi,
                ring: 0,
                masked: true,
                latched: false,
                edge: false,
                pending: false,
                irq_cpu: (index % 2) as u16,
                delivered: 0,
                irqs: 0,
                gro_holds: false,
                flushes: Vec::new(),
                thread: None,
                thread_woken: false,
                thread_cpu: 3,
            });
            toy.enable(index);
        }
        toy
    }

    pub fn cx(&self, cpu: u16) -> Cx<'static> {
        Cx::new(cpu, self.now_ns)
    }

    pub fn napi(&self, queue: usize) -> &Napi {
        &self.queues[queue].napi
    }

    /// The pending timer's time to go.
    pub fn timer_in(&self, queue: usize) -> Option<u64> {
        self.napi(queue).timer().pending().map(|(deadline_ns, _)| deadline_ns.saturating_sub(self.now_ns))
    }

    pub fn has(&self, queue: usize, bits: u32) -> bool {
        self.napi(queue).snapshot().has(bits)
    }

    fn lookup(&self, id: u32) -> Option<usize> {
        self.queues.iter().position(|queue| queue.napi.id() == id && id != 0)
    }

    // ---- the device ----

    /// `packets` arrive in the ring. The line latches unless it is masked; it is one-shot: unmasking looks at the ring.
    pub fn packets(&mut self, queue: usize, packets: u32) {
        let queue = &mut self.queues[queue];
        queue.ring += packets;
        queue.latched |= !queue.masked && packets > 0;
        queue.pending |= queue.masked && packets > 0;
    }

    /// `packets` will arrive then.
    pub fn packets_at(&mut self, at_ns: u64, queue: usize, packets: u32) {
        self.arrivals_seen += 1;
        self.arrivals.insert((at_ns, self.arrivals_seen), (queue, packets));
    }

    pub fn unmask(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        queue.masked = false;
        queue.latched |= if queue.edge { queue.pending } else { queue.ring > 0 };
        queue.pending = false;
    }

    /// The interrupt handler, if the line is latched: mask after a successful schedule.
    pub fn irq(&mut self, queue: usize) -> bool {
        if !self.queues[queue].latched {
            return false;
        }
        let cpu = self.queues[queue].irq_cpu;
        self.queues[queue].latched = false;
        self.queues[queue].irqs += 1;
        if let Schedule::Owned(owner) = self.napi(queue).schedule(&self.cx(cpu)) {
            self.queues[queue].masked = true;
            self.route(queue, owner, cpu);
        }
        true
    }

    /// Somebody else schedules the instance, as an interrupt does whose mask came too late. Says whether it was taken.
    pub fn kick(&mut self, queue: usize, cpu: u16) -> bool {
        match self.napi(queue).schedule(&self.cx(cpu)) {
            Schedule::Owned(owner) => {
                self.route(queue, owner, cpu);
                true
            }
            Schedule::Missed | Schedule::Group | Schedule::Disabled => false,
        }
    }

    /// What happens after the next poll took its packets and before its completion.
    pub fn during_poll(&mut self, hook: impl FnOnce(&mut Toy) + 'static) {
        self.during_poll = Some(Box::new(hook));
    }

    fn poll_device(&mut self, queue: usize, budget: u32, by: By, cpu: u16) -> u32 {
        let at_ns = self.now_ns;
        let work = self.queues[queue].ring.min(budget);
        self.queues[queue].ring -= work;
        self.queues[queue].delivered += u64::from(work);
        self.now_ns += self.poll_ns + u64::from(work) * self.packet_ns;
        self.polls.push(Poll { at_ns, queue, cpu, by, work });
        if work > 0 {
            for context in 0..self.contexts.len() {
                if self.contexts[context].watches.contains(&queue) {
                    self.wake(context, queue, work as usize, cpu);
                }
            }
        }
        if let Some(hook) = self.during_poll.take() {
            hook(self);
        }
        work
    }

    /// Events of a socket of `queue` make `context` ready.
    pub fn wake(&mut self, context: usize, queue: usize, events: usize, cpu: u16) {
        let id = self.napi(queue).id();
        let left_behind = self.contexts[context].ep.note_napi(id);
        self.contexts[context].ready += events;
        if let Some(id) = left_behind {
            self.resume(id, cpu);
        }
    }

    /// Polls of the device since `from`, as (by, work).
    pub fn polls_since(&self, from: usize) -> Vec<(By, u32)> {
        self.polls[from..].iter().map(|poll| (poll.by, poll.work)).collect()
    }

    // ---- what the core says is owed ----

    pub fn route(&mut self, queue: usize, owner: Owner, cpu: u16) {
        match self.napi(queue).route(owner, &self.cx(cpu)) {
            Route::Softirq(owner) => self.cpus[usize::from(cpu)].softnet.push(owner),
            Route::Thread => self.queues[queue].thread_woken = true,
        }
    }

    pub fn completion(&mut self, queue: usize, completion: Completion, cpu: u16) {
        match completion {
            Completion::Kept(owner) | Completion::Again(owner) => self.route(queue, owner, cpu),
            Completion::Released(release) => {
                let Settled { unmask, .. } = release.settle(self.napi(queue), &self.cx(cpu));
                if unmask {
                    self.unmask(queue);
                }
            }
        }
    }

    pub fn suspend(&mut self, id: u32, cpu: u16) {
        if let Some(queue) = self.lookup(id) {
            self.napi(queue).suspend(&self.cx(cpu));
        }
    }

    /// Resumes, and runs the softirq of the caller's CPU.
    pub fn resume(&mut self, id: u32, cpu: u16) {
        if let Some(queue) = self.lookup(id) {
            if let Some(owner) = self.napi(queue).resume_to(self.after_resume, &self.cx(cpu)) {
                self.route(queue, owner, cpu);
            }
            self.softirq(cpu);
        }
    }

    // ---- softirq, timers, threads ----

    /// The invariants of §14 that hold when nobody is in the middle of anything.
    ///
    /// # Errors
    /// The one that does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (index, queue) in self.queues.iter().enumerate() {
            let state = queue.napi.snapshot();
            let timer = queue.napi.timer().pending();
            let free = !state.any(state::SCHED | state::DISABLE);
            let fail = |rule: &str| {
                Err(format!(
                    "{rule}: queue {index} is {state:?}, masked {}, latched {}, ring {}, timer {timer:?}",
                    queue.masked, queue.latched, queue.ring
                ))
            };
            if free && queue.masked && timer.is_none() {
                return fail("I2, masked and free without a timer");
            }
            if free && !queue.masked && queue.ring > 0 && !queue.latched && timer.is_none() {
                return fail("I2, packets without interrupt or timer");
            }
            if state.has(state::IN_BUSY_POLL) && !state.has(state::SCHED) {
                return fail("I3, busy polling without ownership");
            }
            if state.has(state::SCHED_THREADED) && (!state.has(state::SCHED) || queue.thread.is_none()) {
                return fail("I4, a thread's round without ownership or thread");
            }
        }
        Ok(())
    }

    #[track_caller]
    pub fn assert_invariants(&self) {
        if let Err(broken) = self.check() {
            panic!("{broken}");
        }
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        for queue in &mut self.queues {
            if let Some(thread) = queue.thread.take() {
                thread.abandon();
            }
        }
    }
}
