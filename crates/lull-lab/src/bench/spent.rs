//! The CPU time of threads between two moments, and how much of it went into more than empty polls.
//!
//! A thread that polls without pause takes a whole core, however little there is to do. So its CPU time does not say
//! whether the server was the limit; the time in which its polls found something does.

use lull_host::Host;

/// CPU time of threads, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadTimes(Vec<(i32, u64)>);

impl ThreadTimes {
    /// Reads the time of each thread with `ns`. A thread that has ended has none.
    pub fn read(tids: impl IntoIterator<Item = i32>, ns: impl Fn(i32) -> Option<u64>) -> ThreadTimes {
        ThreadTimes(tids.into_iter().filter_map(|tid| Some((tid, ns(tid)?))).collect())
    }

    /// Returns what one thread has used since `before`, or all that it has used if it began later.
    fn of(&self, tid: i32, before: &ThreadTimes) -> u64 {
        let at = |times: &ThreadTimes| times.0.iter().find(|(known, _)| *known == tid).map_or(0, |(_, ns)| *ns);
        at(self).saturating_sub(at(before))
    }

    /// Returns what the threads have used since `before`, in nanoseconds. A thread that has ended meanwhile is not
    /// counted, because its time is not known.
    pub fn since(&self, before: &ThreadTimes) -> u64 {
        self.0.iter().map(|(tid, _)| self.of(*tid, before)).sum()
    }
}

/// The pollers of CPU groups, at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Pollers(Vec<Poller>);

#[derive(Clone, Copy, Debug)]
struct Poller {
    tid: i32,
    core: Option<usize>,
    /// Nanoseconds of passes that found something, and of those that found nothing.
    busy_ns: u64,
    empty_ns: u64,
}

impl Pollers {
    /// Reads the pollers of a host.
    pub fn of(host: &Host) -> Pollers {
        let pollers = host.groups().into_iter().flat_map(|group| group.pollers);
        Pollers(
            pollers
                .map(|poller| Poller {
                    tid: poller.tid,
                    core: poller.core,
                    busy_ns: poller.info.stats.busy_ns,
                    empty_ns: poller.info.stats.empty_ns,
                })
                .collect(),
        )
    }

    fn before(&self, tid: i32) -> (u64, u64) {
        self.0.iter().find(|poller| poller.tid == tid).map_or((0, 0), |poller| (poller.busy_ns, poller.empty_ns))
    }
}

/// The CPU times at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    pub threads: ThreadTimes,
    pub pollers: Pollers,
    /// The time that threads other than a group's pollers have polled in vain.
    pub vain_ns: u64,
}

impl Spent {
    /// Returns how busy the server was since `before` apart from empty polls, in percent of its cores. Pollers on cores
    /// of their own can be the limit by themselves, as the workers can. The busiest poller counts, because others are
    /// parked when one is enough.
    pub fn busy_percent(&self, before: &Spent, window_ns: u64, worker_cores: &[usize]) -> f64 {
        let percent = |ns: f64, cores: usize| 100.0 * ns / (window_ns as f64 * cores as f64).max(f64::MIN_POSITIVE);
        let (mut pollers_ns, mut working_ns, mut busiest_ns) = (0, 0.0, 0.0_f64);
        for poller in &self.pollers.0 {
            let took_ns = self.threads.of(poller.tid, &before.threads);
            let then = before.pollers.before(poller.tid);
            let busy_ns = poller.busy_ns.saturating_sub(then.0) as f64;
            let passes_ns = busy_ns + poller.empty_ns.saturating_sub(then.1) as f64;
            pollers_ns += took_ns;
            // Passes are timed by the clock, so they include time in which the thread waited for its core.
            let of_poller_ns = took_ns as f64 * if passes_ns > 0.0 { busy_ns / passes_ns } else { 0.0 };
            working_ns += of_poller_ns;
            busiest_ns = busiest_ns.max(of_poller_ns);
        }
        let vain_ns = self.vain_ns.saturating_sub(before.vain_ns);
        let others_ns = self.threads.since(&before.threads).saturating_sub(pollers_ns).saturating_sub(vain_ns) as f64;
        let shared = self.pollers.0.iter().any(|poller| poller.core.is_some_and(|core| worker_cores.contains(&core)));
        if shared {
            return percent(others_ns + working_ns, worker_cores.len());
        }
        percent(others_ns, worker_cores.len()).max(percent(busiest_ns, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: &[(i32, u64)]) -> ThreadTimes {
        ThreadTimes(of.to_vec())
    }

    #[test]
    fn a_thread_that_ends_between_two_moments_takes_nothing_from_the_others() {
        let before = times(&[(1, 100), (2, 5_000)]);
        assert_eq!(times(&[(1, 150)]).since(&before), 50, "thread 2 has ended");
        assert_eq!(times(&[(1, 150), (3, 7)]).since(&before), 57, "thread 3 is new");
        assert_eq!(times(&[(1, 150), (2, 4)]).since(&before), 50, "another thread has the number now");
        assert_eq!(ThreadTimes::read([1, 2], |tid| (tid == 1).then_some(9)), times(&[(1, 9)]));
    }

    #[test]
    fn what_is_polled_in_vain_is_not_busy() {
        let at = |ns, vain_ns| Spent { threads: times(&[(1, ns)]), vain_ns, ..Spent::default() };
        assert_eq!(at(1_000, 0).busy_percent(&at(0, 0), 1_000, &[4]), 100.0);
        assert_eq!(at(1_000, 400).busy_percent(&at(0, 0), 1_000, &[4]), 60.0);
        assert_eq!(at(1_000, 400).busy_percent(&at(500, 300), 1_000, &[4]), 40.0);
        assert_eq!(at(1_000, 400).busy_percent(&at(0, 0), 1_000, &[4, 5]), 30.0);
        assert_eq!(at(100, 400).busy_percent(&at(0, 0), 1_000, &[4]), 0.0, "never less than nothing");
    }

    #[test]
    fn pollers_of_a_group_are_the_limit_by_themselves_or_are_not() {
        let poller = |busy_ns, empty_ns, core| Pollers(vec![Poller { tid: 2, core: Some(core), busy_ns, empty_ns }]);
        let at = |worker_ns, pollers| Spent { threads: times(&[(1, worker_ns), (2, 1_000)]), pollers, vain_ns: 0 };
        let busy = |worker_ns, busy_ns, core| {
            at(worker_ns, poller(busy_ns, 1_000 - busy_ns, core)).busy_percent(&Spent::default(), 1_000, &[4])
        };
        assert_eq!(busy(550, 450, 5), 55.0, "neither is full, though both together take more than the workers' core");
        assert_eq!(busy(550, 990, 5), 99.0);
        assert_eq!(busy(995, 10, 5), 99.5);
        assert_eq!(busy(550, 400, 4), 95.0, "they share the core");
        let parked = Poller { tid: 3, core: Some(6), busy_ns: 0, empty_ns: 0 };
        let with_parked = Pollers(poller(990, 10, 5).0.into_iter().chain([parked]).collect());
        assert_eq!(at(550, with_parked).busy_percent(&Spent::default(), 1_000, &[4]), 99.0, "one is parked");
    }
}
