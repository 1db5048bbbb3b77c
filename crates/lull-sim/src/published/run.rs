//! Runs the published cells.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use lull_core::Mode;

use crate::engine::metrics::Outcome;
use crate::params::Params;
use crate::published::LOADS;
use crate::published::cells::{Cell, Column, Table, together};
use crate::published::worlds::{ALL_CONNECTIONS, QUEUES, service_world, unloaded_world};
use crate::{RunError, Sim};

/// Returns how long a queue without load is simulated: it has few packets, and of those few interrupt if the timeout is
/// long.
fn unloaded_ns(mode: &Mode) -> u64 {
    (mode.napi.gro_flush_timeout_ns * UNLOADED_TIMEOUTS).clamp(UNLOADED_NS[0], UNLOADED_NS[1])
}

/// For how many of its timeouts a queue without load is simulated, which is polled once a timeout.
const UNLOADED_TIMEOUTS: u64 = 1_000_000;
/// The shortest and the longest time for which it is simulated, in nanoseconds.
const UNLOADED_NS: [u64; 2] = [10_000_000_000, 200_000_000_000];

/// Length of the published counters' window, in seconds.
const COUNTED_S: f64 = 30.0;

/// How long each cell is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// How many runs each cell has, each with a placement of workers of its own.
    pub runs: u32,
    /// The virtual time of a run that passes before anything is counted, in milliseconds.
    pub warmup_ms: u64,
    /// The virtual time of a run that counts in open loop, in milliseconds.
    pub open_ms: u64,
    /// The virtual time of a run that counts at 1000K and in closed loop, in milliseconds; these loads are slower to
    /// simulate.
    pub busy_ms: u64,
    /// How many cells are simulated at once.
    pub threads: usize,
}

impl Budget {
    /// The budget of `lull sim published`.
    pub fn full() -> Budget {
        Budget { runs: 5, warmup_ms: 80, open_ms: 120, busy_ms: 100, threads: threads() }
    }

