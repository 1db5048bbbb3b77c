//! What a controller says of itself, so that nothing is said twice.

use crate::{Reading, Standing};

/// What was told last.
#[derive(Debug, Default)]
pub struct Told {
    standing: Option<Standing>,
    complaint: Option<String>,
}

impl Told {
    /// Tells another standing than before, and every change that was made.
    pub fn standing(&mut self, standing: Standing, reading: &Reading, changed: &[String], log: &mut dyn FnMut(&str)) {
        self.complaint = None;
        // Moving and met take turns as it settles; the changes tell that.
        let is_new = self.standing.replace(standing) != Some(standing);
        if !is_new && changed.is_empty() {
            return;
        }
        let cpu = reading.cpu_percent.map_or_else(String::new, |percent| format!(", CPU {percent:.0} %"));
        let latency = reading.latency.map_or_else(String::new, |latency| {
            format!(", p99 {} of {} answers", lull_units::time_text(latency.p99_ns), latency.answers)
        });
        let changes = if changed.is_empty() { String::new() } else { format!(": {}", changed.join("; ")) };
        log(&format!("{standing}{latency}{cpu}{changes}"));
    }

    /// Tells what stands in the way, once.
    pub fn complaint(&mut self, text: &str, log: &mut dyn FnMut(&str)) {
        if self.complaint.as_deref() != Some(text) {
            log(text);
        }
        self.complaint = Some(text.to_owned());
    }
}
