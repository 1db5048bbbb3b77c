//! The error of a world file: one line with the file, the line and the key, and what is allowed.

use std::ops::Range;

/// Why a world file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", place(file, *line, key))]
pub struct WorldFileError {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1; 0 if the file could not be read.
    pub line: usize,
    /// The key with its section, such as `nic.rx_usecs`; empty if the error is not about a key.
    pub key: String,
    /// What is wrong with it, and what is allowed.
    pub problem: String,
}

/// Describes the place in the file as far as it is known; line 0 means that the file could not be read.
fn place(file: &str, line: usize, key: &str) -> String {
    match (line, key) {
        (0, _) => file.to_owned(),
        (_, "") => format!("{file}:{line}"),
        _ => format!("{file}:{line}: {key}"),
    }
}

/// The sections that every file needs.
const REQUIRED: [&str; 4] = ["machine", "nic", "network", "service"];

/// The text of a file, for places in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Makes the error for the value at this place.
    pub(super) fn error(&self, key: &str, at: &Range<usize>, problem: impl Into<String>) -> WorldFileError {
        let line = 1 + self.text[..at.start.min(self.text.len())].matches('\n').count();
        WorldFileError { file: self.file.to_owned(), line, key: key.to_owned(), problem: problem.into() }
    }

    /// Makes the error for what the TOML reader has found.
    pub(super) fn refused(&self, error: &toml::de::Error) -> WorldFileError {
        let at = error.span().unwrap_or(0..0);
        let message = error.message().replace('\n', " ");
        if let Some(rest) = message.strip_prefix("unknown field `") {
            let (key, expected) = rest.split_once('`').unwrap_or((rest, ""));
            let allowed = expected.trim_start_matches(", expected ").trim_start_matches("one of ").replace('`', "");
            let in_header = self.text[..at.start].trim_end().ends_with('[');
            return match self.section(at.start) {
                section if section.is_empty() || in_header => {
                    self.error(key, &at, format!("unknown; the sections are {allowed}"))
                }
                section => self.error(
                    &format!("{section}.{key}"),
                    &at,
                    format!("unknown; the keys of [{section}] are {allowed}"),
                ),
            };
        }
        if let Some(rest) = message.strip_prefix("missing field `") {
            let key = rest.trim_end_matches('`');
            let section = self.section(at.end.min(self.text.len()));
            let (key, what) = match REQUIRED.contains(&key) {
                true => (format!("[{key}]"), "this section is missing"),
                false => (format!("{section}.{key}"), "missing, and it has no default"),
            };
            return self.error(&key, &at, what);
        }
        let key = self.key_at(&at).unwrap_or_else(|| self.key_before(at.start));
        self.error(&if key.is_empty() { key } else { self.in_section(at.start, &key) }, &at, message)
    }

    fn in_section(&self, at: usize, key: &str) -> String {
        match self.section(at) {
            "" => key.to_owned(),
            section => format!("{section}.{key}"),
        }
    }

    /// Returns the section of a place.
    fn section(&self, at: usize) -> &str {
        // The line of the place counts only up to its end, so that a header's own place is inside its section.
        let end = self.text[at..].find('\n').map_or(self.text.len(), |newline| at + newline);
        self.text[..end].lines().rev().find_map(header).unwrap_or("")
    }

    /// Returns the key at this place, if there is one.
    fn key_at(&self, at: &Range<usize>) -> Option<String> {
        let text = self.text.get(at.clone())?;
        let after = self.text[at.end..].trim_start();
        (after.starts_with('=') && !text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the key of the value at this place.
    fn key_before(&self, at: usize) -> String {
        let before = self.text[..at].trim_end();
        let Some(before) = before.strip_suffix('=') else { return String::new() };
        let key = before.trim_end();
        let start = key.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').map_or(0, |at| at + 1);
        key[start..].to_owned()
    }
}

/// Returns the name in `[name]`.
fn header(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix('[')?.split(']').next()?.trim())
}
