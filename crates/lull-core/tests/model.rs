//! The core against a plain model of `napi_semantics` §3 to §11: naive sequential code over plain fields. Random steps of
//! everybody who may touch an instance are interleaved (a poll and its completion, a release and its settling, are steps
//! of their own); after every step the two must agree, and the invariants of §14 must hold. In the end time runs on, and
//! every packet must have been polled.
#![cfg(not(loom))]

use lull_core::{
    BusyEnd, BusyLoop, BusyPlan, BusyRound, BusyStop, BusyStopped, Completion, Cx, DisableClaim, NAPI_ID_MIN, Napi,
    NapiSettings, NapiThread, Owner, Polled, Release, Route, Schedule, ThreadStep, Threaded, ThreadedOff, state,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

const WEIGHT: u32 = 64;
const THREAD_CPU: u16 = 1;
/// Steps that bringing everything to an end may take.
const DRAIN_MAX: u32 = 5_000;
/// Sequences tried; PROPTEST_CASES multiplies it (256 is its default).
const SEQUENCES_PER_CASE: u32 = 1;

#[derive(Clone, Debug)]
enum Op {
    Packets(u32),
    Irq,
    /// A schedule from elsewhere, as of an interrupt whose mask came too late.
    Kick(u16),
    /// Softirq of this CPU takes the instance from its list and polls the device; the completion is a step of its own.
    RxPoll(u16),
    RxDone {
        gro: bool,
    },
    Settle(usize),
    Timer(u16),
    Advance(u64),
    /// A round of poller 0 or 1, which begins its call with these if it has none.
    BusyRound {
        who: usize,
        prefer: bool,
        budget: u32,
    },
    StopBegin(usize),
    StopPoll(usize),
    StopDone {
        who: usize,
        gro: bool,
    },
    Suspend(u16),
    Resume(u16),
    Set {
        defer: u32,
        gro_flush_ns: u64,
        suspend_ns: u64,
    },
    DisableBegin,
    DisableClaim,
    Enable,
    ThreadedOn(bool),
    ThreadedOff,
    ThreadPoll,
    ThreadDone {
        gro: bool,
    },
}

/// The queue as the device has it. An edge device (message-signalled) does not look at its ring when it is unmasked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    ring: u32,
    masked: bool,
    latched: bool,
    pending: bool,
    edge: bool,
}

impl Device {
    fn packets(&mut self, packets: u32) {
        self.ring += packets;
        self.latched |= !self.masked;
        self.pending |= self.masked;
    }

    fn unmask(&mut self) {
        self.masked = false;
        self.latched |= if self.edge { self.pending } else { self.ring > 0 };
        self.pending = false;
    }

    fn take(&mut self, budget: u32) -> u32 {
        let work = self.ring.min(budget);
        self.ring -= work;
        work
    }
}

