//! The letter's table: five rates and delays by four ways of polling, with lull's cells beside the published ones, and
//! answers to further questions about it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_sim::published::xsk_rr::{CSV, POINTS};
use serde::Serialize;

use super::user::{Shown, Wire, both};
use super::{Here, NotEnoughCores, Outcome, POLLINGS, Percentiles, Placement, Polling, ReceiveTimes, Settings, kernel};
use crate::bench::BenchError;
use crate::cell::Enforcement;

/// The letter's counts of the time inside `recvfrom`, polling inline at 32,000 requests a second with a delay of 30 us:
/// the shortest time of a bucket in nanoseconds, and the number of calls. Each bucket ends where the next one begins.
pub const PUBLISHED_RECEIVE_CALLS: [(u64, u64); 6] =
    [(128, 24_073), (256, 55_633), (512, 20_974), (1_024, 34_234), (2_048, 3_266), (4_096, 19)];
/// The cell that these counts belong to.
const RECEIVE_CALLS_AT: (u32, u64) = (32_000, 30);

/// The sockets on which the table is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// lull's packet sockets.
    User(Wire),
    /// AF_XDP sockets of the kernel over a veth pair.
    Veth,
}

/// What polls in a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// One pair of ends.
    Polling(Polling),
    /// Two pairs by interrupts, each at half the rate, which take as many cores as a pair with pollers.
    TwoInterruptPairs,
}

impl RowKind {
    fn name(self) -> &'static str {
        match self {
            RowKind::Polling(polling) => polling.name(),
            RowKind::TwoInterruptPairs => "two interrupt pairs",
        }
    }

    /// Returns its column in the published table.
    fn published_column(self) -> Option<usize> {
        match self {
            RowKind::Polling(Polling::Interrupts) => Some(0),
            RowKind::Polling(Polling::Inline) => Some(1),
            RowKind::Polling(Polling::Separate) => Some(2),
            RowKind::Polling(Polling::ThreadedBusy) => Some(3),
            RowKind::Polling(Polling::Threaded | Polling::Group) | RowKind::TwoInterruptPairs => None,
        }
    }
}

/// Whether a cell shows what it is labelled with.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// The cell shows it.
    InForce,
    /// The cell ran, but something else polled.
    NotInForce {
        /// What was found instead.
        reason: String,
    },
    /// This plane cannot do it, and nothing ran.
    Refused {
        /// The reason.
        reason: String,
    },
    /// There are too few cores, and nothing ran.
    NotEnoughCores {
        /// The number of cores that it takes.
        needs: usize,
        /// The number of cores that there are.
        has: usize,
    },
}

impl From<Enforcement> for State {
    fn from(verdict: Enforcement) -> State {
        match verdict {
            Enforcement::InForce => State::InForce,
            Enforcement::TimeoutHad { asked_us, had_us } => {
                State::NotInForce { reason: format!("its timer of {asked_us:.0} us fired after {had_us:.0} us") }
            }
            Enforcement::NotInForce { reason } => State::NotInForce { reason },
            Enforcement::Refused { reason } => State::Refused { reason },
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::InForce => f.write_str("in force"),
            State::NotInForce { reason } => write!(f, "not in force: {reason}"),
            State::Refused { reason } => write!(f, "refused: {reason}"),
            State::NotEnoughCores { needs, has } => write!(f, "{}", NotEnoughCores { needs: *needs, has: *has }),
        }
    }
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Requests per second.
    pub per_s: u32,
    /// The application's delay, in microseconds.
    pub delay_us: u64,
    /// What polls.
    pub polling: &'static str,
    /// Whether the row shows what it is labelled with.
    pub state: State,
    /// Latency from the actual send at p5, p50, p95 and p99, in nanoseconds.
    pub ours_ns: Option<[u64; 4]>,
    /// Latency from when requests should have been sent, with the same percentiles.
    pub ours_from_intended_ns: Option<[u64; 4]>,
    /// The published latency.
    pub published_ns: Option<[u64; 4]>,
    /// The number of requests without an answer.
    pub lost: u64,
    /// The number of requests that were due and never sent.
    pub unsent: u64,
    /// Time inside the client's receive calls.
    pub receive_calls: ReceiveTimes,
}

/// Returns the published percentiles of a cell, in nanoseconds.
pub fn published((per_s, delay_us): (u32, u64), column: usize) -> Option<[u64; 4]> {
    let cell = |percentile: u32| {
        let prefix = format!("{per_s},{delay_us},{percentile},");
        CSV.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').nth(column)?.trim().parse().ok())
    };
    Some([cell(5)?, cell(50)?, cell(95)?, cell(99)?])
}

/// The options with which the table is run.
#[derive(Clone, Debug)]
pub struct TableConfig {
    /// The sockets.
    pub place: Where,
    /// The cores that may be used.
    pub cores: Vec<usize>,
    /// Whether cells that lack cores run nevertheless.
    pub oversubscribe: bool,
    /// Whether interrupts have precedence over ordinary threads.
    pub realtime: bool,
    /// Payload, in bytes.
    pub payload_bytes: usize,
    /// How long each cell is measured.
    pub window: Duration,
}

