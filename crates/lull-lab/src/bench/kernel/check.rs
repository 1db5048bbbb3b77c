//! Whether a mode was in force in the kernel, by who polled and by what its timers were set to.

use lull_core::{Mode, Threaded};

use crate::cell::Verdict;

/// What the trace of a run says of the server's NAPIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Polls by the server's threads in process context.
    pub busy_polls: u64,
    /// Polls by NAPI threads.
    pub thread_polls: u64,
    /// Those of them that found nothing.
    pub thread_empty: u64,
    /// Times that a NAPI thread went to sleep.
    pub thread_sleeps: u64,
    /// Polls by softirq, whatever raised it.
    pub softirq_polls: u64,
    /// Timers set for as long as a deferral.
    pub deferrals: u64,
    /// Timers set for as long as a suspension.
    pub suspensions: u64,
    /// Median lateness of the deferral's timers, in nanoseconds.
    pub lateness_ns: Option<u64>,
    /// Queries answered.
    pub queries: u64,
}

impl Evidence {
    /// Whether the NAPI threads busy polled: such a thread never sleeps (`napi_threaded_poll_loop`), and where it did,
    /// for a lock of a real-time kernel, it still polls in vain for most of the time. A thread that is woken for its
    /// work finds some, and sleeps after it.
    fn threads_busy_polled(&self) -> bool {
        self.thread_sleeps == 0 || self.polled_in_vain()
    }

    fn polled_in_vain(&self) -> bool {
        self.thread_empty * 2 > self.thread_polls
    }
}

/// From how far ahead a timer counts as a suspension's: half way between the two timeouts. A mode that does not suspend
/// has no such time, so that any timer is its deferral's.
pub fn split_ns(mode: &Mode) -> u64 {
    let napi = &mode.napi;
    match napi.irq_suspend_timeout_ns {
        0 => u64::MAX,
        suspend => napi.gro_flush_timeout_ns.midpoint(suspend.max(napi.gro_flush_timeout_ns)),
    }
}

