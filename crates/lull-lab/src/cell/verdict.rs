//! Whether the mode was in force, and whether the cell counts.
//!
//! A number alone does not answer these two questions. A row labelled `suspend20` that ran without suspension is worse
//! than no row, and a maximum that was set by the generator says nothing about the server.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Answers, Load, RunResult};

/// A server that was less busy than this at MAX was not the limit, in percent.
pub const SERVER_BUSY_PERCENT_MIN: f64 = 98.0;

/// A generator that was busier than this may have been the limit, in percent.
pub const GENERATOR_BUSY_PERCENT_MAX: f64 = 90.0;

/// If more requests of a cell failed than this, in a thousand, the cell does not show the service that was asked for.
pub const FAILED_PERMILLE_MAX: u64 = 1;

/// Whether the mode that a row is labelled with was the one that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Enforcement {
    /// Every check passed.
    InForce,
    /// The mode ran, but its timeout fired after another time than it names.
    TimeoutHad {
        /// The timeout that the mode names, in microseconds.
        asked_us: f64,
        /// The time after which it fired (median), in microseconds.
        had_us: f64,
    },
    /// A check failed: the row does not show this mode.
    NotInForce {
        /// What was found instead, for the reader.
        reason: String,
    },
    /// The mode is impossible here, and nothing ran.
    Refused {
        /// The reason, for the reader.
        reason: String,
    },
}

impl Enforcement {
    /// Makes a verdict of not in force.
    pub fn not_in_force(reason: impl Into<String>) -> Enforcement {
        Enforcement::NotInForce { reason: reason.into() }
    }

    /// Whether the row shows the mode that it is labelled with, even if with another timeout.
    pub fn shows_mode(&self) -> bool {
        !matches!(self, Enforcement::NotInForce { .. } | Enforcement::Refused { .. })
    }

    /// Whether nothing ran.
    pub fn is_refused(&self) -> bool {
        matches!(self, Enforcement::Refused { .. })
    }

    /// Returns what was found instead of the mode, or why nothing ran, or `None` if the mode is shown.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Enforcement::InForce | Enforcement::TimeoutHad { .. } => None,
            Enforcement::NotInForce { reason } | Enforcement::Refused { reason } => Some(reason),
        }
    }

    /// Returns one verdict for several runs: the worst, with the median of their timeouts.
    pub(super) fn of_runs(runs: &[RunResult]) -> Enforcement {
        Enforcement::of_all(&runs.iter().map(|run| &run.verdict).collect::<Vec<_>>())
    }

    /// Returns one verdict for several.
    pub(crate) fn of_all(verdicts: &[&Enforcement]) -> Enforcement {
        if let Some(refused) = verdicts.iter().find(|verdict| verdict.is_refused()) {
            return (*refused).clone();
        }
        let failed: Vec<&&Enforcement> = verdicts.iter().filter(|verdict| !verdict.shows_mode()).collect();
        if let Some(Enforcement::NotInForce { reason }) = failed.first() {
            let reason = match failed.len() == verdicts.len() {
                true => reason.clone(),
                false => format!("{reason} (in {} of {} runs)", failed.len(), verdicts.len()),
            };
            return Enforcement::NotInForce { reason };
        }
        let timeouts: Vec<(f64, f64)> = verdicts
            .iter()
            .filter_map(|verdict| match **verdict {
                Enforcement::TimeoutHad { asked_us, had_us } => Some((asked_us, had_us)),
                _ => None,
            })
            .collect();
        let had: Vec<f64> = timeouts.iter().map(|t| t.1).collect();
        match (timeouts.first(), crate::stats::median(&had)) {
            (Some(&(asked_us, _)), Some(had)) => Enforcement::TimeoutHad { asked_us, had_us: had.value },
            _ => Enforcement::InForce,
        }
    }
}

impl fmt::Display for Enforcement {
    /// Writes the verdict short enough for a column: `in force`, `had 38 us`, `not in force`, `refused`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforcement::InForce => f.pad("in force"),
            Enforcement::TimeoutHad { had_us, .. } => f.pad(&format!("had {had_us:.0} us")),
            Enforcement::NotInForce { .. } => f.pad("not in force"),
            Enforcement::Refused { .. } => f.pad("refused"),
        }
    }
}

