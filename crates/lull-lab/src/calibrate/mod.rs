//! Calibration: it measures what a machine's operations take, runs a few cells of the lab, and makes a world file of
//! both.
//!
//! [`micro`] measures operations one by one. The cells are `base` and `fullbusy` at their maximum and at low load, and
//! one deferred mode at low load. The costs that no micro-benchmark shows are fitted to them
//! ([`lull_sim::calibration`]). One more cell is measured and not used for the fit, so that the error of its prediction
//! can be seen.

pub mod micro;
mod words;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_core::Mode;
use lull_sim::RunError;
use lull_sim::calibration::{self, CalibrateError, Calibrated, Cell, Column, Effort, Figure, Measured, Setup};

use crate::bench::{Bench, BenchError, Run};
use crate::cell::{CellSummary, Enforcement, Load, RunResult};
use crate::stats::Estimate;
use micro::Micro;

pub use words::render;

/// The number of runs of each cell, which is enough for an interval.
const RUNS: u32 = 3;
const WARM_UP: Duration = Duration::from_millis(200);
/// The window of a run: the least, and that of a calibration with the default time. It shrinks with the time.
const WINDOW: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
const EVALUATIONS: (usize, usize) = (40, 270);
const REQUESTS: (u32, u32) = (2_000, calibration::REQUESTS);
/// The least number of answers in a run, and the longest window that is tried to get them.
const ANSWERS_MIN: f64 = 50.0;
const WINDOW_MAX: Duration = Duration::from_secs(5);
/// The approximate time that a calibration takes by default, on a machine that does nothing else.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// The number of runs of a prediction, each with a seed of its own.
const SEEDS: u64 = 3;
/// The cells that are fitted, by mode and load in percent of base's maximum. A load of 100 is a closed loop.
const FITTED: [(&str, u32); 5] = [("base", 100), ("fullbusy", 100), ("base", 25), ("fullbusy", 25), ("defer200", 25)];
/// The cell that is measured and not used for the fit.
const HELD_OUT: (&str, u32) = ("suspend20", 50);

/// The options of a calibration.
pub struct Calibration<'a> {
    /// The properties of the service that are known without a measurement.
    pub setup: Setup,
    /// The cores of the first worker and of the first generator.
    pub cores: (usize, usize),
    /// The approximate time that it may take.
    pub limit: Duration,
    /// Ends the calibration early when it is set.
    pub stop: &'a AtomicBool,
    /// Called with the step that is being done.
    pub tell: &'a mut dyn FnMut(&str),
}

/// A cell, with the figures that the calibrated world predicts for it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What was measured.
    pub cell: Cell,
    /// Its share of base's maximum, as a load.
    pub load: Load,
    /// The simulated figures, as means over seeds.
    pub simulated: Vec<(Column, f64)>,
    /// The simulated number of instructions for a query, or `None` if the hardware does not count them.
    pub instructions: Option<f64>,
    /// A remark for the reader of the row.
    pub note: Option<String>,
}

/// The outcome of a calibration.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The measured operations.
    pub micro: Vec<Micro>,
    /// The calibrated world.
    pub calibrated: Calibrated,
    /// The cells that were fitted.
    pub fitted: Vec<Shown>,
    /// The cell that was not fitted.
    pub held_out: Shown,
}

