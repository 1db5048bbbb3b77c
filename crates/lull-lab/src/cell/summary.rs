//! Folds runs into one cell, with confidence intervals.

use serde::{Deserialize, Serialize};

use super::verdict::SERVER_BUSY_PERCENT_MIN;
use super::{Enforcement, Load, RunResult, Standing};
use crate::stats::{self, Estimate};

/// If the share of the offered rate that was served is below this, a note says so, unless the generator was late.
const SERVED_SHARE_MIN: f64 = 0.98;

/// One test case at one load: its runs and their summary.
///
/// Latencies are medians over runs, and everything else is a mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// Name of the test case.
    pub testcase: String,
    /// The load asked for.
    pub load: Load,
    /// Queries per second that the generator meant to send, as a mean over runs; `None` in a closed loop.
    pub offered_qps: Option<f64>,
    /// Queries answered per second.
    pub qps: Estimate,
    /// Mean latency, in microseconds.
    pub avg_latency_us: Option<Estimate>,
    /// Median latency, in microseconds.
    pub p50_latency_us: Option<Estimate>,
    /// 95th percentile of latency, in microseconds.
    pub p95_latency_us: Option<Estimate>,
    /// 99th percentile of latency, in microseconds.
    pub p99_latency_us: Option<Estimate>,
    /// Server CPU, in percent of its cores.
    pub cpu_percent: Option<Estimate>,
    /// The server's cycles per query, counted as the report's [`CyclesBy`](super::report::CyclesBy) says.
    pub cycles_per_query: Option<Estimate>,
    /// Instructions per query, if the hardware counts them.
    pub instructions_per_query: Option<Estimate>,
    /// Internal counts, as means of the totals of one window.
    pub counts: Counts,
    /// Whether the row shows its mode: the worst of the runs.
    pub verdict: Enforcement,
    /// Whether the row says something about the server.
    pub standing: Standing,
    /// The runs, by number.
    pub runs: Vec<RunResult>,
}

/// Internal counts of one window, as means over runs; `None` if they were not counted.
///
/// The fields and their order are the extra columns of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Interrupts that reached the server.
    pub interrupts: Option<f64>,
    /// Polls of NAPI instances.
    pub polls: Option<f64>,
    /// Frames per poll.
    pub mean_work: Option<f64>,
    /// Polls that found nothing.
    pub empty_polls: Option<f64>,
    /// Time in softirq context, in milliseconds.
    pub softirq_ms: Option<f64>,
    /// Calls of `epoll_wait`.
    pub epoll_calls: Option<f64>,
    /// Events per `epoll_wait` that returned any.
    pub mean_events: Option<f64>,
    /// Sleeping threads woken.
    pub wakeups: Option<f64>,
    /// Kernel timers armed, moved or cancelled.
    pub timer_ops: Option<f64>,
    /// System calls made for delivery.
    pub syscalls: Option<f64>,
    /// Lateness of timers in microseconds: the median over runs of the runs' medians.
    pub lag_us: Option<f64>,
}

impl CellSummary {
    /// Folds the runs of one cell. Returns `None` if there is no run. A run whose rate is not a finite number is left
    /// out.
    ///
    /// All runs must be of one test case at one load.
    pub fn of_runs(mut runs: Vec<RunResult>) -> Option<CellSummary> {
        runs.retain(|r| r.qps.is_finite());
        runs.sort_by_key(|r| r.run);
        let first = runs.first()?;
        let (testcase, load) = (first.testcase.clone(), first.load);
        debug_assert!(runs.iter().all(|r| r.testcase == testcase && r.load == load), "runs of two cells mixed");
        let mean = |field: fn(&RunResult) -> Option<f64>| stats::mean(&values(&runs, field));
        let median = |field: fn(&RunResult) -> Option<f64>| stats::median(&values(&runs, field));
        let count = |field: fn(&RunResult) -> Option<u64>| {
            let counts: Vec<f64> = runs.iter().filter_map(field).map(|n| n as f64).collect();
            stats::mean(&counts).map(|e| e.value)
        };
        Some(CellSummary {
            offered_qps: mean(|r| r.offered_qps).map(|e| e.value),
            qps: mean(|r| Some(r.qps))?,
            avg_latency_us: median(|r| r.avg_latency_us),
            p50_latency_us: median(|r| r.p50_latency_us),
            p95_latency_us: median(|r| r.p95_latency_us),
            p99_latency_us: median(|r| r.p99_latency_us),
            cpu_percent: mean(|r| r.cpu_percent),
            cycles_per_query: mean(|r| r.cycles_per_query),
            instructions_per_query: mean(|r| r.instructions_per_query),
            counts: Counts {
                interrupts: count(|r| r.interrupts),
                polls: count(|r| r.polls),
                mean_work: mean(|r| r.mean_work).map(|e| e.value),
                empty_polls: count(|r| r.empty_polls),
                softirq_ms: mean(|r| r.softirq_ms).map(|e| e.value),
                epoll_calls: count(|r| r.epoll_calls),
                mean_events: mean(|r| r.mean_events).map(|e| e.value),
                wakeups: count(|r| r.wakeups),
                timer_ops: count(|r| r.timer_ops),
                syscalls: count(|r| r.syscalls),
                lag_us: median(|r| r.generator_lag_us).map(|e| e.value),
            },
            verdict: Enforcement::of_runs(&runs),
            standing: Standing::of_runs(load, &runs),
            testcase,
            load,
            runs,
        })
    }

