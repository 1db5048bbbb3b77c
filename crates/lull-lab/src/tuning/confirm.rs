//! Runs the first candidates of a search on the real machine, and compares the lab's measurements with the simulation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_sim::tune::{Answer, CARRIED_SHARE_MIN, Objective, Tried, carried_share_min, us_text};
use lull_slo::Statistic;
use lull_units::rate_text;

use super::words::objective_text;
use crate::bench::{Bench, BenchError, Run};
use crate::cell::{CellSummary, Enforcement, Load, RunResult};
use crate::stalls::Stalls;
use crate::stats::Estimate;
use crate::table::grid::{Align, Grid, wrap};

/// The number of candidates that are confirmed.
pub const CANDIDATES: usize = 3;
/// The number of runs of each that count. They are interleaved.
const RUNS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_secs(1);
/// How long the cores are watched for stalls before each run.
const WATCH: Duration = Duration::from_millis(100);
/// Runs that stalls have spoilt are repeated until this time has passed since the start.
pub const LIMIT: Duration = Duration::from_secs(60);
/// If stalls may use up this part of what a bound allows, a miss is attributed to them.
const SPOILT_SHARE: f64 = 0.5;
/// If stalls may use up this part of a bound of the mean, a miss of it is attributed to them.
const SPOILT_MEAN: f64 = 0.1;

/// A candidate with its measurements.
#[derive(Clone, Debug)]
pub struct Confirmed {
    /// The simulated candidate.
    pub tried: Tried,
    /// The measurements: the runs that count, or all if none does.
    pub measured: CellSummary,
    /// The number of runs that met the objective.
    pub met: usize,
    /// The number of runs that met it, and of those that missed it while the machine did not stall.
    pub counted: usize,
    /// The number of runs that missed it while the machine stalled.
    pub spoilt: usize,
}

impl Confirmed {
    /// Whether enough runs count, and every one met the objective.
    pub fn holds(&self) -> bool {
        self.counted >= RUNS && self.met == self.counted
    }

    /// Whether a run missed the objective without a stall.
    pub fn fails(&self) -> bool {
        self.met < self.counted
    }

    fn cpu(&self) -> f64 {
        self.measured.cpu_percent.map_or(f64::INFINITY, |cpu| cpu.value)
    }
}

/// The measurements of all candidates.
#[derive(Clone, Debug)]
pub struct Confirmation {
    /// The candidates in the order of the search.
    pub candidates: Vec<Confirmed>,
    /// The stalls of the cores meanwhile.
    pub stalls: Stalls,
}

/// The options of a confirmation besides the bench.
pub struct Confirm<'a> {
    /// Ends the confirmation early when it is set.
    pub stop: &'a AtomicBool,
    /// Called with the step that is being measured.
    pub tell: &'a mut dyn FnMut(&str),
    /// Watches the cores for stalls for this time.
    pub watch: &'a mut dyn FnMut(Duration) -> std::io::Result<Stalls>,
    /// For how long spoilt runs are repeated: [`LIMIT`].
    pub limit: Duration,
}

