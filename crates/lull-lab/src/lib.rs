//! The lab: workloads, load generators, measurements, statistics, tables and reports.
//!
//! [`compare`] runs every delivery mode on the same service under the same load and makes one [`cell::Report`] of it.
//! The three main types are [`bench::Bench`] (a service and a load generator that can run one cell),
//! [`cell::RunResult`] (the measurements of a run), and [`cell::Report`] (the table).
//!
//! A comparison passes through the modules in this order:
//!
//! - [`plan`] holds the steps and their order.
//! - [`mod@bench`] is a service with its generator, on the in-memory NIC, on TAP, or on the kernel's stack.
//! - [`service`] runs the memcached workers on lull sockets, and [`memcached`] holds protocol and store.
//! - [`load`] holds the generators.
//! - [`hardware`] counts cycles and instructions if the processor can, and [`speed`] measures how fast the machine is
//!   at the
//!   moment.
//! - [`check`] decides whether the mode that was asked for was in force.
//! - [`cell`] and [`stats`] hold results and their intervals.
//! - [`table`], [`csv`], [`json`] and [`html`] are the forms of the report.
//!
//! [`case`] has the workloads besides the comparison, each with a table of its own; [`flood`] and [`forward`] have such
//! tables too. [`simulated`] makes the same report of a simulated world. [`tuning`] finds the mode and timeout that
//! meet an objective there. [`mod@calibrate`] makes such a world of measurements, and [`predicted`] compares its
//! predictions with a measured report. [`control`] shows a controller at work on one. [`published`] compares simulated
//! tables with published ones. Everything that is written to files is a [`document::Document`].
#![forbid(unsafe_code)]

pub mod bench;
pub mod calibrate;
pub mod case;
pub mod cell;
pub mod check;
pub mod compare;
pub mod control;
pub mod csv;
pub mod document;
pub mod flood;
pub mod forward;
pub mod group_cases;
pub mod hardware;
pub mod html;
pub mod json;
pub mod load;
pub mod machine;
pub mod memcached;
pub mod plan;
pub mod polled;
pub mod predicted;
pub mod progress;
pub mod published;
pub mod service;
pub mod simulated;
pub mod speed;
pub mod stalls;
pub mod stats;
pub mod table;
pub mod tuning;
pub mod xsk_rr;
