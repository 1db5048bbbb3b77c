//! Rows of a small published table beside their simulated twins, and the fit of a few parameters to some of them.

use crate::RunError;
use crate::fit::{Fit, search};
use crate::params::Params;

/// One published value and its simulated twin.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What the value is.
    pub name: String,
    /// Whether calibration sees it.
    pub fitted: bool,
    /// The published value.
    pub published: f64,
    /// The simulated value.
    pub simulated: f64,
}

impl Row {
    /// The error, in percent of the published value.
    pub fn error_percent(&self) -> f64 {
        100.0 * (self.simulated / self.published - 1.0)
    }
}

/// Fits the named parameters to the rows that `simulate` marks as fitted, by the sum of squared errors in percent.
///
/// # Errors
///
/// This fails if a world hit its bound at the start.
pub(crate) fn fit_rows(
    start: &Params,
    names: &[&str],
    evaluations: usize,
    seed: u64,
    simulate: impl Fn(&Params) -> Result<Vec<Row>, RunError>,
    progress: impl FnMut(usize, f64),
) -> Result<Fit, RunError> {
    let distance = |params: &Params| {
        let rows = simulate(params)?;
        Ok(rows.iter().filter(|row| row.fitted).map(|row| row.error_percent() * row.error_percent()).sum())
    };
    search(start, names, STEP, evaluations, seed, distance, progress)
}

/// The first step of the search, as a share of the plausible ranges.
const STEP: f64 = 0.1;

/// Checks that `value` is within the range; otherwise `what` is noted as broken.
pub(crate) fn within(broken: &mut Vec<String>, what: &str, value: f64, low: f64, high: f64) {
    if !(low..=high).contains(&value) {
        broken.push(format!("{what} is {value:.2}, not {low:.2} to {high:.2}"));
    }
}
