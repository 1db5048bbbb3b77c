//! Compares one cell with another, run by run, and the order of the modes with the published one.

use super::drift::Drift;
use super::report::find;
use super::{CellSummary, Load, RunResult};
use crate::csv::{CsvRow, published};
use crate::stats::{self, Estimate};

/// The share of base's maximum at which low load is judged, in thousandths.
pub const LOW_LOAD_PERMILLE: u32 = 250;

/// How far another percent load may lie from [`LOW_LOAD_PERMILLE`] and still be judged as low load, in thousandths.
const LOW_LOAD_SLACK_PERMILLE: u32 = 100;

/// A quantity in which two cells are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Queries answered per second.
    Qps,
    /// Mean latency, in microseconds.
    Avg,
    /// 99th percentile of latency, in microseconds.
    P99,
    /// Server CPU, in percent.
    Cpu,
}

impl Metric {
    /// Returns the value in one run.
    pub fn of_run(self, run: &RunResult) -> Option<f64> {
        match self {
            Metric::Qps => Some(run.qps),
            Metric::Avg => run.avg_latency_us,
            Metric::P99 => run.p99_latency_us,
            Metric::Cpu => run.cpu_percent,
        }
    }

    /// Returns the value in one cell.
    pub fn of_cell(self, cell: &CellSummary) -> Option<Estimate> {
        match self {
            Metric::Qps => Some(cell.qps),
            Metric::Avg => cell.avg_latency_us,
            Metric::P99 => cell.p99_latency_us,
            Metric::Cpu => cell.cpu_percent,
        }
    }

    fn of_row(self, row: &CsvRow) -> Option<f64> {
        match self {
            Metric::Qps => row.qps,
            Metric::Avg => row.avg_latency_us,
            Metric::P99 => row.p99_latency_us,
            Metric::Cpu => row.cpu_percent,
        }
    }
}

/// Returns `numerator / denominator` over the runs that both cells have, or `None` if they share no run with a value in
/// both.
pub fn ratio(metric: Metric, numerator: &CellSummary, denominator: &CellSummary) -> Option<Estimate> {
    ratio_covered(metric, numerator, denominator, stats::COVERAGE)
}

fn ratio_covered(
    metric: Metric,
    numerator: &CellSummary,
    denominator: &CellSummary,
    coverage: f64,
) -> Option<Estimate> {
    let pairs: (Vec<f64>, Vec<f64>) = numerator
        .runs
        .iter()
        .filter_map(|n| {
            let d = denominator.runs.iter().find(|d| d.run == n.run)?;
            Some((metric.of_run(n)?, metric.of_run(d)?))
        })
        .unzip();
    stats::paired_ratio_covered(&pairs.0, &pairs.1, coverage)
}

/// A test case at one load against `base` at the same load.
#[derive(Clone, Debug)]
pub struct AgainstBase<'a> {
    /// The cell.
    pub cell: &'a CellSummary,
    /// The ratio of its 99th percentile to base's, run by run.
    pub p99: Option<Estimate>,
    /// The ratio of its CPU to base's, run by run.
    pub cpu: Option<Estimate>,
    /// The published ratio of its p99 to base's at the same share of base's maximum.
    pub published_p99: Option<f64>,
    /// The published ratio of its CPU to base's at the same share of base's maximum.
    pub published_cpu: Option<f64>,
}

/// Compares every measured test case at `load` except `base` with `base`. The list is empty if `base` was not measured
/// at this load.
pub fn against_base(cells: &[CellSummary], load: Load) -> Vec<AgainstBase<'_>> {
    let Some(base) = find(cells, "base", load) else { return Vec::new() };
    let share = share_of_base(load);
    let published = |metric, testcase: &str| {
        let share = share?;
        Some(published_at(metric, testcase, share)? / published_at(metric, "base", share)?)
    };
    cells
        .iter()
        .filter(|c| c.load == load && c.testcase != "base")
        .map(|cell| AgainstBase {
            p99: ratio(Metric::P99, cell, base),
            cpu: ratio(Metric::Cpu, cell, base),
            published_p99: published(Metric::P99, &cell.testcase),
            published_cpu: published(Metric::Cpu, &cell.testcase),
            cell,
        })
        .collect()
}

