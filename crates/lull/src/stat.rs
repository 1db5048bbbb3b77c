//! `lull stat`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_linux::Roots;
use lull_linux::stat::Watch;

use crate::failure::Failure;
use crate::output::out;
use crate::process;
use crate::target::Target;
use crate::units;

/// Arguments of `lull stat`.
#[derive(Args)]
pub struct StatArgs {
    /// The device, or the process that runs lull's user plane. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    target: Target,
    /// Length of an interval, such as 1s or 200ms.
    #[arg(long, value_parser = units::interval, default_value = "1s", value_name = "TIME")]
    interval: Duration,
    /// How many intervals to show; by default it goes on until it is stopped.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one line of JSON per interval.
    #[arg(long)]
    json: bool,
}

/// Shows who polls, interval by interval.
pub fn run(args: &StatArgs, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let device = match &args.target {
        Target::Device(device) => device,
        Target::Process(pid) => return process::stat(*pid, args.interval, args.count, args.json, stop),
    };
    let mut watch = Watch::open(device, &Roots::default())?;
    let mut shown = 0;
    while !stop.load(Ordering::Relaxed) && args.count.is_none_or(|count| shown < count) {
        let sample = watch.sample(args.interval, stop)?;
        let text = if args.json { serde_json::to_string(&sample)? + "\n" } else { sample.to_string() };
        out!("{text}")?;
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}
