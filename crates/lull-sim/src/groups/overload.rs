//! Overload: a flood of small datagrams at more and more flows, delivered by softirq, a NAPI thread or a group's
//! poller, on the core of the sinks or on a core of its own.
//!
//! The machine is that of the published UDP_STREAM table without its hypervisor, with its NIC's ring and moderation.
//! The costs are those that were fitted to the table, because the claims are the table's. Its senders (1.9 M/s) are no
//! overload without the hypervisor, whose copying was the bottleneck: one core delivers and serves all of it. So the
//! flood is that of four senders at once, the upper end of that parameter's range. The published number of senders and
//! a full wire are shown for the fewest and the most of many flows.
//!
//! Softirq is Linux's from before 4.9 and since 6.4: it runs wherever an interrupt or a system call lets it, with
//! ksoftirqd or without.

use lull_core::{GroupConfig, NapiSettings, Threaded};

use super::table::CaseTable;
use crate::engine::error::RunError;
use crate::engine::sim::Sim;
use crate::params::Params;
use crate::published::udp_stream::{self, Span, Threads};
use crate::world::{FloodSpec, GroupSpec, QueueSpec, SenderSpec, World};

const BYTES: u32 = 64;
const FLOWS: [u32; 5] = [1, 25, 50, 100, 200];
/// From this many flows on the goals ask for more than the goodput of softirq.
const FLOWS_MANY: u32 = 25;
/// The floods: senders that make progress at once (`None` for the published ones), and the flows of each.
const FLOODS: [(&str, Option<f64>, &[u32]); 3] = [
    ("four senders", Some(4.0), &FLOWS),
    ("published senders", None, &[FLOWS_MANY, 200]),
    // This is enough for 10 Gbit/s.
    ("full wire", Some(100.0), &[FLOWS_MANY, 200]),
];
const SPAN: Span = Span { warmup_ns: 200_000_000, window_ns: 200_000_000 };
// The cores: the sinks' core, and one more for delivery in some modes.
const SINKS: u16 = 0;
const OWN: u16 = 1;
/// The goals: goodput divided by that of softirq (up to 3.8 in the table), and what is left of a mode's peak at the
/// most flows.
const OVER_SOFTIRQ: f64 = 1.2;
const OF_PEAK: f64 = 0.95;
/// A goodput of softirq below this, in thousands a second, counts as this, because it may be zero.
const SOFTIRQ_LEAST: f64 = 1.0;

/// Who delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Softirq,
    Thread,
    Group,
}

/// Who delivers, whether it does so on a core of its own, and the name of the row. The others are compared with the
/// first.
const MODES: [(By, bool, &str); 6] = [
    (By::Softirq, false, "softirq"),
    (By::Softirq, true, "softirq, one core more"),
    (By::Thread, false, "threaded"),
    (By::Thread, true, "threaded, one core more"),
    (By::Group, false, "group"),
    (By::Group, true, "group, one core more"),
];

