//! Models of the races between those who may own an instance, run through every interleaving by loom.
//!
//! Each model lets two or three contexts run against each other, and then asks: did two of them ever poll at once? Was
//! every event polled, or is a timer pending that will have it polled? Is the interrupt masked without a timer?
//!
//! What only an owner touches is here as an executor has it: without a lock, ordered by the state word alone. Each time
//! somebody owns the instance, a counter is loaded, increased and stored, all relaxed; a second one counts by itself. They
//! differ in the end if two owners in a row were not ordered. The ring likewise: a packet that was written before an event
//! has to be seen by the poll that the event asks for. Only the interrupt's mask is behind a lock, as a device's register.
//!
//! Run them with `RUSTFLAGS="--cfg loom" cargo test --release -p lull-core --lib loom`. Models of three contexts are
//! bounded to a number of preemptions, said beside each; those of two are not bounded. Settings and counters are plain
//! atomics in every build, so loom does not branch on them: nothing synchronises on either.

mod every_napi;
mod groups;
mod owners;
mod threads;
mod tx;

use std::sync::atomic::{AtomicBool as Flag, Ordering::Relaxed};

use loom::sync::atomic::{AtomicU32, Ordering as Loom};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::*;

/// When all contexts run: a timer armed now is not due.
const NOW: u64 = 16_000;
/// When the timer interrupt runs: one of `gro_flush_timeout` is due.
const LATER: u64 = 1_600_000;
const GRO_FLUSH: u64 = 16_000;
const SUSPEND: u64 = 16_000_000;
/// A bound on the timers that it takes to have everything polled.
const DRAIN_MAX: u32 = 16;

/// The queue as the device has it: message-signalled, with a pending bit for what happens while masked. It is the
/// harsher kind for the core, as nothing looks at the ring again when the interrupt is unmasked.
struct Line {
    masked: bool,
    pending: bool,
}

struct World {
    napi: Napi,
    line: Mutex<Line>,
    /// Packets that the device has put into the ring, ...
    arrived: AtomicU32,
    /// ... and those that owners took from it. Owner only.
    taken: AtomicU32,
    /// How often somebody owned the instance, as owners see it. Owner only.
    owned: AtomicU32,
    /// The same, counted by itself.
    owned_in_truth: AtomicU32,
    /// Somebody polls. Not loom's: the accesses inside are where others get their turn.
    polling: Flag,
    /// The NAPI thread was started.
    thread_started: AtomicU32,
    thread: Mutex<(bool, bool)>,
    thread_wakes: Condvar,
    /// The group that the instance may be a member of.
    group: Option<groups::Pollers>,
}

fn settings(defer_hard_irqs: u32, gro_flush_timeout_ns: u64) -> NapiSettings {
    NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns: SUSPEND, ..NapiSettings::default() }
}

impl World {
    fn new(with: NapiSettings) -> Arc<World> {
        World::in_group(with, None)
    }

    fn in_group(with: NapiSettings, group: Option<groups::Pollers>) -> Arc<World> {
        let napi = Napi::new(0);
        let started = u32::from(with.threaded != Threaded::Off);
        napi.enable(NAPI_ID_MIN, Some(&with));
        Arc::new(World {
            napi,
            line: Mutex::new(Line { masked: false, pending: false }),
            arrived: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            owned: AtomicU32::new(0),
            owned_in_truth: AtomicU32::new(0),
            thread_started: AtomicU32::new(started),
            polling: Flag::new(false),
            thread: Mutex::new((false, false)),
            thread_wakes: Condvar::new(),
            group,
        })
    }

    fn line<T>(&self, change: impl FnOnce(&mut Line) -> T) -> T {
        change(&mut self.line.lock().expect("no context panics with the line in hand"))
    }

    /// An owner touches what is its own.
    fn own(&self) {
        self.owned.store(self.owned.load(Loom::Relaxed) + 1, Loom::Relaxed);
        self.owned_in_truth.fetch_add(1, Loom::Relaxed);
    }

    /// Packets in the ring, as the caller sees them.
    fn ring(&self) -> u32 {
        self.arrived.load(Loom::Relaxed).saturating_sub(self.taken.load(Loom::Relaxed))
    }

    /// The instance as an earlier interrupt left it: scheduled, masked, `ring` packets waiting.
    fn scheduled(&self, ring: u32) -> Owner {
        self.arrived.fetch_add(ring, Loom::Relaxed);
        self.line(|line| *line = Line { masked: true, pending: false });
        let Schedule::Owned(owner) = self.napi.schedule(&Cx::new(0, NOW)) else { panic!("nobody else is there yet") };
        owner
    }