// ---- the plain model ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owed {
    timeout_ns: u64,
    rearm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Kept,
    Again,
    Repoll,
    Released(Owed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poller {
    Away,
    Looping { owns: bool, prefer: bool, budget: u32 },
    Stopping { timeout_ns: u64, budget: u32, work: Option<u32> },
}

#[derive(Clone, Debug)]
struct Model {
    sched: bool,
    missed: bool,
    disable: bool,
    npsvc: bool,
    in_busy_poll: bool,
    prefer_busy_poll: bool,
    threaded: bool,
    sched_threaded: bool,
    threaded_busy_poll: bool,
    credits: u32,
    timer: Option<(u64, u16)>,
    settings: NapiSettings,
    now_ns: u64,
    device: Device,
    /// Entries on the poll list of each CPU.
    lists: [u32; 2],
    /// The poll that softirq is in: CPU and packets.
    rx: Option<(u16, u32)>,
    thread_owns: bool,
    thread_in_round: bool,
    thread_work: Option<u32>,
    pollers: [Poller; 2],
    releases: Vec<(Owed, u16)>,
}

impl Model {
    fn new(edge: bool) -> Model {
        Model {
            sched: false,
            missed: false,
            disable: false,
            npsvc: false,
            in_busy_poll: false,
            prefer_busy_poll: false,
            threaded: false,
            sched_threaded: false,
            threaded_busy_poll: false,
            credits: 0,
            timer: None,
            settings: NapiSettings::default(),
            now_ns: 1_000_000,
            device: Device { ring: 0, masked: false, latched: false, pending: false, edge },
            lists: [0; 2],
            rx: None,
            thread_owns: false,
            thread_in_round: false,
            thread_work: None,
            pollers: [Poller::Away; 2],
            releases: Vec::new(),
        }
    }

    fn bits(&self) -> u32 {
        [
            (self.sched, state::SCHED),
            (self.missed, state::MISSED),
            (self.disable, state::DISABLE),
            (self.npsvc, state::NPSVC),
            (self.in_busy_poll, state::IN_BUSY_POLL),
            (self.prefer_busy_poll, state::PREFER_BUSY_POLL),
            (self.threaded, state::THREADED),
            (self.sched_threaded, state::SCHED_THREADED),
            (self.threaded_busy_poll, state::THREADED_BUSY_POLL),
        ]
        .iter()
        .fold(0, |word, &(set, bit)| if set { word | bit } else { word })
    }

    /// §3: whether the caller owns it now.
    fn schedule(&mut self) -> bool {
        if self.disable {
            return false;
        }
        if self.sched {
            self.missed = true;
            return false;
        }
        self.sched = true;
        true
    }

    fn route(&mut self, cpu: u16) {
        if self.threaded {
            self.sched_threaded = true;
        } else {
            self.lists[usize::from(cpu)] += 1;
        }
    }

    fn start_timer(&mut self, timeout_ns: u64, cpu: u16) {
        self.timer = Some(((self.now_ns + timeout_ns).next_multiple_of(16), cpu));
    }

    /// §4
    fn complete(&mut self, work: u32, gro: bool) -> Done {
        if self.npsvc || self.in_busy_poll {
            return Done::Kept;
        }
        let mut timeout_ns = 0;
        let mut rearm = true;
        if work > 0 {
            if gro {
                timeout_ns = self.settings.gro_flush_timeout_ns;
            }
            self.credits = self.settings.defer_hard_irqs;
        }
        if self.credits > 0 {
            self.credits -= 1;
            timeout_ns = self.settings.gro_flush_timeout_ns;
            if timeout_ns != 0 {
                rearm = false;
            }
        }
        let missed = self.missed;
        self.sched = missed;
        self.missed = false;
        self.sched_threaded = false;
        self.prefer_busy_poll = false;
        if missed { Done::Again } else { Done::Released(Owed { timeout_ns, rearm }) }
    }

    /// §5, after the driver's poll.
    fn polled(&mut self, work: u32, gro: bool, cpu: u16) -> Done {
        if work < WEIGHT {
            return self.complete(work, gro);
        }
        if self.disable {
            return match self.complete(work, gro) {
                Done::Released(owed) => Done::Released(Owed { rearm: false, ..owed }),
                other => other,
            };
        }
        if self.prefer_busy_poll {
            return match self.complete(work, gro) {
                Done::Released(Owed { timeout_ns, rearm: true }) => {
                    if timeout_ns != 0 {
                        self.start_timer(timeout_ns, cpu);
                    }
                    assert!(self.schedule(), "one step: nobody comes between");
                    Done::Again
                }
                other => other,
            };
        }
        Done::Repoll
    }

    fn done(&mut self, done: Done, cpu: u16) {
        match done {
            Done::Again => self.route(cpu),
            Done::Repoll => self.lists[usize::from(cpu)] += 1,
            Done::Released(owed) => self.releases.push((owed, cpu)),
            Done::Kept => panic!("only the thread's instance is kept"),
        }
    }

    /// Whether the step can be taken now.
    fn applies(&self, op: &Op) -> bool {
        match *op {
            Op::Packets(_) | Op::Kick(_) | Op::Advance(_) | Op::Timer(_) | Op::Set { .. } => true,
            Op::Irq => self.device.latched,
            Op::RxPoll(cpu) => self.lists[usize::from(cpu)] > 0 && self.rx.is_none(),
            Op::RxDone { .. } => self.rx.is_some(),
            Op::Settle(_) => !self.releases.is_empty(),
            // By id: not while disabled.
            Op::Suspend(_) | Op::Resume(_) => !self.npsvc,
            Op::BusyRound { who, .. } => match self.pollers[who] {
                Poller::Away => !self.npsvc,
                Poller::Looping { .. } => true,
                Poller::Stopping { .. } => false,
            },
            Op::StopBegin(who) => matches!(self.pollers[who], Poller::Looping { .. }),
            Op::StopPoll(who) => matches!(self.pollers[who], Poller::Stopping { work: None, .. }),
            Op::StopDone { who, .. } => matches!(self.pollers[who], Poller::Stopping { work: Some(_), .. }),
            Op::DisableBegin => !self.disable && !self.npsvc,
            Op::DisableClaim => self.disable,
            Op::Enable => self.npsvc,
            Op::ThreadedOn(_) | Op::ThreadedOff => true,
            Op::ThreadPoll => self.thread_work.is_none(),
            Op::ThreadDone { .. } => self.thread_work.is_some(),
        }
    }

    /// Takes the step; says what its taker was told.
    fn apply(&mut self, op: &Op) -> String {
        match *op {
            Op::Packets(packets) => self.device.packets(packets),
            Op::Irq => {
                self.device.latched = false;
                if self.schedule() {
                    self.device.masked = true;
                    self.route(0);
                }
            }
            Op::Kick(cpu) => {
                if self.schedule() {
                    self.route(cpu);
                }
            }
            Op::RxPoll(cpu) => {
                self.lists[usize::from(cpu)] -= 1;
                self.rx = Some((cpu, self.device.take(WEIGHT)));
            }
            Op::RxDone { gro } => {
                let (cpu, work) = self.rx.take().expect("it applies");
                let done = self.polled(work, gro && work > 0, cpu);
                self.done(done, cpu);
                return format!("{done:?}");
            }
            Op::Settle(which) => {
                let (owed, cpu) = self.releases.remove(which % self.releases.len());
                if owed.timeout_ns != 0 {
                    self.start_timer(owed.timeout_ns, cpu);
                }
                if owed.rearm {
                    self.device.unmask();
                }
                return format!("unmask {}", owed.rearm);
            }
            Op::Timer(cpu) => {
                if self.timer.is_some_and(|(at_ns, pinned)| at_ns <= self.now_ns && pinned == cpu) {
                    self.timer = None;
                    if !self.disable && !self.sched {
                        self.sched = true;
                        self.prefer_busy_poll = false;
                        self.route(cpu);
                    }
                }
            }
            Op::Advance(ns) => self.now_ns += ns,
            Op::BusyRound { who, prefer, budget } => {
                let (mut owns, prefer, budget) = match self.pollers[who] {
                    Poller::Looping { owns, prefer, budget } => (owns, prefer, budget),
                    _ => (false, prefer, budget),
                };
                if !owns {
                    if self.disable || self.sched || self.in_busy_poll {
                        self.prefer_busy_poll |= prefer;
                    } else {
                        (self.sched, self.in_busy_poll, owns) = (true, true, true);
                    }
                }
                self.pollers[who] = Poller::Looping { owns, prefer, budget };
                return format!("polled {:?}", owns.then(|| self.device.take(budget)));
            }
            Op::StopBegin(who) => {
                let Poller::Looping { owns, prefer, budget } = self.pollers[who] else { panic!("it applies") };
                self.pollers[who] = Poller::Away;
                if owns {
                    self.missed = false;
                    self.in_busy_poll = false;
                    let mut timeout_ns = 0;
                    if prefer {
                        self.credits = self.settings.defer_hard_irqs;
                        if self.credits != 0 {
                            timeout_ns = self.settings.gro_flush_timeout_ns;
                        }
                    }
                    self.pollers[who] = Poller::Stopping { timeout_ns, budget, work: None };
                }
            }
            Op::StopPoll(who) => {
                let Poller::Stopping { timeout_ns, budget, .. } = self.pollers[who] else { panic!("it applies") };
                let work = Some(self.device.take(budget));
                self.pollers[who] = Poller::Stopping { timeout_ns, budget, work };
            }
            Op::StopDone { who, gro } => {
                let Poller::Stopping { timeout_ns, budget, work: Some(work) } = self.pollers[who] else {
                    panic!("it applies")
                };
                self.pollers[who] = Poller::Away;
                let cpu = who as u16;
                if work < budget {
                    let done = self.complete(work, gro);
                    self.done(done, cpu);
                    return format!("{done:?}");
                }
                if timeout_ns == 0 {
                    self.route(cpu);
                    return "to softirq".to_owned();
                }
                self.sched = false;
                let done = Done::Released(Owed { timeout_ns, rearm: false });
                self.done(done, cpu);
                return format!("{done:?}");
            }
            Op::Suspend(cpu) => {
                if self.settings.irq_suspend_timeout_ns != 0 {
                    self.start_timer(self.settings.irq_suspend_timeout_ns, cpu);
                }
            }
            Op::Resume(cpu) => {
                if self.settings.irq_suspend_timeout_ns != 0 && self.schedule() {
                    self.route(cpu);
                }
            }
            Op::Set { defer, gro_flush_ns, suspend_ns } => {
                self.settings.defer_hard_irqs = defer;
                self.settings.gro_flush_timeout_ns = gro_flush_ns;
                self.settings.irq_suspend_timeout_ns = suspend_ns;
            }
            Op::DisableBegin => self.disable = true,
            Op::DisableClaim => {
                if !self.sched {
                    (self.sched, self.npsvc, self.disable) = (true, true, false);
                    (self.threaded, self.threaded_busy_poll, self.prefer_busy_poll) = (false, false, false);
                    self.timer = None;
                    self.device.masked = true;
                    self.device.latched = false;
                }
            }
            Op::Enable => {
                (self.sched, self.npsvc, self.missed, self.prefer_busy_poll) = (false, false, false, false);
                self.threaded = self.settings.threaded != Threaded::Off;
                self.threaded_busy_poll = self.settings.threaded == Threaded::BusyPoll;
                self.credits = 0;
                self.device.pending |= self.device.ring > 0;
                self.device.unmask();
            }
            Op::ThreadedOn(busy) => {
                (self.threaded, self.threaded_busy_poll) = (true, busy);
                self.settings.threaded = if busy { Threaded::BusyPoll } else { Threaded::On };
            }
            Op::ThreadedOff => {
                let refused = self.sched && !self.sched_threaded && !self.npsvc;
                if !refused {
                    (self.threaded, self.threaded_busy_poll) = (false, false);
                    self.settings.threaded = Threaded::Off;
                }
                return format!("off {}", !refused);
            }
            Op::ThreadPoll => {
                self.thread_owns |= self.sched_threaded;
                if self.thread_owns {
                    if !self.thread_in_round {
                        self.in_busy_poll = self.threaded_busy_poll && !self.disable;
                        self.thread_in_round = true;
                    }
                    self.thread_work = Some(self.device.take(WEIGHT));
                }
                return format!("polled {:?}", self.thread_work);
            }
            Op::ThreadDone { gro } => {
                let work = self.thread_work.take().expect("it applies");
                let done = self.polled(work, gro && work > 0, THREAD_CPU);
                match done {
                    Done::Repoll => {}
                    Done::Kept => self.thread_in_round = false,
                    Done::Again | Done::Released(_) => {
                        (self.thread_owns, self.thread_in_round) = (false, false);
                        self.done(done, THREAD_CPU);
                    }
                }
                return if matches!(done, Done::Repoll | Done::Kept) { "none".to_owned() } else { format!("{done:?}") };
            }
        }
        String::new()
    }

    /// §14, with the window between a release and its settling as the only excuse.
    fn invariants(&self) -> Result<(), &'static str> {
        let pollers = self
            .pollers
            .iter()
            .filter(|poller| matches!(poller, Poller::Looping { owns: true, .. } | Poller::Stopping { .. }));
        let owners = self.lists.iter().sum::<u32>()
            + u32::from(self.rx.is_some())
            + u32::from(self.thread_owns || self.sched_threaded)
            + pollers.count() as u32
            + u32::from(self.npsvc);
        let free = !self.sched && !self.disable;
        let owed = self.releases.iter().any(|(owed, _)| owed.timeout_ns != 0 || owed.rearm);
        let covered = self.timer.is_some() || owed;
        let waits = self.device.ring > 0 && !self.device.masked && !self.device.latched;
        match () {
            () if owners != u32::from(self.sched) => Err("I1: as many owners as SCHED says"),
            () if free && self.device.masked && !covered => Err("I2: masked and free without a timer"),
            () if free && waits && !covered => Err("I2: packets, and neither interrupt nor timer"),
            () if self.in_busy_poll && !self.sched => Err("I3: IN_BUSY_POLL without SCHED"),
            () if self.sched_threaded && !self.sched => Err("I4: SCHED_THREADED without SCHED"),
            () => Ok(()),
        }
    }

    /// The next step towards the end, or `None` if nothing is left to be done.
    fn drain(&self) -> Option<Op> {
        let candidates = [
            Op::Settle(0),
            Op::RxDone { gro: false },
            Op::RxPoll(0),
            Op::RxPoll(1),
            Op::StopDone { who: 0, gro: false },
            Op::StopDone { who: 1, gro: false },
            Op::StopPoll(0),
            Op::StopPoll(1),
            Op::StopBegin(0),
            Op::StopBegin(1),
            Op::DisableClaim,
            Op::Enable,
            Op::ThreadDone { gro: false },
        ];
        let ready =
            candidates.into_iter().find(|op| self.applies(op) && (!self.sched || !matches!(op, Op::DisableClaim)));
        match self.timer {
            _ if ready.is_some() => ready,
            _ if self.threaded => Some(Op::ThreadedOff),
            _ if self.thread_owns || self.sched_threaded => Some(Op::ThreadPoll),
            _ if self.device.latched => Some(Op::Irq),
            Some((at_ns, cpu)) if at_ns <= self.now_ns => Some(Op::Timer(cpu)),
            Some((at_ns, _)) => Some(Op::Advance(at_ns - self.now_ns)),
            None => None,
        }
    }
}

