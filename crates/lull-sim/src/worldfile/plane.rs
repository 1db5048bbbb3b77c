//! Which threads deliver, and where workers and connections are.

use lull_core::AfterResume;

use super::check::Check;
use super::error::WorldFileError;
use super::raw::Raw;
use crate::engine::rng::{Component, Stream};
use crate::world::UserHost;

/// Which core a worker runs on (`service.worker_cores`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerCores {
    /// The core of its queue's interrupt (`"queue"`, the default).
    #[default]
    Queue,
    /// Another core that has a worker (`"other"`).
    Other,
    /// It is not pinned (`"any"`): the seed draws where it begins, and below saturation the scheduler moves it.
    Any,
}

impl WorkerCores {
    /// Returns the core on which each worker begins, if there are as many workers as `places`.
    pub(super) fn places(self, places: u16, seed: u64) -> Vec<u16> {
        let mut cores: Vec<u16> = (0..places).collect();
        match self {
            WorkerCores::Queue => {}
            WorkerCores::Other => cores.rotate_left(1),
            WorkerCores::Any => {
                let mut rng = Stream::new(seed, Component::Placement, 0);
                for last in (1..cores.len()).rev() {
                    cores.swap(last, rng.below(last as u32 + 1) as usize);
                }
            }
        }
        cores
    }
}

/// Reads where workers run; with one place there is no other.
pub(super) fn worker_cores(check: &Check<'_>, raw: &Raw, places: u16) -> Result<WorkerCores, WorldFileError> {
    let Some(place) = &raw.service.worker_cores else { return Ok(WorkerCores::Queue) };
    match place.get_ref().as_str() {
        "queue" => Ok(WorkerCores::Queue),
        "other" if places < 2 => {
            let problem = "there is no other core that has a worker: allowed with two workers on two cores or more";
            Err(check.error("service.worker_cores", place, problem))
        }
        "other" => Ok(WorkerCores::Other),
        "any" => Ok(WorkerCores::Any),
        other => {
            let problem = format!("'{other}' is no place for workers: allowed are \"queue\", \"other\" and \"any\"");
            Err(check.error("service.worker_cores", place, problem))
        }
    }
}

/// Reads lull's own host, if it delivers (`machine.plane = "user"`).
pub(super) fn host(check: &Check<'_>, raw: &Raw) -> Result<Option<UserHost>, WorldFileError> {
    let machine = &raw.machine;
    let user = match machine.plane.as_ref().map(|plane| (plane, plane.get_ref().as_str())) {
        None | Some((_, "kernel")) => false,
        Some((_, "user")) => true,
        Some((plane, other)) => {
            let problem = format!("'{other}' is no plane: allowed are \"kernel\" and \"user\" (lull's own stack)");
            return Err(check.error("machine.plane", plane, problem));
        }
    };
    if let (true, Some(value)) = (user && raw.is_af_xdp(), &machine.plane) {
        let problem = "an AF_XDP responder has no stack, and is delivered to by the kernel: remove this";
        return Err(check.error("machine.plane", value, problem));
    }
    let after_resume = match machine.after_resume.as_ref().map(|after| (after, after.get_ref().as_str())) {
        None => AfterResume::Interrupt,
        Some((after, _)) if !user => {
            let problem = "the kernel defers after a resume, always: remove this, or set plane = \"user\"";
            return Err(check.error("machine.after_resume", after, problem));
        }
        Some((_, "interrupt")) => AfterResume::Interrupt,
        Some((_, "deferral")) => AfterResume::Deferral,
        Some((after, other)) => {
            let problem = format!("'{other}' follows no resume: allowed are \"interrupt\" and \"deferral\"");
            return Err(check.error("machine.after_resume", after, problem));
        }
    };
    Ok(user.then_some(UserHost { after_resume, ..UserHost::default() }))
}

/// Whether the driver completes a full poll off its interrupt's core (`nic.driver = "mlx5"`).
pub(super) fn completes_off_affinity(check: &Check<'_>, raw: &Raw) -> Result<bool, WorldFileError> {
    match raw.nic.driver.as_ref().map(|driver| (driver, driver.get_ref().as_str())) {
        None | Some((_, "other")) => Ok(false),
        Some((_, "mlx5")) => Ok(true),
        Some((driver, name)) => {
            let problem = format!(
                "nothing is known of '{name}' that matters here: allowed are \"mlx5\" (it completes full polls off its \
                 interrupt's core) and \"other\""
            );
            Err(check.error("nic.driver", driver, problem))
        }
    }
}

/// The NICs over which a machine can be calibrated: the lab's in memory, a TAP, AF_XDP over a veth pair, and the veth
/// pair of the kernel plane; or a device of the machine, whose peer generates the load.
pub const CALIBRATED_OVER: [&str; 5] = ["mem", "tap", "xdp", "veth", "device"];

/// Reads the NIC over which the file's values were found (`nic.calibrated`).
pub(super) fn calibrated(check: &Check<'_>, raw: &Raw) -> Result<Option<&'static str>, WorldFileError> {
    let Some(nic) = &raw.nic.calibrated else { return Ok(None) };
    let known = CALIBRATED_OVER.into_iter().find(|known| known == nic.get_ref());
    known.map(Some).ok_or_else(|| {
        let problem = format!("the lab has no NIC '{}': allowed are {}", nic.get_ref(), CALIBRATED_OVER.join(", "));
        check.error("nic.calibrated", nic, problem)
    })
}

/// How many connections each queue has, as counted (`nic.spread`).
pub(super) fn spread(
    check: &Check<'_>,
    raw: &Raw,
    (groups, connections): (u16, u32),
) -> Result<Option<Vec<u32>>, WorldFileError> {
    let Some(spread) = &raw.nic.spread else { return Ok(None) };
    if raw.nic.rss.is_some() {
        let problem = "says how many connections each queue has, and rss how they are spread: remove one of the two";
        return Err(check.error("nic.spread", spread, problem));
    }
    let counts = spread.get_ref();
    let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    if counts.len() != usize::from(groups) || sum != u64::from(connections) {
        let problem = format!(
            "{} queues with {sum} connections: allowed are {groups} numbers that add up to service.connections \
             ({connections})",
            counts.len()
        );
        return Err(check.error("nic.spread", spread, problem));
    }
    Ok(Some(counts.clone()))
}
