//! `lull compare`.

mod case;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lull_core::{EpollOptions, Mode, mode};
use lull_lab::bench::BenchConfig;
use lull_lab::cell::Load;
use lull_lab::compare::{Comparison, compare};
use lull_lab::load::{Arrivals, WorkloadConfig};
use lull_lab::plan::{Asked, LIMIT_DEFAULT, MODES_DEFAULT, Plan};
use lull_lab::predicted;
use lull_lab::progress::ProgressMode;
use lull_lab::table::{self, TableStyle};
use lull_nic::Moderation;
use lull_sim::{WorldFile, worldfile as sim};

use crate::after_resume::AfterResume;
use crate::benches::{Nic, Over, Plane, Service};
use crate::failure::Failure;
use crate::group_args::GroupArgs;
use crate::measure_args;
use crate::modes;
use crate::output::out;
use crate::outputs::Outputs;
use crate::predict::threads;
use crate::typed::command_line;
use crate::units;

/// Which NAPIs an epoll context busy polls and suspends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EpollRule {
    /// The one that woke it last.
    #[default]
    Linux,
    /// All NAPIs that its sockets are on.
    EveryNapi,
}

impl From<EpollRule> for EpollOptions {
    fn from(rule: EpollRule) -> EpollOptions {
        let every_napi = rule == EpollRule::EveryNapi;
        EpollOptions { every_napi, tour_when_woken: every_napi, ..EpollOptions::strict_linux() }
    }
}

/// Loads if none are named.
const LOADS_DEFAULT: &str = "25%,50%,75%,MAX";

/// The help of `--modes`.
const MODES: &str =
    "Delivery modes; by default the twelve published ones, and on the kernel plane threaded and threaded-busy too";

/// Arguments of `lull compare`.
#[derive(Args)]
pub struct Compare {
    /// A workload of the published letters in place of the comparison of modes, with a table of its own.
    #[arg(long, value_enum)]
    case: Option<case::Case>,
    #[command(flatten)]
    case_args: case::CaseArgs,
    /// Whose delivery is compared: that of lull's own stack, or Linux's, with a memcached behind a veth pair (root).
    #[arg(long, value_enum, default_value = "user")]
    plane: Plane,
    /// The service [default: auto on the kernel plane, own on the user plane]. memcached on the user plane runs
    /// unmodified under `lull run`, and is started again for each run.
    #[arg(long, value_enum)]
    service: Option<Service>,
    #[arg(long, value_delimiter = ',', help = modes::short(MODES, mode::Plane::User), long_help = modes::long(MODES, mode::Plane::User))]
    modes: Vec<String>,
    /// Loads: shares of base's measured maximum (25%), queries per second (200K), or MAX (closed loop).
    #[arg(long, default_value = LOADS_DEFAULT)]
    loads: String,
    /// The NIC under the service in lull's own stack [default: mem, and tap with --service memcached].
    #[arg(long, value_enum)]
    nic: Option<Nic>,
    /// Worker threads of the service, each with a core and an epoll context.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Queues of the service's NIC, each with a NAPI; with more queues than workers an epoll context has sockets on
    /// several of them [default: one for each worker]; --case many-queues takes several numbers [default: 1,4,16,44].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    queues: Vec<usize>,
    /// Which NAPIs an epoll context busy polls and suspends, if its sockets are on several: the one that woke it last,
    /// as in Linux, or every one. Only lull's own stack has this option [default: linux].
    #[arg(long, value_enum)]
    epoll: Option<EpollRule>,
    /// Connections of all workers together.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds measured per run [default: as many as the limit allows].
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,
    /// Runs per cell [default: as many as the limit allows].
    #[arg(long)]
    runs: Option<u32>,
    /// Seconds that the whole comparison may take, unless both --seconds and --runs are given.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true)]
    limit: Option<Duration>,
    /// Requests that a connection may have outstanding.
    #[arg(long, default_value_t = 1)]
    depth: u16,
    /// Inter-arrival times of open loops: poisson or facebook.
    #[arg(long, value_parser = units::arrivals, default_value = "poisson")]
    arrivals: Arrivals,
    /// Records in the store.
    #[arg(long, default_value_t = WorkloadConfig::default().records)]
    records: u64,
    /// Cores to use, first those of the service, then those of the generator; by default all.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    /// The size of the receive buffer and of the transmit buffer of a connection of the service in lull's own stack, in
    /// bytes each [default: 16384].
    #[arg(long)]
    buffer_bytes: Option<usize>,
    /// Interrupt moderation of the service's NIC as `ethtool -C` has it, such as 16 or 16/44: microseconds that an
    /// interrupt may wait after the first frame, and a number of frames after which it is raised before that; --case
    /// tcp-rr takes several values. Only the in-memory NIC has moderation.
    #[arg(long, value_name = "US[/FRAMES]", value_delimiter = ',', value_parser = units::moderation)]
    rx_usecs: Vec<Moderation>,
    /// With --rx-usecs: the number of frames after which the interrupt is raised before its time is up; 0 means that
    /// there is no such limit.
    #[arg(long, default_value_t = 0, requires = "rx_usecs")]
    rx_frames: u32,
    #[command(flatten)]
    group: GroupArgs,
    /// Ask for SCHED_FIFO for the interrupt threads; a refusal is noted under the table.
    #[arg(long)]
    realtime: bool,
    /// What follows when an application that prefers busy polling finds nothing, and one more poll of its queue finds
    /// nothing either: the interrupt at once, or deferral as in Linux, which polls by timer for a while. Only lull's
    /// own stack has this option [default: interrupt].
    #[arg(long, value_enum)]
    after_resume: Option<AfterResume>,
    /// Show beside each measured cell what this world file of `lull calibrate` predicts for it, and the difference.
    #[arg(long, value_name = "MACHINE.toml")]
    predict: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
    /// What is shown while it runs: auto (a bar on a terminal), plain (a line per run) or off.
    #[arg(long, default_value = "auto")]
    progress: ProgressMode,
}

