//! Runs a described world in one mode, under one load, with one seed.
//!
//! Jobs are independent, and the outcome of each depends only on the world file and the job, so a caller may spread
//! them over threads.

use lull_core::Mode;

use crate::engine::metrics::Outcome;
use crate::world::Traffic;
use crate::worldfile::{WIRE_SHARE_MAX, WorldFile};
use crate::{RunError, Sim};
use lull_units::rate_text;

/// The load of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offered {
    /// Open loop, in requests per second over all connections.
    PerSecond(f64),
    /// Closed loop over all connections.
    Max,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The mode.
    pub mode: Mode,
    /// The load.
    pub offered: Offered,
    /// The seed. Runs of the same seed have the same arrivals, whatever the mode.
    pub seed: u64,
    /// The virtual time that is counted, in nanoseconds.
    pub window_ns: u64,
}

/// The reason why there is no outcome.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The simulated service cannot be run in the mode.
    #[error("{0}")]
    Mode(String),
    /// The clients of the world cannot offer the load.
    #[error("{0}")]
    Load(String),
    /// The load does not fit the wire.
    #[error(
        "{} requests per second{} do not fit the wire: nic.speed, request_size and answer_size allow {} ({:.0} % of {}), \
         and queues on the wire are not simulated",
        rate_text(*per_s),
        if *second_per_s == 0.0 { String::new() } else { format!(" and the {} of [second]", rate_text(*second_per_s)) },
        rate_text((WIRE_SHARE_MAX * wire_per_s).floor()),
        100.0 * WIRE_SHARE_MAX,
        rate_text(wire_per_s.floor())
    )]
    Wire {
        /// The requests per second that were asked for, or served.
        per_s: f64,
        /// The requests per second of a second application.
        second_per_s: f64,
        /// What the wire carries.
        wire_per_s: f64,
    },
    /// A bound of the run was hit.
    #[error(transparent)]
    Bound(RunError),
}

/// Checks whether a load fits the wire, beside that of a second application.
///
/// # Errors
///
/// This fails with [`PredictError::Wire`].
pub fn fits_wire(file: &WorldFile, per_s: f64) -> Result<(), PredictError> {
    let wire_per_s = file.wire_per_s();
    let second_per_s = file.second.map_or(0.0, |second| f64::from(second.per_s));
    if per_s + second_per_s > WIRE_SHARE_MAX * wire_per_s {
        return Err(PredictError::Wire { per_s, second_per_s, wire_per_s });
    }
    Ok(())
}

/// Runs a job.
///
/// # Errors
/// See [`PredictError`].
pub fn run(file: &WorldFile, job: &Job) -> Result<Outcome, PredictError> {
    file.can_run(&job.mode).map_err(PredictError::Mode)?;
    let load = match job.offered {
        Offered::PerSecond(per_s) => {
            fits_wire(file, per_s)?;
            Traffic::Open { per_s }
        }
        Offered::Max => Traffic::Closed,
    };
    file.can_offer(load).map_err(PredictError::Load)?;
    let world = file.seeded_world(&job.mode, load, job.window_ns, job.seed);
    let outcome = Sim::new(&world, job.seed).run().map_err(PredictError::Bound)?;
    fits_wire(file, outcome.qps())?;
    Ok(outcome)
}
