//! What a command found, in every form that it can be written in. All commands that write files write these three.

use std::io;

use crate::cell::Report;

/// Something that was measured, simulated or found.
pub trait Document {
    /// Its table, with a header.
    fn csv(&self) -> String;
    /// All of it, with a final newline.
    ///
    /// # Errors
    /// None in practice: there are only text, numbers and lists.
    fn json(&self) -> io::Result<String>;
    /// A self-contained page.
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

/// A value as indented JSON with a final newline.
pub(crate) fn pretty(value: &serde_json::Value) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
