//! `lull forward`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lull_core::{Mode, Stats};
use lull_host::{Host, HostConfig, usable_cores};
use lull_lab::bench::{GroupSetup, check_cores};
use lull_lab::flood::FloodMode;
use lull_lab::forward::Forward;
use lull_lab::forward::link::Link;
use lull_nic::Device;
use lull_nic::tap::{Tap, TapConfig};

use crate::benches::Plane;
use crate::failure::Failure;
use crate::group_args::GroupArgs;
use crate::measure_args::MeasureArgs;
use crate::output::outln;
use crate::{modes, units};

/// The time that one line of figures covers.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time until a signal is noticed.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `lull forward`.
#[derive(Args)]
pub struct ForwardArgs {
    /// The first device: tap:NAME; or mem (with --to mem), to measure.
    #[arg(long, value_name = "DEVICE", value_parser = end)]
    from: Option<End>,
    /// The second device. Frames that come in at one device leave at the other, in both directions.
    #[arg(long, value_name = "DEVICE", value_parser = end)]
    to: Option<End>,
    /// Who forwards: lull, or with `kernel` Linux, between two veth pairs in network namespaces of its own (root),
    /// which is always a measurement.
    #[arg(long, value_enum, default_value = "user")]
    plane: Plane,
    /// The delivery mode between TAPs: base, deferX, threaded, threaded-busy, group or groupX [default: base].
    #[arg(long)]
    mode: Option<String>,
    /// With a measurement: who delivers: softirq-fifo, softirq, threaded, threaded-busy, group, groupX.
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// With a measurement: payloads of the datagrams, in bytes [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    bytes: Vec<usize>,
    /// With a measurement: datagrams per second [default: as many as one core sends].
    #[arg(long, value_name = "RATE", value_parser = lull_units::rate_per_s)]
    rate: Option<u64>,
    /// Queues of each TAP.
    #[arg(long)]
    queues: Option<usize>,
    /// The core that forwards, and with a measurement the generator's after it; by default these are the first two.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    #[command(flatten)]
    group: GroupArgs,
    /// Seconds measured per run [default: 1]; between TAPs, the seconds after which the command ends by itself.
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// An end of the forwarding.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Mem,
    Tap(String),
}

fn end(text: &str) -> Result<End, String> {
    match text.strip_prefix("tap:") {
        Some(name) if !name.is_empty() => Ok(End::Tap(name.to_owned())),
        None if text == "mem" => Ok(End::Mem),
        _ => Err(format!("frames cannot be forwarded from or to '{text}': use tap:NAME, or mem at both ends")),
    }
}

/// Forwards until a signal, or measures.
pub fn run(args: &ForwardArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    match (args.plane, &args.from, &args.to) {
        (Plane::Kernel, None, None) => measured(args, true, stop),
        (Plane::Kernel, ..) => {
            Err("cannot name devices with --plane kernel, which makes veth pairs of its own: leave --from and --to out"
                .into())
        }
        (Plane::User, Some(End::Mem), Some(End::Mem)) => measured(args, false, stop),
        (Plane::User, Some(End::Tap(from)), Some(End::Tap(to))) => between(args, from, to, stop),
        (Plane::User, Some(_), Some(_)) => {
            Err("cannot forward between mem and a TAP: name two TAPs, or mem at both ends to measure".into())
        }
        (Plane::User, ..) => Err("cannot forward without two devices: name them with --from and --to".into()),
    }
}

impl ForwardArgs {
    fn refuse(&self, where_: &str, given: &[(&str, bool)]) -> Result<(), Failure> {
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(format!("cannot use {option} {where_}: leave it out").into()),
            None => Ok(()),
        }
    }
}

/// Measures forwarding in every mode.
fn measured(args: &ForwardArgs, kernel: bool, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    args.refuse(
        "where forwarding is measured (--modes names modes)",
        &[("--mode", args.mode.is_some()), ("--queues", args.queues.is_some())],
    )?;
    let default: &[&str] = if kernel {
        &["softirq", "threaded", "threaded-busy"]
    } else {
        &["softirq", "threaded", "threaded-busy", "group"]
    };
    let names = modes::named(&args.modes, default);
    let modes = names.into_iter().map(str::parse).collect::<Result<Vec<FloodMode>, String>>()?;
    let core_modes: Vec<Mode> = modes.iter().map(|mode| mode.mode().clone()).collect();
    let group = if args.group.given().is_empty() { None } else { args.group.setup(&core_modes)? };
    let forward = Forward {
        bytes: if args.bytes.is_empty() { vec![64] } else { args.bytes.clone() },
        modes,
        kernel,
        per_second: args.rate.map(|rate| rate as f64),
        cores: args.cores.clone().unwrap_or_default(),
        group,
    };
    args.measure.run(args.seconds, stop, |effort| Ok(forward.run(effort)?))
}

