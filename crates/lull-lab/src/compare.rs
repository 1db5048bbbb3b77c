//! The comparison: every mode over the same service under the same loads, interleaved, as one report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::Mode;

use crate::bench::{Bench, BenchError, Run};
use crate::cell::report::{CyclesBy, REPORT_SCHEMA};
use crate::cell::{Load, Report, RunResult, summarise};
use crate::machine::Machine;
use crate::plan::{Plan, Step, StepKind};
use crate::progress::{Progress, ProgressMode};

/// What a comparison is.
pub struct Comparison<'a> {
    /// What runs when.
    pub plan: &'a Plan,
    /// Time that all of it may take; what does not fit is left out and said so. `None` is as long as the plan takes.
    pub limit: Option<Duration>,
    /// What is told while it runs.
    pub progress: ProgressMode,
    /// Ends it early, with what was measured so far.
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
/// A mode that does not exist, or what the bench met before anything was measured. A failure later ends the
/// comparison early; the report says so.
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
    let mut complete = true;
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
            // A run that was cut short measured something else than the others.
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
                complete = false;
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