/// Returns the percent load nearest to 25 % among `cells`, if one is near.
pub fn low_load(cells: &[CellSummary]) -> Option<Load> {
    let distance = |load: Load| match load {
        Load::Percent { permille } => Some(permille.abs_diff(LOW_LOAD_PERMILLE)),
        _ => None,
    };
    cells
        .iter()
        .filter_map(|c| Some((distance(c.load)?, c.load)))
        .filter(|&(distance, _)| distance <= LOW_LOAD_SLACK_PERMILLE)
        .min()
        .map(|(_, load)| load)
}

/// The order of the modes at one load, here and as published.
#[derive(Clone, Debug)]
pub struct Order {
    /// Test cases with a usable cell here and a published value, best (lowest) first as measured here.
    pub measured: Vec<String>,
    /// The same test cases, best first as published.
    pub published: Vec<String>,
    /// Spearman's rank correlation of the two; `None` with fewer than three test cases.
    pub spearman: Option<f64>,
    /// Pairs (better, worse as published) whose order is reversed here, beyond the interval of their paired ratio. The
    /// intervals have a joint coverage of [`stats::COVERAGE`] (Bonferroni), because otherwise a few pairs among twelve
    /// modes would look reversed by chance.
    pub reversed: Vec<(String, String)>,
    /// The number of pairs whose order is reversed within the interval, which is no evidence either way.
    pub reversed_within_noise: usize,
}

/// A cell with its value here and as published.
type Judged<'a> = (&'a CellSummary, f64, f64);

