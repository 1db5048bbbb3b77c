//! Fairness: one of eight members is flooded, and one core polls all. Each of the others waits for at most one visit of
//! each other member.

use lull_core::GroupConfig;

use super::table::{CaseTable, new_waits, us};
use crate::costs::Costs;
use crate::engine::error::RunError;
use crate::engine::id::QueueId;
use crate::engine::sim::Sim;
use crate::world::{ConnectionsSpec, GroupMemberSpec, GroupSpec, QueueSpec, Traffic, World};

const MEMBERS: u32 = 8;
/// Packets a second of a member that is not flooded.
const QUIET_PER_S: f64 = 5_000.0;
/// What the flooded member gets, in multiples of the core's capacity.
const FLOOD: f64 = 3.0;
const WEIGHTS: [u32; 3] = [8, 16, 64];
const WINDOW_NS: u64 = 400_000_000;
const WARMUP_NS: u64 = 20_000_000;
/// The goal: the p99 of the others' waits, in multiples of the sum of the others' weights times the cost of a packet.
const BOUND: f64 = 2.0;

/// Runs one flooded member of eight, for several weights.
///
/// # Errors
///
/// This fails if a world hit its bound.
pub fn fairness(seed: u64) -> Result<CaseTable, RunError> {
    let costs = Costs::default();
    let (mut rows, mut statements) = (Vec::new(), Vec::new());
    for weight in WEIGHTS {
        let bound_us = f64::from(weight * (MEMBERS - 1) * costs.rx_ack_ns) / 1_000.0;
        let mut sim = Sim::new(&world(&costs, weight), seed);
        sim.run_until(WARMUP_NS)?;
        sim.nic.queues.iter_mut().for_each(|queue| queue.waits = Some(new_waits()));
        let polled = |sim: &Sim, queue: u32| sim.nic.queues[QueueId::new(queue)].napi.stats().work;
        let before: Vec<u64> = (0..MEMBERS).map(|queue| polled(&sim, queue)).collect();
        sim.run_until(WARMUP_NS + WINDOW_NS)?;
        let per_s = |queue: u32| (polled(&sim, queue) - before[queue as usize]) as f64 * 1e9 / WINDOW_NS as f64;
        let (flooded, quiet) = (per_s(0), (1..MEMBERS).map(per_s).sum::<f64>() / f64::from(MEMBERS - 1));
        let mut waits = new_waits();
        for queue in sim.nic.queues.iter_mut().skip(1) {
            // Both histograms have the same bounds.
            let _ = queue.waits.take().map(|taken| waits.add(taken));
        }
        let p99 = us(&waits, 99.0);
        statements.push((
            p99 <= BOUND * bound_us,
            format!(
                "weight {weight}: the others' p99 wait is at most {BOUND} x {bound_us:.0} us (the sum of the others' weights): \
                 {p99:.1} us"
            ),
        ));
        let values = vec![
            flooded / 1_000.0,
            quiet / 1_000.0,
            us(&waits, 50.0),
            p99,
            us(&waits, 100.0),
            bound_us,
            p99 / bound_us,
        ];
        rows.push((format!("weight {weight}"), values));
    }
    Ok(CaseTable {
        title: format!(
            "Fairness: {MEMBERS} members on one core, one of them flooded with {FLOOD} times what the core can take, the others \
             {QUIET_PER_S} packets a second each"
        ),
        columns: vec!["flooded K/s", "others K/s", "p50 us", "p99 us", "max us", "weights us", "p99/weights"],
        rows,
        statements,
    })
}

fn world(costs: &Costs, weight: u32) -> World {
    let source = |queue: u32| {
        let per_s = if queue == 0 { FLOOD * 1e9 / f64::from(costs.rx_ack_ns) } else { QUIET_PER_S };
        ConnectionsSpec { count: 64, queue, context: u32::MAX, traffic: Traffic::Noise { per_s } }
    };
    let members = (0..MEMBERS).map(|queue| GroupMemberSpec { queue, weight }).collect();
    World {
        cpus: vec![true],
        queues: (0..MEMBERS).map(|_| QueueSpec::new(0)).collect(),
        connections: (0..MEMBERS).map(source).collect(),
        groups: vec![GroupSpec { cpus: vec![0], members, config: GroupConfig::default() }],
        costs: costs.clone(),
        ..World::default()
    }
}
