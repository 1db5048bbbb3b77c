//! `lull undo`.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use lull_linux::apply::{Options, undo_and_forget, undo_and_forget_diff, undo_diff};
use lull_linux::device::QueueKey;
use lull_linux::netdev::Netdev;
use lull_linux::state::{Elsewhere, Patience, Whereabouts, elsewhere};
use lull_linux::{Error, Session, Undone};
use serde::Serialize;

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{WriteError, outln, print_changes, say};
use crate::process::change;
use crate::target::Target;

/// How long to wait for another lull that works on the device; a change takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Arguments of `lull undo`.
#[derive(Args)]
pub struct UndoArgs {
    /// The device, or the process that runs lull's user plane. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    target: Option<Target>,
    /// All devices of this network namespace. It also says what was applied to devices of other namespaces, and removes
    /// the state files of devices that are gone.
    #[arg(long, conflicts_with = "target")]
    all: bool,
    /// Forget what cannot be restored: the settings of queues that were removed for good, and the state file of a
    /// device that was deleted.
    #[arg(long)]
    forget: bool,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// What was undone on one device of all.
#[derive(Serialize)]
struct OnDevice {
    device: String,
    #[serde(flatten)]
    undone: Option<Undone>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// An entry of what `--all --json` prints.
#[derive(Serialize)]
#[serde(untagged)]
enum OfAll {
    Here(OnDevice),
    Elsewhere(Elsewhere),
}

/// Gives one device, or all, back what they had. What a lull that was killed has left recording costs every poll of the machine:
/// it goes, too.
pub fn run(args: &UndoArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    if args.target.is_none() && !args.all {
        return Err("cannot tell what is to be undone: name a device or a process, or say --all for all devices".into());
    }
    let options = args.state.options();
    if !args.dry_run {
        for name in lull_linux::polls::remove_left_over() {
            say!("lull: removed the trace instance {name}, which a lull that was killed had left recording");
        }
    }
    let dev = match &args.target {
        Some(Target::Device(dev)) => dev,
        Some(Target::Process(pid)) => return process(*pid, args),
        None => return all(args, &options, stop),
    };
    let mut session = Session::open(dev, &options)?;
    let was_applied = is_applied(&session);
    let undone = undo(args, &mut session, stop)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&undone)?)?;
    } else {
        print(dev, &undone, was_applied, args.dry_run)?;
    }
    Ok(complete(&session, &undone))
}

