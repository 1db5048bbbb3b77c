//! `lull doctor`.

mod groups;
mod user_plane;
mod xdp;

use std::process::ExitCode;

use clap::Args;
use lull_linux::doctor::{ModeVerdict, Report, Verdict, doctor};

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{WriteError, outln};
use crate::target::Target;

/// Arguments of `lull doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// The device, or the process of a program; without one, the machine is looked at. xdp:DEV says what AF_XDP has on DEV: it is
    /// opened for a moment, with a program that takes no frame. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    target: Option<Target>,
    /// A program to examine beside the device.
    #[arg(long, allow_negative_numbers = true)]
    pid: Option<i32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Examines; status 1 means that a check has failed.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let (dev, pid) = match (&args.target, args.pid) {
        (Some(Target::Process(pid)), Some(other)) => {
            return Err(format!("cannot look at two programs, {pid} and {other}: leave one out").into());
        }
        (Some(Target::Process(pid)), None) => {
            (None, Some(i32::try_from(*pid).map_err(|_| format!("no process {pid}"))?))
        }
        (Some(Target::Device(dev)), pid) => (Some(dev.as_str()), pid),
        (None, pid) => (None, pid),
    };
    let report = match dev.and_then(|dev| dev.strip_prefix("xdp:")) {
        Some(_) if pid.is_some() => return Err("cannot look at a program with xdp:DEV: leave --pid out".into()),
        Some(spec) => xdp::examine(spec)?,
        None => {
            let user_plane = pid.and_then(user_plane::check);
            // The settings of such a process in the kernel matter only if a device of the kernel's is examined as well.
            let is_lulls_alone = user_plane.is_some() && dev.is_none();
            let mut report = doctor(dev, pid.filter(|_| !is_lulls_alone), &args.state.options())?;
            if is_lulls_alone {
                report.modes.clear();
            }
            report.checks.extend(user_plane);
            report.checks.extend(groups::checks(dev, pid));
            report
        }
    };
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
    if !report.modes.is_empty() {
        outln!()?;
    }
    for (modes, possible, reason) in by_reason(&report.modes) {
        let answer = if possible { "yes" } else { "no" };
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        outln!("{answer:<4} {}{reason}", modes.join(", "))?;
    }
    Ok(())
}

/// Groups modes that have the same answer for the same reason, in the order of the first of each group.
fn by_reason(verdicts: &[ModeVerdict]) -> Vec<(Vec<&str>, bool, Option<&str>)> {
    let mut groups: Vec<(Vec<&str>, bool, Option<&str>)> = Vec::new();
    for verdict in verdicts {
        let (possible, reason) = (verdict.possible, verdict.reason.as_deref());
        match groups.iter_mut().find(|group| (group.1, group.2) == (possible, reason)) {
            Some(group) => group.0.push(&verdict.mode),
            None => groups.push((vec![&verdict.mode], possible, reason)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_several_modes_have_is_said_once() {
        let verdict = |mode: &str, possible, reason: Option<&str>| ModeVerdict {
            mode: mode.to_owned(),
            possible,
            reason: reason.map(str::to_owned),
        };
        let verdicts = [
            verdict("base", true, None),
            verdict("napibusy", true, Some("takes programs")),
            verdict("threaded", true, None),
            verdict("threaded-busy", false, Some("too old")),
        ];
        let groups = by_reason(&verdicts);
        assert_eq!(groups[0], (vec!["base", "threaded"], true, None));
        assert_eq!(groups.len(), 3);
    }
}
