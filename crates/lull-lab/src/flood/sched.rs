//! The scheduler's counters of threads (`/proc/PID/task/TID/schedstat`): how long they ran, how long they could have
//! run and waited, and how often they were run.

use std::fs;

/// The share of each second that real-time threads may use, in millionths. -1 means all of it.
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// The counters of some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    run_ns: u64,
    wait_ns: u64,
    slices: u64,
}

impl SchedStat {
    /// Returns the sum over threads, of any process. A thread that has ended does not count.
    pub fn read(tids: &[i32]) -> SchedStat {
        tids.iter().filter_map(|tid| parse(&fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?)).fold(
            SchedStat::default(),
            |all, one| SchedStat {
                run_ns: all.run_ns + one.run_ns,
                wait_ns: all.wait_ns + one.wait_ns,
                slices: all.slices + one.slices,
            },
        )
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &SchedStat) -> SchedStat {
        SchedStat {
            run_ns: self.run_ns.saturating_sub(before.run_ns),
            wait_ns: self.wait_ns.saturating_sub(before.wait_ns),
            slices: self.slices.saturating_sub(before.slices),
        }
    }

    /// Whether any of them ran.
    pub fn ran(&self) -> bool {
        self.run_ns > 0
    }

    /// Returns the share of the time in which one thread ran or could have run: 1 for a thread that never slept.
    pub fn awake_share(&self, seconds: f64) -> f64 {
        (self.run_ns + self.wait_ns) as f64 / 1e9 / seconds
    }

    /// Returns the time for which they ran, in percent of one core.
    pub fn run_percent(&self, seconds: f64) -> f64 {
        self.run_ns as f64 / 1e7 / seconds
    }

    /// Returns how long they waited each time before they ran, or `None` if they never did.
    pub fn wait_us(&self) -> Option<f64> {
        (self.slices > 0).then(|| self.wait_ns as f64 / 1e3 / self.slices as f64)
    }
}

fn parse(text: &str) -> Option<SchedStat> {
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    Some(SchedStat { run_ns: next()?, wait_ns: next()?, slices: next()? })
}

/// Returns a note that the kernel limits the time of real-time threads, which it does not do for interrupts.
pub fn throttle_note() -> Option<String> {
    let left = fs::read_to_string(THROTTLE).ok()?.trim().parse::<i64>().ok()?;
    (left >= 0).then(|| {
        format!(
            "The kernel lets real-time threads run for {:.1} % of each second at most (sched_rt_runtime_us), so softirq-fifo \
             leaves the sinks the rest, which interrupts would not.",
            left as f64 / 1e4
        )
    })
}

#[cfg(test)]
impl SchedStat {
    /// Makes the counters of a thread that ran for one time, and waited for the other.
    pub fn of_ns(run_ns: u64, wait_ns: u64) -> SchedStat {
        SchedStat { run_ns, wait_ns, slices: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_runs_and_one_that_is_not_there_counts_nothing() {
        let own = lull_host::thread_id();
        let before = SchedStat::read(&[own]);
        while !SchedStat::read(&[own]).since(&before).ran() {
            std::hint::spin_loop();
        }
        assert_eq!(SchedStat::read(&[i32::MAX]), SchedStat::default());
        let parsed = parse("2000000 1000000 4\n").unwrap();
        assert_eq!((parsed.run_percent(0.01), parsed.wait_us()), (20.0, Some(250.0)));
        assert_eq!(SchedStat::default().wait_us(), None);
    }
}
