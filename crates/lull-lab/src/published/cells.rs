//! Simulated cells beside the published ones, as text: the cells, the columns, the goals, and the values that miss
//! them.

use std::fmt::Write as _;

use lull_sim::published::LOADS;
use lull_sim::published::cells::{COLUMNS, Column, Table};
use lull_sim::published::summary::{GOALS, Judged, error, is_fitted, rank_correlation};

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { f64::NAN } else { values[values.len() / 2] }
}

/// Returns all cells: simulated and published values with the error, in the goals' columns and those that explain them.
pub(super) fn table_text(simulated: &Table, published: &Table) -> String {
    let columns = [
        Column::Qps,
        Column::Avg,
        Column::P50,
        Column::P95,
        Column::P99,
        Column::Cpu,
        Column::Softirq,
        Column::Irqs,
        Column::Polls,
        Column::EpollCalls,
    ];
    let mut text = String::new();
    let _ = write!(text, "{:<12}{:>6}", "testcase", "load");
    for column in columns {
        let _ = write!(text, " | {:^25}", column.name());
    }
    let _ = writeln!(text, "\n{:18} | each: simulated, published, error", "");
    for cell in &simulated.cells {
        let Some(reference) = published.cell(&cell.case, &cell.load) else { continue };
        let _ = write!(text, "{:<12}{:>6}", cell.case, cell.load);
        for column in columns {
            let (sim, publ) = (cell.get(column), reference.get(column));
            let error = error(column, sim, publ);
            let shown = if column.is_percent() { format!("{error:+.1}") } else { format!("{:+.0}%", 100.0 * error) };
            let _ = write!(text, " | {:>9}{:>10}{:>6}", figure(sim), figure(publ), shown);
        }
        text.push('\n');
    }
    text
}

fn figure(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.3}M", value / 1e6)
    } else if value >= 1e4 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Returns cases without a published value: the columns that distinguish designs, at every load.
pub(super) fn cases_text(rows: &[(&Table, &str)]) -> String {
    let columns = [Column::Qps, Column::Avg, Column::P99, Column::Cpu, Column::Irqs, Column::Polls];
    let mut text = format!("{:<14}{:>6}", "testcase", "load");
    for column in columns {
        let _ = write!(text, "{:>18}", column.name());
    }
    text.push('\n');
    for (load, _) in LOADS {
        for (table, case) in rows {
            let Some(cell) = table.cell(case, load) else { continue };
            let _ = write!(text, "{case:<14}{load:>6}");
            for column in columns {
                let _ = write!(text, "{:>18}", figure(cell.get(column)));
            }
            text.push('\n');
        }
    }
    text
}

/// Returns one line per column: median and worst absolute error of fitted and of predicted cells, and the rank
/// correlation over the cases at each load.
pub(super) fn columns_text(simulated: &Table, published: &Table) -> String {
    let mut text =
        format!("{:<22}{:>8}{:>8}{:>10}{:>8}   rank correlation at", "column", "fitted", "worst", "predicted", "worst");
    for (load, _) in LOADS {
        let _ = write!(text, "{load:>7}");
    }
    text.push('\n');
    for (column, name) in COLUMNS {
        let _ = write!(text, "{name:<22}");
        for fitted in [true, false] {
            let mut errors: Vec<f64> = simulated
                .cells
                .iter()
                .filter(|cell| is_fitted(&cell.case) == fitted)
                .filter_map(|cell| {
                    let reference = published.cell(&cell.case, &cell.load)?;
                    let error = error(column, cell.get(column), reference.get(column)).abs();
                    error.is_finite().then_some(error)
                })
                .collect();
            let worst = errors.iter().copied().fold(0.0, f64::max);
            for value in [median(&mut errors), worst] {
                let shown =
                    if column.is_percent() { format!("{value:.1}pt") } else { format!("{:.1}%", 100.0 * value) };
                let _ = write!(text, "{shown:>width$}", width = if fitted { 8 } else { 9 });
            }
        }
        let _ = write!(text, "{:>21}", "");
        for (load, _) in LOADS {
            let pairs: Vec<(f64, f64)> = simulated
                .cells
                .iter()
                .filter(|cell| cell.load == load)
                .filter_map(|cell| Some((cell.get(column), published.cell(&cell.case, load)?.get(column))))
                .collect();
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let _ = write!(text, "{:>7.2}", rank_correlation(&a, &b));
        }
        text.push('\n');
    }
    text
}

/// Returns how many goals are met per column, separately for fitted and predicted cells.
pub(super) fn goals_text(judged: &[Judged]) -> String {
    let mut text = format!("{:<22}{:>16}{:>18}\n", "goal", "fitted cells", "predicted cells");
    let count = |column: Option<Column>, fitted: bool| {
        let of: Vec<&Judged> = judged
            .iter()
            .filter(|judged| judged.fitted == fitted && column.is_none_or(|column| judged.column == column))
            .collect();
        format!("{} of {} met", of.iter().filter(|judged| judged.is_met()).count(), of.len())
    };
    for goal in GOALS {
        let _ = writeln!(
            text,
            "{:<22}{:>16}{:>18}",
            goal.column.name(),
            count(Some(goal.column), true),
            count(Some(goal.column), false)
        );
    }
    let _ = writeln!(text, "{:<22}{:>16}{:>18}", "all", count(None, true), count(None, false));
    text
}

/// Returns the predicted values that miss their goal, the worst first.
pub(super) fn misses_text(judged: &[Judged]) -> String {
    let mut misses: Vec<&Judged> = judged.iter().filter(|judged| !judged.fitted && !judged.is_met()).collect();
    misses.sort_by(|a, b| (b.error.abs() / b.allowed).total_cmp(&(a.error.abs() / a.allowed)));
    let mut text = String::new();
    for judged in misses {
        let percent = judged.column.is_percent();
        let show = |value: f64| if percent { format!("{value:+.1}pt") } else { format!("{:+.0}%", 100.0 * value) };
        let _ = writeln!(
            text,
            "{:<12}{:>6}  {:<16} {:>10} for {:>10}: {} where {} is allowed",
            judged.case,
            judged.load,
            judged.column.name(),
            figure(judged.simulated),
            figure(judged.published),
            show(judged.error),
            show(judged.allowed).trim_start_matches('+'),
        );
    }
    text
}
