//! A measured table beside the one that a world file predicts for it, and how far they are apart.
//!
//! An error is only informative if the measurement is more precise than the goal. So medians are taken over the cells
//! whose measured interval is narrower than the goal, and if these are fewer than three quarters of all cells, no
//! verdict is given on the whole.

use std::sync::atomic::AtomicBool;

use lull_core::Mode;
use lull_sim::dim::Moderation;
use lull_sim::predict::{Job, Offered};
use lull_sim::worldfile::{Arrivals, EVENTS_DEFAULT};
use lull_sim::{ModerationSpec, Outcome, PredictError, UserHost, WorldFile};
use lull_units::counted;

use crate::cell::{CellSummary, Enforcement, Load, Report};
use crate::simulated::run_all;
use crate::stats::{Estimate, median, spearman};
use crate::table::grid::{Align, Grid, wrap};

/// The number of seeds of a predicted cell.
const SEEDS: u64 = 3;
/// The approximate number of requests that a predicted run answers, and the bounds of its window in nanoseconds.
const REQUESTS: f64 = 30_000.0;
const WINDOW_NS: (f64, f64) = (20e6, 500e6);
/// The share of the cells that have to be measured precisely enough for a verdict on the whole: 36 of 48.
const QUALIFY: (usize, usize) = (3, 4);
/// The rank correlation that counts as the same order.
const RANK_GOAL: f64 = 0.95;

/// A predicted column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Answers per second at the maximum.
    Max,
    /// Mean latency.
    Avg,
    /// 99th percentile of latency.
    P99,
    /// CPU.
    Cpu,
}

impl Column {
    /// All columns.
    pub const ALL: [Column; 4] = [Column::Max, Column::Avg, Column::P99, Column::Cpu];

    /// Returns the error that it may have: in percent, or for the CPU in points.
    pub fn goal(self) -> f64 {
        match self {
            Column::Max => 10.0,
            Column::Avg => 15.0,
            Column::P99 => 25.0,
            Column::Cpu => 6.0,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Column::Max => "throughput at MAX",
            Column::Avg => "average latency",
            Column::P99 => "p99",
            Column::Cpu => "CPU",
        }
    }

    fn unit(self) -> &'static str {
        if self == Column::Cpu { "points" } else { "%" }
    }

    fn measured(self, cell: &CellSummary) -> Option<Estimate> {
        match self {
            Column::Max => (cell.load == Load::Max).then_some(cell.qps),
            Column::Avg => cell.avg_latency_us,
            Column::P99 => cell.p99_latency_us,
            Column::Cpu => cell.cpu_percent,
        }
    }

    /// Returns a difference to the measured value: in points, or in percent of it.
    fn of(self, difference: f64, measured: f64) -> f64 {
        if self == Column::Cpu { difference } else { 100.0 * difference / measured }
    }
}

/// A figure of a cell, measured and predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The column.
    pub column: Column,
    /// The measured value.
    pub measured: Estimate,
    /// The predicted value, as the mean over seeds.
    pub predicted: f64,
}

impl Pair {
    /// Returns the error, in percent or CPU points.
    pub fn error(&self) -> f64 {
        self.column.of(self.predicted - self.measured.value, self.measured.value)
    }

    /// Whether the measured interval is narrower than the goal. A single run has no interval.
    pub fn qualifies(&self) -> bool {
        let Some(interval) = self.measured.interval else { return false };
        let farther = (interval.high - self.measured.value).max(self.measured.value - interval.low);
        self.column.of(farther, self.measured.value).abs() <= self.column.goal()
    }
}

/// A cell, measured and predicted.
#[derive(Clone, Debug)]
pub struct Row {
    /// The mode.
    pub mode: String,
    /// The load.
    pub load: Load,
    /// Its figures.
    pub pairs: Vec<Pair>,
    /// The reason why there are none.
    pub missing: Option<String>,
}

impl Row {
    /// Whether all of its figures were measured precisely enough.
    pub fn qualifies(&self) -> bool {
        !self.pairs.is_empty() && self.pairs.iter().all(Pair::qualifies)
    }
}

/// A table beside its prediction.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The world's description.
    pub world: String,
    /// A row for each planned cell, in the table's order.
    pub rows: Vec<Row>,
}

/// The result for a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The column.
    pub column: Column,
    /// The number of cells that were measured precisely enough, and of those that have the column.
    pub cells: (usize, usize),
    /// The median of the absolute values of their errors.
    pub error: Option<f64>,
    /// Spearman's rank correlation over them.
    pub rank: Option<f64>,
}

