//! `lull`: measure and run IRQ delivery modes.
#![forbid(unsafe_code)]
// `output.rs` prints, and returns what goes wrong with it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod after_resume;
mod apply;
mod attach;
mod compare;
mod doctor;
mod load;
mod manual;
mod modes;
mod output;
mod outputs;
mod predict;
mod prepare;
mod process;
mod run;
mod serve;
mod set;
mod show;
mod sim;
mod sim_replay;
mod stat;
mod target;
mod tune;
mod undo;
mod units;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{ArgMatches, FromArgMatches, Parser, Subcommand};

use output::{outln, say};

/// How packets reach a network service: by interrupt when idle, by polling when busy.
///
/// lull implements the NAPI delivery model (IRQ deferral, busy polling, preferred busy polling, IRQ suspension, NAPI
/// threads) on three planes: in user space (compare, serve), as Linux's own settings under unmodified programs (doctor,
/// apply, attach, run, show, stat, undo), and simulated (predict, tune, sim).
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
    /// Predicts every delivery mode for a machine and a service described in a file, by simulation.
    Predict(predict::Predict),
    /// Finds the mode and timeout that meet a latency objective at the least CPU, by simulation.
    Tune(tune::Tune),
    /// The simulated plane: published tables as worlds, their calibration, and random worlds that check the core.
    Sim(sim::SimArgs),
    /// Runs a memcached service on lull's own stack over a NIC.
    Serve(serve::Serve),
    /// Shows the delivery settings in force on a device of the kernel, or in a process that runs lull's user plane.
    Show(show::ShowArgs),
    /// Says what this kernel, driver and these rights allow, mode by mode, and what stands in the way.
    Doctor(doctor::DoctorArgs),
    /// Puts a delivery mode in force on a device of the kernel, until `lull undo`.
    Apply(apply::ApplyArgs),
    /// Shows what `lull apply` would change.
    Diff(apply::DiffArgs),
    /// Sets single settings of NAPIs, of a device or a process, until `lull undo`.
    Set(set::SetArgs),
    /// Gives a device, all devices or a process back what they had before `lull apply` and `lull set`.
    Undo(undo::UndoArgs),
    /// Sets the epoll busy-poll parameters inside a running program, and follows it.
    Attach(attach::AttachArgs),
    /// Gives a program's epoll contexts back what they had before `lull attach`.
    Detach(attach::DetachArgs),
    /// Runs a program with a mode in force, and undoes it when the program has ended.
    Run(run::RunArgs),
    /// Undoes for a `lull run` that was killed.
    #[command(hide = true)]
    Supervise(run::SuperviseArgs),
    /// Shows who polls, of a device of the kernel or of a process on the user plane: softirq, NAPI thread, busy poll ...
    Stat(stat::StatArgs),
    /// Sets a device and the machine up for low latency, by the steps of a profile.
    Prepare(prepare::PrepareArgs),
    /// Prints a manual page, or writes those of all commands into a directory.
    Man(manual::ManArgs),
    /// Prints a completion script for a shell.
    Completions(manual::CompletionsArgs),
}

/// A failure that is told in one line and ends the command with status 2.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let matches = manual::command().try_get_matches();
    let json = matches.as_ref().is_ok_and(wants_json);
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let done = parsed.map_or_else(|error| usage(&error), run_command);
    // What standard output holds back is part of what the command has to say.
    let done = done.and_then(|code| output::flush().map(|()| code).map_err(Failure::from));
    done.unwrap_or_else(|failure| match failure.downcast_ref::<output::WriteError>() {
        Some(unwritten) => unwritten.end(),
        None => {
            say!("lull: {failure}");
            let told = if json { outln!("{}", serde_json::json!({ "error": failure.to_string() })) } else { Ok(()) };
            told.map_or_else(|unwritten| unwritten.end(), |()| ExitCode::from(2))
        }
    })
}

/// Whether a command prints JSON. It then says there, too, why it failed. (Where `--json` names a file it is no flag.)
fn wants_json(matches: &ArgMatches) -> bool {
    let flag = |(_, command): (&str, &ArgMatches)| matches!(command.try_get_one::<bool>("json"), Ok(Some(true)));
    matches.subcommand().is_some_and(flag)
}

/// Prints --help and --version on standard output, and what is wrong with the arguments on standard error.
fn usage(message: &clap::Error) -> Result<ExitCode, Failure> {
    match message.print() {
        Err(error) if !message.use_stderr() => Err(output::WriteError::from(error).into()),
        _ => Ok(ExitCode::from(message.exit_code() as u8)),
    }
}

fn run_command(cli: Cli) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    // Those that `lull run` gets are its program's.
    let signals: &[_] = match cli.command {
        Command::Run(_) | Command::Supervise(_) => &[],
        _ => &[signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM],
    };
    for &signal in signals {
        // The second signal ends the process at once, in the usual way. Both are signals that can be caught.
        let _ = signal_hook::flag::register_conditional_default(signal, stop.clone());
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    match cli.command {
        Command::Compare(args) => compare::run(args, &stop),
        Command::Load(args) => load::run(args, &stop),
        Command::Predict(args) => predict::run(args, &stop),
        Command::Tune(args) => tune::run(args, &stop),
        Command::Sim(args) => sim::run(args, &stop),
        Command::Serve(args) => serve::run(args, &stop),
        Command::Show(args) => show::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Apply(args) => apply::run(&args, &stop),
        Command::Diff(args) => apply::diff(&args),
        Command::Set(args) => set::run(&args),
        Command::Undo(args) => undo::run(&args),
        Command::Attach(args) => attach::run(&args, &stop),
        Command::Detach(args) => attach::detach(&args),
        Command::Run(args) => run::run(&args),
        Command::Supervise(args) => run::supervise(&args),
        Command::Stat(args) => stat::run(&args, &stop),
        Command::Prepare(args) => prepare::run(&args),
        Command::Man(args) => manual::man(&args),
        Command::Completions(args) => manual::completions(&args),
    }
}
