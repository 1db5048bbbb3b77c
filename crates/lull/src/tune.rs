//! `lull tune`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_lab::bench::{BenchConfig, Cores};
use lull_lab::cell::Load;
use lull_lab::load::Arrivals;
use lull_lab::predicted;
use lull_lab::stalls;
use lull_lab::table::wrap;
use lull_lab::tuning::confirm::{self, Confirm, Confirmed};
use lull_lab::tuning::words::refusal;
use lull_lab::tuning::{Tuned, render, search, window_ns};
use lull_sim::WorldFile;
use lull_sim::tune::{Objective, TuneError};
use lull_sim::worldfile::Arrivals as WorldArrivals;
use lull_slo::Slo;
use lull_units::share_permille;

use crate::benches::{Nic, Over, Service};
use crate::failure::Failure;
use crate::measure_args::ended;
use crate::output::{out, say};
use crate::outputs::Outputs;
use crate::predict::{check_window, threads};
use crate::typed::command_line;
use crate::units;

/// Arguments of `lull tune`.
#[derive(Args)]
pub struct Tune {
    /// The machine and the service, described in a TOML file.
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    /// The objective: avg, p50, p95 or p99 below a time; several are joined by commas, such as 'p99<200us,avg<80us'.
    /// Latency counts from when a request was due, also if it waits for its connection.
    #[arg(long)]
    slo: String,
    /// The load, in queries per second (400K).
    #[arg(long)]
    load: String,
    /// The most CPU that the service's cores may use, such as 50%.
    #[arg(long, value_name = "SHARE")]
    cpu_max: Option<String>,
    /// How far below its latency bounds a setting should stay; if none does, one that just meets them is taken.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    spare: String,
    /// How many seeds confirm a recommendation.
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=100), default_value_t = 5)]
    seeds: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of virtual time that a run counts; by default the time of 20,000 queries.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,
    /// Threads to spread runs over; by default as many as there are CPUs.
    #[arg(long)]
    threads: Option<usize>,
    /// Measure the first three candidates on this machine, with the lab's service and load; this takes a world file of
    /// `lull calibrate`. The exit status is 1 if none of them met the objective in every run.
    #[arg(long)]
    measure: bool,
    /// With --measure: the NIC under the service in lull's own stack [default: that of the calibration, else mem].
    #[arg(long, value_enum, requires = "measure")]
    nic: Option<Nic>,
    /// With --measure: the service on the kernel plane, which the file does not name [default: auto].
    #[arg(long, value_enum, requires = "measure")]
    service: Option<Service>,
    /// With --measure: cores to use, first those of the service, then those of the generator; by default all.
    #[arg(long, value_parser = units::cores, requires = "measure")]
    cores: Option<std::vec::Vec<usize>>,
    /// The device's name in the commands that are printed.
    #[arg(long, default_value = "DEV")]
    dev: String,
    #[command(flatten)]
    outputs: Outputs,
}

/// The width of prose in columns.
const COLUMNS: usize = 120;

