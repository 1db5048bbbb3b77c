//! `lull calibrate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lull_lab::bench::kernel::device::DeviceSetup;
use lull_lab::bench::{Bench, BenchConfig, Cores, KernelBench, ServiceKind};
use lull_lab::calibrate::{Calibration, Error, calibrate, render};
use lull_lab::csv::atomic;
use lull_lab::machine::Machine;
use lull_lab::plan::MODES_DEFAULT;
use lull_sim::calibration::{Interrupts, Setup};

use crate::benches::{Nic, Over, Plane, Service};
use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{out, say};
use crate::outputs::writable;
use crate::typed::command_line;
use crate::units;

/// Arguments of `lull calibrate`.
#[derive(Args)]
pub struct Calibrate {
    /// Whose delivery is described: lull's own stack, or Linux's, with a memcached behind a veth pair (root).
    #[arg(long, value_enum, default_value = "user")]
    plane: Plane,
    /// The NIC under the service in lull's own stack [default: mem].
    #[arg(long, value_enum)]
    nic: Option<Nic>,
    /// With --plane kernel: a device of this machine in place of a veth pair that the command makes. The service
    /// listens on its IPv4 address, its NAPIs get the settings of each mode that is measured, and the former settings
    /// are restored at the end (after a SIGKILL by `lull undo DEV`). The load has to come from its other end: see
    /// --load-by. The device has to have a queue for each worker, with interrupts on the cores of the service. A device
    /// cannot be calibrated for lull's own stack.
    #[arg(long, value_name = "DEV")]
    dev: Option<String>,
    /// With --dev: the command that runs lull at the other end of DEV, without asking for a password: 'ssh client
    /// lull', or 'ip netns exec NAME lull' for a veth pair of this machine. `load` and its arguments are appended to
    /// it. At that end it takes a core for each worker.
    #[arg(long, value_name = "COMMAND")]
    load_by: Option<String>,
    #[command(flatten)]
    state: StateArgs,
    /// The service on the kernel plane [default: auto].
    #[arg(long, value_enum)]
    service: Option<Service>,
    /// Worker threads of the service, each with a core, a queue and an epoll context.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), default_value_t = 1)]
    workers: u16,
    /// Connections of all workers together.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 64)]
    connections: u32,
    /// Cores to use, first those of the service, then those of the generator; by default all.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    /// About how many seconds it may take: with fewer, the runs and the fit are shorter.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true, default_value = "60")]
    limit: Duration,
    /// The world file to write.
    #[arg(long, value_name = "MACHINE.toml")]
    out: PathBuf,
}

/// The width of prose in columns.
const COLUMNS: usize = 120;
/// The share of the lab's service that is user-space time, in percent, on the user and the kernel plane: on the kernel
/// plane system calls are most of it.
const USER_PERCENT: (f64, f64) = (95.0, 20.0);
/// The core frequency that is assumed for a machine whose cycle counter is not steady.
const HZ_UNKNOWN: u64 = 1_000_000_000;

/// What is calibrated, as the options say.
enum On {
    /// The lab's service over one of the lab's NICs.
    Lab(Over),
    /// The lab's service behind a device of this machine.
    Device(DeviceSetup, ServiceKind),
}

impl On {
    fn of(args: &Calibrate) -> Result<On, Failure> {
        let service = args.service.unwrap_or(Service::Auto).into();
        match (args.plane, args.nic, &args.dev, &args.load_by) {
            (Plane::User, _, Some(dev), _) => Err(format!(
                "cannot calibrate lull's own stack over {dev}: the lab has it over --nic mem, tap or xdp; --dev is for --plane \
                 kernel"
            )
            .into()),
            (_, _, None, Some(_)) => Err("cannot use --load-by without --dev: the lab generates the load itself".into()),
            (_, _, Some(dev), None) => Err(format!(
                "cannot calibrate over {dev} alone: its load has to come from its other end; give the command that runs lull \
                 there, such as --load-by 'ssh client lull' or --load-by 'ip netns exec NAME lull'"
            )
            .into()),
            (Plane::User, ..) if args.service.is_some() => {
                Err("cannot use --service on the user plane: leave it out".into())
            }
            (Plane::Kernel, Some(_), ..) => Err("cannot use --nic on the kernel plane: leave it out".into()),
            (Plane::User, nic, ..) => Ok(On::Lab(Over::User(nic.unwrap_or(Nic::Mem)))),
            (Plane::Kernel, None, Some(device), Some(load_by)) => {
                let (device, load_by) = (device.clone(), load_by.clone());
                Ok(On::Device(DeviceSetup { device, load_by, options: args.state.options() }, service))
            }
            (Plane::Kernel, None, None, None) => Ok(On::Lab(Over::Kernel(service))),
        }
    }