/// Forwards between two TAPs, with a line of figures per second, until a signal comes.
fn between(args: &ForwardArgs, from: &str, to: &str, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    args.refuse(
        "between TAPs",
        &[
            ("--modes", !args.modes.is_empty()),
            ("--bytes", !args.bytes.is_empty()),
            ("--rate", args.rate.is_some()),
            ("--runs", args.measure.runs.is_some()),
            ("--csv, --json or --html", args.measure.outputs.any()),
        ],
    )?;
    if from == to {
        return Err(format!("cannot forward from {from} to itself: name another device with --to").into());
    }
    let mode: Mode = args.mode.as_deref().unwrap_or("base").parse()?;
    let setup = args.group.setup(std::slice::from_ref(&mode))?.unwrap_or_default();
    let cores = args.cores.clone().unwrap_or_default();
    if cores.len() > 1 {
        let count = cores.len();
        return Err(
            format!("cannot forward between TAPs on {count} cores: one forwards, so name one with --cores").into()
        );
    }
    check_cores(&cores)?;
    let core = cores.first().copied().or_else(|| usable_cores().first().copied());
    let GroupSetup { cores: pollers, options } = setup;
    let cpus: Vec<Option<usize>> = std::iter::once(core).chain(pollers.iter().map(|core| Some(*core))).collect();
    let pollers: Vec<u16> = (1..cpus.len() as u16).collect();
    let host = Host::new(HostConfig { cpus, ..HostConfig::default() })?;
    let queues = args.queues.unwrap_or(1);
    let tap =
        |name: &str| Tap::open(TapConfig { name: name.to_owned(), queues, offloads: false, ..TapConfig::default() });
    let devices: [Arc<dyn Device>; 2] = [Arc::new(tap(from)?), Arc::new(tap(to)?)];
    let link = Link::new(&host, devices)?;
    link.set_mode(&mode, &pollers, options)?;
    outln!("forwarding between {from} and {to} in mode {mode}")?;
    outln!("{:>14} {:>14} {:>9} {:>9} {:>9}", format!("{from}/s"), format!("{to}/s"), "dropped", "polls", "softirq")?;
    let began = std::time::Instant::now();
    let is_over = || stop.load(Ordering::Relaxed) || args.seconds.is_some_and(|seconds| began.elapsed() >= seconds);
    let counted = || ([0, 1].map(|side| link.stats(side)), link.dropped(0) + link.dropped(1));
    let mut before = counted();
    while !is_over() {
        let line = std::time::Instant::now();
        while line.elapsed() < LINE_INTERVAL && !is_over() && link.gone().is_none() {
            std::thread::sleep(STOP_INTERVAL);
        }
        if let Some(device) = link.gone() {
            return Err(format!(
                "cannot forward between {from} and {to} any more: {device} was deleted; start again to make it anew"
            )
            .into());
        }
        let now = counted();
        outln!("{}", figures(&before, &now, line.elapsed()))?;
        before = now;
    }
    outln!("stopped")?;
    Ok(ExitCode::SUCCESS)
}

/// What each side has counted, and how many frames were dropped.
type Counted = ([Stats; 2], u64);

fn figures(before: &Counted, now: &Counted, took: Duration) -> String {
    let [there, back] = [0, 1].map(|side| now.0[side] - before.0[side]);
    let per_s = |frames: u64| frames as f64 / took.as_secs_f64();
    format!(
        "{:>14.0} {:>14.0} {:>9} {:>9} {:>9}",
        per_s(there.work),
        per_s(back.work),
        now.1 - before.1,
        there.polls + back.polls,
        there.softirq_polls + back.softirq_polls
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_taps_or_memory() {
        assert_eq!(end("tap:a"), Ok(End::Tap("a".to_owned())));
        assert_eq!(end("mem"), Ok(End::Mem));
        for bad in ["", "tap:", "eth0", "xdp:eth0", "mem:1"] {
            assert!(end(bad).unwrap_err().contains("tap:NAME"), "{bad}");
        }
    }
}
