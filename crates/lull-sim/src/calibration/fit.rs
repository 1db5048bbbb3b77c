//! Searches for the values with which the simulated cells match the measured ones.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::found::Found;
use super::text::render;
use super::values::{KEYS, Key};
use super::{Cell, Column, Measured, Setup};
use crate::RunError;
use crate::engine::metrics::Outcome;
use crate::engine::sim::Sim;
use crate::fit::{Descent, Fit, HELD_BACK};
use crate::instructions::Instructions;
use crate::params::{Param, Params};
use crate::world::Traffic;
use crate::worldfile::{WorldFile, WorldFileError};

/// What a search may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How many sets of cells are simulated at the most, before the intervals; it is at least as many as a step takes.
    pub evaluations: usize,
    /// About how many requests a simulated cell answers.
    pub requests: u32,
}

/// About how many requests a simulated cell answers if there is no hurry.
pub const REQUESTS: u32 = 8_000;
/// The shortest window of a simulated cell, in nanoseconds.
const WINDOW_NS_MIN: f64 = 15e6;
/// The longest window of a simulated cell for each request that it should answer: a worker that polls all the time
/// costs simulation time for the whole window.
const WINDOW_NS_MAX: f64 = 37_500.0;
/// The name in errors of the file that is being made.
const NAME: &str = "MACHINE.toml";
/// How far a key that was not measured may be from its start until the difference counts as one error: the logarithm of
/// a factor of 5.
const LOOSE: f64 = 1.6;
/// The evaluations of a step besides one for each value's slope: the steps that are tried, and the place at which it
/// begins.
const STEP: usize = HELD_BACK.len() + 1;
/// Where the search may begin for values that were measured from above, as shares of the measured value.
const FROM_ABOVE: [f64; 3] = [1.0, 0.5, 0.25];
/// The seed of the search's runs. All evaluations have the same one, so that slopes are not noise.
const SEED: u64 = 1;

/// Is told the evaluations so far, and how many there are at the most.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// The outcome of a calibration.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The values, in the order of [`KEYS`].
    pub found: Vec<Found>,
    /// What a query takes of instructions and how far that may be off, if the hardware counts them.
    pub instructions: Option<(Instructions, Instructions)>,
    /// The world file.
    pub text: String,
    /// The same world file after it was read.
    pub file: WorldFile,
    /// The mean square of the cells' errors, in units of what counts as one, before and after.
    pub error: (f64, f64),
}

/// Finds the values. `effort` bounds the search, and `stop` ends it after the cells that are being simulated.
///
/// # Errors
///
/// This fails if the resulting file is refused, which is a bug here, if a cell cannot be simulated at the start, and
/// with [`RunError::Stopped`].
pub fn calibrate(
    setup: &Setup,
    measured: &[Measured],
    cells: &[Cell],
    effort: Effort,
    stop: &AtomicBool,
    progress: Progress<'_>,
) -> Result<Calibrated, CalibrateError> {
    let Effort { evaluations, requests } = effort;
    let search = Search { setup, measured, cells, requests, stop };
    let residuals = |params: &Params| search.residuals(params);
    let mut starts = search.starts()?;
    let before = residuals(&starts[0])?;
    // With less than a step from each place a search would end where it began.
    let least = search.keys().count() + STEP;
    let evaluations = evaluations.max(least);
    starts.truncate(evaluations / least);
    let each = evaluations / starts.len();
    let mut best: Option<Fit> = None;
    for (nth, start) in starts.iter().enumerate() {
        let fit = Descent::new(start, each, |done, _| progress(nth * each + done, evaluations)).run(residuals)?;
        best = best.into_iter().chain([fit]).min_by(|one, other| one.after.total_cmp(&other.after));
    }
    let fit = best.expect("there are places to begin at");
    let after = residuals(&fit.params)?;
    let intervals = crate::fit::intervals(&fit.params, &after, residuals);
    search.goes_on()?;
    let found = search.found(&fit.params, &intervals);
    let instructions = Instructions::fit(&cells.iter().filter_map(Cell::counted).collect::<Vec<_>>());
    let text = render(setup, &found, instructions);
    let file = WorldFile::parse(NAME, &text)?;
    let of_cells = |residuals: &[f64]| {
        let count = residuals.len() - found.len();
        residuals[..count].iter().map(|residual| residual * residual).sum::<f64>() / count.max(1) as f64
    };
    let error = (of_cells(&before), of_cells(&after));
    Ok(Calibrated { found, instructions, text, file, error })
}

