//! Estimates with confidence intervals from a handful of runs.
//!
//! The speed of shared machines drifts, so the lab repeats each case a few times, interleaved, and states how certain
//! it is: means (rates, CPU) with Student's t, medians (latencies) with order statistics, and ratios of two cases run
//! by run, which cancels the drift that both have.
//!
//! ```
//! use lull_lab::stats;
//!
//! let qps = stats::mean(&[1000.0, 1010.0, 1020.0]).expect("three values"); assert_eq!(qps.value, 1010.0); let gain = stats::paired_ratio(&[116.0, 117.0], &[100.0, 100.0]).expect("two pairs"); assert!(gain.excludes(1.0));
//! ```

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The coverage that every interval aims for, as a share of 1.
pub const COVERAGE: f64 = 0.95;

/// Relative differences below this are rounding errors: the value of an interval of zero width need not equal its ends
/// to the last bit.
const ROUNDING: f64 = 1e-9;

/// A confidence interval, in the unit of the estimated value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// The probability, before measuring, that such an interval covers the true value. It is [`COVERAGE`] for means and
    /// ratios. For medians it is what the order statistics reach, which is less with fewer than six runs.
    pub coverage: f64,
}

/// A value with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean, median or geometric mean of ratios.
    pub value: f64,
    /// The interval, or `None` with a single run.
    pub interval: Option<Interval>,
    /// Number of runs (or of pairs) behind it.
    pub count: u32,
}

impl Estimate {
    /// Makes a value that does not come from runs, such as a published one.
    pub fn exact(value: f64) -> Self {
        Estimate { value, interval: None, count: 1 }
    }

    /// Returns the distance to the farther end of the interval, as a percentage of the value.
    pub fn spread_percent(&self) -> Option<f64> {
        let interval = self.interval?;
        let farther = (interval.high - self.value).max(self.value - interval.low);
        (self.value != 0.0).then(|| 100.0 * farther / self.value.abs())
    }

    /// Whether the interval excludes `value`. It is false without an interval, because one run shows nothing.
    pub fn excludes(&self, value: f64) -> bool {
        self.interval.is_some_and(|i| {
            let slack = ROUNDING * value.abs();
            value < i.low - slack || value > i.high + slack
        })
    }
}

/// Returns the mean with a Student t interval, or `None` without values. With one value there is no interval.
pub fn mean(values: &[f64]) -> Option<Estimate> {
    mean_covered(values, COVERAGE)
}

fn mean_covered(values: &[f64], coverage: f64) -> Option<Estimate> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let value = values.iter().sum::<f64>() / count as f64;
    let interval =
        half_width(values, value, coverage).map(|half| Interval { low: value - half, high: value + half, coverage });
    Some(Estimate { value, interval, count: count as u32 })
}

/// Returns the median with the interval between two order statistics.
///
/// With six values or more, the interval is the narrowest symmetric pair that covers the median with at least
/// [`COVERAGE`]. With fewer, it is the whole range, and [`Interval::coverage`] gives its probability (75 % for three
/// values). No distribution is assumed, because tail latencies would not follow it. Returns `None` without values. With
/// one value there is no interval.
pub fn median(values: &[f64]) -> Option<Estimate> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let value = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
    let interval = (count > 1).then(|| {
        let (skip, coverage) = order_statistic(count);
        Interval { low: sorted[skip], high: sorted[count - 1 - skip], coverage }
    });
    Some(Estimate { value, interval, count: count as u32 })
}

/// Returns the ratio `numerator / denominator`, pair by pair: the geometric mean with a t interval on the logarithms.
///
/// Pairs beyond the shorter slice, and pairs with a value that is not positive and finite, are left out. Returns `None`
/// if no pair is left.
pub fn paired_ratio(numerator: &[f64], denominator: &[f64]) -> Option<Estimate> {
    paired_ratio_covered(numerator, denominator, COVERAGE)
}

/// Returns [`paired_ratio`] with an interval of another coverage (between 0 and 1), because several questions asked at
/// once need a stricter one each.
pub fn paired_ratio_covered(numerator: &[f64], denominator: &[f64], coverage: f64) -> Option<Estimate> {
    let logs: Vec<f64> = numerator
        .iter()
        .zip(denominator)
        .filter(|&(&n, &d)| n > 0.0 && d > 0.0 && n.is_finite() && d.is_finite())
        .map(|(n, d)| (n / d).ln())
        .collect();
    let log = mean_covered(&logs, coverage)?;
    Some(Estimate {
        value: log.value.exp(),
        interval: log.interval.map(|i| Interval { low: i.low.exp(), high: i.high.exp(), ..i }),
        count: log.count,
    })
}

/// Returns Spearman's rank correlation of two equally long series, from -1 (reversed order) to 1 (same order).
///
/// Ties share their mean rank. Returns `None` with fewer than three values, with different lengths, or if one side is
/// constant.
pub fn spearman(left: &[f64], right: &[f64]) -> Option<f64> {
    if left.len() != right.len() || left.len() < 3 {
        return None;
    }
    pearson(&ranks(left), &ranks(right))
}

/// Returns the rank of each value, 1 for the lowest. Ties share their mean rank.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    while first < order.len() {
        let tied = order[first..].iter().take_while(|&&i| values[i] == values[order[first]]).count().max(1);
        // The ranks first+1 ..= first+tied are shared.
        let shared = first as f64 + (tied as f64 + 1.0) / 2.0;
        for &i in &order[first..first + tied] {
            ranks[i] = shared;
        }
        first += tied;
    }
    ranks
}

