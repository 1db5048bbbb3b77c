//! The instructions of a query, if they are known: what a request, a poll and an interrupt take.
//!
//! A simulated core has no instructions, only time. But the number that a query takes follows from what is done for it,
//! which the simulator counts. Unlike times, these numbers do not depend on caches or on the speed of the machine.

use crate::engine::metrics::Outcome;

/// With fewer cells than this, three parts could not be checked.
const CELLS_MIN: usize = 4;
/// The rounds of the search, each of which sets every part to the best value beside the others.
const ROUNDS: usize = 20_000;

/// How many instructions each part takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Instructions {
    /// A request: receiving, serving and answering it.
    pub request: f64,
    /// A poll, whatever it finds, with the round of the loop that makes it.
    pub poll: f64,
    /// An interrupt, with the sleep that it ends or the thread that it interrupts.
    pub interrupt: f64,
}

/// What was counted in a cell, per query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Instructions.
    pub instructions: f64,
    /// Polls.
    pub polls: f64,
    /// Interrupts; 0 if there are none or they were not counted.
    pub interrupts: f64,
}

impl Instructions {
    /// Returns the parts, none of them negative, with which the sum of the squares of the cells' relative errors is
    /// least, and how far each moves if any one of the cells is left out. Returns `None` with too few cells.
    pub fn fit(cells: &[Counted]) -> Option<(Instructions, Instructions)> {
        let cells: Vec<Counted> = cells.iter().copied().filter(|cell| cell.instructions > 0.0).collect();
        if cells.len() < CELLS_MIN {
            return None;
        }
        let all = best(&cells);
        let mut off = [0.0; 3];
        for left_out in 0..cells.len() {
            let mut others = cells.clone();
            others.remove(left_out);
            for (off, (all, other)) in off.iter_mut().zip(all.into_iter().zip(best(&others))) {
                *off = f64::max(*off, (all - other).abs());
            }
        }
        Some((of(all), of(off)))
    }

    /// Returns what a query takes with this many polls and interrupts.
    pub fn of_query(&self, polls: f64, interrupts: f64) -> f64 {
        self.request + self.poll * polls + self.interrupt * interrupts
    }

    /// Returns what a query of a run takes; `None` if none was answered.
    pub fn per_query(&self, outcome: &Outcome) -> Option<f64> {
        let a_query = |count: u64| count as f64 / outcome.counts.answered as f64;
        (outcome.counts.answered > 0).then(|| self.of_query(a_query(outcome.napi.polls), a_query(outcome.counts.irqs)))
    }
}

fn of([request, poll, interrupt]: [f64; 3]) -> Instructions {
    Instructions { request, poll, interrupt }
}

/// The parts with which the sum of the squares of the relative errors is least.
fn best(cells: &[Counted]) -> [f64; 3] {
    let row = |cell: &Counted| [1.0, cell.polls, cell.interrupts].map(|count| count / cell.instructions);
    let rows: Vec<[f64; 3]> = cells.iter().map(row).collect();
    let mut parts = [0.0; 3];
    for _ in 0..ROUNDS {
        for part in 0..3 {
            let own: f64 = rows.iter().map(|row| row[part] * row[part]).sum();
            if own == 0.0 {
                continue;
            }
            let left = |row: &[f64; 3]| {
                let others: f64 = (0..3).filter(|other| *other != part).map(|other| row[other] * parts[other]).sum();
                row[part] * (1.0 - others)
            };
            parts[part] = (rows.iter().map(left).sum::<f64>() / own).max(0.0);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: Instructions = Instructions { request: 5_000.0, poll: 90.0, interrupt: 7_000.0 };

    fn counted(polls: f64, interrupts: f64) -> Counted {
        Counted { instructions: TRUTH.of_query(polls, interrupts), polls, interrupts }
    }

    #[test]
    fn parts_that_made_the_counts_are_found_again() {
        let cells = [counted(1.0, 0.5), counted(0.2, 0.0), counted(1.1, 0.9), counted(60.0, 0.0), counted(0.1, 0.05)];
        let (found, off) = Instructions::fit(&cells).unwrap();
        for (found, truth, off) in [
            (found.request, TRUTH.request, off.request),
            (found.poll, TRUTH.poll, off.poll),
            (found.interrupt, TRUTH.interrupt, off.interrupt),
        ] {
            assert!((found / truth - 1.0).abs() < 0.01 && off < 0.05 * truth, "{found} {truth} {off}");
        }
        assert_eq!(Instructions::fit(&cells[..3]), None);
    }

    #[test]
    fn what_nobody_counts_takes_nothing() {
        let cells = [1.0, 2.0, 4.0, 8.0].map(|polls| Counted { interrupts: 0.0, ..counted(polls, 0.0) });
        let (found, _) = Instructions::fit(&cells).unwrap();
        assert_eq!(found.interrupt, 0.0);
        assert!((found.request / TRUTH.request - 1.0).abs() < 0.01, "{found:?}");
    }
}
