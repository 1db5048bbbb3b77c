//! One NAPI instance: schedule, complete, defer, suspend, resume, disable, enable.
//!
//! Who owns the instance holds an [`Owner`]; polling takes it by reference, completing consumes it and returns what is
//! owed. The section numbers are those of the semantics (ARCHITECTURE.md lists them beside the kernel functions).

// Settings are read and written relaxed by anybody; nothing synchronises on them.
use std::sync::atomic::{AtomicU8, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};

use crate::busy::LastPoll;
use crate::event::{Event, EventKind, EventSink};
use crate::settings::{NapiSettings, Threaded, WEIGHT_DEFAULT};
use crate::state::{self, Prep, Snapshot, State};
use crate::stats::{Counters, Stats};
use crate::sync::{AtomicU32, Ordering};
use crate::timer::Timer;

/// The moment and place of a call into the core, and whoever listens.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Now, in nanoseconds of the executor's monotonic clock.
    pub now_ns: u64,
    /// The CPU that the caller runs on (the executor's index).
    pub cpu: u16,
    /// Where events go.
    pub sink: Option<&'a dyn EventSink>,
}

impl Cx<'_> {
    /// A context without a listener.
    pub fn new(cpu: u16, now_ns: u64) -> Cx<'static> {
        Cx { now_ns, cpu, sink: None }
    }

    /// Tells the listener, if there is one.
    #[inline]
    pub fn emit(&self, napi: u32, kind: EventKind) {
        if let Some(sink) = self.sink {
            sink.event(Event { at_ns: self.now_ns, cpu: self.cpu, napi, kind });
        }
    }
}

/// The right to poll an instance. At most one exists per instance (I1); it cannot be copied, only handed on, completed
/// or given to the NAPI thread. Losing one is losing the queue, so dropping it is a bug that debug builds report.
#[must_use = "an owner that is dropped leaves its queue unpolled for ever"]
#[derive(Debug)]
pub struct Owner {
    napi: u32,
}

impl Owner {
    fn new(napi: u32) -> Owner {
        Owner { napi }
    }

    /// The index of the instance that this owns.
    #[inline]
    pub fn napi(&self) -> u32 {
        self.napi
    }

    /// Gives the right up for good, at the teardown of an executor.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    #[inline]
    fn consume(self) {
        std::mem::forget(self);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "ownership of NAPI {} was dropped", self.napi);
    }
}

/// Outcome of scheduling.
#[must_use]
#[derive(Debug)]
pub enum Schedule {
    /// The caller owns the instance: it masks the interrupt (if it is the interrupt handler) and routes it.
    Owned(Owner),
    /// Somebody owns it and will look again.
    Missed,
    /// A disable is pending: refused.
    Disabled,
}

/// Where a scheduled instance goes (`____napi_schedule`, §3).
#[must_use]
#[derive(Debug)]
pub enum Route {
    /// Onto the local CPU's poll list.
    Softirq(Owner),
    /// To its thread, which the caller wakes. The ownership travels in the state word.
    Thread,
}

/// Which packets that GRO holds are to be passed up before the instance is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroFlush {
    /// Those older than a jiffy: a timer will take care of the others.
    Old,
    /// All.
    All,
}

/// What the context that completed a poll owes.
#[must_use]
#[derive(Debug)]
pub enum Completion {
    /// A busy poller owns the instance: nothing happened.
    Kept(Owner),
    /// An event was missed: the caller still owns the instance and routes it again.
    Again(Owner),
    /// The instance was released.
    Released(Release),
}

/// A released instance whose timer and interrupt are still to be seen to. Between the release and
/// [`Release::settle`] the invariant I2 does not hold: call it next.
#[must_use = "until settled, neither a timer nor the interrupt will wake this queue"]
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    timeout_ns: u64,
    rearm: bool,
}

/// What [`Release::settle`] leaves to do.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The timer was started and falls due then; the executor sees to it.
    pub timer_ns: Option<u64>,
    /// The interrupt is to be unmasked.
    pub unmask: bool,
}

impl Release {
    /// Starts the timer, and says whether to unmask (the order of `napi_complete_done` and its driver).
    #[inline]
    pub fn settle(self, napi: &Napi, cx: &Cx<'_>) -> Settled {
        let timer_ns = (self.timeout_ns != 0).then(|| napi.start_timer(self.timeout_ns, cx));
        if self.rearm {
            cx.emit(napi.index, EventKind::Unmask);
        }
        Settled { timer_ns, unmask: self.rearm }
    }
}