/// Runs the comparison and writes what was asked for.
pub fn run(args: Compare, given: &[String], stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    if let (Some(_), Some(_)) = (args.case, &args.predict) {
        return Err(
            "cannot use --predict with --case: a calibrated world has the service of the plain comparison".into()
        );
    }
    if let Some(case) = args.case {
        return case::run(case, &args, given, stop);
    }
    case::refuse_without_case(given)?;
    let modes = modes(&args);
    let parsed = modes.iter().map(|mode| mode.parse()).collect::<Result<Vec<Mode>, _>>()?;
    fits_the_plane(&args)?;
    let group = if args.plane == Plane::User { args.group.setup(&parsed)? } else { None };
    one("--queues", &args.queues)?;
    let loads = Load::parse_list(&args.loads)?;
    let overhead = if is_program(&args) { PROGRAM_OVERHEAD } else { Asked::default().overhead };
    let asked = Asked { runs: args.runs, window: args.seconds, overhead, ..Asked::default() };
    let limit = args.limit.unwrap_or(LIMIT_DEFAULT);
    let plan = Plan::fit(modes, loads, asked, limit)?;
    args.outputs.check()?;
    let config = BenchConfig { group, ..bench_config(&args)? };
    let over = match args.plane {
        Plane::Kernel => Over::Kernel(args.service.unwrap_or(Service::Auto).into()),
        Plane::User if is_program(&args) => Over::Program(args.nic.unwrap_or(Nic::Tap)),
        Plane::User => Over::User(args.nic.unwrap_or(Nic::Mem)),
    };
    let machine = args.predict.as_deref().map(|path| machine(path, &args, over)).transpose()?;
    warn(&config, args.progress)?;
    let mut bench = over.start(config)?;
    let exempt = args.runs.is_some() && args.seconds.is_some() && args.limit.is_none();
    let report = compare(
        &mut *bench,
        &Comparison {
            plan: &plan,
            limit: (!exempt).then_some(limit),
            progress: args.progress,
            stop,
            command: command_line(),
            nic: over.name(),
            workers: args.workers,
            connections: args.connections,
            tsc_hz: lull_host::Clock::new().tsc_khz().map(|khz| khz * 1_000),
        },
    )?;
    out!("{}", table::render(&report, TableStyle::for_stdout()))?;
    args.outputs.write(&report)?;
    // Dropping the bench waits for the service's workers. If one is wedged, which the table says, this would wait for
    // ever, and so the table is printed first.
    drop(bench);
    if let Some(file) = machine {
        let predicted = predicted::predict(&file, &report, threads(None), stop)?;
        out!("{}", predicted.render(COLUMNS))?;
    }
    Ok(measure_args::ended(stop, report.failed))
}

