//! The failures that end a command.

/// A failure that is printed in one line and ends the command with status 2.
pub type Failure = Box<dyn std::error::Error>;
