//! Which mode and which timeout for an objective at a load.
//!
//! [`tune`] looks for the setting that meets an objective at the least CPU. In order:
//!
//! 1. every mode, and a grid of timeouts, with a few seeds each;
//! 2. timeouts between those of the grid, around the best of each family;
//! 3. other values of `irq_suspend_timeout` and `defer_hard_irqs` than the modes' own around the best so far and the best of each
//!    family, twice. They are taken only if they earn it: a point of CPU, or 5 % of latency at no more CPU;
//! 4. confirmation: the best is run with all seeds. It is recommended if every seed meets every bound, and the bound
//!    that holds for one further seed with 95 % (a prediction interval) does too. If not, the next best has its turn;
//! 5. robustness: recommendation and base at half and at double the load, and what would be best there. Only latency is
//!    judged: the limit of CPU belongs to the load that was asked for.
//!
//! Settings that stay below every latency bound with something to spare are preferred ([`Objective::spare_percent`]);
//! without one, those that just meet them have their turn.
//!
//! Only a setting that carries the load can be recommended: in an open loop with one request outstanding a connection,
//! latencies stay finite in overload, and would look like an answer. Latencies within the model's error of a bound are
//! said to be so by [`Answer::margin`], which the reader should hold against how well the costs were calibrated.
//!
//! The search runs nothing itself: it hands out [`Job`]s, all that are known at a time, and takes [`Figures`].

mod search;
mod setting;
mod slo;

pub use self::search::tune;
pub use self::setting::{Family, Setting};
pub use self::slo::{Bound, Slo, SloError, Statistic};
use crate::engine::metrics::Outcome;
use crate::predict::{Job, PredictError};

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The bounds of latency.
    pub slo: Slo,
    /// The load, in requests per second.
    pub per_s: f64,
    /// CPU that the service's cores may use at most, in percent.
    pub cpu_max_percent: Option<f64>,
    /// How far below its latency bounds a setting should stay, in percent of them: settings that do are preferred.
    pub spare_percent: f64,
    /// Seeds that a recommendation is confirmed with.
    pub seeds: u32,
    /// The first seed.
    pub seed: u64,
    /// Virtual time that a run counts, in nanoseconds.
    pub window_ns: u64,
}

impl Objective {
    /// The same without the limit of CPU: what is asked of other loads, since that limit belongs to the load that was
    /// named.
    pub fn latency_only(&self) -> Objective {
        Objective { cpu_max_percent: None, ..self.clone() }
    }

    /// The same with the bounds of latency lowered by what is to be spared.
    fn with_spare(&self) -> Objective {
        Objective { slo: self.slo.scaled(1.0 - self.spare_percent / 100.0), ..self.clone() }
    }
}

/// Share of the load that a setting has to serve.
pub const CARRIED_SHARE_MIN: f64 = 0.99;

/// What a run showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests answered per second.
    pub per_s: f64,
    /// Mean latency, in microseconds.
    pub avg_us: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 95th percentile, in microseconds.
    pub p95_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// CPU of the service's cores as Linux's accounting shows it, in percent.
    pub cpu_percent: f64,
    /// How long they were not idle, charged or not, in percent: accounting does not see interrupts that come out of idle, such as a
    /// NAPI's timer.
    pub busy_percent: f64,
}

impl Figures {
    /// Of a run.
    pub fn of(outcome: &Outcome) -> Figures {
        Figures {
            per_s: outcome.qps(),
            avg_us: outcome.latency_mean_us(),
            p50_us: outcome.latency_us(50.0),
            p95_us: outcome.latency_us(95.0),
            p99_us: outcome.latency_us(99.0),
            cpu_percent: outcome.cpu.percent(),
            busy_percent: 100.0 * outcome.cpu.busy_ns() as f64
                / (outcome.cpu.busy_ns() + outcome.cpu.idle_ns).max(1) as f64,
        }
    }
}

/// A setting at a load, with what each seed showed.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The setting.
    pub setting: Setting,
    /// The load, in requests per second.
    pub per_s: f64,
    /// A run each, by seed; empty if it could not be run.
    pub runs: Vec<Figures>,
    /// Why it could not be run.
    pub error: Option<PredictError>,
}