    /// Returns the estimates of the published columns after `testcase` and `load`, in their order.
    pub fn published_estimates(&self) -> [Option<Estimate>; 7] {
        [
            Some(self.qps),
            self.avg_latency_us,
            self.p95_latency_us,
            self.p99_latency_us,
            self.cpu_percent,
            self.cycles_per_query,
            self.instructions_per_query,
        ]
    }

    /// Whether the cell may be used in a statement about its mode on this machine: the mode was in force, and the cell
    /// counts.
    pub fn usable(&self) -> bool {
        self.verdict.shows_mode() && self.standing.counts()
    }

    /// Returns what a reader of the row has to know: why its mode is not in force, which timeout it had, why it does
    /// not count, and whether the server fell short of the load. It is empty if there is nothing to say.
    pub fn note(&self) -> String {
        let mut notes = Vec::new();
        match &self.verdict {
            Enforcement::InForce => {}
            Enforcement::TimeoutHad { asked_us, had_us } => {
                notes.push(format!("asked for a timeout of {asked_us:.0} us and had {had_us:.0} us"));
            }
            Enforcement::NotInForce { reason } => notes.push(format!("not in force: {reason}")),
            Enforcement::Refused { reason } => notes.push(format!("refused: {reason}")),
        }
        if let Some(reason) = self.standing.reason() {
            notes.push(format!("{}: {reason}", self.standing));
        }
        notes.extend(self.few_failures());
        notes.extend(self.short_of_load());
        notes.join("; ")
    }

