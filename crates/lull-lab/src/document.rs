//! The results of a command, in every form that they can be written in. All commands that write files write these
//! three.

use std::io;

use crate::cell::Report;

/// Results that were measured, simulated or found.
pub trait Document {
    /// Returns the table, with a header.
    fn csv(&self) -> String;
    /// Returns all results, with a final newline.
    ///
    /// # Errors
    ///
    /// This does not fail in practice, because the results are only text, numbers and lists.
    fn json(&self) -> io::Result<String>;
    /// Returns a self-contained page.
    fn html(&self) -> String;
}

impl Document for Report {
    fn csv(&self) -> String {
        crate::csv::to_string(&crate::csv::rows(self))
    }

    fn json(&self) -> io::Result<String> {
        crate::json::to_string(self)
    }

    fn html(&self) -> String {
        crate::html::render(self)
    }
}

/// Formats a value as indented JSON with a final newline.
pub(crate) fn pretty(value: &serde_json::Value) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