/// The reason why there is no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A cell could not be measured.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// An operation could not be measured.
    #[error("cannot measure what operations take: {0}")]
    Micro(#[from] std::io::Error),
    /// No world was found.
    #[error("no world was found: {0}")]
    Fit(#[from] calibration::CalibrateError),
    /// A simulated cell hit a bound.
    #[error("a cell cannot be simulated: {0}")]
    Simulate(#[from] lull_sim::RunError),
    /// The calibration was stopped.
    #[error("stopped before everything was measured: start it again")]
    Stopped,
}

/// Measures the operations and the cells, and fits the world.
///
/// # Errors
///
/// See [`enum@Error`].
pub fn calibrate(bench: &mut dyn Bench, mut calibration: Calibration<'_>) -> Result<Outcome, Error> {
    (calibration.tell)("measuring what operations take");
    let stop = calibration.stop;
    let micro = micro::measure(calibration.cores.0, calibration.cores.1, stop).map_err(|error| match error.kind() {
        ErrorKind::Interrupted if stop.load(Ordering::Relaxed) => Error::Stopped,
        _ => Error::Micro(error),
    })?;
    let cells = measure_cells(bench, &mut calibration)?;
    let (held_out, fitted) = cells.split_last().ok_or(Error::Stopped)?;
    let measured = measured(&micro, fitted, &calibration.setup);
    let targets: Vec<Cell> = fitted.iter().map(|(_, summary)| cell(summary)).collect::<Result<_, _>>()?;
    let share = share(calibration.limit);
    let evaluations = ((EVALUATIONS.1 as f64 * share) as usize).clamp(EVALUATIONS.0, EVALUATIONS.1);
    let requests = ((f64::from(REQUESTS.1) * share) as u32).clamp(REQUESTS.0, REQUESTS.1);
    let effort = Effort { evaluations, requests };
    let tell = calibration.tell;
    let mut told = 0;
    let mut progress = |done: usize, most: usize| {
        if 10 * done / most > told && !stop.load(Ordering::Relaxed) {
            told = 10 * done / most;
            tell(&format!("fitting: {done} of at most {most} simulated sets of cells"));
        }
    };
    let fit = calibration::calibrate(&calibration.setup, &measured, &targets, effort, stop, &mut progress);
    let calibrated = fit.map_err(|error| match error {
        CalibrateError::Run(RunError::Stopped) => Error::Stopped,
        error => Error::Fit(error),
    })?;
    let shown = |(load, summary): &(Load, CellSummary)| -> Result<Shown, Error> {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let cell = cell(summary)?;
        let simulated = simulated(&calibrated, &cell)?;
        let note = Some(summary.note()).filter(|note| !note.is_empty());
        let of = |column: Column| simulated.iter().find(|(of, _)| *of == column).map_or(f64::NAN, |(_, value)| *value);
        let instructions = calibrated.file.instructions;
        let instructions = instructions.map(|known| known.of_query(of(Column::Polls), of(Column::Interrupts)));
        Ok(Shown { cell, load: *load, simulated, instructions, note })
    };
    let fitted = fitted.iter().map(shown).collect::<Result<_, _>>()?;
    let held_out = shown(held_out)?;
    Ok(Outcome { micro, calibrated, fitted, held_out })
}

/// Returns the ratio of `limit` to the default time.
fn share(limit: Duration) -> f64 {
    limit.as_secs_f64() / LIMIT_DEFAULT.as_secs_f64()
}

/// Returns the load of a cell. A deferral delays each connection's request by its timeout, so there is a rate at which
/// all connections wait, and requests that are sent on time wait for a connection. Above half of that rate a cell would
/// only show this queue.
fn load(mode: &Mode, percent: u32, base_max: Option<f64>, connections: u32) -> Load {
    if percent == 100 {
        return Load::Max;
    }
    let held_s = if mode.epoll.prefer_busy_poll { 0.0 } else { mode.napi.gro_flush_timeout_ns as f64 / 1e9 };
    let permille_max = base_max.map(|base_max| 1_000.0 * f64::from(connections) / (2.0 * held_s) / base_max);
    // If the quotient is infinite, it is larger than any load.
    let permille = permille_max.map_or(u32::MAX, |permille| permille as u32).clamp(1, 10 * percent);
    Load::Percent { permille }
}

/// Runs all cells, interleaved. The held-out one comes last.
fn measure_cells(bench: &mut dyn Bench, calibration: &mut Calibration<'_>) -> Result<Vec<(Load, CellSummary)>, Error> {
    let cells: Vec<(Mode, u32)> = FITTED
        .iter()
        .chain([&HELD_OUT])
        .map(|(mode, percent)| Ok((mode.parse::<Mode>()?, *percent)))
        .collect::<Result<_, lull_core::ModeError>>()
        .map_err(|error| BenchError::Invalid(error.to_string()))?;
    let mut runs: Vec<Vec<RunResult>> = cells.iter().map(|_| Vec::new()).collect();
    let window = WINDOW.1.mul_f64(share(calibration.limit).min(1.0)).max(WINDOW.0);
    let mut base_max = None;
    for run in 0..RUNS {
        for ((mode, percent), runs) in cells.iter().zip(&mut runs) {
            let load = load(mode, *percent, base_max, calibration.setup.connections);
            (calibration.tell)(&format!("{mode} at {load}, run {} of {RUNS}", run + 1));
            let asked = Run {
                mode,
                load,
                offered_qps: load.offered_qps(base_max),
                run,
                warm_up: WARM_UP,
                window,
                stop: calibration.stop,
            };
            let result = run_until_shown(bench, asked)?;
            if calibration.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if let Enforcement::Refused { reason } | Enforcement::NotInForce { reason } = &result.verdict {
                return Err(BenchError::Invalid(format!("cannot calibrate by {mode} at {load}: {reason}")).into());
            }
            // The first cell is base at its maximum.
            base_max.get_or_insert(result.qps);
            runs.push(result);
        }
    }
    let connections = calibration.setup.connections;
    let summaries = cells.into_iter().zip(runs).filter_map(|((mode, percent), runs)| {
        Some((load(&mode, percent, base_max, connections), CellSummary::of_runs(runs)?))
    });
    Ok(summaries.collect())
}

/// Runs a cell. On a machine that is busy with something else a short window may have no answers at all, or too few to
/// show the mode. Then the cell is run again, for longer.
fn run_until_shown(bench: &mut dyn Bench, mut run: Run<'_>) -> Result<RunResult, BenchError> {
    loop {
        let result = bench.run(&run)?;
        let answers = result.qps * result.window_s;
        let refused = matches!(result.verdict, Enforcement::Refused { .. });
        let shown = answers >= ANSWERS_MIN && !matches!(result.verdict, Enforcement::NotInForce { .. });
        if shown || refused || run.stop.load(Ordering::Relaxed) {
            return Ok(result);
        }
        if run.window > WINDOW_MAX && answers >= ANSWERS_MIN {
            return Ok(result);
        }
        if run.window > WINDOW_MAX {
            let (mode, load, seconds) = (run.mode, run.load, run.window.as_secs_f64());
            return Err(BenchError::Invalid(format!(
                "cannot calibrate: {mode} at {load} answered {answers:.0} requests in {seconds:.1} s; the machine is busy with \
                 something else"
            )));
        }
        run.window *= 2;
    }
}

/// Converts a summary for the fit.
fn cell(summary: &CellSummary) -> Result<Cell, BenchError> {
    let mode =
        summary.testcase.parse().map_err(|error: lull_core::ModeError| BenchError::Invalid(error.to_string()))?;
    let figure = |estimate: Estimate| {
        let farther =
            |interval: crate::stats::Interval| (interval.high - estimate.value).max(estimate.value - interval.low);
        Figure { value: estimate.value, interval: estimate.interval.map_or(0.0, farther) }
    };
    let queries =
        summary.qps.value * summary.runs.iter().map(|run| run.window_s).sum::<f64>() / summary.runs.len() as f64;
    let a_query = |count: Option<f64>| {
        count.filter(|_| queries > 0.0).map(|count| Figure { value: count / queries, interval: 0.0 })
    };
    let figures = [
        (Column::PerS, Some(figure(summary.qps))),
        (Column::AvgUs, summary.avg_latency_us.map(figure)),
        (Column::P50Us, summary.p50_latency_us.map(figure)),
        (Column::P99Us, summary.p99_latency_us.map(figure)),
        (Column::CpuPercent, summary.cpu_percent.map(figure)),
        (Column::Interrupts, a_query(summary.counts.interrupts)),
        (Column::Polls, a_query(summary.counts.polls)),
        (Column::Events, summary.counts.mean_events.map(|value| Figure { value, interval: 0.0 })),
    ];
    let known = figures.into_iter().filter_map(|(column, figure)| Some((column, figure?)));
    let instructions = summary.instructions_per_query.map(|estimate| estimate.value);
    Ok(Cell { mode, per_s: summary.offered_qps, figures: known.collect(), instructions })
}

/// Returns what was measured of single keys: by micro-benchmarks, and, of the generator, by the cells.
fn measured(micro: &[Micro], cells: &[(Load, CellSummary)], setup: &Setup) -> Vec<Measured> {
    let interval = |estimate: &Estimate| estimate.interval.map_or(0.0, |interval| (interval.high - interval.low) / 2.0);
    let of_micro =
        |micro: &Micro| Some(Measured { key: micro.key?, value: micro.ns.value, interval: interval(&micro.ns) });
    let has = |key: &str| calibration::KEYS.iter().any(|known| known.name == key && known.is_of(setup.user_plane));
    // A value of zero belongs to an operation that did not happen, such as a thread that woke and did not get the core.
    let known = |measured: &Measured| measured.value > 0.0 && has(measured.key);
    let mut all: Vec<Measured> = micro.iter().filter_map(of_micro).filter(known).collect();
    if !setup.generator {
        return all;
    }
    let per = |of: &dyn Fn(&RunResult) -> Option<f64>, cell: &(Load, CellSummary)| {
        let values: Vec<f64> = cell.1.runs.iter().filter_map(of).filter(|value| value.is_finite()).collect();
        crate::stats::mean(&values)
    };
    // The generator is busy for every query. Its busy time is divided about evenly among its operations.
    let busy_ns =
        |run: &RunResult| Some(run.generator_busy_percent? / 100.0 * 1e9 / run.qps * f64::from(setup.workers));
    if let Some(each) = cells
        .iter()
        .find(|(load, cell)| *load == Load::Max && cell.testcase == "fullbusy")
        .and_then(|cell| per(&busy_ns, cell))
    {
        for key in ["load.generator_send", "load.generator_answer"] {
            all.push(Measured {
                key,
                value: each.value / 2.0,
                interval: (interval(&each) / 2.0).max(0.3 * each.value),
            });
        }
    }
    let raise_ns = |run: &RunResult| Some(1_000.0 * run.raise_us? / run.interrupts.filter(|count| *count > 0)? as f64);
    let low = cells.iter().find(|(load, cell)| *load != Load::Max && cell.testcase == "base");
    if let (Some(each), true) = (low.and_then(|cell| per(&raise_ns, cell)), has("load.generator_raise")) {
        all.push(Measured { key: "load.generator_raise", value: each.value, interval: interval(&each) });
    }
    all
}

/// Returns the figures of a cell in the calibrated world, as means over seeds.
fn simulated(calibrated: &Calibrated, cell: &Cell) -> Result<Vec<(Column, f64)>, Error> {
    let runs = (1..=SEEDS).map(|seed| calibration::simulate(&calibrated.file, cell, 100 + seed));
    let runs: Vec<_> = runs.collect::<Result<_, _>>()?;
    let mean = |column: Column| {
        let of =
            |run: &Vec<(Column, f64)>| run.iter().find(|(of, _)| *of == column).map_or(f64::NAN, |(_, value)| *value);
        runs.iter().map(of).sum::<f64>() / runs.len() as f64
    };
    Ok(Column::ALL.iter().map(|&column| (column, mean(column))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 connections that wait for 200 us each answer 320 thousand times a second.
    #[test]
    fn a_deferred_cell_is_offered_half_of_what_its_connections_can_have_under_way() {
        let of = |mode: &str, percent| load(&mode.parse().unwrap(), percent, Some(1_000_000.0), 64);
        assert_eq!(of("defer200", 25), Load::Percent { permille: 160 });
        assert_eq!(of("defer200", 10), Load::Percent { permille: 100 });
        for (mode, percent) in [("base", 25), ("fullbusy", 25), ("suspend20", 50), ("suspend200", 50)] {
            assert_eq!(of(mode, percent), Load::Percent { permille: 10 * percent }, "{mode}");
        }
        assert_eq!(of("defer200", 100), Load::Max);
        let unknown = load(&"defer200".parse().unwrap(), 25, None, 64);
        assert_eq!(unknown, Load::Percent { permille: 250 });
    }
}
