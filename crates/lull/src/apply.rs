//! `lull apply` and `lull diff`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use lull_linux::apply::Options;
use lull_linux::plan::{Change, Overrides, ThreadRequest};
use lull_linux::sched::duration_ns;
use lull_linux::{Applied, DeviceRequest, Session};

use lull_core::mode;

use crate::Failure;
use crate::modes;
use crate::output::{WriteError, outln, say};
use crate::undo;
use crate::units;

/// Where state files are.
#[derive(Args, Clone)]
pub struct StateArgs {
    /// Where what was in force before is kept.
    #[arg(long, env = "LULL_STATE_DIR", default_value = lull_linux::state::STATE_DIR, value_name = "DIR")]
    pub state_dir: PathBuf,
}

impl StateArgs {
    /// Options of a session.
    pub fn options(&self) -> Options {
        Options::in_dir(&self.state_dir)
    }
}

/// What is asked of a device.
#[derive(Args, Clone)]
pub struct RequestArgs {
    #[arg(long, help = modes::short("The delivery mode", mode::Plane::Kernel),
        long_help = modes::long("The delivery mode", mode::Plane::Kernel))]
    pub mode: String,
    /// The receive queues, such as 0,2-3; all by default.
    #[arg(long, value_name = "LIST")]
    pub queues: Option<String>,
    /// gro_flush_timeout in place of the mode's, such as 50us.
    #[arg(long, value_name = "TIME")]
    pub gro_flush_timeout: Option<String>,
    /// irq_suspend_timeout in place of the mode's, such as 20ms.
    #[arg(long, value_name = "TIME")]
    pub irq_suspend_timeout: Option<String>,
    /// defer_hard_irqs in place of the mode's.
    #[arg(long, value_name = "N")]
    pub defer_hard_irqs: Option<String>,
    /// CPUs for NAPI threads, one each in the order of the queues.
    #[arg(long, value_name = "LIST")]
    pub threads_cpus: Option<String>,
    /// Policy of NAPI threads: fifo:50, rr:50, other:-10 or deadline:200us/1ms.
    #[arg(long, value_name = "POLICY")]
    pub thread_policy: Option<String>,
}

impl RequestArgs {
    /// The request that they stand for.
    pub fn request(&self) -> Result<DeviceRequest, Failure> {
        let time = |text: &Option<String>| text.as_deref().map(duration_ns).transpose();
        let list = |text: &Option<String>| text.as_deref().map(lull_units::numbers).transpose();
        let defer_hard_irqs = match &self.defer_hard_irqs {
            Some(text) => {
                Some(text.parse().map_err(|_| format!("'{text}' is no number of polls for --defer-hard-irqs"))?)
            }
            None => None,
        };
        Ok(DeviceRequest {
            mode: self.mode.parse()?,
            queues: list(&self.queues)?.map(|queues| queues.into_iter().map(|queue| queue as u32).collect()),
            overrides: Overrides {
                defer_hard_irqs,
                gro_flush_timeout_ns: time(&self.gro_flush_timeout)?,
                irq_suspend_timeout_ns: time(&self.irq_suspend_timeout)?,
            },
            threads: ThreadRequest {
                cpus: list(&self.threads_cpus)?.unwrap_or_default(),
                policy: self.thread_policy.as_deref().map(str::parse).transpose()?,
            },
        })
    }
}

/// Arguments of `lull apply`.
#[derive(Args)]
pub struct ApplyArgs {
    /// The device.
    dev: String,
    #[command(flatten)]
    request: RequestArgs,
    /// Stay, apply again after a link flap, a change of queues or a reset, and undo at SIGTERM or SIGINT.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// With --watch: seconds between read-backs, for drivers that lose settings and tell nobody.
    #[arg(long, value_parser = units::seconds, default_value = "2", requires = "watch", value_name = "SECONDS")]
    read_back: Duration,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Arguments of `lull diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// The device.
    dev: String,
    #[command(flatten)]
    request: RequestArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Puts a mode in force.
pub fn run(args: &ApplyArgs, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let request = args.request.request()?;
    let mut session = Session::open(&args.dev, &args.state.options())?;
    if args.dry_run {
        return show_diff(&mut session, &request, args.json);
    }
    if args.watch {
        let log = &mut |line: &str| say!("lull: {line}");
        let undone = lull_linux::watch::watch(&mut session, &request, args.read_back, stop, log)?;
        return Ok(undo::complete(&session, &undone));
    }
    let applied = lull_linux::apply(&mut session, &request)?;
    // What is applied stays applied, whether this can be found out or not.
    for program in lull_linux::spans::programs_on(&mut session).unwrap_or_default() {
        say!("lull: {program}; what helps: {}", program.remedy());
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&applied)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_changes(&applied.changes, "")?;
    print_applied(&args.dev, &request, &applied)?;
    Ok(ExitCode::SUCCESS)
}

fn print_applied(dev: &str, request: &DeviceRequest, applied: &Applied) -> Result<(), WriteError> {
    let mode = &request.mode;
    if applied.changes.is_empty() {
        outln!("{dev} has the settings of {mode} already: nothing changed")?;
    } else {
        outln!("{dev} has the settings of {mode}; `lull undo {dev}` takes them back")?;
    }
    if mode.epoll.prefer_busy_poll {
        outln!(
            "{mode} is in force for programs that prefer busy polling: `lull attach --pid PID --mode {mode} --once`, or \
             without --once, which stays and follows the program"
        )?;
    } else if mode.socket_busy_poll_usecs != 0 {
        outln!("{mode} is in force for sockets with SO_BUSY_POLL: `lull run --mode {mode} -- COMMAND`")?;
    }
    Ok(())
}

/// Shows what a mode would change.
pub fn diff(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let request = args.request.request()?;
    let mut session = Session::open(&args.dev, &args.state.options())?;
    show_diff(&mut session, &request, args.json)
}

fn show_diff(session: &mut Session, request: &DeviceRequest, json: bool) -> Result<ExitCode, Failure> {
    let changes = lull_linux::diff(session, request)?;
    if json {
        outln!("{}", serde_json::to_string_pretty(&changes)?)?;
    } else if changes.is_empty() {
        outln!("{} has the settings of {} already: nothing would change", session.device().name, request.mode)?;
    } else {
        print_changes(&changes, "would set ")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints changes, a line each.
pub fn print_changes(changes: &[Change], prefix: &str) -> Result<(), WriteError> {
    changes.iter().try_for_each(|change| outln!("{prefix}{change}"))
}