/// The verdict on a run in `mode`.
pub fn verdict(mode: &Mode, evidence: &Evidence) -> Verdict {
    let no = |reason: &str| Verdict::not_in_force(reason);
    if evidence.queries == 0 {
        return no("nothing was answered, so there is nothing to see it by");
    }
    if mode.epoll.prefer_busy_poll || mode.epoll.busy_poll_usecs != 0 {
        // Without deferral the interrupts may keep the ready list full, and then epoll_wait need not poll (§8).
        let may_be_idle = mode.suspends() && mode.deferral_ns().is_none();
        if evidence.busy_polls == 0 && !may_be_idle {
            return no("the server busy polled nothing");
        }
    } else if evidence.busy_polls != 0 {
        return no("the server busy polled");
    }
    match (mode.suspends(), evidence.suspensions) {
        (true, 0) => return no("no timer was set for a suspension"),
        (false, n) if n > 0 => return no("a timer was set for a suspension"),
        _ => {}
    }
    match mode.napi.threaded {
        Threaded::Off if evidence.thread_polls != 0 => return no("a NAPI thread polled"),
        Threaded::On | Threaded::BusyPoll if evidence.thread_polls == 0 => return no("no NAPI thread polled"),
        Threaded::On | Threaded::BusyPoll if evidence.softirq_polls != 0 => {
            return no("softirq polled beside the NAPI thread");
        }
        Threaded::BusyPoll if !evidence.threads_busy_polled() => {
            return no("the NAPI thread slept until there was work: it did not busy poll");
        }
        Threaded::On if evidence.thread_sleeps == 0 && evidence.polled_in_vain() => {
            return no("the NAPI thread busy polled");
        }
        _ => {}
    }
    match mode.deferral_ns() {
        None if evidence.deferrals != 0 => no("interrupts were deferred: a timer was set"),
        Some(_) if evidence.deferrals == 0 => no("no interrupt was deferred: no timer was set"),
        Some(timeout_ns) => crate::check::timed(timeout_ns, evidence.lateness_ns),
        None => Verdict::InForce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mode: &str, change: impl FnOnce(&mut Evidence)) -> Verdict {
        let mut evidence = Evidence { softirq_polls: 10, queries: 100, ..Evidence::default() };
        change(&mut evidence);
        verdict(&mode.parse().unwrap(), &evidence)
    }

    #[test]
    fn base_is_softirq_without_a_timer() {
        assert_eq!(check("base", |_| ()), Verdict::InForce);
        assert_ne!(check("base", |e| e.queries = 0), Verdict::InForce);
        assert_ne!(check("base", |e| e.busy_polls = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.deferrals = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.suspensions = 1), Verdict::InForce);
        assert_ne!(check("base", |e| e.thread_polls = 1), Verdict::InForce);
    }

    #[test]
    fn each_mode_is_known_by_its_traces() {
        let polls = |e: &mut Evidence| (e.busy_polls, e.deferrals, e.suspensions) = (5, 5, 5);
        assert_eq!(check("suspend20", polls), Verdict::InForce);
        assert_ne!(check("napibusy", polls), Verdict::InForce, "it suspends nothing");
        assert_ne!(check("suspend20", |e| (e.busy_polls, e.deferrals) = (5, 5)), Verdict::InForce);
        assert_ne!(check("suspend20", |e| (e.suspensions, e.deferrals) = (5, 5)), Verdict::InForce);
        assert_eq!(check("suspend0", |e| e.suspensions = 5), Verdict::InForce, "interrupts kept the list full");
        assert_ne!(check("defer20", |_| ()), Verdict::InForce);
        assert_eq!(check("defer20", |e| e.deferrals = 5), Verdict::InForce);
        let late = Verdict::TimeoutHad { asked_us: 20.0, had_us: 38.0 };
        assert_eq!(check("defer20", |e| (e.deferrals, e.lateness_ns) = (5, Some(18_000))), late);
        assert_ne!(check("threaded", |_| ()), Verdict::InForce);
        assert_ne!(check("threaded", |e| e.thread_polls = 5), Verdict::InForce, "softirq, too");
        assert_eq!(check("threaded", |e| (e.thread_polls, e.softirq_polls) = (5, 0)), Verdict::InForce);
    }

    #[test]
    fn a_napi_thread_that_busy_polls_is_known_by_polling_in_vain_and_never_sleeping() {
        let threads = |polls, empty, sleeps| {
            move |e: &mut Evidence| {
                (e.softirq_polls, e.thread_polls, e.thread_empty, e.thread_sleeps) = (0, polls, empty, sleeps);
            }
        };
        assert_eq!(check("threaded-busy", threads(1_000_000, 999_000, 0)), Verdict::InForce);
        assert_eq!(check("threaded-busy", threads(1_000, 10, 0)), Verdict::InForce, "there was always work");
        assert_eq!(check("threaded-busy", threads(1_000_000, 999_000, 3)), Verdict::InForce, "it slept for a lock");
        assert_ne!(check("threaded-busy", threads(1_000, 10, 900)), Verdict::InForce);
        assert_eq!(check("threaded", threads(1_000, 10, 900)), Verdict::InForce);
        assert_eq!(check("threaded", threads(1_000, 0, 0)), Verdict::InForce, "there was always work");
        assert_eq!(check("threaded", threads(1_000, 600, 400)), Verdict::InForce, "woken in vain");
        assert_ne!(check("threaded", threads(1_000_000, 999_000, 0)), Verdict::InForce);
    }

    #[test]
    fn a_timer_is_a_suspensions_only_where_there_are_some() {
        let split = |mode: &str| split_ns(&mode.parse().unwrap());
        assert_eq!(split("defer20"), u64::MAX);
        assert_eq!(split("suspend20"), 10_010_000);
        assert_eq!(split("suspend0"), 10_000_000);
    }
}
