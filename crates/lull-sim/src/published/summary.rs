//! Compares a simulated table with the published one: errors, goals, ranks.

use crate::published::cells::{Cell, Column, Table};
use crate::published::{CALIBRATION_CASES, LOADS};

/// The error that a column should not exceed in a predicted cell: a share of the published value, or percentage points
/// for CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The column.
    pub column: Column,
    /// The allowed error: a ratio, or points if the column is a percentage.
    pub allowed: f64,
}

/// The goals. Queries per second have 5 % if the published run was saturated.
pub const GOALS: [Goal; 7] = [
    Goal { column: Column::Qps, allowed: 0.02 },
    Goal { column: Column::Avg, allowed: 0.12 },
    Goal { column: Column::P99, allowed: 0.25 },
    Goal { column: Column::Cpu, allowed: 4.0 },
    Goal { column: Column::Irqs, allowed: 0.25 },
    Goal { column: Column::Polls, allowed: 0.25 },
    Goal { column: Column::EpollCalls, allowed: 0.15 },
];

/// Allowed error of queries per second in saturation.
pub(crate) const QPS_SATURATED: f64 = 0.05;

/// One judged value.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The case.
    pub case: String,
    /// The load.
    pub load: String,
    /// The column.
    pub column: Column,
    /// The simulated value.
    pub simulated: f64,
    /// The published value.
    pub published: f64,
    /// The error: a ratio minus one, or points.
    pub error: f64,
    /// The allowed error: the goal, or two standard errors if that is more.
    pub allowed: f64,
    /// Whether calibration saw the cell.
    pub fitted: bool,
}

impl Judged {
    /// Whether the goal is met.
    pub fn is_met(&self) -> bool {
        self.error.abs() <= self.allowed
    }
}

/// Returns the error of a simulated value: a ratio minus one, or points for a percentage.
pub fn error(column: Column, simulated: f64, published: f64) -> f64 {
    if column.is_percent() { simulated - published } else { simulated / published - 1.0 }
}

/// Whether calibration sees a case.
pub fn is_fitted(case: &str) -> bool {
    CALIBRATION_CASES.contains(&case)
}

fn is_saturated(cell: &Cell) -> bool {
    let offered = LOADS.iter().find(|(name, _)| *name == cell.load).and_then(|(_, qps)| *qps);
    offered.is_none_or(|offered| cell.get(Column::Qps) < 0.995 * offered)
}

/// Judges every goal of every cell that both tables have.
pub fn judge(simulated: &Table, published: &Table) -> Vec<Judged> {
    let mut judged = Vec::new();
    for cell in &simulated.cells {
        let Some(reference) = published.cell(&cell.case, &cell.load) else { continue };
        for goal in GOALS {
            let (sim, publ) = (cell.get(goal.column), reference.get(goal.column));
            if publ.is_nan() {
                continue;
            }
            let goal_allowed =
                if goal.column == Column::Qps && is_saturated(reference) { QPS_SATURATED } else { goal.allowed };
            let two_errors = 2.0 * reference.standard_error(goal.column);
            let noise = if goal.column.is_percent() { two_errors } else { two_errors / publ };
            judged.push(Judged {
                case: cell.case.clone(),
                load: cell.load.clone(),
                column: goal.column,
                simulated: sim,
                published: publ,
                error: error(goal.column, sim, publ),
                allowed: goal_allowed.max(noise),
                fitted: is_fitted(&cell.case),
            });
        }
    }
    judged
}

/// How many goals of predicted cells are met, and of how many.
pub fn goals_met(simulated: &Table, published: &Table) -> (usize, usize) {
    let judged = judge(simulated, published);
    let predicted = || judged.iter().filter(|judged| !judged.fitted);
    (predicted().filter(|judged| judged.is_met()).count(), predicted().count())
}

/// Returns the median of the absolute errors in one column, over the predicted cells of the cases that `family`
/// selects.
pub fn median_error(simulated: &Table, published: &Table, column: Column, family: impl Fn(&str) -> bool) -> f64 {
    let mut errors: Vec<f64> = simulated
        .cells
        .iter()
        .filter(|cell| !is_fitted(&cell.case) && family(&cell.case))
        .filter_map(|cell| {
            let reference = published.cell(&cell.case, &cell.load)?;
            let error = error(column, cell.get(column), reference.get(column)).abs();
            error.is_finite().then_some(error)
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Spearman's rank correlation of two columns of numbers; equal values share their mean rank.
pub fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let (ranks_a, ranks_b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let mut products = [0.0; 3];
    for (x, y) in ranks_a.iter().zip(&ranks_b) {
        products[0] += (x - mean) * (y - mean);
        products[1] += (x - mean) * (x - mean);
        products[2] += (y - mean) * (y - mean);
    }
    products[0] / libm::sqrt(products[1] * products[2])
}

fn ranks(values: &[f64]) -> Vec<f64> {
    values
        .iter()
        .map(|value| {
            let below = values.iter().filter(|other| *other < value).count() as f64;
            let same = values.iter().filter(|other| *other == value).count() as f64;
            below + (same + 1.0) / 2.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_disagree_and_share_ties() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]), 1.0);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        assert_eq!(ranks(&[5.0, 5.0, 1.0]), [2.5, 2.5, 1.0]);
    }

    #[test]
    fn the_median_error_is_that_of_the_named_predicted_cells() {
        let published = Table::parse(crate::published::V2_CSV).unwrap();
        let mut bent = published.clone();
        for cell in &mut bent.cells {
            let share = if cell.case.starts_with("suspend") { 1.5 } else { 3.0 };
            cell.set(Column::P99, cell.get(Column::P99) * share);
            cell.set(Column::Cpu, cell.get(Column::Cpu) - 2.0);
        }
        let error =
            |column: Column, family: &str| median_error(&bent, &published, column, |case| case.starts_with(family));
        assert!((error(Column::P99, "suspend") - 0.5).abs() < 1e-9);
        assert!((error(Column::P99, "defer") - 2.0).abs() < 1e-9);
        assert!((error(Column::Cpu, "") - 2.0).abs() < 1e-9);
        // A family of fitted cases has no predicted cells.
        assert!(error(Column::P99, "base").is_nan());
    }

    #[test]
    fn the_published_table_meets_every_goal_against_itself_and_a_bent_one_does_not() {
        let published = Table::parse(crate::published::V2_CSV).unwrap();
        assert!(judge(&published, &published).iter().all(Judged::is_met));
        let mut bent = published.clone();
        let cell = bent.cells.iter_mut().find(|cell| cell.case == "suspend20" && cell.load == "400K").unwrap();
        cell.set(Column::Avg, cell.get(Column::Avg) * 1.13);
        cell.set(Column::Cpu, cell.get(Column::Cpu) + 3.9);
        let judged = judge(&bent, &published);
        let missed: Vec<&Judged> = judged.iter().filter(|judged| !judged.is_met()).collect();
        assert_eq!(missed.len(), 1);
        let (met, of) = goals_met(&bent, &published);
        assert_eq!((met + 1, of), (of, 7 * 7 * 6));
        assert_eq!((missed[0].column, missed[0].fitted), (Column::Avg, false));
        assert_eq!((missed[0].case.as_str(), missed[0].load.as_str()), ("suspend20", "400K"));
    }
}
