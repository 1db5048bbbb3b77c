//! Predictions: the lab's report of a simulated world.
//!
//! Rows are made of a run's outcome as [`crate::bench`] makes them of counters and clocks. They are judged by the same
//! checks, and shown in the same table. Values that no simulator knows (system calls, the generator's lateness) are
//! left empty, and so are instructions if the world file does not give them.
//!
//! Runs are spread over threads. Each depends only on its job, and results are kept in the jobs' order, so the report
//! does not depend on the number of threads.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lull_core::{Mode, ModeError};
use lull_sim::predict::{self, Job, Offered, PredictError};
use lull_sim::{Latencies, Outcome, WorldFile};
use lull_units::counted;

use crate::cell::report::{CyclesBy, REPORT_SCHEMA};
use crate::cell::{Load, Report, RunResult, summarise};
use crate::check::{Evidence, enforcement};
use crate::machine::Machine;

/// The options of a prediction.
#[derive(Debug)]
pub struct Prediction<'a> {
    /// The world.
    pub file: &'a WorldFile,
    /// The modes, in the table's order.
    pub modes: &'a [Mode],
    /// The loads, in the table's order.
    pub loads: &'a [Load],
    /// Runs of each cell, each with a seed of its own.
    pub runs: u32,
    /// The seed of the first run. The others have the seeds that follow.
    pub seed: u64,
    /// Virtual time that a run counts, in nanoseconds.
    pub window_ns: u64,
    /// Threads to spread runs over.
    pub threads: usize,
    /// Ends it early when it is set.
    pub stop: &'a AtomicBool,
    /// The command that repeats it.
    pub command: String,
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulatedError {
    /// There is no such mode.
    #[error(transparent)]
    Name(ModeError),
    /// A cell cannot be simulated, and no other was.
    #[error("{cell}: {error}")]
    Run {
        /// The cell.
        cell: String,
        /// The reason.
        error: PredictError,
    },
    /// It was stopped before there was a result.
    #[error("stopped before anything was simulated: start it again")]
    Stopped,
}

/// Runs every cell and makes the report of it. A cell that hits a bound is left out, and a note says which bound.
///
/// # Errors
///
/// See [`SimulatedError`].
pub fn predict(prediction: &Prediction<'_>) -> Result<Report, SimulatedError> {
    let Prediction { file, modes, loads, runs, window_ns, .. } = *prediction;
    for mode in modes {
        let refused = |why| SimulatedError::Run { cell: file.name.clone(), error: PredictError::Mode(why) };
        file.can_run(mode).map_err(refused)?;
    }
    let base_qps_max = if loads.iter().any(|load| load.needs_base()) { Some(base_max(prediction)?) } else { None };
    let offered = |load: Load| load.offered_qps(base_qps_max).map_or(Offered::Max, Offered::PerSecond);
    for &load in loads {
        if let Offered::PerSecond(per_s) = offered(load) {
            let refused = |error| SimulatedError::Run { cell: load.to_string(), error };
            predict::fits_wire(file, per_s).map_err(refused)?;
        }
    }
    let asked = asked(prediction, offered);
    let jobs: Vec<Job> = asked.iter().map(|(.., job)| job.clone()).collect();
    let outcomes = run_all(file, &jobs, prediction.threads, prediction.stop);
    let interrupted = outcomes.iter().any(Option::is_none);
    let (mut results, mut notes, mut failed) =
        (Vec::new(), [Some(file.provenance()), file.mismatch()].into_iter().flatten().collect::<Vec<_>>(), None);
    notes.push(
        "cpu_percent is what Linux's accounting shows; cycles_per_query counts every cycle that a core was not idle. \
         Latencies are the clients', in an open loop from when a request was due."
            .to_owned(),
    );
    notes.extend(mixed_queues(file, modes));
    notes.extend(notes_of_cells(&asked, &outcomes, (modes, loads), second_application));
    notes.extend(notes_of_cells(&asked, &outcomes, (modes, loads), doorbells));
    for ((load, run, job), outcome) in asked.iter().zip(outcomes) {
        match outcome {
            None => {}
            Some(Ok(outcome)) => results.push(row(file, job, *load, *run, &outcome)),
            Some(Err(error)) => {
                let cell = format!("{} at {load}", job.mode);
                let note = format!("{cell} was not run: {error}");
                if !notes.contains(&note) {
                    notes.push(note);
                }
                failed.get_or_insert(SimulatedError::Run { cell, error });
            }
        }
    }
    if results.is_empty() {
        return Err(failed.unwrap_or(SimulatedError::Stopped));
    }
    Ok(Report {
        schema: REPORT_SCHEMA,
        command: prediction.command.clone(),
        machine: Machine {
            cpu_model: Some(format!("SIMULATED {}", file.describe())),
            architecture: "simulated".to_owned(),
            ..Machine::default()
        },
        nic: "simulated".to_owned(),
        workers: u32::from(file.workers),
        connections: file.connections,
        window_s: window_ns as f64 / 1e9,
        runs,
        modes: modes.iter().map(|mode| mode.name().to_owned()).collect(),
        loads: loads.to_vec(),
        base_qps_max,
        cycles_by: CyclesBy::Clock,
        interrupted,
        failed: false,
        notes,
        cells: summarise(results),
    })
}

