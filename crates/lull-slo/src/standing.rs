//! How a controller stands to its objective.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a controller stands to its objective after a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The objective is met, and nothing changes.
    Met,
    /// Timeouts change.
    Moving,
    /// Settings should change, but have changed as often as they may, so what was in force stays.
    Held,
    /// The objective is missed, and no timeout is the cause.
    Missed,
    /// The CPUs are used above their bound, or are the bottleneck, so timeouts become longer.
    CpuShort,
    /// The objective is out of reach, so the mode that was asked for is in force for a while.
    OutOfReach,
    /// There were too few answers to judge.
    #[default]
    Quiet,
    /// Latency cannot be known, so the objective bounds the timeouts, and the use of the CPUs decides within that.
    CpuOnly,
    /// Latency was known and no longer is, so the mode that was asked for is in force.
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

impl Standing {
    /// All standings.
    pub const ALL: [Standing; 9] = [
        Standing::Met,
        Standing::Moving,
        Standing::Held,
        Standing::Missed,
        Standing::CpuShort,
        Standing::OutOfReach,
        Standing::Quiet,
        Standing::CpuOnly,
        Standing::Blind,
    ];

    /// The reason why timeouts are as they are.
    pub fn reason(self) -> &'static str {
        match self {
            Standing::Met => "the objective is met and nothing moves",
            Standing::Moving => "timeouts move towards the objective",
            Standing::Held => "settings have changed as often as they may, so what was in force stays",
            Standing::Missed => "the objective is missed for another cause than a timeout",
            Standing::CpuShort => "CPU is short, so timeouts become longer",
            Standing::OutOfReach => "the objective is out of reach, so the mode that was asked for is in force",
            Standing::Quiet => "there are too few answers to judge",
            Standing::CpuOnly => "latency is not known, so CPU decides",
            Standing::Blind => "latency is no longer known, so the mode that was asked for is in force",
        }
    }
}
