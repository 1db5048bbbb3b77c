//! The statements about the published table, checked on a simulated table.
//!
//! Each check has the statement's own figures: the range that it gives for the later run (v6), and for the earlier one
//! (v4) if it gives both, with half a unit of the last digit. A single figure has two standard errors of the runs from
//! which it comes, if these are known. A statement whose figures are missed by no more than a cell's goal allows, in
//! the same direction, is near; its range itself is not widened.

use crate::published::cells::Column;
use crate::published::run::Simulated;
use crate::published::summary::{GOALS, QPS_SATURATED};

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The statement's number.
    pub number: u32,
    /// What it says.
    pub says: &'static str,
    /// What does not hold; empty if all does.
    pub broken: Vec<String>,
    /// What is missed by no more than a cell's goal allows.
    pub near: Vec<String>,
}

/// The outcome of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Holds,
    /// It is missed, but by no more than a cell's goal allows.
    Near,
    /// It does not hold.
    Broken,
}

impl Statement {
    /// Returns the outcome of the statement.
    pub fn standing(&self) -> Standing {
        match (self.broken.is_empty(), self.near.is_empty()) {
            (true, true) => Standing::Holds,
            (true, false) => Standing::Near,
            (false, _) => Standing::Broken,
        }
    }
}

const BELOW_MAX: [&str; 5] = ["200K", "400K", "600K", "800K", "1000K"];
const TIMEOUTS: [&str; 4] = ["10", "20", "50", "200"];
/// Two values whose ratio is less are the same: latencies are whole microseconds, and are about a hundred.
const SAME: f64 = 1.005;

struct Checker<'t> {
    simulated: &'t Simulated,
    broken: Vec<String>,
    near: Vec<String>,
}

/// Returns what a cell's goal allows in this column; a column without a goal (p95, softirq) has that of the mean
/// latency. Cells at MAX are saturated.
fn goal(column: Column, load: &str) -> f64 {
    let of = |column| GOALS.iter().find(|goal| goal.column == column).map(|goal| goal.allowed);
    match column {
        Column::Qps if load == "MAX" => QPS_SATURATED,
        column => of(column).or(of(Column::Avg)).unwrap_or(0.0),
    }
}

impl Checker<'_> {
    fn get(&self, case: &str, load: &str, column: Column) -> f64 {
        self.simulated.table.cell(case, load).map_or(f64::NAN, |cell| cell.get(column))
    }

    fn busy_ns(&self, case: &str, load: &str) -> f64 {
        let place = self.simulated.table.cells.iter().position(|cell| cell.case == case && cell.load == load);
        place.map_or(f64::NAN, |place| self.simulated.busy_ns_per_query[place])
    }

    /// Checks that `value` is within the range; otherwise `what` is noted as near or as broken. It is near if it is off
    /// by at most `allowed`, and on the same side of `same`, which is the value of two equal cells.
    fn within(&mut self, what: &str, value: f64, (low, high): (f64, f64), allowed: f64, same: f64) {
        if (low..=high).contains(&value) {
            return;
        }
        let missed = format!("{what} is {value:.2}, not {low} to {high}");
        let reversed = (low > same && value <= same) || (high < same && value >= same);
        if (low - allowed..=high + allowed).contains(&value) && !reversed {
            self.near.push(missed);
        } else {
            self.broken.push(missed);
        }
    }

    /// Checks the ratio of a column in two cells of one load.
    fn ratio(&mut self, column: Column, cases: [&str; 2], load: &str, low: f64, high: f64) {
        let value = self.get(cases[0], load, column) / self.get(cases[1], load, column);
        let what = format!("{} of {} to {} at {load}", column.name(), cases[0], cases[1]);
        let allowed = goal(column, load) * if value < low { low } else { high };
        self.within(&what, value, (low, high), allowed, 1.0);
    }

    fn points(&mut self, cases: [&str; 2], load: &str, low: f64, high: f64) {
        let value = self.get(cases[0], load, Column::Cpu) - self.get(cases[1], load, Column::Cpu);
        let what = format!("CPU of {} less that of {} at {load}", cases[0], cases[1]);
        self.within(&what, value, (low, high), goal(Column::Cpu, load), 0.0);
    }

    fn dominates(&self, better: &str, worse: &str, load: &str) -> bool {
        [Column::Avg, Column::Cpu].iter().all(|&column| self.get(better, load, column) < self.get(worse, load, column))
    }
}

