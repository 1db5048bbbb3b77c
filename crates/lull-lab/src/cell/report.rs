//! All cells, with what produced them.

use lull_units::counted;
use serde::{Deserialize, Serialize};

use super::{CellSummary, Load};
use crate::machine::Machine;

/// The version of the report's format. It is raised when a field changes its meaning.
pub const REPORT_SCHEMA: u32 = 1;

/// Where the cycles per query come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CyclesBy {
    /// CPU time of the server times the time stamp counter's frequency.
    #[default]
    Clock,
    /// The processor's own counter of cycles, in user and kernel mode.
    Hardware,
}

impl CyclesBy {
    /// Returns what a reader of the column has to know.
    pub fn sentence(self) -> &'static str {
        match self {
            CyclesBy::Clock => "cycles_per_query is TSC frequency times server CPU time, not counted by the hardware.",
            CyclesBy::Hardware => {
                "cycles_per_query and instructions_per_query are counted by the hardware in a short run of their own behind \
                 each: counting makes every switch between threads slower."
            }
        }
    }
}

/// A whole comparison, complete or cut short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The [`REPORT_SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// The command that reproduces it.
    pub command: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The device that the server's packets came through, such as `mem` or `tap`.
    pub nic: String,
    /// Worker threads of the server, a core each.
    pub workers: u32,
    /// Connections, over all workers.
    pub connections: u32,
    /// Length of one measured window, in seconds.
    pub window_s: f64,
    /// Runs planned for each cell.
    pub runs: u32,
    /// Test cases planned, in the table's order.
    pub modes: Vec<String>,
    /// Loads planned, in the table's order.
    pub loads: Vec<Load>,
    /// The maximum of `base`, in queries per second, that percent loads are shares of.
    pub base_qps_max: Option<f64>,
    /// How the cycles per query were counted.
    #[serde(default)]
    pub cycles_by: CyclesBy,
    /// True if it was stopped before all runs were done.
    pub interrupted: bool,
    /// Whether it was stopped because something failed, and not because it was asked to end or its time was over.
    #[serde(skip)]
    pub failed: bool,
    /// Further remarks for the reader, as one sentence each.
    pub notes: Vec<String>,
    /// The cells that were measured.
    pub cells: Vec<CellSummary>,
}

impl Report {
    /// Returns the cell of a test case at a load, if it was measured.
    pub fn cell(&self, testcase: &str, load: Load) -> Option<&CellSummary> {
        find(&self.cells, testcase, load)
    }

    /// Returns every planned cell in the table's order (by load, then by test case), with its measurements if there are
    /// any, and then the cells that were measured and not planned.
    pub fn rows(&self) -> Vec<(&str, Load, Option<&CellSummary>)> {
        let mut rows = Vec::new();
        for &load in &self.loads {
            for mode in &self.modes {
                rows.push((mode.as_str(), load, self.cell(mode, load)));
            }
        }
        let planned = |c: &CellSummary| self.loads.contains(&c.load) && self.modes.contains(&c.testcase);
        rows.extend(self.cells.iter().filter(|c| !planned(c)).map(|c| (c.testcase.as_str(), c.load, Some(c))));
        rows
    }

    /// Returns what was run, in one line: `nic mem, 1 worker, 64 connections; 4 runs of 0.54 s a cell, interleaved`.
    pub fn set_up(&self) -> String {
        format!(
            "nic {}, {}, {}; {} of {:.2} s a cell, interleaved",
            self.nic,
            counted(self.workers, "worker"),
            counted(self.connections, "connection"),
            counted(self.runs, "run"),
            self.window_s
        )
    }

    /// Returns how far it came if it was stopped early: `stopped early, after 78 of 192 runs`.
    pub fn stopped(&self) -> Option<String> {
        let planned = self.modes.len() * self.loads.len() * self.runs as usize;
        let done: usize = self.cells.iter().map(|c| c.runs.len()).sum();
        self.interrupted.then(|| format!("stopped early, after {done} of {planned} runs"))
    }
}

/// Returns the cell of a test case at a load among `cells`.
pub fn find<'a>(cells: &'a [CellSummary], testcase: &str, load: Load) -> Option<&'a CellSummary> {
    cells.iter().find(|c| c.testcase == testcase && c.load == load)
}