/// With this number of cores every cell has a sending thread, as published: that thread, the two programs, and a poller
/// for each.
const CORES_FOR_SEND_THREAD: usize = 5;

impl TableConfig {
    /// Whether requests are sent by a thread of their own.
    pub fn send_thread(&self) -> bool {
        self.cores.len() >= CORES_FOR_SEND_THREAD
    }

    fn settings(&self, polling: Polling, (per_s, delay_us): (u32, u64)) -> Settings {
        Settings {
            period_ns: Some(1_000_000_000 / u64::from(per_s)),
            delay_ns: delay_us * 1_000,
            payload_bytes: self.payload_bytes,
            send_thread: self.send_thread(),
            window: self.window,
            ..Settings::new(polling)
        }
    }

    fn shown(&self, settings: &Settings, placement: &Placement, stop: &AtomicBool) -> Result<Shown, BenchError> {
        let on_report = &mut |_| ();
        match self.place {
            Where::User(wire) => both(wire, settings, placement, self.realtime, stop, on_report),
            Where::Veth => Ok(kernel::veth(settings, placement, stop, on_report)?.0),
        }
    }

    fn pair(&self, polling: Polling, point: (u32, u64), stop: &AtomicBool) -> Result<Cell, BenchError> {
        let settings = self.settings(polling, point);
        if self.place == Where::Veth
            && let Some(reason) = kernel::refusal(&settings)
        {
            return Ok(Err(State::Refused { reason }));
        }
        match Placement::new(&settings, Here::Both, &self.cores, self.oversubscribe) {
            Ok(placement) => self.shown(&settings, &placement, stop).map(Ok),
            Err(NotEnoughCores { needs, has }) => Ok(Err(State::NotEnoughCores { needs, has })),
        }
    }

    fn two_pairs(&self, (per_s, delay_us): (u32, u64), stop: &AtomicBool) -> Result<Cell, BenchError> {
        let settings = self.settings(Polling::Interrupts, (per_s / 2, delay_us));
        let (needs, has) = (2 * (2 + usize::from(settings.send_thread)), self.cores.len());
        if has < needs && !self.oversubscribe {
            return Ok(Err(State::NotEnoughCores { needs, has }));
        }
        let (first, second) = self.cores.split_at(has / 2);
        let (first, second) = if first.is_empty() { (second, second) } else { (first, second) };
        let run = |cores: &[usize]| -> Result<Shown, BenchError> {
            let placement = Placement::new(&settings, Here::Both, cores, true)
                .map_err(|lacking| BenchError::Invalid(lacking.to_string()))?;
            self.shown(&settings, &placement, stop)
        };
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| run(second));
            let first = run(first);
            (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (mut first, second) = (first?, second?);
        first.outcome.add(&second.outcome);
        if first.verdict.shows_mode() {
            first.verdict = second.verdict;
        }
        Ok(Ok(first))
    }
}

/// A cell that ran, or the reason why none did.
type Cell = Result<Shown, State>;

