//! The first candidates of a search on the real machine: what the lab measures of each beside what was simulated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lull_sim::tune::{Answer, Objective, Tried, us_text};
use lull_slo::Statistic;
use lull_units::rate_text;

use super::words::objective_text;
use crate::bench::{Bench, BenchError, Run};
use crate::cell::{CellSummary, Enforcement, Load, RunResult};
use crate::stats::Estimate;
use crate::table::grid::{Align, Grid, wrap};

/// Candidates that are confirmed.
pub const CANDIDATES: usize = 3;
/// Runs of each, interleaved.
const RUNS: u32 = 3;
const WARM_UP: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_secs(1);

/// A candidate with what was measured of it.
#[derive(Clone, Debug)]
pub struct Confirmed {
    /// As it was simulated.
    pub tried: Tried,
    /// As it was measured.
    pub measured: CellSummary,
    /// Runs that met the objective.
    pub met: usize,
}

impl Confirmed {
    /// Whether every run met the objective.
    pub fn holds(&self) -> bool {
        self.met == self.measured.runs.len()
    }

    fn cpu(&self) -> f64 {
        self.measured.cpu_percent.map_or(f64::INFINITY, |cpu| cpu.value)
    }
}

/// Measures the first candidates at the load of the objective. `tell` is told what is measured now.
///
/// # Errors
/// What the bench meets, or that it was stopped.
pub fn confirm(
    bench: &mut dyn Bench,
    answer: &Answer,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Confirmed>, BenchError> {
    let candidates = answer.candidates(CANDIDATES);
    let per_s = answer.objective.per_s;
    let load = Load::Rate { qps: per_s.round() as u64 };
    let mut runs: Vec<Vec<RunResult>> = candidates.iter().map(|_| Vec::new()).collect();
    for run in 0..RUNS {
        for (tried, runs) in candidates.iter().zip(&mut runs) {
            tell(&format!("measuring {}, run {} of {RUNS}", tried.setting, run + 1));
            let mode = &tried.setting.mode;
            let result = bench.run(&Run {
                mode,
                load,
                offered_qps: Some(per_s),
                run,
                warm_up: WARM_UP,
                window: WINDOW,
                stop,
            })?;
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Invalid("stopped before everything was measured: start it again".to_owned()));
            }
            runs.push(result);
        }
    }
    let confirmed = candidates.into_iter().zip(runs).filter_map(|(tried, runs)| {
        let met = runs.iter().filter(|run| meets(run, &answer.objective)).count();
        Some(Confirmed { tried: tried.clone(), measured: CellSummary::of_runs(runs)?, met })
    });
    Ok(confirmed.collect())
}

/// Whether a measured run meets an objective, in its mode, and carries the load.
fn meets(run: &RunResult, objective: &Objective) -> bool {
    let in_force = !matches!(run.verdict, Enforcement::Refused { .. } | Enforcement::NotInForce { .. });
    let below = |statistic, limit_us: f64| latency_us(run, statistic).is_some_and(|us| us < limit_us);
    in_force
        && run.qps >= lull_sim::tune::CARRIED_SHARE_MIN * objective.per_s
        && objective.slo.bounds().iter().all(|bound| below(bound.statistic, bound.limit_us()))
        && objective.cpu_max_percent.is_none_or(|max| run.cpu_percent.is_some_and(|cpu| cpu <= max))
}

fn latency_us(run: &RunResult, statistic: Statistic) -> Option<f64> {
    match statistic {
        Statistic::Avg => run.avg_latency_us,
        Statistic::P50 => run.p50_latency_us,
        Statistic::P95 => run.p95_latency_us,
        Statistic::P99 => run.p99_latency_us,
    }
}

