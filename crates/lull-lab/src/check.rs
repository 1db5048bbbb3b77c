//! Checks by counters and by clocks whether the mode that was asked for was in force, on either plane.
//!
//! A mode that is not in force must never look as if it were: a suspended cell shows suspensions, `base` shows none,
//! and a mode that relies on a timer is only in force if the timer's median lateness is under half its timeout. lull's
//! own stack counts its polls and timers itself; for the kernel's stack the trace of a run shows them. Both give the
//! same [`Evidence`].

use lull_core::{Mode, Stats, Threaded};

use crate::cell::Enforcement;

/// What was observed of the server's NAPIs in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Queries answered.
    pub queries: u64,
    /// Polls by the server's threads, in epoll or in a receive call.
    pub busy_polls: u64,
    /// Polls by NAPI threads.
    pub thread_polls: u64,
    /// Polls by softirq, however it was raised.
    pub softirq_polls: u64,
    /// Polls by the pollers of a busy-polling CPU group.
    pub group_polls: u64,
    /// Evidence that tells NAPI threads that busy poll from those that are woken for work.
    pub threads_rest: ThreadsRest,
    /// Timers that were set to a deferral's time.
    pub deferrals: u64,
    /// Timers that were set to a suspension's time.
    pub suspensions: u64,
    /// Median lateness of the deferral's timers, in nanoseconds; `None` if none fired.
    pub lateness_ns: Option<u64>,
}

/// How often NAPI threads had nothing to do, as far as a plane shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadsRest {
    /// lull's own stack counts how often an instance was scheduled. A thread that busy polls never gives its instance
    /// up, so that nothing can schedule it. (An interrupt that was raised before may still be taken, and find the
    /// thread there.)
    Schedules(u64),
    /// The kernel counts how often the threads went to sleep, and how many of their polls found nothing. A thread that
    /// busy polls never sleeps (`napi_threaded_poll_loop`). If it did sleep for a lock of a real-time kernel, it still
    /// polls in vain for most of the time. A thread that is woken for its work finds some, and sleeps after it.
    Sleeps {
        /// The number of times that they went to sleep.
        sleeps: u64,
        /// Polls that found nothing.
        empty_polls: u64,
    },
}

impl Evidence {
    /// Makes the evidence from lull-core's own counters, run by threads or simulated.
    pub fn of_core(stats: &Stats, lateness_ns: Option<u64>, queries: u64) -> Evidence {
        Evidence {
            queries,
            busy_polls: stats.busy_polls,
            thread_polls: stats.thread_polls,
            softirq_polls: stats.softirq_polls,
            group_polls: stats.group_polls,
            threads_rest: ThreadsRest::Schedules(stats.schedules),
            // Deferrals are counted as the trace of the kernel counts them: every start of a timer except those with a
            // suspension's time.
            deferrals: stats.timer_arms.saturating_sub(stats.suspends),
            suspensions: stats.suspends,
            lateness_ns,
        }
    }

    /// Whether the NAPI threads may have been polling without pause.
    fn threads_may_busy_poll(&self) -> bool {
        match self.threads_rest {
            ThreadsRest::Schedules(schedules) => schedules == 0,
            ThreadsRest::Sleeps { sleeps, empty_polls } => sleeps == 0 || self.in_vain(empty_polls),
        }
    }

    /// Whether the threads must have been busy polling, because they polled in vain and never slept.
    fn threads_must_busy_poll(&self) -> bool {
        match self.threads_rest {
            ThreadsRest::Schedules(_) => false,
            ThreadsRest::Sleeps { sleeps, empty_polls } => sleeps == 0 && self.in_vain(empty_polls),
        }
    }

    fn in_vain(&self, empty_polls: u64) -> bool {
        empty_polls * 2 > self.thread_polls
    }
}

/// Returns whether `mode` was in force in a run with this evidence.
pub fn enforcement(mode: &Mode, evidence: &Evidence) -> Enforcement {
    if evidence.queries == 0 {
        return Enforcement::not_in_force("nothing was answered, so there is nothing to see it by");
    }
    let found = busy_polling(mode, evidence)
        .or_else(|| suspension(mode, evidence))
        .or_else(|| threads(mode, evidence))
        .or_else(|| group(mode, evidence))
        .or_else(|| deferral(mode, evidence));
    match (found, mode.deferral_ns()) {
        (Some(reason), _) => Enforcement::not_in_force(reason),
        (None, Some(timeout_ns)) => timed(timeout_ns, evidence.lateness_ns),
        (None, None) => Enforcement::InForce,
    }
}

