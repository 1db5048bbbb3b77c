//! What the kernel counts around a window, whoever polled: busy time and softirq time of the server's cores, and how
//! often its threads slept.

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
    /// Times that a thread of the server went to sleep.
    sleeps: u64,
}

/// What happened between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Wall time, in seconds.
    pub seconds: f64,
    /// Busy time of the cores, in percent of them.
    pub busy_percent: f64,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Time in softirq, in milliseconds, to the kernel's tick.
    pub softirq_ms: f64,
    /// Times that a thread of the server went to sleep.
    pub sleeps: u64,
}

impl Usage {
    /// Reads the counters of `cores` and of the threads `tids`.
    pub fn read(cores: &[usize], tids: &[i32]) -> Usage {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let of_cores: Vec<Vec<u64>> = cores.iter().filter_map(|core| core_ticks(&stat, *core)).collect();
        let sum = |field: usize| of_cores.iter().filter_map(|ticks| ticks.get(field)).sum::<u64>();
        Usage {
            at: Instant::now(),
            idle_ticks: sum(3) + sum(4),
            softirq_ticks: sum(6),
            sleeps: tids.iter().filter_map(|tid| sleeps(*tid)).sum(),
        }
    }

    /// What happened since `before` on so many cores.
    pub fn since(&self, before: &Usage, cores: usize) -> Used {
        let seconds = (self.at - before.at).as_secs_f64();
        let idle_s = self.idle_ticks.saturating_sub(before.idle_ticks) as f64 / USER_HZ;
        let all_s = seconds * cores as f64;
        let cpu_s = (all_s - idle_s).clamp(0.0, all_s);
        Used {
            seconds,
            busy_percent: 100.0 * cpu_s / all_s.max(f64::MIN_POSITIVE),
            cpu_s,
            softirq_ms: self.softirq_ticks.saturating_sub(before.softirq_ticks) as f64 * 1_000.0 / USER_HZ,
            sleeps: self.sleeps.saturating_sub(before.sleeps),
        }
    }
}

/// user, nice, system, idle, iowait, irq, softirq, steal, ... of one core.
fn core_ticks(stat: &str, core: usize) -> Option<Vec<u64>> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    Some(line.split_whitespace().skip(1).map_while(|ticks| ticks.parse().ok()).collect())
}

/// Voluntary switches of a thread; `None` if it has ended.
fn sleeps(tid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = Usage { at: Instant::now(), idle_ticks: 100, softirq_ticks: 5, sleeps: 1 };
        let after = Usage { at: before.at + Duration::from_secs(2), idle_ticks: 200, softirq_ticks: 15, sleeps: 4 };
        let used = after.since(&before, 2);
        assert_eq!((used.busy_percent, used.cpu_s, used.softirq_ms, used.sleeps), (75.0, 3.0, 100.0, 3));
    }

    #[test]
    fn cores_are_told_apart() {
        let stat = "cpu  9 9\ncpu1 1 2 3 4 5 6 7 8\ncpu10 8 7 6 5\n";
        assert_eq!(core_ticks(stat, 1), Some(vec![1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(core_ticks(stat, 10), Some(vec![8, 7, 6, 5]));
        assert_eq!(core_ticks(stat, 2), None);
    }
}
