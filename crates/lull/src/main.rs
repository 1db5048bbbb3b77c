//! `lull` measures and runs IRQ delivery modes.
#![forbid(unsafe_code)]
// Only `output.rs` prints, and it returns what goes wrong.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod after_resume;
mod apply;
mod attach;
mod benches;
mod calibrate;
mod cli;
mod compare;
mod device_args;
mod doctor;
mod failure;
mod flood;
mod forward;
mod group;
mod group_args;
mod group_rows;
mod keeper;
mod load;
mod manual;
mod measure_args;
mod merge;
mod metrics;
mod modes;
mod output;
mod outputs;
mod own_addresses;
mod predict;
mod prepare;
mod process;
mod rows;
mod run;
mod serve;
mod set;
mod show;
mod sim;
mod sim_control;
mod sim_replay;
mod slo_args;
mod ss;
mod stat;
mod steer_args;
mod target;
mod top;
mod tune;
mod typed;
mod undo;
mod units;
mod xdp;
mod xsk_rr;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use cli::{Cli, Command};
use failure::Failure;
use lull_control::place::Places;
use output::{outln, say};

fn main() -> ExitCode {
    let matches = manual::by_plane(Cli::command()).try_get_matches();
    let json = matches.as_ref().is_ok_and(wants_json);
    let given = matches.as_ref().map(given).unwrap_or_default();
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let done = parsed.map_or_else(|error| usage(&error), |cli| run_command(cli, &given));
    // What standard output still buffers belongs to the command's output.
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

/// Whether a command or one of its subcommands prints JSON; then its error is printed as JSON on standard output as
/// well. (A `--json` that names a file is no flag.)
fn wants_json(matches: &ArgMatches) -> bool {
    matches.subcommand().is_some_and(|(_, command)| {
        matches!(command.try_get_one::<bool>("json"), Ok(Some(true))) || wants_json(command)
    })
}

/// Returns the options that were given after the command's name, by the names of its arguments.
fn given(matches: &ArgMatches) -> Vec<String> {
    let Some((_, command)) = matches.subcommand() else { return Vec::new() };
    let typed = |id: &&clap::Id| command.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    command.ids().filter(typed).map(ToString::to_string).collect()
}

/// Prints --help and --version on standard output, and errors in the arguments on standard error.
fn usage(message: &clap::Error) -> Result<ExitCode, Failure> {
    match message.print() {
        Err(error) if !message.use_stderr() => Err(output::WriteError::from(error).into()),
        _ => Ok(ExitCode::from(message.exit_code() as u8)),
    }
}

/// Removes what killed commands and services have left behind: locks of programs and devices, and control sockets.
fn sweep() {
    let directory =
        std::env::var_os("LULL_STATE_DIR").map_or_else(|| lull_linux::state::STATE_DIR.into(), PathBuf::from);
    lull_linux::attach::sweep(&directory);
    lull_linux::state::sweep(&directory);
    Places::default().sweep();
}

fn run_command(cli: Cli, given: &[String]) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    // Signals that `lull run` gets go to its program. Commands that compute or show, and leave nothing behind, end in
    // the usual way.
    match &cli.command {
        Command::Run(_) | Command::Supervise(_) => {}
        Command::Sim(args) if !args.looks_at_stop() => {}
        Command::Merge(_) | Command::Show(_) | Command::Doctor(_) | Command::Diff(_) | Command::Ss(_) => {}
        Command::Man(_) | Command::Completions(_) => {}
        _ => lull_linux::os::stop_at_signals(&stop),
    }
    sweep();
    match cli.command {
        Command::Compare(args) => compare::run(args, given, &stop),
        Command::Forward(args) => forward::run(&args, &stop),
        Command::Flood(args) => flood::run(&args, &stop),
        Command::Load(args) => load::run(args, &stop),
        Command::Merge(args) => merge::run(&args),
        Command::XskRr(args) => xsk_rr::run(&args, &stop),
        Command::Calibrate(args) => calibrate::run(args, &stop),
        Command::Predict(args) => predict::run(args, &stop),
        Command::Tune(args) => tune::run(args, &stop),
        Command::Sim(args) => sim::run(args, &stop),
        Command::Serve(args) => serve::start::run(args, &stop),
        Command::Show(args) => show::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Apply(args) => apply::run(&args, &stop),
        Command::Diff(args) => apply::diff(&args),
        Command::Set(args) => set::run(&args),
        Command::Group(args) => group::run(&args),
        Command::Undo(args) => undo::run(&args, &stop),
        Command::Attach(args) => attach::run(&args, &stop),
        Command::Detach(args) => attach::detach(&args),
        Command::Run(args) => run::run(&args),
        Command::Supervise(args) => run::supervise(&args),
        Command::Ss(args) => ss::run(&args),
        Command::Stat(args) => stat::run(&args, &stop),
        Command::Top(args) => top::run(&args, &stop),
        Command::Prepare(args) => prepare::run(&args),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    }
}
