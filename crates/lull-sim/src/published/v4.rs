//! Compares the same world with the earlier run (v4), without a refit, but with one latency offset for its clients.

use crate::published::cells::{Column, Table};

/// Saturated cells say nothing about an offset.
const SATURATED_US: f64 = 1_000.0;

/// Returns the offset in microseconds: the median difference of mean latencies in the cells below saturation.
pub fn offset_us(simulated: &Table, v4: &Table) -> f64 {
    let mut differences: Vec<f64> = v4
        .cells
        .iter()
        .filter(|cell| cell.load != "MAX" && cell.get(Column::Avg) < SATURATED_US)
        .filter_map(|cell| Some(cell.get(Column::Avg) - simulated.cell(&cell.case, &cell.load)?.get(Column::Avg)))
        .collect();
    differences.sort_by(f64::total_cmp);
    differences.get(differences.len() / 2).copied().unwrap_or(0.0)
}
