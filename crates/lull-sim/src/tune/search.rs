//! The search of [`super::tune`].

use super::answer::{Answer, Elsewhere, Runner, TuneError};
use super::best::{best, best_with_spare};
use super::setting::{Family, Setting, around, grid};
use super::tried::{Objective, Tried};
use crate::predict::{Job, Offered, PredictError};

/// How many seeds the search uses, before confirmation.
const SEARCH_SEEDS: u32 = 2;
/// How many rounds of timeouts between those tried there are.
const REFINEMENTS: u32 = 3;
/// Neighbouring timeouts with a smaller ratio are not distinguished.
const RATIO_MIN: f64 = 1.2;
/// How many rounds of other `irq_suspend_timeout` and `defer_hard_irqs` around the best so far there are.
const REFINED_ROUNDS: u32 = 2;
/// How many settings confirmation tries at the most.
const CONFIRMED_MAX: usize = 8;
/// The loads at which the answer is tried again, as multiples of the load.
const FACTORS: [f64; 2] = [0.5, 2.0];

/// Looks for the setting that meets the objective at the least CPU, by jobs that `runner` runs.
///
/// # Errors
///
/// See [`TuneError`]. If no setting meets the objective, that is an answer and no error.
pub fn tune(objective: &Objective, runner: &mut Runner<'_>) -> Result<Answer, TuneError> {
    let mut search = Search { objective, runner };
    let mut tried = search.screen(objective.per_s)?;
    if let Some(error) = tried.iter().all(|t| t.runs.is_empty()).then(|| tried[0].error.clone()).flatten() {
        return Err(TuneError::Run(error));
    }
    for _ in 0..REFINEMENTS {
        let between = between(&tried, objective);
        if between.is_empty() {
            break;
        }
        tried.extend(search.run(between, objective.per_s, SEARCH_SEEDS)?);
    }
    for _ in 0..REFINED_ROUNDS {
        let refined = refined(&tried, objective);
        if refined.is_empty() {
            break;
        }
        tried.extend(search.run(refined, objective.per_s, SEARCH_SEEDS)?);
    }
    let mut refuted = Vec::new();
    let mut recommended = None;
    for turn in 0..CONFIRMED_MAX {
        // A setting that just meets the objective fails confirmation more often, so half of the turns are for those.
        let with_spare = best_with_spare(&tried, objective, &refuted).filter(|_| turn >= CONFIRMED_MAX / 2);
        let Some(index) = with_spare.or_else(|| best(&tried, objective, &refuted)) else { break };
        let setting = tried[index].setting.clone();
        search.extend(&mut tried[index])?;
        if tried[index].confirmed(objective) {
            recommended = Some(tried[index].clone());
            break;
        }
        refuted.push(setting);
    }
    if let Some(base) = tried.iter_mut().find(|t| t.setting.mode.name() == "base") {
        search.extend(base)?;
    }
    let base = tried[0].clone();
    let nearest = match recommended {
        Some(_) => None,
        None => search.nearest(&mut tried)?,
    };
    let mut elsewhere = Vec::new();
    if let Some(recommended) = &recommended {
        for factor in FACTORS {
            elsewhere.push(search.elsewhere(recommended, factor)?);
        }
    }
    Ok(Answer { objective: objective.clone(), recommended, nearest, base, tried, refuted, elsewhere })
}

struct Search<'a, 'r> {
    objective: &'a Objective,
    runner: &'a mut Runner<'r>,
}

impl Search<'_, '_> {
    /// Runs settings at a load, with `seeds` seeds each.
    fn run(&mut self, settings: Vec<Setting>, per_s: f64, seeds: u32) -> Result<Vec<Tried>, TuneError> {
        let tried = settings.into_iter().map(|setting| Tried { setting, per_s, runs: Vec::new(), error: None });
        let mut tried: Vec<Tried> = tried.collect();
        self.more(tried.iter_mut().collect(), seeds)?;
        Ok(tried)
    }

    /// Runs the seeds that are missing.
    fn extend(&mut self, tried: &mut Tried) -> Result<(), TuneError> {
        self.more(vec![tried], self.objective.seeds)
    }

    /// Runs further seeds, up to `seeds` each.
    fn more(&mut self, mut tried: Vec<&mut Tried>, seeds: u32) -> Result<(), TuneError> {
        let mut jobs = Vec::new();
        let mut whose = Vec::new();
        for (index, one) in tried.iter().enumerate() {
            if one.error.is_some() {
                continue;
            }
            for run in one.runs.len() as u32..seeds {
                jobs.push(Job {
                    mode: one.setting.mode.clone(),
                    offered: Offered::PerSecond(one.per_s),
                    seed: self.objective.seed.wrapping_add(u64::from(run)),
                    window_ns: self.objective.window_ns,
                });
                whose.push(index);
            }
        }
        let results = (self.runner)(&jobs).ok_or(TuneError::Stopped)?;
        for (index, result) in whose.into_iter().zip(results) {
            match result {
                Ok(figures) => tried[index].runs.push(figures),
                // A setting that fails with one seed is not judged by the others.
                Err(error) => tried[index].error = Some(error),
            }
        }
        for one in tried {
            if one.error.is_some() {
                one.runs.clear();
            }
        }
        Ok(())
    }

