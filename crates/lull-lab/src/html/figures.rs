//! Converts a report into what its charts draw.

use super::bars::Bar;
use super::lines::{Point, Series, Titles};
use super::ratios::Ratio;
use super::scatter::Dot;
use super::svg::short;
use crate::cell::compare::{Metric, against_base, low_load, ratio};
use crate::cell::{CellSummary, Enforcement, Load, Report};
use crate::csv::published;
use crate::stats::Estimate;

/// The x axis on which a report's loads are placed.
#[derive(Clone, Copy, Debug)]
pub enum LoadAxis {
    /// Percent of this maximum of base, in queries per second.
    Percent(f64),
    /// Thousand queries per second.
    Thousands,
}

impl LoadAxis {
    /// Uses shares of base's maximum if that is known, and rates otherwise.
    pub fn of(report: &Report) -> LoadAxis {
        let at_max = report.cell("base", Load::Max).filter(|c| c.usable()).map(|c| c.qps.value);
        // The maximum that the loads are shares of comes first, so that 25% is placed at 25.
        match report.base_qps_max.or(at_max) {
            Some(max) if max > 0.0 => LoadAxis::Percent(max),
            _ => LoadAxis::Thousands,
        }
    }

    fn place(self, qps: f64) -> f64 {
        match self {
            LoadAxis::Percent(max) => 100.0 * qps / max,
            LoadAxis::Thousands => qps / 1e3,
        }
    }

    /// Returns the titles of a chart of `what` (with its unit) over this axis.
    pub fn titles(self, what: &str) -> Titles {
        let (x, x_unit) = match self {
            LoadAxis::Percent(max) => {
                (format!("queries answered, % of base's maximum ({} per second)", short(max)), "%")
            }
            LoadAxis::Thousands => ("queries answered, thousand per second".to_string(), ""),
        };
        Titles { what: format!("{what} over load, a line for each mode"), x, y: what.to_string(), x_unit }
    }
}

/// Returns the lines of one metric. Cells that are not in force are left out, because a line with a mode's name must
/// show that mode.
pub fn series(report: &Report, metric: Metric, axis: LoadAxis) -> Vec<Series> {
    modes(report)
        .into_iter()
        .map(|testcase| {
            let mut cells: Vec<&CellSummary> =
                report.cells.iter().filter(|c| c.testcase == testcase && c.verdict.shows_mode()).collect();
            cells.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
            let point = |cell: &CellSummary| {
                let y = metric.of_cell(cell)?;
                let x = axis.place(cell.qps.value);
                Some(Point { x, y, load: cell.load, counts: cell.standing.counts(), tip: tip(cell) })
            };
            Series {
                label: label(&testcase, &cells),
                points: cells.iter().filter_map(|c| point(c)).collect(),
                testcase,
            }
        })
        .collect()
}

/// Returns the bars of throughput at MAX, or none if no cell ran at MAX.
pub fn bars(report: &Report) -> Vec<Bar> {
    if !report.cells.iter().any(|c| c.load == Load::Max) {
        return Vec::new();
    }
    let base = report.cell("base", Load::Max).filter(|c| c.usable());
    modes(report)
        .into_iter()
        .map(|testcase| {
            let cell = report.cell(&testcase, Load::Max);
            let published_qps = base.and_then(|b| Some(b.qps.value * published_ratio(&testcase)?));
            let doubt = match cell {
                Some(c) if !c.verdict.shows_mode() => "not in force".to_string(),
                Some(c) => c.standing.to_string(),
                None => String::new(),
            };
            Bar {
                qps: cell.map(|c| c.qps),
                against_base: cell.filter(|_| testcase != "base").and_then(|c| ratio(Metric::Qps, c, base?)),
                published_qps,
                doubt,
                tip: cell.map(tip).unwrap_or_default(),
                testcase,
            }
        })
        .collect()
}

/// Returns p99 against CPU at low load, and which load that is, or `None` without such a load.
pub fn dots(report: &Report) -> Option<(Load, Vec<Dot>)> {
    let load = low_load(&report.cells)?;
    let dot = |cell: &CellSummary| {
        Some(Dot {
            testcase: cell.testcase.clone(),
            label: label(&cell.testcase, &[cell]),
            cpu: cell.cpu_percent?,
            latency: cell.p99_latency_us?,
            counts: cell.standing.counts(),
            tip: tip(cell),
        })
    };
    let dots: Vec<Dot> =
        report.cells.iter().filter(|c| c.load == load && c.verdict.shows_mode()).filter_map(dot).collect();
    (!dots.is_empty()).then_some((load, dots))
}

/// Returns every mode against base at low load, and which load that is, or `None` without such a load or without base.
pub fn ratios(report: &Report) -> Option<(Load, Vec<Ratio>)> {
    let load = low_load(&report.cells)?;
    report.cell("base", load).filter(|base| base.usable())?;
    let ratios: Vec<Ratio> = against_base(&report.cells, load)
        .into_iter()
        .map(|row| Ratio {
            testcase: row.cell.testcase.clone(),
            values: [row.p99, row.cpu].map(|r| r.filter(|_| row.cell.verdict.shows_mode())),
            published: [row.published_p99, row.published_cpu],
            doubt: match row.cell.verdict.shows_mode() {
                true => String::new(),
                false => row.cell.verdict.to_string(),
            },
            counts: row.cell.standing.counts(),
            tip: tip(row.cell),
        })
        .collect();
    (!ratios.is_empty()).then_some((load, ratios))
}

/// Returns the planned modes, then the others that were measured.
pub fn modes(report: &Report) -> Vec<String> {
    let mut modes = report.modes.clone();
    for cell in &report.cells {
        if !modes.contains(&cell.testcase) {
            modes.push(cell.testcase.clone());
        }
    }
    modes
}

/// Returns the place of a cell's load among those of its mode. `MAX` is last.
fn rank(cell: &CellSummary) -> f64 {
    match cell.load {
        Load::Max => f64::INFINITY,
        _ => cell.offered_qps.unwrap_or(cell.qps.value),
    }
}

/// Returns the name, with the measured timeout at the last load if it differs from the mode's.
fn label(testcase: &str, cells: &[&CellSummary]) -> String {
    let had = cells.iter().rev().find_map(|c| match c.verdict {
        Enforcement::TimeoutHad { had_us, .. } => Some(had_us),
        _ => None,
    });
    had.map_or_else(|| testcase.to_string(), |us| format!("{testcase} (had {us:.0})"))
}

fn published_ratio(testcase: &str) -> Option<f64> {
    let qps = |name: &str| published().iter().find(|r| r.testcase == name && r.load == Load::Max)?.qps;
    (testcase != "base").then(|| Some(qps(testcase)? / qps("base")?))?
}

fn tip(cell: &CellSummary) -> String {
    let one = |name: &str, estimate: Option<Estimate>, unit: &str| {
        estimate.map(|e| {
            let interval = e.interval.map_or(String::new(), |i| format!(" [{}, {}]", short(i.low), short(i.high)));
            format!("\n{name} {}{interval}{unit}", short(e.value))
        })
    };
    let mut text = format!("{} at {}", cell.testcase, cell.load);
    text.extend(one("throughput", Some(cell.qps), " /s"));
    text.extend(one("average", cell.avg_latency_us, " µs"));
    text.extend(one("p99", cell.p99_latency_us, " µs"));
    text.extend(one("CPU", cell.cpu_percent, " %"));
    let note = cell.note();
    if !note.is_empty() {
        text += "\n";
        text += &note;
    }
    text
}
