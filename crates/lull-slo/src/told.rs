//! What a controller reports of itself, and how often.

use std::collections::BTreeSet;

use crate::{Latency, Reading, Standing};

/// A standing without a change of settings is reported at most this often, in nanoseconds. The standing at an
/// objective's edge alternates with every window, and a log should not grow by that.
const STANDING_EVERY_NS: u64 = 10_000_000_000;

/// What was reported last.
#[derive(Debug, Default)]
pub struct Told {
    /// The last standing, and when it was reported.
    standing: Option<(Standing, u64)>,
    complaints: BTreeSet<String>,
}

impl Told {
    /// Reports every change that was made, and a standing that differs from the one before.
    pub fn standing(&mut self, standing: Standing, reading: &Reading, changed: &[String], log: &mut dyn FnMut(&str)) {
        let is_due = self
            .standing
            .is_none_or(|(told, at_ns)| told != standing && reading.now_ns.saturating_sub(at_ns) >= STANDING_EVERY_NS);
        if !is_due && changed.is_empty() {
            return;
        }
        self.standing = Some((standing, reading.now_ns));
        let cpu = reading.cpu_percent.map_or_else(String::new, |percent| format!(", CPU {percent:.0} %"));
        let latency = reading.latency.filter(|latency| latency.answers > 0);
        let latency = latency.map_or_else(String::new, |latency| format!(", {}", words(&latency)));
        let changes = if changed.is_empty() { String::new() } else { format!(": {}", changed.join("; ")) };
        log(&format!("{standing}{latency}{cpu}{changes}"));
    }

    /// Reports an obstacle, once.
    pub fn complaint(&mut self, text: &str, log: &mut dyn FnMut(&str)) {
        if self.complaints.insert(text.to_owned()) {
            log(text);
        }
    }

    /// Called when there is no obstacle any more. One that comes back is reported again.
    pub fn content(&mut self) {
        self.complaints.clear();
    }
}

/// A window's latency in words.
pub(crate) fn words(latency: &Latency) -> String {
    let us = |ns: u64| lull_units::time_text(ns / 1_000 * 1_000);
    let answers = lull_units::counted(latency.answers, "answer");
    format!("p50 {}, p99 {} of {answers}", us(latency.p50_ns), us(latency.p99_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_to_and_fro_is_told_now_and_then_and_every_change() {
        let (mut told, mut lines) = (Told::default(), Vec::new());
        let latency = Some(Latency { answers: 1_000, p50_ns: 40_500, p99_ns: 23_199_744, ..Latency::default() });
        let mut tell = |ms: u64, standing, changed: &[String]| {
            let reading = Reading { now_ns: ms * 1_000_000, latency, ..Reading::default() };
            told.standing(standing, &reading, changed, &mut |line| lines.push(line.to_owned()));
            lines.len()
        };
        assert_eq!(tell(0, Standing::Met, &[]), 1);
        for window in 1..100 {
            let standing = if window % 2 == 0 { Standing::Met } else { Standing::CpuShort };
            assert_eq!(tell(100 * window, standing, &[]), 1, "window {window}");
        }
        assert_eq!(tell(10_000, Standing::Met, &[]), 1, "that was told");
        assert_eq!(tell(10_100, Standing::CpuShort, &[]), 2);
        assert_eq!(tell(10_200, Standing::CpuShort, &["a timeout".to_owned()]), 3);
        assert_eq!(tell(10_300, Standing::Met, &[]), 3);
        assert_eq!(lines[1], "cpu-short, p50 40us, p99 23.199ms of 1000 answers");
        assert!(lines[2].ends_with(": a timeout"), "{lines:?}");
    }

    #[test]
    fn what_stands_in_the_way_is_told_once_until_it_is_gone() {
        let (mut told, mut lines) = (Told::default(), 0);
        for (gone, expected) in [(false, 1), (false, 1), (true, 2)] {
            if gone {
                told.content();
            }
            told.complaint("in the way", &mut |_| lines += 1);
            assert_eq!(lines, expected);
        }
    }
}
