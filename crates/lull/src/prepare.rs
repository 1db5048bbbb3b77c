//! `lull prepare`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lull_linux::Session;
use lull_linux::prepare::{DEFAULT_PROFILE, Outcome, Profile, StepReport, prepare, unprepare};

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{WriteError, out, outln};

/// Arguments of `lull prepare`.
#[derive(Args)]
pub struct PrepareArgs {
    /// The device.
    #[arg(required_unless_present = "show_profile")]
    dev: Option<String>,
    /// Restore the former settings of the device and of the machine.
    #[arg(long)]
    undo: bool,
    /// A file with steps, in place of the default ones.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Print the default profile, which explains every step.
    #[arg(long)]
    show_profile: bool,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Does the steps, or undoes them; status 1 means that one was refused.
pub fn run(args: &PrepareArgs) -> Result<ExitCode, Failure> {
    let Some(dev) = args.dev.as_deref().filter(|_| !args.show_profile) else {
        out!("{DEFAULT_PROFILE}")?;
        return Ok(ExitCode::SUCCESS);
    };
    let profile = Profile::load(args.profile.as_deref())?;
    let mut session = Session::open(dev, &args.state.options())?;
    let reports =
        if args.undo { unprepare(&mut session, args.dry_run)? } else { prepare(&mut session, &profile, args.dry_run)? };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&reports)?)?;
    } else if reports.is_empty() {
        outln!(
            "nothing to do on {dev}: {}",
            if args.undo { "nothing was prepared" } else { "the profile has no steps" }
        )?;
    } else {
        reports.iter().try_for_each(|report| print(report, args.dry_run))?;
        if !args.undo && !args.dry_run && reports.iter().any(|report| report.outcome == Outcome::Changed) {
            outln!("`lull prepare {dev} --undo` gives back what was there")?;
        }
    }
    let refused = reports.iter().any(|report| matches!(report.outcome, Outcome::Refused(_)));
    Ok(ExitCode::from(u8::from(refused)))
}

fn print(report: &StepReport, dry_run: bool) -> Result<(), WriteError> {
    let (what, to) = (&report.what, &report.to);
    let from = report.from.as_deref().unwrap_or("?");
    match &report.outcome {
        Outcome::Changed if dry_run => outln!("would set  {what}: {from} -> {to}"),
        Outcome::Changed => {
            let became = report.became.as_ref().map_or_else(String::new, |became| format!(", which became {became}"));
            outln!("set        {what}: {from} -> {to}{became}")
        }
        Outcome::Already => outln!("already    {what}: {from}"),
        Outcome::Held(why) => outln!("while held {what}: {to} ({why})"),
        Outcome::Lacking(why) => outln!("lacking    {what}: {why}"),
        Outcome::Refused(why) => outln!("refused    {what}: {why}"),
    }
}
