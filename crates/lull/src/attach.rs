//! `lull attach` and `lull detach`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use lull_linux::attach::{
    self, Detached, Event, Follower, LOOK_EVERY, ProgramRequest, Restored, Role, Which, with_children,
};
use serde::Serialize;

use lull_core::mode;

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{WriteError, outln, say};
use crate::{modes, steer_args};

/// How often the stop flag is looked at.
const TICK: Duration = Duration::from_millis(50);

/// Arguments of `lull attach`.
#[derive(Args)]
pub struct AttachArgs {
    /// The program's process.
    #[arg(long, allow_negative_numbers = true)]
    pid: i32,
    #[arg(long, help = modes::short("The mode whose application half is set", mode::Plane::Kernel),
        long_help = modes::long("The mode whose application half is set", mode::Plane::Kernel))]
    mode: Option<String>,
    /// How long epoll_wait busy polls, in microseconds, in place of the mode's.
    #[arg(long, value_name = "N")]
    usecs: Option<u32>,
    /// Packets per poll, in place of the mode's; more than 64 takes CAP_NET_ADMIN.
    #[arg(long, value_name = "N")]
    budget: Option<u32>,
    /// Prefer busy polling to interrupts.
    #[arg(long)]
    prefer: bool,
    /// Choose which of the program's workers gets a connection, if they listen with SO_REUSEPORT: queue (the listener
    /// of the SYN's receive queue), cpu (that of the CPU that delivers it), hash (no program, so that the 4-tuple's
    /// hash decides), or a file: a classic BPF program as tcpdump -ddd or bpf_asm print it, or one of extended BPF that
    /// is pinned (bpftool prog load). The program returns a listener's number: listeners are numbered in the order in
    /// which they began to listen, which is shown.
    #[arg(long, value_name = "queue|cpu|hash|FILE", value_parser = steer_args::in_the_kernel)]
    steer: Option<lull_linux::attach::Steer>,
    /// Whether the program's children are set as well; for process 1 this has to be given.
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    children: Option<bool>,
    /// Set what there is now and end; `lull detach` restores it. The exit status is 2 if there is no epoll context, or
    /// with --steer alone no group of listeners.
    #[arg(long)]
    once: bool,
    /// Show what would be set, and set nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Arguments of `lull detach`.
#[derive(Args)]
pub struct DetachArgs {
    /// The program's process.
    #[arg(long, allow_negative_numbers = true)]
    pid: i32,
    /// Remove the record of the program's former settings if it cannot be read; what was set then stays.
    #[arg(long, conflicts_with = "dry_run")]
    forget: bool,
    /// Show what would be restored, and restore nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Attaches to a program.
pub fn run(args: &AttachArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    let mode = args.mode.as_deref().map(str::parse).transpose()?;
    let only_steers = args.steer.is_some() && mode.is_none() && args.usecs.or(args.budget).is_none() && !args.prefer;
    let (request, which) = match only_steers {
        true => (ProgramRequest::none(), Which::None),
        false => (ProgramRequest::new(mode, args.usecs, args.budget, args.prefer)?, Which::All),
    };
    let options = args.state.options();
    let with_children = with_children(args.pid, args.children)?;
    let follower = if args.dry_run {
        Follower::dry(args.pid, &request, which, &options)?
    } else {
        Follower::open(args.pid, &request, which, Role::Attach, &options)?
    };
    let follower = follower.with_steering(args.steer.clone(), false);
    let mut follower = if with_children { follower } else { follower.without_children() };
    let events = follower.look()?;
    if (args.once || args.dry_run) && follower.in_force() == 0 && follower.steered() == 0 {
        return Err(nothing_set(args.pid, only_steers, &follower).into());
    }
    let mut printer = Printer { json: args.json, dry_run: args.dry_run, unwritten: None };
    events.iter().for_each(|event| printer.print(event));
    request.caveats().into_iter().for_each(|text| printer.print(&Event::Warning { text }));
    if args.once || args.dry_run {
        return printer.end();
    }
    if follower.in_force() == 0 && !only_steers {
        let text = format!("process {} has no epoll context yet: one that it makes will be set", args.pid);
        printer.print(&Event::Warning { text });
    }
    if args.steer.is_some() && follower.steered() == 0 {
        let text = format!("process {} has no group of listeners yet: one that it makes will be steered", args.pid);
        printer.print(&Event::Warning { text });
    }
    say!("lull: process {} is followed; SIGINT, SIGTERM, SIGHUP or `lull detach` give back", args.pid);
    while !stop.load(Ordering::Relaxed) && !follower.is_over() {
        wait(stop);
        match follower.look() {
            Ok(events) => events.iter().for_each(|event| printer.print(event)),
            // No record on disk is needed to restore the contexts: this process also knows what they had.
            Err(error) => {
                match follower.restore() {
                    Ok(restored) => printer.print_restored(&restored),
                    Err(kept) => say!("lull: {kept}"),
                }
                return Err(error.into());
            }
        }
    }
    if follower.is_over() {
        let restored = follower.leave_ended()?;
        if !restored.is_empty() {
            printer.print_restored(&restored);
        }
        say!("lull: the program has ended");
    } else {
        printer.print_restored(&follower.restore()?);
    }
    printer.end()
}

/// Says why nothing could be set at once.
fn nothing_set(pid: i32, only_steers: bool, follower: &Follower) -> String {
    match follower.not_steered() {
        _ if !only_steers => format!(
            "process {pid} has no epoll context, so nothing was set: leave --once out to wait for one, or start the \
             program with `lull run` if it uses poll, select or blocking calls"
        ),
        [] => format!("process {pid} listens nowhere, so nothing was steered: leave --once out to wait for listeners"),
        refused => format!("nothing of process {pid} was steered: {}", refused.join("; ")),
    }
}

/// Waits for the next look, or for the end.
fn wait(stop: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < LOOK_EVERY && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
    }
}