/// Warns of known problems with what was asked for, before the measurement begins.
fn warn(config: &BenchConfig, progress: ProgressMode) -> Result<(), Failure> {
    if let Some(warning) = config.warning()?
        && progress != ProgressMode::Off
    {
        // The measurement goes on if standard error is closed.
        let _ = writeln!(std::io::stderr(), "lull: {warning}");
    }
    Ok(())
}

/// The configuration of the service and its load, without a group of CPUs.
fn bench_config(args: &Compare) -> Result<BenchConfig, Failure> {
    Ok(BenchConfig {
        workers: args.workers,
        queues: args.queues.first().copied(),
        connections: args.connections,
        workload: WorkloadConfig { records: args.records, ..WorkloadConfig::default() },
        cores: args.cores.clone().unwrap_or_default(),
        buffer_bytes: args.buffer_bytes.unwrap_or(lull_net::BUFFER_BYTES),
        realtime: args.realtime,
        after_resume: args.after_resume.unwrap_or_default().into(),
        epoll: args.epoll.unwrap_or_default().into(),
        moderation: moderation(args)?,
        group: None,
        qdisc: one("--qdisc", args.case_args.qdisc.as_deref().unwrap_or_default())?,
        depth: args.depth,
        arrivals: args.arrivals,
    })
}

/// Returns the value of an option of which only a case takes several.
fn one<T: Copy>(option: &str, values: &[T]) -> Result<Option<T>, Failure> {
    match values {
        [] => Ok(None),
        [value] => Ok(Some(*value)),
        _ => {
            Err(format!("cannot use several values of {option} in one comparison: name one, or a case with --case")
                .into())
        }
    }
}

/// The coalescing of `--rx-usecs`; `--rx-frames` may give its frames.
fn moderation(args: &Compare) -> Result<Option<Moderation>, Failure> {
    let given = one("--rx-usecs", &args.rx_usecs)?;
    match given {
        Some(Moderation { rx_frames: 1.., .. }) if args.rx_frames != 0 => {
            Err("cannot use --rx-frames beside --rx-usecs US/FRAMES: name the frames once".into())
        }
        Some(given) if args.rx_frames != 0 => Ok(Some(Moderation { rx_frames: args.rx_frames, ..given })),
        given => Ok(given),
    }
}

fn modes(args: &Compare) -> Vec<String> {
    if !args.modes.is_empty() {
        return modes::once(&args.modes).into_iter().map(str::to_owned).collect();
    }
    let kernel: &[&str] = if args.plane == Plane::Kernel { &["threaded", "threaded-busy"] } else { &[] };
    MODES_DEFAULT.iter().chain(kernel).map(ToString::to_string).collect()
}

/// The time that it takes to start an unmodified program, to connect, to store the records, and to end the program.
const PROGRAM_OVERHEAD: Duration = Duration::from_millis(1_200);

