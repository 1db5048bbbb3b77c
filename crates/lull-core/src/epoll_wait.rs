//! The epoll policy: when `epoll_wait` busy polls, suspends and resumes (`fs/eventpoll.c`, §8).
//!
//! [`EpollWait`] is one call of `epoll_wait` on the context [`EpollBusy`], as steps:
//!
//! ```text
//! Copy   → copy ready events, wait.copied(n, ..)     # n > 0: suspend, then Done
//! Busy   → busy loop until events or the plan's end, wait.busy_done(..)
//! Resume → napi.resume(), route it, and run it here
//! Sleep  → until woken or the deadline, wait.woke(timed_out)
//! Done   → return n events
//! ```
//!
//! A whole executor, of a machine whose only packet comes with the second round of the busy loop:
//!
//! ```
//! use lull_core::{BusyDone, EpollBusy, EpollOptions, EpollParams, EpollWait, NAPI_ID_MIN, Sysctl, WaitStep};
//!
//! let ep = EpollBusy::new(&Sysctl::default(), EpollOptions::strict_linux());
//! ep.set_params(&EpollParams { prefer_busy_poll: true, ..EpollParams::default() }, false)?;
//! ep.note_napi(NAPI_ID_MIN); // a socket of this instance was added
//! let (mut ready, mut polls, mut did) = (0, 0, Vec::new());
//! let mut wait = EpollWait::begin(&ep, None, ready > 0, 0);
//! let events = loop {
//!     let step = wait.next(&ep);
//!     did.push(step);
//!     let at_once = match step {
//!         WaitStep::Copy => wait.copied(&ep, std::mem::take(&mut ready)),
//!         WaitStep::Busy(_plan) => {
//!             polls += 1;
//!             ready = usize::from(polls == 2);
//!             wait.busy_done(&ep, BusyDone { available: ready > 0, gone: false, most: 0, now_ns: 0 })
//!         }
//!         WaitStep::Sleep(_until_ns) => {
//!             ep.note_napi(NAPI_ID_MIN); // the interrupt's poll woke us for something that somebody else has taken
//!             wait.woke(false, false);
//!             None
//!         }
//!         WaitStep::Suspend(_id) | WaitStep::Resume(_id) => None, // Napi::suspend, Napi::resume
//!         WaitStep::Done(events) => break events,
//!     };
//!     did.extend(at_once); // and executed
//! };
//! assert_eq!(events, 1);
//! assert!(matches!(did[..], [
//!     WaitStep::Busy(_), WaitStep::Resume(_), WaitStep::Sleep(None), // nothing: the interrupt stands in
//!     WaitStep::Busy(_), WaitStep::Copy, WaitStep::Suspend(_), WaitStep::Done(1), // an event: it is our turn to poll
//! ]));
//! # Ok::<(), lull_core::SettingError>(())
//! ```

use std::sync::atomic::Ordering::Relaxed;

use crate::busy::{BusyEnd, BusyPlan};
use crate::epoll::{EpollBusy, EpollOptions, TimeoutZero};
use crate::epoll_napis::Tour;

/// What one call of `epoll_wait` does next.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStep {
    /// Copy up to the caller's maximum of ready events, then [`EpollWait::copied`].
    Copy,
    /// Run the busy loop, then [`EpollWait::busy_done`].
    Busy(BusyPlan),
    /// Resume this instance (by id): `Napi::resume`, route it, run this CPU's pending softirqs.
    Resume(u32),
    /// Suspend this instance (by id): `Napi::suspend`.
    Suspend(u32),
    /// Sleep until woken or until this deadline (nanoseconds; `None` is for ever), then [`EpollWait::woke`]. Before sleeping
    /// the executor looks once more whether events are available; with a signal pending it returns EINTR instead.
    Sleep(Option<u64>),
    /// Return this many events.
    Done(usize),
}

/// How a busy loop ended, as the executor saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyDone {
    /// Events are ready now.
    pub available: bool,
    /// No instance has the plan's id (any more), so that nothing was polled (§13 edge 20).
    pub gone: bool,
    /// The most packets that one poll of the loop took.
    pub most: u32,
    /// The time, in nanoseconds.
    pub now_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Check,
    /// Between two instances of a tour.
    Touring,
    /// A tour found events: instances from this place on that brought none for long are forgotten and resumed.
    Aging(usize),
    /// Busy polling found nothing, and the resume was issued if there was one: next comes sleep, or the end.
    FoundNothing,
    /// Events were copied: each instance is suspended, from this place on.
    Suspending(usize, usize),
    Return(usize),
}

