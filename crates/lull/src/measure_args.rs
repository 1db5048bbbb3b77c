//! What all commands that measure a workload of their own share: how much they measure, and what they do with the
//! table.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_lab::case::run::{RUNS_DEFAULT, WINDOW_DEFAULT};
use lull_lab::case::{CaseTable, Effort};
use lull_lab::plan::WARM_UP_DEFAULT;
use lull_lab::progress::ProgressMode;
use lull_lab::table::TableStyle;

use crate::failure::Failure;
use crate::output::out;
use crate::outputs::Outputs;
use crate::typed::command_line;

/// Options of `flood` and `forward`.
#[derive(Args)]
pub struct MeasureArgs {
    /// Runs of each row [default: 3].
    #[arg(long)]
    pub runs: Option<u32>,
    #[command(flatten)]
    pub outputs: Outputs,
    /// What is shown while it measures: auto and plain (a line per run) or off.
    #[arg(long, default_value = "auto")]
    pub progress: ProgressMode,
}

impl MeasureArgs {
    /// Checks that the files can be written, measures, prints the table and writes it.
    pub fn run(
        &self,
        window: Option<Duration>,
        stop: &AtomicBool,
        measure: impl FnOnce(&Effort<'_>) -> Result<CaseTable, Failure>,
    ) -> Result<ExitCode, Failure> {
        run((self.runs, window, self.progress), &self.outputs, stop, measure)
    }
}

/// Returns the status of a command whose measurements are shown, complete or not: that of a command that a signal
/// ended, or that of one that failed.
pub fn ended(stop: &AtomicBool, failed: bool) -> ExitCode {
    match (stop.load(Ordering::Relaxed), failed) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    }
}

/// As [`MeasureArgs::run`], with the runs, window and progress as arguments.
pub fn run(
    (runs, window, progress): (Option<u32>, Option<Duration>, ProgressMode),
    outputs: &Outputs,
    stop: &AtomicBool,
    measure: impl FnOnce(&Effort<'_>) -> Result<CaseTable, Failure>,
) -> Result<ExitCode, Failure> {
    outputs.check()?;
    let effort = Effort {
        runs: runs.unwrap_or(RUNS_DEFAULT),
        warm_up: WARM_UP_DEFAULT,
        window: window.unwrap_or(WINDOW_DEFAULT),
        stop,
        progress,
    };
    effort.check()?;
    let mut table = measure(&effort)?;
    table.command = command_line();
    out!("{}", table.render(TableStyle::for_stdout()))?;
    outputs.write(&table)?;
    Ok(ended(stop, table.interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_on_the_way_ends_as_a_failure_unless_a_signal_ended_it() {
        let of = |stop: bool, failed: bool| format!("{:?}", ended(&AtomicBool::new(stop), failed));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!([of(false, false), of(false, true), of(true, true)], [0, 1, 130].map(code));
    }
}
