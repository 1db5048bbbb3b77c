//! `lull show`.

use std::process::ExitCode;

use clap::Args;
use lull_linux::device::{Snapshot, Thread};
use lull_linux::netdev::Netdev;
use lull_linux::plan::{cpu_list, no_napi};
use lull_linux::sched::shown_ns;
use lull_linux::show::{NapiShow, Show, show};
use lull_linux::values::ThreadedName;
use lull_linux::{Error, Session};

use crate::Failure;
use crate::apply::StateArgs;
use crate::output::{WriteError, outln};

/// Arguments of `lull show`.
#[derive(Args)]
pub struct ShowArgs {
    /// The device; all devices that have NAPIs by default.
    dev: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Shows what is in force.
pub fn run(args: &ShowArgs) -> Result<ExitCode, Failure> {
    let names = match &args.dev {
        Some(dev) => vec![dev.clone()],
        None => Netdev::new().links()?.into_iter().map(|link| link.name).collect(),
    };
    let mut shown = Vec::new();
    for name in names {
        let device = match Session::open(&name, &args.state.options()).and_then(|mut session| show(&mut session)) {
            // Listed a moment ago, and gone.
            Err(Error::UnknownDevice { .. }) if args.dev.is_none() => continue,
            shown => shown?,
        };
        if args.dev.is_some() || !device.snapshot.napis.is_empty() {
            shown.push(device);
        }
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&shown)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (nth, device) in shown.iter().enumerate() {
        if nth != 0 {
            outln!()?;
        }
        print(device)?;
    }
    if shown.is_empty() {
        outln!("no device of this network namespace shows a NAPI; `lull doctor` says why")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(device: &Show) -> Result<(), WriteError> {
    print_head(&device.snapshot)?;
    if device.snapshot.napis.is_empty() {
        return outln!("  {}", no_napi(&device.snapshot));
    }
    let head = ["queue", "napi", "irq", "irq cpus", "thread", "defer", "gro flush", "suspend", "threaded", "mode"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(device.napis.iter().map(row));
    let mut widths = [0; 10];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        outln!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    for napi in &device.napis {
        print_notes(napi)?;
    }
    if device.processes_hidden != 0 {
        outln!("  {} processes could not be looked into: run it as root to see all", device.processes_hidden)?;
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

fn row(shown: &NapiShow) -> [String; 10] {
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
        napi.thread.as_ref().map_or_else(dash, thread),
        settings.defer_hard_irqs.to_string(),
        shown_ns(settings.gro_flush_timeout_ns),
        shown_ns(settings.irq_suspend_timeout_ns),
        threaded.to_owned(),
        shown.recognised.mode.clone(),
    ]
}

fn thread(thread: &Thread) -> String {
    match &thread.scheduling {
        Some(scheduling) => format!("{} cpu {} {}", thread.pid, cpu_list(&scheduling.cpus), scheduling.policy),
        None => thread.pid.to_string(),
    }
}

fn print_notes(shown: &NapiShow) -> Result<(), WriteError> {
    let queue = shown.state.key;
    if let Some(note) = &shown.recognised.note {
        outln!("  queue {queue}: {note}")?;
    }
    if let Some(applied) = &shown.applied {
        outln!("  queue {queue}: {applied} was applied; `lull undo` takes it back")?;
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
