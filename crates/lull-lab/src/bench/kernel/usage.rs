//! Counters of the kernel around a window, for all threads that poll: the run time of the threads that serve and
//! deliver, the busy time and the softirq time of the server's cores, and how often the server's threads slept.
//!
//! The server's CPU time is the run time of its threads, of NAPI threads and of its cores' ksoftirqd, plus the softirq
//! time of those cores. A thread's run time includes the softirqs that interrupted it, so these count twice; those that
//! ran while the core idled count once. The sum is therefore an upper bound, and it is limited to the time that the
//! cores were busy. It does not include what other programs did on those cores.

use std::fs;
use std::time::Instant;

/// Ticks of `/proc/stat` in a second (`USER_HZ`, the same on every architecture that lull runs on).
const USER_HZ: f64 = 100.0;

/// Counters at one moment, or their difference over a window.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: Instant,
    /// Ticks in which a core was idle or waited for I/O, over all cores.
    idle_ticks: u64,
    /// Ticks in softirq.
    softirq_ticks: u64,
    /// Run time of the threads that serve or deliver, in nanoseconds. `None` if the kernel does not report it.
    run_ns: Option<u64>,
    /// The time for which the server's threads could have run and waited for a core.
    waited_ns: u64,
    /// Times that a thread of the server went to sleep.
    sleeps: u64,
    /// Times that a NAPI's thread went to sleep.
    napi_sleeps: u64,
}

/// The threads whose run time is the server's CPU time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads<'a> {
    /// The service's threads.
    pub server: &'a [i32],
    /// The ksoftirqd threads of its cores.
    pub ksoftirqds: &'a [i32],
    /// The threads of the NAPIs, if they have some.
    pub napi: &'a [i32],
}

/// What was used between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// Wall time, in seconds.
    pub seconds: f64,
    /// Busy time of the cores, in percent of them.
    pub busy_percent: f64,
    /// CPU time of the server, in seconds.
    pub cpu_s: f64,
    /// The CPU time of the server in percent of the cores.
    pub cpu_percent: f64,
    /// The time for which the server's threads could have run and waited for a core, in seconds.
    pub waited_s: f64,
    /// Time in softirq in milliseconds, with the precision of the kernel's tick.
    pub softirq_ms: f64,
    /// Times that a thread of the server went to sleep.
    pub sleeps: u64,
    /// Times that a NAPI's thread went to sleep.
    pub napi_sleeps: u64,
}

impl Usage {
    /// Reads the counters of `cores` and of the threads.
    pub fn read(cores: &[usize], threads: Threads<'_>) -> Usage {
        let Threads { server, ksoftirqds, napi } = threads;
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let of_cores: Vec<Vec<u64>> = cores.iter().filter_map(|core| core_ticks(&stat, *core)).collect();
        let sum = |field: usize| of_cores.iter().filter_map(|ticks| ticks.get(field)).sum::<u64>();
        Usage {
            at: Instant::now(),
            idle_ticks: sum(3) + sum(4),
            softirq_ticks: sum(6),
            run_ns: server.iter().chain(ksoftirqds).chain(napi).map(|tid| run_ns(*tid)).sum(),
            waited_ns: server.iter().filter_map(|tid| waited_ns(*tid)).sum(),
            sleeps: server.iter().filter_map(|tid| sleeps(*tid)).sum(),
            napi_sleeps: napi.iter().filter_map(|tid| sleeps(*tid)).sum(),
        }
    }

