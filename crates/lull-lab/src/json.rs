//! The whole report as JSON: every run, every interval, the machine and the command.

use std::fmt;
use std::io;
use std::path::Path;

use crate::cell::Report;
use crate::cell::report::REPORT_SCHEMA;
use crate::csv::atomic;

/// Why a report cannot be read.
#[derive(Debug)]
pub enum JsonError {
    /// The file cannot be read.
    Read(io::Error),
    /// It is no report.
    Form(serde_json::Error),
    /// It was written by a version whose fields mean something else.
    Schema(u32),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Read(error) => write!(f, "cannot read the report: {error}"),
            JsonError::Form(error) => write!(f, "not a report: {error}"),
            JsonError::Schema(found) => {
                write!(
                    f,
                    "the report has schema {found}, and this version reads {REPORT_SCHEMA}: use the version that wrote it"
                )
            }
        }
    }
}

impl std::error::Error for JsonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JsonError::Read(error) => Some(error),
            JsonError::Form(error) => Some(error),
            JsonError::Schema(_) => None,
        }
    }
}

/// The report as indented JSON with a final newline. A number that is not finite becomes `null`.
///
/// # Errors
///
/// None in practice: a report holds only text, numbers and lists.
pub fn to_string(report: &Report) -> io::Result<String> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}

/// Writes a report, replacing the file whole or not at all.
///
/// # Errors
///
/// Those of [`atomic::write`].
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
    // The schema first: a report of another one may lack fields, and that would be the less useful message.
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