    /// The budget of a fit for each cell.
    pub fn short() -> Budget {
        Budget { runs: 2, warmup_ms: 25, open_ms: 40, busy_ms: 40, threads: threads() }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// A simulated table.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Its cells, in the order in which they were asked for.
    pub table: Table,
    /// Busy nanoseconds per query by cell, charged or not, as a cycle counter sees them.
    pub busy_ns_per_query: Vec<f64>,
    /// Events of the agenda.
    pub events: u64,
    /// Transitions of the core.
    pub transitions: u64,
}

/// Runs the cells of these cases and loads. Cells are independent, so they run on several threads; the result does not
/// depend on how many.
///
/// # Errors
///
/// This fails if a cell hit its bound.
pub fn simulate(
    params: &Params,
    modes: &[Mode],
    loads: &[&str],
    budget: Budget,
    seed: u64,
) -> Result<Simulated, RunError> {
    // The time without load is the same at every load, so it is simulated once for each mode.
    let modes: Vec<(&Mode, OnceLock<_>)> = modes.iter().map(|mode| (mode, OnceLock::new())).collect();
    let jobs: Vec<_> = modes.iter().flat_map(|mode| loads.iter().map(move |load| (mode, *load))).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Result<Ran, RunError>>>> = Mutex::new((0..jobs.len()).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..budget.threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&((mode, unloaded), load)) = jobs.get(job) else { return };
                    let unloaded =
                        unloaded.get_or_init(|| Sim::new(&unloaded_world(params, mode, unloaded_ns(mode)), seed).run());
                    let ran = match unloaded {
                        Ok(unloaded) => cell(params, mode, load, unloaded, budget, seed),
                        Err(error) => Err(*error),
                    };
                    if let Ok(mut done) = done.lock() {
                        done[job] = Some(ran);
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut simulated =
        Simulated { table: Table { cells: Vec::new() }, busy_ns_per_query: Vec::new(), events: 0, transitions: 0 };
    for ran in done.into_iter().flatten() {
        let ran = ran?;
        simulated.table.cells.push(ran.cell);
        simulated.busy_ns_per_query.push(ran.busy_ns_per_query);
        simulated.events += ran.events;
        simulated.transitions += ran.transitions;
    }
    Ok(simulated)
}

#[derive(Clone, Debug)]
struct Ran {
    cell: Cell,
    busy_ns_per_query: f64,
    events: u64,
    transitions: u64,
}

/// Returns all runs of a cell, put together as the published ones are.
fn cell(
    params: &Params,
    mode: &Mode,
    load: &str,
    unloaded: &Outcome,
    budget: Budget,
    seed: u64,
) -> Result<Ran, RunError> {
    let runs: Result<Vec<Ran>, RunError> = (0..budget.runs.max(1))
        .map(|nth| run(params, mode, load, unloaded, budget, seed.wrapping_add(u64::from(nth) << 32)))
        .collect();
    let runs = runs?;
    let cells: Vec<Cell> = runs.iter().map(|ran| ran.cell.clone()).collect();
    Ok(Ran {
        cell: together(mode.name(), load, &cells),
        busy_ns_per_query: runs.iter().map(|ran| ran.busy_ns_per_query).sum::<f64>() / runs.len() as f64,
        events: runs.iter().map(|ran| ran.events).sum(),
        transitions: runs.iter().map(|ran| ran.transitions).sum(),
    })
}

/// One run of a cell.
fn run(
    params: &Params,
    mode: &Mode,
    load: &str,
    unloaded: &Outcome,
    budget: Budget,
    seed: u64,
) -> Result<Ran, RunError> {
    let qps = LOADS.iter().find(|(name, _)| *name == load).and_then(|(_, qps)| *qps);
    let mut world = service_world(params, mode, qps, seed);
    let busy = qps.is_none_or(|qps| qps >= 1e6);
    world.warmup_ns = budget.warmup_ms * 1_000_000;
    world.window_ns = if busy { budget.busy_ms } else { budget.open_ms } * 1_000_000;
    let out = Sim::new(&world, seed).run()?;
    let window_s = out.window_ns as f64 / 1e9;
    let total = |count: u64| count as f64 / window_s * COUNTED_S;
    // Every connection is opened once and closed once while interrupts are counted.
    let openings = f64::from(2 * ALL_CONNECTIONS) / unloaded.counts.rx_packets.max(1) as f64;
    let idle = params.get("trace_idle_s") * f64::from(QUEUES) * 1e9 / unloaded.window_ns as f64;
    let irqs = total(out.counts.irqs + out.counts.moderation_changes)
        + unloaded.counts.irqs as f64 * openings
        + params.get("command_irqs");
    let polls = total(out.napi.polls) + unloaded.napi.polls as f64 * idle + params.get("other_polls_per_s") * COUNTED_S;
    let mut cell = Cell::new(mode.name(), load);
    cell.set(Column::Qps, out.qps());
    cell.set(Column::Avg, out.latency_mean_us());
    cell.set(Column::P50, out.latency_us(50.0));
    cell.set(Column::P95, out.latency_us(95.0));
    cell.set(Column::P99, out.latency_us(99.0));
    cell.set(Column::Cpu, out.cpu.percent());
    let shares = shares(&out);
    cell.set(Column::Usr, shares[0]);
    cell.set(Column::Sys, shares[1]);
    cell.set(Column::Softirq, shares[2]);
    cell.set(Column::Irqs, irqs);
    cell.set(Column::RxPackets, total(out.counts.rx_packets));
    cell.set(Column::Polls, polls);
    cell.set(Column::EmptyPolls, total(out.napi.empty_polls) + unloaded.napi.empty_polls as f64 * idle);
    cell.set(Column::EpollCalls, total(out.counts.epoll_calls));
    cell.set(Column::EpollEvents, out.counts.epoll_events as f64 / out.counts.epoll_calls.max(1) as f64);
    Ok(Ran {
        cell,
        busy_ns_per_query: out.cpu.busy_ns() as f64 / out.counts.served.max(1) as f64,
        events: out.events,
        transitions: out.transitions,
    })
}

fn shares(out: &Outcome) -> [f64; 3] {
    let cpu = &out.cpu;
    let all = (cpu.user_ns + cpu.sys_ns + cpu.softirq_ns + cpu.idle_ns).max(1) as f64;
    [cpu.user_ns, cpu.sys_ns, cpu.softirq_ns].map(|part| 100.0 * part as f64 / all)
}