/// The candidates as text: simulated beside measured, and which to take.
pub fn render(answer: &Answer, confirmed: &[Confirmed], columns: usize) -> String {
    let objective = &answer.objective;
    let mut out = format!("\nMeasured on this machine at {} requests per second:\n\n", rate_text(objective.per_s));
    let mut grid = Grid::default();
    grid.column("setting", Align::Left);
    for bound in objective.slo.bounds() {
        grid.column(&format!("{}_simulated", bound.statistic), Align::Right);
        grid.column("measured", Align::Right);
    }
    grid.column("CPU_simulated", Align::Right);
    grid.column("measured", Align::Right);
    grid.column("objective", Align::Left);
    let with_spread = |text: String, estimate: &Estimate| match estimate.spread_percent() {
        Some(spread) => format!("{text} ±{spread:.0}%"),
        None => text,
    };
    for one in confirmed {
        let mut row = vec![one.tried.setting.to_string()];
        for bound in objective.slo.bounds() {
            row.push(us_text(one.tried.mean(|run| run.latency_us(bound.statistic))));
            let cell = &one.measured;
            let measured = match bound.statistic {
                Statistic::Avg => cell.avg_latency_us,
                Statistic::P50 => cell.p50_latency_us,
                Statistic::P95 => cell.p95_latency_us,
                Statistic::P99 => cell.p99_latency_us,
            };
            row.push(measured.map_or("-".to_owned(), |estimate| with_spread(us_text(estimate.value), &estimate)));
        }
        row.push(format!("{:.1}%", one.tried.mean(|run| run.cpu_percent)));
        let cpu = one.measured.cpu_percent;
        row.push(cpu.map_or("-".to_owned(), |cpu| with_spread(format!("{:.1}%", cpu.value), &cpu)));
        row.push(format!("met in {} of {} runs", one.met, one.measured.runs.len()));
        grid.row(row);
    }
    out += &grid.to_string();
    out.push('\n');
    out + &wrap(&verdict(answer, confirmed), columns, "")
}

/// Which of them to take.
fn verdict(answer: &Answer, confirmed: &[Confirmed]) -> String {
    let asked = objective_text(&answer.objective);
    let holding = confirmed.iter().filter(|one| one.holds());
    let Some(cheapest) = holding.min_by(|a, b| a.cpu().total_cmp(&b.cpu())) else {
        return format!(
            "None of them met {asked} in every run: what was found is not confirmed. Calibrate again when the machine does \
             nothing else, or relax the objective."
        );
    };
    let setting = &cheapest.tried.setting;
    match &answer.recommended {
        Some(recommended) if recommended.setting == *setting => {
            format!("Confirmed: {setting} met {asked} in every run, at the least CPU of those that did.")
        }
        _ => format!(
            "Measured, {setting} is the one to take: it met {asked} in every run, at the least CPU of those that did."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(slo: &str, cpu_max_percent: Option<f64>) -> Objective {
        let slo = slo.parse().unwrap();
        Objective { slo, per_s: 10_000.0, cpu_max_percent, spare_percent: 10.0, seeds: 3, seed: 1, window_ns: 1 }
    }

    fn run(p99_us: f64, cpu: f64, qps: f64) -> RunResult {
        RunResult {
            p99_latency_us: Some(p99_us),
            cpu_percent: Some(cpu),
            ..RunResult::new("base", Load::Rate { qps: 10_000 }, 0, 1.0, qps)
        }
    }

    #[test]
    fn a_run_meets_an_objective_with_its_latency_its_cpu_and_the_load() {
        let asked = objective("p99<200us", Some(40.0));
        assert!(meets(&run(199.0, 40.0, 9_950.0), &asked));
        assert!(!meets(&run(200.0, 40.0, 10_000.0), &asked), "at the bound");
        assert!(!meets(&run(100.0, 40.1, 10_000.0), &asked), "too much CPU");
        assert!(!meets(&run(100.0, 10.0, 9_800.0), &asked), "not the load");
        let unmeasured = RunResult { p99_latency_us: None, ..run(1.0, 1.0, 10_000.0) };
        assert!(!meets(&unmeasured, &asked));
        let reason = "it was not".to_owned();
        assert!(!meets(&RunResult { verdict: Enforcement::NotInForce { reason }, ..run(1.0, 1.0, 10_000.0) }, &asked));
    }
}
