//! The published IRQ suspension runs as a world, and the tables that it is held against.
//!
//! **The machine.** memcached with eight workers on eight cores, a queue, a NAPI and 560 connections each, seven client machines.
//! The cores are alike and share nothing that the model knows, so three of them are simulated and scaled to eight. They stand for
//! two spreads. RSS: 4480 connections fall on eight queues with a standard deviation of 22, so the queues get 538, 560 and 582,
//! and load and connections go together. Placement: memcached's workers are not pinned, so a worker need not run on the core
//! that its queue's interrupts go to; one of the three does, two have changed places. Without that, `defer200` and `base` return
//! two to three times as many events per `epoll_wait` as published: only a worker on another core runs while softirq delivers.
//!
//! **What may be fitted.** The cells of [`CALIBRATION_CASES`], from a file that holds no others (`irqsuspend_v6_calibration.csv`). All other
//! cells are predictions.
//!
//! **Other traffic.** The published counters are the whole NIC's: with a deferred interrupt of 10 us there are twenty times as many as
//! with 200 us at every load, which no serving queue can cause. A few queues see a trickle of other packets; they run as a world
//! of their own, and their interrupts and polls are added.

pub mod cells;
pub mod page;
pub mod rows;
pub mod run;
pub mod statements;
pub mod summary;
pub mod tcp_rr;
pub mod udp_stream;
pub mod v4;
mod worlds;
pub mod xsk_rr;

pub use cells::{Cell, Column, Table, TableError};
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
/// The published table (v6, averaged over runs).
pub const V6_CSV: &str = include_str!("../../data/irqsuspend_v6_summary.csv");
/// The 24 cells of it that calibration may see.
pub const CALIBRATION_CSV: &str = include_str!("../../data/irqsuspend_v6_calibration.csv");
/// Cycles and instructions per query of the v6 run.
pub const V6_LETTER_CSV: &str = include_str!("../../data/irq_suspension_v6.csv");
/// The earlier run.
pub const V4_CSV: &str = include_str!("../../data/irq_suspension_v4.csv");
/// The fitted parameters.
pub const PARAMS_TOML: &str = include_str!("../../data/irq_suspension.toml");
