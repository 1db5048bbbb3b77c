//! What an epoll context knows of busy polling: its parameters, its options, and the instances that its sockets are on
//! (`fs/eventpoll.c`, §8). What one call of `epoll_wait` does with it is [`epoll_wait`](crate::epoll_wait).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::busy::{BusyEnd, BusyPlan};
use crate::config::NAPI_ID_MIN;
use crate::epoll_napis::Napis;
use crate::settings::{
    BUSY_POLL_BUDGET_UNPRIVILEGED_MAX, BUSY_POLL_USECS_MAX, Errno, SettingError, Sysctl, limit, limit_budget,
};

/// The busy-poll parameters of an epoll context (`struct epoll_params`, EPIOCSPARAMS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct EpollParams {
    /// How long `epoll_wait` busy polls, in busy-clock microseconds; 0: one round if `prefer`, else the sysctl.
    pub busy_poll_usecs: u32,
    /// Packets per poll; 0 means 8.
    pub busy_poll_budget: u32,
    /// Whether busy polling is preferred to interrupts.
    pub prefer_busy_poll: bool,
}

impl EpollParams {
    /// Checks the limits.
    ///
    /// # Errors
    /// Returns the parameter that exceeds its limit, or that needs CAP_NET_ADMIN where `privileged` is false.
    pub fn check(&self, privileged: bool) -> Result<(), SettingError> {
        limit("busy_poll_usecs", u64::from(self.busy_poll_usecs), BUSY_POLL_USECS_MAX, Errno::Invalid)?;
        limit_budget("busy_poll_budget", self.busy_poll_budget, BUSY_POLL_BUDGET_UNPRIVILEGED_MAX, privileged)
    }
}

/// What `epoll_wait` with timeout 0 does when nothing is ready (§13 edge 19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutZero {
    /// As Linux: returns, without polling and without resuming.
    #[default]
    Return,
    /// Polls one round first, and resumes if that finds nothing.
    PollOnce,
}

/// Where we may differ from Linux. The default is strictly Linux; each option mends one of its weak spots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollOptions {
    /// §13 edge 14: when the context's id changes from A to B while A is suspended, resume A at once instead of leaving
    /// it to its timer.
    pub resume_on_id_change: bool,
    /// §13 edge 18: after this many returns in a row that did not poll the queue, poll it one round before returning
    /// more events. 0: never, as Linux, so that a loop with other work can starve the queue.
    pub poll_after_returns: u32,
    /// §13 edge 19.
    pub timeout_zero: TimeoutZero,
    /// §13 edges 14, 15 and 17: the context keeps the ids of all instances that its sockets are on, up to 64, instead of
    /// the last that woke it. Each call that polls busy polls each in turn, which also ends its suspension (so nothing is
    /// resumed that another thread is polling); each return with events suspends each; those that bring nothing are
    /// forgotten after a while.
    pub every_napi: bool,
    /// With [`EpollOptions::every_napi`], for a context that prefers busy polling and has several instances: a call
    /// that was woken from its sleep polls them all before it returns. Before the sleep their interrupts were unmasked,
    /// and one of them ended it; the others would come while the application works. This pays where such an interrupt
    /// wakes a thread, as in user space, and not quite where it is a real interrupt (`cargo test -p lull-sim --test
    /// several_napis -- --nocapture`: 3 points of CPU more).
    pub tour_when_woken: bool,
    /// A context whose calls have used the whole budget of a poll [`BEHIND_CALLS`] times in a row is behind: more comes in while the
    /// application answers a batch than a poll takes, so that the ring fills, and loses frames. Then each call polls before
    /// it returns events, and polls until the ring has no more. So what waits does so in its sockets, as with softirq, where there is
    /// room. It ends when as many calls in turn did not use their budget.
    pub catch_up: bool,
}

/// See [`EpollOptions::catch_up`].
pub const BEHIND_CALLS: u32 = 8;

impl EpollOptions {
    /// Every weak spot is as Linux has it.
    pub fn strict_linux() -> EpollOptions {
        EpollOptions::default()
    }

    /// Every weak spot of Linux is mended.
    pub const fn mended() -> EpollOptions {
        EpollOptions {
            resume_on_id_change: true,
            poll_after_returns: 8,
            timeout_zero: TimeoutZero::PollOnce,
            every_napi: true,
            tour_when_woken: true,
            catch_up: true,
        }
    }
}

