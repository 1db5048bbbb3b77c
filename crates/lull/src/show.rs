//! `lull show`.

use std::process::ExitCode;

use clap::Args;
use lull_linux::device::Snapshot;
use lull_linux::netdev::Netdev;
use lull_linux::plan::no_napi;
use lull_linux::programs::may_not_trace;
use lull_linux::roots::Roots;
use lull_linux::sched::shown_ns;
use lull_linux::show::{NapiShow, Show, show};
use lull_linux::values::ThreadedName;
use lull_linux::{Error, Session};

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::output::{WriteError, outln};
use crate::process::Process;
use crate::rows::{ROW_HEAD, Row, print_rows, thread_cell};
use crate::target::Target;

/// Arguments of `lull show`.
#[derive(Args)]
pub struct ShowArgs {
    /// The device, or the process that runs lull's user plane; by default all devices that have NAPIs and all such
    /// processes. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    target: Option<Target>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Shows what is in force.
pub fn run(args: &ShowArgs) -> Result<ExitCode, Failure> {
    let (devices, processes) = match &args.target {
        Some(Target::Device(name)) => (devices(std::slice::from_ref(name), true, args)?, Vec::new()),
        Some(Target::Process(pid)) => (Vec::new(), vec![Process::of(*pid)?]),
        None => {
            let names: Vec<String> = Netdev::new().links()?.into_iter().map(|link| link.name).collect();
            (devices(&names, false, args)?, Process::all())
        }
    };
    if args.json {
        let devices = devices.iter().map(serde_json::to_value);
        let all = devices.chain(processes.iter().map(serde_json::to_value)).collect::<Result<Vec<_>, _>>()?;
        outln!("{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut first = true;
    let mut separate = || if std::mem::take(&mut first) { Ok(()) } else { outln!() };
    for device in &devices {
        separate()?;
        print(device)?;
    }
    for process in &processes {
        separate()?;
        process.print()?;
    }
    if devices.is_empty() && processes.is_empty() {
        outln!(
            "no device of this network namespace shows a NAPI, and no process runs lull's user plane; `lull doctor` says why"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Examines devices. A device that was named is shown, or its absence is an error; of the others only those that have
/// NAPIs are shown.
fn devices(names: &[String], named: bool, args: &ShowArgs) -> Result<Vec<Show>, Failure> {
    let mut shown = Vec::new();
    for name in names {
        let device = match Session::open(name, &args.state.options()).and_then(|mut session| show(&mut session)) {
            // The device was listed a moment ago, and is gone now.
            Err(Error::UnknownDevice { .. }) if !named => continue,
            shown => shown?,
        };
        if named || !device.snapshot.napis.is_empty() {
            shown.push(device);
        }
    }
    Ok(shown)
}

fn print(device: &Show) -> Result<(), WriteError> {
    print_head(&device.snapshot)?;
    if device.snapshot.napis.is_empty() {
        return outln!("  {}", no_napi(&device.snapshot));
    }
    let mut rows = vec![ROW_HEAD.map(str::to_owned)];
    rows.extend(device.napis.iter().map(row));
    print_rows(&rows)?;
    for napi in &device.napis {
        print_notes(napi, device.kept_by)?;
    }
    if let Some(decided) = &device.controller {
        outln!("  controller: {}", decided.words())?;
    }
    for program in &device.spanning_programs {
        outln!("  {program}; what helps: {}", program.remedy())?;
    }
    for program in &device.idle_programs {
        let prefers = if program.prefer_busy_poll { "prefers busy polling" } else { "busy polls" };
        outln!(
            "  {} (pid {}, epoll {}) {prefers}, and has no connection over a device now: no queue is its",
            program.name,
            program.pid,
            program.epoll_fd
        )?;
    }
    if device.processes_hidden != 0 {
        let remedy = may_not_trace(&Roots::default());
        let processes = if device.processes_hidden == 1 { "process" } else { "processes" };
        outln!("  {} {processes} could not be looked into; to see all {remedy}", device.processes_hidden)?;
    }
    Ok(())
}

fn print_head(device: &Snapshot) -> Result<(), WriteError> {
    let driver = device.driver.as_deref().unwrap_or("driver unknown");
    let state = if device.up { "up" } else { "down" };
    outln!("{} ({driver}, index {}, {state})", device.device, device.ifindex)?;
    if let Some(defaults) = &device.defaults {
        let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        outln!(
            "  device defaults: napi_defer_hard_irqs {}, gro_flush_timeout {}, threaded {}",
            number(defaults.defer_hard_irqs),
            defaults.gro_flush_timeout_ns.map_or("-".to_owned(), shown_ns),
            number(defaults.threaded)
        )?;
    }
    if !device.queues_linked && !device.napis.is_empty() {
        outln!("  the driver does not say which NAPI serves which queue: they are numbered in the order of their ids")?;
    }
    Ok(())
}

fn row(shown: &NapiShow) -> Row {
    let napi = &shown.state;
    let dash = || "-".to_owned();
    let settings = &napi.settings;
    let threaded = match settings.threaded {
        ThreadedName::Off => "off",
        ThreadedName::On => "on",
        ThreadedName::BusyPoll => "busy-poll",
    };
    [
        napi.key.to_string(),
        napi.id.to_string(),
        napi.irq.as_ref().map_or_else(dash, |irq| irq.number.to_string()),
        napi.irq.as_ref().and_then(|irq| irq.effective_cpus.clone().or(irq.cpus.clone())).unwrap_or_else(dash),
        napi.thread.as_ref().map_or_else(dash, |thread| thread_cell(thread.pid, thread.scheduling.as_ref())),
        settings.defer_hard_irqs.to_string(),
        shown_ns(settings.gro_flush_timeout_ns),
        shown_ns(settings.irq_suspend_timeout_ns),
        threaded.to_owned(),
        shown.recognised.mode.clone(),
    ]
}

fn print_notes(shown: &NapiShow, kept_by: Option<u32>) -> Result<(), WriteError> {
    let queue = shown.state.key;
    if let Some(note) = &shown.recognised.note {
        outln!("  queue {queue}: {note}")?;
    }
    if let Some(applied) = &shown.applied {
        match kept_by {
            Some(pid) => outln!(
                "  queue {queue}: {applied} was applied; process {pid} keeps it, and takes it back when it ends"
            )?,
            None => outln!("  queue {queue}: {applied} was applied; `lull undo` takes it back")?,
        }
    }
    for program in &shown.programs {
        let prefers = if program.prefer_busy_poll { "prefers busy polling" } else { "busy polls" };
        outln!(
            "  queue {queue}: {} (pid {}, epoll {}) {prefers}: usecs {}, budget {}, {} of its sockets here",
            program.name,
            program.pid,
            program.epoll_fd,
            program.busy_poll_usecs,
            program.busy_poll_budget,
            program.sockets
        )?;
    }
    Ok(())
}