/// Measures the first candidates at the load of the objective. A run that misses it while the machine stalls says
/// nothing about the setting, and is repeated.
///
/// # Errors
///
/// This fails if the bench fails or is stopped.
pub fn confirm(bench: &mut dyn Bench, answer: &Answer, with: Confirm<'_>) -> Result<Confirmation, BenchError> {
    let Confirm { stop, tell, watch, limit } = with;
    let started = Instant::now();
    let objective = &answer.objective;
    let candidates = answer.candidates(CANDIDATES);
    let load = Load::Rate { qps: objective.per_s.round() as u64 };
    let mut stalls = Stalls::default();
    let mut runs: Vec<Runs> = candidates.iter().map(|_| Runs::default()).collect();
    for round in 0.. {
        let again = round >= RUNS;
        if again && started.elapsed() > limit {
            break;
        }
        let mut all_count = true;
        for (tried, runs) in candidates.iter().zip(&mut runs) {
            if runs.counted.len() >= RUNS {
                continue;
            }
            all_count = false;
            let why = if again { " (again: the machine stalled)" } else { "" };
            tell(&format!("measuring {}, run {} of {RUNS}{why}", tried.setting, runs.counted.len() + 1));
            stalls.add(&watch(WATCH)?);
            let result = bench.run(&Run {
                mode: &tried.setting.mode,
                load,
                offered_qps: Some(objective.per_s),
                run: round as u32,
                warm_up: WARM_UP,
                window: WINDOW,
                stop,
            })?;
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Invalid("stopped before everything was measured: start it again".to_owned()));
            }
            let spoilt = !meets(&result, objective) && is_spoilt(&result, objective, &stalls);
            if spoilt { &mut runs.spoilt } else { &mut runs.counted }.push(result);
        }
        if all_count {
            break;
        }
    }
    let confirmed = candidates.into_iter().zip(runs).filter_map(|(tried, runs)| {
        let Runs { counted, spoilt } = runs;
        let met = counted.iter().filter(|run| meets(run, objective)).count();
        let numbers = (counted.len(), spoilt.len());
        let measured = CellSummary::of_runs(if counted.is_empty() { spoilt } else { counted })?;
        Some(Confirmed { tried: tried.clone(), measured, met, counted: numbers.0, spoilt: numbers.1 })
    });
    Ok(Confirmation { candidates: confirmed.collect(), stalls })
}

/// The runs of a candidate.
#[derive(Default)]
struct Runs {
    counted: Vec<RunResult>,
    spoilt: Vec<RunResult>,
}

/// Whether stalls may be the reason for which a run misses the objective: the generator sent late, or the observed
/// stalls use up half of what a missed bound allows.
fn is_spoilt(run: &RunResult, objective: &Objective, stalls: &Stalls) -> bool {
    let by_stalls = |statistic, limit_us: f64| {
        let share = match statistic {
            Statistic::Avg => return stalls.mean_s() * 1e6 >= SPOILT_MEAN * limit_us,
            Statistic::P50 => 0.5,
            Statistic::P95 => 0.05,
            Statistic::P99 => 0.01,
        };
        stalls.share_beyond(limit_us / 1e6) >= SPOILT_SHARE * share
    };
    let missed = |statistic, limit_us: f64| latency_us(run, statistic).is_none_or(|us| us >= limit_us);
    let bounds = objective.slo.bounds();
    let mut missed = bounds.iter().filter(|bound| missed(bound.statistic, bound.limit_us())).peekable();
    missed.peek().is_some() && (!run.kept_up || missed.any(|bound| by_stalls(bound.statistic, bound.limit_us())))
}

/// Whether a measured run meets an objective in its mode, and carries the load.
fn meets(run: &RunResult, objective: &Objective) -> bool {
    let in_force = !matches!(run.verdict, Enforcement::Refused { .. } | Enforcement::NotInForce { .. });
    let below = |statistic, limit_us: f64| latency_us(run, statistic).is_some_and(|us| us < limit_us);
    in_force
        && carries(run, objective)
        && objective.slo.bounds().iter().all(|bound| below(bound.statistic, bound.limit_us()))
        && objective.cpu_max_percent.is_none_or(|max| run.cpu_percent.is_some_and(|cpu| cpu <= max))
}

/// Whether a run carries the load: almost all due requests were sent and answered. Arrivals are random, so in a second
/// more or fewer are due than were asked for, whatever the setting.
fn carries(run: &RunResult, objective: &Objective) -> bool {
    match &run.answers {
        Some(answers) => {
            let missing = answers.backlog + answers.unanswered + answers.lost;
            let due = answers.asked() + answers.backlog;
            answers.received > 0 && missing as f64 <= (1.0 - CARRIED_SHARE_MIN) * due as f64
        }
        None => run.qps >= carried_share_min(objective.per_s * run.window_s) * objective.per_s,
    }
}

fn latency_us(run: &RunResult, statistic: Statistic) -> Option<f64> {
    match statistic {
        Statistic::Avg => run.avg_latency_us,
        Statistic::P50 => run.p50_latency_us,
        Statistic::P95 => run.p95_latency_us,
        Statistic::P99 => run.p99_latency_us,
    }
}

