//! Measures the rows of a case in turn: every run goes through all rows, so that what is compared is near in time.

use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_units::counted;

use super::{CaseTable, Value};
use crate::bench::BenchError;
use crate::cell::{Enforcement, Standing};
use crate::csv::number;
use crate::progress::ProgressMode;

/// The number of runs of each row, if nothing else is asked for.
pub const RUNS_DEFAULT: u32 = 3;
/// The measured window, if nothing else is asked for.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(1);

/// How often and how long each row is measured.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// Runs of each row.
    pub runs: u32,
    /// Time to settle before the window.
    pub warm_up: Duration,
    /// The measured window.
    pub window: Duration,
    /// Ends it early, with what was measured so far, when it is set.
    pub stop: &'a AtomicBool,
    /// How progress is reported.
    pub progress: ProgressMode,
}

/// The measurements of one run of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// A value for each of the table's measures.
    pub values: Vec<Option<f64>>,
    /// Whether what the row names was in force.
    pub verdict: Enforcement,
    /// Whether the load was the one that was asked for. `None` if no load is named.
    pub load: Option<Standing>,
}

impl Effort<'_> {
    /// Checks that there is at least one run.
    ///
    /// # Errors
    ///
    /// This fails if there is none.
    pub fn check(&self) -> Result<(), BenchError> {
        match self.runs {
            0 => Err(BenchError::Invalid("cannot measure in 0 runs: use at least 1".to_owned())),
            _ => Ok(()),
        }
    }

    /// Returns the number of runs of each row and their length, for the reader.
    pub fn words(&self) -> String {
        format!("{} of {:.2} s a row, interleaved", counted(self.runs, "run"), self.window.as_secs_f64())
    }

    fn tell(&self, line: &str) {
        let on = match self.progress {
            ProgressMode::Plain => true,
            ProgressMode::Auto => std::io::stderr().is_terminal(),
            ProgressMode::Off => false,
        };
        if on {
            // Standard error may be closed, which is no reason to stop measuring.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

impl CaseTable {
    /// Measures those of `rows` that have not been refused, in turn, and as often as `effort` says. `one` measures a
    /// row once.
    ///
    /// # Errors
    ///
    /// This returns the error of `one` if nothing was measured before. A later failure ends the measurement early, and
    /// the table says so.
    pub fn measure(
        &mut self,
        rows: Range<usize>,
        effort: &Effort<'_>,
        one: &mut dyn FnMut(usize, u32) -> Result<Observed, BenchError>,
    ) -> Result<(), BenchError> {
        effort.check()?;
        let rows: Vec<usize> = rows.filter(|row| self.rows[*row].verdict.is_none()).collect();
        let mut observed: Vec<Vec<Observed>> = vec![Vec::new(); self.rows.len()];
        let steps = rows.len() * effort.runs as usize;
        let turns = (0..effort.runs).flat_map(|run| rows.iter().map(move |row| (*row, run)));
        for (step, (row, run)) in turns.enumerate() {
            let found = one(row, run);
            // A run that was cut short did not measure the same as the others.
            if effort.stop.load(Ordering::Relaxed) {
                self.interrupted = true;
                break;
            }
            let name = self.rows[row].keys.join(" ");
            match found {
                Ok(found) => {
                    effort.tell(&format!("[{}/{steps}] {name}, run {}: {}", step + 1, run + 1, self.words(&found)));
                    observed[row].push(found);
                }
                Err(error) if step == 0 && self.rows.iter().all(|row| row.verdict.is_none()) => return Err(error),
                Err(error) => {
                    self.interrupted = true;
                    self.notes.push(format!("It ended early at {name}, run {}: {error}.", run + 1));
                    break;
                }
            }
        }
        for row in rows {
            self.fold(row, &observed[row]);
        }
        Ok(())
    }

    fn words(&self, found: &Observed) -> String {
        let value = |(measure, value): (&super::Measure, &Option<f64>)| format!("{} {}", measure.name, number(*value));
        let values: Vec<String> = self.measures.iter().zip(&found.values).map(value).collect();
        let load = found.load.as_ref().filter(|load| !load.counts()).map_or(String::new(), |load| format!(", {load}"));
        format!("{}; {}{load}", values.join(", "), found.verdict)
    }

    /// Folds the runs of a row into the median of each measure and one verdict.
    fn fold(&mut self, row: usize, runs: &[Observed]) {
        if runs.is_empty() {
            return;
        }
        let row = &mut self.rows[row];
        for (at, Value { ours, .. }) in row.values.iter_mut().enumerate() {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.values.get(at).copied().flatten()).collect();
            *ours = crate::stats::median(&values);
        }
        row.verdict = Some(Enforcement::of_all(&runs.iter().map(|run| &run.verdict).collect::<Vec<_>>()));
        row.load = Standing::of_all(&runs.iter().filter_map(|run| run.load.as_ref()).collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Measure;

    #[test]
    fn a_row_whose_generator_was_the_limit_says_so_and_shows_nothing() {
        let mut table = CaseTable::new("x", "", &["mode"], &[Measure { name: "kqps", help: "" }]);
        let bound = || Standing::GeneratorBound { reason: "generator 99.0 % busy".to_owned() };
        let observed = |load| Observed { values: vec![Some(1.0)], verdict: Enforcement::InForce, load };
        for loads in [[Some(Standing::Counts), None], [Some(Standing::Counts), Some(bound())]] {
            table.row(vec!["base".to_owned()]);
            table.fold(table.rows.len() - 1, &loads.map(observed));
        }
        let words = |row: usize| table.rows[row].standing();
        assert_eq!((words(0), table.rows[0].shows()), (("in force".to_owned(), None), true));
        assert_eq!(words(1), ("generator-bound".to_owned(), Some("generator 99.0 % busy (in 1 of 2 runs)")));
        assert!(!table.rows[1].shows() && crate::html::case::render(&table).contains("generator-bound"));
    }
}
