//! Formats a calibration as text.

use lull_sim::calibration::{Column, Figure};
use lull_units::time_text;

use super::{Outcome, Shown};
use crate::stats::Estimate;
use crate::table::grid::{Align, Grid, wrap};

/// The figures that are shown of a cell.
const SHOWN: [Column; 4] = [Column::PerS, Column::AvgUs, Column::P99Us, Column::CpuPercent];

/// Returns the outcome as text of this width.
pub fn render(outcome: &Outcome, columns: usize) -> String {
    let mut out = "What operations take, one by one (medians of batches, with their intervals):\n\n".to_owned();
    let mut micro = Grid::default();
    micro.column("operation", Align::Left);
    micro.column("time", Align::Right);
    micro.column("interval", Align::Left);
    for one in &outcome.micro {
        micro.row(vec![one.what.to_owned(), ns(one.ns.value), interval(&one.ns)]);
    }
    out += &micro.to_string();
    out += "\nWhat was found, and how far it may be off (95 %):\n\n";
    let mut found = Grid::default();
    found.column("key", Align::Left);
    found.column("value", Align::Right);
    found.column("interval", Align::Left);
    found.column("from", Align::Left);
    found.column("of", Align::Left);
    for one in &outcome.calibrated.found {
        let value = if one.key.unit == "share" { format!("{:.1}%", 100.0 * one.value) } else { ns(one.value) };
        found.row(vec![
            one.key.name.to_owned(),
            value,
            one.interval_text(),
            if one.measured.is_some() { "measured, fitted" } else { "fitted" }.to_owned(),
            one.key.meaning.to_owned(),
        ]);
    }
    out += &found.to_string();
    out += &wrap(&instructions(outcome), columns, "");
    let (before, after) = outcome.calibrated.error;
    out += "\nThe cells that this was fitted to, and the one that was not, measured and simulated:\n\n";
    let mut cells = Grid::default();
    cells.column("cell", Align::Left);
    for column in SHOWN {
        cells.column(column.name(), Align::Right);
        cells.column("simulated", Align::Right);
    }
    outcome.fitted.iter().for_each(|shown| cells.row(row(shown)));
    cells.gap();
    cells.row(row(&outcome.held_out));
    out += &cells.to_string();
    out.push('\n');
    let notes = outcome.fitted.iter().chain([&outcome.held_out]);
    let notes =
        notes.filter_map(|shown| Some(format!("{} at {}: {}", shown.cell.mode, shown.load, shown.note.as_ref()?)));
    for note in notes.chain([
        format!(
            "The error of the fitted cells, in units of what counts as one, was {:.1} at the start and is {:.1} (root of the \
             mean square).",
            before.sqrt(),
            after.sqrt()
        ),
        format!("{} was not used: {}.", name(&outcome.held_out), errors(&outcome.held_out)),
    ]) {
        out += &wrap(&note, columns, "");
    }
    out
}

/// Returns a paragraph on the instructions for each query.
fn instructions(outcome: &Outcome) -> String {
    let Some((found, off)) = outcome.calibrated.instructions else {
        return "\nInstructions are not known: the hardware does not count them here.".to_owned();
    };
    format!(
        "\nInstructions, counted by the hardware: {:.0} ± {:.0} a request, {:.0} ± {:.0} a poll, {:.0} ± {:.0} an interrupt (how far \
         each moves without one of the cells).",
        found.request, off.request, found.poll, off.poll, found.interrupt, off.interrupt
    )
}

fn name(shown: &Shown) -> String {
    format!("{} at {}", shown.cell.mode, shown.load)
}

fn ns(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}ns") } else { time_text(value.round() as u64) }
}

fn interval(estimate: &Estimate) -> String {
    estimate.interval.map_or(String::new(), |interval| format!("{} to {}", ns(interval.low), ns(interval.high)))
}

fn of(shown: &Shown, column: Column) -> (Option<Figure>, f64) {
    let measured = shown.cell.figures.iter().find(|(of, _)| *of == column).map(|(_, figure)| *figure);
    let simulated = shown.simulated.iter().find(|(of, _)| *of == column).map_or(f64::NAN, |(_, value)| *value);
    (measured, simulated)
}

fn text(column: Column, value: f64) -> String {
    match column {
        Column::PerS => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn row(shown: &Shown) -> Vec<String> {
    let mut row = vec![name(shown)];
    for column in SHOWN {
        let (measured, simulated) = of(shown, column);
        let with_interval =
            |figure: Figure| format!("{} ±{}", text(column, figure.value), text(column, figure.interval));
        row.push(measured.map_or_else(|| "-".to_owned(), with_interval));
        row.push(text(column, simulated));
    }
    row
}

/// Returns by how much the simulated figures are off.
fn errors(shown: &Shown) -> String {
    let error = |column: Column| {
        let (measured, simulated) = of(shown, column);
        let measured = measured?.value;
        Some(match column {
            Column::CpuPercent => format!("{} {:+.1} points", column.name(), simulated - measured),
            _ => format!("{} {:+.1} %", column.name(), 100.0 * (simulated / measured - 1.0)),
        })
    };
    let mut errors: Vec<String> = SHOWN.iter().filter_map(|&column| error(column)).collect();
    if let (Some(measured), Some(simulated)) = (shown.cell.instructions, shown.instructions) {
        errors.push(format!("instructions/query {:+.1} %", 100.0 * (simulated / measured - 1.0)));
    }
    format!("predicted {}", errors.join(", "))
}