/// Whether a cell says something about the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Standing {
    /// The cell counts.
    Counts,
    /// At MAX, it was not shown that the server was the limit.
    GeneratorBound {
        /// How busy each side was.
        reason: String,
    },
    /// More requests than a few in a thousand failed, so that rate and latencies are not those of the work that was
    /// asked for.
    Unserved {
        /// How many requests failed, and how.
        reason: String,
    },
    /// In open loop, the generator sent later than it meant to, so the load was not the one of the row.
    GeneratorLate {
        /// The number of runs in which it did.
        reason: String,
    },
}

impl Standing {
    /// Whether the cell says something about the server.
    pub fn counts(&self) -> bool {
        matches!(self, Standing::Counts)
    }

    /// Returns why the cell does not count, or `None` if it does.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Standing::Counts => None,
            Standing::Unserved { reason }
            | Standing::GeneratorBound { reason }
            | Standing::GeneratorLate { reason } => Some(reason),
        }
    }

    /// Judges a cell by its runs. Nearly all requests must have been served as asked; at MAX, the server must have been
    /// busy and the generator not, on average; in open loop, every run must have been on time.
    pub(crate) fn of_runs(load: Load, runs: &[RunResult]) -> Standing {
        if runs.iter().any(|run| run.verdict.is_refused()) {
            // Nothing was measured, so neither side was the limit.
            return Standing::Counts;
        }
        if let Some(reason) = unserved(runs) {
            return Standing::Unserved { reason };
        }
        if load == Load::Max { Self::of_closed_loop(runs) } else { Self::of_open_loop(runs) }
    }

    /// Returns one standing for several runs: the first that does not count, if there is one. Returns `None` without
    /// any run.
    pub(crate) fn of_all(runs: &[&Standing]) -> Option<Standing> {
        let failed: Vec<&&Standing> = runs.iter().filter(|standing| !standing.counts()).collect();
        let Some(first) = failed.first() else { return runs.first().map(|standing| (*standing).clone()) };
        let mut standing = (**first).clone();
        if failed.len() < runs.len()
            && let Standing::Unserved { reason }
            | Standing::GeneratorBound { reason }
            | Standing::GeneratorLate { reason } = &mut standing
        {
            *reason += &format!(" (in {} of {} runs)", failed.len(), runs.len());
        }
        Some(standing)
    }

    fn of_closed_loop(runs: &[RunResult]) -> Standing {
        let mean = |field: fn(&RunResult) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(field).collect();
            crate::stats::mean(&values).map(|e| e.value)
        };
        let server = mean(|r| r.server_cpu_percent);
        let generator = mean(|r| r.generator_busy_percent);
        let reason = match (server, generator) {
            (Some(s), Some(g)) if s >= SERVER_BUSY_PERCENT_MIN && g <= GENERATOR_BUSY_PERCENT_MAX => {
                return Standing::Counts;
            }
            (Some(s), Some(g)) if g <= GENERATOR_BUSY_PERCENT_MAX => {
                format!(
                    "server {s:.1} % busy, generator {g:.1} %: neither was the limit, more connections may be needed"
                )
            }
            (Some(s), Some(g)) => format!("server {s:.1} % busy, generator {g:.1} %"),
            (None, Some(g)) => format!(
                "generator {g:.1} % busy; how busy the server was is not known, as its polling in vain could not be told from \
                 its work"
            ),
            _ => "how busy server and generator were was not measured".to_string(),
        };
        Standing::GeneratorBound { reason }
    }

    fn of_open_loop(runs: &[RunResult]) -> Standing {
        let late = runs.iter().filter(|r| !r.kept_up).count();
        match late {
            0 => Standing::Counts,
            _ => {
                Standing::GeneratorLate { reason: format!("the generator sent late in {late} of {} runs", runs.len()) }
            }
        }
    }
}

/// Returns the failures, if there are more than allowed.
fn unserved(runs: &[RunResult]) -> Option<String> {
    let answers = of_all_runs(runs);
    answers.failures().filter(|_| 1_000 * answers.failed() > FAILED_PERMILLE_MAX * answers.asked())
}

