//! Writes a case's table to files.

use std::io;

use super::CaseTable;
use crate::csv::{number, push_record};
use crate::document::{Document, pretty};

impl Document for CaseTable {
    /// Each row has the keys, then the measured, published and simulated value of each measure, then the verdict.
    fn csv(&self) -> String {
        let mut text = String::new();
        let mut head: Vec<String> = self.keys.iter().map(|key| key.replace(' ', "_")).collect();
        for (at, measure) in self.measures.iter().enumerate() {
            let (published, simulated) = self.has(at);
            head.push(measure.name.to_owned());
            head.extend(published.then(|| format!("published_{}", measure.name)));
            head.extend(simulated.then(|| format!("simulated_{}", measure.name)));
        }
        push_record(&mut text, head.into_iter().chain(crate::csv::VERDICT_COLUMNS.map(String::from)));
        for row in &self.rows {
            let mut fields = row.keys.clone();
            for (at, value) in row.values.iter().enumerate() {
                let (published, simulated) = self.has(at);
                fields.push(number(value.ours.map(|ours| ours.value)));
                fields.extend(published.then(|| number(value.published)));
                fields.extend(simulated.then(|| number(value.simulated)));
            }
            let (words, reason) = row.standing();
            push_record(&mut text, fields.into_iter().chain([words, reason.unwrap_or_default().to_owned()]));
        }
        text
    }

    fn json(&self) -> io::Result<String> {
        pretty(&serde_json::to_value(self)?)
    }

    fn html(&self) -> String {
        crate::html::case::render(self)
    }
}
