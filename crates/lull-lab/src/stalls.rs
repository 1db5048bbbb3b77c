//! Detects whether the machine stands still at times: a hypervisor that runs another machine, or firmware, takes a core
//! from everything on it for milliseconds. A percentile that is measured meanwhile shows that, and not the service.
//!
//! A thread that spins sees such a time as a gap between two readings of the clock. If the kernel has switched it out
//! meanwhile, another thread ran, and the gap is no stall.

use std::io;
use std::time::{Duration, Instant};

use lull_host::pin_thread;

/// Shorter gaps are taken for interrupts.
const GAP: Duration = Duration::from_micros(50);

/// The observations while some cores were watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stalls {
    /// How long each core was watched.
    watched_s: f64,
    /// The stalls of all of them, in seconds.
    stalls_s: Vec<f64>,
}

impl Stalls {
    /// Makes the observations of cores that were watched for this time.
    pub fn new(watched: Duration, stalls: &[Duration]) -> Stalls {
        Stalls { watched_s: watched.as_secs_f64(), stalls_s: stalls.iter().map(Duration::as_secs_f64).collect() }
    }

    /// Adds the observations of another time.
    pub fn add(&mut self, other: &Stalls) {
        self.watched_s += other.watched_s;
        self.stalls_s.extend(&other.stalls_s);
    }

    /// Returns the share of requests, at even times, that wait for longer than this for stalls alone, because they
    /// arrive early enough in one. A request passes every core.
    pub fn share_beyond(&self, limit_s: f64) -> f64 {
        self.over(|stall_s| (stall_s - limit_s).max(0.0))
    }

    /// Returns the time that stalls add to the mean wait of a request, in seconds.
    pub fn mean_s(&self) -> f64 {
        self.over(|stall_s| stall_s * stall_s / 2.0)
    }

    /// Returns the share of the time for which a core stands still, summed over all cores, and the longest stall in
    /// seconds.
    pub fn share_and_longest(&self) -> (f64, f64) {
        (self.over(|stall_s| stall_s), self.stalls_s.iter().copied().fold(0.0, f64::max))
    }

    fn over(&self, of: impl Fn(f64) -> f64) -> f64 {
        if self.watched_s > 0.0 {
            self.stalls_s.iter().map(|stall_s| of(*stall_s)).sum::<f64>() / self.watched_s
        } else {
            0.0
        }
    }
}

/// Watches some cores at once, each with a thread that spins on it.
///
/// # Errors
///
/// This fails if this process may not use one of the cores.
pub fn watch(cores: &[usize], time: Duration) -> io::Result<Stalls> {
    let of_cores = std::thread::scope(|scope| {
        let watching: Vec<_> = cores.iter().map(|core| scope.spawn(move || watch_core(*core, time))).collect();
        let joined =
            watching.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<io::Result<Vec<Stalls>>>()
    })?;
    let mut all = Stalls::default();
    of_cores.iter().for_each(|of_core| all.add(of_core));
    all.watched_s /= cores.len().max(1) as f64;
    Ok(all)
}

fn watch_core(core: usize, time: Duration) -> io::Result<Stalls> {
    pin_thread(&[core])?;
    let (mut stalls, mut away) = (Vec::new(), Duration::ZERO);
    let mut before = switches()?;
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        let now = Instant::now();
        let gap = now - last;
        last = now;
        if gap > GAP {
            let switched = switches()?;
            if switched == before {
                stalls.push(gap)
            } else {
                away += gap
            }
            before = switched;
            last = Instant::now();
        }
    }
    Ok(Stalls::new(start.elapsed().saturating_sub(away), &stalls))
}

/// Returns how often the kernel has switched the calling thread out for another one.
fn switches() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")?.trim().parse().ok());
    count.ok_or_else(|| io::Error::other("/proc/thread-self/status does not say how often the thread was switched out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_delays_those_that_come_early_in_it() {
        let mut stalls = Stalls::new(Duration::from_secs(1), &[Duration::from_millis(10)]);
        assert_eq!(stalls.share_and_longest(), (0.01, 0.01));
        assert!((stalls.share_beyond(0.004) - 0.006).abs() < 1e-12);
        assert_eq!(stalls.share_beyond(0.02), 0.0);
        assert!((stalls.mean_s() - 50e-6).abs() < 1e-12);
        stalls.add(&Stalls::new(Duration::from_secs(1), &[]));
        assert_eq!(stalls.share_and_longest(), (0.005, 0.01));
        assert_eq!(Stalls::default().share_beyond(0.0), 0.0);
    }

    #[test]
    fn a_thread_that_is_switched_out_has_not_stalled() {
        let core = lull_host::usable_cores()[0];
        let (watched, other) = std::thread::scope(|scope| {
            // Two threads spin on a core for longer than the scheduler lets one run, so that each is switched out for
            // the other.
            let both = [(); 2].map(|()| scope.spawn(move || watch_core(core, Duration::from_millis(300)).unwrap()));
            both.map(|one| one.join().unwrap()).into()
        });
        for seen in [&watched, &other] {
            let (share, _) = seen.share_and_longest();
            assert!(seen.watched_s > 0.0 && share < 1.0, "{seen:?}");
        }
    }
}