fn busy_polling(mode: &Mode, evidence: &Evidence) -> Option<&'static str> {
    // Without deferral the interrupts may keep the ready list full, and then epoll_wait need not poll (§8).
    let may_be_idle = mode.suspends() && mode.deferral_ns().is_none();
    let epoll_polls = mode.epoll.prefer_busy_poll || mode.epoll.busy_poll_usecs != 0;
    match (epoll_polls, mode.socket_busy_poll_usecs != 0, evidence.busy_polls) {
        (_, true, 0) => Some("no receive call found its socket empty, so none busy polled"),
        (true, false, 0) if !may_be_idle => Some("the server busy polled nothing"),
        (false, false, 1..) => Some("the server busy polled"),
        _ => None,
    }
}

fn suspension(mode: &Mode, evidence: &Evidence) -> Option<&'static str> {
    match (mode.suspends(), evidence.suspensions) {
        (true, 0) => Some("no interrupt was suspended: no timer was set for it"),
        (false, 1..) => Some("interrupts were suspended: a timer was set for it"),
        _ => None,
    }
}

fn threads(mode: &Mode, evidence: &Evidence) -> Option<&'static str> {
    match (mode.napi.threaded, evidence.thread_polls) {
        (Threaded::Off, 1..) => Some("a NAPI thread polled"),
        (Threaded::Off, 0) => None,
        (_, 0) => Some("no NAPI thread polled"),
        _ if evidence.softirq_polls != 0 => Some("softirq polled beside the NAPI thread"),
        (Threaded::BusyPoll, _) if !evidence.threads_may_busy_poll() => {
            Some("the NAPI thread slept until there was work: it did not busy poll")
        }
        (Threaded::On, _) if evidence.threads_must_busy_poll() => Some("the NAPI thread busy polled"),
        _ => None,
    }
}

fn group(mode: &Mode, evidence: &Evidence) -> Option<&'static str> {
    match (mode.group, evidence.group_polls) {
        (None, 1..) => Some("a group of CPUs polled"),
        (Some(_), 0) => Some("no poller of the group polled"),
        (Some(_), _) if evidence.softirq_polls != 0 => Some("softirq polled beside the group"),
        _ => None,
    }
}

fn deferral(mode: &Mode, evidence: &Evidence) -> Option<&'static str> {
    match (mode.deferral_ns(), evidence.deferrals) {
        (None, 1..) => Some("interrupts were deferred: a timer was set"),
        (Some(_), 0) => Some("no interrupt was deferred: no timer was set"),
        _ => None,
    }
}

