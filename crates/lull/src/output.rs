//! Standard output and standard error. The command prints only here.
//!
//! `println!` panics when nobody reads or the disk is full. These macros return the failure, and `main` ends the
//! command by its kind: quietly if the reader has gone (`lull show | head`), with a line for every other failure.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use lull_linux::plan::Change;

/// The status of a command whose reader has gone: 128 plus the number of SIGPIPE, as a shell reports a command that
/// this signal ended.
const READER_GONE: u8 = 141;

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}; the rest of the output is lost")]
pub struct WriteError(#[from] io::Error);

impl WriteError {
    /// Prints what there is to say, and returns the status with which the command ends.
    pub fn end(&self) -> ExitCode {
        if self.0.kind() == ErrorKind::BrokenPipe {
            return ExitCode::from(READER_GONE);
        }
        say!("lull: {self}");
        ExitCode::FAILURE
    }
}

/// Writes to standard output.
pub fn write(text: fmt::Arguments<'_>) -> Result<(), WriteError> {
    Ok(io::stdout().lock().write_fmt(text)?)
}

/// Writes a line to standard output. The newline is part of the same write, so that lines of two processes that share a
/// file do not mix.
pub fn write_line(text: fmt::Arguments<'_>) -> Result<(), WriteError> {
    write(format_args!("{text}\n"))
}

/// Writes what standard output still buffers. This is the last chance to notice that it cannot be written.
pub fn flush() -> Result<(), WriteError> {
    Ok(io::stdout().lock().flush()?)
}

/// Writes a line to standard error. A failure is ignored, because there is nobody left to tell.
pub fn say_line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// As `print!`, but returns the failure.
macro_rules! out {
    ($($argument:tt)*) => { $crate::output::write(format_args!($($argument)*)) };
}

/// As `println!`, but returns the failure.
macro_rules! outln {
    () => { $crate::output::write_line(format_args!("")) };
    ($($argument:tt)*) => { $crate::output::write_line(format_args!($($argument)*)) };
}

/// As `eprintln!`, but never panics.
macro_rules! say {
    ($($argument:tt)*) => { $crate::output::say_line(format_args!($($argument)*)) };
}

pub(crate) use {out, outln, say};

/// Prints changes, one per line.
pub fn print_changes(changes: &[Change], prefix: &str) -> Result<(), WriteError> {
    changes.iter().try_for_each(|change| outln!("{prefix}{change}"))
}
