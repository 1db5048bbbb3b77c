//! `lull compare --case`: workloads with a table of their own.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use lull_core::{Mode, ModeError, mode};
use lull_lab::bench::BenchConfig;
use lull_lab::case::after_idle::AfterIdle;
use lull_lab::case::batch_limit::BatchLimit;
use lull_lab::case::first_packet::{FirstPacket, GAPS_DEFAULT};
use lull_lab::case::many_queues::ManyQueues;
use lull_lab::case::tcp_rr::TcpRr;
use lull_lab::case::tx_trap::TxTrap;
use lull_lab::cell::Load;
use lull_nic::Moderation;

use super::{Compare, LOADS_DEFAULT};
use crate::benches::Plane;
use crate::failure::Failure;
use crate::{measure_args, modes as names};

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Two services on one queue: how long the second waits, by the batch limit of the first (--events-max).
    BatchLimit,
    /// One connection, a byte each way: interrupts with coalescing (--rx-usecs 16/44,1/1) against busy polling. With
    /// --plane kernel it runs on Linux's stack over a veth, with a deferral in place of coalescing.
    TcpRr,
    /// The same load on more and more queues (--queues 1,4,16,44): packets per poll, interrupts, softirq.
    ManyQueues,
    /// Two workers on one transmit queue, one of which floods while the other sends a datagram each millisecond: how
    /// long the other's send calls take, by who drains the queueing discipline (--qdisc noqueue,pfifo_fast,fq).
    TxTrap,
    /// A service without load, and then requests that each come after a pause: the CPU that it takes meanwhile, and the
    /// latency of such a request beside a measured wake-up.
    AfterIdle,
    /// The first datagram after a pause of 10 us to 10 ms, delivered by a group of one CPU without and with dry runs
    /// (--group-dry-run), alone on its core and beside a thread that walks memory.
    FirstPacket,
}

/// Options that only some cases take.
#[derive(Args)]
pub struct CaseArgs {
    /// --case batch-limit: events that the first service takes from epoll at a time [default: 1,8,64].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    events_max: Option<Vec<usize>>,
    /// --case batch-limit: requests a second that the second service gets [default: 2000].
    #[arg(long, value_name = "RATE", value_parser = lull_units::rate_per_s)]
    second_load: Option<u64>,
    /// The queueing discipline of the transmit queues, on the user plane: noqueue, pfifo_fast or fq [default: noqueue;
    /// pfifo_fast if a group sends]. --case tx-trap takes several [default: noqueue,pfifo_fast,fq].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) qdisc: Option<Vec<lull_net::Qdisc>>,
}

/// The options that every case takes, by the names of the arguments.
const OF_ALL: [&str; 8] = ["case", "seconds", "runs", "cores", "progress", "csv", "json", "html"];
/// The options that only cases take.
const OF_CASES: [&str; 2] = ["events_max", "second_load"];

