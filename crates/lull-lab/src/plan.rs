//! The order of the runs, and how long they take.
//!
//! Runs are interleaved: every run goes through all loads, and at each load through all modes. So the runs to be
//! compared are neighbours in time (A B A B), and a comparison that is cut short has measured every cell as often as
//! possible.
//!
//! ```
//! use std::time::Duration; use lull_lab::cell::Load; use lull_lab::plan::{Asked, LIMIT_DEFAULT, MODES_DEFAULT, Plan};
//!
//! let modes = MODES_DEFAULT.map(String::from).to_vec(); let plan = Plan::fit(modes, Load::defaults(), Asked::default(), LIMIT_DEFAULT).expect("twelve modes fit"); assert!(plan.total() <= LIMIT_DEFAULT);
//! ```

use std::fmt;
use std::time::Duration;

use crate::cell::Load;

/// The twelve published test cases, in the published order.
pub use lull_core::mode::PUBLISHED as MODES_DEFAULT;

/// Time that a whole comparison may take if none was named.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(180);

/// The time in which a server settles in its mode before the measurement.
pub const WARM_UP_DEFAULT: Duration = Duration::from_millis(200);

/// The time that it takes to start and stop a server and its connections, around each run.
pub const OVERHEAD_DEFAULT: Duration = Duration::from_millis(150);

/// The shortest window that is useful: a p99 needs thousands of queries.
pub const WINDOW_MIN: Duration = Duration::from_millis(500);

/// The longest window that fitting chooses. Beyond it, more runs are more useful than longer ones.
pub const WINDOW_FIT_MAX: Duration = Duration::from_secs(3);

/// The most runs that fitting chooses.
pub const RUNS_FIT_MAX: u32 = 5;

/// The most runs that may be asked for.
pub const RUNS_MAX: u32 = 1000;

/// The share of the limit that fitting plans for. The rest is for wrong estimates and for the report.
const FIT_SHARE: f64 = 0.95;

/// The settings that the user named. The others are fitted.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Runs of each cell.
    pub runs: Option<u32>,
    /// Length of a measured window.
    pub window: Option<Duration>,
    /// Warm-up before each window.
    pub warm_up: Duration,
    /// The time for starting and stopping, around each run.
    pub overhead: Duration,
}

impl Default for Asked {
    fn default() -> Self {
        Asked { runs: None, window: None, warm_up: WARM_UP_DEFAULT, overhead: OVERHEAD_DEFAULT }
    }
}

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No mode was named.
    #[error("no mode given: name at least one, for example base,suspend20")]
    NoModes,
    /// No load was named.
    #[error("no load given: name at least one, for example 25%,MAX")]
    NoLoads,
    /// The number of runs is zero or more than [`RUNS_MAX`].
    #[error("{0} runs asked for: between 1 and {RUNS_MAX} are possible")]
    Runs(u32),
    /// The window has no length.
    #[error("a run of no length asked for: give it at least a tenth of a second")]
    Window,
    /// The limit is shorter than one run of each cell with the shortest window.
    #[error(
        "these modes and loads need {:.0} s even with one short run each, and {:.0} s are allowed: name fewer modes or \
         loads, or name the seconds and runs",
        needed.as_secs_f64().ceil(),
        limit.as_secs_f64()
    )]
    TooLong {
        /// The time that this would take.
        needed: Duration,
        /// The time that was allowed.
        limit: Duration,
    },
}

/// The purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// It measures the maximum of `base`, which percent loads are shares of. It is no run of a cell.
    BaseMax,
    /// It is a run of a cell.
    Measure,
}

/// One run to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The purpose.
    pub kind: StepKind,
    /// The test case.
    pub mode: String,
    /// The load.
    pub load: Load,
    /// The number of the repetition, from 0.
    pub run: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StepKind::BaseMax => write!(f, "the maximum of base"),
            StepKind::Measure => write!(f, "{} at {}, run {}", self.mode, self.load, self.run + 1),
        }
    }
}

