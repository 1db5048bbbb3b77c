//! Chooses the best of the settings that were tried.

use super::setting::Setting;
use super::tried::{Objective, Tried};

/// Settings that use at most this much more CPU than the cheapest, in percent of the cores, count as equally cheap; of
/// those the one with the lowest latency is chosen.
const CPU_TIE_PERCENT: f64 = 1.0;
/// Of equally cheap settings those are left out whose cores are less idle than the others' by this much, in percent,
/// because accounting does not see every timer, which takes time nevertheless.
const BUSY_TIE_PERCENT: f64 = 5.0;
/// What values other than the mode's own have to gain: this many points of CPU, or this many percent of latency at no
/// more CPU. A smaller gain may be due to the seeds or the model's error.
const REFINED_CPU_PERCENT: f64 = 1.0;
const REFINED_LATENCY_PERCENT: f64 = 5.0;
/// How many points of CPU the spare may cost; if it costs more, a setting that just meets the objective is better.
const SPARE_CPU_PERCENT: f64 = 10.0;

/// Returns the best setting that meets the objective on average with the spare, or else the best that just meets it;
/// also the latter if the former costs much more CPU.
pub(super) fn best(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    let cpu = |index: usize| tried[index].mean(|run| run.cpu_percent);
    match (best_with_spare(tried, objective, refuted), better(tried, objective, refuted)) {
        (Some(spares), Some(just)) if cpu(spares) > cpu(just) + SPARE_CPU_PERCENT => Some(just),
        (spares, just) => spares.or(just),
    }
}

/// Returns the best setting that meets the objective on average with the spare, whatever it costs.
pub(super) fn best_with_spare(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    better(tried, &objective.with_spare(), refuted)
}

/// Returns the cheapest setting with its mode's own values, unless one with others gains enough.
fn better(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    let own = cheapest(tried, objective, refuted, &|setting| !setting.is_refined());
    let other = cheapest(tried, objective, refuted, &Setting::is_refined);
    match (own, other) {
        (Some(own), Some(other)) if !earns(&tried[other], &tried[own], objective) => Some(own),
        (own, other) => other.or(own),
    }
}

/// Returns the cheapest of the wanted settings that meets the objective with the spare, or else of those that just meet
/// it.
pub(super) fn best_of(
    tried: &[Tried],
    objective: &Objective,
    refuted: &[Setting],
    wanted: &dyn Fn(&Setting) -> bool,
) -> Option<usize> {
    cheapest(tried, &objective.with_spare(), refuted, wanted).or_else(|| cheapest(tried, objective, refuted, wanted))
}

/// Whether a setting with other values than its mode's own is enough better than one with the mode's own.
fn earns(other: &Tried, own: &Tried, objective: &Objective) -> bool {
    let statistic = objective.slo.first().statistic;
    let cpu = |t: &Tried| t.mean(|run| run.cpu_percent);
    let latency = |t: &Tried| t.mean(|run| run.latency_us(statistic));
    cpu(other) + REFINED_CPU_PERCENT <= cpu(own)
        || (cpu(other) <= cpu(own) && latency(other) <= latency(own) * (1.0 - REFINED_LATENCY_PERCENT / 100.0))
}

/// Whether two settings (CPU, latency) differ by less than other values have to gain.
pub(super) fn as_good(a: (f64, f64), b: (f64, f64)) -> bool {
    (a.0 - b.0).abs() < REFINED_CPU_PERCENT && (a.1 / b.1 - 1.0).abs() < REFINED_LATENCY_PERCENT / 100.0
}

/// Returns the cheapest that meets the objective on average, and among equally cheap ones (by accounting, and by time
/// not idle) the one with the lowest first statistic.
fn cheapest(
    tried: &[Tried],
    objective: &Objective,
    refuted: &[Setting],
    wanted: &dyn Fn(&Setting) -> bool,
) -> Option<usize> {
    let statistic = objective.slo.first().statistic;
    let meeting = || {
        let all = tried.iter().enumerate();
        all.filter(|(_, t)| wanted(&t.setting) && !refuted.contains(&t.setting) && t.excess(objective) < 1.0)
    };
    let (cpu, busy) = (|t: &Tried| t.mean(|run| run.cpu_percent), |t: &Tried| t.mean(|run| run.busy_percent));
    let cheapest = meeting().map(|(_, t)| cpu(t)).fold(f64::INFINITY, f64::min);
    let cheap = || meeting().filter(|(_, t)| cpu(t) <= cheapest + CPU_TIE_PERCENT);
    let quietest = cheap().map(|(_, t)| busy(t)).fold(f64::INFINITY, f64::min);
    cheap()
        .filter(|(_, t)| busy(t) <= quietest + BUSY_TIE_PERCENT)
        .min_by(|(_, a), (_, b)| {
            a.mean(|run| run.latency_us(statistic)).total_cmp(&b.mean(|run| run.latency_us(statistic)))
        })
        .map(|(index, _)| index)
}
