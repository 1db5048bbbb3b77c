//! Compares a controlled run with the best fixed setting in hindsight, phase by phase.

use lull_core::{Mode, NapiSettings};
use lull_slo::{ANSWERS_MIN, ANSWERS_PER_WINDOW, Bounds, Controller, NoTimeout, Slo};

use super::run::{Chooser, Slice, TraceRun, run};
use super::trace::{Phase, Trace};
use crate::{PredictError, WorldFile};

/// How long a phase may take to settle, in nanoseconds. Windows before that are not judged.
pub const SETTLING_NS: u64 = 2_000_000_000;
/// Timeouts of the fixed settings, in microseconds.
const FIXED_US: [u64; 33] = [
    5, 7, 10, 12, 15, 17, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 110, 125, 140, 155, 170, 190, 210, 240, 270,
    300, 350, 400, 500, 600, 800,
];

/// A fixed setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Its name, which is that of a mode.
    pub name: String,
    /// The settings of every queue.
    pub settings: NapiSettings,
}

/// A window that the best fixed setting met and the controller did not.
#[derive(Clone, Debug, PartialEq)]
pub struct Missed {
    /// The phase.
    pub phase: usize,
    /// When the window ended, since the beginning of the trace, in nanoseconds.
    pub end_ns: u64,
    /// The values of the objective's first statistic in nanoseconds, with the controller and with the fixed setting.
    pub ns: (u64, u64),
    /// The timeouts in force, in nanoseconds.
    pub timeouts_ns: Vec<u64>,
}

/// How a phase went.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseScore {
    /// The best fixed setting.
    pub best: String,
    /// Whether it met the objective in every window.
    pub reachable: bool,
    /// How many windows were judged: those that had enough answers, had settled, and met the objective with the best
    /// fixed setting.
    pub judged: usize,
    /// The time that CPUs were not idle, in percent, with the controller and with the fixed setting.
    pub busy_percent: (f64, f64),
}

/// How a trace went.
#[derive(Clone, Debug)]
pub struct Score {
    /// The controlled run.
    pub run: TraceRun,
    /// The score of each phase.
    pub phases: Vec<PhaseScore>,
    /// All windows that were missed.
    pub missed: Vec<Missed>,
}

/// Why there is no score.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScoreError {
    /// The mode cannot be controlled.
    #[error(transparent)]
    Mode(#[from] NoTimeout),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] PredictError),
}

/// Returns the settings with which a controller of this mode is compared: interrupts alone, and every timeout that
/// could meet the objective, the longest first.
pub fn fixed_settings(mode: &Mode, bounds: &Bounds) -> Vec<Fixed> {
    let interrupts = Fixed { name: "base".to_owned(), settings: NapiSettings::default() };
    let family = if bounds.suspends { "suspend" } else { "defer" };
    let timeout = |us: &u64| Fixed {
        name: format!("{family}{us}"),
        settings: NapiSettings { gro_flush_timeout_ns: us * 1_000, ..settings_of(mode, family) },
    };
    let longest_us = bounds.timeout_ns_max * 10 / 9 / 1_000;
    let timeouts = FIXED_US.iter().rev().filter(|us| **us <= longest_us).map(timeout);
    std::iter::once(interrupts).chain(timeouts).collect()
}

/// Returns a published mode's settings, for what the given mode leaves open (base has no family).
fn settings_of(mode: &Mode, family: &str) -> NapiSettings {
    match mode.deferral_ns() {
        Some(_) => mode.napi,
        None => format!("{family}20").parse::<Mode>().map_or(mode.napi, |mode| mode.napi),
    }
}