/// All steps in order, with the time that each takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Test cases, in the table's order.
    pub modes: Vec<String>,
    /// Loads, in the table's order.
    pub loads: Vec<Load>,
    /// Runs of each cell.
    pub runs: u32,
    /// Length of a measured window.
    pub window: Duration,
    /// Warm-up before each window.
    pub warm_up: Duration,
    /// Starting and stopping around each run.
    pub overhead: Duration,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Makes a plan within `limit`. It keeps the settings that were asked for and chooses the others: first enough runs
    /// for an interval (up to [`RUNS_FIT_MAX`]), then as long a window as fits (up to [`WINDOW_FIT_MAX`]).
    ///
    /// If both runs and window are asked for, nothing is fitted, and [`total`](Plan::total) may exceed the limit.
    ///
    /// # Errors
    ///
    /// See [`PlanError`].
    pub fn fit(modes: Vec<String>, loads: Vec<Load>, asked: Asked, limit: Duration) -> Result<Plan, PlanError> {
        check(&modes, &loads, asked)?;
        let usable = limit.mul_f64(FIT_SHARE);
        let steps = |runs: u32| steps(&modes, &loads, runs);
        let window_for = |runs: u32| {
            let each = usable.div_f64(steps(runs).len() as f64);
            each.saturating_sub(asked.warm_up + asked.overhead).min(WINDOW_FIT_MAX)
        };
        let fits = |runs: u32| {
            let window = asked.window.unwrap_or(WINDOW_MIN);
            (window + asked.warm_up + asked.overhead).mul_f64(steps(runs).len() as f64) <= usable
        };
        let (runs, window) = match (asked.runs, asked.window) {
            (Some(runs), Some(window)) => (runs, window),
            (Some(runs), None) if fits(runs) => (runs, window_for(runs)),
            (None, window) => match (1..=RUNS_FIT_MAX).rev().find(|&runs| fits(runs)) {
                Some(runs) => (runs, window.unwrap_or_else(|| window_for(runs))),
                None => return Err(too_long(steps(1).len(), asked, limit)),
            },
            (Some(runs), None) => return Err(too_long(steps(runs).len(), asked, limit)),
        };
        let steps = steps(runs);
        Ok(Plan { runs, window, warm_up: asked.warm_up, overhead: asked.overhead, steps, modes, loads })
    }

    /// Returns the time that one step takes.
    pub fn step_time(&self) -> Duration {
        self.warm_up + self.window + self.overhead
    }

    /// Returns the time that all steps take.
    pub fn total(&self) -> Duration {
        self.step_time().mul_f64(self.steps.len() as f64)
    }

    /// Returns the time left after `done` steps that took `elapsed`, estimated from how long those really took.
    ///
    /// The plan's own estimate weighs as much as one step, so that the first step does not decide alone.
    pub fn remaining(&self, done: usize, elapsed: Duration) -> Duration {
        let left = self.steps.len().saturating_sub(done) as f64;
        let per_step = (elapsed + self.step_time()).div_f64(done as f64 + 1.0);
        per_step.mul_f64(left)
    }
}

fn check(modes: &[String], loads: &[Load], asked: Asked) -> Result<(), PlanError> {
    if modes.is_empty() {
        return Err(PlanError::NoModes);
    }
    if loads.is_empty() {
        return Err(PlanError::NoLoads);
    }
    match asked.runs {
        Some(runs) if !(1..=RUNS_MAX).contains(&runs) => return Err(PlanError::Runs(runs)),
        _ => {}
    }
    if asked.window.is_some_and(|window| window.is_zero()) { Err(PlanError::Window) } else { Ok(()) }
}

fn too_long(steps: usize, asked: Asked, limit: Duration) -> PlanError {
    let each = asked.window.unwrap_or(WINDOW_MIN) + asked.warm_up + asked.overhead;
    PlanError::TooLong { needed: each.mul_f64(steps as f64 / FIT_SHARE), limit }
}

