//! A simulated table beside the published one: errors, goals, ranks.

use std::fmt::Write as _;

use crate::published::cells::{COLUMNS, Cell, Column, Table};
use crate::published::{CALIBRATION_CASES, LOADS};

/// What a column should reach in a predicted cell: a share of the published value, or percentage points for CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The column.
    pub column: Column,
    /// The allowed error: a ratio, or points where the column is a percentage.
    pub allowed: f64,
}

/// The goals. Queries per second have 5 % where the published run was saturated.
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
    /// What was allowed: the goal, or two standard errors if that is more.
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

/// The error of a simulated value: a ratio minus one, or points for a percentage.
pub fn error(column: Column, simulated: f64, published: f64) -> f64 {
    if column.is_percent() { simulated - published } else { simulated / published - 1.0 }
}

fn is_fitted(case: &str) -> bool {
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

/// Spearman's rank correlation of two columns of numbers; ties share their mean rank.
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

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { f64::NAN } else { values[values.len() / 2] }
}

/// All cells: simulated, published, error, in the goals' columns and those that explain them.
pub fn table_text(simulated: &Table, published: &Table) -> String {
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

/// Cases without a published value: the columns that tell a design, at every load.
pub fn cases_text(rows: &[(&Table, &str)]) -> String {
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

/// One line per column: median and worst absolute error of fitted and of predicted cells, and the rank correlation over the
/// cases at each load.
pub fn columns_text(simulated: &Table, published: &Table) -> String {
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

/// How many goals are met, per column, fitted and predicted apart.
pub fn goals_text(judged: &[Judged]) -> String {
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

/// Predicted values that miss their goal, the worst first.
pub fn misses_text(judged: &[Judged]) -> String {
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
    fn the_published_table_meets_every_goal_against_itself_and_a_bent_one_does_not() {
        let published = Table::parse(crate::published::V6_CSV).unwrap();
        assert!(judge(&published, &published).iter().all(Judged::is_met));
        let mut bent = published.clone();
        let cell = bent.cells.iter_mut().find(|cell| cell.case == "suspend20" && cell.load == "400K").unwrap();
        cell.set(Column::Avg, cell.get(Column::Avg) * 1.13);
        cell.set(Column::Cpu, cell.get(Column::Cpu) + 3.9);
        let judged = judge(&bent, &published);
        let missed: Vec<&Judged> = judged.iter().filter(|judged| !judged.is_met()).collect();
        assert_eq!(missed.len(), 1);
        assert_eq!((missed[0].column, missed[0].fitted), (Column::Avg, false));
        assert!(misses_text(&judged).contains("suspend20"));
    }
}
