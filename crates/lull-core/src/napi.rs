//! One NAPI instance: schedule, poll, complete, defer, suspend, resume.
//!
//! Whoever owns the instance holds an [`Owner`]; polling takes it by reference, and completing consumes it and returns
//! what is owed. The section numbers are those of docs/napi_semantics.md; ARCHITECTURE.md says which file holds which
//! section.

// Anybody reads the id to look the instance up; nothing synchronises on it.
use std::sync::atomic::{AtomicU32 as PlainU32, Ordering::Relaxed};

use crate::event::{Cx, EventKind};
use crate::owner::{Completion, GroFlush, Owner, Polled, Release, Route, Schedule, Settled};
use crate::settings::{LiveSettings, Unpolled, WEIGHT_DEFAULT};
use crate::state::{self, Completed, Given, GroupAcquired, Prep, Snapshot, State, Watchdog};
use crate::stats::{Counters, Stats};
use crate::sync::{AtomicU32, Ordering};
use crate::timer::Timer;

/// What follows the poll of a resume that finds nothing ([`Napi::resume_to`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum AfterResume {
    /// As Linux (§8): deferral, which polls by timer until `defer_hard_irqs` polls in a row were empty.
    #[default]
    Deferral,
    /// The interrupt, at once, as after the last round of a deferral (§13 edge 8). The application that resumes is
    /// about to sleep. Where its sleep with a timer costs as much as its sleep for an interrupt, as in a process, each
    /// further round of deferral costs a sleep and saves none. For the same reason a thread that goes to sleep while a
    /// deferral is under way ends that deferral ([`Napi::end_deferral`]).
    Interrupt,
}

/// A NAPI instance. See the [module](self).
#[derive(Debug)]
pub struct Napi {
    pub(crate) state: State,
    pub(crate) timer: Timer,
    /// Deferral rounds left (`defer_hard_irqs_count`). Owner only.
    credits: AtomicU32,
    /// Not 0: a deferral ran out, and nobody has busy polled since ([`Unpolled::Interrupt`]). Owner only.
    ran_out: AtomicU32,
    pub(crate) settings: LiveSettings,
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
            ran_out: AtomicU32::new(0),
            settings: LiveSettings::default(),
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