impl Case {
    /// The options that this case takes besides.
    fn takes(self) -> &'static [&'static str] {
        match self {
            Case::BatchLimit => &["modes", "events_max", "second_load", "connections"],
            Case::TcpRr => &["modes", "rx_usecs", "plane"],
            Case::TxTrap => &["modes", "qdisc"],
            Case::FirstPacket => &[],
            Case::AfterIdle => &[
                "modes",
                "workers",
                "connections",
                "epoll",
                "group_cpus",
                "cycles",
                "cycles_total",
                "wake_above",
                "park_below",
                "any_node",
                "oversubscribe",
                "group_dry_run",
            ],
            Case::ManyQueues => &[
                "modes",
                "queues",
                "loads",
                "workers",
                "connections",
                "buffer_bytes",
                "epoll",
                "records",
                "depth",
                "group_cpus",
                "cycles",
                "cycles_total",
                "wake_above",
                "park_below",
                "any_node",
                "oversubscribe",
                "group_dry_run",
            ],
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn option(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

/// Refuses options of cases if no case is given.
pub fn refuse_without_case(given: &[String]) -> Result<(), Failure> {
    match given.iter().find(|id| OF_CASES.contains(&id.as_str())) {
        Some(id) => Err(format!("cannot use {} without a case that takes it: name one with --case", option(id)).into()),
        None => Ok(()),
    }
}

/// Refuses options that the case does not take. clap lists groups of arguments as well, whose names begin with a
/// capital letter.
fn refuse_of_others(case: Case, given: &[String]) -> Result<(), Failure> {
    let known = |id: &&String| {
        OF_ALL.contains(&id.as_str()) || case.takes().contains(&id.as_str()) || id.starts_with(char::is_uppercase)
    };
    match given.iter().find(|id| !known(id)) {
        Some(id) => {
            let takes: Vec<String> = OF_ALL[1..].iter().chain(case.takes()).map(|id| option(id)).collect();
            let (id, name, takes) = (option(id), case.name(), takes.join(", "));
            Err(format!("cannot use {id} with --case {name}: leave it out; the case takes {takes}").into())
        }
        None => Ok(()),
    }
}

/// Returns the one mode of a case that takes a single mode.
fn one_mode(args: &Compare, default: &str) -> Result<Mode, Failure> {
    match &args.modes[..] {
        [] => Ok(default.parse()?),
        [mode] => Ok(mode.parse()?),
        several => Err(format!("cannot use {} modes in this case: name one", several.len()).into()),
    }
}

/// Returns the modes that were named, or the default modes of the case.
fn modes(args: &Compare, default: &[&str]) -> Result<Vec<Mode>, Failure> {
    Ok(names::named(&args.modes, default).into_iter().map(str::parse).collect::<Result<_, ModeError>>()?)
}

fn batch_limit(args: &Compare, cores: Vec<usize>) -> Result<BatchLimit, Failure> {
    Ok(BatchLimit {
        events_max: args.case_args.events_max.clone().unwrap_or_else(|| vec![1, 8, 64]),
        mode: one_mode(args, "suspend20")?,
        connections: args.connections,
        second_qps: args.case_args.second_load.unwrap_or(2_000) as f64,
        cores,
    })
}

fn tcp_rr(args: &Compare, cores: Vec<usize>) -> Result<TcpRr, Failure> {
    let published = [(16, 44), (1, 1)].map(|(rx_usecs, rx_frames)| Moderation { rx_usecs, rx_frames });
    let kernel = args.plane == Plane::Kernel;
    // A veth has no coalescing, so a deferral takes its place.
    let (moderations, default): (_, &[&str]) = match (&args.rx_usecs[..], kernel) {
        ([], true) => (Vec::new(), &["base", "defer15", "busyread"]),
        ([], false) => (published.to_vec(), &["base", "busyread"]),
        (given, _) => (given.to_vec(), &["base", "busyread"]),
    };
    let plane = if kernel { mode::Plane::Kernel } else { mode::Plane::User };
    Ok(TcpRr { plane, moderations, modes: modes(args, default)?, cores })
}

fn many_queues(args: &Compare, cores: Vec<usize>) -> Result<ManyQueues, Failure> {
    let grouped: &[&str] = if args.group.given().is_empty() { &["base"] } else { &["base", "group"] };
    let modes = modes(args, grouped)?;
    // The case takes one load, because each load would have a table of its own.
    let load = match &Load::parse_list(if args.loads == LOADS_DEFAULT { "MAX" } else { &args.loads })?[..] {
        [load] => *load,
        _ => return Err("cannot use several loads in this case: name one, such as 200K or MAX".into()),
    };
    let queues = if args.queues.is_empty() { vec![1, 4, 16, 44] } else { args.queues.clone() };
    let bench = BenchConfig { cores, queues: None, group: args.group.setup(&modes)?, ..super::bench_config(args)? };
    super::warn(&bench, args.progress)?;
    Ok(ManyQueues { queues, modes, load, bench })
}

fn after_idle(args: &Compare, cores: Vec<usize>) -> Result<AfterIdle, Failure> {
    let grouped: &[&str] = if args.group.given().is_empty() { &["base"] } else { &["base", "group50", "group"] };
    let modes = modes(args, grouped)?;
    let bench = BenchConfig { cores, group: args.group.setup(&modes)?, ..super::bench_config(args)? };
    super::warn(&bench, args.progress)?;
    Ok(AfterIdle { modes, bench })
}

/// Runs the case and writes what was asked for.
pub fn run(case: Case, args: &Compare, given: &[String], stop: &AtomicBool) -> Result<ExitCode, Failure> {
    refuse_of_others(case, given)?;
    let cores = args.cores.clone().unwrap_or_default();
    measure_args::run((args.runs, args.seconds, args.progress), &args.outputs, stop, |effort| {
        Ok(match case {
            Case::BatchLimit => batch_limit(args, cores)?.run(effort)?,
            Case::TcpRr => tcp_rr(args, cores)?.run(effort)?,
            Case::AfterIdle => after_idle(args, cores)?.run(effort)?,
            Case::ManyQueues => many_queues(args, cores)?.run(effort)?,
            Case::FirstPacket => FirstPacket { gaps: GAPS_DEFAULT.to_vec(), cores }.run(effort)?,
            Case::TxTrap => {
                let qdiscs = args.case_args.qdisc.clone().unwrap_or_else(|| lull_net::lull_qdisc::Kind::ALL.to_vec());
                TxTrap { qdiscs, modes: modes(args, &["base", "group-rx", "group"])?, cores }.run(effort)?
            }
        })
    })
}