/// One call of `epoll_wait`.
#[derive(Debug)]
pub struct EpollWait {
    deadline_ns: Option<u64>,
    timed_out: bool,
    available: bool,
    poll_once: bool,
    mend_poll: bool,
    /// Events ended a sleep, or kept it from being begun, and nothing was polled since.
    was_woken: bool,
    /// A busy loop was begun in this call.
    polled: bool,
    /// What the last busy loop of this call polled, and how.
    busy_id: u32,
    busy_prefer: bool,
    /// With [`EpollOptions::every_napi`]: the way around the table, how long the call tours, and the suspension to be
    /// looked at once more.
    tour: Tour,
    tours_end: BusyEnd,
    tours_began_ns: Option<u64>,
    suspended: Option<(usize, u32)>,
    /// Whether instances may be left out of the present tour, how many tours in a row were of that kind, and whether one was
    /// left out.
    asks: bool,
    asking_tours: u32,
    left_out: bool,
    /// The most packets that one poll of the present tour took.
    most: u32,
    phase: Phase,
}

/// The most tours in a row that may leave instances out while a call spins. The next one polls all of them, which keeps
/// their interrupts masked.
const ASKING_TOURS_MAX: u32 = 16;

impl EpollWait {
    /// Begins a call. `timeout_ns` is relative, `None` waits for ever; `available` says whether events seem ready.
    #[inline]
    pub fn begin(ep: &EpollBusy, timeout_ns: Option<u64>, available: bool, now_ns: u64) -> EpollWait {
        let timed_out = timeout_ns == Some(0);
        let cap = ep.options.poll_after_returns;
        EpollWait {
            deadline_ns: timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns)),
            timed_out,
            available,
            poll_once: timed_out && ep.options.timeout_zero == TimeoutZero::PollOnce,
            mend_poll: cap != 0 && ep.returns_without_poll.load(Relaxed) >= cap || ep.is_behind(),
            was_woken: false,
            polled: false,
            busy_id: 0,
            busy_prefer: false,
            tour: Tour::default(),
            tours_end: BusyEnd::OneRound,
            tours_began_ns: None,
            suspended: None,
            asks: false,
            asking_tours: 0,
            left_out: false,
            most: 0,
            phase: Phase::Check,
        }
    }

    /// Says what the call does next.
    #[inline]
    pub fn next(&mut self, ep: &EpollBusy) -> WaitStep {
        loop {
            match self.phase {
                Phase::Check => return self.check(ep),
                Phase::Return(events) => return WaitStep::Done(events),
                Phase::FoundNothing => {
                    self.phase = Phase::Check;
                    return if self.timed_out { self.finish(0) } else { WaitStep::Sleep(self.deadline_ns) };
                }
                Phase::Touring => match self.tour_on(ep) {
                    Some(plan) => return WaitStep::Busy(plan),
                    None if self.available => {
                        ep.note_polled(std::mem::take(&mut self.most));
                        self.phase = Phase::Aging(0);
                    }
                    None => {
                        ep.note_polled(std::mem::take(&mut self.most));
                        ep.napis.forget_masked();
                        self.phase = Phase::FoundNothing;
                    }
                },
                Phase::Aging(from) => {
                    if let Some(step) = self.age_on(ep, from) {
                        return step;
                    }
                }
                Phase::Suspending(from, events) => {
                    if let Some(step) = self.suspend_on(ep, from, events) {
                        return step;
                    }
                }
            }
        }
    }

    #[inline]
    fn check(&mut self, ep: &EpollBusy) -> WaitStep {
        if self.available {
            if self.polls_before_copy(ep)
                && let Some(plan) = self.busy(ep, true)
            {
                return WaitStep::Busy(plan);
            }
            return WaitStep::Copy;
        }
        if self.timed_out && !std::mem::take(&mut self.poll_once) {
            return self.finish(0);
        }
        match self.busy(ep, self.timed_out) {
            Some(plan) => WaitStep::Busy(plan),
            None if self.timed_out => self.finish(0),
            None => WaitStep::Sleep(self.deadline_ns),
        }
    }

    /// Whether events that are there have to wait for a poll: see [`EpollOptions::poll_after_returns`] and
    /// [`EpollOptions::tour_when_woken`].
    ///
    /// [`EpollOptions::poll_after_returns`]: crate::EpollOptions::poll_after_returns
    /// [`EpollOptions::tour_when_woken`]: crate::EpollOptions::tour_when_woken
    fn polls_before_copy(&mut self, ep: &EpollBusy) -> bool {
        let was_woken = std::mem::take(&mut self.was_woken);
        let EpollOptions { every_napi, tour_when_woken, .. } = ep.options;
        let tours = was_woken && every_napi && tour_when_woken && ep.prefer.load(Relaxed) && !ep.napis.is_one();
        std::mem::take(&mut self.mend_poll) || tours
    }

    fn finish(&mut self, events: usize) -> WaitStep {
        self.phase = Phase::Return(events);
        WaitStep::Done(events)
    }

    #[inline]
    fn busy(&mut self, ep: &EpollBusy, one_round: bool) -> Option<BusyPlan> {
        let plan = if ep.options.every_napi {
            self.tours_end = if one_round { BusyEnd::OneRound } else { ep.busy_end() };
            self.tours_began_ns = None;
            self.asking_tours = 0;
            self.begin_tour(!ep.napis.is_one());
            self.tour_on(ep)?
        } else {
            ep.plan(ep.napi_id(), one_round)?
        };
        ep.returns_without_poll.store(0, Relaxed);
        // Any busy loop of this call is the poll that the cap asks for.
        self.mend_poll = false;
        self.polled = true;
        self.busy_id = plan.napi_id;
        self.busy_prefer = plan.prefer;
        Some(plan)
    }

    /// The next instance of the tour: each gets one poll, so that none waits while another is spun on. A context with
    /// one instance spins as in Linux, and so does one that does not prefer busy polling, whose last poll may hand an
    /// instance to softirq.
    fn tour_on(&mut self, ep: &EpollBusy) -> Option<BusyPlan> {
        let is_one = ep.napis.is_one();
        let plan = ep.plan(self.tour.next(&ep.napis)?, self.tours_end == BusyEnd::OneRound || !is_one)?;
        let end = if plan.prefer && !is_one { BusyEnd::LastPoll } else { plan.end };
        Some(BusyPlan { end, ..plan })
    }

    fn begin_tour(&mut self, asks: bool) {
        self.tour = Tour::default();
        self.asks = asks;
        self.asking_tours = if asks { self.asking_tours + 1 } else { 0 };
        self.left_out = false;
    }

    /// Whether the loop that [`EpollWait::next`] asks for may be left out, if the executor knows that nothing waits for the
    /// instance ([`EpollWait::left_out`]).
    ///
    /// Only with [`EpollOptions::every_napi`], for an instance whose interrupt this context keeps masked by polling and
    /// suspending it: to busy poll it would cost two polls that find nothing, and hold up what others brought. If the
    /// whole tour finds nothing, the next one leaves nobody out, so that suspensions end as they would without this.
    ///
    /// [`EpollOptions::every_napi`]: crate::EpollOptions::every_napi
    #[inline]
    pub fn may_leave_out(&self, ep: &EpollBusy) -> bool {
        self.asks && self.tour.is_at_masked(&ep.napis)
    }

    /// The loop was left out, because nothing waits for its instance. `available`: events are ready now.
    #[inline]
    pub fn left_out(&mut self, ep: &EpollBusy, available: bool, now_ns: u64) {
        self.left_out = true;
        self.available = available;
        self.toured_on(ep, now_ns);
    }

    /// Forgets instances that bring nothing. The tour has just ended their suspension, but another thread may have begun a new
    /// one since: they are resumed.
    fn age_on(&mut self, ep: &EpollBusy, from: usize) -> Option<WaitStep> {
        match ep.napis.age_from(from) {
            Some((place, id)) => {
                self.phase = Phase::Aging(place + 1);
                self.busy_prefer.then_some(WaitStep::Resume(id))
            }
            None => {
                self.phase = Phase::Check;
                None
            }
        }
    }

    /// Suspends each instance. One that another thread forgot in the same moment is resumed at once: no tour asks it any more,
    /// so only its timer would wake it.
    fn suspend_on(&mut self, ep: &EpollBusy, from: usize, events: usize) -> Option<WaitStep> {
        if let Some((place, id)) = self.suspended.take()
            && !ep.napis.holds(place, id)
        {
            return Some(WaitStep::Resume(id));
        }
        self.suspended = ep.napis.first_from(from);
        match self.suspended {
            Some((place, id)) => {
                self.phase = Phase::Suspending(place + 1, events);
                Some(WaitStep::Suspend(id))
            }
            None => {
                self.phase = Phase::Return(events);
                None
            }
        }
    }

    /// `events` were copied out. If there are none (the ready ones were stale), nothing is suspended, and the call goes
    /// on; an executor whose copy faulted before the first event returns that error instead. Returns the step to take
    /// at once: a suspension, if one is due.
    #[inline]
    pub fn copied(&mut self, ep: &EpollBusy, events: usize) -> Option<WaitStep> {
        self.available = false;
        if events == 0 {
            return None;
        }
        self.phase = Phase::Return(events);
        if ep.options.poll_after_returns != 0 && !self.polled {
            ep.returns_without_poll.fetch_add(1, Relaxed);
        }
        if ep.options.every_napi {
            if ep.prefer.load(Relaxed) {
                self.phase = Phase::Suspending(0, events);
            }
            return None;
        }
        ep.suspend().map(WaitStep::Suspend)
    }

    /// The busy loop ended. Returns the step to take at once: a resume, if one is due.
    #[inline]
    pub fn busy_done(&mut self, ep: &EpollBusy, done: BusyDone) -> Option<WaitStep> {
        self.available = done.available;
        self.most = self.most.max(done.most);
        if ep.options.every_napi {
            return self.toured(ep, done).map(WaitStep::Resume);
        }
        ep.note_polled(std::mem::take(&mut self.most));
        if done.available {
            return None;
        }
        self.phase = Phase::FoundNothing;
        ep.nothing_found(self.busy_id, self.busy_prefer).map(WaitStep::Resume)
    }

    /// One instance of the tour was polled. One that is gone is forgotten, and returned: it may be there again under its id,
    /// and another thread may have suspended it.
    fn toured(&mut self, ep: &EpollBusy, done: BusyDone) -> Option<u32> {
        let forgotten = if done.gone { self.tour.forget(&ep.napis) } else { None };
        if !done.gone && self.busy_prefer {
            self.tour.note_masked(&ep.napis);
        }
        self.toured_on(ep, done.now_ns);
        forgotten.filter(|_| self.busy_prefer)
    }

    /// Goes on to the next instance, or the next tour, or ends them.
    fn toured_on(&mut self, ep: &EpollBusy, now_ns: u64) {
        self.phase = Phase::Touring;
        let began_ns = *self.tours_began_ns.get_or_insert(now_ns);
        if self.available || !self.tour.is_over(&ep.napis) {
            return;
        }
        // An instance that is alone was spun on until the end.
        let time_is_up = ep.napis.is_one() || self.tours_end.reached(began_ns, now_ns);
        if self.left_out || !time_is_up {
            self.begin_tour(!time_is_up && self.asking_tours < ASKING_TOURS_MAX);
        }
    }

    /// The sleep ended, or was not begun because events were available.
    #[inline]
    pub fn woke(&mut self, available: bool, timed_out: bool) {
        self.available = available;
        self.was_woken = available;
        self.timed_out |= timed_out;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::NAPI_ID_MIN;
    use crate::epoll::EpollParams;
    use crate::settings::Sysctl;

    fn nothing() -> BusyDone {
        BusyDone { available: false, gone: false, most: 0, now_ns: 0 }
    }

    fn prefer(options: EpollOptions) -> EpollBusy {
        let ep = EpollBusy::new(&Sysctl::default(), options);
        let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
        ep.set_params(&params, false).unwrap();
        ep
    }

    #[test]
    fn off_means_no_id_and_no_busy_poll() {
        let ep = EpollBusy::new(&Sysctl::default(), EpollOptions::default());
        ep.note_napi(NAPI_ID_MIN);
        assert_eq!(ep.napi_id(), 0);
        let mut wait = EpollWait::begin(&ep, None, false, 0);
        assert_eq!(wait.next(&ep), WaitStep::Sleep(None));
    }

    #[test]
    fn usecs_zero_with_prefer_is_one_round_then_resume_then_sleep() {
        let ep = prefer(EpollOptions::default());
        ep.note_napi(NAPI_ID_MIN);
        let mut wait = EpollWait::begin(&ep, Some(1_000_000), false, 500);
        let WaitStep::Busy(plan) = wait.next(&ep) else { panic!("polls") };
        assert_eq!((plan.end, plan.budget, plan.prefer), (BusyEnd::OneRound, 64, true));
        assert_eq!(wait.busy_done(&ep, nothing()), Some(WaitStep::Resume(NAPI_ID_MIN)));
        assert_eq!(ep.napi_id(), 0, "the id is forgotten");
        assert_eq!(wait.next(&ep), WaitStep::Sleep(Some(1_000_500)));
        wait.woke(true, false);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
    }

    /// A context on these instances, which was woken by the first.
    fn woken(options: EpollOptions, prefers: bool, ids: &[u32]) -> (EpollBusy, EpollWait) {
        let ep = prefer(options);
        ids.iter().for_each(|id| assert_eq!(ep.note_napi(*id), None));
        ep.prefer.store(prefers, Relaxed);
        let mut wait = EpollWait::begin(&ep, None, false, 0);
        while let WaitStep::Busy(_) = wait.next(&ep) {
            let _ = wait.busy_done(&ep, nothing());
        }
        wait.woke(true, false);
        (ep, wait)
    }

    #[test]
    fn who_is_woken_polls_all_its_instances_before_it_returns() {
        let (ep, mut wait) = woken(EpollOptions::mended(), true, &[NAPI_ID_MIN, NAPI_ID_MIN + 1]);
        for id in [NAPI_ID_MIN, NAPI_ID_MIN + 1] {
            let WaitStep::Busy(plan) = wait.next(&ep) else { panic!("polls {id}") };
            assert_eq!((plan.napi_id, plan.end), (id, BusyEnd::LastPoll));
            assert!(!wait.may_leave_out(&ep), "its interrupt is not masked: {id}");
            assert_eq!(wait.busy_done(&ep, BusyDone { available: true, ..nothing() }), None);
        }
        assert_eq!(wait.next(&ep), WaitStep::Copy);
        assert_eq!(wait.copied(&ep, 1), None);
        assert_eq!(wait.next(&ep), WaitStep::Suspend(NAPI_ID_MIN));
    }

    #[test]
    fn who_is_woken_by_its_only_instance_returns_at_once() {
        let (ep, mut wait) = woken(EpollOptions::mended(), true, &[NAPI_ID_MIN]);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
    }

    #[test]
    fn who_is_woken_returns_at_once_without_the_option_or_without_prefer() {
        let mended = EpollOptions::mended();
        for (options, prefers) in [(mended, false), (EpollOptions { tour_when_woken: false, ..mended }, true)] {
            let (ep, mut wait) = woken(options, prefers, &[NAPI_ID_MIN, NAPI_ID_MIN + 1]);
            assert_eq!(wait.next(&ep), WaitStep::Copy);
        }
    }

    #[test]
    fn a_sysctl_turns_the_one_round_into_spinning() {
        let ep = EpollBusy::new(&Sysctl { busy_poll_usecs: 50, ..Sysctl::default() }, EpollOptions::default());
        ep.note_napi(NAPI_ID_MIN);
        let mut wait = EpollWait::begin(&ep, None, false, 0);
        let WaitStep::Busy(plan) = wait.next(&ep) else { panic!("polls") };
        assert_eq!((plan.end, plan.budget), (BusyEnd::AfterUsecs(50), 8));
        assert_eq!(wait.busy_done(&ep, nothing()), None, "without prefer nothing is resumed");
    }

    #[test]
    fn events_suspend_and_stale_events_do_not() {
        let ep = prefer(EpollOptions::default());
        ep.note_napi(NAPI_ID_MIN);
        let mut wait = EpollWait::begin(&ep, None, true, 0);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
        assert_eq!(wait.copied(&ep, 0), None);
        assert!(matches!(wait.next(&ep), WaitStep::Busy(_)));
        assert_eq!(wait.busy_done(&ep, BusyDone { available: true, ..nothing() }), None);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
        assert_eq!(wait.copied(&ep, 3), Some(WaitStep::Suspend(NAPI_ID_MIN)));
        assert_eq!(wait.next(&ep), WaitStep::Done(3));
    }
}
