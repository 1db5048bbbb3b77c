//! Calibration: finds parameters from the cells that calibration may see, and from nothing else.
//!
//! The function that is minimised sums `ln(1 + (error / goal)^2)` over the cells and columns. So a cell that the model
//! cannot reach counts only a little more than one that it misses, and does not distort the others. Every evaluation
//! uses the same seed and a short window. Parameters are scaled to their plausible ranges. The many parameters of this
//! table are found by reweighted Gauss-Newton steps from a perturbed start; the small fits of the other tables use
//! CMA-ES, seeded.

use std::collections::BTreeMap;

use cmaes::{CMAESOptions, DVector};
use lull_core::Mode;

use crate::RunError;
use crate::engine::rng::{Component, Stream};
use crate::params::Params;
use crate::published::{Budget, Column, LOADS, Table, simulate};

/// The columns that are fitted, each with the error that counts as one.
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

/// The steps, in shares of the ranges, by which the first and the later slopes are measured: large ones first, since
/// short windows are noisy.
const SLOPES: [f64; 2] = [0.1, 0.05];
/// How far a parameter moves in a step at the most, in shares of its range.
const FARTHEST: f64 = 0.25;
/// How strongly the steps that are tried are damped (Levenberg's parameter).
pub(crate) const HELD_BACK: [f64; 4] = [0.01, 0.1, 1.0, 10.0];

/// How much a fit may compute.
#[derive(Clone, Copy, Debug)]
pub struct FitBudget {
    /// How often the function is evaluated.
    pub evaluations: usize,
    /// What an evaluation simulates of each cell.
    pub cell: Budget,
    /// Seed of the optimiser and of the simulated runs.
    pub seed: u64,
}

/// The outcome of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The parameters that were found; those of the start if nothing better was.
    pub params: Params,
    /// The function at the start.
    pub before: f64,
    /// The function at what was found.
    pub after: f64,
}

/// The function that is minimised.
///
/// # Errors
///
/// This fails if a cell hit its bound.
pub fn distance(params: &Params, cells: &Table, budget: &FitBudget) -> Result<f64, RunError> {
    Ok(sum(&residuals(params, cells, budget)?))
}

fn sum(residuals: &[f64]) -> f64 {
    residuals.iter().map(|residual| libm::log1p(residual * residual)).sum()
}

/// Returns the errors of all columns of all cells, in units of the error that counts as one.
fn residuals(params: &Params, cells: &Table, budget: &FitBudget) -> Result<Vec<f64>, RunError> {
    let mut cases: Vec<&str> = Vec::new();
    for cell in &cells.cells {
        if !cases.contains(&cell.case.as_str()) {
            cases.push(&cell.case);
        }
    }
    let modes: Vec<Mode> = cases.iter().filter_map(|case| case.parse().ok()).collect();
    let loads: Vec<&str> = LOADS.iter().map(|(name, _)| *name).collect();
    let simulated = simulate(params, &modes, &loads, budget.cell, budget.seed)?;
    let mut residuals = Vec::new();
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
                // The error is in logarithms, because half and double are equally wrong.
                libm::log(simulated.get(column).max(1.0) / published.max(1.0))
            };
            residuals.push(error / unit);
        }
    }
    Ok(residuals)
}

/// Returns the parameters, each moved at random by up to `share` of its range, up or down. A fit that starts from the
/// result of an earlier one would only find that again.
pub fn perturbed(start: &Params, share: f64, seed: u64) -> Params {
    let mut rng = Stream::new(seed, Component::Background, 1);
    let mut params = start.clone();
    for (name, param) in start.iter() {
        let [low, high] = param.range;
        params.set(name, param.value + share * (2.0 * rng.unit() - 1.0) * (high - low));
    }
    params
}

/// Fits the parameters to `cells`. `progress` is told the number of every evaluation and the best value so far.
///
/// # Errors
///
/// This fails if a cell hit its bound at the start.
pub fn fit(
    start: &Params,
    cells: &Table,
    budget: &FitBudget,
    progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    Descent::new(start, budget.evaluations, progress).run(|params| residuals(params, cells, budget))
}

/// Reweighted Gauss-Newton steps. The slopes of the residuals are measured for one parameter after the other, and the
/// resulting linear model is solved for the step, with large residuals counting less, as in the function that is
/// minimised.
pub(crate) struct Descent<P> {
    names: Vec<(String, [f64; 2])>,
    best: (f64, Params),
    residuals: Vec<f64>,
    evaluations: usize,
    most: usize,
    progress: P,
}

impl<P: FnMut(usize, f64)> Descent<P> {
    /// `progress` is told the number of every evaluation and the best value so far; there are `most` evaluations at the
    /// most.
    pub(crate) fn new(start: &Params, most: usize, progress: P) -> Descent<P> {
        let free = start.iter().filter(|(_, param)| param.range[1] > param.range[0]);
        let names = free.map(|(name, param)| (name.to_owned(), param.range)).collect();
        Descent { names, best: (f64::MAX, start.clone()), residuals: Vec::new(), evaluations: 0, most, progress }
    }