fn named(family: &str, timeout: &str) -> String {
    format!("{family}{timeout}")
}

type Check = (u32, &'static str, fn(&mut Checker<'_>));

const CHECKS: [Check; 10] = [
    (1, "at MAX suspendX is 16 to 21 % above base, its p99 14 to 31 % below", |c| {
        for timeout in TIMEOUTS {
            let case = named("suspend", timeout);
            c.ratio(Column::Qps, [&case, "base"], "MAX", 1.1625, 1.2135);
            c.ratio(Column::P99, [&case, "base"], "MAX", 0.685, 0.865);
        }
    }),
    (2, "suspendX reaches 98.3 to 98.6 % of fullbusy's throughput at MAX, its average within 2 %", |c| {
        for timeout in TIMEOUTS {
            let case = named("suspend", timeout);
            c.ratio(Column::Qps, [&case, "fullbusy"], "MAX", 0.9825, 0.9865);
            c.ratio(Column::Avg, [&case, "fullbusy"], "MAX", 0.975, 1.025);
        }
    }),
    (3, "suspendX is no worse than deferX below MAX, at CPU within 4 points, and 3 to 20 below it from 800K up", |c| {
        for (timeout, load) in TIMEOUTS.iter().flat_map(|timeout| BELOW_MAX.map(|load| (*timeout, load))) {
            let cases = [&*named("suspend", timeout), &*named("defer", timeout)];
            for column in [Column::Avg, Column::P95, Column::P99] {
                c.ratio(column, cases, load, 0.0, SAME);
            }
            let (low, high) = if matches!(load, "800K" | "1000K") { (-20.5, -2.5) } else { (-40.0, 5.5) };
            c.points(cases, load, low, high);
        }
    }),
    (4, "below MAX the small timeout sets suspendX's price against fullbusy", |c| {
        for load in BELOW_MAX {
            for (case, low, high) in [
                ("suspend10", 1.075, 1.265),
                ("suspend20", 1.075, 1.265),
                ("suspend50", 1.285, 1.595),
                ("suspend200", 2.15, 3.27),
            ] {
                c.ratio(Column::Avg, [case, "fullbusy"], load, low, high);
            }
            for case in ["suspend10", "suspend20"] {
                c.ratio(Column::P99, [case, "fullbusy"], load, 1.035, 1.15);
            }
        }
    }),
    (
        5,
        "suspendX's latency rises and its CPU falls with X; at MAX X does not matter; deferX loses that order from 600K",
        |c| {
            for load in BELOW_MAX {
                for pair in TIMEOUTS.windows(2) {
                    let cases = [&*named("suspend", pair[1]), &*named("suspend", pair[0])];
                    c.ratio(Column::Avg, cases, load, 1.0, 5.0);
                    c.points(cases, load, -40.0, 0.0);
                }
            }
            for timeout in &TIMEOUTS[1..] {
                c.ratio(Column::Qps, [&named("suspend", timeout), "suspend10"], "MAX", 0.9965, 1.0035);
            }
            for load in ["600K", "800K", "1000K"] {
                let rises = |column| {
                    TIMEOUTS.windows(2).all(|pair| {
                        c.get(&named("defer", pair[0]), load, column) < c.get(&named("defer", pair[1]), load, column)
                    })
                };
                if [Column::Avg, Column::P95, Column::P99].into_iter().all(rises) {
                    c.broken.push(format!("deferX keeps its order of latencies at {load}"));
                }
            }
        },
    ),
    (6, "a small defer timeout hurts at MAX, a large one the average at low load but not p99", |c| {
        c.ratio(Column::Qps, ["defer10", "base"], "MAX", 0.863, 0.913);
        c.ratio(Column::Qps, ["defer20", "base"], "MAX", 0.912, 0.964);
        c.ratio(Column::Avg, ["defer200", "base"], "200K", 1.434, 1.476);
        c.ratio(Column::P99, ["defer200", "base"], "200K", 0.0, 1.0);
    }),
    (
        7,
        "suspend0 is base in throughput and interrupts, yet faster at 800K and 1000K, with less than half the softirq",
        |c| {
            for load in ["200K", "400K", "600K", "800K", "1000K", "MAX"] {
                c.ratio(Column::Qps, ["suspend0", "base"], load, 0.9805, 1.0495);
                c.ratio(Column::Irqs, ["suspend0", "base"], load, 0.875, 1.055);
            }
            for load in ["800K", "1000K"] {
                c.ratio(Column::Avg, ["suspend0", "base"], load, 0.635, 0.705);
            }
            c.ratio(Column::Softirq, ["suspend0", "base"], "800K", 0.413, 0.452);
        },
    ),
    (8, "napibusy: dear at low load, as fullbusy from 800K, worse than both at MAX", |c| {
        for (load, published) in [("200K", 56.0), ("400K", 83.0)] {
            let value = c.get("napibusy", load, Column::Cpu);
            c.within(
                &format!("CPU of napibusy at {load}"),
                value,
                (published - 0.5, published + 0.5),
                goal(Column::Cpu, load),
                0.0,
            );
        }
        for load in ["800K", "1000K"] {
            c.ratio(Column::Avg, ["napibusy", "fullbusy"], load, 0.95, 1.05);
        }
        c.ratio(Column::P95, ["napibusy", "fullbusy"], "MAX", 1.95, 2.05);
        c.ratio(Column::P99, ["napibusy", "fullbusy"], "MAX", 2.4, 3.0);
        for column in [Column::P95, Column::P99] {
            c.ratio(column, ["napibusy", "base"], "MAX", SAME, 3.0);
        }
        for case in ["defer10", "defer20", "defer50"] {
            c.ratio(Column::Avg, ["napibusy", case], "200K", 1.0, 3.0);
        }
    }),
    (9, "base to fullbusy at MAX: 15 % fewer cycles per query", |c| {
        let value = c.busy_ns("fullbusy", "MAX") / c.busy_ns("base", "MAX");
        // At MAX the busy time per query is the inverse of throughput.
        c.within(
            "busy time per query of fullbusy to base at MAX",
            value,
            (0.845, 0.855),
            goal(Column::Qps, "MAX"),
            1.0,
        );
    }),
    (10, "at 200K defer10 dominates suspend20 and defer20 suspend50; from 400K to 1000K suspend is undominated", |c| {
        for (better, worse) in [("defer10", "suspend20"), ("defer20", "suspend50")] {
            if !c.dominates(better, worse, "200K") {
                c.broken.push(format!("{better} does not dominate {worse} at 200K"));
            }
        }
        for (load, timeout) in BELOW_MAX[1..].iter().flat_map(|load| TIMEOUTS.map(|timeout| (*load, timeout))) {
            let case = named("suspend", timeout);
            for other in ["base", "defer10", "defer20", "defer50", "defer200", "fullbusy", "napibusy"] {
                if c.dominates(other, &case, load) {
                    c.broken.push(format!("{other} dominates {case} at {load}"));
                }
            }
        }
    }),
];

/// Checks all ten statements.
pub fn check(simulated: &Simulated) -> Vec<Statement> {
    CHECKS
        .iter()
        .map(|(number, says, check)| {
            let mut checker = Checker { simulated, broken: Vec::new(), near: Vec::new() };
            check(&mut checker);
            Statement { number: *number, says, broken: checker.broken, near: checker.near }
        })
        .collect()
}
