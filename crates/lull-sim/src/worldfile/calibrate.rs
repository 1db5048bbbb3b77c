//! Finds the application's own part of a measured request cost.
//!
//! The cost that `perf` or a thread's clock shows for a request includes what the simulator charges separately:
//! `epoll_wait`, wake-ups, interference, and in a total also interrupts and softirq. So the application's part is found
//! by running the service, or one core of it, saturated in `base` (where such figures are measured), and correcting the
//! part until the simulated figure is the measured one.

use lull_core::Mode;

use super::file::{Bounds, WorldFile};
use super::plane::WorkerCores;
use super::request_cost::RequestCost;
use crate::engine::sim::Sim;
use crate::world::Traffic;
use lull_units::time_text;

/// How many runs there are at the most.
const ROUNDS_MAX: u32 = 12;
/// How near the simulated figure has to come, as a share of the measured one.
const TOLERANCE: f64 = 0.005;
/// How near is near enough when all rounds are done, given the precision of such a measurement.
const TOLERANCE_LAST: f64 = 0.03;
/// About how many requests a run has.
const REQUESTS: u64 = 10_000;
/// The least time that an application takes for a request, in nanoseconds.
const OWN_MIN_NS: f64 = 50.0;
/// The seed of these runs: they are part of reading a file, which has no seed.
const SEED: u64 = 1;

/// How a request's cost is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    /// User space, in 1/1000.
    pub(super) user_permille: u32,
    /// The part that varies from request to request (exponentially distributed), in 1/1000.
    pub(super) random_permille: u32,
}

/// Sets the application's part of a request in `file.costs`.
///
/// # Errors
///
/// This fails if delivery alone costs more than was measured.
pub(super) fn fit(file: &mut WorldFile, division: Division) -> Result<(), String> {
    let measured_ns = f64::from(file.request_cost.ns());
    let times_served = if file.upstream.is_some() { 2.0 } else { 1.0 };
    let mut own_ns = measured_ns / times_served;
    // The nearest tries below and above: (the application's part, the figure that was shown).
    let (mut below, mut above) = (None::<(f64, f64)>, None::<(f64, f64)>);
    let mut nearest = (f64::INFINITY, own_ns);
    for _ in 0..ROUNDS_MAX {
        set(file, own_ns, division);
        let shown_ns = shown_ns(file)?;
        let off = (shown_ns - measured_ns).abs() / measured_ns;
        if off < nearest.0 {
            nearest = (off, own_ns);
        }
        if off <= TOLERANCE {
            return Ok(());
        }
        if own_ns <= OWN_MIN_NS && shown_ns > measured_ns {
            return Err(format!(
                "this is less than what these costs charge for system calls and delivery alone ({} in base at \
                 saturation): give at least that, or lower the costs in [costs]",
                time_text((shown_ns - own_ns * times_served).round() as u64)
            ));
        }
        *if shown_ns < measured_ns { &mut below } else { &mut above } = Some((own_ns, shown_ns));
        own_ns = match (below, above) {
            // Delivery and application fall into step in other ways when the cost changes, so the figure jumps in
            // places, and a straight line between two points misses it.
            (Some(below), Some(above)) => f64::midpoint(below.0, above.0),
            _ => (own_ns + (measured_ns - shown_ns) / times_served).max(OWN_MIN_NS),
        };
    }
    if nearest.0 <= TOLERANCE_LAST {
        set(file, nearest.1, division);
        return Ok(());
    }
    Err(format!(
        "no cost of the application shows {} a request in base at saturation: more connections may be needed to \
         saturate it",
        time_text(measured_ns as u64)
    ))
}

pub(super) fn set(file: &mut WorldFile, own_ns: f64, division: Division) {
    let part = |permille: u32| (own_ns * f64::from(permille) / 1_000.0).round() as u32;
    file.costs.request_user_ns = part(division.user_permille);
    file.costs.request_random_ns = part(division.random_permille);
    file.costs.request_sys_ns = part(1_000 - division.user_permille - division.random_permille);
}

/// Returns what a request costs on one or two cores of the service, saturated in base, in nanoseconds.
fn shown_ns(file: &WorldFile) -> Result<f64, String> {
    let measured_ns = file.request_cost.ns();
    // If workers run on other cores than their queues', it takes two cores.
    let lanes = if file.worker_cores == WorkerCores::Queue { 1 } else { file.workers.min(file.cores).min(2) };
    let lane = WorldFile {
        cores: lanes,
        workers: lanes,
        queues: lanes,
        connections: (file.connections / u32::from(file.workers)).max(1) * u32::from(lanes),
        bounds: Bounds::default(),
        second: None,
        spread: None,
        ..file.clone()
    };
    let base: Mode = "base".parse().map_err(|error: lull_core::ModeError| error.to_string())?;
    let window_ns = REQUESTS * u64::from(measured_ns) / u64::from(lanes);
    let mut world = lane.world(&base, Traffic::Closed, window_ns);
    world.warmup_ns = window_ns / 4 + 4 * u64::from(world.net.request_ns);
    let outcome = Sim::new(&world, SEED).run().map_err(|error| error.to_string())?;
    let spent_ns = match file.request_cost {
        RequestCost::Thread(_) | RequestCost::Own(_) | RequestCost::Frame(_) => {
            outcome.cpu.user_ns + outcome.cpu.sys_ns
        }
        RequestCost::Everything(_) => outcome.cpu.busy_ns(),
    };
    Ok(spent_ns as f64 / outcome.counts.served.max(1) as f64)
}