/// Outcome of one poll by softirq or by the NAPI thread.
#[must_use]
#[derive(Debug)]
pub enum Polled {
    /// More work: poll again, after the others (softirq) or at once (thread).
    Repoll(Owner),
    /// The instance was completed.
    Completed(Completion),
}

#[derive(Debug)]
struct LiveSettings {
    defer_hard_irqs: PlainU32,
    gro_flush_timeout_ns: PlainU64,
    irq_suspend_timeout_ns: PlainU64,
    threaded: AtomicU8,
}

/// A NAPI instance. See the [module](self).
#[derive(Debug)]
pub struct Napi {
    state: State,
    timer: Timer,
    /// Deferral rounds left (`defer_hard_irqs_count`). Owner only.
    credits: AtomicU32,
    settings: LiveSettings,
    id: PlainU32,
    index: u32,
    weight: u32,
    counters: Counters,
}

impl Napi {
    /// A disabled instance that its executor keeps at `index` of its table.
    pub fn new(index: u32) -> Napi {
        Napi {
            state: State::new(),
            timer: Timer::new(),
            credits: AtomicU32::new(0),
            settings: LiveSettings {
                defer_hard_irqs: PlainU32::new(0),
                gro_flush_timeout_ns: PlainU64::new(0),
                irq_suspend_timeout_ns: PlainU64::new(0),
                threaded: AtomicU8::new(0),
            },
            id: PlainU32::new(0),
            index,
            weight: WEIGHT_DEFAULT,
            counters: Counters::default(),
        }
    }