/// The reason why nothing can be predicted of a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PredictedError {
    /// The world describes another machine.
    #[error("cannot hold {world} against this: it has {what}; calibrate again with the same options")]
    Other {
        /// The world.
        world: String,
        /// What differs.
        what: String,
    },
    /// The lab has no such service.
    #[error("cannot measure {world} with the lab: {what}; use a file of `lull calibrate`")]
    NotTheLabs {
        /// The world.
        world: String,
        /// The lab's counterpart, and the key of the world file that differs from it.
        what: &'static str,
    },
    /// There is no such mode.
    #[error(transparent)]
    Mode(#[from] lull_core::ModeError),
}

/// Checks that a world describes what is compared, so that a difference is reported before anything is measured.
///
/// # Errors
///
/// The error names the difference.
pub fn fits(
    file: &WorldFile,
    user_plane: bool,
    over: &str,
    workers: usize,
    connections: usize,
) -> Result<(), PredictedError> {
    let other = |what: String| Err(PredictedError::Other { world: file.name.clone(), what });
    if file.host.is_some() != user_plane {
        return other(if user_plane { "the kernel plane" } else { "the user plane" }.to_owned());
    }
    is_over(file, over)?;
    if usize::from(file.workers) != workers {
        return other(format!("{} instead of {workers}", counted(file.workers, "worker")));
    }
    if file.connections as usize != connections {
        return other(format!("{} instead of {connections}", counted(file.connections, "connection")));
    }
    Ok(())
}

/// Checks that a world describes a service of the lab's at all. Otherwise the measured service would not be the
/// predicted one.
///
/// # Errors
///
/// The error names the lab's counterpart.
pub fn is_the_labs(file: &WorldFile) -> Result<(), PredictedError> {
    let at_once = |moderation: ModerationSpec| match moderation {
        ModerationSpec::Off => true,
        ModerationSpec::Fixed(fixed) => fixed == Moderation { usecs: 0, frames: 1 },
        ModerationSpec::Adaptive => false,
    };
    // A device of the user's moderates interrupts, and the lab's own devices do not; `is_over` distinguishes them.
    let moderates = file.calibrated_over != Some("device") && !(at_once(file.rx) && at_once(file.tx));
    let resumes = file.host.as_ref().is_some_and(|host| host.after_resume != UserHost::default().after_resume);
    let beyond = [
        (file.upstream.is_some() || file.xdp.is_some(), "its service is another than the lab's"),
        (file.second.is_some(), "the lab has one service ([second])"),
        (file.transmit.is_some(), "the lab's answers pass no queueing discipline ([transmit])"),
        (file.events_max != EVENTS_DEFAULT, "the lab's service has a batch limit of its own (service.events_max)"),
        (file.sized, "the lab's requests and answers have sizes of their own (service.request_size and answer_size)"),
        (file.poll_after_returns != 0, "the lab's service polls as Linux does (service.poll_after_returns)"),
        (resumes, "the lab's service has its interrupts back after a resume (machine.after_resume)"),
        (
            moderates,
            "the lab's NICs hold no interrupt back (nic.adaptive, which is true if nothing is said, and nic.rx_usecs, \
                     rx_frames, tx_usecs and tx_frames; nic.rx_usecs = \"0us\" is the lab's)",
        ),
        (file.cores != file.workers || file.queues != file.workers, "the lab has a core and a queue for each worker"),
        (matches!(file.arrivals, Arrivals::Trace(_)), "the lab replays no traces"),
    ];
    match beyond.into_iter().find(|(is, _)| *is) {
        Some((_, what)) => Err(PredictedError::NotTheLabs { world: file.name.clone(), what }),
        None => Ok(()),
    }
}

/// Checks that a world's values were found over this NIC of the lab, unless it does not name a NIC.
///
/// # Errors
///
/// The error names the other NIC.
pub fn is_over(file: &WorldFile, over: &str) -> Result<(), PredictedError> {
    match file.calibrated_over {
        Some(other) if other != over => Err(PredictedError::Other {
            world: file.name.clone(),
            what: format!("been calibrated over {other} instead of {over}"),
        }),
        _ => Ok(()),
    }
}

