//! Delivery modes of a flood.

use std::str::FromStr;

use lull_core::{Mode, Threaded};

/// A delivery mode, and the context that runs softirq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloodMode {
    name: String,
    mode: Mode,
    realtime: bool,
}

/// Softirq runs in threads like any others.
const SOFTIRQ: &str = "softirq";
/// Softirq runs in contexts that have precedence over ordinary threads, as interrupts have.
const SOFTIRQ_FIFO: &str = "softirq-fifo";

impl FloodMode {
    /// Returns its name in the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the delivery mode.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Whether interrupt contexts have SCHED_FIFO.
    pub fn is_realtime(&self) -> bool {
        self.realtime
    }

    /// Whether NAPIs have threads.
    pub fn has_threads(&self) -> bool {
        self.mode.napi.threaded != Threaded::Off
    }
}

impl FromStr for FloodMode {
    type Err = String;

    fn from_str(text: &str) -> Result<FloodMode, String> {
        let name = if matches!(text, SOFTIRQ | SOFTIRQ_FIFO) { "base" } else { text };
        let mode: Mode = name.parse().map_err(|_| unknown(text))?;
        let polls_itself = mode.napi.threaded != Threaded::Off || mode.group.is_some();
        if name == text && !polls_itself {
            return Err(unknown(text));
        }
        Ok(FloodMode { name: text.to_owned(), mode, realtime: text == SOFTIRQ_FIFO })
    }
}

fn unknown(text: &str) -> String {
    format!("cannot flood in mode '{text}': use softirq, softirq-fifo, threaded, threaded-busy, group or groupX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirq_is_base_and_modes_of_applications_are_none_of_a_flood() {
        let mode = |text: &str| text.parse::<FloodMode>();
        assert_eq!(mode("softirq").unwrap().mode().name(), "base");
        assert!(mode("softirq-fifo").unwrap().is_realtime() && !mode("softirq").unwrap().is_realtime());
        assert!(mode("threaded").unwrap().has_threads() && !mode("group50").unwrap().has_threads());
        for bad in ["base", "suspend20", "fullbusy", "x"] {
            assert!(mode(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
