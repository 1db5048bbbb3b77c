//! What ends a command.

/// A failure that is told in one line and ends the command with status 2.
pub type Failure = Box<dyn std::error::Error>;
