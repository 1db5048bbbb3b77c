//! The proving ground of the controller: load that steps, ramps, bursts, shares a queue with others and goes idle, and
//! what a controller makes of it beside the best fixed setting that is known in hindsight.
//!
//! The law is `lull-slo`'s, the same that runs on both other planes. [`run()`] runs a trace with it or with settings that
//! stay, [`score()`] judges it phase by phase.

mod run;
mod score;
mod trace;

pub use self::run::{Chooser, Slice, TraceRun, run};
pub use self::score::{Fixed, Missed, PhaseScore, SETTLING_NS, Score, ScoreError, fixed_settings, score};
pub use self::trace::{PHASE_NS, Phase, Shape, Trace};