/// Runs the table. `each` is called with every row when it is done. It ends early when `stop` is set.
///
/// # Errors
///
/// This fails if a cell fails for a reason outside itself.
pub fn run(config: &TableConfig, stop: &AtomicBool, each: &mut dyn FnMut(&Row)) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let kinds = POLLINGS.map(RowKind::Polling).into_iter().chain([RowKind::TwoInterruptPairs]);
    for (point, kind) in POINTS.into_iter().flat_map(|point| kinds.clone().map(move |kind| (point, kind))) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let cell = match kind {
            RowKind::Polling(polling) => config.pair(polling, point, stop)?,
            RowKind::TwoInterruptPairs => config.two_pairs(point, stop)?,
        };
        // A row that was cut short shows nothing.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = row(point, kind, cell);
        each(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn row(point: (u32, u64), kind: RowKind, cell: Cell) -> Row {
    let (state, outcome) = match cell {
        Ok(shown) => (shown.verdict.into(), Some(shown.outcome)),
        Err(state) => (state, None),
    };
    let percentiles = |of: fn(&Outcome) -> Option<Percentiles>| Some(of(outcome.as_ref()?)?.row());
    Row {
        per_s: point.0,
        delay_us: point.1,
        polling: kind.name(),
        state,
        ours_ns: percentiles(|outcome| outcome.from_send_ns),
        ours_from_intended_ns: percentiles(|outcome| outcome.from_intended_ns),
        published_ns: kind.published_column().and_then(|column| published(point, column)),
        lost: outcome.as_ref().map_or(0, |outcome| outcome.lost),
        unsent: outcome.as_ref().map_or(0, |outcome| outcome.unsent),
        receive_calls: outcome.map(|outcome| outcome.receive_calls).unwrap_or_default(),
    }
}

/// Returns the heading of [`line()`]'s columns.
pub fn heading() -> String {
    let mut text = format!("{:>8} {:>6}  {:<19}", "rate/s", "delay", "");
    for percentile in ["p5", "p50", "p95", "p99"] {
        let _ = write!(text, " {:>21}", format!("{percentile} us ours/publ."));
    }
    text + "  lost unsent"
}

/// Returns a row as text: each percentile with lull's value, the published one, and their ratio.
pub fn line(row: &Row) -> String {
    let mut text = format!("{:>8} {:>6}  {:<19}", row.per_s, row.delay_us, row.polling);
    for at in 0..4 {
        let us = |ns: u64| ns as f64 / 1_000.0;
        let cell = match (row.ours_ns.map(|ours| ours[at]), row.published_ns.map(|published| published[at])) {
            (Some(ours), Some(published)) => {
                format!("{:.1} / {:.1} = {:.2}", us(ours), us(published), us(ours) / us(published))
            }
            (Some(ours), None) => format!("{:.1} / -", us(ours)),
            (None, Some(published)) => format!("- / {:.1}", us(published)),
            (None, None) => "-".to_owned(),
        };
        let _ = write!(text, " {cell:>21}");
    }
    let ran = matches!(row.state, State::InForce | State::NotInForce { .. });
    let count = |count: u64| if ran { count.to_string() } else { "-".to_owned() };
    text + &format!(" {:>5} {:>6}  {}", count(row.lost), count(row.unsent), row.state)
}

/// Returns receive times as text, beside the published ones if there are some.
pub fn receive_calls(times: &ReceiveTimes, beside_published: bool) -> String {
    let total = times.calls();
    let published_total: u64 = PUBLISHED_RECEIVE_CALLS.iter().map(|(_, calls)| calls).sum();
    let mut text = String::from("time inside the client's receive calls:\n");
    for (log2, calls) in times.by_log2_ns.iter().enumerate() {
        let from_ns = 1u64 << log2;
        let published = PUBLISHED_RECEIVE_CALLS.iter().find(|(from, _)| *from == from_ns).filter(|_| beside_published);
        if *calls == 0 && published.is_none() {
            continue;
        }
        let share = |calls: u64, total: u64| 100.0 * calls as f64 / total.max(1) as f64;
        let beside = published.map(|(_, calls)| format!("   published {:5.1} %", share(*calls, published_total)));
        let _ = writeln!(
            text,
            "  [{:>10}, {:>10}) ns {calls:>10}  {:5.1} %{}",
            from_ns,
            from_ns * 2,
            share(*calls, total),
            beside.unwrap_or_default()
        );
    }
    text
}

/// Returns the row whose receive times the letter has, too.
pub fn with_published_receive_calls(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| {
        (row.per_s, row.delay_us) == RECEIVE_CALLS_AT
            && row.polling == Polling::Inline.name()
            && row.receive_calls.calls() > 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_cell_is_found_and_stands_beside_its_own_row() {
        for point in POINTS {
            for column in 0..4 {
                assert!(published(point, column).is_some(), "{point:?} {column}");
            }
        }
        assert_eq!(published((32_000, 30), 0), Some([20_000, 21_000, 21_000, 21_300]));
        assert_eq!(published((12_000, 78), 3), Some([12_800, 13_000, 13_000, 13_000]));
        assert_eq!(published((12_000, 1), 0), None);
        let lacking = State::NotEnoughCores { needs: 4, has: 2 };
        let row = row((25_000, 38), RowKind::Polling(Polling::Separate), Err(lacking));
        let text = line(&row);
        assert!(text.contains("- / 13.7") && text.contains("it takes 4, and there are 2"), "{text}");
    }

    #[test]
    fn a_cell_without_an_answer_has_no_latency() {
        let nothing = Percentiles::of(&crate::xsk_rr::record::histogram());
        assert_eq!(nothing, None);
        let unanswered = Row {
            lost: 7,
            state: State::NotInForce { reason: "nothing came".to_owned() },
            ..row((25_000, 38), RowKind::Polling(Polling::Separate), Err(State::InForce))
        };
        let text = line(&unanswered);
        assert!(text.contains("- / 13.7") && text.contains("    7 "), "{text}");
    }

    #[test]
    fn without_the_cores_nothing_runs_and_every_row_says_so() {
        let config = TableConfig {
            place: Where::User(Wire::Mem),
            cores: vec![0],
            oversubscribe: false,
            realtime: false,
            payload_bytes: 64,
            window: Duration::from_millis(1),
        };
        let rows = run(&config, &AtomicBool::new(false), &mut |_| ()).unwrap();
        assert_eq!(rows.len(), 5 * 7);
        assert!(rows.iter().all(|row| matches!(row.state, State::NotEnoughCores { has: 1, .. })));
        assert!(rows.iter().all(|row| row.ours_ns.is_none()));
    }
}
