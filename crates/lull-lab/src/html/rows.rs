//! The full table of the page.

use super::palette::look;
use super::svg::escape;
use crate::cell::{CellSummary, Enforcement, Report};
use crate::csv::{CsvRow, EXTRA_COLUMNS, NOT_RUN, PUBLISHED_COLUMNS, number};

/// Returns the table: every planned cell, with intervals, verdict and note.
pub fn table(report: &Report) -> String {
    let mut out = String::from("<table><thead><tr>");
    for name in PUBLISHED_COLUMNS.iter().chain(&EXTRA_COLUMNS).chain(&["verdict"]) {
        out += &format!("<th>{}</th>", name.replace('_', "<wbr>_"));
    }
    out += "</tr></thead>";
    let mut last = None;
    for (testcase, load, cell) in report.rows() {
        if last != Some(load) {
            out += if last.is_some() { "</tbody><tbody>" } else { "<tbody>" };
            last = Some(load);
        }
        let row = cell.map_or_else(|| CsvRow::not_run(testcase, load), CsvRow::of_cell);
        out += &tr(&row, cell);
    }
    out += if last.is_some() { "</tbody></table>" } else { "</table>" };
    out
}

fn tr(row: &CsvRow, cell: Option<&CellSummary>) -> String {
    let (class, mark) = match cell {
        None => ("missing", String::new()),
        Some(c) if !c.verdict.shows_mode() => ("off", pill("bad", &c.verdict.to_string())),
        Some(c) if !c.standing.counts() => ("doubt", pill("warn", &c.standing.to_string())),
        Some(c) if c.verdict != Enforcement::InForce => ("had", pill("had", &c.verdict.to_string())),
        Some(_) => ("", String::new()),
    };
    let mut out = format!(
        "<tr class=\"{class}\" title=\"{}\"><th class=\"{}\"><i class=\"dot\"></i><span class=\"name\">{}</span>{mark}</th><td>{}</td>",
        escape(&row.note),
        look(&row.testcase).class(),
        escape(&row.testcase),
        row.load
    );
    for (value, estimate) in
        row.published_values().into_iter().zip(cell.map_or([None; 7], CellSummary::published_estimates))
    {
        let spread = estimate.and_then(|e| e.spread_percent());
        let spread = spread.map_or(String::new(), |p| format!("<small>±{p:.1}%</small>"));
        out += &format!("<td>{}{spread}</td>", number(value));
    }
    for value in row.extras {
        out += &format!("<td>{}</td>", number(value));
    }
    let verdict = match cell {
        None => NOT_RUN.to_string(),
        Some(c) => c.verdict.to_string(),
    };
    let note = if row.note.is_empty() { String::new() } else { format!("<span>{}</span>", escape(&row.note)) };
    out + &format!("<td class=\"verdict\">{verdict}{note}</td></tr>")
}

fn pill(class: &str, text: &str) -> String {
    format!("<b class=\"pill {class}\">{}</b>", escape(text))
}
