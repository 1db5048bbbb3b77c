//! Parking: a group of eight cores under load that steps from nothing to six cores and back, and under constant load.

use hdrhistogram::Histogram;
use lull_core::GroupConfig;
use lull_core::group::{PollerStats, Thresholds};

use super::table::{CaseTable, new_waits, us};
use crate::costs::Costs;
use crate::engine::error::RunError;
use crate::engine::id::{CpuId, GroupId, SourceId};
use crate::engine::sim::Sim;
use crate::world::{ConnectionsSpec, GroupSpec, QueueSpec, Traffic, World};

const CORES: u16 = 8;
const QUEUES: u32 = 16;
/// A load so small that it counts as none.
const NOTHING_PER_S: f64 = 2_000.0;
/// The loads, in cores' worth of packets, and how long each lasts.
const STEPS: [(&str, f64, u64); 7] = [
    ("0 cores, 20 ms", 0.0, 20),
    ("to 1 core, 20 ms", 1.0, 20),
    ("to 6 cores, 20 ms", 6.0, 20),
    ("to 1 core again, 20 ms", 1.0, 20),
    ("to 0 again, 20 ms", 0.0, 20),
    ("1.5 cores, 120 ms", 1.5, 120),
    ("3.5 cores, 120 ms", 3.5, 120),
];
/// From this step on the load stays for long enough to count wake-ups a second.
const CONSTANT_FROM: usize = 5;
/// This long after a step, in nanoseconds, nothing is counted if the load is constant.
const SETTLE_NS: u64 = 20_000_000;
/// Thresholds of pollers that are woken at once and never park while there is load, with which parking is compared.
const NEVER_PARK: Thresholds = Thresholds { wake_above: 1, park_below: 0 };
/// The goals of the design: waits beyond the reference in wake-ups, wake-ups a second under constant load, cores beyond
/// the load.
const EXCESS_WAKES: f64 = 2.0;
const WAKES_PER_S: f64 = 20.0;
const CORES_BEYOND: f64 = 1.0;

struct Step {
    waits: Histogram<u64>,
    cores: f64,
    /// How many cores' worth of passes found packets, which the group's rules go by.
    busy: f64,
    wakes_per_s: f64,
    awake: u32,
}

/// Runs parking and waking under load that comes and goes.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn parking(seed: u64) -> Result<CaseTable, RunError> {
    let (parks, never) = (run(Thresholds::default(), seed)?, run(NEVER_PARK, seed)?);
    let costs = Costs::default();
    let wake_us = f64::from(costs.wake_ns + costs.ipi_ns + costs.switch_ns + costs.idle_shallow_exit_ns) / 1_000.0;
    let mut rows = Vec::new();
    let (mut excess, mut wakes, mut beyond, mut allowed) = (f64::MIN, 0.0_f64, f64::MIN, f64::MAX);
    let park_below = Thresholds::default().park_below;
    for (index, (name, load, _)) in STEPS.iter().enumerate() {
        let (step, reference) = (&parks[index], &never[index]);
        let p99 = us(&step.waits, 99.0);
        let over = p99 - us(&reference.waits, 99.0);
        excess = excess.max(over / wake_us);
        if index >= CONSTANT_FROM {
            wakes = wakes.max(step.wakes_per_s);
            beyond = beyond.max(step.cores - load);
            // As many pollers stay awake as leave the others at the threshold.
            allowed = allowed.min(1.0 + step.busy * 100.0 / f64::from(park_below) - load);
        }
        let values = vec![
            *load,
            step.busy,
            step.cores,
            reference.cores,
            us(&step.waits, 50.0),
            p99,
            over,
            step.wakes_per_s,
            f64::from(step.awake),
        ];
        rows.push(((*name).to_owned(), values));
    }
    let statements = vec![
        (
            excess <= EXCESS_WAKES,
            format!(
                "parking adds at most {EXCESS_WAKES} wakes of {wake_us:.1} us to the p99 wait of any step, against pollers that \
                 never park: {excess:.2}"
            ),
        ),
        (wakes <= WAKES_PER_S, format!("at most {WAKES_PER_S} wakes a second under constant load: {wakes:.1}")),
        (
            beyond <= CORES_BEYOND,
            format!(
                "constant load takes at most {CORES_BEYOND} core beyond what its packets cost: {beyond:.2} (a poller parks only if \
                 passes with packets took the others less than {park_below} % without it, which may leave {allowed:.2} beyond; a \
                 pass that finds one packet takes its fixed cost for that one)"
            ),
        ),
    ];
    Ok(CaseTable {
        title: format!(
            "Parking: a group of {CORES} cores on {QUEUES} queues, load in steps (cores' worth of packets at {} ns each); waits of \
             the first packet in a ring until a poll looks",
            packet_ns(&costs)
        ),
        columns: vec![
            "load cores",
            "in passes",
            "cores used",
            "never park",
            "p50 us",
            "p99 us",
            "p99 beyond us",
            "wakes/s",
            "awake at end",
        ],
        rows,
        statements,
    })
}