impl Tried {
    /// The mean over its seeds of something. NaN without a run.
    pub fn mean(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        self.runs.iter().map(of).sum::<f64>() / self.runs.len() as f64
    }

    /// The highest value that one further seed stays below with 95 %: mean, plus Student's t of the spread over its
    /// seeds. Just the mean with one seed.
    pub fn upper(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        let (count, mean) = (self.runs.len() as f64, self.mean(&of));
        if self.runs.len() < 2 {
            return mean;
        }
        let variance = self.runs.iter().map(|run| (of(run) - mean).powi(2)).sum::<f64>() / (count - 1.0);
        mean + student_t(self.runs.len() - 1) * libm::sqrt(variance * (1.0 + 1.0 / count))
    }

    /// Share of the load that was answered.
    pub fn carried(&self) -> f64 {
        self.mean(|run| run.per_s) / self.per_s
    }

    /// Whether it carries the load, within the noise of arrivals.
    pub fn carries(&self) -> bool {
        !self.runs.is_empty() && self.carried() >= CARRIED_SHARE_MIN - 3.0 / libm::sqrt(self.per_s.max(1.0))
    }

    /// How far it is from the objective: the largest ratio of a value to its limit, 1 or less if all hold on average.
    /// Infinite if it does not carry the load.
    pub fn excess(&self, objective: &Objective) -> f64 {
        if !self.carries() {
            return f64::INFINITY;
        }
        self.ratios(objective, Tried::mean_of).fold(0.0, f64::max)
    }

    /// Whether every seed meets every bound, and one further would with 95 %.
    pub fn confirmed(&self, objective: &Objective) -> bool {
        let each = |run: &Figures| {
            objective.slo.bounds().iter().all(|bound| bound.statistic.of(run) < bound.limit_us())
                && objective.cpu_max_percent.is_none_or(|max| run.cpu_percent <= max)
        };
        self.carries() && self.runs.iter().all(each) && self.ratios(objective, Tried::upper_of).all(|ratio| ratio < 1.0)
    }

    /// The bound that it is farthest from meeting, as a reason: `p99 is 412us`.
    pub fn worst(&self, objective: &Objective) -> String {
        if let Some(error) = &self.error {
            return error.to_string();
        }
        if !self.carries() {
            return format!("it answers {:.0} % of the load", 100.0 * self.carried());
        }
        let mut worst = (0.0, String::new());
        for bound in objective.slo.bounds() {
            let us = self.mean(|run| bound.statistic.of(run));
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
            .map(|bound| value(self, &|run| bound.statistic.of(run)) / bound.limit_us())
            .collect();
        // CPU may reach its limit; latency has to stay below.
        let cpu = objective.cpu_max_percent.map(|max| value(self, &|run| run.cpu_percent) / (max + 1e-6));
        latencies.into_iter().chain(cpu)
    }
}

/// One-sided 95 % quantile of Student's t (printed tables).
fn student_t(degrees_of_freedom: usize) -> f64 {
    const TABLE: [f64; 20] = [
        6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746,
        1.740, 1.734, 1.729, 1.725,
    ];
    TABLE.get(degrees_of_freedom.saturating_sub(1)).copied().unwrap_or(1.725)
}

/// Microseconds to three digits: `63.6us`, `412us`, `4.25ms`.
pub fn us_text(us: f64) -> String {
    match us {
        us if us >= 9_995.0 => format!("{:.1}ms", us / 1e3),
        us if us >= 999.5 => format!("{:.2}ms", us / 1e3),
        us if us >= 99.95 => format!("{us:.0}us"),
        us => format!("{us:.1}us"),
    }
}

/// Recommendation and base at another load.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The load as a multiple of the one that was asked for.
    pub factor: f64,
    /// The recommendation there.
    pub recommended: Tried,
    /// Base there.
    pub base: Tried,
    /// What would be best there, if anything meets the objective (by the search's own runs, not confirmed).
    pub best: Option<Tried>,
    /// Everything that was tried there.
    pub tried: Vec<Tried>,
}

