//! Rows of a small published table as text and as CSV.

use std::fmt::Write as _;

use lull_sim::published::rows::Row;
use lull_sim::published::statements::{Standing, Statement};
use lull_sim::published::udp_stream::MODES;

/// Returns the rows, then a summary of the fitted and one of the predicted ones, then the statements.
pub(super) fn text(rows: &[Row], unit: &str, statements: &[Statement]) -> String {
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
    for statement in statements {
        out.push_str(&line(statement));
        out.push('\n');
    }
    out
}

/// Returns rows as CSV.
pub(super) fn to_csv(rows: &[Row], unit: &str) -> String {
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

/// Returns one line: PASS, NEAR or FAIL, the statement, and the first parts of it that do not hold.
pub(super) fn line(statement: &Statement) -> String {
    let word = match statement.standing() {
        Standing::Holds => return format!("PASS {:>2}  {}", statement.number, statement.says),
        Standing::Near => "NEAR",
        Standing::Broken => "FAIL",
    };
    let shown = statement.broken.iter().chain(&statement.near).take(3).cloned().collect::<Vec<_>>().join("; ");
    let more = (statement.broken.len() + statement.near.len()).saturating_sub(3);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{word} {:>2}  {}: {shown}{more}", statement.number, statement.says)
}

/// Returns the fitted and predicted errors of each column, one line each.
pub(super) fn columns_text(rows: &[Row]) -> String {
    let mut out = String::new();
    for mode in MODES {
        for (label, fitted) in [("fitted", true), ("predicted", false)] {
            let mut errors: Vec<f64> = rows
                .iter()
                .filter(|row| row.fitted == fitted && row.name.ends_with(&format!(", {}", mode.name())))
                .map(|row| row.error_percent().abs())
                .collect();
            errors.sort_by(f64::total_cmp);
            if let (Some(worst), Some(median)) = (errors.last(), errors.get(errors.len() / 2)) {
                let count = errors.len();
                let _ = writeln!(
                    out,
                    "{:14}  {label:9}  {count:2} values, |error| median {median:5.1} %, worst {worst:5.1} %",
                    mode.name()
                );
            }
        }
    }
    out
}