fn pearson(left: &[f64], right: &[f64]) -> Option<f64> {
    let count = left.len() as f64;
    let (mean_left, mean_right) = (left.iter().sum::<f64>() / count, right.iter().sum::<f64>() / count);
    let (mut cross, mut square_left, mut square_right) = (0.0, 0.0, 0.0);
    for (l, r) in left.iter().zip(right) {
        cross += (l - mean_left) * (r - mean_right);
        square_left += (l - mean_left).powi(2);
        square_right += (r - mean_right).powi(2);
    }
    let scale = (square_left * square_right).sqrt();
    (scale > 0.0).then(|| cross / scale)
}

/// Returns half the width of the t interval of the mean.
fn half_width(values: &[f64], mean: f64, coverage: f64) -> Option<f64> {
    let count = values.len();
    if count < 2 {
        return None;
    }
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    Some(student_t(count - 1, coverage) * (variance / count as f64).sqrt())
}

/// Returns the two-sided quantile of Student's t.
fn student_t(degrees_of_freedom: usize, coverage: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, degrees_of_freedom as f64) {
        Ok(t) => t.inverse_cdf((1.0 + coverage) / 2.0),
        // Only non-positive degrees of freedom are refused, and callers have two values or more.
        Err(_) => f64::INFINITY,
    }
}

/// Returns how many of `count` sorted values to leave out at each end, and the coverage of the median by the rest.
fn order_statistic(count: usize) -> (usize, f64) {
    // Leaving out k at each end misses the median if at most k of the values are on one side of it: a binomial tail.
    let mut binomial = 0.5_f64.powi(count as i32);
    let mut tail = binomial;
    let (mut skip, mut coverage) = (0, 1.0 - 2.0 * tail);
    for k in 1..count / 2 {
        binomial *= (count - k + 1) as f64 / k as f64;
        tail += binomial;
        if 1.0 - 2.0 * tail < COVERAGE {
            break;
        }
        (skip, coverage) = (k, 1.0 - 2.0 * tail);
    }
    (skip, coverage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-4 * right.abs().max(1.0)
    }

    #[test]
    fn student_t_matches_the_printed_tables() {
        for (df, t) in [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (29, 2.04523)] {
            assert!(close(student_t(df, COVERAGE), t), "{df}: {}", student_t(df, COVERAGE));
        }
    }

    #[test]
    fn mean_of_a_textbook_sample() {
        // s = 1, n = 3: half width 4.30265 / sqrt(3).
        let estimate = mean(&[9.0, 10.0, 11.0]).unwrap();
        let interval = estimate.interval.unwrap();
        assert_eq!(estimate.value, 10.0);
        assert!(close(interval.high, 12.48414), "{interval:?}");
        assert!(close(interval.low, 7.51586));
        assert!(close(estimate.spread_percent().unwrap(), 24.8414));
    }

    #[test]
    fn one_run_has_no_interval_and_shows_nothing() {
        let estimate = mean(&[5.0]).unwrap();
        assert_eq!(estimate.interval, None);
        assert!(!estimate.excludes(1.0));
        assert_eq!(mean(&[]), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn median_of_few_runs_is_the_range_with_its_true_coverage() {
        let estimate = median(&[3.0, 1.0, 2.0]).unwrap();
        let interval = estimate.interval.unwrap();
        assert_eq!((estimate.value, interval.low, interval.high), (2.0, 1.0, 3.0));
        assert!(close(interval.coverage, 0.75));
    }

    #[test]
    fn median_interval_follows_the_binomial_table() {
        // Standard tables: n = 6 -> (1, 6) at 96.9 %, n = 10 -> (2, 9) at 97.9 %, n = 20 -> (6, 15) at 95.9 %.
        for (count, skip, coverage) in [(6, 0, 0.96875), (10, 1, 0.97852), (20, 5, 0.95861)] {
            let (got, covered) = order_statistic(count);
            assert_eq!(got, skip, "n = {count}");
            assert!(close(covered, coverage), "n = {count}: {covered}");
        }
        let even: Vec<f64> = (1..=10).map(f64::from).collect();
        let estimate = median(&even).unwrap();
        assert_eq!(estimate.value, 5.5);
        assert_eq!(estimate.interval.map(|i| (i.low, i.high)), Some((2.0, 9.0)));
    }

    #[test]
    fn drift_that_both_saw_cancels_in_the_paired_ratio() {
        let base = [100.0, 140.0, 80.0];
        let other: Vec<f64> = base.iter().map(|b| b * 1.16).collect();
        let ratio = paired_ratio(&other, &base).unwrap();
        assert!(close(ratio.value, 1.16));
        assert!(ratio.excludes(1.0) && !ratio.excludes(1.16));
        let interval = ratio.interval.unwrap();
        assert!(interval.high - interval.low < 1e-9);
    }

    #[test]
    fn paired_ratio_leaves_out_pairs_without_a_ratio() {
        assert_eq!(paired_ratio(&[1.0, 0.0, f64::NAN], &[2.0, 1.0, 1.0]).unwrap().count, 1);
        assert_eq!(paired_ratio(&[0.0], &[1.0]), None);
        // ln 2 and ln 8: geometric mean 4.
        assert!(close(paired_ratio(&[2.0, 8.0], &[1.0, 1.0]).unwrap().value, 4.0));
    }

    #[test]
    fn spearman_matches_the_worked_example() {
        // IQ against hours of television, the usual worked example: rho = -29/165.
        let iq = [106.0, 100.0, 86.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
        let hours = [7.0, 27.0, 2.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
        assert!(close(spearman(&iq, &hours).unwrap(), -29.0 / 165.0));
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[5.0, 6.0, 900.0]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0]), None);
    }

    #[test]
    fn ties_share_their_rank() {
        assert_eq!(ranks(&[10.0, 20.0, 10.0, 5.0]), [2.5, 4.0, 2.5, 1.0]);
    }
}
