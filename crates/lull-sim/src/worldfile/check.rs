//! Checks single values: they are within their limits, or the error says where, what and what is allowed.

use std::ops::{Range, RangeInclusive};

use lull_units::time_text;
use toml::Spanned;

use super::error::{Source, WorldFileError};
use crate::units::{Count, Share, Size, Time};

/// The latencies that can be simulated, in nanoseconds.
pub(super) const LATENCY: RangeInclusive<u64> = 0..=1_000_000_000;

/// Checks values, and knows their places in the file.
pub(super) struct Check<'a>(pub(super) &'a Source<'a>);

impl Check<'_> {
    pub(super) fn error<T>(&self, key: &str, value: &Spanned<T>, problem: impl Into<String>) -> WorldFileError {
        self.0.error(key, &value.span(), problem)
    }

    /// Makes the error for a place.
    pub(super) fn at(&self, key: &str, at: &Range<usize>, problem: impl Into<String>) -> WorldFileError {
        self.0.error(key, at, problem)
    }

    /// Returns the file's name.
    pub(super) fn file(&self) -> &str {
        self.0.file
    }

    pub(super) fn within<T>(
        &self,
        key: &str,
        value: &Spanned<T>,
        number: u64,
        range: &RangeInclusive<u64>,
        text: fn(u64) -> String,
    ) -> Result<u64, WorldFileError> {
        if range.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (text(*range.start()), text(*range.end()));
        Err(self.error(key, value, format!("{} is impossible here: allowed is {low} to {high}", text(number))))
    }

    pub(super) fn count(
        &self,
        key: &str,
        value: &Spanned<Count>,
        range: &RangeInclusive<u64>,
    ) -> Result<u64, WorldFileError> {
        self.within(key, value, value.get_ref().0, range, |n| n.to_string())
    }

    pub(super) fn count_or<T>(
        &self,
        key: &str,
        value: &Option<Spanned<Count>>,
        range: &RangeInclusive<u64>,
        default: T,
    ) -> Result<u64, WorldFileError>
    where
        T: Into<u64>,
    {
        value.as_ref().map_or(Ok(default.into()), |value| self.count(key, value, range))
    }

    pub(super) fn time(
        &self,
        key: &str,
        value: &Spanned<Time>,
        range: &RangeInclusive<u64>,
    ) -> Result<u32, WorldFileError> {
        // Every range of times ends below 2^32 ns.
        Ok(self.within(key, value, value.get_ref().0, range, time_text)? as u32)
    }

    pub(super) fn time_or(
        &self,
        key: &str,
        value: &Option<Spanned<Time>>,
        range: &RangeInclusive<u64>,
        default_ns: u32,
    ) -> Result<u32, WorldFileError> {
        value.as_ref().map_or(Ok(default_ns), |value| self.time(key, value, range))
    }

    pub(super) fn share_or(
        &self,
        key: &str,
        value: &Option<Spanned<Share>>,
        default: u32,
    ) -> Result<u32, WorldFileError> {
        let Some(value) = value else { return Ok(default) };
        Ok(self
            .within(key, value, value.get_ref().0, &(0..=1_000), |permille| format!("{}%", permille as f64 / 10.0))?
            as u32)
    }

    pub(super) fn bytes_or(
        &self,
        key: &str,
        value: &Option<Spanned<Size>>,
        range: &RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64, WorldFileError> {
        let Some(value) = value else { return Ok(default) };
        self.within(key, value, value.get_ref().0, range, |n| format!("{n}B"))
    }
}