/// Restores what the NAPIs of a process with a user plane had before `lull set`.
fn process(pid: u32, args: &UndoArgs) -> Result<ExitCode, Failure> {
    if args.forget {
        return Err(format!("cannot use --forget with process {pid}: what it had before ends with it").into());
    }
    let changes = change::undo(pid, args.dry_run)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&Undone { changes, ..Undone::default() })?)?;
    } else if changes.is_empty() {
        outln!("nothing was set on process {pid}")?;
    } else {
        print_changes(&changes, if args.dry_run { "would set " } else { "" })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Undoes device after device: one that fails does not keep the others from it.
fn all(args: &UndoArgs, options: &Options, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    let (mut done, mut status) = (Vec::new(), ExitCode::SUCCESS);
    for link in Netdev::new().links()? {
        let mut session = match Session::open(&link.name, options) {
            // The device was listed a moment ago, and is gone now.
            Err(Error::UnknownDevice { .. }) => continue,
            session => session?,
        };
        if !is_applied(&session) {
            continue;
        }
        match undo(args, &mut session, stop) {
            Ok(undone) => {
                if complete(&session, &undone) != ExitCode::SUCCESS {
                    status = ExitCode::FAILURE;
                }
                if !args.json {
                    print(&link.name, &undone, true, args.dry_run)?;
                }
                done.push(OnDevice { device: link.name, undone: Some(undone), error: None });
            }
            Err(error) => {
                say!("lull: {error}");
                done.push(OnDevice { device: link.name, undone: None, error: Some(error.to_string()) });
                status = ExitCode::FAILURE;
            }
        }
    }
    let others = elsewhere(options, args.dry_run)?;
    if args.json {
        let all = done.into_iter().map(OfAll::Here).chain(others.into_iter().map(OfAll::Elsewhere));
        outln!("{}", serde_json::to_string_pretty(&all.collect::<Vec<_>>())?)?;
        return Ok(status);
    }
    others.iter().try_for_each(|other| print_elsewhere(other, args.dry_run))?;
    if done.is_empty() && status == ExitCode::SUCCESS {
        outln!("nothing was applied to a device of this network namespace")?;
    }
    Ok(status)
}

fn print_elsewhere(other: &Elsewhere, dry_run: bool) -> Result<(), WriteError> {
    let Elsewhere { device, mode, file, whereabouts } = other;
    let mode = mode.as_deref().unwrap_or("what `lull prepare` set");
    match whereabouts {
        Whereabouts::Namespace { remedy: Some(remedy), kept_by } => {
            outln!("{device} of another network namespace ({kept_by}) keeps {mode}: `{remedy}`")
        }
        Whereabouts::Namespace { remedy: None, kept_by } => outln!(
            "{device} of another network namespace keeps {mode}: only {kept_by} keeps that namespace, which no command \
             can enter; both go with it"
        ),
        Whereabouts::Gone => {
            let verb = if dry_run { "would forget" } else { "forgot" };
            outln!("{verb} {}: {device}, or its network namespace, is gone", file.display())
        }
        Whereabouts::Unknown { reason } => {
            outln!("{device} is not in this network namespace, and {} was left: {reason}", file.display())
        }
    }
}

/// Whether there is something to undo, or a state file that cannot be used.
fn is_applied(session: &Session) -> bool {
    session.state().map_or(true, |state| state.is_some_and(|state| state.is_applied()))
}

fn undo(args: &UndoArgs, session: &mut Session, stop: &AtomicBool) -> Result<Undone, Error> {
    match (args.dry_run, args.forget) {
        (true, false) => return undo_diff(session),
        (true, true) => return undo_and_forget_diff(session),
        _ => {}
    }
    // Without a state file there is nothing to do, and no directory has to be made for the lock.
    if !is_applied(session) {
        return Ok(Undone::default());
    }
    session.wait_for_lock(Patience { limit: LOCK_WAIT, stop }, &mut |line| say!("lull: {line}"))?;
    if args.forget { undo_and_forget(session) } else { lull_linux::undo(session) }
}

fn print(dev: &str, undone: &Undone, was_applied: bool, dry_run: bool) -> Result<(), WriteError> {
    let prefix = if dry_run { "would set " } else { "" };
    undone.queues.iter().try_for_each(|queues| outln!("{prefix}{queues}"))?;
    undone.flows.iter().try_for_each(|flows| outln!("{prefix}{flows}"))?;
    print_changes(&undone.changes, prefix)?;
    let verb = if dry_run { "would forget" } else { "forgot" };
    if !undone.forgotten.is_empty() {
        outln!("{verb} what queue {} of {dev} had: it shows no NAPI now", list(&undone.forgotten))?;
    }
    if let Some(reason) = &undone.forgotten_file {
        return outln!("{verb} the state file of {dev}: {reason}");
    }
    if !was_applied {
        return outln!("nothing was applied to {dev}");
    }
    if undone.changes.is_empty()
        && undone.queues.is_none()
        && undone.flows.is_none()
        && undone.left.is_empty()
        && undone.forgotten.is_empty()
    {
        return outln!("{dev} has what it had before already");
    }
    Ok(())
}

fn list(queues: &[QueueKey]) -> String {
    queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns status 1, and prints the reason, if something could not be restored.
pub fn complete(session: &Session, undone: &Undone) -> ExitCode {
    if undone.left.is_empty() {
        return ExitCode::SUCCESS;
    }
    say!(
        "lull: {0} shows no NAPI for queue {left} now: bring the device and its queues up and undo again, or \
         `lull undo {0} --forget`; {1} keeps what they had",
        session.device().name,
        session.state_file().display(),
        left = list(&undone.left),
    );
    ExitCode::FAILURE
}
