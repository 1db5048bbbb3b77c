//! A group of CPUs with queues below it, stepped by hand: time, rings, one-shot lines, and pollers that sleep. After every step
//! the invariants of §15 hold.

#![allow(dead_code)]

pub mod transmit;
pub mod walks;

use lull_core::group::{EnterRefused, GroupConfig, GroupWake, Removal, Visit};
use lull_core::{
    BusyStop, BusyStopped, Completion, Cx, Group, GroupPoller, GroupStep, NAPI_ID_MIN, Napi, NapiSettings, Owner,
    Route, Schedule, state,
};

use transmit::Transmit;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

/// What a packet costs in a poll, and a pass without one.
pub const PACKET_NS: u64 = 200;
pub const PASS_NS: u64 = 200;

pub struct Queue {
    pub napi: Napi,
    pub ring: u32,
    pub masked: bool,
    pub latched: bool,
    /// Whether the device says from outside that frames wait.
    pub hints: bool,
    pub slot: Option<u16>,
    /// Who polled it: the time, the poller's CPU (or none: its last poll), packets.
    pub polls: Vec<(u64, Option<u16>, u32)>,
    /// When its path was walked without a packet.
    pub walks: Vec<u64>,
    /// Handed to softirq when it left.
    pub softirq: Vec<Owner>,
    /// What a visit takes besides its packets, and what a packet takes.
    pub visit_ns: u64,
    pub packet_ns: u64,
    /// It is a transmit queue: `ring` is what its room interrupt is for.
    pub tx: Option<Transmit>,
}

pub struct Poller {
    pub cpu: u16,
    machine: GroupPoller,
    asleep: bool,
    /// A wake-up that came before the sleep.
    kept: bool,
    pub until_ns: Option<u64>,
    pub detached: bool,
    /// A visit that is under way, for pollers that are stopped in the middle of one.
    visit: Option<Visit>,
    pub wakes: Vec<u64>,
    pub parks: Vec<u64>,
    pub softirqs: u32,
    pub yields: u32,
    /// When a rest ends at the latest.
    rests_until_ns: Option<u64>,
}

/// What a step of a poller did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    Polled { queue: usize, work: u32 },
    Sent { queue: usize, frames: u32 },
    Rang { queue: usize, frames: u32 },
    Spun,
    Other,
    Sleeps,
}

pub struct World {
    pub group: Group,
    pub queues: Vec<Queue>,
    pub pollers: Vec<Poller>,
    pub now_ns: u64,
    /// A poller is stopped in the middle of the visit that its next step begins; the step after that ends it.
    pub halts: bool,
}

impl World {
    pub fn new(config: GroupConfig, queues: usize, settings: NapiSettings) -> World {
        let queue = |index: usize| {
            let napi = Napi::new(index as u32);
            napi.enable(NAPI_ID_MIN + index as u32, Some(&settings));
            let (polls, walks, softirq) = (Vec::new(), Vec::new(), Vec::new());
            let (ring, masked, latched, hints, slot, tx) = (0, false, false, true, None, None);
            let (visit_ns, packet_ns) = (0, PACKET_NS);
            Queue { napi, ring, masked, latched, hints, slot, polls, walks, softirq, visit_ns, packet_ns, tx }
        };
        let group = Group::new(0, config).unwrap();
        World { group, queues: (0..queues).map(queue).collect(), pollers: Vec::new(), now_ns: 16 * MS, halts: false }
    }

    /// With these CPUs, and all queues as members of this weight.
    pub fn with(config: GroupConfig, queues: usize, cpus: u16) -> World {
        let mut world = World::new(config, queues, NapiSettings::default());
        (0..cpus).for_each(|cpu| world.attach(cpu));
        (0..queues).for_each(|queue| world.enter(queue).unwrap());
        world
    }