    /// Runs the whole grid at a load.
    fn screen(&mut self, per_s: f64) -> Result<Vec<Tried>, TuneError> {
        let grid = grid().map_err(|error| TuneError::Run(PredictError::Mode(error.to_string())))?;
        self.run(grid, per_s, SEARCH_SEEDS.min(self.objective.seeds))
    }

    /// Returns the setting nearest to the objective, run with all seeds.
    fn nearest(&mut self, tried: &mut [Tried]) -> Result<Option<Tried>, TuneError> {
        let objective = self.objective;
        let excess = |t: &Tried| t.excess(objective);
        let nearest = tried.iter_mut().filter(|t| t.carries()).min_by(|a, b| excess(a).total_cmp(&excess(b)));
        let Some(nearest) = nearest else { return Ok(None) };
        self.extend(nearest)?;
        Ok(Some(nearest.clone()))
    }

    fn elsewhere(&mut self, recommended: &Tried, factor: f64) -> Result<Elsewhere, TuneError> {
        let per_s = self.objective.per_s * factor;
        let mut tried = self.screen(per_s)?;
        if !tried.iter().any(|t| t.setting == recommended.setting) {
            tried.extend(self.run(vec![recommended.setting.clone()], per_s, SEARCH_SEEDS)?);
        }
        let best = best(&tried, &self.objective.latency_only(), &[]).map(|index| tried[index].clone());
        let mut find = |wanted: &dyn Fn(&Setting) -> bool| -> Result<Tried, TuneError> {
            let index = tried.iter().position(|t| wanted(&t.setting)).unwrap_or(0);
            self.extend(&mut tried[index])?;
            Ok(tried[index].clone())
        };
        let (recommended, base) =
            (find(&|setting| *setting == recommended.setting)?, find(&|setting| setting.mode.name() == "base")?);
        Ok(Elsewhere { factor, recommended, base, best, tried })
    }
}

/// Returns settings with other values of `irq_suspend_timeout` and `defer_hard_irqs` around the best so far, and around
/// the best of each family that has them: a setting that is not the best with its mode's own values may be with others.
fn refined(tried: &[Tried], objective: &Objective) -> Vec<Setting> {
    let mut centres: Vec<&Setting> =
        best(tried, objective, &[]).map(|index| &tried[index].setting).into_iter().collect();
    for family in [Family::Defer, Family::Suspend] {
        let members: Vec<Tried> =
            tried.iter().filter(|t| t.setting.family.is_some_and(|(of, _)| of == family)).cloned().collect();
        let nearest = || {
            let excess = |index: &usize| members[*index].excess(objective);
            (0..members.len()).min_by(|a, b| excess(a).total_cmp(&excess(b))).filter(|index| excess(index).is_finite())
        };
        if let Some(index) = best(&members, objective, &[]).or_else(nearest) {
            centres.extend(tried.iter().map(|t| &t.setting).find(|setting| **setting == members[index].setting));
        }
    }
    let mut settings: Vec<Setting> = Vec::new();
    for setting in centres.into_iter().flat_map(around) {
        if !settings.contains(&setting) && !tried.iter().any(|t| t.setting == setting) {
            settings.push(setting);
        }
    }
    settings
}

/// Returns timeouts between the best of each family and its neighbours that were tried.
fn between(tried: &[Tried], objective: &Objective) -> Vec<Setting> {
    let mut settings = Vec::new();
    for family in Family::ALL {
        let mut members: Vec<(u32, &Tried)> = tried
            .iter()
            .filter(|t| !t.setting.is_refined())
            .filter_map(|t| t.setting.family.filter(|(of, _)| *of == family).map(|(_, us)| (us, t)))
            .collect();
        members.sort_by_key(|(us, _)| *us);
        let all: Vec<Tried> = members.iter().map(|(_, t)| (*t).clone()).collect();
        let nearest = || {
            let excess = |index: &usize| all[*index].excess(objective);
            (0..all.len()).min_by(|a, b| excess(a).total_cmp(&excess(b))).filter(|index| excess(index).is_finite())
        };
        let Some(at) = best(&all, objective, &[]).or_else(nearest) else { continue };
        let neighbours = [at.checked_sub(1), Some(at + 1).filter(|next| *next < members.len())];
        for neighbour in neighbours.into_iter().flatten() {
            let (low, high) = (f64::from(members[at].0), f64::from(members[neighbour].0));
            if low.max(high) / low.min(high) < RATIO_MIN * RATIO_MIN {
                continue;
            }
            let us = two_digits(libm::sqrt(low * high));
            let known = members.iter().any(|(tried_us, _)| *tried_us == us);
            if let (false, Ok(setting)) = (known, family.member(us)) {
                settings.push(setting);
            }
        }
    }
    settings
}

/// Rounds to two digits, because nobody wants to type `suspend37.4`.
fn two_digits(value: f64) -> u32 {
    let step = if value >= 1_000.0 {
        100.0
    } else if value >= 100.0 {
        10.0
    } else {
        1.0
    };
    ((value / step).round() * step) as u32
}
