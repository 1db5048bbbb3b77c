//! An earlier run beside the same simulated table, as text.

use std::fmt::Write as _;

use lull_sim::published::LOADS;
use lull_sim::published::cells::{Column, Table};
use lull_sim::published::summary::rank_correlation;
use lull_sim::published::v4::offset_us;

/// Rank correlations and errors by load.
pub(super) fn text(name: &str, simulated: &Table, earlier: &Table) -> String {
    let offset_us = offset_us(simulated, earlier);
    let mut text = format!("against {name}, with {offset_us:.1} us added to every latency and nothing else changed\n");
    let _ =
        writeln!(text, "{:<8}{:>34}{:>38}", "load", "rank correlation: avg  p95  CPU", "median error: avg  p95  CPU");
    for (load, _) in LOADS {
        let mut columns = Vec::new();
        for column in [Column::Avg, Column::P95, Column::Cpu] {
            let added = if column.is_percent() { 0.0 } else { offset_us };
            let pairs: Vec<(f64, f64)> = earlier
                .cells
                .iter()
                .filter(|cell| cell.load == load)
                .filter_map(|cell| Some((simulated.cell(&cell.case, load)?.get(column) + added, cell.get(column))))
                .collect();
            let mut errors: Vec<f64> = pairs
                .iter()
                .map(
                    |(sim, publ)| {
                        if column.is_percent() { (sim - publ).abs() } else { 100.0 * (sim / publ - 1.0).abs() }
                    },
                )
                .collect();
            errors.sort_by(f64::total_cmp);
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            columns.push((rank_correlation(&a, &b), errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN)));
        }
        let _ = writeln!(
            text,
            "{load:<8}{:>24.3}{:>6.3}{:>6.3}{:>26.1}%{:>5.1}%{:>4.1}pt",
            columns[0].0, columns[1].0, columns[2].0, columns[0].1, columns[1].1, columns[2].1
        );
    }
    text
}
