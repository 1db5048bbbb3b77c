//! Shows on standard error what runs and what is left.
//!
//! The bar is redrawn only between runs. A ticking bar would need a thread, whose CPU time and wake-ups would be part
//! of the measurement.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cell::RunResult;
use crate::plan::{Plan, Step, StepKind};

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// A bar on a terminal, and otherwise nothing.
    #[default]
    Auto,
    /// One plain line for every finished run, whether or not standard error is a terminal.
    Plain,
    /// Nothing.
    Off,
}

impl std::str::FromStr for ProgressMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(ProgressMode::Auto),
            "plain" => Ok(ProgressMode::Plain),
            "off" => Ok(ProgressMode::Off),
            _ => Err(format!("cannot read the progress mode `{text}`: write auto, plain or off")),
        }
    }
}

/// Progress through a plan. Dropping it clears the bar, so that a report printed after a signal is not mixed with it.
#[derive(Debug)]
pub struct Progress {
    plan: Plan,
    bar: Option<ProgressBar>,
    plain: bool,
    done: usize,
    started: Instant,
}

impl Progress {
    /// Starts to show the progress through `plan`.
    pub fn new(plan: &Plan, mode: ProgressMode) -> Progress {
        let on_terminal = mode == ProgressMode::Auto && std::io::stderr().is_terminal();
        Progress {
            bar: on_terminal.then(|| bar(plan.steps.len())),
            plain: mode == ProgressMode::Plain,
            plan: plan.clone(),
            done: 0,
            started: Instant::now(),
        }
    }

    /// Shows that `step` has begun.
    pub fn begin(&self, step: &Step) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{step}; {} left", minutes(self.remaining())));
        }
    }

    /// Shows that `step` is done. `result` is `None` if it has none.
    pub fn end(&mut self, step: &Step, result: Option<&RunResult>) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done as u64);
        }
        if self.plain {
            let line = line(&self.plan, self.done, self.remaining(), step, result);
            // Standard error may be closed, which is no reason to stop measuring.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// Shows a message above the bar, or as a line of its own. It is shown in every mode except [`ProgressMode::Off`],
    /// and `Auto` without a terminal.
    pub fn say(&self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.println(message);
        } else if self.plain {
            let _ = writeln!(std::io::stderr(), "{message}");
        }
    }

    /// Returns the time left, estimated from how long the steps so far took.
    pub fn remaining(&self) -> Duration {
        self.plan.remaining(self.done, self.started.elapsed())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{bar:24} {pos}/{len} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        // The template is a constant that the tests draw, and the default style would do as well.
        Err(_) => bar,
    }
}

/// Returns one plain line for a step that is done.
fn line(plan: &Plan, done: usize, left: Duration, step: &Step, result: Option<&RunResult>) -> String {
    let steps = plan.steps.len();
    let found = match result {
        None => "no result".to_string(),
        Some(run) => {
            let latency = match (step.kind, run.p99_latency_us) {
                (StepKind::Measure, Some(p99)) => format!(", p99 {p99:.0} us"),
                _ => String::new(),
            };
            let verdict = if run.verdict.shows_mode() { String::new() } else { format!(", {}", run.verdict) };
            format!("{:.0} queries/s{latency}{verdict}", run.qps)
        }
    };
    format!("[{done}/{steps}] {step}: {found}; {} left", minutes(left))
}

/// Formats a time: `1:05` or `12 s`.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    if seconds < 60 { format!("{seconds} s") } else { format!("{}:{:02}", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Enforcement, Load};
    use crate::plan::{Asked, LIMIT_DEFAULT};

    #[test]
    fn a_plain_line_says_what_ran_and_what_is_left() {
        let modes = vec!["base".to_string(), "suspend20".to_string()];
        let plan = Plan::fit(modes, vec![Load::Max], Asked::default(), LIMIT_DEFAULT).unwrap();
        let step = &plan.steps[1];
        let mut run = RunResult { p99_latency_us: Some(151.4), ..RunResult::new("suspend20", Load::Max, 0, 1.0, 5e4) };
        assert_eq!(
            line(&plan, 2, Duration::from_secs(65), step, Some(&run)),
            "[2/10] suspend20 at MAX, run 1: 50000 queries/s, p99 151 us; 1:05 left"
        );
        run.verdict = Enforcement::not_in_force("no suspension");
        assert!(line(&plan, 2, Duration::ZERO, step, Some(&run)).contains(", not in force; 0 s left"));
        assert!(line(&plan, 2, Duration::ZERO, step, None).contains("no result"));
    }

    #[test]
    fn the_bar_is_drawn_and_counts() {
        assert!(ProgressStyle::with_template("{bar:24} {pos}/{len} {wide_msg}").is_ok());
        let plan = Plan::fit(vec!["base".to_string()], vec![Load::Max], Asked::default(), LIMIT_DEFAULT).unwrap();
        let mut progress = Progress::new(&plan, ProgressMode::Off);
        progress.begin(&plan.steps[0]);
        progress.end(&plan.steps[0], None);
        progress.say("heard by nobody");
        assert!(progress.remaining() < plan.total());
    }
}
