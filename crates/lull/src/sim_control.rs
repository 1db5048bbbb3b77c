//! `lull sim control`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use lull_core::Mode;
use lull_lab::control::{Proof, Proving, phases, prove, timeline};
use lull_sim::{Job, Offered, WorldFile, predict};
use lull_slo::Slo;

use crate::failure::Failure;
use crate::measure_args::ended;
use crate::output::{outln, say};
use crate::outputs::Outputs;
use crate::predict::threads;
use crate::typed::command_line;

/// Arguments of `lull sim control`.
#[derive(Args)]
pub struct Control {
    /// The machine and the service, described in a TOML file.
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    /// The objective: avg, p50, p95 or p99 below a time; several are joined by commas, such as 'p99<200us,avg<80us'.
    #[arg(long)]
    slo: String,
    /// The mode that the controller begins with and falls back to: base, deferX, suspend0 or suspendX.
    #[arg(long, default_value = "suspend20")]
    mode: String,
    /// How many random traces to run. One is shown as a timeline, several are scored.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    traces: u64,
    /// The seed of the first trace. The same world and seed give the same run on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads to spread traces over; by default as many as there are CPUs.
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    outputs: Outputs,
}

/// The virtual time in which the service's maximum is measured, in nanoseconds.
const MAX_NS: u64 = 200_000_000;

/// Runs the traces and prints how they went.
pub fn control(args: &Control, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    let slo: Slo = args.slo.parse()?;
    let mode: Mode = args.mode.parse()?;
    args.outputs.check()?;
    let file = WorldFile::read(&args.world)?;
    let job = Job { mode: "base".parse()?, offered: Offered::Max, seed: args.seed, window_ns: MAX_NS };
    let max_per_s = predict::run(&file, &job)?.qps();
    let proving = Proving { file: &file, mode: &mode, slo: &slo, max_per_s, seed: args.seed, traces: args.traces };
    let done = |proven: &_| {
        if args.traces > 1 {
            say!("{}", phases(proven).trim_end());
        }
    };
    let proven = prove(&proving, threads(args.threads), stop, done)?;
    let command = command_line();
    let proof = Proof { proving: &proving, proven, command: &command };
    outln!("SIMULATED {}", file.describe())?;
    outln!("{}", proof.subject())?;
    if let [proven] = proof.proven.as_slice() {
        outln!("{}", timeline(proven, &slo).trim_end())?;
    }
    if args.traces == 1 || !proof.windows().1.eq(&0) {
        for proven in proof.proven.iter().filter(|proven| args.traces == 1 || !proven.score.missed.is_empty()) {
            outln!("{}", phases(proven).trim_end())?;
        }
    }
    outln!("{}", proof.words())?;
    args.outputs.write(&proof)?;
    Ok(ended(stop, false))
}