/// Returns the outcomes of the requests of all runs.
pub(super) fn of_all_runs(runs: &[RunResult]) -> Answers {
    let mut all = Answers::default();
    runs.iter().filter_map(|run| run.answers.as_ref()).for_each(|answers| all.add(answers));
    all
}

impl fmt::Display for Standing {
    /// Writes the standing short enough for a column: empty, `unserved`, `generator-bound`, `generator-late`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Standing::Counts => "",
            Standing::Unserved { .. } => "unserved",
            Standing::GeneratorBound { .. } => "generator-bound",
            Standing::GeneratorLate { .. } => "generator-late",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(load: Load, verdict: Enforcement) -> RunResult {
        RunResult { verdict, ..RunResult::new("defer20", load, 0, 1.0, 1000.0) }
    }

    fn busy(server: f64, generator: f64) -> RunResult {
        RunResult {
            server_cpu_percent: Some(server),
            generator_busy_percent: Some(generator),
            ..run(Load::Max, Enforcement::InForce)
        }
    }

    #[test]
    fn a_timeout_that_fires_late_is_named() {
        let late = Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.2 };
        assert_eq!(late.to_string(), "had 38 us");
        assert!(late.shows_mode());
    }

    #[test]
    fn the_worst_run_decides() {
        let runs = [
            run(Load::Max, Enforcement::InForce),
            run(Load::Max, Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.0 }),
            run(Load::Max, Enforcement::not_in_force("no suspension")),
        ];
        let Enforcement::NotInForce { reason } = Enforcement::of_runs(&runs) else { panic!() };
        assert_eq!(reason, "no suspension (in 1 of 3 runs)");
        assert_eq!(Enforcement::of_runs(&runs[..2]), Enforcement::TimeoutHad { asked_us: 20.0, had_us: 38.0 });
        assert_eq!(Enforcement::of_runs(&runs[..1]), Enforcement::InForce);
    }

    #[test]
    fn a_maximum_counts_only_with_a_busy_server_and_a_generator_at_ease() {
        let counts = |server, generator| Standing::of_runs(Load::Max, &[busy(server, generator)]).counts();
        assert!(counts(98.0, 90.0));
        assert!(!counts(97.9, 50.0));
        assert!(!counts(99.0, 90.1));
        assert_eq!(Standing::of_runs(Load::Max, &[busy(90.0, 99.0)]).to_string(), "generator-bound");
        assert!(!Standing::of_runs(Load::Max, &[run(Load::Max, Enforcement::InForce)]).counts());
    }

    #[test]
    fn a_server_that_polls_in_vain_for_part_of_its_time_was_not_the_limit() {
        let spins = |server| RunResult { cpu_percent: Some(100.0), server_cpu_percent: server, ..busy(0.0, 40.0) };
        let standing = |server| Standing::of_runs(Load::Max, &[spins(server)]);
        assert!(standing(Some(55.0)).reason().unwrap().contains("neither was the limit"));
        assert!(standing(None).reason().unwrap().contains("polling in vain"), "what is not known does not count");
        assert!(standing(Some(99.0)).counts());
    }

    #[test]
    fn a_service_that_fails_more_than_a_few_requests_does_not_count() {
        let standing = |answers: Answers| {
            Standing::of_runs(Load::Max, &[RunResult { answers: Some(answers), ..busy(99.0, 50.0) }])
        };
        let of = Answers { received: 10_000, ..Answers::default() };
        assert!(standing(of).counts());
        assert!(standing(Answers { misses: 10, ..of }).counts());
        for failed in [
            Answers { misses: 11, ..of },
            Answers { errors: 11, ..of },
            Answers { lost: 11, ..of },
            Answers { unanswered: 11, ..of },
        ] {
            let standing = standing(failed);
            assert_eq!(standing.to_string(), "unserved");
            assert!(standing.reason().unwrap().contains(" 11 "), "{standing:?}");
        }
    }

    #[test]
    fn one_late_run_makes_an_open_loop_cell_late() {
        let load = Load::Rate { qps: 1000 };
        let late = RunResult { kept_up: false, ..run(load, Enforcement::InForce) };
        let standing = Standing::of_runs(load, &[run(load, Enforcement::InForce), late]);
        assert_eq!(standing.to_string(), "generator-late");
        assert_eq!(standing.reason(), Some("the generator sent late in 1 of 2 runs"));
    }
}