    /// Returns the id; it is 0 while the instance is disabled.
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
            Prep::MissedByGroup => {
                self.counters.missed.add();
                cx.emit(self.index, EventKind::Schedule { missed: true });
                Schedule::Group
            }
            Prep::Disabled => {
                cx.emit(self.index, EventKind::Refused);
                Schedule::Disabled
            }
        }
    }

    /// `____napi_schedule`: sends an owned instance to its thread if it is threaded, and to softirq otherwise.
    #[inline]
    pub fn route(&self, owner: Owner, cx: &Cx<'_>) -> Route {
        self.assert_owner(&owner);
        if self.state.give_to_thread() == Given::ToThread {
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
            // In §5 step 1 the core completes, and not the driver, so nobody unmasks the interrupt of a dying instance.
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
                    // Whoever took the instance meanwhile, or disables it, sees to it, and the interrupt stays masked
                    // for them. A group that took it polls it before anything else.
                    Schedule::Missed | Schedule::Group | Schedule::Disabled => {
                        Completion::Released(Release { timeout_ns: 0, rearm: false })
                    }
                }
            }
            other => other,
        }
    }

    // ---- §4 completion ----

    /// `napi_complete_done`: completes a poll that took fewer packets than its budget.
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
        // One comparison tells the likely word from that of a busy poller, and from one that nobody owns.
        if seen.bits() & (state::SCHED | state::NPSVC | state::IN_BUSY_POLL) != state::SCHED {
            return self.kept(seen, owner, cx);
        }
        let mut timeout_ns = 0;
        let mut rearm = true;
        let had = self.credits.load(Ordering::Relaxed);
        let mut credits = had;
        if self.ran_out.load(Ordering::Relaxed) != 0 && self.settings.unpolled() == Unpolled::Interrupt {
            credits = 0;
        } else if work != 0 {
            if gro_held {
                timeout_ns = self.settings.gro_flush_timeout_ns();
            }
            credits = self.settings.defer_hard_irqs();
        }
        if credits > 0 {
            credits -= 1;
            timeout_ns = self.settings.gro_flush_timeout_ns();
            if timeout_ns != 0 {
                rearm = false;
            }
        }
        if credits != had {
            self.set_credits(credits);
        }
        flush(if timeout_ns != 0 { GroFlush::Old } else { GroFlush::All });
        if !rearm {
            self.counters.deferrals.bump(1);
        }
        if self.state.complete(seen) == Completed::Missed {
            if !rearm {
                // This was counted above, while only the owner could touch the counters; but this completion released
                // nothing.
                self.counters.deferrals.take_back();
            }
            cx.emit(self.index, EventKind::Again);
            return Completion::Again(owner);
        }
        owner.consume();
        cx.emit(self.index, EventKind::Complete { rearm });
        Completion::Released(Release { timeout_ns, rearm })
    }

    #[cold]
    fn kept(&self, seen: Snapshot, owner: Owner, cx: &Cx<'_>) -> Completion {
        assert!(seen.has(state::SCHED), "I1: completed without ownership");
        cx.emit(self.index, EventKind::Kept);
        Completion::Kept(owner)
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
    /// instance swallows the timer; its owner will arm another. Nobody has busy polled meanwhile, since that would have
    /// started it anew: with [`Unpolled::Interrupt`] there is no deferral until somebody has.
    pub fn timer_expired(&self, cx: &Cx<'_>) -> Option<Owner> {
        let deadline_ns = self.timer.claim(cx.now_ns, cx.cpu)?;
        self.counters.timer_fires.add();
        let taken = self.state.watchdog() == Watchdog::Taken;
        if !taken {
            self.counters.timer_swallowed.add();
        }
        cx.emit(self.index, EventKind::TimerFire { late_ns: cx.now_ns - deadline_ns, swallowed: !taken });
        if taken {
            self.ran_out.store(1, Ordering::Relaxed);
        }
        taken.then(|| Owner::new(self.index))
    }

    /// A busy poller has become the owner, or the instance begins anew.
    #[inline]
    pub(crate) fn may_defer_again(&self) {
        if self.ran_out.load(Ordering::Relaxed) != 0 {
            self.ran_out.store(0, Ordering::Relaxed);
        }
    }

    // ---- §8 suspension ----

    /// `napi_suspend_irqs`: the application got events and will come back. This only stretches the timer; it neither
    /// masks nor looks at ownership. Returns the deadline, or `None` if `irq_suspend_timeout` is 0.
    #[inline]
    pub fn suspend(&self, cx: &Cx<'_>) -> Option<u64> {
        let timeout_ns = self.settings.irq_suspend_timeout_ns();
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
        if self.settings.irq_suspend_timeout_ns() != 0
            && let Schedule::Owned(owned) = self.schedule(cx)
        {
            self.counters.resumes.add();
            owner = Some(owned);
        }
        cx.emit(self.index, EventKind::Resume { scheduled: owner.is_some() });
        owner
    }

    /// As [`Napi::resume`]; the caller says what follows the poll if that finds nothing.
    #[inline]
    pub fn resume_to(&self, after: AfterResume, cx: &Cx<'_>) -> Option<Owner> {
        let owner = self.resume(cx);
        if owner.is_some() && after == AfterResume::Interrupt {
            self.spend_credits();
        }
        owner
    }

    /// For [`AfterResume::Interrupt`], where a thread goes to sleep for want of events: if an instance that suspends is
    /// deferred on this CPU (by packets that brought no event, such as acknowledgements), its deferral ends as by a resume.
    /// A suspension is left alone: its deadline is farther away than `gro_flush_timeout`.
    pub fn end_deferral(&self, cx: &Cx<'_>) -> Option<Owner> {
        let (deadline_ns, cpu) = self.timer.pending()?;
        let until_ns = cx.now_ns.saturating_add(self.settings.gro_flush_timeout_ns());
        if cpu != cx.cpu || deadline_ns > until_ns || self.settings.irq_suspend_timeout_ns() == 0 {
            return None;
        }
        let Schedule::Owned(owner) = self.schedule(cx) else { return None };
        self.spend_credits();
        Some(owner)
    }

    /// The next empty poll unmasks. The owner alone touches the credits, and while somebody owns the instance its timer
    /// keeps nothing alive: a completion either unmasks or starts it anew.
    fn spend_credits(&self) {
        self.credits.store(0, Ordering::Relaxed);
        self.timer.cancel();
    }

    /// A group takes the instance (§15). The timer keeps nothing alive from now on; the caller masks the interrupt, as after a
    /// schedule.
    pub(crate) fn group_acquire(&self, cx: &Cx<'_>) -> Result<Owner, GroupAcquired> {
        match self.state.group_acquire() {
            GroupAcquired::Won => {
                self.timer.cancel();
                cx.emit(self.index, EventKind::GroupEnter);
                Ok(Owner::new(self.index))
            }
            refused => Err(refused),
        }
    }

    #[inline]
    pub(crate) fn count_group_poll(&self) {
        self.counters.group_polls.bump(1);
    }

    #[inline]
    pub(crate) fn count_busy_call(&self) {
        self.counters.busy_calls.add();
    }

    #[inline]
    pub(crate) fn count_busy_poll(&self) {
        self.counters.busy_polls.bump(1);
    }

    /// Sets the deferral credits; only the owner does so.
    #[inline]
    pub(crate) fn set_credits(&self, credits: u32) {
        self.credits.store(credits, Ordering::Relaxed);
    }

    pub(crate) fn set_id(&self, id: u32) {
        self.id.store(id, Relaxed);
    }

    #[inline]
    pub(crate) fn assert_owner(&self, owner: &Owner) {
        let napi = owner.napi();
        assert!(napi == self.index, "the owner of NAPI {napi} was used on NAPI {}", self.index);
    }
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