/// Searches and prints the answer; if there is none, prints the frontier and fails.
pub fn run(args: Tune, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let slo: Slo = args.slo.parse()?;
    let per_s = match args.load.parse::<Load>()? {
        Load::Rate { qps } => qps as f64,
        load => return Err(format!("cannot tune for the load {load}: give queries per second, such as 400K").into()),
    };
    let cpu_max_percent = args.cpu_max.as_deref().map(|text| percent("--cpu-max", text, 1, 1_000)).transpose()?;
    let spare_percent = percent("--spare", &args.spare, 0, 900)?;
    args.seconds.map_or(Ok(()), check_window)?;
    args.outputs.check()?;
    let file = WorldFile::read(&args.world)?;
    let measured = if args.measure { Some(bench_of(&file, &args)?) } else { None };
    let objective = Objective {
        slo,
        per_s,
        cpu_max_percent,
        spare_percent,
        seeds: args.seeds,
        seed: args.seed,
        window_ns: args.seconds.map_or_else(|| window_ns(per_s), |seconds| seconds.as_nanos() as u64),
    };
    let answer = match search(&file, &objective, threads(args.threads), stop) {
        Err(error @ TuneError::Stopped) => {
            say!("lull: {error}");
            return Ok(ended(stop, true));
        }
        answer => answer?,
    };
    out!("{}", render(&file, &answer, &args.dev, COLUMNS))?;
    let command = command_line();
    args.outputs.write(&Tuned { file: &file, answer: &answer, dev: &args.dev, command: &command })?;
    let mut unconfirmed = false;
    if let Some((over, config)) = measured {
        let cores = Cores::split(&config)?;
        let cores = [cores.service, cores.generator].concat();
        let with = Confirm {
            stop,
            tell: &mut |what| say!("lull: {what}"),
            watch: &mut |time| stalls::watch(&cores, time),
            limit: confirm::LIMIT,
        };
        let mut bench = over.start(config)?;
        let confirmed = match confirm::confirm(&mut *bench, &answer, with) {
            Err(error) if stop.load(Ordering::Relaxed) => {
                say!("lull: {error}");
                return Ok(ended(stop, true));
            }
            confirmed => confirmed?,
        };
        let service = match over {
            // The first note of the kernel's bench names the program.
            Over::Kernel(_) => bench.notes().into_iter().next().unwrap_or_default(),
            _ => "The service is lull's own.".to_owned(),
        };
        out!("\n{}", wrap(&format!("Measured over {}. {service}", over.name()), COLUMNS, ""))?;
        out!("{}", confirm::render(&answer, &confirmed, COLUMNS))?;
        unconfirmed = !confirmed.candidates.iter().any(Confirmed::holds);
    }
    match answer.recommended {
        Some(_) => Ok(ended(stop, unconfirmed)),
        None => Err(refusal(&answer).into()),
    }
}

/// Returns the lab's service that a world file describes.
fn bench_of(file: &WorldFile, args: &Tune) -> Result<(Over, BenchConfig), Failure> {
    predicted::is_the_labs(file)?;
    let arrivals = match file.arrivals {
        WorldArrivals::Poisson => Arrivals::Exponential,
        WorldArrivals::Facebook => Arrivals::Facebook,
        WorldArrivals::Trace(_) => return Err("cannot measure a trace: the lab replays none".into()),
    };
    if file.host.is_some() && args.service.is_some() {
        return Err("cannot use --service: the file describes lull's own stack, with lull's own service".into());
    }
    let over = match (file.host, args.nic) {
        (Some(_), Some(nic)) => Over::User(nic),
        (Some(_), None) => Over::User(match file.calibrated_over {
            Some("tap") => Nic::Tap,
            Some("xdp") => Nic::Xdp,
            _ => Nic::Mem,
        }),
        (None, None) => Over::Kernel(args.service.unwrap_or(Service::Auto).into()),
        (None, Some(_)) => return Err("cannot use --nic: the file describes the kernel plane".into()),
    };
    predicted::is_over(file, over.calibrated())?;
    let (workers, connections) = (usize::from(file.workers), file.connections as usize);
    let cores = args.cores.clone().unwrap_or_default();
    Ok((over, BenchConfig { workers, connections, cores, arrivals, ..BenchConfig::default() }))
}

/// Reads a share in percent, within limits that are given in thousandths.
fn percent(flag: &str, text: &str, least: u64, most: u64) -> Result<f64, Failure> {
    let range = |permille: u64| format!("{}%", permille as f64 / 10.0);
    match share_permille(text) {
        Ok(permille) if (least..=most).contains(&permille) => Ok(permille as f64 / 10.0),
        Ok(_) => Err(format!("{flag}: {text} is impossible: allowed is {} to {}", range(least), range(most)).into()),
        Err(error) => Err(format!("{flag}: {error}").into()),
    }
}
