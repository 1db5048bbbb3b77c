//! How a controller stands to its objective.

use std::fmt;

/// How a controller stands to its objective after a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The objective is met, and nothing moves.
    Met,
    /// Timeouts move.
    Moving,
    /// Settings should change, and have changed as often as they may: what was in force stays.
    Held,
    /// The objective is missed, and no timeout is the cause.
    Missed,
    /// The CPUs are used above their bound, or are what is short: timeouts become longer.
    CpuShort,
    /// The objective is out of reach: the mode that was asked for is in force for a while.
    OutOfReach,
    /// There were too few answers to judge.
    #[default]
    Quiet,
    /// Latency cannot be known: the objective bounds the timeouts, and the CPUs decide within that.
    CpuOnly,
    /// Latency was known and no longer is: the mode that was asked for is in force.
    Blind,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Standing::Met => "met",
            Standing::Moving => "moving",
            Standing::Held => "held",
            Standing::Missed => "missed",
            Standing::CpuShort => "cpu-short",
            Standing::OutOfReach => "out-of-reach",
            Standing::Quiet => "quiet",
            Standing::CpuOnly => "cpu-only",
            Standing::Blind => "blind",
        })
    }
}