/// Returns the candidates as text: simulated beside measured figures, and which one to take.
pub fn render(answer: &Answer, confirmation: &Confirmation, columns: usize) -> String {
    let confirmed = &confirmation.candidates;
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
        row.push(format!("met in {} of {} runs", one.met, one.counted) + &spoilt_text(one));
        grid.row(row);
    }
    out += &grid.to_string();
    out.push('\n');
    let (share, longest_s) = confirmation.stalls.share_and_longest();
    if confirmed.iter().any(|one| one.spoilt > 0) {
        let stalled = format!(
            "The machine stalled: the cores stood still for {:.2} % of the time (for up to {:.1} ms), or the generator was late. \
             Runs that missed the objective meanwhile do not count; they were made again for up to {} s.",
            100.0 * share,
            1e3 * longest_s,
            LIMIT.as_secs()
        );
        out += &wrap(&stalled, columns, "");
    }
    out + &wrap(&verdict(answer, confirmed), columns, "")
}

fn spoilt_text(one: &Confirmed) -> String {
    if one.spoilt == 0 { String::new() } else { format!(", {} spoilt by stalls", one.spoilt) }
}

/// Returns a sentence on which of them to take.
fn verdict(answer: &Answer, confirmed: &[Confirmed]) -> String {
    let asked = objective_text(&answer.objective);
    let holding = confirmed.iter().filter(|one| one.holds());
    let Some(cheapest) = holding.min_by(|a, b| a.cpu().total_cmp(&b.cpu())) else {
        if let Some(open) = confirmed.iter().find(|one| !one.fails()) {
            let setting = &open.tried.setting;
            return format!(
                "Nothing can be said of {setting}, neither that it meets {asked} nor that it does not: fewer than {RUNS} of its \
                 runs count. Measure when the machine stands still less, or with a bound that leaves room for that."
            );
        }
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
    use lull_sim::tune::Setting;

    use super::*;
    use crate::cell::Answers;

    fn objective(slo: &str, cpu_max_percent: Option<f64>) -> Objective {
        let slo = slo.parse().unwrap();
        Objective { slo, per_s: 10_000.0, cpu_max_percent, spare_percent: 10.0, seeds: 3, seed: 1, window_ns: 1 }
    }

    const MS: Duration = Duration::from_millis(1);

    /// A bench whose runs have these percentiles in turn. The last one is repeated.
    struct Fixed(Vec<f64>);

    impl Bench for Fixed {
        fn run(&mut self, _: &Run<'_>) -> Result<RunResult, BenchError> {
            let p99_us = if self.0.len() > 1 { self.0.remove(0) } else { self.0[0] };
            Ok(run(p99_us, 10.0, 10_000.0))
        }

        fn notes(&self) -> Vec<String> {
            Vec::new()
        }
    }

    /// Returns the confirmation of one candidate with these percentiles, on a machine that has these stalls in each 100
    /// ms.
    fn confirmed(p99_us: &[f64], stalls: &[Duration]) -> (Confirmed, String) {
        let setting = Setting::of_mode("base").unwrap();
        let tried = Tried { setting, per_s: 10_000.0, runs: Vec::new(), error: None };
        let answer = Answer {
            objective: objective("p99<200us", None),
            recommended: Some(tried.clone()),
            nearest: None,
            base: tried.clone(),
            tried: vec![tried],
            refuted: Vec::new(),
            elsewhere: Vec::new(),
        };
        let confirmation = confirm(
            &mut Fixed(p99_us.to_vec()),
            &answer,
            Confirm {
                stop: &AtomicBool::new(false),
                tell: &mut |_| (),
                watch: &mut |time| Ok(Stalls::new(time, stalls)),
                limit: Duration::from_millis(20),
            },
        );
        let confirmation = confirmation.unwrap();
        let text = render(&answer, &confirmation, 120);
        (confirmation.candidates[0].clone(), text)
    }

    #[test]
    fn a_stalled_run_is_made_again_and_a_wrong_prediction_is_not() {
        let (one, text) = confirmed(&[300.0, 100.0], &[9 * MS]);
        assert!(one.holds() && (one.met, one.counted, one.spoilt) == (3, 3, 1), "{one:?}");
        assert!(text.contains("1 spoilt by stalls") && text.contains("Confirmed"), "{text}");
        let (one, text) = confirmed(&[300.0, 100.0], &[]);
        assert!(one.fails() && (one.met, one.counted, one.spoilt) == (2, 3, 0), "{one:?}");
        assert!(text.contains("not confirmed"), "{text}");
    }

    #[test]
    fn of_a_machine_that_always_stalls_nothing_is_said() {
        let (one, text) = confirmed(&[300.0], &[9 * MS]);
        assert!(!one.holds() && !one.fails() && one.counted == 0 && one.spoilt >= RUNS, "{one:?}");
        assert!(text.contains("Nothing can be said of base") && !text.contains("not confirmed"), "{text}");
    }

    #[test]
    fn stalls_that_a_bound_has_room_for_spoil_nothing() {
        let asked = objective("p99<200us,avg<100us", None);
        let missed = RunResult { avg_latency_us: Some(50.0), ..run(250.0, 1.0, 10_000.0) };
        let seen = |stall| Stalls::new(Duration::from_secs(1), &[stall]);
        assert!(!is_spoilt(&missed, &asked, &seen(MS)), "a thousandth of the requests");
        assert!(is_spoilt(&missed, &asked, &seen(9 * MS)));
        let late = RunResult { kept_up: false, ..missed.clone() };
        assert!(is_spoilt(&late, &asked, &Stalls::default()));
        let too_dear = RunResult { avg_latency_us: Some(50.0), ..run(100.0, 99.0, 10_000.0) };
        assert!(!is_spoilt(&too_dear, &asked, &seen(9 * MS)), "stalls are no CPU time of the service's");
    }

    fn run(p99_us: f64, cpu: f64, qps: f64) -> RunResult {
        RunResult {
            p99_latency_us: Some(p99_us),
            cpu_percent: Some(cpu),
            ..RunResult::new("base", Load::Rate { qps: 10_000 }, 0, 1.0, qps)
        }
    }

    /// Returns a run of a second in which this number of requests was answered.
    fn of_requests(received: u64, answers: Answers) -> RunResult {
        RunResult { answers: Some(Answers { received, ..answers }), ..run(100.0, 10.0, received as f64) }
    }

    #[test]
    fn a_run_that_fewer_requests_came_to_by_chance_carries_the_load() {
        let asked = objective("p99<200us", None);
        // A second of Poisson arrivals at 10K has 10,000 with a standard deviation of 100.
        assert!(meets(&of_requests(9_894, Answers::default()), &asked));
        assert!(meets(&run(100.0, 10.0, 9_894.0), &asked), "the same where the generator does not tell");
        let missing = [
            Answers { backlog: 110, ..Answers::default() },
            Answers { unanswered: 110, ..Answers::default() },
            Answers { lost: 110, ..Answers::default() },
        ];
        for answers in missing {
            assert!(!meets(&of_requests(10_100, answers), &asked), "{answers:?}");
        }
        assert!(meets(&of_requests(9_894, Answers { backlog: 60, lost: 30, ..Answers::default() }), &asked));
    }

    #[test]
    fn a_run_meets_an_objective_with_its_latency_its_cpu_and_the_load() {
        let asked = objective("p99<200us", Some(40.0));
        assert!(meets(&run(199.0, 40.0, 9_950.0), &asked));
        assert!(!meets(&run(200.0, 40.0, 10_000.0), &asked), "at the bound");
        assert!(!meets(&run(100.0, 40.1, 10_000.0), &asked), "too much CPU");
        assert!(!meets(&of_requests(9_800, Answers { backlog: 200, ..Answers::default() }), &asked), "not the load");
        assert!(!meets(&run(100.0, 10.0, 9_500.0), &asked), "fewer than chance explains");
        let unmeasured = RunResult { p99_latency_us: None, ..run(1.0, 1.0, 10_000.0) };
        assert!(!meets(&unmeasured, &asked));
        let reason = "it was not".to_owned();
        assert!(!meets(&RunResult { verdict: Enforcement::NotInForce { reason }, ..run(1.0, 1.0, 10_000.0) }, &asked));
    }
}
