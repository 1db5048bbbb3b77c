//! The comparison: every mode on the same service under the same loads, interleaved, as one report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::Mode;

use crate::bench::{Bench, BenchError, Run};
use crate::cell::report::{CyclesBy, REPORT_SCHEMA};
use crate::cell::{Load, Report, RunResult, summarise};
use crate::machine::Machine;
use crate::plan::{Plan, Step, StepKind};
use crate::progress::{Progress, ProgressMode};

/// The options of a comparison.
pub struct Comparison<'a> {
    /// The steps and their order.
    pub plan: &'a Plan,
    /// The time that all steps together may take. What does not fit is left out, and the report says so. `None` means
    /// as long as the plan takes.
    pub limit: Option<Duration>,
    /// How progress is reported.
    pub progress: ProgressMode,
    /// Ends it early, with what was measured so far, when it is set.
    pub stop: &'a AtomicBool,
    /// The command that repeats it.
    pub command: String,
    /// The device's name in the report.
    pub nic: &'a str,
    /// Worker threads of the service.
    pub workers: usize,
    /// Connections.
    pub connections: usize,
    /// The counter's frequency, for the machine's description.
    pub tsc_hz: Option<u64>,
}

/// Runs the plan on `bench`.
///
/// # Errors
///
/// This fails for a mode that does not exist, or if the bench fails before anything was measured. A later failure ends
/// the comparison early, and the report says so.
pub fn compare(bench: &mut dyn Bench, comparison: &Comparison<'_>) -> Result<Report, BenchError> {
    let Comparison { plan, stop, .. } = *comparison;
    let modes = plan.modes.iter().map(|name| name.parse::<Mode>()).collect::<Result<Vec<_>, _>>();
    let modes = modes.map_err(|error| BenchError::Invalid(error.to_string()))?;
    let base: Mode = "base".parse().map_err(|error: lull_core::ModeError| BenchError::Invalid(error.to_string()))?;
    let mut progress = Progress::new(plan, comparison.progress);
    let mut results: Vec<RunResult> = Vec::new();
    let mut base_qps_max = None;
    let mut notes = bench.notes();
    let cycles_by = match crate::hardware::availability() {
        Ok(()) => CyclesBy::Hardware,
        Err(reason) => {
            notes.push(format!("The hardware's counters of cycles and instructions are not used: {reason}."));
            CyclesBy::Clock
        }
    };
    let started = Instant::now();
    let (mut complete, mut failed) = (true, false);
    for step in &plan.steps {
        let over = comparison.limit.is_some_and(|limit| started.elapsed() + plan.step_time() > limit);
        if stop.load(Ordering::Relaxed) || over {
            complete = false;
            if over {
                notes.push("stopped at its time limit: the steps took longer than planned".to_owned());
            }
            break;
        }
        progress.begin(step);
        let work_us = crate::speed::sample().as_secs_f64() * 1e6;
        let mode = modes.iter().find(|mode| mode.name() == step.mode).unwrap_or(&base);
        match run_step(bench, plan, step, mode, base_qps_max, stop) {
            // A run that was cut short did not measure the same as the others.
            Ok(_) if stop.load(Ordering::Relaxed) => {
                complete = false;
                progress.end(step, None);
                break;
            }
            Ok(result) => {
                progress.end(step, Some(&result));
                if step.kind == StepKind::BaseMax {
                    base_qps_max = Some(result.qps);
                } else {
                    results.push(RunResult { work_us: Some(work_us), ..result });
                }
            }
            Err(error) if results.is_empty() => return Err(error),
            Err(error) => {
                (complete, failed) = (false, true);
                notes.push(format!("ended early at {step}: {error}"));
                break;
            }
        }
    }
    drop(progress);
    Ok(Report {
        schema: REPORT_SCHEMA,
        command: comparison.command.clone(),
        machine: Machine { tsc_hz: comparison.tsc_hz, ..Machine::read() },
        nic: comparison.nic.to_owned(),
        workers: comparison.workers as u32,
        connections: comparison.connections as u32,
        window_s: plan.window.as_secs_f64(),
        runs: plan.runs,
        modes: plan.modes.clone(),
        loads: plan.loads.clone(),
        base_qps_max,
        cycles_by,
        interrupted: !complete,
        failed,
        notes,
        cells: summarise(results),
    })
}

fn run_step(
    bench: &mut dyn Bench,
    plan: &Plan,
    step: &Step,
    mode: &Mode,
    base_qps_max: Option<f64>,
    stop: &AtomicBool,
) -> Result<RunResult, BenchError> {
    let offered_qps = step.load.offered_qps(base_qps_max);
    if offered_qps.is_none() && step.load != Load::Max {
        return Err(BenchError::Invalid(format!("{}: base's maximum was not measured", step.load)));
    }
    bench.run(&Run {
        mode,
        load: step.load,
        offered_qps,
        run: step.run,
        warm_up: plan.warm_up,
        window: plan.window,
        stop,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Asked;

    /// A bench that runs this often, and fails from then on.
    struct Fails(u32);

    impl Bench for Fails {
        fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| BenchError::Invalid("it fell silent".to_owned()))?;
            Ok(RunResult::new(run.mode.name(), run.load, run.run, 1.0, 1.0))
        }

        fn notes(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn compared(runs: u32, stop: bool) -> Result<Report, BenchError> {
        let (modes, loads) = (vec!["base".to_owned()], vec![Load::Max]);
        let asked = Asked { runs: Some(2), window: Some(Duration::from_millis(1)), ..Asked::default() };
        let plan = Plan::fit(modes, loads, asked, Duration::from_secs(60)).unwrap();
        let comparison = Comparison {
            plan: &plan,
            limit: None,
            progress: ProgressMode::Off,
            stop: &AtomicBool::new(stop),
            command: String::new(),
            nic: "mem",
            workers: 1,
            connections: 1,
            tsc_hz: None,
        };
        compare(&mut Fails(runs), &comparison)
    }

    #[test]
    fn a_failure_after_the_first_run_is_told_from_an_end_that_was_asked_for() {
        let of = |report: Report| (report.interrupted, report.failed);
        assert_eq!(of(compared(100, false).unwrap()), (false, false));
        assert_eq!(of(compared(1, false).unwrap()), (true, true));
        assert_eq!(of(compared(100, true).unwrap()), (true, false));
        compared(0, false).unwrap_err();
    }
}
