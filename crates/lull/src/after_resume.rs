//! The option of lull's own stack that says what follows a resume; `serve`, `run` and `compare` have it.

use clap::ValueEnum;

/// What follows the poll of a resume that finds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AfterResume {
    /// The interrupt is unmasked at once. On this plane a sleep that a timer ends costs a process as much as one that
    /// an interrupt ends.
    #[default]
    Interrupt,
    /// Deferral follows, as in Linux.
    Deferral,
}

impl From<AfterResume> for lull_core::AfterResume {
    fn from(after: AfterResume) -> lull_core::AfterResume {
        match after {
            AfterResume::Interrupt => lull_core::AfterResume::Interrupt,
            AfterResume::Deferral => lull_core::AfterResume::Deferral,
        }
    }
}
