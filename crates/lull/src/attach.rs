//! `lull attach` and `lull detach`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use lull_linux::attach::{self, Detached, Event, Follower, LOOK_EVERY, Request, Restored, Role, Which};

use crate::Failure;
use crate::apply::StateArgs;
use crate::output::{WriteError, outln, say};

/// How often the stop flag is looked at.
const TICK: Duration = Duration::from_millis(50);

/// Arguments of `lull attach`.
#[derive(Args)]
pub struct AttachArgs {
    /// The program's process.
    #[arg(long, allow_negative_numbers = true)]
    pid: i32,
    /// The mode whose application half is set: base, deferX, napibusy, fullbusy, suspend0, suspendX and so on.
    #[arg(long)]
    mode: Option<String>,
    /// How long epoll_wait busy polls, in microseconds, in place of the mode's.
    #[arg(long, value_name = "N")]
    usecs: Option<u32>,
    /// Packets a poll, in place of the mode's; above 64 it takes CAP_NET_ADMIN.
    #[arg(long, value_name = "N")]
    budget: Option<u32>,
    /// Prefer busy polling to interrupts.
    #[arg(long)]
    prefer: bool,
    /// Set what there is now and leave; `lull detach` gives back. Exit status 2 if there is no epoll context.
    #[arg(long)]
    once: bool,
    /// Show what would be set, and set nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object a line.
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
    /// Show what would be given back, and give nothing back.
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
    let request = Request::new(mode, args.usecs, args.budget, args.prefer)?;
    let options = args.state.options();
    let mut follower = if args.dry_run {
        Follower::dry(args.pid, &request, &options)?
    } else {
        Follower::open(args.pid, &request, Which::All, Role::Attach, &options)?
    };
    let events = follower.look()?;
    if (args.once || args.dry_run) && follower.in_force() == 0 {
        return Err(format!(
            "process {} has no epoll context, so nothing was set: leave --once out to wait for one, or start the \
             program with `lull run` if it uses poll, select or blocking calls",
            args.pid
        )
        .into());
    }
    let mut printer = Printer { json: args.json, dry_run: args.dry_run, unwritten: None };
    events.iter().for_each(|event| printer.print(event));
    request.caveats().into_iter().for_each(|text| printer.print(&Event::Warning { text }));
    if args.once || args.dry_run {
        return printer.end();
    }
    if follower.in_force() == 0 {
        let text = format!("process {} has no epoll context yet: one that it makes will be set", args.pid);
        printer.print(&Event::Warning { text });
    }
    say!("lull: process {} is followed; SIGINT, SIGTERM or `lull detach` give back", args.pid);
    while !stop.load(Ordering::Relaxed) && !follower.is_over() {
        wait(stop);
        follower.look()?.iter().for_each(|event| printer.print(event));
    }
    let over = follower.is_over();
    let restored = follower.restore()?;
    if over {
        say!("lull: the program has ended");
    } else {
        print_restored("", &restored, args.json)?;
    }
    printer.end()
}

/// Waits for the next look, or for the end.
fn wait(stop: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < LOOK_EVERY && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
    }
}

/// Prints events. Whether somebody reads them changes nothing about the program that is followed, so a failure is
/// kept for the end.
struct Printer {
    json: bool,
    dry_run: bool,
    unwritten: Option<WriteError>,
}

impl Printer {
    /// Prints an event: on standard output, warnings of the text form on standard error.
    fn print(&mut self, event: &Event) {
        let line = if self.json {
            // A tagged enum of numbers and texts can always be written.
            serde_json::to_string(event).unwrap_or_default()
        } else if matches!(event, Event::Warning { .. }) {
            return say!("lull: {event}");
        } else if self.dry_run && matches!(event, Event::Set { .. }) {
            format!("would set {event}")
        } else {
            event.to_string()
        };
        if let Err(error) = outln!("{line}") {
            self.unwritten.get_or_insert(error);
        }
    }

    fn end(self) -> Result<ExitCode, Failure> {
        self.unwritten.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
    }
}

/// Gives a program's contexts back what they had.
pub fn detach(args: &DetachArgs) -> Result<ExitCode, Failure> {
    let options = args.state.options();
    if args.dry_run {
        print_restored("would set ", &attach::detach_diff(args.pid, &options)?, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let detached = attach::detach(args.pid, &options)?;
    match &detached {
        _ if args.json => outln!("{}", serde_json::to_string_pretty(&detached)?)?,
        Detached::Nothing => outln!("nothing of process {} was set", args.pid)?,
        Detached::Restored(restored) => print_restored("", restored, false)?,
        Detached::Ended { follower } => {
            outln!("the lull attach that followed process {} (process {follower}) has given back and ended", args.pid)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_restored(prefix: &str, restored: &Restored, json: bool) -> Result<(), Failure> {
    if json {
        outln!("{}", serde_json::to_string(restored)?)?;
        return Ok(());
    }
    for (pid, fd, params) in &restored.contexts {
        outln!("{prefix}process {pid} descriptor {fd}: {params} again")?;
    }
    for (pid, fd) in &restored.left {
        outln!("process {pid} descriptor {fd}: closed or changed by somebody else since, left alone")?;
    }
    Ok(())
}
