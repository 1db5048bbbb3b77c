//! The result of a search, and what can be read from it.

use lull_slo::Bound;

use super::best;
use super::figures::Figures;
use super::setting::Setting;
use super::tried::{Objective, Tried};
use crate::WorldFile;
use crate::predict::{Job, PredictError};
use lull_units::time_text;

/// The recommendation and base at another load.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The load as a multiple of the one that was asked for.
    pub factor: f64,
    /// The recommendation at that load.
    pub recommended: Tried,
    /// Base at that load.
    pub base: Tried,
    /// The best setting at that load, if any meets the objective (by the search's own runs, not confirmed).
    pub best: Option<Tried>,
    /// Everything that was tried at that load.
    pub tried: Vec<Tried>,
}

/// The result of the search.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The objective.
    pub objective: Objective,
    /// The recommended setting, with all seeds; `None` if none meets the objective.
    pub recommended: Option<Tried>,
    /// If none does, the one that comes nearest, if any carries the load.
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
    /// Returns the settings that carry the load and that no other beats in both CPU and the objective's first
    /// statistic, by CPU.
    pub fn frontier(&self) -> Vec<&Tried> {
        let statistic = self.objective.slo.first().statistic;
        let at = |tried: &Tried| (tried.mean(|run| run.cpu_percent), tried.mean(|run| run.latency_us(statistic)));
        // A setting with other values than its mode's own that make hardly any difference would take the place of the
        // mode's own.
        let as_own = |tried: &&Tried| {
            let own = tried.setting.unrefined();
            let recommended = self.recommended.as_ref().is_some_and(|one| one.setting == tried.setting);
            let own =
                self.tried.iter().filter(|_| tried.setting.is_refined() && !recommended).find(|t| t.setting == own);
            own.is_some_and(|own| best::as_good(at(tried), at(own)))
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

    /// Returns the first settings to try on a real machine: the recommendation, then others that met the objective in
    /// the search, the cheapest first, then those that come nearest to it.
    pub fn candidates(&self, most: usize) -> Vec<&Tried> {
        let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
        let excess = |tried: &Tried| tried.excess(&self.objective);
        let is_recommended = |tried: &Tried| self.recommended.as_ref().is_some_and(|one| one.setting == tried.setting);
        let others = self.tried.iter().filter(|tried| tried.carries() && !is_recommended(tried));
        let others = others.filter(|tried| !self.refuted.contains(&tried.setting));
        let (mut meeting, mut near): (Vec<&Tried>, Vec<&Tried>) = others.partition(|tried| excess(tried) < 1.0);
        meeting.sort_by(|a, b| cpu(a).total_cmp(&cpu(b)));
        near.sort_by(|a, b| excess(a).total_cmp(&excess(b)));
        self.recommended.iter().chain(meeting).chain(near).take(most).collect()
    }

    /// Returns the cheapest setting that meets the objective (by the search's own runs) at the load and at every other
    /// that was tried, which is the one to take if the load moves that far. It is none that confirmation refuted.
    /// Returns `None` if there is none, or no other load was tried.
    pub fn steady(&self) -> Option<&Tried> {
        let latency_only = self.objective.latency_only();
        let meets_at = |at: &Elsewhere, setting: &Setting| {
            at.tried.iter().any(|tried| tried.setting == *setting && tried.excess(&latency_only) < 1.0)
        };
        let steady = |tried: &&Tried| {
            !self.elsewhere.is_empty()
                && !self.refuted.contains(&tried.setting)
                && tried.excess(&self.objective) < 1.0
                && self.elsewhere.iter().all(|at| meets_at(at, &tried.setting))
        };
        let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
        self.tried.iter().filter(steady).min_by(|a, b| cpu(a).total_cmp(&cpu(b)))
    }

    /// Returns, of the settings that meet the objective (by the search's own runs), the best with other values of
    /// `irq_suspend_timeout` or `defer_hard_irqs` than its mode's own, and the best with the mode's own; either may be
    /// missing.
    pub fn refinement(&self) -> (Option<&Tried>, Option<&Tried>) {
        let best = |wanted: &dyn Fn(&Setting) -> bool| {
            best::best_of(&self.tried, &self.objective, &self.refuted, wanted).map(|index| &self.tried[index])
        };
        (best(&Setting::is_refined), best(&|setting| !setting.is_refined()))
    }

    /// Whether the recommendation stays below every latency bound by the spare.
    pub fn spares(&self) -> bool {
        let tight = self.objective.with_spare();
        self.recommended.as_ref().is_some_and(|tried| tried.excess(&tight) < 1.0)
    }

    /// Returns the alternative to the spare, by the search's own runs: for a recommendation that keeps it, the cheapest
    /// setting that meets the objective without, if that takes at least a point of CPU less; for one that does not, the
    /// best that keeps it.
    pub fn near_miss(&self) -> Option<&Tried> {
        let recommended = self.recommended.as_ref()?;
        let cpu = |tried: &Tried| tried.mean(|run| run.cpu_percent);
        if !self.spares() {
            let index = best::best_with_spare(&self.tried, &self.objective, &self.refuted)?;
            return Some(&self.tried[index]);
        }
        let cheaper = |tried: &&Tried| cpu(tried) <= cpu(recommended) - 1.0 && tried.excess(&self.objective) < 1.0;
        let known = |tried: &&Tried| !self.refuted.contains(&tried.setting);
        self.tried.iter().filter(cheaper).filter(known).min_by(|a, b| cpu(a).total_cmp(&cpu(b)))
    }

    /// Returns how far the recommendation stays below the tightest bound, in percent of the bound.
    pub fn margin(&self) -> Option<f64> {
        let recommended = self.recommended.as_ref()?;
        let tightest = self
            .objective
            .slo
            .bounds()
            .iter()
            .map(|bound| recommended.mean(|run| run.latency_us(bound.statistic)) / bound.limit_us())
            .fold(0.0, f64::max);
        Some(100.0 * (1.0 - tightest))
    }
}

/// The reason why there is no answer at all.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The network alone takes longer than a bound allows.
    #[error(
        "no setting meets {bound}: the network alone takes {} there and back (network.latency, and the wire at \
         nic.speed); allow more, or describe a nearer client",
        time_text(*floor_ns)
    )]
    Floor {
        /// The bound.
        bound: Bound,
        /// The time of the network, in nanoseconds.
        floor_ns: u64,
    },
    /// Nothing could be run; this is the reason for the first job.
    #[error(transparent)]
    Run(PredictError),
    /// The caller stopped the jobs.
    #[error("stopped before there was an answer: start it again")]
    Stopped,
}

/// Checks that the network of a world leaves some time for each bound of an objective.
///
/// # Errors
///
/// This fails with [`TuneError::Floor`] for the first bound for which it does not.
pub fn reachable(file: &WorldFile, objective: &Objective) -> Result<(), TuneError> {
    let Some(floor_ns) = file.floor_ns() else { return Ok(()) };
    match objective.slo.bounds().iter().find(|bound| bound.limit_ns <= floor_ns) {
        Some(&bound) => Err(TuneError::Floor { bound, floor_ns }),
        None => Ok(()),
    }
}

/// Runs jobs, all or none; returns `None` if it was stopped.
pub type Runner<'a> = dyn FnMut(&[Job]) -> Option<Vec<Result<Figures, PredictError>>> + 'a;
