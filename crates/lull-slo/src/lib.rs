//! Service-level objectives of latency: what is bounded, and by how much.
//!
//! ```
//! use lull_slo::Slo;
//!
//! let slo: Slo = "p99<200us,avg<80us".parse().expect("an objective");
//! assert_eq!(slo.first().limit_us(), 200.0);
//! ```
#![forbid(unsafe_code)]

mod objective;

pub use self::objective::{Bound, Slo, SloError, Statistic};
