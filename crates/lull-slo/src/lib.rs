//! Service-level objectives of latency, and the controller that keeps one while a service runs.
//!
//! The simulator, a process on lull's own stack and a device of the kernel run the same [`Controller`]. It has no clock
//! and does no I/O: a [`Reading`] of each window goes in, settings of NAPIs come out.
//!
//! Three types to know:
//!
//! - [`Slo`]: what is bounded, and by how much (`p99<200us,avg<80us`);
//! - [`Reading`]: what a window showed, per NAPI and as a whole;
//! - [`Controller`]: the law.
//!
//! # Example
//!
//! ```
//! use lull_slo::{Bounds, Controller, Latency, NapiReading, Reading, Slo, Standing};
//!
//! let slo: Slo = "p99<200us".parse()?;
//! let bounds = Bounds::new(&slo, &"suspend20".parse()?, None)?;
//! let mut controller = Controller::new(slo, bounds);
//! // A busy queue whose answers come well before the limit: a longer timeout saves CPU.
//! let reading = Reading {
//!     now_ns: 100_000_000,
//!     window_ns: 100_000_000,
//!     napis: vec![NapiReading { id: 1, polls: 5_000, work: 20_000, ..NapiReading::default() }],
//!     cpu_percent: Some(40.0),
//!     latency: Some(Latency { answers: 10_000, p99_ns: 60_000, ..Latency::default() }),
//! };
//! assert_eq!(controller.decide(&reading), Standing::Moving);
//! assert_eq!(controller.settings(1).gro_flush_timeout_ns, 40_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod allowance;
mod bounds;
mod decided;
mod latencies;
mod law;
mod objective;
mod reading;
mod standing;
mod told;

pub use self::allowance::{CHANGES_AT_ONCE, CHANGES_PER_MINUTE};
pub use self::bounds::{Bounds, NoTimeout, TIMEOUT_NS_MIN};
pub use self::decided::Decided;
pub use self::latencies::Latencies;
pub use self::law::Controller;
pub use self::objective::{Bound, LIMIT_NS_MAX, Slo, SloError, Statistic};
pub use self::reading::{
    ANSWERS_MIN, ANSWERS_PER_WINDOW, Latency, NapiReading, Reading, WINDOW_NS_MAX, WINDOW_NS_MIN, window_is_over,
};
pub use self::standing::Standing;
pub use self::told::Told;
