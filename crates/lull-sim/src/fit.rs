//! Calibration: parameters from the cells that calibration may see, and from nothing else.
//!
//! The function that is minimised sums over the cells and columns `ln(1 + (error / goal)^2)`, which makes a cell that
//! the model cannot reach count little more than one that it misses, so that it does not bend the others. Every
//! evaluation uses the same seed and a short window. Parameters are scaled to their plausible ranges. The many
//! parameters of this table are found one at a time (`descend`), until [`REFINED`] of the evaluations are left; CMA-ES,
//! seeded, takes those, and the small fits of the other tables alone.

use cmaes::{CMAESOptions, DVector};
use lull_core::Mode;

use crate::RunError;
use crate::params::Params;
use crate::published::{Budget, Column, LOADS, Table, simulate};

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

/// First step of CMA-ES, as a share of the plausible ranges.
const STEP: f64 = 0.02;
/// First step of the descent, and the steps between which it stays.
const DESCENT: [f64; 3] = [0.08, 0.005, 0.2];
/// By how much a step of the descent has to be better: what is less may be the noise of short windows.
const BETTER: f64 = 0.1;
/// Share of the evaluations that CMA-ES takes after the descent: one in so many.
pub const REFINED: usize = 6;

/// How much a fit may take.
#[derive(Clone, Copy, Debug)]
pub struct FitBudget {
    /// Evaluations of the function. CMA-ES finishes the generation that it is in, so it may take some more.
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
    mut progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    let names: Vec<&str> =
        start.iter().filter(|(_, param)| param.range[1] > param.range[0]).map(|(name, _)| name).collect();
    let distance = |params: &Params| distance(params, cells, budget);
    let refined = budget.evaluations / REFINED;
    let descended = budget.evaluations - refined;
    let coarse = descend(start, &names, descended, distance, &mut progress)?;
    if refined == 0 {
        return Ok(coarse);
    }
    let fine = search(&coarse.params, &names, STEP, refined, budget.seed, distance, |evaluation, best| {
        progress(descended + evaluation, best);
    })?;
    Ok(Fit { before: coarse.before, ..fine })
}

/// Searches the named parameters one after the other, over and over: a step in the direction that was right last time,
/// else one in the other. A parameter's steps grow while they are right and shrink when neither is.
fn descend(
    start: &Params,
    names: &[&str],
    most: usize,
    distance: impl Fn(&Params) -> Result<f64, RunError>,
    mut progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    let [first, least, greatest] = DESCENT;
    let ranges: Vec<[f64; 2]> =
        start.iter().filter(|(name, _)| names.contains(name)).map(|(_, param)| param.range).collect();
    let mut steps = vec![first; names.len()];
    let before = distance(start)?;
    let mut best = (before, start.clone());
    let mut evaluations = 0;
    // Ends, too, when no parameter can be moved any more.
    while evaluations < most {
        let swept = evaluations;
        for ((name, [low, high]), step) in names.iter().zip(&ranges).zip(&mut steps) {
            let mut right = false;
            for sign in [1.0, -1.0] {
                let mut params = best.1.clone();
                params.set(name, params.get(name) + sign * *step * (high - low));
                if params == best.1 || evaluations == most {
                    continue;
                }
                let value = distance(&params).unwrap_or(f64::MAX);
                evaluations += 1;
                right = value < best.0 - BETTER;
                if right {
                    best = (value, params);
                    // The other direction next time if this was backwards.
                    *step = sign * (1.5 * step.abs()).min(greatest) * step.signum();
                }
                progress(evaluations, best.0);
                if right {
                    break;
                }
            }
            if !right {
                *step = (0.5 * step.abs()).max(least) * step.signum();
            }
        }
        if evaluations == swept {
            break;
        }
    }
    Ok(Fit { params: best.1, before, after: best.0 })
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
