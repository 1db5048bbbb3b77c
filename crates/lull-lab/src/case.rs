//! Cases: workloads of the published letters besides the comparison of modes, each with a table of its own.
//!
//! A case names its rows (a mode, a batch limit, a number of flows) and what it measures of each. [`CaseTable`] is the
//! one form of all of them. It holds lull's value beside the published and the simulated one if there are such. It says
//! of each row whether what it names was in force, whether the generator was late or the limit, and whether the machine
//! has too few cores to show it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`run`] | rows measured in turn, run after run |
//! | [`cores`] | which part of a case has which core, and what it means when there are too few |
//! | `text`, `files` | the table for a terminal, and as CSV, JSON and a page |
//! | [`batch_limit`] | two services on one queue: the batch limit of the first, and how long the second waits |
//! | [`tcp_rr`] | one connection, a byte each way: interrupts with coalescing against busy polling |
//! | [`many_queues`] | the same load on more and more queues |
//! | [`after_idle`] | the cost of a service that has nothing to do, and of a request that comes then |
//! | [`first_packet`] | the first packet after a pause, with and without dry runs of a group |
//! | [`tx_trap`] | two workers of one transmit queue, one of which floods it: which of them drains it for the other |

pub mod after_idle;
pub mod batch_limit;
pub mod cores;
mod files;
pub mod first_packet;
pub mod many_queues;
pub mod run;
pub mod tcp_rr;
mod text;
pub mod tx_trap;

use serde::Serialize;

use crate::cell::{Enforcement, Standing};
use crate::machine::Machine;
use crate::stats::Estimate;

pub use cores::Placed;
pub use run::{Effort, Observed};

/// A figure that is measured of every row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measure {
    /// Its name with its unit, such as `p99_us`.
    pub name: &'static str,
    /// Its meaning, in a few words.
    pub help: &'static str,
}

/// One value of a row, with the parts that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Value {
    /// The value measured here: the median over runs.
    pub ours: Option<Estimate>,
    /// The published value.
    pub published: Option<f64>,
    /// The simulated value.
    pub simulated: Option<f64>,
}

/// A row: what it names, what was measured, and whether it shows what it names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseRow {
    /// What the row names, a text for each of the table's keys.
    pub keys: Vec<String>,
    /// A value for each of the table's measures.
    pub values: Vec<Value>,
    /// Whether what it names was in force. `None` if it was not run.
    pub verdict: Option<Enforcement>,
    /// Whether the load was the one that the row names. `None` if it was not run, or names none.
    pub load: Option<Standing>,
    /// The cores that the row needs and the machine lacks, for the reader.
    pub short_of_cores: Option<String>,
}

/// A case's table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseTable {
    /// The case's name, such as `batch-limit`.
    pub case: &'static str,
    /// What the case shows, in one or two sentences.
    pub title: String,
    /// The command that repeats the case.
    pub command: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The set-up, in one line.
    pub set_up: String,
    /// The keys that name a row.
    pub keys: Vec<&'static str>,
    /// The figures that are measured.
    pub measures: Vec<Measure>,
    /// The rows.
    pub rows: Vec<CaseRow>,
    /// Further remarks for the reader, as one sentence each.
    pub notes: Vec<String>,
    /// Whether it was stopped before all runs were done.
    pub interrupted: bool,
}

impl CaseTable {
    /// Makes a table without rows.
    pub fn new(case: &'static str, title: &str, keys: &[&'static str], measures: &[Measure]) -> CaseTable {
        CaseTable {
            case,
            title: title.to_owned(),
            command: String::new(),
            machine: Machine::read(),
            set_up: String::new(),
            keys: keys.to_vec(),
            measures: measures.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
            interrupted: false,
        }
    }

    /// Adds a row that has not been run yet.
    ///
    /// # Panics
    ///
    /// This panics if there is not one text for each key.
    pub fn row(&mut self, keys: Vec<String>) -> &mut CaseRow {
        assert_eq!(keys.len(), self.keys.len(), "a row for other keys");
        let values = vec![Value::default(); self.measures.len()];
        self.rows.push(CaseRow { keys, values, verdict: None, load: None, short_of_cores: None });
        self.rows.last_mut().expect("it was just pushed")
    }

    /// Returns the place of a measure.
    ///
    /// # Panics
    ///
    /// This panics if there is none of that name.
    pub fn measure_at(&self, name: &str) -> usize {
        self.measures.iter().position(|measure| measure.name == name).expect("a measure of the table")
    }

    /// Whether any row has a published value of this measure, and whether any has a simulated one.
    fn has(&self, measure: usize) -> (bool, bool) {
        let any = |of: fn(&Value) -> bool| self.rows.iter().any(|row| of(&row.values[measure]));
        (any(|value| value.published.is_some()), any(|value| value.simulated.is_some()))
    }
}

impl CaseRow {
    /// Returns the verdict in a few words, and what more there is to say about it.
    pub fn standing(&self) -> (String, Option<&str>) {
        match (&self.verdict, &self.short_of_cores) {
            (None, None) => (crate::csv::NOT_RUN.to_owned(), None),
            (Some(verdict), _) if verdict.reason().is_some() => (verdict.to_string(), verdict.reason()),
            (_, Some(short)) => ("not enough cores".to_owned(), Some(short)),
            (Some(verdict), None) => match self.load.as_ref().filter(|load| !load.counts()) {
                Some(load) => (load.to_string(), load.reason()),
                None => (verdict.to_string(), None),
            },
        }
    }

    /// Whether the row shows what it names.
    pub fn shows(&self) -> bool {
        self.short_of_cores.is_none()
            && self.load.as_ref().is_none_or(Standing::counts)
            && self.verdict.as_ref().is_some_and(Enforcement::shows_mode)
    }
}
