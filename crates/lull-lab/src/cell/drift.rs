//! Whether the machine's speed was the same throughout.

use super::{CellSummary, Load, RunResult};

/// If the fastest and the slowest time differ by this factor or more, figures of different times are not compared.
pub const DRIFT_MAX: f64 = 1.25;

/// How far the machine's speed changed during a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// The longest time of a fixed piece of work over its shortest.
    pub work: Option<f64>,
    /// The most queries per second of base at MAX over the fewest, between runs.
    pub base: Option<f64>,
}

impl Drift {
    /// Returns the drift over all runs of all cells.
    pub fn of(cells: &[CellSummary]) -> Drift {
        let runs = || cells.iter().flat_map(|cell| &cell.runs);
        let base = |run: &&RunResult| run.testcase == "base" && run.load == Load::Max;
        Drift {
            work: spread(runs().filter_map(|run| run.work_us)),
            base: spread(runs().filter(base).map(|run| run.qps)),
        }
    }

    /// Returns the larger of the two.
    pub fn factor(&self) -> f64 {
        self.work.unwrap_or(1.0).max(self.base.unwrap_or(1.0))
    }

    /// Whether the machine's speed changed so much that figures of different times cannot be compared.
    pub fn is_large(&self) -> bool {
        self.factor() > DRIFT_MAX
    }

    /// Returns what a reader has to know about it, or `None` while it is small.
    pub fn sentence(&self) -> Option<String> {
        if !self.is_large() {
            return None;
        }
        let work = self.work.map(|factor| format!("a fixed piece of work took up to {factor:.1} times as long"));
        let base = self.base.map(|factor| format!("base at MAX served up to {factor:.1} times as much"));
        let seen: Vec<String> = work.into_iter().chain(base).collect();
        Some(format!(
            "The machine's speed changed by a factor of {:.1} while it was measured ({} from one run to another): figures \
             of two rows may be of different times. Compare by the ratios of neighbouring runs, as the statements here do.",
            self.factor(),
            seen.join(", ")
        ))
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Option<f64> {
    let ends = values.filter(|value| *value > 0.0).fold(None, |ends: Option<(f64, f64)>, value| {
        Some(ends.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
    });
    ends.map(|(least, most)| most / least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::summarise;

    fn cells(work_us: [f64; 3], qps: [f64; 3]) -> Vec<CellSummary> {
        let run = |n: usize| RunResult {
            work_us: Some(work_us[n]),
            ..RunResult::new("base", Load::Max, n as u32, 1.0, qps[n])
        };
        summarise((0..3).map(run).collect())
    }

    #[test]
    fn a_steady_machine_has_nothing_said_of_it() {
        assert_eq!(Drift::of(&cells([100.0, 104.0, 101.0], [50.0, 52.0, 51.0])).sentence(), None);
        assert_eq!(Drift::of(&[]).sentence(), None);
    }

    #[test]
    fn a_machine_that_halves_its_speed_is_told_by_work_and_by_base() {
        let by_work = Drift::of(&cells([100.0, 200.0, 101.0], [50.0, 52.0, 51.0]));
        assert_eq!((by_work.work, by_work.is_large()), (Some(2.0), true));
        let by_base = Drift::of(&cells([100.0, 100.0, 100.0], [50.0, 25.0, 51.0]));
        let sentence = by_base.sentence().unwrap();
        assert!(sentence.contains("factor of 2.0") && sentence.contains("neighbouring runs"), "{sentence}");
    }
}