    pub fn cx(&self, cpu: u16) -> Cx<'static> {
        Cx::new(cpu, self.now_ns)
    }

    // ---- the operator ----

    pub fn attach(&mut self, cpu: u16) {
        let machine = self.group.attach(cpu, &self.cx(cpu)).unwrap();
        let (wakes, parks) = (Vec::new(), Vec::new());
        self.pollers.push(Poller {
            cpu,
            machine,
            asleep: false,
            kept: false,
            until_ns: None,
            detached: false,
            visit: None,
            wakes,
            parks,
            softirqs: 0,
            yields: 0,
            rests_until_ns: None,
        });
    }

    pub fn detach(&mut self, cpu: u16) {
        let wake = self.group.detach(cpu).unwrap();
        self.wake(&wake);
        let index = self.pollers.iter().position(|poller| poller.cpu == cpu && !poller.detached).unwrap();
        while !self.pollers[index].detached {
            let _ = self.step(index);
        }
    }

    pub fn enter(&mut self, queue: usize) -> Result<(), EnterRefused> {
        self.enter_with(queue, 64)
    }

    pub fn enter_with(&mut self, queue: usize, weight: u32) -> Result<(), EnterRefused> {
        let entered = match &self.queues[queue].tx {
            None => self.group.enter(&self.queues[queue].napi, weight, &self.cx(0))?,
            Some(_) => self.enter_transmit(queue, weight)?,
        };
        self.queues[queue].masked = true;
        self.queues[queue].slot = Some(entered.slot);
        if let Some(wake) = entered.wake {
            self.wake(&wake);
        }
        self.check();
        Ok(())
    }

    /// False if a poller serves it just now, and lets it go afterwards.
    pub fn remove(&mut self, queue: usize) -> bool {
        let Some(slot) = self.queues[queue].slot else { return true };
        match self.group.remove(slot, &self.queues[queue].napi, &self.cx(0)) {
            Removal::Mine(stop) => self.leave(queue, stop),
            Removal::Holders => return false,
            Removal::Absent => {}
        }
        self.check();
        true
    }

    pub(super) fn leave(&mut self, queue: usize, stop: BusyStop) {
        let cx = self.cx(0);
        if self.queues[queue].tx.is_some() {
            self.leave_transmit(queue);
        }
        let it = &mut self.queues[queue];
        it.slot = None;
        it.masked = true;
        let work = if it.tx.is_some() { 0 } else { it.ring.min(stop.budget()) };
        it.ring -= work;
        it.polls.push((self.now_ns, None, work));
        let owner = match stop.polled(&it.napi, work, false, &cx, |_| ()) {
            BusyStopped::Completed(Completion::Released(release)) => {
                if release.settle(&it.napi, &cx).unmask {
                    self.unmask(queue);
                }
                return;
            }
            BusyStopped::Completed(Completion::Again(owner) | Completion::Kept(owner))
            | BusyStopped::ToSoftirq(owner) => owner,
        };
        match it.napi.route(owner, &cx) {
            Route::Softirq(owner) => it.softirq.push(owner),
            Route::Thread => unreachable!("a member is not threaded"),
        }
    }

    // ---- the device ----

    pub fn packets(&mut self, queue: usize, count: u32) {
        self.queues[queue].ring += count;
        self.raise(queue);
        self.check();
    }

    /// The line is a one-shot: raising it masks it.
    fn raise(&mut self, queue: usize) {
        let it = &mut self.queues[queue];
        if it.masked {
            it.latched = true;
            return;
        }
        it.masked = true;
        self.interrupt(queue);
    }

    /// The interrupt, also one that was in flight when its line was masked.
    pub fn interrupt(&mut self, queue: usize) {
        let cx = self.cx(0);
        match self.queues[queue].napi.schedule(&cx) {
            Schedule::Owned(owner) => match self.queues[queue].napi.route(owner, &cx) {
                Route::Softirq(owner) => self.queues[queue].softirq.push(owner),
                Route::Thread => unreachable!("nobody is threaded"),
            },
            Schedule::Group => {
                let slot = self.queues[queue].slot.expect("the group has it");
                if let Some(wake) = self.group.raised(slot, &cx) {
                    self.wake(&wake);
                }
            }
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    fn unmask(&mut self, queue: usize) {
        let it = &mut self.queues[queue];
        // A room interrupt is for whoever waits for room.
        if it.tx.as_ref().is_some_and(|tx| !tx.waits_for_room()) {
            return;
        }
        it.masked = false;
        it.latched = false;
        if it.ring != 0 || it.tx.as_ref().is_some_and(|tx| tx.room() != 0) {
            self.raise(queue);
        }
    }

    // ---- pollers ----

    pub fn wake(&mut self, wake: &GroupWake) {
        let now_ns = self.now_ns;
        let poller = self.pollers.iter_mut().find(|poller| poller.machine.slot() == wake.slot && !poller.detached);
        let poller = poller.expect("nobody wakes a poller that is gone");
        assert_eq!(poller.cpu, wake.cpu);
        poller.wakes.push(now_ns);
        poller.rests_until_ns = None;
        if poller.asleep { poller.asleep = false } else { poller.kept = true }
    }

    pub(super) fn ask(&mut self, index: usize, due: bool, need_resched: bool) -> GroupStep {
        let cx = Cx::new(self.pollers[index].cpu, self.now_ns);
        let queues = &self.queues;
        let hint = |_, napi: u32| {
            let queue = &queues[napi as usize];
            queue.hints.then(|| queue.tx.as_ref().map_or(queue.ring != 0, Transmit::hint))
        };
        self.pollers[index].machine.next(&self.group, hint, due, need_resched, &cx)
    }

    /// One step of a poller, a poll whole.
    pub fn step(&mut self, index: usize) -> Did {
        self.step_with(index, false, false)
    }

    pub fn step_with(&mut self, index: usize, due: bool, need_resched: bool) -> Did {
        if let Some(until_ns) = self.pollers[index].until_ns {
            if self.now_ns < until_ns {
                return Did::Sleeps;
            }
            self.pollers[index].until_ns = None;
        }
        if self.pollers[index].rests_until_ns.is_some_and(|until_ns| until_ns <= self.now_ns) {
            self.pollers[index].rests_until_ns = None;
            self.pollers[index].asleep = false;
        }
        if self.pollers[index].asleep || self.pollers[index].detached {
            return Did::Sleeps;
        }
        if self.pollers[index].visit.is_some() {
            let did = self.finish(index);
            self.check();
            return did;
        }
        let did = match self.ask(index, due, need_resched) {
            GroupStep::Poll(visit) | GroupStep::Transmit(visit) => {
                self.pollers[index].visit = Some(visit);
                if self.halts { Did::Other } else { self.finish(index) }
            }
            GroupStep::Doorbell(ring) => self.doorbell(index, &ring),
            GroupStep::DryRun(walk) => self.walk(index, &walk),
            GroupStep::Spin => {
                self.now_ns += PASS_NS;
                Did::Spun
            }
            GroupStep::Softirqs => {
                self.pollers[index].softirqs += 1;
                Did::Other
            }
            GroupStep::Yield => {
                self.pollers[index].yields += 1;
                Did::Other
            }
            GroupStep::Wake(wake) => {
                self.wake(&wake);
                Did::Other
            }
            GroupStep::Park => {
                self.pollers[index].parks.push(self.now_ns);
                self.sleep(index)
            }
            GroupStep::Rest { until_ns } => {
                self.pollers[index].rests_until_ns = until_ns;
                let mut members = Vec::new();
                self.group.unmask_for_rest(|member| members.push(member.napi as usize));
                members.into_iter().for_each(|queue| self.unmask(queue));
                self.sleep(index)
            }
            GroupStep::Sleep { until_ns } => {
                self.pollers[index].until_ns = Some(until_ns);
                Did::Other
            }
            GroupStep::Detached => {
                self.pollers[index].detached = true;
                Did::Other
            }
        };
        self.check();
        did
    }

    fn sleep(&mut self, index: usize) -> Did {
        let poller = &mut self.pollers[index];
        poller.asleep = !std::mem::take(&mut poller.kept);
        Did::Other
    }

    /// The poller begins a visit and is stopped in the middle of it. Returns the queue.
    pub fn begin(&mut self, index: usize) -> usize {
        for _ in 0..1_000 {
            match self.ask(index, false, false) {
                GroupStep::Poll(visit) | GroupStep::Transmit(visit) => {
                    self.pollers[index].visit = Some(visit);
                    return visit.napi as usize;
                }
                GroupStep::Doorbell(ring) => {
                    self.doorbell(index, &ring);
                }
                GroupStep::Spin => self.now_ns += PASS_NS,
                GroupStep::Yield => {}
                other => panic!("no visit but {other:?}"),
            }
        }
        panic!("no visit in a thousand steps");
    }

    /// The visit that was begun ends.
    pub fn finish(&mut self, index: usize) -> Did {
        let visit = self.pollers[index].visit.take().unwrap();
        let (cpu, queue) = (self.pollers[index].cpu, visit.napi as usize);
        if self.queues[queue].tx.is_some() {
            return self.transmit(index, &visit);
        }
        if visit.mask {
            self.queues[queue].masked = true;
        }
        let work = self.queues[queue].ring.min(visit.budget);
        self.queues[queue].ring -= work;
        let it = &self.queues[queue];
        self.now_ns += it.visit_ns + it.packet_ns * u64::from(work.max(1));
        self.queues[queue].polls.push((self.now_ns, Some(cpu), work));
        let cx = Cx::new(cpu, self.now_ns);
        let stop = self.pollers[index].machine.polled(&self.group, &self.queues[queue].napi, work, &cx, |_| ());
        if let Some(stop) = stop {
            self.leave(queue, stop);
        }
        Did::Polled { queue, work }
    }

    /// The visit that was begun found the shard's lock held.
    pub fn find_locked(&mut self, index: usize) {
        let visit = self.pollers[index].visit.take().unwrap();
        let queue = visit.napi as usize;
        let cx = Cx::new(self.pollers[index].cpu, self.now_ns);
        if let Some(stop) = self.pollers[index].machine.locked(&self.group, &self.queues[queue].napi, &cx) {
            self.leave(queue, stop);
        }
        self.check();
    }

    /// All pollers take turns until `over` says so.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut over: impl FnMut(&World) -> bool) {
        for _ in 0..200_000 {
            if over(self) {
                return;
            }
            let mut moved = false;
            for index in 0..self.pollers.len() {
                moved |= self.step(index) != Did::Sleeps;
            }
            if !moved {
                self.now_ns += 10 * US;
            }
        }
        panic!("never: {what}");
    }

    pub fn awake(&self) -> Vec<u16> {
        self.group.pollers().iter().filter(|poller| poller.awake).map(|poller| poller.cpu).collect()
    }

    /// Whether the group rests, and its last poller sleeps.
    pub fn is_at_rest(&self) -> bool {
        self.group.census().resting && self.pollers.iter().all(|poller| poller.asleep || poller.detached)
    }

    pub fn polls_of(&self, queue: usize) -> Vec<u32> {
        self.queues[queue].polls.iter().map(|(_, _, work)| *work).collect()
    }

    /// Runs softirq of those that were handed to it, to the end.
    pub fn softirq(&mut self, queue: usize) {
        while let Some(owner) = self.queues[queue].softirq.pop() {
            let cx = self.cx(0);
            let it = &mut self.queues[queue];
            let work = it.ring.min(64);
            it.ring -= work;
            match it.napi.softirq_polled(owner, work, false, &cx, |_| ()) {
                lull_core::Polled::Repoll(owner) => it.softirq.push(owner),
                lull_core::Polled::Completed(Completion::Again(owner) | Completion::Kept(owner)) => {
                    it.softirq.push(owner)
                }
                lull_core::Polled::Completed(Completion::Released(release)) => {
                    if release.settle(&it.napi, &cx).unmask {
                        self.unmask(queue);
                    }
                }
            }
        }
    }

    /// I9 to I15 between two steps.
    #[track_caller]
    pub fn check(&self) {
        let census = self.group.census();
        census.check().unwrap();
        let members = self.queues.iter().filter(|queue| queue.slot.is_some()).count();
        assert_eq!(census.members as usize, members);
        for queue in &self.queues {
            let word = queue.napi.snapshot();
            let polled = state::SCHED | state::IN_BUSY_POLL | state::GROUPED;
            assert_eq!(word.has(polled), queue.slot.is_some(), "I10: {word:?}");
            assert!(word.has(polled) || !word.has(state::GROUPED), "GPOLL: {word:?}");
        }
        self.check_transmit();
        // I11: somebody who is not asleep watches, or all lines are unmasked, or a budget sleeps.
        let runs = |poller: &Poller| !poller.asleep && !poller.detached;
        if members != 0 && !self.pollers.iter().any(runs) {
            assert!(census.resting, "I11: everybody sleeps and nobody rests");
            let waits = |queue: &Queue| queue.tx.as_ref().is_none_or(Transmit::waits_for_room);
            let unmasked = |queue: &Queue| queue.slot.is_none() || !queue.masked || !waits(queue);
            assert!(self.queues.iter().all(unmasked), "I11: the group rests with a line masked");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for queue in &mut self.queues {
            queue.softirq.drain(..).for_each(Owner::abandon);
        }
    }
}
