//! What the scheduler counts of threads (`/proc/PID/task/TID/schedstat`): how long they ran, how long they could have run
//! and waited, and how often they were run.

use std::fs;

/// The share of each second that real-time threads leave to others, in millionths; -1: none.
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Counters of some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    run_ns: u64,
    wait_ns: u64,
    slices: u64,
}

impl SchedStat {
    /// The sum over threads, of any process. One that ended counts no more.
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

    /// What was added since `before`.
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

    /// Share of the time in which they ran or could have run, of one thread: all of it, of one that never slept.
    pub fn awake_share(&self, seconds: f64) -> f64 {
        (self.run_ns + self.wait_ns) as f64 / 1e9 / seconds
    }

    /// Time that they ran, of one core.
    pub fn run_percent(&self, seconds: f64) -> f64 {
        self.run_ns as f64 / 1e7 / seconds
    }

    /// How long they waited for each time that they ran; `None` if they never did.
    pub fn wait_us(&self) -> Option<f64> {
        (self.slices > 0).then(|| self.wait_ns as f64 / 1e3 / self.slices as f64)
    }
}

fn parse(text: &str) -> Option<SchedStat> {
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    Some(SchedStat { run_ns: next()?, wait_ns: next()?, slices: next()? })
}

/// What the kernel takes from real-time threads, which an interrupt does not have to give.
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
    /// A thread that ran for so long, and waited for so long.
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