fn packet_ns(costs: &Costs) -> u32 {
    costs.rx_ack_ns
}

fn run(thresholds: Thresholds, seed: u64) -> Result<Vec<Step>, RunError> {
    let costs = Costs::default();
    let per_core = 1e9 / f64::from(packet_ns(&costs));
    let source = |queue| ConnectionsSpec {
        count: 64,
        queue,
        context: u32::MAX,
        traffic: Traffic::Noise { per_s: NOTHING_PER_S / f64::from(QUEUES) },
    };
    let world = World {
        cpus: vec![true; usize::from(CORES)],
        queues: (0..QUEUES).map(|queue| QueueSpec::new((queue % u32::from(CORES)) as u16)).collect(),
        connections: (0..QUEUES).map(source).collect(),
        groups: vec![GroupSpec::new(
            (0..CORES).collect(),
            0..QUEUES,
            GroupConfig { thresholds, ..GroupConfig::default() },
        )],
        ..World::default()
    };
    let mut sim = Sim::new(&world, seed);
    sim.run_until(SETTLE_NS)?;
    let mut steps = Vec::new();
    for (index, (_, load, ms)) in STEPS.iter().enumerate() {
        for source in 0..QUEUES {
            let per_s = (load * per_core).max(NOTHING_PER_S) / f64::from(QUEUES);
            sim.clients.set_rate(&mut sim.env, SourceId::new(source), per_s);
        }
        let begun_ns = sim.now_ns();
        if index >= CONSTANT_FROM {
            sim.run_until(begun_ns + SETTLE_NS)?;
        }
        sim.nic.queues.iter_mut().for_each(|queue| queue.waits = Some(new_waits()));
        let (busy_ns, passes_ns, wakes) =
            (busy_ns(&mut sim), counted(&sim, |stats| stats.busy_ns), counted(&sim, |stats| stats.wakes));
        let since_ns = sim.now_ns();
        sim.run_until(begun_ns + ms * 1_000_000)?;
        let window_ns = (sim.now_ns() - since_ns) as f64;
        let mut waits = new_waits();
        for taken in sim.nic.queues.iter_mut().filter_map(|queue| queue.waits.take()) {
            // Both histograms have the same bounds.
            let _ = waits.add(taken);
        }
        steps.push(Step {
            waits,
            cores: (self::busy_ns(&mut sim) - busy_ns) as f64 / window_ns,
            busy: (counted(&sim, |stats| stats.busy_ns) - passes_ns) as f64 / window_ns,
            wakes_per_s: (counted(&sim, |stats| stats.wakes) - wakes) as f64 * 1e9 / window_ns,
            awake: sim.nic.groups.table[GroupId::new(0)].group.census().awake,
        });
    }
    Ok(steps)
}

fn busy_ns(sim: &mut Sim) -> u64 {
    for cpu in sim.cpus.ids() {
        sim.cpus.account(&mut sim.env, cpu);
    }
    (0..CORES).map(|cpu| sim.cpus[CpuId::new(cpu)].used.busy_ns()).sum()
}

/// Returns what the group's pollers counted, together.
fn counted(sim: &Sim, of: impl Fn(&PollerStats) -> u64) -> u64 {
    sim.nic.groups.table[GroupId::new(0)].group.pollers().iter().map(|poller| of(&poller.stats)).sum()
}