    /// Its place in the executor's table.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its id; 0 while disabled.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// Packets it may take per turn.
    #[inline]
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// The state word now.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        self.state.load()
    }

    /// The timer.
    #[inline]
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    /// The settings in force.
    pub fn settings(&self) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.settings.defer_hard_irqs.load(Relaxed),
            gro_flush_timeout_ns: self.settings.gro_flush_timeout_ns.load(Relaxed),
            irq_suspend_timeout_ns: self.settings.irq_suspend_timeout_ns.load(Relaxed),
            threaded: match self.settings.threaded.load(Relaxed) {
                0 => Threaded::Off,
                1 => Threaded::On,
                _ => Threaded::BusyPoll,
            },
        }
    }

    /// Puts settings in force, from the next decision on. They are checked by [`NapiSettings::check`] and kept by
    /// [`crate::DeviceConfig`]; the thread of a threaded instance is the executor's to start before and to stop after.
    pub fn set(&self, settings: &NapiSettings) {
        self.settings.defer_hard_irqs.store(settings.defer_hard_irqs, Relaxed);
        self.settings.gro_flush_timeout_ns.store(settings.gro_flush_timeout_ns, Relaxed);
        self.settings.irq_suspend_timeout_ns.store(settings.irq_suspend_timeout_ns, Relaxed);
        let threaded = match settings.threaded {
            Threaded::Off => 0,
            Threaded::On => 1,
            Threaded::BusyPoll => 2,
        };
        self.settings.threaded.store(threaded, Relaxed);
    }

    // ---- §3 scheduling ----

    /// `napi_schedule_prep`: tries to become the owner.
    #[inline]
    pub fn schedule(&self, cx: &Cx<'_>) -> Schedule {
        match self.state.schedule_prep() {
            Prep::Taken => {
                self.counters.schedules.bump(1);
                cx.emit(self.index, EventKind::Schedule { missed: false });
                Schedule::Owned(Owner::new(self.index))
            }
            Prep::Missed => {
                self.counters.missed.add();
                cx.emit(self.index, EventKind::Schedule { missed: true });
                Schedule::Missed
            }
            Prep::Disabled => {
                cx.emit(self.index, EventKind::Refused);
                Schedule::Disabled
            }
        }
    }

    /// `____napi_schedule`: to the thread of a threaded instance, else to softirq.
    #[inline]
    pub fn route(&self, owner: Owner, cx: &Cx<'_>) -> Route {
        self.assert_owner(&owner);
        if self.state.give_to_thread() {
            owner.consume();
            cx.emit(self.index, EventKind::ThreadWake);
            return Route::Thread;
        }
        Route::Softirq(owner)
    }

    // ---- polling ----

    /// Notes a poll of the device that the owner made outside the softirq and thread loops.
    #[inline]
    pub(crate) fn note_poll(&self, work: u32, cx: &Cx<'_>) {
        self.counters.work.bump(u64::from(work));
        if work == 0 {
            self.counters.empty_polls.bump(1);
        }
        cx.emit(self.index, EventKind::PollEnd { work });
    }

    /// Announces a poll to whoever listens; the executor then polls the device.
    #[inline]
    pub fn poll_begin(&self, owner: &Owner, budget: u32, cx: &Cx<'_>) {
        self.assert_owner(owner);
        cx.emit(self.index, EventKind::PollBegin { budget });
    }

    /// `__napi_poll` after the driver's poll of `work` packets with a budget of [`Napi::weight`] (§5). `gro_held`
    /// says whether GRO holds packets; `flush` passes them up, before the instance is released.
    #[inline]
    pub fn softirq_polled(
        &self,
        owner: Owner,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Polled {
        self.counters.softirq_polls.bump(1);
        self.polled(owner, work, gro_held, cx, flush)
    }

    #[inline]
    pub(crate) fn thread_polled(
        &self,
        owner: Owner,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Polled {
        self.counters.thread_polls.bump(1);
        self.polled(owner, work, gro_held, cx, flush)
    }

    #[inline]
    fn polled(&self, owner: Owner, work: u32, gro_held: bool, cx: &Cx<'_>, flush: impl FnOnce(GroFlush)) -> Polled {
        assert!(work <= self.weight, "the device took {work} packets with a budget of {}", self.weight);
        self.note_poll(work, cx);
        if work < self.weight {
            return Polled::Completed(self.complete(owner, work, gro_held, cx, flush));
        }
        let state = self.state.load();
        if state.has(state::DISABLE) {
            // §5 step 1 is the core's completion, not the driver's: nobody unmasks the interrupt of a dying instance.
            cx.emit(self.index, EventKind::YieldToDisable);
            return Polled::Completed(match self.complete(owner, work, gro_held, cx, flush) {
                Completion::Released(Release { timeout_ns, .. }) => {
                    Completion::Released(Release { timeout_ns, rearm: false })
                }
                other => other,
            });
        }
        if state.has(state::PREFER_BUSY_POLL) {
            return Polled::Completed(self.yield_to_preferring(owner, work, gro_held, cx, flush));
        }
        flush(GroFlush::Old);
        cx.emit(self.index, EventKind::Repoll);
        Polled::Repoll(owner)
    }

    /// §5 step 2: a preferring poller waits. With a timeout this parks the instance for it; without one the instance
    /// has to be scheduled again, because neither timer nor interrupt would.
    #[cold]
    fn yield_to_preferring(
        &self,
        owner: Owner,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Completion {
        cx.emit(self.index, EventKind::Yield);
        match self.complete(owner, work, gro_held, cx, flush) {
            Completion::Released(Release { timeout_ns, rearm: true }) => {
                if timeout_ns != 0 {
                    self.start_timer(timeout_ns, cx);
                }
                match self.schedule(cx) {
                    Schedule::Owned(owner) => Completion::Again(owner),
                    // Whoever took it (or disables it) meanwhile sees to it; the interrupt stays masked for them.
                    Schedule::Missed | Schedule::Disabled => {
                        Completion::Released(Release { timeout_ns: 0, rearm: false })
                    }
                }
            }
            other => other,
        }
    }

    // ---- §4 completion ----

    /// `napi_complete_done`: after a poll that took fewer packets than its budget.
    #[inline]
    pub fn complete(
        &self,
        owner: Owner,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Completion {
        self.assert_owner(&owner);
        let seen = self.state.load();
        if seen.any(state::NPSVC | state::IN_BUSY_POLL) {
            cx.emit(self.index, EventKind::Kept);
            return Completion::Kept(owner);
        }
        let mut timeout_ns = 0;
        let mut rearm = true;
        let had = self.credits.load(Ordering::Relaxed);
        let mut credits = had;
        if work != 0 {
            if gro_held {
                timeout_ns = self.settings.gro_flush_timeout_ns.load(Relaxed);
            }
            credits = self.settings.defer_hard_irqs.load(Relaxed);
        }
        if credits > 0 {
            credits -= 1;
            timeout_ns = self.settings.gro_flush_timeout_ns.load(Relaxed);
            if timeout_ns != 0 {
                rearm = false;
            }
        }
        if credits != had {
            self.credits.store(credits, Ordering::Relaxed);
        }
        flush(if timeout_ns != 0 { GroFlush::Old } else { GroFlush::All });
        if !rearm {
            self.counters.deferrals.bump(1);
        }
        if self.state.complete(seen) {
            if !rearm {
                // Counted above, where the counters were still the owner's alone; this completion released nothing.
                self.counters.deferrals.take_back();
            }
            cx.emit(self.index, EventKind::Again);
            return Completion::Again(owner);
        }
        owner.consume();
        cx.emit(self.index, EventKind::Complete { rearm });
        Completion::Released(Release { timeout_ns, rearm })
    }

    #[inline]
    fn start_timer(&self, timeout_ns: u64, cx: &Cx<'_>) -> u64 {
        let deadline_ns = self.timer.start(cx.now_ns.saturating_add(timeout_ns), cx.cpu);
        self.counters.timer_arms.add();
        cx.emit(self.index, EventKind::TimerArm { deadline_ns });
        deadline_ns
    }

    // ---- §6 watchdog ----

    /// `napi_watchdog`: if the timer is due on this CPU it is consumed, and the instance taken if it is free. An owned
    /// instance swallows the timer; its owner will arm another.
    pub fn timer_expired(&self, cx: &Cx<'_>) -> Option<Owner> {
        let deadline_ns = self.timer.claim(cx.now_ns, cx.cpu)?;
        self.counters.timer_fires.add();
        let taken = self.state.watchdog();
        if !taken {
            self.counters.timer_swallowed.add();
        }
        cx.emit(self.index, EventKind::TimerFire { late_ns: cx.now_ns - deadline_ns, swallowed: !taken });
        taken.then(|| Owner::new(self.index))
    }

    // ---- §8 suspension ----

    /// `napi_suspend_irqs`: the application got events and will come back. Only stretches the timer: it neither masks
    /// nor looks at ownership. Returns the deadline, or `None` if `irq_suspend_timeout` is 0.
    #[inline]
    pub fn suspend(&self, cx: &Cx<'_>) -> Option<u64> {
        let timeout_ns = self.settings.irq_suspend_timeout_ns.load(Relaxed);
        if timeout_ns == 0 {
            return None;
        }
        self.counters.suspends.add();
        cx.emit(self.index, EventKind::Suspend);
        Some(self.start_timer(timeout_ns, cx))
    }

    /// `napi_resume_irqs`: the application found nothing; one softirq poll, then deferral or the interrupt.
    #[inline]
    pub fn resume(&self, cx: &Cx<'_>) -> Option<Owner> {
        let mut owner = None;
        if self.settings.irq_suspend_timeout_ns.load(Relaxed) != 0
            && let Schedule::Owned(owned) = self.schedule(cx)
        {
            self.counters.resumes.add();
            owner = Some(owned);
        }
        cx.emit(self.index, EventKind::Resume { scheduled: owner.is_some() });
        owner
    }

    // ---- §7 busy polling: the transitions; the loop is in `busy` ----

    #[inline]
    pub(crate) fn busy_acquire(&self, prefer: bool) -> Option<Owner> {
        if self.state.busy_acquire() {
            return Some(Owner::new(self.index));
        }
        if prefer {
            self.state.set_prefer();
        }
        None
    }

    /// Returns the timeout with which the instance is parked if the last poll uses its whole budget.
    #[inline]
    pub(crate) fn busy_stop_begin(&self, prefer: bool) -> u64 {
        self.state.clear_missed();
        self.state.clear_in_busy_poll();
        let mut timeout_ns = 0;
        if prefer {
            let credits = self.settings.defer_hard_irqs.load(Relaxed);
            self.credits.store(credits, Ordering::Relaxed);
            if credits != 0 {
                timeout_ns = self.settings.gro_flush_timeout_ns.load(Relaxed);
            }
        }
        timeout_ns
    }

    /// After the last poll. See [`crate::BusyStopped`].
    #[inline]
    pub(crate) fn busy_stop_polled(
        &self,
        owner: Owner,
        last: &LastPoll,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> crate::BusyStopped {
        let LastPoll { work, budget, gro_held, timeout_ns } = *last;
        assert!(work <= budget, "the device took {work} packets with a budget of {budget}");
        self.count_busy_poll();
        self.note_poll(work, cx);
        if work < budget {
            return crate::BusyStopped::Completed(self.complete(owner, work, gro_held, cx, flush));
        }
        if timeout_ns == 0 {
            cx.emit(self.index, EventKind::HandOver);
            return crate::BusyStopped::ToSoftirq(owner);
        }
        flush(GroFlush::Old);
        cx.emit(self.index, EventKind::Park);
        self.state.park();
        owner.consume();
        crate::BusyStopped::Completed(Completion::Released(Release { timeout_ns, rearm: false }))
    }

    #[inline]
    pub(crate) fn count_busy_call(&self) {
        self.counters.busy_calls.add();
    }

    #[inline]
    pub(crate) fn count_busy_poll(&self) {
        self.counters.busy_polls.bump(1);
    }

    // ---- §10 threads: the transitions; the loop is in `thread` ----

    pub(crate) fn thread_claim(&self) -> Option<Owner> {
        self.state.load().has(state::SCHED_THREADED).then(|| Owner::new(self.index))
    }

    pub(crate) fn thread_follow_mode(&self, owner: &Owner) -> bool {
        self.assert_owner(owner);
        let state = self.state.load();
        let want = state.has(state::THREADED_BUSY_POLL) && !state.has(state::DISABLE);
        if want != state.has(state::IN_BUSY_POLL) {
            self.state.set_in_busy_poll(want);
        }
        want
    }

    /// Turns threading on (the thread exists and waits) or changes its kind. The round in progress stays where it is.
    pub fn threaded_on(&self, busy_poll: bool) {
        self.state.set_threaded(true, busy_poll);
    }

    /// Tries to turn threading off: refused while somebody other than the thread owns the instance. After success the
    /// caller waits until [`Napi::thread_has_round`] is false, then stops the thread.
    pub fn threaded_off(&self) -> bool {
        self.state.threaded_off()
    }

    /// Whether the NAPI thread owns a round (or is about to).
    pub fn thread_has_round(&self) -> bool {
        self.state.load().has(state::SCHED_THREADED)
    }

    /// The ownership that a panic destroyed with its [`Owner`], so that its executor can let the instance go. For an
    /// executor that knows of no other owner: [`Napi::disable_begin`] came before, and keeps new ones away.
    pub fn owner_lost_in_a_panic(&self) -> Option<Owner> {
        let state = self.state.load();
        assert!(state.has(state::DISABLE), "an ownership can only be replaced while nobody can take the instance");
        (state.has(state::SCHED) && !state.has(state::NPSVC)).then(|| Owner::new(self.index))
    }

    // ---- §11 disable, enable ----

    /// First step of `napi_disable`: schedules are refused from now on. Then call [`Napi::disable_claim`], sleeping 20 to
    /// 200 us between attempts.
    pub fn disable_begin(&self) {
        self.state.disable_begin();
    }

    /// Claims the instance if it is free. From SUSPENDED or DEFERRED this succeeds at once.
    pub fn disable_claim(&self) -> bool {
        self.state.disable_claim()
    }

    /// Last step: the timer is cancelled and the id withdrawn. The caller masks the interrupt.
    pub fn disable_end(&self, cx: &Cx<'_>) {
        self.timer.cancel();
        self.id.store(0, Relaxed);
        self.state.disable_end();
        cx.emit(self.index, EventKind::Disable);
    }

    /// `napi_enable`: takes `id`, puts `settings` (if given) in force, and lets the instance go. The caller unmasks the
    /// interrupt. Only for a disabled instance.
    pub fn enable(&self, id: u32, settings: Option<&NapiSettings>) {
        if let Some(settings) = settings {
            self.set(settings);
        }
        self.credits.store(0, Ordering::Relaxed);
        self.id.store(id, Relaxed);
        let threaded = self.settings().threaded;
        self.state.enable(threaded != Threaded::Off, threaded == Threaded::BusyPoll);
    }

    #[inline]
    fn assert_owner(&self, owner: &Owner) {
        assert!(owner.napi == self.index, "the owner of NAPI {} was used on NAPI {}", owner.napi, self.index);
    }
}