/// Predicts every cell of a report, at the load that was offered.
///
/// # Errors
///
/// This fails for a mode that does not exist.
pub fn predict(
    file: &WorldFile,
    report: &Report,
    threads: usize,
    stop: &AtomicBool,
) -> Result<Predicted, PredictedError> {
    let mut rows = Vec::new();
    let (mut jobs, mut of_row) = (Vec::new(), Vec::new());
    for (name, load, cell) in report.rows() {
        let mode: Mode = name.parse()?;
        let missing = match cell {
            None => Some("not measured".to_owned()),
            Some(cell) => match &cell.verdict {
                Enforcement::Refused { reason } | Enforcement::NotInForce { reason } => Some(reason.clone()),
                _ => file.can_run(&mode).err(),
            },
        };
        if let (Some(cell), None) = (cell, &missing) {
            let per_s = cell.offered_qps.unwrap_or(cell.qps.value).max(1.0);
            let window_ns = (REQUESTS / per_s * 1e9).clamp(WINDOW_NS.0, WINDOW_NS.1) as u64;
            let offered = cell.offered_qps.map_or(Offered::Max, Offered::PerSecond);
            for seed in 1..=SEEDS {
                jobs.push(Job { mode: mode.clone(), offered, seed, window_ns });
                of_row.push(rows.len());
            }
        }
        rows.push(Row { mode: name.to_owned(), load, pairs: Vec::new(), missing });
    }
    let mut outcomes: Vec<Vec<Outcome>> = rows.iter().map(|_| Vec::new()).collect();
    for (row, outcome) in of_row.into_iter().zip(run_all(file, &jobs, threads, stop)) {
        match outcome {
            Some(Ok(outcome)) => outcomes[row].push(outcome),
            Some(Err(error)) => rows[row].missing = Some(why(&error)),
            None => rows[row].missing = Some("stopped before it was predicted".to_owned()),
        }
    }
    for ((row, outcomes), (_, _, cell)) in rows.iter_mut().zip(outcomes).zip(report.rows()) {
        if let (Some(cell), None) = (cell, &row.missing) {
            row.pairs = pairs(cell, &outcomes);
        }
    }
    Ok(Predicted { world: file.describe(), rows })
}

fn why(error: &PredictError) -> String {
    format!("not predicted: {error}")
}

fn pairs(cell: &CellSummary, outcomes: &[Outcome]) -> Vec<Pair> {
    let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64;
    let predicted = |column: Column| match column {
        Column::Max => mean(Outcome::qps),
        Column::Avg => mean(Outcome::latency_mean_us),
        Column::P99 => mean(|outcome| outcome.latency_us(99.0)),
        Column::Cpu => mean(|outcome| outcome.cpu.percent()),
    };
    let pair = |column: Column| Some(Pair { column, measured: column.measured(cell)?, predicted: predicted(column) });
    Column::ALL.into_iter().filter_map(pair).collect()
}

impl Predicted {
    /// Returns how many cells were measured precisely enough, and how many there are.
    pub fn qualifying(&self) -> (usize, usize) {
        (self.rows.iter().filter(|row| row.qualifies()).count(), self.rows.len())
    }

    /// Whether too few cells were.
    pub fn is_void(&self) -> bool {
        let (enough, all) = self.qualifying();
        QUALIFY.1 * enough < QUALIFY.0 * all
    }

    /// Returns the result for a column.
    pub fn judge(&self, column: Column) -> Judged {
        let all: Vec<Pair> =
            self.rows.iter().flat_map(|row| &row.pairs).filter(|pair| pair.column == column).copied().collect();
        let sharp: Vec<&Pair> = all.iter().filter(|pair| pair.qualifies()).collect();
        let errors: Vec<f64> = sharp.iter().map(|pair| pair.error().abs()).collect();
        let (measured, predicted): (Vec<f64>, Vec<f64>) =
            sharp.iter().map(|pair| (pair.measured.value, pair.predicted)).unzip();
        Judged {
            column,
            cells: (sharp.len(), all.len()),
            error: median(&errors).map(|median| median.value),
            rank: spearman(&measured, &predicted),
        }
    }

    /// Returns the text: the cells side by side, and the results.
    pub fn render(&self, columns: usize) -> String {
        let mut out = format!("\nPredicted beside measured, by {}:\n\n", self.world);
        let mut grid = Grid::default();
        grid.column("testcase", Align::Left);
        grid.column("load", Align::Left);
        for head in ["QPS", "avg", "p99", "CPU_percent"] {
            grid.column(head, Align::Right);
            grid.column("predicted", Align::Right);
            grid.column("error", Align::Right);
        }
        grid.column("sharp", Align::Left);
        let mut last = None;
        for row in &self.rows {
            if last.replace(row.load).is_some_and(|last| last != row.load) {
                grid.gap();
            }
            let mut texts = vec![row.mode.clone(), row.load.to_string()];
            for column in Column::ALL {
                texts.extend(texts_of(row.pairs.iter().find(|pair| pair.column == column)));
            }
            texts.push(match (&row.missing, row.qualifies()) {
                (Some(missing), _) => missing.clone(),
                (None, true) => "yes".to_owned(),
                (None, false) => "no".to_owned(),
            });
            grid.row(texts);
        }
        out += &grid.to_string();
        out.push('\n');
        for sentence in self.sentences() {
            out += &wrap(&sentence, columns, "");
        }
        out
    }