/// A timer that is typically late by half its timeout or more does not count as the timer of its mode.
fn timed(timeout_ns: u64, lateness_ns: Option<u64>) -> Enforcement {
    match lateness_ns {
        Some(late_ns) if late_ns >= timeout_ns / 2 => {
            let us = |ns: u64| ns as f64 / 1_000.0;
            Enforcement::TimeoutHad { asked_us: us(timeout_ns), had_us: us(timeout_ns + late_ns) }
        }
        _ => Enforcement::InForce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_with(threads_rest: ThreadsRest, mode: &str, change: impl FnOnce(&mut Evidence)) -> Enforcement {
        let mut evidence = Evidence {
            queries: 100,
            busy_polls: 0,
            thread_polls: 0,
            softirq_polls: 10,
            group_polls: 0,
            threads_rest,
            deferrals: 0,
            suspensions: 0,
            lateness_ns: None,
        };
        change(&mut evidence);
        enforcement(&mode.parse().unwrap(), &evidence)
    }

    fn check(mode: &str, change: impl FnOnce(&mut Evidence)) -> Enforcement {
        check_with(ThreadsRest::Sleeps { sleeps: 0, empty_polls: 0 }, mode, change)
    }

    #[test]
    fn base_is_softirq_without_a_timer() {
        assert_eq!(check("base", |_| ()), Enforcement::InForce);
        assert_ne!(check("base", |e| e.queries = 0), Enforcement::InForce);
        assert_ne!(check("base", |e| e.busy_polls = 1), Enforcement::InForce);
        assert_ne!(check("base", |e| e.deferrals = 1), Enforcement::InForce);
        assert_ne!(check("base", |e| e.suspensions = 1), Enforcement::InForce);
        assert_ne!(check("base", |e| e.thread_polls = 1), Enforcement::InForce);
    }

    #[test]
    fn each_mode_is_known_by_its_traces() {
        let polls = |e: &mut Evidence| (e.busy_polls, e.deferrals, e.suspensions) = (5, 5, 5);
        assert_eq!(check("suspend20", polls), Enforcement::InForce);
        assert_ne!(check("napibusy", polls), Enforcement::InForce, "it suspends nothing");
        assert_ne!(check("fullbusy", polls), Enforcement::InForce, "it defers and suspends nothing");
        assert_ne!(check("suspend20", |e| (e.busy_polls, e.deferrals) = (5, 5)), Enforcement::InForce);
        assert_ne!(check("suspend20", |e| (e.suspensions, e.deferrals) = (5, 5)), Enforcement::InForce);
        assert_ne!(check("suspend20", |e| (e.suspensions, e.busy_polls) = (5, 5)), Enforcement::InForce);
        assert_eq!(check("suspend0", |e| e.suspensions = 5), Enforcement::InForce, "interrupts kept the list full");
        assert_eq!(check("suspend0", |e| (e.suspensions, e.busy_polls) = (5, 5)), Enforcement::InForce);
        assert_ne!(check("defer20", |_| ()), Enforcement::InForce);
        assert_eq!(check("defer20", |e| e.deferrals = 5), Enforcement::InForce);
        assert_ne!(check("busyread", |e| e.deferrals = 5), Enforcement::InForce);
        assert_eq!(check("busyread", |e| (e.busy_polls, e.deferrals) = (5, 5)), Enforcement::InForce);
        assert_ne!(check("threaded", |_| ()), Enforcement::InForce);
        assert_ne!(check("threaded", |e| e.thread_polls = 5), Enforcement::InForce, "softirq, too");
        assert_eq!(check("threaded", |e| (e.thread_polls, e.softirq_polls) = (5, 0)), Enforcement::InForce);
        assert_ne!(check("base", |e| e.group_polls = 5), Enforcement::InForce);
        assert_ne!(check("group50", |e| e.softirq_polls = 0), Enforcement::InForce);
        assert_ne!(check("group", |e| e.group_polls = 5), Enforcement::InForce, "softirq, too");
        assert_eq!(check("group", |e| (e.group_polls, e.softirq_polls) = (5, 0)), Enforcement::InForce);
    }

    #[test]
    fn a_napi_thread_that_busy_polls_is_known_by_polling_in_vain_and_never_sleeping() {
        let threads = |mode: &str, polls, empty_polls, sleeps| {
            check_with(ThreadsRest::Sleeps { sleeps, empty_polls }, mode, |e| {
                (e.softirq_polls, e.thread_polls) = (0, polls);
            })
        };
        assert_eq!(threads("threaded-busy", 1_000_000, 999_000, 0), Enforcement::InForce);
        assert_eq!(threads("threaded-busy", 1_000, 10, 0), Enforcement::InForce, "there was always work");
        assert_eq!(threads("threaded-busy", 1_000_000, 999_000, 3), Enforcement::InForce, "it slept for a lock");
        assert_ne!(threads("threaded-busy", 1_000, 10, 900), Enforcement::InForce);
        assert_eq!(threads("threaded", 1_000, 10, 900), Enforcement::InForce);
        assert_eq!(threads("threaded", 1_000, 0, 0), Enforcement::InForce, "there was always work");
        assert_eq!(threads("threaded", 1_000, 600, 400), Enforcement::InForce, "woken in vain");
        assert_ne!(threads("threaded", 1_000_000, 999_000, 0), Enforcement::InForce);
    }

    #[test]
    fn in_lulls_own_stack_a_busy_thread_is_known_by_an_instance_that_nobody_schedules() {
        let threads = |mode: &str, schedules| {
            check_with(ThreadsRest::Schedules(schedules), mode, |e| (e.softirq_polls, e.thread_polls) = (0, 5))
        };
        assert_eq!(threads("threaded-busy", 0), Enforcement::InForce);
        assert_ne!(threads("threaded-busy", 1), Enforcement::InForce);
        assert_eq!(threads("threaded", 5), Enforcement::InForce);
    }

    #[test]
    fn a_timer_that_is_late_by_half_its_timeout_is_another_timer() {
        let late = |ns| move |e: &mut Evidence| (e.deferrals, e.lateness_ns) = (5, Some(ns));
        assert_eq!(check("defer20", late(9_000)), Enforcement::InForce);
        assert_eq!(check("defer20", late(18_000)), Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.0 });
        assert_eq!(check("defer200", late(18_000)), Enforcement::InForce);
    }
}