/// The busy-poll half of an epoll context. Any thread may wait on it.
#[derive(Debug, Default)]
pub struct EpollBusy {
    /// One field, last writer wins: the instance of whatever socket was added or woke us last.
    napi_id: AtomicU32,
    usecs: AtomicU32,
    budget: AtomicU32,
    pub(crate) prefer: AtomicBool,
    sysctl_usecs: AtomicU32,
    /// The instance whose timer we stretched last; 0 if it was polled or resumed since.
    suspended_id: AtomicU32,
    pub(crate) returns_without_poll: AtomicU32,
    /// Calls that used the whole budget of a poll: in a row until they are [`BEHIND_CALLS`], then less those that did not.
    full_calls: AtomicU32,
    /// All instances of the context, with [`EpollOptions::every_napi`]; else none.
    pub(crate) napis: Napis,
    pub(crate) options: EpollOptions,
}

impl EpollBusy {
    /// A context with busy polling off.
    pub fn new(sysctl: &Sysctl, options: EpollOptions) -> EpollBusy {
        EpollBusy { sysctl_usecs: AtomicU32::new(sysctl.busy_poll_usecs), options, ..EpollBusy::default() }
    }

    /// EPIOCSPARAMS: sets the parameters. Clearing `prefer` while suspended resumes nothing: the timer recovers (edge 12).
    ///
    /// # Errors
    /// As [`EpollParams::check`].
    pub fn set_params(&self, params: &EpollParams, privileged: bool) -> Result<(), SettingError> {
        params.check(privileged)?;
        self.usecs.store(params.busy_poll_usecs, Relaxed);
        self.budget.store(params.busy_poll_budget, Relaxed);
        self.prefer.store(params.prefer_busy_poll, Relaxed);
        Ok(())
    }

    /// EPIOCGPARAMS: returns the parameters.
    pub fn params(&self) -> EpollParams {
        EpollParams {
            busy_poll_usecs: self.usecs.load(Relaxed),
            busy_poll_budget: self.budget.load(Relaxed),
            prefer_busy_poll: self.prefer.load(Relaxed),
        }
    }

    /// The id of the instance that this context polls; 0 if there is none.
    pub fn napi_id(&self) -> u32 {
        self.napi_id.load(Relaxed)
    }

    /// Whether busy polling is on (`ep_busy_loop_on`).
    #[inline]
    pub fn is_on(&self) -> bool {
        self.usecs.load(Relaxed) != 0 || self.prefer.load(Relaxed) || self.sysctl_usecs.load(Relaxed) != 0
    }

    /// A socket was added, or woke this context (`ep_set_busy_poll_napi_id`). Returns an instance that is to be
    /// resumed because it is left behind suspended (only with [`EpollOptions::resume_on_id_change`]).
    #[inline]
    pub fn note_napi(&self, id: u32) -> Option<u32> {
        if id < NAPI_ID_MIN || !self.is_on() {
            return None;
        }
        if self.napi_id.load(Relaxed) != id {
            self.napi_id.store(id, Relaxed);
        }
        if self.options.every_napi {
            // Nothing is left behind: all are polled.
            self.napis.note(id);
            return None;
        }
        self.left_behind(id)
    }

    /// Puts the events that a call returns in turn, with [`EpollOptions::every_napi`]: the first of each instance, then the
    /// second of each, and so on. A tour found them instance by instance, though those at the head of each list have waited
    /// longest; the application would answer all that the last instance brought after all the others'. `napi_id` says whose
    /// an event is, 0 where it is no instance's.
    pub fn in_turn<T: Copy>(&self, events: &mut [T], napi_id: impl Fn(&T) -> u32) {
        if self.options.every_napi && events.len() > 2 {
            crate::epoll_napis::in_turn(events, napi_id);
        }
    }

    /// Mends edge 14: returns the instance that is suspended although the context's attention is on `id` now. That need
    /// not be the one noted before `id`: a waiter may suspend A just after a wakeup changed A to B.
    #[inline]
    fn left_behind(&self, id: u32) -> Option<u32> {
        if !self.options.resume_on_id_change {
            return None;
        }
        let suspended = self.suspended_id.load(Relaxed);
        (suspended != 0
            && suspended != id
            && self.suspended_id.compare_exchange(suspended, 0, Relaxed, Relaxed).is_ok())
        .then_some(suspended)
    }