// ---- the core, driven by the same steps ----

enum RealPoller {
    Away,
    Looping(BusyLoop),
    Stopping(BusyStop, u32),
}

struct Real {
    napi: Napi,
    now_ns: u64,
    device: Device,
    lists: [Vec<Owner>; 2],
    rx: Option<(Owner, u16, u32)>,
    thread: NapiThread,
    thread_work: u32,
    pollers: [RealPoller; 2],
    releases: Vec<(Release, u16)>,
}

impl Real {
    fn new(edge: bool) -> Real {
        let napi = Napi::new(0);
        napi.enable(NAPI_ID_MIN, None);
        Real {
            napi,
            now_ns: 1_000_000,
            device: Device { ring: 0, masked: false, latched: false, pending: false, edge },
            lists: [Vec::new(), Vec::new()],
            rx: None,
            thread: NapiThread::new(),
            thread_work: 0,
            pollers: [RealPoller::Away, RealPoller::Away],
            releases: Vec::new(),
        }
    }

    fn cx(&self, cpu: u16) -> Cx<'static> {
        Cx::new(cpu, self.now_ns)
    }

    fn route(&mut self, owner: Owner, cpu: u16) {
        if let Route::Softirq(owner) = self.napi.route(owner, &self.cx(cpu)) {
            self.lists[usize::from(cpu)].push(owner);
        }
    }

    fn completion(&mut self, completion: Completion, cpu: u16) -> String {
        match completion {
            Completion::Kept(owner) => {
                owner.abandon();
                "Kept".to_owned()
            }
            Completion::Again(owner) => {
                self.route(owner, cpu);
                "Again".to_owned()
            }
            Completion::Released(release) => {
                let told = format!("Released({})", format!("{release:?}").replace("Release {", "Owed {"));
                self.releases.push((release, cpu));
                told
            }
        }
    }

    fn apply(&mut self, op: &Op) -> String {
        match *op {
            Op::Packets(packets) => self.device.packets(packets),
            Op::Irq => {
                self.device.latched = false;
                if let Schedule::Owned(owner) = self.napi.schedule(&self.cx(0)) {
                    self.device.masked = true;
                    self.route(owner, 0);
                }
            }
            Op::Kick(cpu) => {
                if let Schedule::Owned(owner) = self.napi.schedule(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::RxPoll(cpu) => {
                let owner = self.lists[usize::from(cpu)].pop().expect("the model has one on this list");
                self.napi.poll_begin(&owner, WEIGHT, &self.cx(cpu));
                self.rx = Some((owner, cpu, self.device.take(WEIGHT)));
            }
            Op::RxDone { gro } => {
                let (owner, cpu, work) = self.rx.take().expect("it applies");
                match self.napi.softirq_polled(owner, work, gro && work > 0, &self.cx(cpu), |_| ()) {
                    Polled::Repoll(owner) => {
                        self.lists[usize::from(cpu)].push(owner);
                        return "Repoll".to_owned();
                    }
                    Polled::Completed(completion) => return self.completion(completion, cpu),
                }
            }
            Op::Settle(which) => {
                let (release, cpu) = self.releases.remove(which % self.releases.len());
                let settled = release.settle(&self.napi, &self.cx(cpu));
                if settled.unmask {
                    self.device.unmask();
                }
                return format!("unmask {}", settled.unmask);
            }
            Op::Timer(cpu) => {
                if let Some(owner) = self.napi.timer_expired(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::Advance(ns) => self.now_ns += ns,
            Op::BusyRound { who, prefer, budget } => {
                let cx = self.cx(who as u16);
                let mut busy = match std::mem::replace(&mut self.pollers[who], RealPoller::Away) {
                    RealPoller::Looping(busy) => busy,
                    _ => {
                        let plan = BusyPlan { napi_id: self.napi.id(), prefer, budget, end: BusyEnd::OneRound };
                        BusyLoop::begin(&self.napi, &plan, &cx)
                    }
                };
                let mut polled = None;
                if let BusyRound::Poll { budget } = busy.round(&self.napi, &cx) {
                    let work = self.device.take(budget);
                    busy.polled(&self.napi, work, &cx);
                    polled = Some(work);
                }
                self.pollers[who] = RealPoller::Looping(busy);
                return format!("polled {polled:?}");
            }
            Op::StopBegin(who) => {
                let RealPoller::Looping(busy) = std::mem::replace(&mut self.pollers[who], RealPoller::Away) else {
                    panic!("the model has it looping")
                };
                if let Some(stop) = busy.stop(&self.napi, &self.cx(who as u16)) {
                    self.pollers[who] = RealPoller::Stopping(stop, 0);
                }
            }
            Op::StopPoll(who) => {
                let RealPoller::Stopping(stop, work) = &mut self.pollers[who] else {
                    panic!("the model has it stopping")
                };
                *work = self.device.take(stop.budget());
            }
            Op::StopDone { who, gro } => {
                let RealPoller::Stopping(stop, work) = std::mem::replace(&mut self.pollers[who], RealPoller::Away)
                else {
                    panic!("the model has it stopping")
                };
                let cpu = who as u16;
                match stop.polled(&self.napi, work, gro && work > 0, &self.cx(cpu), |_| ()) {
                    BusyStopped::Completed(completion) => return self.completion(completion, cpu),
                    BusyStopped::ToSoftirq(owner) => {
                        self.route(owner, cpu);
                        return "to softirq".to_owned();
                    }
                }
            }
            Op::Suspend(cpu) => {
                self.napi.suspend(&self.cx(cpu));
            }
            Op::Resume(cpu) => {
                if let Some(owner) = self.napi.resume(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::Set { defer, gro_flush_ns, suspend_ns } => self.napi.set(&NapiSettings {
                defer_hard_irqs: defer,
                gro_flush_timeout_ns: gro_flush_ns,
                irq_suspend_timeout_ns: suspend_ns,
                ..self.napi.settings()
            }),
            Op::DisableBegin => self.napi.disable_begin(),
            Op::DisableClaim => {
                if self.napi.disable_claim() == DisableClaim::Claimed {
                    self.napi.disable_end(&self.cx(0));
                    self.device.masked = true;
                    self.device.latched = false;
                }
            }
            Op::Enable => {
                self.napi.enable(NAPI_ID_MIN, None);
                self.device.pending |= self.device.ring > 0;
                self.device.unmask();
            }
            Op::ThreadedOn(busy) => {
                let threaded = if busy { Threaded::BusyPoll } else { Threaded::On };
                self.napi.set(&NapiSettings { threaded, ..self.napi.settings() });
                self.napi.threaded_on(busy);
            }
            Op::ThreadedOff => {
                let off = self.napi.threaded_off() == ThreadedOff::Off;
                if off {
                    self.napi.set(&NapiSettings { threaded: Threaded::Off, ..self.napi.settings() });
                }
                return format!("off {off}");
            }
            Op::ThreadPoll => {
                let mut polled = None;
                if let ThreadStep::Poll { budget } = self.thread.next(&self.napi, &self.cx(THREAD_CPU)) {
                    self.thread_work = self.device.take(budget);
                    polled = Some(self.thread_work);
                }
                return format!("polled {polled:?}");
            }
            Op::ThreadDone { gro } => {
                let (work, cx) = (self.thread_work, self.cx(THREAD_CPU));
                let owed = self.thread.polled(&self.napi, work, gro && work > 0, &cx, |_| ());
                return owed.map_or("none".to_owned(), |completion| self.completion(completion, THREAD_CPU));
            }
        }
        String::new()
    }
}

impl Drop for Real {
    /// A failed comparison throws the machine away with owners in it.
    fn drop(&mut self) {
        self.lists.iter_mut().flat_map(std::mem::take).for_each(Owner::abandon);
        if let Some((owner, ..)) = self.rx.take() {
            owner.abandon();
        }
        std::mem::take(&mut self.thread).abandon();
        for poller in &mut self.pollers {
            std::mem::forget(std::mem::replace(poller, RealPoller::Away));
        }
    }
}

/// Takes one step on both sides and compares them.
fn step(model: &mut Model, real: &mut Real, op: &Op) -> Result<(), TestCaseError> {
    let before = model.clone();
    let (expected, told) = (model.apply(op), real.apply(op));
    let rounded = real.napi.timer().pending();
    prop_assert_eq!(&told, &expected, "{:?} in {:?}", op, before);
    prop_assert_eq!(
        (real.napi.snapshot().bits(), rounded, &real.device),
        (model.bits(), model.timer, &model.device),
        "{:?} in {:?}: it is {:?}",
        op,
        before,
        real.napi.snapshot()
    );
    if let Err(broken) = model.invariants() {
        return Err(TestCaseError::fail(format!("{broken}: after {op:?} in {before:?}")));
    }
    Ok(())
}

fn run(edge: bool, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut model, mut real) = (Model::new(edge), Real::new(edge));
    let mut arrived = 0;
    for op in ops.iter() {
        if model.applies(op) {
            if let Op::Packets(packets) = op {
                arrived += packets;
            }
            step(&mut model, &mut real, op)?;
        }
    }
    for _ in 0..DRAIN_MAX {
        let Some(op) = model.drain() else {
            let idle = !model.sched && !model.device.masked && model.releases.is_empty();
            prop_assert!(idle, "the end is not idle: {:?}", model);
            prop_assert_eq!(real.device.ring, 0, "of {} packets some were lost", arrived);
            prop_assert_eq!(real.napi.stats().work, u64::from(arrived));
            return Ok(());
        };
        step(&mut model, &mut real, &op)?;
    }
    Err(TestCaseError::fail(format!("no end: {model:?}")))
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = || 0..2u16;
    let who = || 0..2usize;
    let budget = prop_oneof![Just(1), Just(8), Just(64), Just(100)];
    let timeout = || prop_oneof![Just(0), Just(16), Just(20_000), Just(5_000_000)];
    prop_oneof![
        6 => prop_oneof![Just(1), Just(5), Just(64), Just(200)].prop_map(Op::Packets),
        6 => Just(Op::Irq),
        2 => cpu().prop_map(Op::Kick),
        8 => cpu().prop_map(Op::RxPoll),
        8 => any::<bool>().prop_map(|gro| Op::RxDone { gro }),
        8 => (0..3usize).prop_map(Op::Settle),
        4 => cpu().prop_map(Op::Timer),
        3 => prop_oneof![Just(7), Just(20_016), Just(5_000_016)].prop_map(Op::Advance),
        6 => (who(), any::<bool>(), budget).prop_map(|(who, prefer, budget)| Op::BusyRound { who, prefer, budget }),
        4 => who().prop_map(Op::StopBegin),
        4 => who().prop_map(Op::StopPoll),
        4 => (who(), any::<bool>()).prop_map(|(who, gro)| Op::StopDone { who, gro }),
        3 => cpu().prop_map(Op::Suspend),
        3 => cpu().prop_map(Op::Resume),
        2 => (0..4u32, timeout(), timeout())
            .prop_map(|(defer, gro_flush_ns, suspend_ns)| Op::Set { defer, gro_flush_ns, suspend_ns }),
        1 => Just(Op::DisableBegin),
        2 => Just(Op::DisableClaim),
        2 => Just(Op::Enable),
        1 => any::<bool>().prop_map(Op::ThreadedOn),
        1 => Just(Op::ThreadedOff),
        5 => Just(Op::ThreadPoll),
        5 => any::<bool>().prop_map(|gro| Op::ThreadDone { gro }),
    ]
}

/// The same sequences in every run; more of them with PROPTEST_CASES.
fn runner(sequences_per_case: u32) -> TestRunner {
    let config = Config { failure_persistence: None, ..Config::default() };
    let config = Config { cases: config.cases * sequences_per_case, ..config };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn the_core_agrees_with_the_plain_model_and_loses_nothing() {
    let sequences = (any::<bool>(), prop::collection::vec(op(), 1..160));
    runner(SEQUENCES_PER_CASE)
        .run(&sequences, |(edge, ops)| run(edge, &ops))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn short_sequences_from_every_corner() {
    let settings = (0..3u32, prop_oneof![Just(0), Just(20_000)], prop_oneof![Just(0), Just(5_000_000)]);
    let sequences = (any::<bool>(), settings, prop::collection::vec(op(), 1..25));
    runner(8 * SEQUENCES_PER_CASE)
        .run(&sequences, |(edge, (defer, gro_flush_ns, suspend_ns), mut ops)| {
            ops.insert(0, Op::Set { defer, gro_flush_ns, suspend_ns });
            run(edge, &ops)
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