/// Compares the order of the modes by `metric` at a percent load with the published order, interpolated at the same
/// share of base's maximum. Returns `None` if `load` is not a share or fewer than two modes can be compared.
pub fn order(cells: &[CellSummary], metric: Metric, load: Load) -> Option<Order> {
    let share = share_of_base(load)?;
    // On a machine whose speed changes, the figures of two cells are of different times, but their ratios to base are
    // not.
    let base = find(cells, "base", load).filter(|base| base.usable() && Drift::of(cells).is_large());
    let value = |cell: &CellSummary| match base {
        Some(base) => ratio(metric, cell, base).map(|ratio| ratio.value),
        None => metric.of_cell(cell).map(|figure| figure.value),
    };
    let mut both: Vec<Judged<'_>> = cells
        .iter()
        .filter(|c| c.load == load && c.usable())
        .filter_map(|c| Some((c, value(c)?, published_at(metric, &c.testcase, share)?)))
        .collect();
    if both.len() < 2 {
        return None;
    }
    let here: Vec<f64> = both.iter().map(|b| b.1).collect();
    let there: Vec<f64> = both.iter().map(|b| b.2).collect();
    let pairs = || both.iter().enumerate().flat_map(|(i, left)| both[i + 1..].iter().map(move |right| (left, right)));
    let swapped: Vec<_> = pairs().filter(|(left, right)| (left.1 - right.1) * (left.2 - right.2) < 0.0).collect();
    let coverage = 1.0 - (1.0 - stats::COVERAGE) / swapped.len().max(1) as f64;
    let proven = |(left, right): &&(&Judged<'_>, &Judged<'_>)| {
        ratio_covered(metric, left.0, right.0, coverage).is_some_and(|r| r.excludes(1.0))
    };
    let as_published = |(left, right): &(&Judged<'_>, &Judged<'_>)| {
        let (better, worse) = if left.2 < right.2 { (left, right) } else { (right, left) };
        (better.0.testcase.clone(), worse.0.testcase.clone())
    };
    let reversed: Vec<(String, String)> = swapped.iter().filter(proven).map(as_published).collect();
    let reversed_within_noise = swapped.len() - reversed.len();
    let names = |both: &[Judged<'_>]| both.iter().map(|b| b.0.testcase.clone()).collect();
    both.sort_by(|a, b| a.1.total_cmp(&b.1));
    let measured = names(&both);
    both.sort_by(|a, b| a.2.total_cmp(&b.2));
    let published = names(&both);
    Some(Order { measured, published, spearman: stats::spearman(&here, &there), reversed, reversed_within_noise })
}

fn share_of_base(load: Load) -> Option<f64> {
    load.offered_qps(Some(1.0)).filter(|_| load.needs_base())
}

/// Returns the published value of a test case at a share of the published maximum of `base`, interpolated linearly
/// between the published loads. Returns `None` outside them, because nothing is extrapolated.
pub fn published_at(metric: Metric, testcase: &str, share: f64) -> Option<f64> {
    let base_qps_max = published().iter().find(|r| r.testcase == "base" && r.load == Load::Max)?.qps?;
    let qps = share * base_qps_max;
    let mut points: Vec<(f64, f64)> = published()
        .iter()
        .filter(|r| r.testcase == testcase)
        .filter_map(|r| Some((r.load.offered_qps(None)?, metric.of_row(r)?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.windows(2).find(|pair| (pair[0].0..=pair[1].0).contains(&qps)).map(|pair| {
        let along = (qps - pair[0].0) / (pair[1].0 - pair[0].0);
        pair[0].1 + along * (pair[1].1 - pair[0].1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Enforcement, summarise};

    const QUARTER: Load = Load::Percent { permille: 250 };

    fn runs(testcase: &str, p99: [f64; 3]) -> Vec<RunResult> {
        let one = |(n, p99): (usize, f64)| RunResult {
            p99_latency_us: Some(p99),
            ..RunResult::new(testcase, QUARTER, n as u32, 1.0, 1000.0)
        };
        p99.into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn published_values_are_interpolated_and_never_extrapolated() {
        // 0.25 * 1054805 = 263701: 31.85 % of the way from 200K (415) to 400K (715).
        let p99 = published_at(Metric::P99, "base", 0.25).unwrap();
        assert!((p99 - 510.55).abs() < 0.1, "{p99}");
        assert_eq!(published_at(Metric::P99, "base", 0.05), None);
        assert_eq!(published_at(Metric::P99, "threaded", 0.25), None);
    }

    #[test]
    fn ratios_pair_runs_by_number() {
        let mut cells =
            summarise([runs("base", [100.0, 200.0, 400.0]), runs("defer10", [50.0, 100.0, 200.0])].concat());
        // A missing run must not shift the pairs.
        cells[1].runs.remove(1);
        let rows = against_base(&cells, QUARTER);
        assert_eq!(rows.len(), 1);
        let p99 = rows[0].p99.unwrap();
        assert_eq!((p99.count, rows[0].cpu), (2, None));
        assert!((p99.value - 0.5).abs() < 1e-12);
        assert!((rows[0].published_p99.unwrap() - 0.293).abs() < 0.01);
    }

    #[test]
    fn reversals_beyond_noise_are_named_and_the_rest_counted() {
        let cells = summarise(
            [
                runs("base", [100.0, 101.0, 99.0]),
                runs("fullbusy", [200.0, 201.0, 199.0]),
                runs("defer10", [30.0, 31.0, 32.0]),
                runs("defer20", [29.0, 31.0, 31.5]),
            ]
            .concat(),
        );
        let order = order(&cells, Metric::P99, QUARTER).unwrap();
        assert_eq!(order.measured, ["defer10", "defer20", "base", "fullbusy"]);
        assert_eq!(order.published, ["fullbusy", "defer10", "defer20", "base"]);
        assert!(order.reversed.contains(&("fullbusy".into(), "base".into())));
        assert_eq!(order.reversed.len(), 3);
        assert_eq!(order.reversed_within_noise, 0);
        assert_eq!(low_load(&cells), Some(QUARTER));
    }

    #[test]
    fn a_mode_that_is_not_in_force_has_no_rank() {
        let mut all = [runs("base", [9.0; 3]), runs("defer10", [1.0; 3]), runs("suspend10", [5.0; 3])].concat();
        all[8].verdict = Enforcement::not_in_force("no suspension");
        let order = order(&summarise(all), Metric::P99, QUARTER).unwrap();
        assert_eq!(order.measured, ["defer10", "base"]);
        assert_eq!(order.spearman, None);
    }
}
