//! One cell, run once, on any plane: the load, the window in it, and the row that comes of both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{BenchConfig, BenchError, Run};
use crate::cell::RunResult;
use crate::check::{Evidence, enforcement};
use crate::hardware::{HardwareCounters, HardwareCounts};
use crate::load::{Pace, Summary};

/// How late a stop is noticed.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// What the generator measured, and what was read at the two ends of its window.
pub(super) struct Windowed<M> {
    pub summary: Summary,
    pub before: M,
    pub after: M,
    /// What the hardware counted of the threads in between, where it counts.
    pub hardware: Option<HardwareCounts>,
}

/// Runs the load, has the hardware count `threads`, and reads `mark` around its window; `end` runs when the window is
/// over, while the generator may still wait for its last answers.
pub(super) fn around<M>(
    run: &Run<'_>,
    threads: &[i32],
    generate: impl FnOnce() -> Result<Summary, BenchError> + Send,
    mut mark: impl FnMut() -> M,
    end: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Windowed<M>, BenchError> {
    std::thread::scope(|scope| {
        let generating = scope.spawn(generate);
        pass(run.warm_up, run.stop);
        let mut counters = HardwareCounters::open(threads);
        let before = mark();
        pass(run.window, run.stop);
        let after = mark();
        let hardware = counters.as_mut().and_then(HardwareCounters::read);
        let ended = end();
        let summary = generating.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))?;
        ended?;
        Ok(Windowed { summary: summary?, before, after, hardware })
    })
}

/// Waits for `time`, or until it is stopped.
fn pass(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(STOP_INTERVAL));
    }
}

/// How the generator asks in such a run.
pub(super) fn pace(config: &BenchConfig, run: &Run<'_>) -> Pace {
    match run.offered_qps {
        None => Pace::Closed { depth: config.depth },
        Some(qps) => Pace::Open { qps, arrivals: config.arrivals, depth: config.depth },
    }
}

/// What the server's side counted in a window.
pub(super) struct Counted {
    /// The window's length.
    pub seconds: f64,
    /// CPU time of every thread that serves or delivers.
    pub cpu_s: f64,
    /// Cores of the server.
    pub cores: usize,
    /// How busy those cores were, in percent, where they are watched from outside.
    pub busy_percent: Option<f64>,
    /// The cycle counter's rate, where it is steady.
    pub tsc_khz: Option<u64>,
    pub hardware: Option<HardwareCounts>,
    pub evidence: Evidence,
}

/// The row of a run: what both planes have. The rest is the plane's to fill in.
pub(super) fn row(run: &Run<'_>, summary: &Summary, counted: &Counted) -> RunResult {
    let Counted { seconds, cpu_s, .. } = *counted;
    let answered = summary.received > 0;
    let us = |ns: u64| answered.then(|| ns as f64 / 1_000.0);
    let queries = summary.qps * seconds;
    let cpu_percent = 100.0 * cpu_s / (seconds * counted.cores as f64).max(f64::MIN_POSITIVE);
    // The hardware counts the cycles of all runs or of none: a column does not mix the two.
    let cycles = match crate::hardware::availability() {
        Ok(()) => counted.hardware.map(|counts| counts.cycles as f64),
        Err(_) => counted.tsc_khz.map(|khz| cpu_s * khz as f64 * 1e3),
    };
    let per_query = |count: Option<f64>| count.filter(|_| queries > 0.0).map(|count| count / queries);
    RunResult {
        offered_qps: run.offered_qps,
        avg_latency_us: answered.then(|| summary.latency_avg_ns / 1_000.0),
        p50_latency_us: us(summary.latency_p50_ns),
        p95_latency_us: us(summary.latency_p95_ns),
        p99_latency_us: us(summary.latency_p99_ns),
        cpu_percent: Some(cpu_percent),
        server_cpu_percent: Some(counted.busy_percent.unwrap_or(cpu_percent)),
        generator_busy_percent: Some(100.0 * summary.busy_fraction),
        kept_up: run.offered_qps.is_none() || summary.kept_up,
        cycles_per_query: per_query(cycles),
        instructions_per_query: per_query(counted.hardware.map(|counts| counts.instructions as f64)),
        generator_lag_us: us(summary.lag_p99_ns),
        timer_lag_us: counted.evidence.lateness_ns.map(|ns| ns as f64 / 1_000.0),
        suspensions: Some(counted.evidence.suspensions),
        verdict: enforcement(run.mode, &counted.evidence),
        ..RunResult::new(run.mode.name(), run.load, run.run, seconds, summary.qps)
    }
}
