//! Which of the settings that were tried is the best.

use super::setting::Setting;
use super::tried::{Objective, Tried};

/// Settings that use this much more CPU than the cheapest, in percent of the cores, are taken as equally cheap: of
/// those the one with the lowest latency wins.
const CPU_TIE_PERCENT: f64 = 1.0;
/// Of equally cheap settings those are left out whose cores are idle for less than the others', by this much in
/// percent: accounting does not see every timer, which takes its time all the same.
const BUSY_TIE_PERCENT: f64 = 5.0;
/// What values other than the mode's own have to earn: so many points of CPU less, or a latency that is lower by so
/// many percent at no more CPU. A smaller gain may be due to the seeds or the model's error, and is not worth typing.
const REFINED_CPU_PERCENT: f64 = 1.0;
const REFINED_LATENCY_PERCENT: f64 = 5.0;
/// Points of CPU that something to spare may cost: beyond that, what just meets the objective is better.
const SPARE_CPU_PERCENT: f64 = 10.0;

/// The best of what meets the objective on average with something to spare, or else of what just meets it; the latter,
/// too, if the former costs much more CPU.
pub(super) fn best(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    let cpu = |index: usize| tried[index].mean(|run| run.cpu_percent);
    match (best_with_spare(tried, objective, refuted), better(tried, objective, refuted)) {
        (Some(spares), Some(just)) if cpu(spares) > cpu(just) + SPARE_CPU_PERCENT => Some(just),
        (spares, just) => spares.or(just),
    }
}

/// The best of what meets the objective on average with something to spare, whatever it costs.
pub(super) fn best_with_spare(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    better(tried, &objective.with_spare(), refuted)
}

/// The cheapest of those with their modes' own values, unless one with others is better by what it has to earn.
fn better(tried: &[Tried], objective: &Objective, refuted: &[Setting]) -> Option<usize> {
    let own = cheapest(tried, objective, refuted, &|setting| !setting.is_refined());
    let other = cheapest(tried, objective, refuted, &Setting::is_refined);
    match (own, other) {
        (Some(own), Some(other)) if !earns(&tried[other], &tried[own], objective) => Some(own),
        (own, other) => other.or(own),
    }
}

/// The cheapest of the wanted ones that meets the objective with something to spare, or else of those that just meet
/// it.
pub(super) fn best_of(
    tried: &[Tried],
    objective: &Objective,
    refuted: &[Setting],
    wanted: &dyn Fn(&Setting) -> bool,
) -> Option<usize> {
    cheapest(tried, &objective.with_spare(), refuted, wanted).or_else(|| cheapest(tried, objective, refuted, wanted))
}

/// Whether a setting with other values than its mode's is enough better than one with the mode's own.
fn earns(other: &Tried, own: &Tried, objective: &Objective) -> bool {
    let statistic = objective.slo.first().statistic;
    let cpu = |t: &Tried| t.mean(|run| run.cpu_percent);
    let latency = |t: &Tried| t.mean(|run| run.latency_us(statistic));
    cpu(other) + REFINED_CPU_PERCENT <= cpu(own)
        || (cpu(other) <= cpu(own) && latency(other) <= latency(own) * (1.0 - REFINED_LATENCY_PERCENT / 100.0))
}

/// Whether two (CPU, latency) differ by less than other values have to earn.
pub(super) fn as_good(a: (f64, f64), b: (f64, f64)) -> bool {
    (a.0 - b.0).abs() < REFINED_CPU_PERCENT && (a.1 / b.1 - 1.0).abs() < REFINED_LATENCY_PERCENT / 100.0
}

/// The cheapest that meets the objective on average, and among equally cheap ones (by accounting, and by time not idle)
/// the one with the lowest first statistic.
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