    pub(crate) fn run(mut self, evaluate: impl Fn(&Params) -> Result<Vec<f64>, RunError>) -> Result<Fit, RunError> {
        self.residuals = evaluate(&self.best.1)?;
        let before = sum(&self.residuals);
        self.best.0 = before;
        let mut slope = SLOPES[0];
        while let Some(slopes) = self.slopes(slope, &evaluate) {
            // It also ends when the linear model has no better step any more.
            if !self.step(&slopes, &evaluate) && slope == SLOPES[1] {
                break;
            }
            slope = SLOPES[1];
        }
        Ok(Fit { params: self.best.1, before, after: self.best.0 })
    }

    /// Evaluates a candidate. Returns `None` when no evaluation is left; a candidate that cannot be simulated gets the
    /// largest error.
    fn evaluated(
        &mut self,
        params: &Params,
        evaluate: &impl Fn(&Params) -> Result<Vec<f64>, RunError>,
    ) -> Option<Vec<f64>> {
        if self.evaluations == self.most {
            return None;
        }
        self.evaluations += 1;
        let found = evaluate(params).unwrap_or_else(|_| vec![UNREACHED; self.residuals.len()]);
        (self.progress)(self.evaluations, self.best.0);
        Some(found)
    }

    /// Returns the slope of each residual by each parameter, in shares of its range, at the best point so far.
    fn slopes(
        &mut self,
        step: f64,
        evaluate: &impl Fn(&Params) -> Result<Vec<f64>, RunError>,
    ) -> Option<Vec<Vec<f64>>> {
        let at = self.best.1.clone();
        let mut slopes = Vec::new();
        for (name, [low, high]) in self.names.clone() {
            let value = at.get(&name);
            let up = value + step * (high - low) <= high;
            let mut params = at.clone();
            params.set(&name, if up { value + step * (high - low) } else { value - step * (high - low) });
            let moved = (params.get(&name) - value) / (high - low);
            let found = self.evaluated(&params, evaluate)?;
            // A residual that saturates on the way says nothing about the slope.
            let slope = |(found, base): (&f64, &f64)| ((found - base) / moved).clamp(-STEEPEST, STEEPEST);
            slopes.push(found.iter().zip(&self.residuals).map(slope).collect());
        }
        Some(slopes)
    }

    /// Tries the steps of the linear model; returns whether one of them was better.
    fn step(&mut self, slopes: &[Vec<f64>], evaluate: &impl Fn(&Params) -> Result<Vec<f64>, RunError>) -> bool {
        let before = self.best.0;
        let weights: Vec<f64> = self.residuals.iter().map(|residual| 1.0 / (1.0 + residual * residual)).collect();
        let product = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((a, b), weight)| a * b * weight).sum()
        };
        let normal: Vec<Vec<f64>> = slopes.iter().map(|a| slopes.iter().map(|b| product(a, b)).collect()).collect();
        let gradient: Vec<f64> = slopes.iter().map(|a| -product(a, &self.residuals)).collect();
        let at = self.best.1.clone();
        for held_back in HELD_BACK {
            let mut params = at.clone();
            for ((name, [low, high]), by) in self.names.iter().zip(solve(&normal, &gradient, held_back)) {
                params.set(name, at.get(name) + by.clamp(-FARTHEST, FARTHEST) * (high - low));
            }
            let Some(found) = self.evaluated(&params, evaluate) else { break };
            let value = sum(&found);
            if value < self.best.0 {
                self.best = (value, params);
                self.residuals = found;
            }
        }
        self.best.0 < before
    }
}

/// Returns how far each parameter may be off (95 %), from the residuals at the best point and how they depend on the
/// parameters there. A parameter on which no residual depends may be anywhere in its range.
pub(crate) fn intervals(
    best: &Params,
    residuals: &[f64],
    evaluate: impl Fn(&Params) -> Result<Vec<f64>, RunError>,
) -> BTreeMap<String, f64> {
    let mut descent = Descent::new(best, usize::MAX, |_, _| ());
    descent.residuals = residuals.to_vec();
    let Some(slopes) = descent.slopes(SLOPES[1], &evaluate) else { return BTreeMap::new() };
    let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let normal: Vec<Vec<f64>> = slopes.iter().map(|a| slopes.iter().map(|b| product(a, b)).collect()).collect();
    let freedom = residuals.len().saturating_sub(slopes.len()).max(1) as f64;
    // Residuals are in units of the measurements' uncertainty, so their scale may be larger than one, but not smaller.
    let scale = (residuals.iter().map(|residual| residual * residual).sum::<f64>() / freedom).max(1.0);
    let count = slopes.len();
    let spread = |place: usize| {
        let unit: Vec<f64> = (0..count).map(|other| if other == place { 1.0 } else { 0.0 }).collect();
        1.96 * (solve(&normal, &unit, 0.0)[place].max(0.0) * scale).sqrt()
    };
    let parameters = descent.names.iter().enumerate();
    parameters.map(|(place, (name, [low, high]))| (name.clone(), spread(place).min(1.0) * (high - low))).collect()
}