    /// Returns the failures in a cell that counts nevertheless, and what its latencies leave out.
    fn few_failures(&self) -> Option<String> {
        let answers = super::verdict::of_all_runs(&self.runs);
        let failures = answers.failures().filter(|_| !matches!(self.standing, Standing::Unserved { .. }));
        let unsent = (answers.backlog > answers.asked() / 100).then(|| {
            format!("about {} requests were due and never sent, and the latencies leave them out", answers.backlog)
        });
        let parts: Vec<String> = failures.into_iter().chain(unsent).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Returns how much of an open loop was not served, and whether the server was the limit.
    fn short_of_load(&self) -> Option<String> {
        let offered = self.offered_qps.filter(|_| self.standing.counts())?;
        if self.qps.value >= SERVED_SHARE_MIN * offered {
            return None;
        }
        let share = 100.0 * self.qps.value / offered;
        let answered = format!("the server answered {share:.0} % of the {offered:.0} queries per second offered");
        let busy: Vec<f64> = self.runs.iter().filter_map(|run| run.server_cpu_percent).collect();
        Some(match stats::mean(&busy) {
            Some(busy) if busy.value < SERVER_BUSY_PERCENT_MIN => format!(
                "{answered} and was {:.0} % busy: the limit was one worker, a timer that was waited for, or other work on \
                 the machine",
                busy.value
            ),
            _ => format!("saturated: {answered}"),
        })
    }
}

/// Folds runs into cells, in the order in which each cell first appears.
pub fn summarise(runs: Vec<RunResult>) -> Vec<CellSummary> {
    let mut cells: Vec<Vec<RunResult>> = Vec::new();
    for run in runs {
        match cells.iter_mut().find(|c| c[0].testcase == run.testcase && c[0].load == run.load) {
            Some(cell) => cell.push(run),
            None => cells.push(vec![run]),
        }
    }
    cells.into_iter().filter_map(CellSummary::of_runs).collect()
}

/// Returns the finite values of one field.
fn values(runs: &[RunResult], field: fn(&RunResult) -> Option<f64>) -> Vec<f64> {
    runs.iter().filter_map(field).filter(|v| v.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Answers;

    fn run(testcase: &str, number: u32, p99: f64, qps: f64) -> RunResult {
        RunResult {
            p99_latency_us: Some(p99),
            cpu_percent: Some(p99 / 10.0),
            interrupts: Some(10 * u64::from(number + 1)),
            offered_qps: Some(1000.0),
            ..RunResult::new(testcase, Load::Rate { qps: 1000 }, number, 1.0, qps)
        }
    }

    #[test]
    fn latencies_are_medians_and_rates_means() {
        let runs = vec![run("base", 2, 900.0, 1002.0), run("base", 0, 100.0, 1000.0), run("base", 1, 110.0, 1001.0)];
        let cell = CellSummary::of_runs(runs).unwrap();
        assert_eq!(cell.p99_latency_us.unwrap().value, 110.0);
        assert_eq!(cell.cpu_percent.unwrap().value, 37.0);
        assert_eq!(cell.qps.value, 1001.0);
        assert_eq!(cell.counts.interrupts, Some(20.0));
        assert_eq!(cell.avg_latency_us, None);
        assert_eq!(cell.runs.iter().map(|r| r.run).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(cell.note(), "");
    }

    #[test]
    fn cells_keep_the_order_of_their_first_run() {
        let cells = summarise(vec![run("b", 0, 1.0, 1.0), run("a", 0, 1.0, 1.0), run("b", 1, 1.0, 1.0)]);
        let names: Vec<_> = cells.iter().map(|c| (c.testcase.as_str(), c.runs.len())).collect();
        assert_eq!(names, [("b", 2), ("a", 1)]);
    }

    #[test]
    fn numbers_that_are_none_do_not_poison_a_cell() {
        assert!(CellSummary::of_runs(vec![run("base", 0, 1.0, f64::NAN)]).is_none());
        let cell = CellSummary::of_runs(vec![run("base", 0, f64::NAN, 1000.0), run("base", 1, 5.0, 1000.0)]).unwrap();
        assert_eq!(cell.p99_latency_us.unwrap().count, 1);
    }

    #[test]
    fn the_note_says_what_the_row_hides() {
        let late = RunResult {
            verdict: Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.0 },
            ..run("defer20", 0, 1.0, 700.0)
        };
        assert_eq!(
            CellSummary::of_runs(vec![late]).unwrap().note(),
            "asked for a timeout of 20 us and had 38 us; saturated: the server answered 70 % of the 1000 queries per \
             second offered"
        );
    }

    #[test]
    fn the_note_says_what_failed_and_what_was_never_sent() {
        let note = |answers| {
            let run = RunResult { answers: Some(answers), ..run("base", 0, 1.0, 1000.0) };
            CellSummary::of_runs(vec![run]).unwrap().note()
        };
        let of = Answers { received: 10_000, ..Answers::default() };
        assert_eq!(note(of), "");
        assert_eq!(
            note(Answers { errors: 3, ..of }),
            "of 10000 requests 3 were answered by an error or a value of the wrong size"
        );
        assert!(note(Answers { lost: 500, ..of }).starts_with("unserved: of 10500 requests 500 were lost"));
        assert_eq!(note(Answers { backlog: 64, ..of }), "", "requests of connections that wait for an answer");
        assert!(note(Answers { backlog: 900, ..of }).contains("900 requests were due and never sent"));
    }

    #[test]
    fn a_server_with_time_left_is_not_called_saturated() {
        let note = |busy: f64| {
            let short = RunResult { server_cpu_percent: Some(busy), ..run("base", 0, 1.0, 830.0) };
            CellSummary::of_runs(vec![short]).unwrap().note()
        };
        assert!(note(99.0).starts_with("saturated: the server answered 83 %"));
        assert!(note(30.0).starts_with("the server answered 83 %") && note(30.0).contains("30 % busy: the limit was"));
    }
}
