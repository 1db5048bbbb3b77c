//! Calibration: parameters from the cells that calibration may see, and from nothing else.
//!
//! The function that is minimised sums over the cells and columns `ln(1 + (error / goal)^2)`, which makes a cell that the model
//! cannot reach count little more than one that it misses, so that it does not bend the others. Every evaluation uses the same
//! seed and a short window. The optimiser is CMA-ES, seeded, on parameters scaled to their plausible ranges.

use cmaes::{CMAESOptions, DVector};
use lull_core::Mode;

use crate::params::Params;
use crate::published::{Budget, Column, LOADS, Table, simulate};
use crate::sim::RunError;

/// Columns that are fitted and the error that counts as one.
const WEIGHTS: [(Column, f64); 12] = [
    (Column::Qps, 0.02),
    (Column::Avg, 0.08),
    (Column::P50, 0.08),
    (Column::P95, 0.12),
    (Column::P99, 0.20),
    (Column::Cpu, 3.0),
    (Column::Usr, 1.5),
    (Column::Sys, 4.0),
    (Column::Softirq, 4.0),
    (Column::Irqs, 0.20),
    (Column::Polls, 0.20),
    (Column::EpollCalls, 0.15),
];

/// First step of the search, as a share of the plausible ranges: a start that was derived from the counters is near.
const STEP: f64 = 0.02;

/// How much a fit may take.
#[derive(Clone, Copy, Debug)]
pub struct FitBudget {
    /// Evaluations of the function.
    pub evaluations: usize,
    /// What an evaluation simulates of each cell.
    pub cell: Budget,
    /// Seed of the optimiser and of the simulated runs.
    pub seed: u64,
}

/// The outcome of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The parameters found; those of the start if nothing better was.
    pub params: Params,
    /// The function at the start.
    pub before: f64,
    /// The function at what was found.
    pub after: f64,
}

/// The function that is minimised.
///
/// # Errors
/// A cell that hit its bound.
pub fn distance(params: &Params, cells: &Table, budget: &FitBudget) -> Result<f64, RunError> {
    let mut cases: Vec<&str> = Vec::new();
    for cell in &cells.cells {
        if !cases.contains(&cell.case.as_str()) {
            cases.push(&cell.case);
        }
    }
    let modes: Vec<Mode> = cases.iter().filter_map(|case| case.parse().ok()).collect();
    let loads: Vec<&str> = LOADS.iter().map(|(name, _)| *name).collect();
    let simulated = simulate(params, &modes, &loads, budget.cell, budget.seed)?;
    let mut sum = 0.0;
    for cell in &cells.cells {
        let Some(simulated) = simulated.table.cell(&cell.case, &cell.load) else { continue };
        for (column, unit) in WEIGHTS {
            let published = cell.get(column);
            if !published.is_finite() {
                continue;
            }
            let error = if column.is_percent() {
                simulated.get(column) - published
            } else {
                // In logarithms: half and double are equally wrong.
                libm::log(simulated.get(column).max(1.0) / published.max(1.0))
            };
            let scaled = error / unit;
            sum += libm::log1p(scaled * scaled);
        }
    }
    Ok(sum)
}

/// Fits the parameters to `cells`. `progress` is told every evaluation's number and the best value so far.
///
/// # Errors
/// A cell that hit its bound at the start.
pub fn fit(
    start: &Params,
    cells: &Table,
    budget: &FitBudget,
    progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    let names: Vec<&str> =
        start.iter().filter(|(_, param)| param.range[1] > param.range[0]).map(|(name, _)| name).collect();
    let distance = |params: &Params| distance(params, cells, budget);
    search(start, &names, STEP, budget.evaluations, budget.seed, distance, progress)
}

/// Searches the named parameters for the least `distance`. The first step is `step`, a share of their ranges.
///
/// # Errors
/// A world that hit its bound at the start.
pub(crate) fn search(
    start: &Params,
    names: &[&str],
    step: f64,
    most: usize,
    seed: u64,
    distance: impl Fn(&Params) -> Result<f64, RunError>,
    mut progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    let free: Vec<(&str, f64, [f64; 2])> = start
        .iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(name, param)| (name, param.value, param.range))
        .collect();
    let scaled: Vec<f64> = free.iter().map(|(_, value, [low, high])| (value - low) / (high - low)).collect();
    let place = |x: &DVector<f64>| {
        let mut params = start.clone();
        let mut outside = 0.0;
        for (&value, &(name, _, [low, high])) in x.iter().zip(&free) {
            let inside = value.clamp(0.0, 1.0);
            outside += (value - inside).abs();
            params.set(name, low + inside * (high - low));
        }
        (params, outside)
    };
    let before = distance(start)?;
    let mut best = (before, start.clone());
    let mut evaluations = 0;
    {
        let function = |x: &DVector<f64>| {
            let (params, outside) = place(x);
            let value = distance(&params).unwrap_or(f64::MAX);
            evaluations += 1;
            if value < best.0 {
                best = (value, params);
            }
            progress(evaluations, best.0);
            // Beyond the ranges it climbs, so that the search comes back.
            value + 100.0 * outside
        };
        let search = CMAESOptions::new(scaled, step).seed(seed).max_function_evals(most).build(function);
        if let Ok(mut search) = search {
            let _ = search.run();
        }
    }
    Ok(Fit { params: best.1, before, after: best.0 })
}
