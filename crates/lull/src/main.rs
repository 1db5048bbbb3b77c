//! `lull`: measure and run IRQ delivery modes.
#![forbid(unsafe_code)]

mod compare;
mod load;
mod serve;
mod sim;
mod sim_replay;
mod units;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};

/// How packets reach a network service: by interrupt when idle, by polling when busy.
///
/// lull implements the NAPI delivery model (IRQ deferral, busy polling, preferred busy polling, IRQ suspension, NAPI
/// threads) in user space, and measures every mode on a real TCP service.
#[derive(Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures every delivery mode on a memcached service and prints one table.
    Compare(compare::Compare),
    /// Puts mutilate's load on a memcached server over the kernel's sockets.
    Load(load::LoadArgs),
    /// The simulated plane: published tables as worlds, and their calibration.
    Sim(sim::SimArgs),
    /// Runs a memcached service on lull's own stack over a NIC.
    Serve(serve::Serve),
}

/// A failure that is told in one line and ends the command with status 2.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second signal ends the process at once, in the usual way. Both are signals that can be caught.
        let _ = signal_hook::flag::register_conditional_default(signal, stop.clone());
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    let result = match cli.command {
        Command::Compare(args) => compare::run(args, &stop),
        Command::Load(args) => load::run(args, &stop),
        Command::Sim(args) => sim::run(args, &stop),
        Command::Serve(args) => serve::run(args, &stop),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("lull: {failure}");
            ExitCode::from(2)
        }
    }
}