/// Runs a flood at more and more flows, by who delivers it.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn overload(seed: u64) -> Result<CaseTable, RunError> {
    let (mut rows, mut statements) = (Vec::new(), Vec::new());
    for (flood, senders, all_flows) in FLOODS {
        let mut softirq = None;
        for (by, own, mode) in MODES {
            let found = all_flows.iter().map(|&flows| run(&world((by, own), senders, flows), seed));
            let found = found.collect::<Result<Vec<Goodput>, RunError>>()?;
            let served: Vec<f64> = found.iter().map(|found| found.served).collect();
            let softirq = softirq.get_or_insert_with(|| served.clone());
            let peak = served.iter().copied().fold(0.0, f64::max);
            let mut ratios = Vec::new();
            for ((flows, found), softirq) in all_flows.iter().zip(&found).zip(softirq) {
                let ratio = found.served / softirq.max(SOFTIRQ_LEAST);
                if *flows >= FLOWS_MANY {
                    ratios.push(ratio);
                }
                let values =
                    vec![found.served, found.served / peak.max(SOFTIRQ_LEAST), ratio, found.ring, found.socket];
                let flows = if *flows == 1 { "1 flow".to_owned() } else { format!("{flows} flows") };
                rows.push((format!("{flood}, {mode}, {flows}"), values));
            }
            if by != By::Softirq {
                statements.push(more_than_softirq(&format!("{flood}, {mode}"), &ratios));
                // A peak is that of all flows.
                if all_flows.len() == FLOWS.len() {
                    statements.push(keeps_its_peak(&format!("{flood}, {mode}"), served[FLOWS.len() - 1] / peak));
                }
            }
        }
    }
    Ok(CaseTable {
        title: format!(
            "Overload: datagrams of {BYTES} bytes to a sink a flow, by who delivers them, on the sinks' core or on one core more; the \
             machine of the published UDP_STREAM table without its hypervisor, one queue"
        ),
        columns: vec!["goodput K/s", "of its peak", "of softirq's", "ring drops K/s", "socket drops K/s"],
        rows,
        statements,
    })
}

fn more_than_softirq(row: &str, ratios: &[f64]) -> (bool, String) {
    let least = ratios.iter().copied().fold(f64::MAX, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let says = format!("{row}: from {FLOWS_MANY} flows at least {OVER_SOFTIRQ} times the goodput of softirq");
    (least >= OVER_SOFTIRQ, format!("{says}: {least:.2} to {most:.2}"))
}

fn keeps_its_peak(row: &str, kept: f64) -> (bool, String) {
    let most = FLOWS[FLOWS.len() - 1];
    (kept >= OF_PEAK, format!("{row}: at {most} flows at least {OF_PEAK} of its own peak: {kept:.2}"))
}

/// What happened to the flood, in thousands of datagrams a second.
struct Goodput {
    served: f64,
    /// Datagrams that were dropped because the ring was full, or because a socket was.
    ring: f64,
    socket: f64,
}

fn run(world: &World, seed: u64) -> Result<Goodput, RunError> {
    let out = Sim::new(world, seed).run()?;
    let per_s = |count: u64| count as f64 * 1e6 / out.window_ns as f64;
    let counts = out.counts;
    Ok(Goodput { served: per_s(counts.served), ring: per_s(counts.dropped), socket: per_s(counts.socket_dropped) })
}

fn world((by, own): (By, bool), senders: Option<f64>, flows: u32) -> World {
    let Ok(params) = Params::parse(udp_stream::PARAMS_TOML, &udp_stream::KNOWN) else {
        unreachable!("the file is part of the program, and a test reads it")
    };
    let published = udp_stream::world(&params, BYTES, flows, Threads::Vanilla, SPAN);
    let (Some(flood), Some(nic)) = (published.flood, published.queues.first()) else {
        unreachable!("the published world has both")
    };
    let cpu = if own { OWN } else { SINKS };
    let threaded = if by == By::Thread { Threaded::On } else { Threaded::Off };
    let queue = QueueSpec {
        cpu,
        napi: NapiSettings { threaded, ..NapiSettings::default() },
        thread_cpu: cpu,
        // Today's threads let others run after each poll.
        thread_packets: 0,
        ..nic.clone()
    };
    let sender = SenderSpec { cores: senders.unwrap_or(flood.sender.cores), ..flood.sender };
    let group = GroupSpec::new(vec![cpu], [0], GroupConfig::default());
    World {
        cpus: vec![true; 2],
        queues: vec![queue],
        groups: if by == By::Group { vec![group] } else { Vec::new() },
        costs: published.costs,
        cache: published.cache,
        flood: Some(FloodSpec { sender, queues: vec![0], sink_cpu: SINKS, ..flood }),
        warmup_ns: SPAN.warmup_ns,
        window_ns: SPAN.window_ns,
        ..World::default()
    }
}
