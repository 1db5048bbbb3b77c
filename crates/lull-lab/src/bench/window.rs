//! One run of one cell, on any plane: the load, its measured window, and the row that results from both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{BenchConfig, BenchError, Run};
use crate::cell::{Answers, RunResult};
use crate::check::{Evidence, enforcement};
use crate::hardware::{HardwareCounters, availability};
use crate::load::{Pace, Summary};

/// How late a stop is noticed.
pub(super) const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// How long the hardware counts, after some time to settle.
const COUNTED: Duration = Duration::from_millis(100);
const COUNTED_WARM_UP: Duration = Duration::from_millis(20);

/// What the generator measured, and what was read at the two ends of its window.
pub(super) struct Windowed<M> {
    pub summary: Summary,
    pub before: M,
    pub after: M,
    /// The hardware's counts of the threads for each query, if the hardware counts.
    pub hardware: Option<PerQuery>,
}

/// The hardware's counts, for each query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerQuery {
    pub cycles: f64,
    pub instructions: f64,
}

/// Runs the load and reads `mark` around its window. `end` runs when the window is over, while the generator may still
/// wait for its last answers. If the hardware counts, a short second run of the load then counts `threads`, if there
/// are any.
pub(super) fn around<M>(
    run: &Run<'_>,
    threads: &[i32],
    generate: impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send,
    mark: impl FnMut() -> M,
    end: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Windowed<M>, BenchError> {
    around_from(run, threads, generate, |run| pass(run.warm_up, run.stop), mark, end)
}

/// Does the same as [`around`] for a generator that does not begin at once: `begin` waits until its window does.
pub(super) fn around_from<M>(
    run: &Run<'_>,
    threads: &[i32],
    mut generate: impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send,
    mut begin: impl FnMut(&Run<'_>),
    mut mark: impl FnMut() -> M,
    end: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Windowed<M>, BenchError> {
    let generate = &mut generate;
    let (summary, before, after) = std::thread::scope(|scope| {
        let generating = scope.spawn(|| generate(run));
        begin(run);
        let before = mark();
        pass(run.window, run.stop);
        let after = mark();
        let ended = end();
        let summary = generating.join().map_err(|_| panicked())??;
        ended?;
        Ok::<_, BenchError>((summary, before, after))
    })?;
    let hardware = counted(run, threads, generate, &mut begin)?;
    Ok(Windowed { summary, before, after, hardware })
}

/// Returns what the hardware counts of `threads` in a run of its own. In a virtual machine each access to a counter may
/// be an exit to the hypervisor, and the kernel makes about ten for every switch to or from a counted thread. If it
/// counted during the measurement, a service that sleeps would take twice the CPU time and wake up microseconds later.
fn counted(
    run: &Run<'_>,
    threads: &[i32],
    generate: &mut (impl FnMut(&Run<'_>) -> Result<Summary, BenchError> + Send),
    begin: &mut impl FnMut(&Run<'_>),
) -> Result<Option<PerQuery>, BenchError> {
    if threads.is_empty() || availability().is_err() || run.stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let run = Run { warm_up: COUNTED_WARM_UP, window: COUNTED.min(run.window), ..run.clone() };
    std::thread::scope(|scope| {
        let generating = scope.spawn(|| generate(&run));
        begin(&run);
        let mut counters = HardwareCounters::open(threads);
        let from = Instant::now();
        pass(run.window, run.stop);
        let counts = counters.as_mut().and_then(HardwareCounters::read);
        let seconds = from.elapsed().as_secs_f64();
        let summary = generating.join().map_err(|_| panicked())??;
        let queries = summary.qps * seconds;
        Ok(counts.filter(|_| queries > 0.0).map(|counts| PerQuery {
            cycles: counts.cycles as f64 / queries,
            instructions: counts.instructions as f64 / queries,
        }))
    })
}

fn panicked() -> BenchError {
    BenchError::Invalid("the generator panicked".to_owned())
}

/// Waits for `time`, or until it is stopped.
pub(super) fn pass(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(STOP_INTERVAL));
    }
}

/// Returns the pace of the generator in such a run.
pub(super) fn pace(config: &BenchConfig, run: &Run<'_>) -> Pace {
    match run.offered_qps {
        None => Pace::Closed { depth: config.depth },
        Some(qps) => Pace::Open { qps, arrivals: config.arrivals, depth: config.depth },
    }
}

/// What was counted on the server's side in a window.
pub(super) struct Counted {
    /// The window's length.
    pub seconds: f64,
    /// CPU time of every thread that serves or delivers.
    pub cpu_s: f64,
    /// Cores of the server.
    pub cores: usize,
    /// How busy those cores were apart from empty polls, in percent, if that is known.
    pub busy_percent: Option<f64>,
    /// The cycle counter's rate, if the counter is steady.
    pub tsc_khz: Option<u64>,
    pub hardware: Option<PerQuery>,
    pub evidence: Evidence,
}

/// Returns the row of a run with the figures that both planes have. The plane fills in the rest.
pub(super) fn row(run: &Run<'_>, summary: &Summary, counted: &Counted) -> RunResult {
    let Counted { seconds, cpu_s, .. } = *counted;
    let answered = summary.received > 0;
    let us = |ns: u64| answered.then(|| ns as f64 / 1_000.0);
    let queries = summary.qps * seconds;
    let cpu_percent = 100.0 * cpu_s / (seconds * counted.cores as f64).max(f64::MIN_POSITIVE);
    let per_query = |count: f64| Some(count / queries).filter(|_| queries > 0.0);
    // The hardware counts the cycles of all runs or of none: a column does not mix the two.
    let cycles = match availability() {
        Ok(()) => counted.hardware.map(|counts| counts.cycles),
        Err(_) => counted.tsc_khz.and_then(|khz| per_query(cpu_s * khz as f64 * 1e3)),
    };
    RunResult {
        offered_qps: run.offered_qps,
        avg_latency_us: answered.then(|| summary.latency_avg_ns / 1_000.0),
        p50_latency_us: us(summary.latency_p50_ns),
        p95_latency_us: us(summary.latency_p95_ns),
        p99_latency_us: us(summary.latency_p99_ns),
        cpu_percent: Some(cpu_percent),
        server_cpu_percent: counted.busy_percent,
        generator_busy_percent: Some(100.0 * summary.busy_fraction),
        kept_up: run.offered_qps.is_none() || summary.kept_up,
        cycles_per_query: cycles,
        instructions_per_query: counted.hardware.map(|counts| counts.instructions),
        generator_lag_us: us(summary.lag_p99_ns),
        timer_lag_us: counted.evidence.lateness_ns.map(|ns| ns as f64 / 1_000.0),
        suspensions: Some(counted.evidence.suspensions),
        answers: Some(Answers {
            received: summary.received,
            misses: summary.misses,
            errors: summary.errors,
            lost: summary.lost,
            unanswered: summary.unanswered,
            backlog: summary.backlog,
            reconnects: summary.reconnects,
        }),
        verdict: enforcement(run.mode, &counted.evidence),
        ..RunResult::new(run.mode.name(), run.load, run.run, seconds, summary.qps)
    }
}
