//! Rows of a small published table beside their simulated twins, and the fit of a few parameters to some of them.

use std::fmt::Write as _;

use crate::RunError;
use crate::fit::{Fit, search};
use crate::params::Params;
use crate::published::statements::StatementVerdict;

/// One published value and its simulated twin.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Whether calibration sees it.
    pub fitted: bool,
    /// As published.
    pub published: f64,
    /// As simulated.
    pub simulated: f64,
}

impl Row {
    /// The error, in percent of the published value.
    pub fn error_percent(&self) -> f64 {
        100.0 * (self.simulated / self.published - 1.0)
    }
}

/// Rows, then fitted and predicted ones summed up apart, then the statements.
pub fn text(rows: &[Row], unit: &str, verdicts: &[StatementVerdict]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut out = format!("{:width$}  {:>10}  {:>10}  {:>7}\n", "", "published", "simulated", "error");
    for row in rows {
        let kind = if row.fitted { "  fitted" } else { "" };
        let _ = writeln!(
            out,
            "{:width$}  {:>10.0}  {:>10.0}  {:>+6.1}%{kind}",
            row.name,
            row.published,
            row.simulated,
            row.error_percent()
        );
    }
    out.push('\n');
    for (label, fitted) in [("fitted", true), ("predicted", false)] {
        let mut errors: Vec<f64> =
            rows.iter().filter(|row| row.fitted == fitted).map(|row| row.error_percent().abs()).collect();
        errors.sort_by(f64::total_cmp);
        if let (Some(worst), Some(median)) = (errors.last(), errors.get(errors.len() / 2)) {
            let count = errors.len();
            let _ =
                writeln!(out, "{label}: {count} values in {unit}, |error| median {median:.1} %, worst {worst:.1} %");
        }
    }
    out.push('\n');
    for verdict in verdicts {
        out.push_str(&verdict.line());
        out.push('\n');
    }
    out
}

/// Rows as CSV.
pub fn to_csv(rows: &[Row], unit: &str) -> String {
    let mut out = format!("row,published_{unit},simulated_{unit},error_percent,calibration\n");
    for row in rows {
        let _ = writeln!(
            out,
            "\"{}\",{},{:.1},{:.1},{}",
            row.name,
            row.published,
            row.simulated,
            row.error_percent(),
            if row.fitted { "fitted" } else { "predicted" }
        );
    }
    out
}

/// Fits the named parameters to the rows that `simulate` marks as fitted, by the sum of squared errors in percent.
///
/// # Errors
/// A world that hit its bound at the start.
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

/// First step of the search, as a share of the plausible ranges.
const STEP: f64 = 0.1;

/// `value` is within the range, or `what` is noted as broken.
pub(crate) fn within(broken: &mut Vec<String>, what: &str, value: f64, low: f64, high: f64) {
    if !(low..=high).contains(&value) {
        broken.push(format!("{what} is {value:.2}, not {low:.2} to {high:.2}"));
    }
}