/// Returns every run of every cell: rounds over all loads, and over all modes at each.
fn asked(prediction: &Prediction<'_>, offered: impl Fn(Load) -> Offered) -> Vec<(Load, u32, Job)> {
    let mut asked = Vec::new();
    for run in 0..prediction.runs {
        for &load in prediction.loads {
            for mode in prediction.modes {
                let job = Job {
                    mode: mode.clone(),
                    offered: offered(load),
                    seed: prediction.seed.wrapping_add(u64::from(run)),
                    window_ns: prediction.window_ns,
                };
                asked.push((load, run, job));
            }
        }
    }
    asked
}

/// Returns the texts that `note` makes of each cell's runs that have an outcome.
fn notes_of_cells(
    asked: &[(Load, u32, Job)],
    outcomes: &[Option<Result<Outcome, PredictError>>],
    (modes, loads): (&[Mode], &[Load]),
    note: impl Fn(&Mode, Load, &[&Outcome]) -> Option<String>,
) -> Vec<String> {
    let mut notes = Vec::new();
    for &load in loads {
        for mode in modes {
            let of_cell = asked.iter().zip(outcomes).filter(|((at, _, job), _)| *at == load && job.mode == *mode);
            let outcomes: Vec<&Outcome> = of_cell.filter_map(|(_, outcome)| outcome.as_ref()?.as_ref().ok()).collect();
            notes.extend(note(mode, load, &outcomes));
        }
    }
    notes
}

/// Returns the latencies of the second application's clients beside a cell, if the world has one, as means of the runs.
fn second_application(mode: &Mode, load: Load, outcomes: &[&Outcome]) -> Option<String> {
    let seen = outcomes.iter().filter_map(|outcome| outcome.second.as_ref());
    let seen: Vec<&Latencies> = seen.filter(|second| !second.ns.is_empty()).collect();
    let mean = |us: &dyn Fn(&Latencies) -> f64| seen.iter().map(|&second| us(second)).sum::<f64>() / seen.len() as f64;
    (!seen.is_empty()).then(|| {
        format!(
            "second application beside {mode} at {load}: avg {:.1} us, p50 {:.1} us, p95 {:.1} us, p99 {:.1} us",
            mean(&Latencies::mean_us),
            mean(&|second| second.us(50.0)),
            mean(&|second| second.us(95.0)),
            mean(&|second| second.us(99.0)),
        )
    })
}

/// Returns the number of doorbells for each frame in a cell, and of dropped frames, if answers leave through queueing
/// disciplines.
fn doorbells(mode: &Mode, load: Load, outcomes: &[&Outcome]) -> Option<String> {
    let sum = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(|outcome| of(outcome)).sum::<u64>();
    let (doorbells, frames) = (sum(&|of| of.counts.doorbells), sum(&|of| of.counts.rung_frames));
    (frames > 0).then(|| {
        let by = if mode.group.is_some_and(|group| group.transmit) { "the group" } else { "applications" };
        let (per_frame, dropped) = (doorbells as f64 / frames as f64, sum(&|of| of.counts.tx_dropped));
        format!(
            "{mode} at {load}: {by} sent {frames} frames with {per_frame:.3} doorbells for each; the discipline dropped \
             {dropped}"
        )
    })
}

