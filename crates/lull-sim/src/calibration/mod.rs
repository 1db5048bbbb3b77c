//! A world from measurements of a machine: what micro-benchmarks measured is kept near what they measured, the rest is
//! fitted to a few measured cells, and the result is a world file.
//!
//! | module | what |
//! | --- | --- |
//! | `values` | which keys of a world file are found, in what range, from where |
//! | `text` | the world file that holds them |
//! | `fit` | the search, and how far each value may be off |
//!
//! Nothing here measures: whoever does (`lull calibrate`) gives a [`Setup`], [`Measured`] values and [`Cell`]s.

mod fit;
mod found;
mod text;
mod values;

pub use fit::{CalibrateError, Calibrated, Effort, Progress, REQUESTS, calibrate, simulate};
pub use found::Found;
pub use values::{KEYS, Key};

use lull_core::Mode;

use crate::instructions::Counted;

/// The service and its clients, as far as they are known without a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The first lines of the file, without `#`.
    pub head: Vec<String>,
    /// Whether lull's own host delivers; otherwise the kernel.
    pub user_plane: bool,
    /// The NIC of the lab over which it is measured: one of [`CALIBRATED_OVER`](crate::worldfile::CALIBRATED_OVER).
    pub over: &'static str,
    /// Worker threads, each with a core and a queue.
    pub workers: u16,
    /// Connections over all workers.
    pub connections: u32,
    /// Core frequency, in Hz.
    pub hz: u64,
    /// Whether the load comes from a generator with a thread for each worker, whose own time counts.
    pub generator: bool,
    /// Part of a request's cost in user space, in percent.
    pub user_percent: f64,
    /// How many answers of a batch leave by one doorbell at the most.
    pub answers_together: u32,
    /// How the NIC raises interrupts.
    pub interrupts: Interrupts,
}

/// How interrupts of one direction are held back, in ethtool's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// For how many microseconds they are held back.
    pub usecs: u32,
    /// For how many frames at the most they are held back; with 0 only the time counts.
    pub frames: u32,
}

/// How a NIC raises interrupts. The lab's own NICs raise one at once for each frame that arrives alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Whether the driver adapts how long interrupts for received frames are held back.
    pub adaptive: bool,
    /// How they are held back, if it does not.
    pub rx: Held,
    /// How interrupts for sent frames are held back; `None` means as those for received ones.
    pub tx: Option<Held>,
    /// Whether sent frames are reported as well.
    pub completions: bool,
}

/// A measured key, in its unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its name in [`KEYS`].
    pub key: &'static str,
    /// What was measured.
    pub value: f64,
    /// How far the value may be off.
    pub interval: f64,
}

/// A measured value and how far it may be off, both in the unit of the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// Half of its interval.
    pub interval: f64,
}

/// What was measured in a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The mode.
    pub mode: Mode,
    /// Requests per second that were offered; `None` is a closed loop.
    pub per_s: Option<f64>,
    /// Its figures; what was not measured is left out.
    pub figures: Vec<(Column, Figure)>,
    /// Instructions per query, if the hardware counts them.
    pub instructions: Option<f64>,
}

impl Cell {
    /// Returns the cell's instruction count; `None` if instructions or polls were not counted.
    pub fn counted(&self) -> Option<Counted> {
        let of = |column: Column| self.figures.iter().find(|(of, _)| *of == column).map(|(_, figure)| figure.value);
        let (instructions, polls) = (self.instructions?, of(Column::Polls)?);
        Some(Counted { instructions, polls, interrupts: of(Column::Interrupts).unwrap_or(0.0) })
    }
}

/// A figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Answers per second.
    PerS,
    /// Mean latency, in microseconds.
    AvgUs,
    /// Median latency, in microseconds.
    P50Us,
    /// 99th percentile of latency, in microseconds.
    P99Us,
    /// CPU, in percent of the service's cores.
    CpuPercent,
    /// Interrupts per request.
    Interrupts,
    /// Polls per request.
    Polls,
    /// Events per call of `epoll_wait`.
    Events,
}

impl Column {
    /// All of them.
    pub const ALL: [Column; 8] = [
        Column::PerS,
        Column::AvgUs,
        Column::P50Us,
        Column::P99Us,
        Column::CpuPercent,
        Column::Interrupts,
        Column::Polls,
        Column::Events,
    ];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Column::PerS => "queries/s",
            Column::AvgUs => "avg us",
            Column::P50Us => "p50 us",
            Column::P99Us => "p99 us",
            Column::CpuPercent => "CPU %",
            Column::Interrupts => "interrupts/query",
            Column::Polls => "polls/query",
            Column::Events => "events/call",
        }
    }

    /// The error that counts as one if the measurement is exact: a share, and for CPU points.
    fn unit(self) -> f64 {
        match self {
            Column::PerS => 0.02,
            Column::AvgUs | Column::P50Us => 0.05,
            Column::P99Us => 0.12,
            Column::CpuPercent => 2.0,
            // The generator's bunches are not those of the model, so counts guide the search only loosely.
            Column::Interrupts | Column::Polls | Column::Events => 0.25,
        }
    }

    /// The error of `found` in units of what counts as one.
    fn error(self, measured: Figure, found: f64) -> f64 {
        let Figure { value, interval } = measured;
        if self == Column::CpuPercent {
            return (found - value) / self.unit().max(interval);
        }
        // Errors are in logarithms, because half and double are equally wrong. Counts near zero are treated as zero.
        let least = match self {
            Column::Interrupts | Column::Polls => 0.02,
            _ => 1e-3,
        };
        let unit = self.unit().max(interval / value.abs().max(least));
        libm::log((found + least) / (value + least)) / unit
    }
}