fn steps(modes: &[String], loads: &[Load], runs: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    if loads.iter().any(|load| load.needs_base()) {
        steps.push(Step { kind: StepKind::BaseMax, mode: "base".to_string(), load: Load::Max, run: 0 });
    }
    for run in 0..runs {
        for &load in loads {
            for mode in modes {
                steps.push(Step { kind: StepKind::Measure, mode: mode.clone(), load, run });
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn twelve_cases_at_four_loads_fit_three_minutes_with_an_interval() {
        let plan = Plan::fit(modes(&MODES_DEFAULT), Load::defaults(), Asked::default(), LIMIT_DEFAULT).unwrap();
        assert_eq!(plan.steps.len(), 1 + 48 * plan.runs as usize);
        assert!(plan.total() <= LIMIT_DEFAULT);
        assert!(plan.runs >= 3 && plan.window >= WINDOW_MIN, "{} x {:?}", plan.runs, plan.window);
    }

    #[test]
    fn base_comes_first_and_modes_alternate() {
        let asked = Asked { runs: Some(2), window: Some(seconds(1.0)), ..Asked::default() };
        let loads = Load::parse_list("25%,MAX").unwrap();
        let plan = Plan::fit(modes(&["base", "suspend20"]), loads, asked, LIMIT_DEFAULT).unwrap();
        let order: Vec<String> = plan.steps.iter().map(ToString::to_string).collect();
        assert_eq!(
            order,
            [
                "the maximum of base",
                "base at 25%, run 1",
                "suspend20 at 25%, run 1",
                "base at MAX, run 1",
                "suspend20 at MAX, run 1",
                "base at 25%, run 2",
                "suspend20 at 25%, run 2",
                "base at MAX, run 2",
                "suspend20 at MAX, run 2",
            ]
        );
        let rates = Load::parse_list("200K").unwrap();
        let plan = Plan::fit(modes(&["defer10"]), rates, asked, LIMIT_DEFAULT).unwrap();
        assert!(plan.steps.iter().all(|s| s.kind == StepKind::Measure));
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        let fit = |runs, window: Option<f64>| {
            let asked = Asked { runs, window: window.map(seconds), ..Asked::default() };
            Plan::fit(modes(&["base", "fullbusy"]), vec![Load::Max], asked, LIMIT_DEFAULT)
        };
        let long = fit(Some(100), Some(10.0)).unwrap();
        assert_eq!((long.runs, long.window), (100, seconds(10.0)));
        assert!(long.total() > LIMIT_DEFAULT);
        let runs = fit(Some(40), None).unwrap();
        assert!(runs.runs == 40 && runs.window > seconds(1.0) && runs.total() <= LIMIT_DEFAULT);
        let window = fit(None, Some(30.0)).unwrap();
        assert_eq!((window.runs, window.window), (2, seconds(30.0)));
        let short = fit(None, None).unwrap();
        assert_eq!((short.runs, short.window), (RUNS_FIT_MAX, WINDOW_FIT_MAX));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let fit = |names: &[&str], loads, asked, limit| Plan::fit(modes(names), loads, asked, limit).unwrap_err();
        let max = || vec![Load::Max];
        assert_eq!(fit(&[], max(), Asked::default(), LIMIT_DEFAULT), PlanError::NoModes);
        assert_eq!(fit(&["base"], vec![], Asked::default(), LIMIT_DEFAULT), PlanError::NoLoads);
        let none = Asked { runs: Some(0), ..Asked::default() };
        assert_eq!(fit(&["base"], max(), none, LIMIT_DEFAULT), PlanError::Runs(0));
        let instant = Asked { window: Some(Duration::ZERO), ..Asked::default() };
        assert_eq!(fit(&["base"], max(), instant, LIMIT_DEFAULT), PlanError::Window);
        let error = fit(&MODES_DEFAULT, Load::defaults(), Asked::default(), seconds(10.0));
        assert!(
            matches!(error, PlanError::TooLong { .. }) && error.to_string().contains("10 s are allowed"),
            "{error}"
        );
    }

    #[test]
    fn the_time_left_follows_the_time_taken() {
        let asked = Asked { runs: Some(10), window: Some(seconds(0.65)), ..Asked::default() };
        let plan = Plan::fit(modes(&["base"]), vec![Load::Max], asked, LIMIT_DEFAULT).unwrap();
        assert_eq!(plan.step_time(), seconds(1.0));
        assert_eq!(plan.remaining(0, Duration::ZERO), seconds(10.0));
        // Nine steps at 2 s and the estimate of 1 s give 1.9 s for the last.
        assert_eq!(plan.remaining(9, seconds(18.0)), seconds(1.9));
        assert_eq!(plan.remaining(10, seconds(20.0)), Duration::ZERO);
    }
}