/// Runs a trace with a controller and with fixed settings: interrupts alone, and timeouts from the longest that could
/// meet the objective down to the first with which every phase has a setting that met it. Shorter ones would only take
/// more CPU.
///
/// # Errors
///
/// See [`ScoreError`].
pub fn score(file: &WorldFile, mode: &Mode, slo: &Slo, trace: &Trace, seed: u64) -> Result<Score, ScoreError> {
    let bounds = Bounds::new(slo, mode, None)?;
    let fixed = fixed_settings(mode, &bounds);
    let controller = Box::new(Controller::new(slo.clone(), bounds));
    let controlled = run(file, mode, trace, seed, Chooser::Controlled(controller))?;
    let mut runs: Vec<(String, Vec<Vec<Slice>>)> = Vec::new();
    for one in &fixed {
        let run = run(file, mode, trace, seed, Chooser::Fixed(one.settings))?;
        runs.push((one.name.clone(), settled(trace, &run)));
        // Interrupts may take more CPU than any timeout, so at least one timeout has to meet the objective as well.
        let is_met = |phase: usize| runs.iter().skip(1).any(|(_, phases)| misses(slo, &phases[phase]) == 0);
        if (0..trace.phases.len()).all(is_met) {
            break;
        }
    }
    let ours = settled(trace, &controlled);
    let mut score = Score { run: controlled, phases: Vec::new(), missed: Vec::new() };
    for (phase, ours) in ours.iter().enumerate() {
        let runs: Vec<(&str, &[Slice])> =
            runs.iter().map(|(name, phases)| (name.as_str(), phases[phase].as_slice())).collect();
        score.phase(phase, slo, ours, &runs);
    }
    Ok(score)
}

/// Returns the slices of each phase that began after it had had time to settle.
fn settled(trace: &Trace, run: &TraceRun) -> Vec<Vec<Slice>> {
    let mut begin_ns = 0;
    let phase = |phase: &Phase| {
        let judged = begin_ns + SETTLING_NS..begin_ns + phase.length_ns;
        begin_ns += phase.length_ns;
        run.slices.iter().filter(|slice| judged.contains(&slice.begin_ns)).cloned().collect()
    };
    trace.phases.iter().map(phase).collect()
}

/// Returns how many windows missed the objective. Windows with few answers count here, so that a setting is not taken
/// for the best because they were ignored.
fn misses(slo: &Slo, slices: &[Slice]) -> usize {
    slices.iter().filter(|slice| slice.latency.answers >= ANSWERS_MIN && !slice.latency.meets(slo)).count()
}

fn is_judged(slice: &Slice) -> bool {
    slice.latency.answers >= ANSWERS_PER_WINDOW
}

fn busy(slices: &[Slice]) -> f64 {
    slices.iter().map(|slice| slice.busy_percent).sum::<f64>() / slices.len().max(1) as f64
}

impl Score {
    /// Judges a phase. The best fixed setting is, of those that missed the fewest windows, the one that took the least
    /// CPU.
    fn phase(&mut self, phase: usize, slo: &Slo, ours: &[Slice], runs: &[(&str, &[Slice])]) {
        let best = runs
            .iter()
            .min_by(|(_, a), (_, b)| misses(slo, a).cmp(&misses(slo, b)).then_with(|| busy(a).total_cmp(&busy(b))));
        let Some((name, best)) = best else { return };
        let mut judged = 0;
        for (slice, fixed) in ours.iter().zip(*best) {
            if !is_judged(slice) || !fixed.latency.meets(slo) {
                continue;
            }
            judged += 1;
            if !slice.latency.meets(slo) {
                let statistic = slo.first().statistic;
                self.missed.push(Missed {
                    phase,
                    end_ns: slice.end_ns,
                    ns: (slice.latency.ns(statistic), fixed.latency.ns(statistic)),
                    timeouts_ns: slice.timeouts_ns.clone(),
                });
            }
        }
        let busy_percent = (busy(ours), busy(best));
        self.phases.push(PhaseScore {
            best: (*name).to_owned(),
            reachable: misses(slo, best) == 0,
            judged,
            busy_percent,
        });
    }

    /// Returns the controller's CPU divided by that of the best fixed settings, over the phases in which these met the
    /// objective, or `None` if there is none.
    pub fn cpu_ratio(&self) -> Option<f64> {
        let reachable = || self.phases.iter().filter(|phase| phase.reachable);
        let ours: f64 = reachable().map(|phase| phase.busy_percent.0).sum();
        let best: f64 = reachable().map(|phase| phase.busy_percent.1).sum();
        reachable().next().map(|_| ours / best.max(f64::MIN_POSITIVE))
    }

    /// Windows that were judged.
    pub fn judged(&self) -> usize {
        self.phases.iter().map(|phase| phase.judged).sum()
    }
}