/// Prints events. A failure to print is kept for the end, because the program is followed whether anybody reads the
/// events or not.
struct Printer {
    json: bool,
    dry_run: bool,
    unwritten: Option<WriteError>,
}

impl Printer {
    /// Prints an event: on standard output, or on standard error if it is a warning in text form.
    fn print(&mut self, event: &Event) {
        let line = if self.json {
            // An enum of numbers and texts can always be written.
            serde_json::to_string(event).unwrap_or_default()
        } else if matches!(event, Event::Warning { .. }) {
            return say!("lull: {event}");
        } else if self.dry_run && matches!(event, Event::Set { .. } | Event::Steered(_)) {
            format!("would set {event}")
        } else {
            event.to_string()
        };
        self.line(&line);
    }

    /// Prints what was restored at the end.
    fn print_restored(&mut self, restored: &Restored) {
        #[derive(Serialize)]
        #[serde(tag = "event", rename = "restored")]
        struct Event<'a> {
            #[serde(flatten)]
            restored: &'a Restored,
        }
        if self.json {
            self.line(&serde_json::to_string(&Event { restored }).unwrap_or_default());
        } else if !restored.is_empty() {
            self.line(&restored.to_string());
        }
    }

    fn line(&mut self, line: &str) {
        if let Err(error) = outln!("{line}") {
            self.unwritten.get_or_insert(error);
        }
    }

    fn end(self) -> Result<ExitCode, Failure> {
        self.unwritten.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
    }
}

/// Restores the former settings of a program's contexts.
pub fn detach(args: &DetachArgs) -> Result<ExitCode, Failure> {
    let options = args.state.options();
    let detached = match (args.dry_run, args.forget) {
        (true, _) => attach::detach_diff(args.pid, &options)?,
        (_, true) => attach::detach_and_forget(args.pid, &options)?,
        _ => attach::detach(args.pid, &options)?,
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&detached)?)?;
    } else {
        print_detached(if args.dry_run { "would set " } else { "" }, args.pid, &detached)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_detached(prefix: &str, pid: i32, detached: &Detached) -> Result<(), WriteError> {
    match detached {
        Detached::Nothing => outln!("nothing of process {pid} was set"),
        Detached::Over => {
            outln!("process {pid} has ended by itself, and its epoll contexts with it: nothing is left to give back")
        }
        Detached::Restored(restored) if restored.is_empty() => {
            outln!(
                "nothing is left of what was set in process {pid} and its children: it has gone with its processes, or was \
                 given back before"
            )
        }
        Detached::Restored(restored) => restored.to_string().lines().try_for_each(|line| {
            let prefix = if line.ends_with("again") { prefix } else { "" };
            outln!("{prefix}{line}")
        }),
        Detached::Ended { follower } => {
            outln!("the lull attach that followed process {pid} (process {follower}) has given back and ended")
        }
        Detached::Forgotten { reason } => {
            outln!("forgot what process {pid} had before ({reason}); what was set stays")
        }
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("'{text}' is neither yes nor no")),
    }
}
