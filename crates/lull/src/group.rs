//! `lull group`: the busy-polling CPU groups of a process, over its control socket.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, GroupChange, Request};

use crate::failure::Failure;
use crate::group_rows::print;
use crate::output::outln;
use crate::process;
use crate::units;

/// Arguments of `lull group`.
#[derive(Args)]
#[command(after_help = "\
A group of CPUs is made by `lull serve --mode group` or groupX, and lives in that process. CPUs and NAPIs come and go
while it polls, and nothing is lost. The last CPU that is detached lets all NAPIs go first, back to interrupts.")]
pub struct GroupArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows the groups of a process: their members and pollers, and what each of these did.
    Show {
        /// The process.
        pid: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Attaches cores of the machine to a group.
    Attach {
        #[command(flatten)]
        of: Of,
        /// The cores, such as 2-3.
        #[arg(value_name = "LIST", value_parser = units::List::parse)]
        cpus: units::List,
    },
    /// Detaches cores from a group.
    Detach {
        #[command(flatten)]
        of: Of,
        /// The cores, such as 2-3.
        #[arg(value_name = "LIST", value_parser = units::List::parse)]
        cpus: units::List,
    },
    /// Makes NAPIs members of a group.
    Add {
        #[command(flatten)]
        of: Of,
        /// Their ids, as `lull show` lists them.
        #[arg(required = true)]
        napi: Vec<u32>,
        /// Packets that each may take per visit, 1 to 64 [default: 64].
        #[arg(long)]
        weight: Option<u32>,
    },
    /// Takes NAPIs out of a group; they go back to interrupts, or to the deferral that is set.
    Remove {
        #[command(flatten)]
        of: Of,
        /// Their ids, as `lull show` lists them.
        #[arg(required = true)]
        napi: Vec<u32>,
    },
}

/// The group that a change applies to.
#[derive(Args)]
struct Of {
    /// The process.
    pid: u32,
    /// The group, if the process has several.
    #[arg(long)]
    group: Option<u32>,
}

/// Shows or changes the groups of a process.
pub fn run(args: &GroupArgs) -> Result<ExitCode, Failure> {
    let change = |of: &Of| GroupChange { group: of.group, ..GroupChange::default() };
    let (of, change) = match &args.action {
        Action::Show { pid, json } => return show(*pid, *json),
        Action::Attach { of, cpus } => (of, GroupChange { attach: cpus.0.clone(), ..change(of) }),
        Action::Detach { of, cpus } => (of, GroupChange { detach: cpus.0.clone(), ..change(of) }),
        Action::Add { of, napi, weight } => (of, GroupChange { add: napi.clone(), weight: *weight, ..change(of) }),
        Action::Remove { of, napi } => (of, GroupChange { remove: napi.clone(), ..change(of) }),
    };
    let mut client = Client::connect(of.pid, &Places::default())?;
    match client.ask(&Request::Group(change))? {
        Answer::Group(group) => print(&group)?,
        other => return Err(format!("process {} answered a change of a group with {other:?}", of.pid).into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(pid: u32, json: bool) -> Result<ExitCode, Failure> {
    let groups = process::groups(pid)?;
    if json {
        outln!("{}", serde_json::to_string_pretty(&groups)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        outln!("process {pid} has no group of CPUs: `lull serve --mode group --group-cpus LIST` starts one")?;
    }
    groups.iter().try_for_each(print)?;
    Ok(ExitCode::SUCCESS)
}
