//! `lull calibrate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lull_lab::bench::{BenchConfig, Cores};
use lull_lab::calibrate::{Calibration, Error, calibrate, render};
use lull_lab::csv::atomic;
use lull_lab::machine::Machine;
use lull_lab::plan::MODES_DEFAULT;
use lull_sim::calibration::Setup;

use crate::benches::{Nic, Over, Plane, Service};
use crate::compare::command_line;
use crate::failure::Failure;
use crate::output::{out, say};
use crate::outputs::writable;
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
    /// The service on the kernel plane [default: auto].
    #[arg(long, value_enum)]
    service: Option<Service>,
    /// Worker threads of the service, each with a core, a queue and an epoll context.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), default_value_t = 1)]
    workers: u16,
    /// Connections, over all workers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 64)]
    connections: u32,
    /// Cores to use, first those of the service, then those of the generator; by default all.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    /// Seconds that it may take, about: less makes runs and the fit shorter.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true, default_value = "60")]
    limit: Duration,
    /// The world file to write.
    #[arg(long, value_name = "MACHINE.toml")]
    out: PathBuf,
}

/// How wide prose is.
const COLUMNS: usize = 120;
/// The part of the lab's service that is in user space, in percent: on the kernel plane system calls are most of it.
const USER_PERCENT: (f64, f64) = (95.0, 20.0);
/// The core frequency of a machine whose cycle counter is not steady.
const HZ_UNKNOWN: u64 = 1_000_000_000;

/// Measures, fits, and writes the file.
pub fn run(args: Calibrate, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let over = match (args.plane, args.nic, args.service) {
        (Plane::User, _, Some(_)) => return Err("cannot use --service on the user plane: leave it out".into()),
        (Plane::Kernel, Some(_), _) => return Err("cannot use --nic on the kernel plane: leave it out".into()),
        (Plane::User, nic, None) => Over::User(nic.unwrap_or(Nic::Mem)),
        (Plane::Kernel, None, service) => Over::Kernel(service.unwrap_or(Service::Auto).into()),
    };
    writable(&args.out)?;
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
    let mut bench = over.start(config)?;
    let user_plane = args.plane == Plane::User;
    let setup = Setup {
        head: head(over),
        user_plane,
        over: over.calibrated(),
        workers: args.workers,
        connections: args.connections,
        hz: lull_host::Clock::new().tsc_khz().map_or(HZ_UNKNOWN, |khz| khz * 1_000),
        generator: true,
        user_percent: if user_plane { USER_PERCENT.0 } else { USER_PERCENT.1 },
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
            // As a shell reports a command that a signal ended.
            return Ok(ExitCode::from(130));
        }
        outcome => outcome?,
    };
    drop(bench);
    out!("{}", render(&outcome, COLUMNS))?;
    atomic::write(&args.out, outcome.calibrated.text.as_bytes())?;
    let (path, modes) = (args.out.display(), MODES_DEFAULT.len());
    out!(
        "\nWritten to {path}. What it predicts for {modes} modes beside what is measured: lull compare --predict {path}{}\n",
        same_options(&args)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Where the file comes from.
fn head(over: Over) -> Vec<String> {
    let machine = Machine::read();
    let model = machine.cpu_model.unwrap_or_else(|| machine.architecture.clone());
    vec![
        format!("Found by `{}`, over {}, on {model}.", command_line(), over.name()),
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
