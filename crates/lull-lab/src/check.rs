//! Whether the mode that was asked for was in force, by counters and by clocks.
//!
//! A mode that is not in force must never look as if it were: a suspended cell shows suspensions, `base` shows none, and a
//! mode that leans on a timer has it only if the timer's median lateness is under half its timeout.

use lull_core::{Mode, Stats, Threaded};

use crate::cell::Verdict;

/// What the counters of a run say.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The NAPIs' counters over the window, summed.
    pub stats: Stats,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Median lateness of the NAPIs' timers, in nanoseconds; `None` if none fired.
    pub lateness_ns: Option<u64>,
    /// Queries answered.
    pub queries: u64,
}

/// The verdict on a run in `mode`.
pub fn verdict(mode: &Mode, evidence: &Evidence) -> Verdict {
    let Evidence { stats, interrupts, .. } = *evidence;
    if evidence.queries == 0 {
        return Verdict::not_in_force("nothing was answered, so there is nothing to see it by");
    }
    let no = |reason: &str| Verdict::not_in_force(reason);
    if mode.suspends() {
        if stats.suspends == 0 {
            return no("no interrupt was suspended");
        }
    } else if stats.suspends != 0 {
        return no("interrupts were suspended");
    }
    if mode.epoll.prefer_busy_poll || mode.epoll.busy_poll_usecs != 0 {
        // Without deferral the interrupts may keep the ready list full, and then epoll_wait need not poll (§8).
        let may_be_idle = mode.suspends() && mode.deferral_ns().is_none();
        if stats.busy_polls == 0 && !may_be_idle {
            return no("nothing was busy polled");
        }
    } else if mode.socket_busy_poll_usecs == 0 && stats.busy_polls != 0 {
        return no("packets were busy polled");
    }
    if mode.socket_busy_poll_usecs != 0 && stats.busy_polls == 0 {
        return no("no receive call found its socket empty, so none busy polled");
    }
    match mode.napi.threaded {
        Threaded::Off if stats.thread_polls != 0 => return no("a NAPI thread polled"),
        Threaded::On if stats.thread_polls == 0 => return no("no NAPI thread polled"),
        Threaded::BusyPoll if stats.thread_polls == 0 || interrupts != 0 => {
            return no("the NAPI thread did not poll alone");
        }
        _ => {}
    }
    match mode.deferral_ns() {
        None if stats.deferrals != 0 => no("interrupts were deferred"),
        Some(_) if stats.deferrals == 0 && !mode.epoll.prefer_busy_poll => no("no interrupt was deferred"),
        Some(timeout_ns) => timed(timeout_ns, evidence.lateness_ns),
        None => Verdict::InForce,
    }
}

/// A timer that is typically late by half its timeout or more is another timer.
pub(crate) fn timed(timeout_ns: u64, lateness_ns: Option<u64>) -> Verdict {
    match lateness_ns {
        Some(late_ns) if late_ns >= timeout_ns / 2 => {
            let us = |ns: u64| ns as f64 / 1_000.0;
            Verdict::TimeoutHad { asked_us: us(timeout_ns), had_us: us(timeout_ns + late_ns) }
        }
        _ => Verdict::InForce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mode: &str, change: impl FnOnce(&mut Evidence)) -> Verdict {
        let mut evidence = Evidence { stats: Stats::default(), interrupts: 10, lateness_ns: None, queries: 100 };
        change(&mut evidence);
        verdict(&mode.parse().unwrap(), &evidence)
    }

    #[test]
    fn base_is_in_force_only_while_nothing_else_happens() {
        assert_eq!(check("base", |_| ()), Verdict::InForce);
        assert_ne!(check("base", |e| e.stats.suspends = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.stats.deferrals = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.stats.busy_polls = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.stats.thread_polls = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.queries = 0), Verdict::InForce);
    }

    #[test]
    fn a_suspended_mode_shows_suspensions() {
        assert_ne!(check("suspend20", |e| e.stats.busy_polls = 5), Verdict::InForce);
        let polls = |e: &mut Evidence| (e.stats.busy_polls, e.stats.suspends) = (5, 5);
        assert_eq!(check("suspend20", polls), Verdict::InForce);
        assert_eq!(check("suspend0", polls), Verdict::InForce);
        assert_eq!(check("suspend0", |e| e.stats.suspends = 5), Verdict::InForce, "interrupts kept the list full");
        assert_ne!(check("fullbusy", |e| e.stats.deferrals = 5), Verdict::InForce);
    }

    #[test]
    fn a_timer_that_is_late_by_half_its_timeout_is_another_timer() {
        let late = |ns| move |e: &mut Evidence| (e.stats.deferrals, e.lateness_ns) = (5, Some(ns));
        assert_eq!(check("defer20", late(9_000)), Verdict::InForce);
        assert_eq!(check("defer20", late(18_000)), Verdict::TimeoutHad { asked_us: 20.0, had_us: 38.0 });
        assert_eq!(check("defer200", late(18_000)), Verdict::InForce);
    }
}
