//! `lull doctor`.

use std::process::ExitCode;

use clap::Args;
use lull_linux::doctor::{Report, Verdict, doctor};

use crate::Failure;
use crate::apply::StateArgs;
use crate::output::{WriteError, outln};

/// Arguments of `lull doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// The device; without one, the machine is looked at.
    dev: Option<String>,
    /// A program to look at.
    #[arg(long, allow_negative_numbers = true)]
    pid: Option<i32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Examines; status 1 says that something is wrong.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let report = doctor(args.dev.as_deref(), args.pid, &args.state.options())?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&report)?;
    }
    Ok(ExitCode::from(u8::from(report.something_is_wrong())))
}

fn print(report: &Report) -> Result<(), WriteError> {
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Advice => "advice",
            Verdict::Wrong => "WRONG",
            Verdict::Unknown => "unknown",
        };
        outln!("{verdict:<8} {}: {}", check.what, check.reason)?;
        if let Some(remedy) = &check.remedy {
            outln!("{:<8} -> {remedy}", "")?;
        }
    }
    outln!()?;
    for mode in &report.modes {
        let answer = if mode.possible { "yes" } else { "no" };
        let reason = mode.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        outln!("{:<14} {answer}{reason}", mode.mode)?;
    }
    Ok(())
}