/// Why there is no calibration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The world file that was found is refused.
    #[error(transparent)]
    File(#[from] WorldFileError),
    /// A run hit a bound.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A value that was given is outside its plausible range.
    #[error(transparent)]
    Value(#[from] crate::params::ParamsError),
}

/// Returns the figures of a simulated cell.
///
/// # Errors
///
/// This fails with the bound that the run hit.
pub fn simulate(file: &WorldFile, cell: &Cell, seed: u64) -> Result<Vec<(Column, f64)>, RunError> {
    simulate_for(REQUESTS, file, cell, seed)
}

fn simulate_for(requests: u32, file: &WorldFile, cell: &Cell, seed: u64) -> Result<Vec<(Column, f64)>, RunError> {
    let traffic = cell.per_s.map_or(Traffic::Closed, |per_s| Traffic::Open { per_s });
    let measured = cell.figures.iter().find(|(column, _)| *column == Column::PerS).map(|(_, figure)| figure.value);
    let per_s = cell.per_s.or(measured).unwrap_or(100_000.0).max(1.0);
    let longest = (f64::from(requests) * WINDOW_NS_MAX).max(WINDOW_NS_MIN);
    let window_ns = (f64::from(requests) / per_s * 1e9).clamp(WINDOW_NS_MIN, longest) as u64;
    let outcome = Sim::new(&file.seeded_world(&cell.mode, traffic, window_ns, seed), seed).run()?;
    Ok(Column::ALL.iter().map(|&column| (column, figure(&outcome, column))).collect())
}

fn figure(outcome: &Outcome, column: Column) -> f64 {
    let answered = outcome.counts.answered.max(1) as f64;
    let calls = outcome.counts.epoll_calls.max(1) as f64;
    match column {
        Column::PerS => outcome.qps(),
        Column::AvgUs => outcome.latency_mean_us(),
        Column::P50Us => outcome.latency_us(50.0),
        Column::P99Us => outcome.latency_us(99.0),
        Column::CpuPercent => outcome.cpu.percent(),
        Column::Interrupts => outcome.counts.irqs as f64 / answered,
        Column::Polls => outcome.napi.polls as f64 / answered,
        Column::Events => outcome.counts.epoll_events as f64 / calls,
    }
}

struct Search<'a> {
    setup: &'a Setup,
    measured: &'a [Measured],
    cells: &'a [Cell],
    requests: u32,
    stop: &'a AtomicBool,
}

impl Search<'_> {
    fn goes_on(&self) -> Result<(), RunError> {
        if self.stop.load(Ordering::Relaxed) { Err(RunError::Stopped) } else { Ok(()) }
    }

    fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let (user_plane, generator) = (self.setup.user_plane, self.setup.generator);
        KEYS.iter().filter(move |key| key.is_of(user_plane) && (generator || !key.name.starts_with("load.")))
    }

    fn measured(&self, key: &Key) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.key == key.name)
    }

    /// Returns the places where the search begins. From each it descends, and it does not find another minimum.
    fn starts(&self) -> Result<Vec<Params>, CalibrateError> {
        let starts: Vec<Params> = FROM_ABOVE.iter().map(|share| self.start(*share)).collect::<Result<_, _>>()?;
        for start in &starts {
            // A file that is refused is reported before the search, which would take it for one more bad value.
            self.file(start)?;
        }
        Ok(starts)
    }

    /// Returns where the search begins: at the measured values, at a share of those that were measured from above, or
    /// at round figures.
    fn start(&self, share: f64) -> Result<Params, CalibrateError> {
        let params = self.keys().map(|key| {
            let share = if key.is_from_above() { share } else { 1.0 };
            let value = self.measured(key).map_or(key.start, |measured| share * measured.value);
            let (unit, meaning) = (key.unit.to_owned(), key.meaning.to_owned());
            let value = value.clamp(key.range[0], key.range[1]);
            // A parameter's step is a share of its range, so the range is scaled to the parameter, and is not all that
            // a machine could have.
            let range = [(value / 12.0).max(key.range[0]).min(value), (value * 12.0 + 20.0).min(key.range[1])];
            let range = if key.unit == "share" { key.range } else { range };
            (key.name.to_owned(), Param { value, unit, range, meaning })
        });
        Ok(Params::new(params.collect::<BTreeMap<_, _>>())?)
    }

    /// Returns the errors of all cells, and then how far each value is from its measured value, or from its start.
    fn residuals(&self, params: &Params) -> Result<Vec<f64>, RunError> {
        // A search that is stopped still asks for the evaluations it has planned, and so gets to its end at once.
        self.goes_on()?;
        let found = self.found(params, &BTreeMap::new());
        let Ok(file) = self.file(params) else { return Err(RunError::TooManyEvents { bound: 0, at_ns: 0 }) };
        let mut residuals = Vec::new();
        let simulated = std::thread::scope(|scope| {
            let file = &file;
            let run = |cell| scope.spawn(move || simulate_for(self.requests, file, cell, SEED));
            let runs: Vec<_> = self.cells.iter().map(run).collect();
            runs.into_iter()
                .map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Vec<_>>()
        });
        for (cell, simulated) in self.cells.iter().zip(simulated) {
            let simulated = simulated?;
            for &(column, measured) in &cell.figures {
                let found = simulated.iter().find(|(of, _)| *of == column).map_or(f64::NAN, |(_, value)| *value);
                residuals.push(column.error(measured, found));
            }
        }
        for found in &found {
            let ratio = |start: f64| libm::log((found.value + 1.0) / (start + 1.0));
            residuals.push(match self.measured(found.key) {
                Some(measured) if found.key.is_from_above() && found.value < measured.value => {
                    ratio(measured.value) / LOOSE
                }
                Some(measured) => {
                    (found.value - measured.value) / measured.interval.max(0.15 * measured.value).max(1e-3)
                }
                None if found.key.unit == "share" => (found.value - found.key.start) / 0.02,
                None => ratio(found.key.start) / LOOSE,
            });
        }
        Ok(residuals)
    }

    /// The world file with these values.
    fn file(&self, params: &Params) -> Result<WorldFile, WorldFileError> {
        WorldFile::parse(NAME, &render(self.setup, &self.found(params, &BTreeMap::new()), None))
    }

    fn found(&self, params: &Params, intervals: &BTreeMap<String, f64>) -> Vec<Found> {
        let found = |key: &'static Key| Found {
            key,
            value: params.get(key.name),
            interval: intervals.get(key.name).copied().unwrap_or(0.0),
            measured: self.measured(key).map(|measured| measured.value),
        };
        self.keys().map(found).collect()
    }
}
