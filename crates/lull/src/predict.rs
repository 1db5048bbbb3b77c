//! `lull predict`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_core::{Mode, mode};
use lull_lab::cell::Load;
use lull_lab::plan::MODES_DEFAULT;
use lull_lab::simulated::{Prediction, predict};
use lull_lab::table::{self, TableStyle};
use lull_sim::WorldFile;

use crate::failure::Failure;
use crate::modes;
use crate::output::out;
use crate::outputs::Outputs;
use crate::typed::command_line;
use crate::units;

/// Arguments of `lull predict`.
#[derive(Args)]
#[command(after_help = "\
Latency in an open loop counts from when a request was due, as `lull compare` counts: a request that waits for its \
connection is late already.")]
pub struct Predict {
    /// The machine and the service, described in a TOML file.
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    #[arg(long, value_delimiter = ',', default_values = MODES_DEFAULT, help = modes::short("Delivery modes", mode::Plane::Simulated),
        long_help = modes::long("Delivery modes", mode::Plane::Simulated))]
    modes: Vec<String>,
    /// Loads: shares of base's predicted maximum (25%), queries per second (200K), or MAX (closed loop).
    #[arg(long, default_value = "25%,50%,75%,MAX")]
    loads: String,
    /// Runs per cell, each with a seed of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 3)]
    runs: u32,
    /// The seed of the first run. The same world and seed give the same table on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of virtual time that a run counts.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true, default_value = "0.2")]
    seconds: Duration,
    /// Threads to spread runs over; by default as many as there are CPUs.
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    outputs: Outputs,
}

/// Returns the number of threads that was asked for, or else the number of CPUs.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}

/// The shortest window in which anything can be counted.
const WINDOW_MIN: Duration = Duration::from_micros(1);

/// Refuses a window of virtual time in which nothing can be counted.
pub fn check_window(seconds: Duration) -> Result<(), Failure> {
    match seconds < WINDOW_MIN {
        true => Err("cannot count for less than a microsecond: give --seconds 0.000001 or more".into()),
        false => Ok(()),
    }
}

/// Predicts and writes what was asked for.
pub fn run(args: Predict, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let modes = modes::once(&args.modes).iter().map(|name| name.parse()).collect::<Result<Vec<Mode>, _>>()?;
    let loads = Load::parse_list(&args.loads)?;
    check_window(args.seconds)?;
    args.outputs.check()?;
    let file = WorldFile::read(&args.world)?;
    let report = predict(&Prediction {
        file: &file,
        modes: &modes,
        loads: &loads,
        runs: args.runs,
        seed: args.seed,
        window_ns: args.seconds.as_nanos() as u64,
        threads: threads(args.threads),
        stop,
        command: command_line(),
    })?;
    out!("{}", table::render(&report, TableStyle::for_stdout()))?;
    args.outputs.write(&report)?;
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(130) } else { ExitCode::SUCCESS })
}