    /// What it is measured over: in words for the head of the file, and as the file's `calibrated` key names it.
    fn names(&self) -> (String, &'static str) {
        match self {
            On::Lab(over) => (over.name().to_owned(), over.calibrated()),
            On::Device(setup, _) => (setup.device.clone(), "device"),
        }
    }

    fn start(&self, config: BenchConfig) -> Result<(Box<dyn Bench>, Interrupts), Failure> {
        match self {
            On::Lab(over) => Ok((over.start(config)?, Interrupts::default())),
            On::Device(setup, kind) => {
                let bench = KernelBench::on_device(config, *kind, setup)?;
                let interrupts = bench.interrupts();
                Ok((Box::new(bench), interrupts))
            }
        }
    }
}

/// Measures, fits, and writes the file.
pub fn run(args: Calibrate, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let on = On::of(&args)?;
    let (over_name, over) = on.names();
    writable(&args.out)?;
    if args.connections < u32::from(args.workers) {
        let Calibrate { workers, connections, .. } = args;
        return Err(format!(
            "cannot give each of {workers} workers a connection: there are {connections}; raise --connections"
        )
        .into());
    }
    let config = BenchConfig {
        workers: usize::from(args.workers),
        connections: args.connections as usize,
        cores: args.cores.clone().unwrap_or_default(),
        ..BenchConfig::default()
    };
    let cores = Cores::split(&config)?;
    if cores.shared {
        return Err("cannot calibrate with the generator on the service's core: it takes two cores at the least".into());
    }
    let (mut bench, interrupts) = on.start(config)?;
    let user_plane = args.plane == Plane::User;
    let setup = Setup {
        head: head(&over_name),
        user_plane,
        over,
        workers: args.workers,
        connections: args.connections,
        hz: lull_host::Clock::new().tsc_khz().map_or(HZ_UNKNOWN, |khz| khz * 1_000),
        generator: true,
        user_percent: if user_plane { USER_PERCENT.0 } else { USER_PERCENT.1 },
        // On the kernel plane memcached writes each answer by a system call of its own, and no answer waits for
        // another.
        answers_together: if user_plane { lull_net::CORKED_FRAMES_MAX } else { 1 },
        interrupts,
    };
    let calibration = Calibration {
        setup,
        cores: (cores.service[0], cores.generator[0]),
        limit: args.limit,
        stop,
        tell: &mut |what| say!("lull: {what}"),
    };
    let outcome = match calibrate(&mut *bench, calibration) {
        Err(error @ Error::Stopped) => {
            say!("lull: {error}");
            // This is the status with which a shell reports a command that a signal ended.
            return Ok(ExitCode::from(130));
        }
        outcome => outcome?,
    };
    drop(bench);
    out!("{}", render(&outcome, COLUMNS))?;
    atomic::write(&args.out, outcome.calibrated.text.as_bytes())?;
    let (path, modes) = (args.out.display(), MODES_DEFAULT.len());
    if args.dev.is_some() {
        out!("\nWritten to {path}. What it predicts for {modes} modes: lull predict {path}\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    out!(
        "\nWritten to {path}. What it predicts for {modes} modes beside what is measured: lull compare --predict {path}{}\n",
        same_options(&args)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Escapes control characters as Rust writes them, so that the text cannot end a comment.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() })
        .collect()
}

/// The comment at the head of the file, which says where it comes from.
fn head(over: &str) -> Vec<String> {
    let machine = Machine::read();
    let model = machine.cpu_model.unwrap_or_else(|| machine.architecture.clone());
    vec![
        format!("Found by `{}`, over {}, on {}.", one_line(&command_line()), one_line(over), one_line(&model)),
        "It describes this machine with this service and this generator; calibrate again for another one.".to_owned(),
    ]
}

/// The options that `lull compare` needs for the same service.
fn same_options(args: &Calibrate) -> String {
    let mut options = String::new();
    if args.plane == Plane::Kernel {
        options += " --plane kernel";
    }
    let mut value = |option: &str, value: Option<clap::builder::PossibleValue>| {
        if let Some(value) = value {
            options += &format!(" {option} {}", value.get_name());
        }
    };
    value("--nic", args.nic.and_then(|nic| nic.to_possible_value()));
    value("--service", args.service.and_then(|service| service.to_possible_value()));
    if args.workers != 1 {
        options += &format!(" --workers {}", args.workers);
    }
    if args.connections != 64 {
        options += &format!(" --connections {}", args.connections);
    }
    if let Some(cores) = &args.cores {
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        options += &format!(" --cores {}", cores.join(","));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newline_in_an_argument_ends_no_comment() {
        assert_eq!(one_line("lull calibrate --out 'a\nb\u{7f}ü'"), "lull calibrate --out 'a\\nb\\u{7f}ü'");
    }
}
