//! The published IRQ suspension runs as a world, and the tables that it is held against.
//!
//! **The machine.** memcached with eight workers on eight cores, a queue and a NAPI each, 4480 connections, seven
//! client machines. Two things are uneven. The first is RSS: the connections fall on eight queues binomially, with a
//! standard deviation of 22, so the queues get 529 to 591, and load and connections go together. The second is
//! placement: memcached's workers are not pinned, so a worker need not run on the core that its queue's interrupts go
//! to. Each run draws who starts where; while workers sleep, the scheduler moves them ([`crate::world::CoresSpec`]).
//! Four cores share an L3 cache, and a worker behind another one than its queue's core makes a query a third dearer.
//!
//! **The load** is mutilate's with `-i fb_ia -K fb_key -V fb_value -u 0.03` (the series' run script): gaps of every
//! connection and sizes are its distributions ([`crate::engine::traffic`]).
//!
//! **What may be fitted.** The cells of [`CALIBRATION_CASES`], from a file that holds no others
//! (`irqsuspend_v6_calibration.csv`). The model's structure is chosen on an earlier run of the series
//! (`irqsuspend_v2_summary.csv`). The other 48 cells are predictions, and this crate does not have them.
//!
//! **What the counters count besides.** With a deferred interrupt of 10 us there are twenty times as many interrupts as
//! with 200 us, at every load; a queue under load is never quiet for the hundred timeouts after which its interrupt is
//! armed again. But the run script reads the interrupt counters, starts the clients, and reads again: the counters hold
//! the time before and after the load, in which each of the 4480 connections is opened once and closed once. The
//! packets of an opening or closing come within a round trip, and interrupt if none came to the queue in the hundred
//! timeouts before. So the interrupts are a share of 8960, which follows from one parameter, the rate of openings and
//! closings on a queue. Reading the counters itself interrupts (commands to the NIC), and so does each step of adaptive
//! moderation. Polls are counted by a trace over more time without load, and over all NAPIs of the machine: what it
//! counts beyond the packets of the queues is the same in every cell.

pub mod cells;
pub mod predictors;
pub mod rows;
pub mod run;
pub mod statements;
pub mod summary;
pub mod tcp_rr;
pub mod udp_stream;
pub mod v4;
mod worlds;
pub mod xsk_rr;

pub use cells::{COLUMNS, Cell, Column, Table, TableError};
pub use run::{Budget, Simulated, simulate};
pub use worlds::{KNOWN, service_world};

/// The cases that calibration may use.
pub const CALIBRATION_CASES: [&str; 4] = ["base", "defer200", "fullbusy", "suspend200"];
/// The loads, in queries per second; the last is closed loop.
pub const LOADS: [(&str, Option<f64>); 6] = [
    ("200K", Some(200_000.0)),
    ("400K", Some(400_000.0)),
    ("600K", Some(600_000.0)),
    ("800K", Some(800_000.0)),
    ("1000K", Some(1_000_000.0)),
    ("MAX", None),
];
/// The 24 cells of the published table (v6, averaged over runs) that calibration may see. The other 48 are not in this
/// crate; a caller that reports on them has them.
pub const CALIBRATION_CSV: &str = include_str!("../../data/irqsuspend_v6_calibration.csv");
/// An earlier run (v2) of eleven of the cases, with which the structure of the model is chosen.
pub const V2_CSV: &str = include_str!("../../data/irqsuspend_v2_summary.csv");
/// The start of the fit.
pub const START_TOML: &str = include_str!("../../data/irq_suspension_start.toml");
/// The fitted parameters.
pub const PARAMS_TOML: &str = include_str!("../../data/irq_suspension.toml");
