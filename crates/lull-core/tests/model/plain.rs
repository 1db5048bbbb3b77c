//! The plain model: sequential code over plain fields.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
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
pub(super) struct Model {
    pub(super) sched: bool,
    missed: bool,
    disable: bool,
    npsvc: bool,
    in_busy_poll: bool,
    prefer_busy_poll: bool,
    threaded: bool,
    sched_threaded: bool,
    threaded_busy_poll: bool,
    credits: u32,
    pub(super) timer: Option<(u64, u16)>,
    settings: NapiSettings,
    now_ns: u64,
    pub(super) device: Device,
    /// Entries on the poll list of each CPU.
    lists: [u32; 2],
    /// The poll that softirq is in: CPU and packets.
    rx: Option<(u16, u32)>,
    thread_owns: bool,
    thread_in_round: bool,
    thread_work: Option<u32>,
    pollers: [Poller; 2],
    pub(super) releases: Vec<(Owed, u16)>,
}

impl Model {
    pub(super) fn new(edge: bool) -> Model {
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

    pub(super) fn bits(&self) -> u32 {
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
    pub(super) fn applies(&self, op: &Op) -> bool {
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
    pub(super) fn apply(&mut self, op: &Op) -> String {
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
    pub(super) fn invariants(&self) -> Result<(), &'static str> {
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
    pub(super) fn drain(&self) -> Option<Op> {
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
