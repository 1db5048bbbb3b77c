//! Values that were found, and how they are written.

use super::values::Key;

/// A value that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its key.
    pub key: &'static Key,
    /// The value, in the key's unit.
    pub value: f64,
    /// How far it may be off (95 %): of a fitted value from how the cells depend on it.
    pub interval: f64,
    /// What was measured of it alone, if it was.
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

    /// Where it comes from, in words.
    pub fn how(&self) -> String {
        match self.measured {
            Some(measured) => format!("measured ({}) and fitted", quantity(self.key.unit, measured)),
            None => "fitted".to_owned(),
        }
    }
}

/// A value as the file has it.
pub(super) fn quantity(unit: &str, value: f64) -> String {
    match unit {
        "share" => format!("{:.1}%", 100.0 * value),
        _ => format!("{}ns", value.round() as u64),
    }
}