/// The steepest slope that is accepted, in errors that count as one over a whole range.
const STEEPEST: f64 = 200.0;
/// The residual of a cell that cannot be simulated.
const UNREACHED: f64 = 1e6;

/// Solves the normal equations by Gauss elimination, with a diagonal that is enlarged by `held_back` (and a little
/// more, so that a parameter without effect stays where it is).
fn solve(normal: &[Vec<f64>], right: &[f64], held_back: f64) -> Vec<f64> {
    let count = right.len();
    let mut rows: Vec<Vec<f64>> = normal
        .iter()
        .zip(right)
        .enumerate()
        .map(|(place, (row, right))| {
            let mut row = row.clone();
            row[place] += held_back * row[place] + 1.0;
            row.push(*right);
            row
        })
        .collect();
    for pivot in 0..count {
        let largest = (pivot..count).max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()));
        rows.swap(pivot, largest.unwrap_or(pivot));
        let (above, below) = rows.split_at_mut(pivot + 1);
        for row in below {
            let share = row[pivot] / above[pivot][pivot];
            for (value, taken) in row[pivot..].iter_mut().zip(&above[pivot][pivot..]) {
                *value -= share * taken;
            }
        }
    }
    let mut solution = vec![0.0; count];
    for place in (0..count).rev() {
        let known: f64 = (place + 1..count).map(|other| rows[place][other] * solution[other]).sum();
        solution[place] = (rows[place][count] - known) / rows[place][place];
    }
    solution
}

/// Searches the named parameters for the least `distance`. The first step is `step`, a share of their ranges.
///
/// # Errors
///
/// This fails if a world hit its bound at the start.
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
            // Beyond the ranges the function grows, so that the search comes back.
            value + 100.0 * outside
        };
        let search = CMAESOptions::new(scaled, step).seed(seed).max_function_evals(most).build(function);
        if let Ok(mut search) = search {
            let _ = search.run();
        }
    }
    Ok(Fit { params: best.1, before, after: best.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes three parameters, two of which are free.
    fn three() -> Params {
        let one = |name: &str, value: f64, high: f64| {
            format!("[{name}]\nvalue = {value:?}\nunit = \"ns\"\nrange = [0.0, {high:?}]\nmeaning = \"a cost\"\n")
        };
        let text = one("a_ns", 900.0, 1_000.0) + &one("b_ns", 10.0, 200.0) + &one("c_ns", 0.0, 0.0);
        Params::parse(&text, &[("a_ns", "ns"), ("b_ns", "ns"), ("c_ns", "ns")]).unwrap()
    }

    #[test]
    fn a_descent_finds_the_truth_in_spite_of_residuals_that_nothing_can_mend() {
        let residuals = |params: &Params| {
            let (a, b) = (params.get("a_ns") - 300.0, params.get("b_ns") - 150.0);
            // The residuals are slightly curved, like costs near saturation; one is large whatever the parameters are.
            Ok(vec![a / 20.0, (a + 5.0 * b) / 30.0, b / 4.0 + a * a / 1e5, 40.0])
        };
        let found = Descent::new(&three(), 60, |_, _| ()).run(residuals).unwrap();
        assert!(found.after < 0.6 * found.before, "{} to {}", found.before, found.after);
        let off = |name: &str, truth: f64| (found.params.get(name) - truth).abs();
        assert!(off("a_ns", 300.0) < 3.0 && off("b_ns", 150.0) < 2.0, "{:?}", found.params);
        assert_eq!(found.params.get("c_ns"), 0.0);
    }

    #[test]
    fn what_cannot_be_simulated_is_passed_over() {
        let calls = std::cell::Cell::new(0);
        let residuals = |params: &Params| {
            calls.set(calls.get() + 1);
            let a = params.get("a_ns");
            if a < 500.0 { Err(RunError::Backlog { bound: 1, at_ns: 1 }) } else { Ok(vec![a / 100.0, 1.0]) }
        };
        let found = Descent::new(&three(), 30, |_, _| ()).run(residuals).unwrap();
        let a = found.params.get("a_ns");
        assert!((500.0..900.0).contains(&a) && found.after < found.before, "{a}");
        // It uses fewer than it may, when the model has no better step any more.
        assert!(calls.get() <= 31, "{}", calls.get());
    }

    #[test]
    fn normal_equations_are_solved() {
        let solution = solve(&[vec![3.0, 1.0], vec![1.0, 1.0]], &[9.0, 5.0], 0.0);
        // With 1 more on the diagonal the equations are 4x + y = 9 and x + 2y = 5.
        assert!((solution[0] - 13.0 / 7.0).abs() < 1e-12 && (solution[1] - 11.0 / 7.0).abs() < 1e-12, "{solution:?}");
    }
}
