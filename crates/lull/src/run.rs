//! `lull run`, and the supervisor that it starts.

mod depot;
mod ended;
mod inboxes;
mod nic;
mod peers;
mod queues;
mod user;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lull_figures::device::Watched;
use lull_linux::Report;
use lull_linux::control::Control;
use lull_linux::run::{Run, Sockets, Waits, dry_run};

use crate::device_args::{RequestArgs, StateArgs};
use crate::failure::Failure;
use crate::metrics::MetricsArgs;
use crate::output::outln;
use crate::slo_args::SloArgs;
use crate::steer_args;

/// Arguments of `lull run`.
#[derive(Args)]
pub struct RunArgs {
    /// The device that the mode is applied to for as long as the program runs.
    #[arg(long)]
    dev: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    user: user::UserArgs,
    /// Pin the program to the CPUs of the device's interrupts and NAPI threads.
    #[arg(long)]
    pin: bool,
    /// SO_BUSY_POLL of the program's sockets in microseconds, in place of the mode's; for programs without epoll.
    #[arg(long, value_name = "N")]
    socket_busy_poll: Option<u32>,
    /// SO_BUSY_POLL_BUDGET of the program's sockets.
    #[arg(long, value_name = "N")]
    socket_budget: Option<u32>,
    /// SO_PREFER_BUSY_POLL on the program's sockets; it takes CAP_NET_ADMIN.
    #[arg(long)]
    socket_prefer: bool,
    /// Leave calls of epoll_wait with timeout 0 alone. Otherwise in fullbusy, while such calls find nothing again and
    /// again, the queue is polled in their place, for at most a sixteenth of the program's time.
    #[arg(long)]
    no_lift: bool,
    /// The most events that a call of epoll_wait returns. Nothing is polled between two calls, so a batch should take
    /// no longer than the mode's timers; `lull doctor DEV --pid PID` compares a batch with them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    events_max: Option<u32>,
    /// Choose which of the program's workers gets a connection, if they listen with SO_REUSEPORT (nginx: `listen ...
    /// reuseport`): queue (the listener of the SYN's receive queue), cpu (that of the CPU that delivers it), hash (no
    /// program, so that the 4-tuple's hash decides), or a file: a classic BPF program as tcpdump -ddd or bpf_asm print
    /// it, or one of extended BPF that is pinned (bpftool prog load), which is attached from outside. The program
    /// returns a listener's number: listeners are numbered in the order in which they began to listen, which is
    /// printed.
    #[arg(long, value_name = "queue|cpu|hash|FILE", value_parser = steer_args::in_the_kernel)]
    steer: Option<lull_linux::attach::Steer>,
    /// For a program whose epoll contexts get packets from several NAPIs: `timeout` shortens irq_suspend_timeout to 1
    /// ms, which is how long packets wait on a NAPI that the context no longer polls; `queues` gives the device as many
    /// receive queues as the program has contexts with its packets (ethtool -L); `steer` spreads flows over as many
    /// queues (ethtool -X), which takes a driver with an indirection table. When the program has ended, the device's
    /// former settings are restored.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "irq_suspend_timeout")]
    one_napi: Option<OneNapi>,
    /// Print nothing while the program runs.
    #[arg(long, short)]
    quiet: bool,
    /// Show what would be done, and do nothing.
    #[arg(long, conflicts_with = "prometheus")]
    dry_run: bool,
    #[command(flatten)]
    slo: SloArgs,
    /// With --slo and --dev: a socket on which the program reports its latencies, as for `lull apply`.
    #[arg(long, value_name = "PATH", requires = "slo")]
    report: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    state: StateArgs,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What is done for contexts that get packets from several NAPIs.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum OneNapi {
    /// A shorter irq_suspend_timeout.
    Timeout,
    /// As many receive queues as the program has contexts with packets of the device.
    Queues,
    /// Flows on as many receive queues as the program has contexts with packets of the device.
    Steer,
}

/// Arguments of the supervisor.
#[derive(Args)]
pub struct SuperviseArgs {
    #[arg(long)]
    dev: Option<String>,
    #[command(flatten)]
    state: StateArgs,
}

/// Runs a program.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.user.is_asked_for() {
        return user::run(args);
    }
    if let Some(option) = args.user.of_the_nic() {
        return Err(format!("{option} takes --nic xdp:DEV").into());
    }
    if let Some(option) = args.request.of_a_device().filter(|_| args.dev.is_none()) {
        return Err(format!("cannot use {option} without a device: it takes --dev, whose NAPIs it is about").into());
    }
    let mut request = args.request.request()?;
    if args.one_napi.is_some() && (args.dev.is_none() || !request.mode.suspends()) {
        return Err("--one-napi takes --dev and a mode that suspends interrupts, such as suspend20".into());
    }
    if let Some(OneNapi::Timeout) = args.one_napi {
        request.overrides.irq_suspend_timeout_ns = Some(lull_linux::spans::SHORT_SUSPEND_TIMEOUT_NS);
    }
    let controller = args.slo.controller(&request.mode, request.settings()?)?;
    if controller.is_some() && args.dev.is_none() {
        return Err(
            "cannot keep an objective without a device: --slo takes --dev or --nic, whose timeouts it is about".into(),
        );
    }
    let run = Run {
        request,
        device: args.dev.clone(),
        sockets: Sockets {
            busy_poll_usecs: args.socket_busy_poll,
            budget: args.socket_budget,
            prefer: args.socket_prefer,
        },
        steer: args.steer.clone(),
        waits: Waits { no_lift: args.no_lift, events_max: args.events_max },
        one_napi: match args.one_napi {
            Some(OneNapi::Queues) => Some(lull_linux::run::OneNapi::Queues),
            Some(OneNapi::Steer) => Some(lull_linux::run::OneNapi::Steer),
            Some(OneNapi::Timeout) | None => None,
        },
        pin: args.pin,
        quiet: args.quiet,
        command: args.command.clone(),
    };
    let options = args.state.options();
    if args.dry_run {
        for line in dry_run(&run, &options)? {
            outln!("{line}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let _metrics = args.metrics.serve(|| match &args.dev {
        Some(device) => Ok(Box::new(Watched::open(device, &options)?)),
        None => Err("cannot serve metrics: --prometheus takes --dev or --nic, whose NAPIs it is about".into()),
    })?;
    let control = match controller {
        Some(controller) => Some(Control { controller, report: args.report.as_deref().map(Report::bind).transpose()? }),
        None => None,
    };
    Ok(ExitCode::from(lull_linux::run::run(&run, control, &options, &mut |line: &str| args.say(line))?))
}

impl RunArgs {
    fn say(&self, line: &str) {
        if !self.quiet {
            // The program goes on even if nobody reads the messages any more.
            let _ = writeln!(std::io::stderr(), "lull: {line}");
        }
    }
}

/// Waits for the end of `lull run`, and undoes what it has left in force.
pub fn supervise(args: &SuperviseArgs) -> Result<ExitCode, Failure> {
    lull_linux::run::supervise(args.dev.as_deref(), &args.state.options())?;
    Ok(ExitCode::SUCCESS)
}