    /// Returns what was used since `before` on this number of cores.
    pub fn since(&self, before: &Usage, cores: usize) -> Used {
        let seconds = (self.at - before.at).as_secs_f64();
        let idle_s = self.idle_ticks.saturating_sub(before.idle_ticks) as f64 / USER_HZ;
        let all_s = seconds * cores as f64;
        let busy_s = (all_s - idle_s).clamp(0.0, all_s);
        let softirq_s = self.softirq_ticks.saturating_sub(before.softirq_ticks) as f64 / USER_HZ;
        let run_s = self.run_ns.zip(before.run_ns).map(|(now, then)| now.saturating_sub(then) as f64 / 1e9);
        let cpu_s = run_s.map_or(busy_s, |run_s| (run_s + softirq_s).min(busy_s));
        let percent = |s: f64| 100.0 * s / all_s.max(f64::MIN_POSITIVE);
        Used {
            seconds,
            busy_percent: percent(busy_s),
            cpu_percent: percent(cpu_s),
            cpu_s,
            waited_s: self.waited_ns.saturating_sub(before.waited_ns) as f64 / 1e9,
            softirq_ms: softirq_s * 1e3,
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            napi_sleeps: self.napi_sleeps.saturating_sub(before.napi_sleeps),
        }
    }
}

/// The ticks of one core, in the order of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal and so
/// on.
fn core_ticks(stat: &str, core: usize) -> Option<Vec<u64>> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    Some(line.split_whitespace().skip(1).map_while(|ticks| ticks.parse().ok()).collect())
}

/// Returns the ids of the threads that take softirqs over on these cores.
pub fn ksoftirqds(cores: &[usize]) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let tid = |entry: fs::DirEntry| {
        let tid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let core: usize = name.trim_end().strip_prefix("ksoftirqd/")?.parse().ok()?;
        cores.contains(&core).then_some(tid)
    };
    entries.filter_map(tid).collect()
}

/// Returns the run time of a thread, or `None` if it has ended or the kernel does not count it.
pub(crate) fn run_ns(tid: i32) -> Option<u64> {
    schedstat(tid, 0)
}

/// Returns how long a thread could have run and waited for a core, or `None` for the same reasons.
fn waited_ns(tid: i32) -> Option<u64> {
    schedstat(tid, 1)
}

fn schedstat(tid: i32, field: usize) -> Option<u64> {
    fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?.split_whitespace().nth(field)?.parse().ok()
}

/// Returns the number of voluntary switches of a thread, or `None` if it has ended.
pub(crate) fn sleeps(tid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_not_idle_is_busy() {
        let before =
            Usage { idle_ticks: 100, softirq_ticks: 5, run_ns: Some(7), ..Usage::read(&[], Threads::default()) };
        let after = Usage {
            at: before.at + Duration::from_secs(2),
            idle_ticks: 200,
            softirq_ticks: 15,
            run_ns: Some(1_000_000_007),
            waited_ns: before.waited_ns + 500_000_000,
            sleeps: 3,
            napi_sleeps: 2,
        };
        let used = after.since(&before, 2);
        assert_eq!((used.busy_percent, used.softirq_ms), (75.0, 100.0));
        assert_eq!((used.sleeps, used.napi_sleeps, used.waited_s), (3, 2, 0.5));
        assert_eq!((used.cpu_s, used.cpu_percent.round()), (1.1, 28.0), "the threads' time and the softirqs'");
        let busier = Usage { run_ns: Some(9_000_000_000), ..after };
        assert_eq!(busier.since(&before, 2).cpu_s, 3.0, "never more than the cores were busy");
        let untold = Usage { run_ns: None, ..after };
        assert_eq!(untold.since(&before, 2).cpu_s, 3.0, "all that was busy, where threads are not told apart");
    }

    #[test]
    fn threads_that_are_there_are_counted() {
        let read = |tid| Usage::read(&[0], Threads { server: &[tid], ..Threads::default() });
        assert!(read(std::process::id() as i32).run_ns.is_none_or(|ns| ns > 0));
        assert_eq!(read(i32::MAX).run_ns, None);
    }

    #[test]
    fn cores_are_told_apart() {
        let stat = "cpu  9 9\ncpu1 1 2 3 4 5 6 7 8\ncpu10 8 7 6 5\n";
        assert_eq!(core_ticks(stat, 1), Some(vec![1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(core_ticks(stat, 10), Some(vec![8, 7, 6, 5]));
        assert_eq!(core_ticks(stat, 2), None);
    }
}
