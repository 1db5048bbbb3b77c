//! An objective, and how a setting that was tried meets it.

use lull_slo::Slo;

use super::figures::{Figures, us_text};
use super::setting::Setting;
use crate::predict::PredictError;

/// The objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The bounds of latency.
    pub slo: Slo,
    /// The load, in requests per second.
    pub per_s: f64,
    /// CPU that the service's cores may use at most, in percent.
    pub cpu_max_percent: Option<f64>,
    /// How far below its latency bounds a setting should stay, in percent of them; settings that do are preferred.
    pub spare_percent: f64,
    /// How many seeds confirm a recommendation.
    pub seeds: u32,
    /// The first seed.
    pub seed: u64,
    /// Virtual time that a run counts, in nanoseconds.
    pub window_ns: u64,
}

impl Objective {
    /// Returns the same objective without the limit of CPU, for other loads, since that limit belongs to the load that
    /// was named.
    pub fn latency_only(&self) -> Objective {
        Objective { cpu_max_percent: None, ..self.clone() }
    }

    /// Returns the same objective with the bounds of latency lowered by the spare.
    pub(super) fn with_spare(&self) -> Objective {
        Objective { slo: self.slo.scaled(1.0 - self.spare_percent / 100.0), ..self.clone() }
    }
}

/// The share of the load that a setting has to serve.
pub const CARRIED_SHARE_MIN: f64 = 0.99;

/// Returns the least share of the load that shows that a setting carries it, with this many requests: arrivals are
/// random, so the number of requests deviates by chance as well.
pub fn carried_share_min(requests: f64) -> f64 {
    CARRIED_SHARE_MIN - 3.0 / libm::sqrt(requests.max(1.0))
}

/// A setting at a load, with the figures of each seed.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The setting.
    pub setting: Setting,
    /// The load, in requests per second.
    pub per_s: f64,
    /// The runs, by seed; empty if it could not be run.
    pub runs: Vec<Figures>,
    /// The reason why it could not be run.
    pub error: Option<PredictError>,
}

impl Tried {
    /// Returns the mean of a figure over its seeds; NaN without a run.
    pub fn mean(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        self.runs.iter().map(of).sum::<f64>() / self.runs.len() as f64
    }

    /// Returns the value that one further seed stays below with 95 %: the mean, plus Student's t of the spread over its
    /// seeds. With one seed it is the mean.
    pub fn upper(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        let (count, mean) = (self.runs.len() as f64, self.mean(&of));
        if self.runs.len() < 2 {
            return mean;
        }
        let variance = self.runs.iter().map(|run| (of(run) - mean).powi(2)).sum::<f64>() / (count - 1.0);
        mean + student_t(self.runs.len() - 1) * libm::sqrt(variance * (1.0 + 1.0 / count))
    }

    /// Returns the share of the load that was answered.
    pub fn carried(&self) -> f64 {
        self.mean(|run| run.per_s) / self.per_s
    }

    /// Whether a run had no answer, so that it has no latency.
    fn has_a_silent_run(&self) -> bool {
        self.runs.iter().any(|run| run.answers == 0)
    }

    /// Whether it answers the requests that come, within the noise of arrivals.
    fn keeps_up(&self) -> bool {
        let requests = self.per_s * self.runs.iter().map(|run| run.window_ns).sum::<u64>() as f64 / 1e9;
        self.carried() >= carried_share_min(requests)
    }

    /// Whether it carries the load, as each of its runs shows.
    pub fn carries(&self) -> bool {
        !self.runs.is_empty() && !self.has_a_silent_run() && self.keeps_up()
    }

    /// Whether its runs are too short for such a low load: it keeps up, but some run has no answer.
    pub fn ran_too_short(&self) -> bool {
        self.has_a_silent_run() && self.keeps_up()
    }

    /// Returns how far it is from the objective: the largest ratio of a value to its limit, which is 1 or less if all
    /// hold on average. It is infinite if the setting does not carry the load.
    pub fn excess(&self, objective: &Objective) -> f64 {
        if !self.carries() {
            return f64::INFINITY;
        }
        self.ratios(objective, Tried::mean_of).fold(0.0, f64::max)
    }

    /// Whether every seed meets every bound, and one further seed would with 95 %.
    pub fn confirmed(&self, objective: &Objective) -> bool {
        let each = |run: &Figures| {
            objective.slo.bounds().iter().all(|bound| run.latency_us(bound.statistic) < bound.limit_us())
                && objective.cpu_max_percent.is_none_or(|max| run.cpu_percent <= max)
        };
        self.carries() && self.runs.iter().all(each) && self.ratios(objective, Tried::upper_of).all(|ratio| ratio < 1.0)
    }

    /// Returns the bound that it is farthest from meeting, as a reason: `p99 is 412us`.
    pub fn worst(&self, objective: &Objective) -> String {
        if let Some(error) = &self.error {
            return error.to_string();
        }
        if self.ran_too_short() {
            return "a run has no answer".to_owned();
        }
        if !self.carries() {
            return format!("it answers {:.0} % of the load", 100.0 * self.carried());
        }
        let mut worst = (0.0, String::new());
        for bound in objective.slo.bounds() {
            let us = self.mean(|run| run.latency_us(bound.statistic));
            if us / bound.limit_us() > worst.0 {
                worst = (us / bound.limit_us(), format!("{} is {}", bound.statistic, us_text(us)));
            }
        }
        if let Some(max) = objective.cpu_max_percent {
            let cpu = self.mean(|run| run.cpu_percent);
            if cpu / max > worst.0 {
                worst = (cpu / max, format!("CPU is {cpu:.0} %"));
            }
        }
        worst.1
    }

    fn mean_of(&self, of: &dyn Fn(&Figures) -> f64) -> f64 {
        self.mean(of)
    }

    fn upper_of(&self, of: &dyn Fn(&Figures) -> f64) -> f64 {
        self.upper(of)
    }

    fn ratios(
        &self,
        objective: &Objective,
        value: impl Fn(&Tried, &dyn Fn(&Figures) -> f64) -> f64,
    ) -> impl Iterator<Item = f64> {
        let latencies: Vec<f64> = objective
            .slo
            .bounds()
            .iter()
            .map(|bound| value(self, &|run| run.latency_us(bound.statistic)) / bound.limit_us())
            .collect();
        // CPU may reach its limit; latency has to stay below.
        let cpu = objective.cpu_max_percent.map(|max| value(self, &|run| run.cpu_percent) / (max + 1e-6));
        latencies.into_iter().chain(cpu)
    }
}

/// Returns the one-sided 95 % quantile of Student's t (printed tables).
fn student_t(degrees_of_freedom: usize) -> f64 {
    const TABLE: [f64; 20] = [
        6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746,
        1.740, 1.734, 1.729, 1.725,
    ];
    TABLE.get(degrees_of_freedom.saturating_sub(1)).copied().unwrap_or(1.725)
}