/// Returns a warning for a world in which a worker has the connections of several queues.
pub(crate) fn mixed_queues(file: &WorldFile, modes: &[Mode]) -> Option<String> {
    let mixed = file.queues > file.workers && modes.iter().any(Mode::suspends);
    mixed.then(|| {
        format!(
            "{} {} the connections of {}: an epoll context follows one NAPI at a time, and a \
             suspended queue that it leaves waits for irq_suspend_timeout. Steer each queue's connections to one \
             worker (SO_INCOMING_NAPI_ID).",
            counted(file.workers, "worker"),
            if file.workers == 1 { "has" } else { "have" },
            counted(file.queues, "queue")
        )
    })
}

fn base_max(prediction: &Prediction<'_>) -> Result<f64, SimulatedError> {
    let mode: Mode = "base".parse().map_err(SimulatedError::Name)?;
    let Prediction { file, seed, window_ns, .. } = *prediction;
    let job = Job { mode, offered: Offered::Max, seed, window_ns };
    let outcome = predict::run(file, &job)
        .map_err(|error| SimulatedError::Run { cell: "base at MAX, of which loads are shares".to_owned(), error })?;
    Ok(outcome.qps())
}

/// Runs jobs on threads. The outcomes are in the jobs' order, and `None` if it was stopped before.
pub fn run_all(
    file: &WorldFile,
    jobs: &[Job],
    threads: usize,
    stop: &AtomicBool,
) -> Vec<Option<Result<Outcome, PredictError>>> {
    let bar = bar(jobs.len());
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Result<Outcome, PredictError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= jobs.len() || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = predict::run(file, &jobs[index]);
                    // No thread panics while it holds this lock, and each place is written once.
                    if let Ok(mut place) = outcomes[index].lock() {
                        *place = Some(outcome);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    outcomes.into_iter().map(|place| place.into_inner().unwrap_or(None)).collect()
}

fn bar(jobs: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(jobs as u64), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("simulating {wide_bar} {pos}/{len} runs, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Makes the row of one run.
pub fn row(file: &WorldFile, job: &Job, load: Load, run: u32, outcome: &Outcome) -> RunResult {
    let (counts, napi, cpu) = (&outcome.counts, &outcome.napi, &outcome.cpu);
    let window_s = outcome.window_ns as f64 / 1e9;
    let answered = counts.answered > 0;
    let us = |percentile: f64| answered.then(|| outcome.latency_us(percentile));
    let epoll_calls = counts.epoll_calls + counts.epoll_timeouts;
    // The busiest core counts, because a machine may have spare cores for NAPI threads that the mode does not have.
    let busy_percent = 100.0 * outcome.busiest_ns as f64 / outcome.window_ns.max(1) as f64;
    // Simulated timers are on time.
    let evidence = Evidence::of_core(napi, None, counts.answered);
    RunResult {
        offered_qps: match job.offered {
            Offered::PerSecond(per_s) => Some(per_s),
            Offered::Max => None,
        },
        avg_latency_us: answered.then(|| outcome.latency_mean_us()),
        p50_latency_us: us(50.0),
        p95_latency_us: us(95.0),
        p99_latency_us: us(99.0),
        cpu_percent: Some(cpu.percent()),
        server_cpu_percent: Some(busy_percent),
        // Simulated clients are never late and never the limit.
        generator_busy_percent: Some(0.0),
        instructions_per_query: file.instructions.and_then(|known| known.per_query(outcome)),
        cycles_per_query: answered.then(|| cpu.busy_ns() as f64 / counts.answered as f64 * file.hz as f64 / 1e9),
        interrupts: Some(counts.irqs),
        polls: Some(napi.polls),
        mean_work: (napi.polls > 0).then(|| napi.work as f64 / napi.polls as f64),
        empty_polls: Some(napi.empty_polls),
        softirq_ms: Some((cpu.softirq_ns + cpu.uncharged_ns) as f64 / 1e6),
        epoll_calls: Some(epoll_calls),
        mean_events: (counts.epoll_calls > 0).then(|| counts.epoll_events as f64 / counts.epoll_calls as f64),
        suspensions: Some(napi.suspends),
        resumes: Some(napi.resumes),
        verdict: enforcement(&job.mode, &evidence),
        ..RunResult::new(job.mode.name(), load, run, window_s, outcome.qps())
    }
}
