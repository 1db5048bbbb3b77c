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

/// The service and its clients, as far as they are known without measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The first lines of the file, without `#`.
    pub head: Vec<String>,
    /// Whether lull's own host delivers; otherwise the kernel.
    pub user_plane: bool,
    /// Over which NIC of the lab it is measured: one of [`CALIBRATED_OVER`](crate::worldfile::CALIBRATED_OVER).
    pub over: &'static str,
    /// Worker threads, each with a core and a queue.
    pub workers: u16,
    /// Connections over all workers.
    pub connections: u32,
    /// Core frequency, in Hz.
    pub hz: u64,
    /// Whether the load comes from a generator with a thread a worker, whose own time counts.
    pub generator: bool,
    /// Part of a request's cost in user space, in percent.
    pub user_percent: f64,
    /// Answers of a batch that leave by one doorbell, at the most.
    pub answers_together: u32,
    /// How the NIC raises interrupts.
    pub interrupts: Interrupts,
}

/// How interrupts of one side are held back, in ethtool's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// For how many microseconds.
    pub usecs: u32,
    /// For how many frames at the most; 0: time alone decides.
    pub frames: u32,
}

/// How a NIC raises interrupts. The lab's own raise them at once, for what arrives alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Whether the driver finds by itself how long those for received frames are held back.
    pub adaptive: bool,
    /// How they are, if it does not.
    pub rx: Held,
    /// How those for sent frames are. `None`: as those for received ones.
    pub tx: Option<Held>,
    /// Whether sent frames are reported, too.
    pub completions: bool,
}

/// A key that was measured, in its unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its name in [`KEYS`].
    pub key: &'static str,
    /// What was measured.
    pub value: f64,
    /// How far that may be off.
    pub interval: f64,
}

/// A measured value with how far it may be off, both in the unit of what it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// Half of its interval.
    pub interval: f64,
}

/// What a cell showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The mode.
    pub mode: Mode,
    /// Requests per second that were offered; `None` is a closed loop.
    pub per_s: Option<f64>,
    /// Its figures; what was not measured is left out.
    pub figures: Vec<(Column, Figure)>,
    /// Instructions a query, where the hardware counts them.
    pub instructions: Option<f64>,
}

impl Cell {
    /// What it says of instructions; `None` where they, or the polls, were not counted.
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
    /// Interrupts a request.
    Interrupts,
    /// Polls a request.
    Polls,
    /// Events a call of `epoll_wait`.
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

    /// The error that counts as one if the measurement is exact: a share, of CPU points.
    fn unit(self) -> f64 {
        match self {
            Column::PerS => 0.02,
            Column::AvgUs | Column::P50Us => 0.05,
            Column::P99Us => 0.12,
            Column::CpuPercent => 2.0,
            // The generator's bunches are not the model's: counts guide, and decide nothing.
            Column::Interrupts | Column::Polls | Column::Events => 0.25,
        }
    }

    /// The error of `found` in units of what counts as one.
    fn error(self, measured: Figure, found: f64) -> f64 {
        let Figure { value, interval } = measured;
        if self == Column::CpuPercent {
            return (found - value) / self.unit().max(interval);
        }
        // In logarithms: half and double are equally wrong. Counts near none are as good as none.
        let least = match self {
            Column::Interrupts | Column::Polls => 0.02,
            _ => 1e-3,
        };
        let unit = self.unit().max(interval / value.abs().max(least));
        libm::log((found + least) / (value + least)) / unit
    }
}