/// Whether the service is an unmodified program on lull's own stack.
fn is_program(args: &Compare) -> bool {
    args.plane == Plane::User && args.service == Some(Service::Memcached)
}

/// The width of the prose beside predictions, in columns.
const COLUMNS: usize = 120;

/// Reads the world file of `--predict`, and refuses it if it does not describe what is measured.
fn machine(path: &Path, args: &Compare, over: Over) -> Result<WorldFile, Failure> {
    let file = WorldFile::read(path)?;
    predicted::is_the_labs(&file)?;
    predicted::fits(&file, args.plane == Plane::User, over.calibrated(), args.workers, args.connections)?;
    let same_arrivals = matches!(
        (args.arrivals, &file.arrivals),
        (Arrivals::Exponential, sim::Arrivals::Poisson) | (Arrivals::Facebook, sim::Arrivals::Facebook)
    );
    if !same_arrivals {
        let path = path.display();
        return Err(format!(
            "cannot compare with what {path} predicts: its clients send at other times; give --arrivals what its load.arrivals says"
        )
        .into());
    }
    // Options that the file does not describe are refused, since the prediction would seem to be for them.
    let others = [
        ("--depth", args.depth != 1),
        ("--queues", args.queues.iter().any(|&queues| queues != args.workers)),
        ("--rx-usecs", !args.rx_usecs.is_empty()),
        ("--after-resume", args.after_resume.is_some()),
        ("--epoll", args.epoll == Some(EpollRule::EveryNapi)),
        ("--buffer-bytes", args.buffer_bytes.is_some()),
        ("--records", args.records != WorkloadConfig::default().records),
        ("--realtime", args.realtime),
        ("--qdisc", args.case_args.qdisc.is_some()),
    ];
    match others.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(format!("cannot use {option} with --predict: a calibrated world has none").into()),
        None => Ok(file),
    }
}

/// Refuses options of the other plane.
fn fits_the_plane(args: &Compare) -> Result<(), Failure> {
    let others: &[(&str, bool)] = match args.plane {
        Plane::User => &[("--service auto", args.service == Some(Service::Auto))],
        Plane::Kernel => &[
            ("--nic", args.nic.is_some()),
            ("--buffer-bytes", args.buffer_bytes.is_some()),
            ("--realtime", args.realtime),
            ("--after-resume", args.after_resume.is_some()),
            ("--epoll", args.epoll.is_some()),
            ("--rx-usecs", !args.rx_usecs.is_empty()),
            ("--qdisc", args.case_args.qdisc.is_some()),
        ],
    };
    if is_program(args) {
        return fits_a_program(args);
    }
    let (here, there) = if args.plane == Plane::User { ("user", "kernel") } else { ("kernel", "user") };
    let of_groups = if args.plane == Plane::Kernel { args.group.given() } else { Vec::new() };
    let of_groups = of_groups.first().map(|option| (*option, true));
    match others.iter().copied().chain(of_groups).find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(format!("cannot use {option} on the {here} plane: leave it out, or use --plane {there}").into())
        }
        None => Ok(()),
    }
}

/// Refuses options that are settings of lull's own service.
fn fits_a_program(args: &Compare) -> Result<(), Failure> {
    let own = [
        ("--buffer-bytes", args.buffer_bytes.is_some()),
        ("--realtime", args.realtime),
        ("--after-resume", args.after_resume.is_some()),
        ("--epoll", args.epoll.is_some()),
        ("--rx-usecs", !args.rx_usecs.is_empty()),
        ("--predict", args.predict.is_some()),
    ];
    let of_groups = args.group.given().first().map(|option| (*option, true));
    match own.into_iter().chain(of_groups).find(|(_, given)| *given) {
        Some((option, _)) => Err(format!(
            "cannot use {option} with --service memcached on the user plane: it is for lull's own service; leave it out, or \
             use --service own"
        )
        .into()),
        None => Ok(()),
    }
}