    /// The context is freed (`ep_free`): returns the instances to resume, if prefer is still set. Linux knows one
    /// instance only.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        let prefer = self.prefer.load(Relaxed);
        let one = Some(self.napi_id()).filter(|id| prefer && !self.options.every_napi && *id >= NAPI_ID_MIN);
        let mut from = 0;
        let every = std::iter::from_fn(move || {
            let (place, id) = self.napis.first_from(from)?;
            from = place + 1;
            Some(id)
        });
        one.into_iter().chain(every.filter(move |_| prefer))
    }

    /// `ep_busy_loop`: says how to poll `napi_id` now, if it is polled at all.
    #[inline]
    pub(crate) fn plan(&self, napi_id: u32, one_round: bool) -> Option<BusyPlan> {
        if napi_id < NAPI_ID_MIN || !self.is_on() {
            return None;
        }
        Some(BusyPlan {
            napi_id,
            prefer: self.prefer.load(Relaxed),
            budget: BusyPlan::budget_or_default(self.budget.load(Relaxed)),
            end: if one_round { BusyEnd::OneRound } else { self.busy_end() },
            catch_up: self.is_behind(),
        })
    }

    /// Whether more comes in than calls poll: see [`EpollOptions::catch_up`].
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.options.catch_up && self.full_calls.load(Relaxed) >= BEHIND_CALLS
    }

    /// A call has polled; `most` is the most packets that one of its polls took.
    #[inline]
    pub(crate) fn note_polled(&self, most: u32) {
        if !self.options.catch_up {
            return;
        }
        let is_full = most >= BusyPlan::budget_or_default(self.budget.load(Relaxed));
        let calls = self.full_calls.load(Relaxed);
        match is_full {
            true if calls < 2 * BEHIND_CALLS => self.full_calls.store(calls + 1, Relaxed),
            // What it catches up with comes in waves, so one call below its budget does not end it.
            false if calls > BEHIND_CALLS => self.full_calls.store(calls - 1, Relaxed),
            false if calls != 0 => self.full_calls.store(0, Relaxed),
            _ => {}
        }
    }

    /// Says when the busy loop of a call ends.
    #[inline]
    pub(crate) fn busy_end(&self) -> BusyEnd {
        let own = self.usecs.load(Relaxed);
        let usecs = if own != 0 { own } else { self.sysctl_usecs.load(Relaxed) };
        if usecs == 0 { BusyEnd::OneRound } else { BusyEnd::AfterUsecs(usecs) }
    }

    /// After a busy loop that found nothing: the id is forgotten, and its instance is resumed if the loop preferred busy
    /// polling (as it was when the loop began, whatever an ioctl says since).
    #[inline]
    pub(crate) fn nothing_found(&self, polled_id: u32, prefer: bool) -> Option<u32> {
        let resume = prefer.then_some(polled_id);
        let _ = self.suspended_id.compare_exchange(polled_id, 0, Relaxed, Relaxed);
        self.napi_id.store(0, Relaxed);
        resume
    }

    /// `ep_suspend_napi_irqs`: returns the instance that is to be suspended because events are returned.
    #[inline]
    pub(crate) fn suspend(&self) -> Option<u32> {
        let id = self.napi_id();
        if id < NAPI_ID_MIN || !self.prefer.load(Relaxed) {
            return None;
        }
        self.suspended_id.store(id, Relaxed);
        Some(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_kernels_limits() {
        let ep = EpollBusy::new(&Sysctl::default(), EpollOptions::default());
        let params = EpollParams { busy_poll_usecs: 1 << 31, ..EpollParams::default() };
        assert_eq!(ep.set_params(&params, true).unwrap_err().errno, Errno::Invalid);
        let params = EpollParams { busy_poll_budget: 65, ..EpollParams::default() };
        assert_eq!(ep.set_params(&params, false).unwrap_err().errno, Errno::Permission);
        assert!(ep.set_params(&params, true).is_ok());
        assert_eq!(ep.params(), params);
    }
}