    fn sentences(&self) -> Vec<String> {
        let (enough, all) = self.qualifying();
        let mut sentences = vec![format!(
            "{enough} of {all} cells are sharp: each of their intervals is narrower than the goal (throughput at MAX 10 %, \
             average 15 %, p99 25 %, CPU 6 points)."
        )];
        if self.is_void() {
            sentences.push(format!(
                "This run is void: {} are needed. Measure for longer (--runs, --seconds), or on a machine that does nothing \
                 else.",
                (QUALIFY.0 * all).div_ceil(QUALIFY.1)
            ));
        }
        for column in Column::ALL {
            let Judged { cells: (sharp, of), error, rank, .. } = self.judge(column);
            let Some(error) = error else {
                sentences.push(format!("{}: none of {of} cells is sharp.", column.name()));
                continue;
            };
            let goal = column.goal();
            let met = if error <= goal { "met" } else { "missed" };
            let unit = column.unit();
            let rank = rank.map_or(String::new(), |rank| {
                let met = if rank >= RANK_GOAL { "met" } else { "missed" };
                format!("; rank correlation {rank:.3} (goal {RANK_GOAL}: {met})")
            });
            sentences.push(format!(
                "{}: median error {error:.1} {unit} over {sharp} of {of} cells (goal {goal:.0} {unit}: {met}){rank}.",
                column.name()
            ));
        }
        sentences
    }
}

/// Returns the texts of measured value, predicted value and error.
fn texts_of(pair: Option<&Pair>) -> [String; 3] {
    let Some(pair) = pair else { return [const { String::new() }; 3] };
    let value = |value: f64| match pair.column {
        Column::Max => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    };
    let mark = if pair.qualifies() { "" } else { "?" };
    let error = match pair.column {
        Column::Cpu => format!("{:+.1}", pair.error()),
        _ => format!("{:+.0}%", pair.error()),
    };
    [format!("{}{mark}", value(pair.measured.value)), value(pair.predicted), error]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;

    fn pair(column: Column, measured: f64, half: f64, predicted: f64) -> Pair {
        let interval = Interval { low: measured - half, high: measured + half, coverage: 0.95 };
        Pair { column, measured: Estimate { value: measured, interval: Some(interval), count: 3 }, predicted }
    }

    fn row(pairs: Vec<Pair>) -> Row {
        Row { mode: "base".to_owned(), load: Load::Max, pairs, missing: None }
    }

    #[test]
    fn an_interval_as_wide_as_the_goal_says_something_and_a_wider_one_nothing() {
        assert!(pair(Column::Avg, 100.0, 15.0, 0.0).qualifies() && !pair(Column::Avg, 100.0, 15.1, 0.0).qualifies());
        assert!(pair(Column::Cpu, 3.0, 6.0, 0.0).qualifies() && !pair(Column::Cpu, 90.0, 6.1, 0.0).qualifies());
        let single = Pair { measured: Estimate::exact(5.0), ..pair(Column::Avg, 5.0, 0.0, 5.0) };
        assert!(!single.qualifies());
        assert!(!row(Vec::new()).qualifies());
    }

    #[test]
    fn a_world_that_was_calibrated_over_another_nic_is_refused() {
        let file = |calibrated: &str| {
            let text = format!(
                "[machine]\ncores = 1\nplane = \"user\"\n[nic]\nspeed = \"1Gbit/s\"\n{calibrated}[network]\nlatency = \
                 \"2us\"\n[service]\nkind = \"epoll\"\nconnections = 64\nrequest_cost_own = \"1us\"\n"
            );
            WorldFile::parse("my.toml", &text).unwrap()
        };
        let over_tap = file("calibrated = \"tap\"\n");
        assert_eq!(fits(&over_tap, true, "tap", 1, 64), Ok(()));
        let error = fits(&over_tap, true, "mem", 1, 64).unwrap_err().to_string();
        assert!(error.contains("my") && error.contains("calibrated over tap instead of mem"), "{error}");
        // A file that was written by hand need not name the NIC.
        assert_eq!(fits(&file(""), true, "mem", 1, 64), Ok(()));
    }

    #[test]
    fn medians_go_over_sharp_cells_and_a_run_with_too_few_is_void() {
        let sharp = |error: f64| row(vec![pair(Column::Avg, 100.0, 1.0, 100.0 + error)]);
        let blurred = row(vec![pair(Column::Avg, 100.0, 50.0, 900.0)]);
        let mut held =
            Predicted { world: String::new(), rows: vec![sharp(1.0), sharp(-3.0), sharp(20.0), blurred.clone()] };
        assert_eq!(held.qualifying(), (3, 4));
        assert!(!held.is_void());
        let judged = held.judge(Column::Avg);
        assert_eq!((judged.cells, judged.error), ((3, 4), Some(3.0)));
        assert!(
            held.render(100).contains("median error 3.0 % over 3 of 4 cells (goal 15 %: met)"),
            "{}",
            held.render(100)
        );
        held.rows.push(blurred);
        assert!(held.is_void() && held.render(100).contains("This run is void: 4 are needed"), "{}", held.render(100));
        assert!(held.render(100).contains("p99: none of 0 cells is sharp."));
    }
}