    /// The instance as a completion left it: deferred, with `ring` packets that nobody was told of.
    fn deferred(&self, ring: u32) {
        let owner = self.scheduled(1);
        self.run(owner, NOW);
        assert!(self.napi.timer().pending().is_some());
        self.arrived.fetch_add(ring, Loom::Relaxed);
        self.line(|line| line.pending = ring > 0);
    }

    /// As [`World::deferred`], with a NAPI thread of this kind that the next schedule wakes.
    fn deferred_threaded(&self, ring: u32, kind: Threaded) {
        self.deferred(ring);
        self.threaded(kind);
    }

    fn threaded(&self, kind: Threaded) {
        self.thread_started.store(1, Loom::Relaxed);
        self.napi.set(&NapiSettings { threaded: kind, ..self.napi.settings() });
        self.napi.threaded_on(kind == Threaded::BusyPoll);
    }

    fn poll(&self, budget: u32) -> u32 {
        assert!(!self.polling.swap(true, Relaxed), "I1: two poll at once");
        self.own();
        let work = self.ring().min(budget);
        self.taken.store(self.taken.load(Loom::Relaxed) + work, Loom::Relaxed);
        self.polling.store(false, Relaxed);
        work
    }

    /// A packet, and its interrupt unless masked.
    fn arrive(&self, now_ns: u64) {
        self.arrived.fetch_add(1, Loom::Relaxed);
        let interrupts = self.line(|line| {
            line.pending |= line.masked;
            !line.masked
        });
        if interrupts {
            self.irq(now_ns);
        }
    }

