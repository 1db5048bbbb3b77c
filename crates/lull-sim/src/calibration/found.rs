//! The values that were found, and how they are written.

use super::values::Key;

/// A value that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its key.
    pub key: &'static Key,
    /// The value, in the key's unit.
    pub value: f64,
    /// How far it may be off (95 %). For a fitted value this follows from how the cells depend on it.
    pub interval: f64,
    /// What was measured for it alone, if anything was.
    pub measured: Option<f64>,
}

impl Found {
    /// Its interval, in words.
    pub fn interval_text(&self) -> String {
        match self.key.unit {
            "share" => format!("± {:.1}%", 100.0 * self.interval),
            _ => format!("± {}", lull_units::time_text(self.interval.round() as u64)),
        }
    }

    /// Says in words where the value comes from.
    pub fn how(&self) -> String {
        match self.measured {
            Some(measured) => format!("measured ({}) and fitted", quantity(self.key.unit, measured)),
            None => "fitted".to_owned(),
        }
    }
}

/// Writes a value as in the file.
pub(super) fn quantity(unit: &str, value: f64) -> String {
    match unit {
        "share" => format!("{:.1}%", 100.0 * value),
        _ => format!("{}ns", value.round() as u64),
    }
}