/// What the search found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was asked.
    pub objective: Objective,
    /// The recommended setting, with all seeds; `None` if none meets the objective.
    pub recommended: Option<Tried>,
    /// If none does: the one that comes nearest, if any carries the load.
    pub nearest: Option<Tried>,
    /// Base at the load.
    pub base: Tried,
    /// Everything that was tried at the load, in the order of trying.
    pub tried: Vec<Tried>,
    /// Settings that met the objective in the search and failed in confirmation.
    pub refuted: Vec<Setting>,
    /// Half and double the load; empty without a recommendation.
    pub elsewhere: Vec<Elsewhere>,
}

impl Answer {
    /// The settings that carry the load and that no other beats in both CPU and the objective's first statistic, by
    /// CPU.
    pub fn frontier(&self) -> Vec<&Tried> {
        let statistic = self.objective.slo.first().statistic;
        let at = |tried: &Tried| (tried.mean(|run| run.cpu_percent), tried.mean(|run| statistic.of(run)));
        // Other values than a mode's own that make no difference to speak of would take the mode's own place.
        let as_own = |tried: &&Tried| {
            let own = tried.setting.unrefined();
            let recommended = self.recommended.as_ref().is_some_and(|one| one.setting == tried.setting);
            let own =
                self.tried.iter().filter(|_| tried.setting.is_refined() && !recommended).find(|t| t.setting == own);
            own.is_some_and(|own| search::as_good(at(tried), at(own)))
        };
        let mut carrying: Vec<&Tried> = self.tried.iter().filter(|t| t.carries() && !as_own(t)).collect();
        carrying.sort_by(|a, b| at(a).0.total_cmp(&at(b).0).then(at(a).1.total_cmp(&at(b).1)));
        let mut lowest = f64::INFINITY;
        carrying.retain(|tried| {
            let better = at(tried).1 < lowest;
            lowest = lowest.min(at(tried).1);
            better
        });
        carrying
    }

    /// The cheapest setting that meets the objective (by the search's own runs) at the load and at every other that was
    /// tried: what to take if the load moves that far. `None` if there is none, or no other load was tried.
    pub fn steady(&self) -> Option<&Tried> {
        let latency_only = self.objective.latency_only();
        let meets_at = |at: &Elsewhere, setting: &Setting| {
            at.tried.iter().any(|tried| tried.setting == *setting && tried.excess(&latency_only) < 1.0)
        };
        let steady = |tried: &&Tried| {
            !self.elsewhere.is_empty()
                && tried.excess(&self.objective) < 1.0
                && self.elsewhere.iter().all(|at| meets_at(at, &tried.setting))
        };
        let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
        self.tried.iter().filter(steady).min_by(|a, b| cpu(a).total_cmp(&cpu(b)))
    }

    /// The best setting that was tried with other values of `irq_suspend_timeout` or `defer_hard_irqs` than its mode's own, of those
    /// that meet the objective (by the search's own runs), and the best with the mode's own; either may be missing.
    pub fn refinement(&self) -> (Option<&Tried>, Option<&Tried>) {
        let best = |wanted: &dyn Fn(&Setting) -> bool| {
            search::best_of(&self.tried, &self.objective, &self.refuted, wanted).map(|index| &self.tried[index])
        };
        (best(&Setting::is_refined), best(&|setting| !setting.is_refined()))
    }

    /// Whether the recommendation keeps every latency bound with what was to be spared.
    pub fn spares(&self) -> bool {
        let tight = self.objective.with_spare();
        self.recommended.as_ref().is_some_and(|tried| tried.excess(&tight) < 1.0)
    }

    /// How far the recommendation stays below the tightest bound, in percent of the bound.
    pub fn margin(&self) -> Option<f64> {
        let recommended = self.recommended.as_ref()?;
        let tightest = self
            .objective
            .slo
            .bounds()
            .iter()
            .map(|bound| recommended.mean(|run| bound.statistic.of(run)) / bound.limit_us())
            .fold(0.0, f64::max);
        Some(100.0 * (1.0 - tightest))
    }
}

/// Why there is no answer at all.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TuneError {
    /// Nothing could be run; the reason of the first.
    #[error(transparent)]
    Run(PredictError),
    /// The one who runs jobs gave up.
    #[error("stopped before there was an answer: start it again")]
    Stopped,
}

/// Runs jobs, all or none: `None` if it was stopped.
pub type Runner<'a> = dyn FnMut(&[Job]) -> Option<Vec<Result<Figures, PredictError>>> + 'a;
