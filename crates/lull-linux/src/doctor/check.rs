//! One check: what was looked at, how it came out, and what to do.

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing prevents a mode.
    Ok,
    /// It works, and could be better.
    Advice,
    /// It defeats a mode.
    Wrong,
    /// It could not be found out.
    Unknown,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found, and why it matters.
    pub reason: String,
    /// What to do.
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn new(
        what: impl Into<String>,
        verdict: Verdict,
        reason: impl Into<String>,
        remedy: Option<String>,
    ) -> Check {
        Check { what: what.into(), verdict, reason: reason.into(), remedy }
    }

    pub(super) fn ok(what: impl Into<String>, reason: impl Into<String>) -> Check {
        Check::new(what, Verdict::Ok, reason, None)
    }

    pub(super) fn advice(what: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::new(what, Verdict::Advice, reason, Some(remedy.into()))
    }

    pub(super) fn wrong(what: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::new(what, Verdict::Wrong, reason, Some(remedy.into()))
    }

    pub(super) fn unknown(what: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::new(what, Verdict::Unknown, reason, Some(remedy.into()))
    }
}
