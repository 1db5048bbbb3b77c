//! `lull set`.

use std::process::ExitCode;

use clap::Args;
use lull_linux::plan::Change;
use lull_linux::set::{Set, Setting, Which, set, set_diff};
use lull_linux::{Error, Session};

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{outln, print_changes};
use crate::process::change;
use crate::target::Target;
use crate::units;

/// Arguments of `lull set`.
#[derive(Args)]
#[command(after_help = "\
Settings:
  defer-hard-irqs=N          empty polls for which the interrupt stays masked
  gro-flush-timeout=TIME     between them, such as 20us; 0 is off
  irq-suspend-timeout=TIME   for which an application may keep the interrupt masked, such as 20ms; 0 is off
  threaded=off|on|busy-poll  who polls: softirq, a thread of the NAPI's own, or one that polls for ever
  thread-cpus=LIST           the CPUs that its thread may run on, such as 0,2-3
  thread-policy=POLICY       its thread's policy and priority: fifo:50, rr:50, other:-10, deadline:200us/1ms

`lull show` shows the threads with their numbers, and `lull undo` gives back what was there before.")]
pub struct SetArgs {
    /// The device, or the process that runs lull's user plane. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    target: Target,
    /// The settings.
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The NAPIs of these receive queues, such as 0,2-3; all of the device by default.
    #[arg(long, visible_alias = "queues", value_name = "LIST", value_parser = units::List::parse)]
    queue: Option<units::List>,
    /// The NAPI with this id; may be given several times.
    #[arg(long, value_name = "ID")]
    napi: Vec<u32>,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Puts single settings in force.
pub fn run(args: &SetArgs) -> Result<ExitCode, Failure> {
    let settings = args.settings.iter().map(|text| text.parse()).collect::<Result<Vec<Setting>, Error>>()?;
    let queues = args.queue.as_ref().map_or(&[][..], |list| &list.0);
    let which = Which { queues: queues.iter().map(|&queue| queue as u32).collect(), napi_ids: args.napi.clone() };
    let asked = Set { which, settings };
    asked.check()?;
    let (target, changes) = match &args.target {
        Target::Device(dev) => (dev.clone(), on_device(dev, &asked, args)?),
        Target::Process(pid) => (pid.to_string(), change::set(*pid, &asked, args.dry_run)?),
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&changes)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_changes(&changes, if args.dry_run { "would set " } else { "" })?;
    match (changes.is_empty(), args.dry_run) {
        (true, _) => outln!("{target} has these settings already: nothing to change")?,
        (false, true) => {}
        (false, false) => outln!("`lull undo {target}` gives back what was there before")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn on_device(dev: &str, asked: &Set, args: &SetArgs) -> Result<Vec<Change>, Error> {
    let mut session = Session::open(dev, &args.state.options())?;
    if args.dry_run { set_diff(&mut session, asked) } else { Ok(set(&mut session, asked)?.changes) }
}
