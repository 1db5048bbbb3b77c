//! `lull apply` and `lull diff`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use lull_figures::Source;
use lull_figures::device::Watched;
use lull_linux::control::{Control, control};
use lull_linux::{Applied, DeviceRequest, Report, Session};

use crate::device_args::{RequestArgs, StateArgs};
use crate::failure::Failure;
use crate::metrics::MetricsArgs;
use crate::output::{WriteError, outln, print_changes, say};
use crate::slo_args::SloArgs;
use crate::undo;
use crate::units;

/// Arguments of `lull apply`.
#[derive(Args)]
pub struct ApplyArgs {
    /// The device.
    dev: String,
    #[command(flatten)]
    request: RequestArgs,
    /// Stay, apply again after a link flap, a change of queues or a reset, and undo at SIGTERM, SIGINT or SIGHUP.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// With --watch: seconds between read-backs, for drivers that lose settings and do not report it. With --slo each
    /// window of the controller reads back.
    #[arg(long, value_parser = units::seconds, default_value = "2", requires = "watch", conflicts_with = "slo", value_name = "SECONDS")]
    read_back: Duration,
    #[command(flatten)]
    slo: SloArgs,
    /// A socket on which the service reports its latencies, which the kernel plane cannot measure: datagrams of text
    /// such as '85us 1.2ms', one time for each answer, or a summary such as 'answers=1200 p50=40us p99=180us'. The
    /// command makes the socket, and removes it at its end. Without it the controller sees only CPU and packets.
    #[arg(long, value_name = "PATH", requires = "slo")]
    report: Option<PathBuf>,
    /// Show what would change, and change nothing.
    #[arg(long, conflicts_with_all = ["prometheus", "report"])]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
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
    let controller = args.slo.controller(&request.mode, request.settings()?)?;
    if controller.is_some() && args.json {
        return Err("cannot print JSON while a controller runs: leave --json out, and ask `lull show --json`".into());
    }
    if args.metrics.prometheus.is_some() && !args.watch && controller.is_none() {
        return Err(
            "cannot serve metrics: --prometheus takes --watch, because without it nobody stays to serve them".into()
        );
    }
    let mut session = Session::open(&args.dev, &args.state.options())?;
    if args.dry_run {
        return show_diff(&mut session, &request, args.json);
    }
    let watched = || Ok(Box::new(Watched::open(&args.dev, &args.state.options())?) as Box<dyn Source>);
    if let Some(controller) = controller {
        let _metrics = args.metrics.serve(watched)?;
        let report = args.report.as_deref().map(Report::bind).transpose()?;
        let log = &mut |line: &str| say!("lull: {line}");
        let undone = control(&mut session, &request, Control { controller, report }, stop, log)?;
        return Ok(undo::complete(&session, &undone));
    }
    if args.watch {
        let _metrics = args.metrics.serve(watched)?;
        let log = &mut |line: &str| say!("lull: {line}");
        let undone = lull_linux::watch::watch(&mut session, &request, args.read_back, stop, log)?;
        return Ok(undo::complete(&session, &undone));
    }
    let applied = lull_linux::apply(&mut session, &request)?;
    // The mode stays applied, whether this can be found out or not.
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
