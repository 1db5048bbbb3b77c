//! Tests of the controller: under load that steps, ramps, bursts, shares a queue with others and goes idle, a
//! controller is compared with the best fixed setting in hindsight.
//!
//! The control law is that of `lull-slo`, which runs on both other planes as well. [`run()`] runs a trace with it or
//! with fixed settings, and [`score()`] judges it phase by phase.

mod run;
mod score;
mod trace;

pub use self::run::{Chooser, Slice, TraceRun, run};
pub use self::score::{Fixed, Missed, PhaseScore, SETTLING_NS, Score, ScoreError, fixed_settings, score};
pub use self::trace::{PHASE_NS, Phase, Shape, Trace};
