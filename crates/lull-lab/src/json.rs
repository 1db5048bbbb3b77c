//! The whole report as JSON: every run, every interval, the machine and the command.

use std::io;
use std::path::Path;

use crate::cell::Report;
use crate::cell::report::REPORT_SCHEMA;
use crate::csv::atomic;

/// The reason why a report cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// The file cannot be read.
    #[error("cannot read the report: {0}")]
    Read(#[source] io::Error),
    /// The file is no report.
    #[error("not a report: {0}")]
    Form(#[source] serde_json::Error),
    /// The file was written by a version whose fields have another meaning.
    #[error("the report has schema {0}, and this version reads {REPORT_SCHEMA}: use the version that wrote it")]
    Schema(u32),
}

/// Returns the report as indented JSON with a final newline. A number that is not finite becomes `null`.
///
/// # Errors
///
/// This does not fail in practice, because a report holds only text, numbers and lists.
pub fn to_string(report: &Report) -> io::Result<String> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}

/// Writes a report. It replaces the file whole or not at all.
///
/// # Errors
///
/// This fails for the same reasons as [`atomic::write`].
pub fn write(path: &Path, report: &Report) -> io::Result<()> {
    atomic::write(path, to_string(report)?.as_bytes())
}

/// Reads a report from a file.
///
/// # Errors
///
/// See [`JsonError`].
pub fn read(path: &Path) -> Result<Report, JsonError> {
    parse(&std::fs::read_to_string(path).map_err(JsonError::Read)?)
}

/// Reads a report from text.
///
/// # Errors
///
/// See [`JsonError`].
pub fn parse(text: &str) -> Result<Report, JsonError> {
    // The schema is read first: a report with another schema may lack fields, and an error about those would be less
    // useful.
    #[derive(serde::Deserialize)]
    struct Schema {
        schema: u32,
    }
    let found: Schema = serde_json::from_str(text).map_err(JsonError::Form)?;
    match found.schema {
        REPORT_SCHEMA => serde_json::from_str(text).map_err(JsonError::Form),
        other => Err(JsonError::Schema(other)),
    }
}
