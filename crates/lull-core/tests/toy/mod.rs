//! A toy machine around the core, under virtual time: queues with a ring, an interrupt mask and a one-shot line; CPUs
//! with their softirq; epoll contexts with a ready list; NAPI threads. It holds no delivery rule: it does what the core
//! says, in a fixed order, and keeps a record of who polled what and when.

// Every test file uses a part of it.
#![allow(dead_code)]

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
    BusyPlan { napi_id: toy.queues[queue].napi.id(), prefer, budget: 64, end: BusyEnd::OneRound }
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

    /// One pass of `net_rx_action`. Says whether the softirq is raised after it.
    pub fn net_rx(&mut self, cpu: u16) -> bool {
        let index = usize::from(cpu);
        let mut rx = self.cpus[index].softnet.begin(&self.sysctl, self.now_ns);
        loop {
            match rx.next(&mut self.cpus[index].softnet) {
                RxStep::End(end) => return end.raised,
                RxStep::Poll(owner) => {
                    let queue = owner.napi() as usize;
                    let weight = self.napi(queue).weight();
                    self.napi(queue).poll_begin(&owner, weight, &self.cx(cpu));
                    let work = self.poll_device(queue, weight, By::Softirq, cpu);
                    let polled = self.softirq_polled(queue, owner, work, cpu);
                    if let Some(completion) = rx.polled(polled, work, self.now_ns) {
                        self.completion(queue, completion, cpu);
                    }
                }
            }
        }
    }

    fn softirq_polled(&mut self, queue: usize, owner: Owner, work: u32, cpu: u16) -> Polled {
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        napi.softirq_polled(owner, work, *gro_holds && work > 0, &cx, |what| flushes.push(what))
    }

    /// `handle_softirqs`, if raised. Leftovers go to ksoftirqd.
    pub fn softirq(&mut self, cpu: u16) -> bool {
        let index = usize::from(cpu);
        if !self.cpus[index].softnet.is_raised() {
            return false;
        }
        let mut run = SoftirqRun::begin(self.now_ns);
        loop {
            let raised = self.net_rx(cpu);
            match run.after_pass(raised, self.cpus[index].need_resched, self.now_ns) {
                SoftirqNext::Again => {}
                SoftirqNext::Done => return true,
                SoftirqNext::Ksoftirqd => {
                    self.cpus[index].ksoftirqd = true;
                    self.cpus[index].ksoftirqd_wakes += 1;
                    return true;
                }
            }
        }
    }

    /// The timers of this CPU that are due.
    pub fn timers(&mut self, cpu: u16) -> bool {
        let mut any = false;
        for queue in 0..self.queues.len() {
            let before = self.napi(queue).stats().timer_fires;
            if let Some(owner) = self.napi(queue).timer_expired(&self.cx(cpu)) {
                self.route(queue, owner, cpu);
            }
            any |= self.napi(queue).stats().timer_fires != before;
        }
        any
    }

    /// Gives the queue a thread and turns threading on.
    pub fn threaded(&mut self, queue: usize, busy_poll: bool) {
        let with = if busy_poll { lull_core::Threaded::BusyPoll } else { lull_core::Threaded::On };
        self.queues[queue].thread.get_or_insert_default();
        let napi = self.napi(queue);
        napi.set(&NapiSettings { threaded: with, ..napi.settings() });
        napi.threaded_on(busy_poll);
    }

    /// One poll of the queue's thread; false if it sleeps.
    pub fn thread_round(&mut self, queue: usize) -> bool {
        let cpu = self.queues[queue].thread_cpu;
        let Some(mut thread) = self.queues[queue].thread.take() else { return false };
        let step = thread.next(self.napi(queue), &self.cx(cpu));
        let ThreadStep::Poll { budget } = step else {
            self.queues[queue].thread_woken = false;
            self.queues[queue].thread = Some(thread);
            return false;
        };
        let work = self.poll_device(queue, budget, By::Thread, cpu);
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        let owed = thread.polled(napi, work, *gro_holds && work > 0, &cx, |what| flushes.push(what));
        self.queues[queue].thread = Some(thread);
        if let Some(completion) = owed {
            self.completion(queue, completion, cpu);
        }
        true
    }

    pub fn thread_is_busy(&self, queue: usize) -> bool {
        self.queues[queue].thread.as_ref().is_some_and(NapiThread::is_busy)
    }

    // ---- busy polling ----

    pub fn busy_begin(&mut self, plan: BusyPlan, cpu: u16) -> Option<Busier> {
        let queue = self.lookup(plan.napi_id)?;
        let busy = BusyLoop::begin(self.napi(queue), &plan, &self.cx(cpu));
        Some(Busier { queue, cpu, start_ns: self.now_ns, plan, busy })
    }

    /// One round; says whether it polled.
    pub fn busy_round(&mut self, busier: &mut Busier) -> bool {
        let (queue, cpu) = (busier.queue, busier.cpu);
        match busier.busy.round(self.napi(queue), &self.cx(cpu)) {
            BusyRound::Last | BusyRound::Lost => false,
            BusyRound::Poll { budget } => {
                let work = self.poll_device(queue, budget, By::Busy, cpu);
                busier.busy.polled(self.napi(queue), work, &self.cx(cpu));
                true
            }
        }
    }

    /// The stop and its last poll.
    pub fn busy_stop(&mut self, busier: Busier) {
        let Busier { queue, cpu, busy, .. } = busier;
        if let Some(stop) = busy.stop(self.napi(queue), &self.cx(cpu)) {
            self.busy_last_poll(queue, stop, cpu);
        }
        self.softirq(cpu);
    }

    fn busy_last_poll(&mut self, queue: usize, stop: BusyStop, cpu: u16) {
        let work = self.poll_device(queue, stop.budget(), By::Stop, cpu);
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        match stop.polled(napi, work, *gro_holds && work > 0, &cx, |what| flushes.push(what)) {
            BusyStopped::Completed(completion) => self.completion(queue, completion, cpu),
            BusyStopped::ToSoftirq(owner) => self.route(queue, owner, cpu),
        }
    }

    /// A whole busy call that also ends when `found` says so. Without a cost per poll it would spin for ever, so a round
    /// that costs nothing costs a busy-clock microsecond.
    pub fn busy(&mut self, plan: BusyPlan, cpu: u16, found: impl Fn(&Toy) -> bool) {
        let Some(mut busier) = self.busy_begin(plan, cpu) else { return };
        loop {
            let before_ns = self.now_ns;
            self.busy_round(&mut busier);
            self.softirq(cpu);
            if found(self) || plan.end.reached(busier.start_ns, self.now_ns) {
                break;
            }
            if self.now_ns == before_ns {
                self.now_ns += 1_024;
            }
            self.pending();
        }
        self.busy_stop(busier);
    }

    // ---- epoll ----

    pub fn context(&mut self, watches: &[usize], params: EpollParams, options: EpollOptions) -> usize {
        let ep = EpollBusy::new(&self.sysctl, options);
        ep.set_params(&params, true).expect("parameters within their limits");
        self.contexts.push(Context { ep, watches: watches.to_vec(), ready: 0 });
        self.contexts.len() - 1
    }

    /// One `epoll_wait`; the application takes all events that it gets.
    pub fn epoll_wait(&mut self, context: usize, cpu: u16, timeout_ns: Option<u64>) -> Waited {
        let available = self.contexts[context].ready > 0;
        let mut wait = EpollWait::begin(&self.contexts[context].ep, timeout_ns, available, self.now_ns);
        let (mut owed, mut toured) = (None, false);
        loop {
            match owed.take().unwrap_or_else(|| wait.next(&self.contexts[context].ep)) {
                WaitStep::Copy => {
                    let events = std::mem::take(&mut self.contexts[context].ready);
                    owed = wait.copied(&self.contexts[context].ep, events);
                }
                WaitStep::Busy(plan) => {
                    // Going around instances that cost nothing would take no time.
                    self.now_ns += if std::mem::replace(&mut toured, true) { 1_024 } else { 0 };
                    let gone = self.lookup(plan.napi_id).is_none();
                    self.busy(plan, cpu, |toy| toy.contexts[context].ready > 0);
                    let available = self.contexts[context].ready > 0;
                    let done = BusyDone { available, gone, now_ns: self.now_ns };
                    owed = wait.busy_done(&self.contexts[context].ep, done);
                }
                WaitStep::Suspend(id) => self.suspend(id, cpu),
                WaitStep::Resume(id) => self.resume(id, cpu),
                WaitStep::Done(0) => return Waited::Timeout,
                WaitStep::Done(events) => return Waited::Events(events),
                WaitStep::Sleep(deadline_ns) => loop {
                    self.pending();
                    if self.contexts[context].ready > 0 {
                        wait.woke(true, false);
                        break;
                    }
                    let next_ns = self.next_ns();
                    if deadline_ns.is_some_and(|deadline_ns| next_ns.is_none_or(|next_ns| deadline_ns < next_ns)) {
                        self.now_ns = self.now_ns.max(deadline_ns.unwrap_or(0));
                        wait.woke(false, true);
                        break;
                    }
                    let Some(next_ns) = next_ns else { return Waited::Asleep };
                    self.now_ns = self.now_ns.max(next_ns);
                },
            }
        }
    }

    /// The context is closed.
    pub fn free(&mut self, context: usize, cpu: u16) {
        let left: Vec<u32> = self.contexts[context].ep.free().collect();
        left.into_iter().for_each(|id| self.resume(id, cpu));
        self.contexts[context].watches.clear();
    }

    // ---- disable, enable ----

    /// Claims, and withdraws the instance; false if somebody owns it. Begun before.
    pub fn disable_try(&mut self, queue: usize) -> bool {
        if self.napi(queue).disable_claim() == DisableClaim::Owned {
            return false;
        }
        self.napi(queue).disable_end(&self.cx(0));
        self.queues[queue].masked = true;
        self.queues[queue].latched = false;
        true
    }

    /// The whole of disable, in a machine that is quiet.
    pub fn disable(&mut self, queue: usize) {
        self.napi(queue).disable_begin();
        for _ in 0..STEPS_MAX {
            if self.disable_try(queue) {
                return;
            }
            self.now_ns += 20 * US;
            self.pending();
        }
        panic!("the owner of queue {queue} never lets go");
    }

    pub fn enable(&mut self, queue: usize) {
        self.napi(queue).enable(self.next_id, None);
        self.next_id += 1;
        // A device that is set up looks at its ring.
        self.queues[queue].pending |= self.queues[queue].ring > 0;
        self.unmask(queue);
    }

    // ---- time ----

    /// When something happens next: an arrival or a timer, or the next round of a busy-polling thread that has something to
    /// find (its empty rounds are left out, but for one at every turn of the machine).
    fn next_ns(&self) -> Option<u64> {
        let arrival = self.arrivals.keys().next().map(|&(at_ns, _)| at_ns);
        let timers = self.queues.iter().filter_map(|queue| queue.napi.timer().pending()).map(|(at_ns, _)| at_ns);
        let spinning = (0..self.queues.len())
            .filter(|&queue| self.thread_is_busy(queue) && self.queues[queue].ring > 0)
            .map(|_| self.now_ns + 1_024);
        arrival.into_iter().chain(timers).chain(spinning).min()
    }

    /// Does all that is pending now, in a fixed order, until nothing is.
    pub fn pending(&mut self) {
        for _ in 0..STEPS_MAX {
            let mut any = false;
            while let Some((&(at_ns, seen), &(queue, packets))) = self.arrivals.first_key_value() {
                if at_ns > self.now_ns {
                    break;
                }
                self.arrivals.remove(&(at_ns, seen));
                self.packets(queue, packets);
                any = true;
            }
            for queue in 0..self.queues.len() {
                any |= self.irq(queue);
            }
            for cpu in 0..self.cpus.len() as u16 {
                any |= self.timers(cpu);
                let ksoftirqd = std::mem::take(&mut self.cpus[usize::from(cpu)].ksoftirqd);
                any |= ksoftirqd;
                any |= self.softirq(cpu);
            }
            for queue in 0..self.queues.len() {
                while self.queues[queue].thread_woken {
                    any |= self.thread_round(queue) && !self.thread_is_busy(queue);
                    if self.thread_is_busy(queue) {
                        break;
                    }
                }
            }
            if !any {
                return;
            }
        }
        panic!("the machine does not become quiet");
    }

    /// Lets the machine run until then.
    pub fn run_until(&mut self, until_ns: u64) {
        self.pending();
        while let Some(next_ns) = self.next_ns() {
            if next_ns > until_ns {
                break;
            }
            self.now_ns = self.now_ns.max(next_ns);
            self.pending();
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    pub fn run_for(&mut self, ns: u64) {
        self.run_until(self.now_ns + ns);
    }

    // ---- invariants ----

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
