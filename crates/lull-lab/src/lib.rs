//! The lab: workloads, load generators, measuring, statistics, tables and reports.
//!
//! [`compare`] runs every delivery mode over the same service under the same load and makes one [`cell::Report`] of it.
//! Three types to know: [`bench::Bench`] (a service and a load generator that can run one cell), [`cell::RunResult`]
//! (what a run measured), [`cell::Report`] (the table).
//!
//! The modules in the order that a comparison passes them: [`plan`] (what runs when), [`mod@bench`] (a service with its
//! generator, on the in-memory NIC, on TAP, or on the kernel's stack), [`service`] (the memcached workers on lull
//! sockets) with [`memcached`] (protocol and store), [`load`] (generators), [`hardware`] and [`speed`] (cycles and
//! instructions, where the processor counts them, and how fast the machine is just now), [`check`] (whether the mode
//! asked for was in force), [`cell`] and [`stats`] (results and their intervals), [`table`], [`csv`], [`json`],
//! [`html`]. [`case`] has the workloads beside the comparison, each with its own table, as [`flood`] and [`forward`] have.
//! [`simulated`] makes the same report of a world that is simulated, [`tuning`] tells which mode and timeout meet an
//! objective there, [`mod@calibrate`] makes such a world of measurements, [`predicted`] holds its predictions beside a measured
//! report, [`control`] shows a controller at work on one, and [`published`] holds simulated tables against
//! published ones. Whatever is written to
//! files is a [`document::Document`].
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