    fn irq(&self, now_ns: u64) {
        match self.napi.schedule(&Cx::new(0, now_ns)) {
            Schedule::Owned(owner) => {
                self.line(|line| line.masked = true);
                self.run(owner, now_ns);
            }
            Schedule::Group => self.raised(),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }

    /// A packet, and an interrupt whose mask came too late.
    fn arrive_unmasked(&self, now_ns: u64) {
        self.arrived.fetch_add(1, Loom::Relaxed);
        if let Schedule::Owned(owner) = self.napi.schedule(&Cx::new(0, now_ns)) {
            self.run(owner, now_ns);
        }
    }

    fn unmask(&self, now_ns: u64) {
        let interrupts = self.line(|line| {
            line.masked = false;
            std::mem::take(&mut line.pending)
        });
        if interrupts {
            self.irq(now_ns);
        }
    }

    /// Routes an owner, and runs it if it goes to softirq.
    fn run(&self, owner: Owner, now_ns: u64) {
        let cx = Cx::new(0, now_ns);
        self.own();
        let mut routed = self.napi.route(owner, &cx);
        while let Route::Softirq(owner) = routed {
            let work = self.poll(self.napi.weight());
            routed = match self.napi.softirq_polled(owner, work, false, &cx, |_| ()) {
                Polled::Repoll(owner) => Route::Softirq(owner),
                Polled::Completed(Completion::Again(owner)) => self.napi.route(owner, &cx),
                Polled::Completed(Completion::Released(release)) => return self.settle(release, now_ns),
                Polled::Completed(Completion::Kept(_)) => panic!("softirq never runs a busy poller's instance"),
            };
        }
        assert_eq!(self.thread_started.load(Loom::Relaxed), 1, "a thread is woken that was not started");
        self.thread.lock().expect("no context panics with the flag in hand").0 = true;
        self.thread_wakes.notify_one();
    }

    fn settle(&self, release: Release, now_ns: u64) {
        if release.settle(&self.napi, &Cx::new(0, now_ns)).unmask {
            self.unmask(now_ns);
        }
    }

    fn timer(&self, now_ns: u64) {
        if let Some(owner) = self.napi.timer_expired(&Cx::new(0, now_ns)) {
            self.run(owner, now_ns);
        }
    }

    /// A busy call of one round.
    fn busy(&self, budget: u32, prefer: bool) {
        self.busy_until(BusyEnd::OneRound, budget, prefer);
    }

    /// A busy call of the last poll alone.
    fn busy_last(&self, budget: u32) {
        self.busy_until(BusyEnd::LastPoll, budget, true);
    }

    fn busy_until(&self, end: BusyEnd, budget: u32, prefer: bool) {
        let cx = Cx::new(0, NOW);
        let plan = BusyPlan { napi_id: NAPI_ID_MIN, prefer, budget, end, catch_up: false };
        let mut busy = BusyLoop::begin(&self.napi, &plan, &cx);
        match busy.round(&self.napi, &cx) {
            BusyRound::Poll { budget } => {
                let work = self.poll(budget);
                busy.polled(&self.napi, work, &cx);
            }
            BusyRound::Last => self.line(|line| line.masked = true),
            BusyRound::Lost => {}
        }
        let Some(stop) = busy.stop(&self.napi, &cx) else { return };
        let work = self.poll(stop.budget());
        match stop.polled(&self.napi, work, false, &cx, |_| ()) {
            BusyStopped::Completed(Completion::Released(release)) => self.settle(release, NOW),
            BusyStopped::Completed(Completion::Again(owner)) | BusyStopped::ToSoftirq(owner) => self.run(owner, NOW),
            BusyStopped::Completed(Completion::Kept(_)) => panic!("the stop is no busy poller any more"),
        }
    }

    fn resume(&self) {
        if let Some(owner) = self.napi.resume(&Cx::new(0, NOW)) {
            self.run(owner, NOW);
        }
    }

    fn disable(&self) {
        self.napi.disable_begin();
        while self.napi.disable_claim() == DisableClaim::Owned {
            thread::yield_now();
        }
        self.own();
        self.line(|line| line.masked = true);
        self.napi.disable_end(&Cx::new(0, NOW));
    }

    fn enable(&self) {
        self.own();
        let waiting = self.ring() > 0;
        self.napi.enable(NAPI_ID_MIN, None);
        self.line(|line| line.pending |= waiting); // a device that is set up looks at its ring
        self.unmask(NOW);
    }

    /// The NAPI thread, until it is told to stop.
    fn thread(&self) {
        let mut napi_thread = NapiThread::new();
        let cx = Cx::new(0, NOW);
        loop {
            while let ThreadStep::Poll { budget } = napi_thread.next(&self.napi, &cx) {
                let work = self.poll(budget);
                match napi_thread.polled(&self.napi, work, false, &cx, |_| ()) {
                    Some(Completion::Released(release)) => self.settle(release, NOW),
                    Some(Completion::Again(owner)) => self.run(owner, NOW),
                    Some(Completion::Kept(_)) => panic!("kept by the thread itself"),
                    // While it busy polls others get their turn, and may turn that off.
                    None => thread::yield_now(),
                }
            }
            let mut wanted = self.thread.lock().expect("no context panics with the flag in hand");
            while *wanted == (false, false) {
                wanted = self.thread_wakes.wait(wanted).expect("no context panics with the flag in hand");
            }
            if !wanted.0 {
                return;
            }
            wanted.0 = false;
        }
    }

    /// Turns threading off and stops the thread, as an executor does: when nothing is left for it.
    fn thread_off(&self) {
        while self.napi.threaded_off() == ThreadedOff::Owned || self.napi.thread_has_round() {
            thread::yield_now();
        }
        self.thread.lock().expect("no context panics with the flag in hand").1 = true;
        self.thread_wakes.notify_one();
    }

    /// All contexts have ended. Timers alone have to bring the queue back to its interrupt, with nothing left in it.
    fn assert_live(&self) {
        let (seen, truth) = (self.owned.load(Loom::Relaxed), self.owned_in_truth.load(Loom::Relaxed));
        assert_eq!(seen, truth, "I1: two owners in a row that are not ordered");
        for _ in 0..DRAIN_MAX {
            let state = self.napi.snapshot();
            assert!(!state.any(state::SCHED | state::DISABLE), "owned by nobody: {state:?}");
            match self.napi.timer().pending() {
                Some((deadline_ns, _)) => self.timer(deadline_ns),
                None => {
                    let (ring, masked) = (self.ring(), self.line(|line| line.masked));
                    assert!(!masked, "I2: masked and free without a timer, {ring} packets wait");
                    assert_eq!(ring, 0, "an event was lost");
                    return;
                }
            }
        }
        panic!("the timers never end");
    }
}

/// Bounds what loom explores to so many preemptions, or to fewer by LULL_LOOM_PREEMPTIONS, which is for a quick look.
fn explorer(preemptions: Option<usize>) -> loom::model::Builder {
    let most = std::env::var("LULL_LOOM_PREEMPTIONS").ok().map(|most| most.parse().expect("a number of preemptions"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into_iter().chain(most).min();
    builder
}

/// Explores the races of `contexts`, which run in the world that `begin` made.
fn explore<const N: usize>(
    preemptions: Option<usize>,
    with: NapiSettings,
    begin: impl Fn(&World) -> Option<Owner> + Sync + Send + 'static,
    contexts: [fn(&World, Option<Owner>); N],
) {
    explorer(preemptions).check(move || {
        let world = World::new(with);
        let mut owner = begin(&world);
        let running: Vec<_> = contexts
            .iter()
            .map(|&context| {
                let (world, owner) = (world.clone(), owner.take());
                thread::spawn(move || context(&world, owner))
            })
            .collect();
        for context in running {
            context.join().expect("its panic ends the model");
        }
        world.assert_live();
    });
}

fn softirq(world: &World, owner: Option<Owner>) {
    world.run(owner.expect("the first context is given the owner"), NOW);
}
