//! A case's table, and the waits from which it is made.

use hdrhistogram::Histogram;

/// A table of figures, with claims about them.
#[derive(Clone, Debug)]
pub struct CaseTable {
    /// What it shows.
    pub title: String,
    /// What the figures are, with their units.
    pub columns: Vec<&'static str>,
    /// The rows: the name of each, and its figures.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The claims, and whether each holds.
    pub statements: Vec<(bool, String)>,
}

impl CaseTable {
    /// Returns the text that is printed.
    pub fn text(&self) -> String {
        let name = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = self.columns.iter().map(|column| column.chars().count().max(9)).collect();
        let mut text = format!("{}\n\n{:name$}", self.title, "");
        for (column, width) in self.columns.iter().zip(&widths) {
            text += &format!("  {column:>width$}");
        }
        text += "\n";
        for (row, values) in &self.rows {
            text += &format!("{row:name$}");
            for (value, width) in values.iter().zip(&widths) {
                text += &format!("  {:>width$}", number(*value));
            }
            text += "\n";
        }
        text += "\n";
        for (holds, what) in &self.statements {
            text += &format!("{}  {what}\n", if *holds { "PASS" } else { "FAIL" });
        }
        text
    }

    /// As comma-separated values.
    pub fn to_csv(&self) -> String {
        let mut text = format!("row,{}\n", self.columns.join(",").replace(' ', "_"));
        for (row, values) in &self.rows {
            let values: Vec<String> = values.iter().map(|value| value.to_string()).collect();
            text += &format!("\"{row}\",{}\n", values.join(","));
        }
        text
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 || value == value.round() { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Makes a histogram of waits: how long the first packet of a ring waited until a poll looked.
pub(super) fn new_waits() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 10_000_000_000, 3) {
        Ok(waits) => waits,
        Err(_) => unreachable!("constant bounds in order"),
    }
}

pub(super) fn us(waits: &Histogram<u64>, percentile: f64) -> f64 {
    waits.value_at_percentile(percentile) as f64 / 1_000.0
}
