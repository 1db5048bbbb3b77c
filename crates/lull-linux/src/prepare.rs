//! The set-up of a machine and a device for low latency, step by step from a profile: queues, rings, coalescing, RPS
//! and RFS, interrupts, and the machine-wide steps that a profile has to name.
//!
//! What a step overwrites is in a state file before it is done: the device's own, and one for the machine. What device
//! or kernel lack is reported and is no failure.

mod keep;
mod profile;
mod step;
mod steps;

use std::borrow::Borrow;
use std::time::Duration;

pub(crate) use keep::Keeping;
pub use profile::{DEFAULT_PROFILE, DeviceProfile, MachineProfile, Profile};
use step::Step;
pub use step::{Outcome, StepReport};
use steps::{device_steps, machine_steps, queue_steps};

use crate::error::Result;
use crate::ethtool::Ethtool;
pub use crate::overwritten::{Overwritten, Target};
use crate::roots::Roots;
use crate::session::Session;
use crate::state::{Lock, State, Store};

/// How long a lock is waited for: a change takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Does the steps of a profile.
///
/// # Errors
/// A stale state file, another lull at work, a state file that cannot be written: nothing was changed. A step that is
/// refused is in the reports.
pub fn prepare(session: &mut Session, profile: &Profile, dry_run: bool) -> Result<Vec<StepReport>> {
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    let mut ethtool = Ethtool::new(session.device());
    let snapshot = session.snapshot()?;
    let in_sysfs = session.device().in_sysfs;
    let roots = session.roots().clone();
    let of_queues = queue_steps(&profile.device);
    let of_device = device_steps(&profile.device, &snapshot, in_sysfs, &roots)?;
    let of_machine = machine_steps(&profile.machine, &roots)?;
    // Every lock before the first change: what is locked by somebody else is refused as a whole.
    let mut takes = |steps: &[&[Step]], store: &Store| {
        let looked: Vec<_> =
            steps.iter().copied().flatten().map(|step| (step.look(&mut ethtool, &roots), step)).collect();
        let wanted = !dry_run && has_work(&looked, store.load()?.as_ref(), store);
        if wanted { store.wait_for_lock(LOCK_WAIT, &mut |_| {}).map(Some) } else { Ok(None) }
    };
    let lock_of_device = takes(&[&of_queues, &of_device], &device)?;
    let lock_of_machine = takes(&[&of_machine], &machine)?;
    let mut reports = Vec::new();
    // The queues first: what follows is for the queues that there are then.
    reports.extend(carry_out(of_queues, &device, lock_of_device.as_ref(), &mut ethtool, &roots)?);
    let snapshot = session.snapshot()?;
    let of_device = device_steps(&profile.device, &snapshot, in_sysfs, &roots)?;
    reports.extend(carry_out(of_device, &device, lock_of_device.as_ref(), &mut ethtool, &roots)?);
    reports.extend(carry_out(of_machine, &machine, lock_of_machine.as_ref(), &mut ethtool, &roots)?);
    Ok(reports)
}

/// Gives back what the steps have overwritten, the last first. Harmless when nothing was prepared.
///
/// # Errors
/// As [`prepare`]; what is refused is in the reports, and stays in the state file.
pub fn unprepare(session: &mut Session, dry_run: bool) -> Result<Vec<StepReport>> {
    let mut ethtool = Ethtool::new(session.device());
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    // Every lock before the first change, and in the order of `prepare`.
    let mut prepared = Vec::new();
    for store in [device, machine] {
        if store.load()?.is_some_and(|state| !state.prepared.is_empty()) {
            let lock = if dry_run { None } else { Some(store.wait_for_lock(LOCK_WAIT, &mut |_| {})?) };
            prepared.push((store, lock));
        }
    }
    let mut reports = Vec::new();
    for (store, _lock) in prepared.iter().rev() {
        // As it is under the lock.
        let Some(mut state) = store.load()? else { continue };
        let mut kept = Vec::new();
        for done in state.prepared.iter().rev() {
            if done.target == Target::CpuDmaLatency {
                reports.push(released(done));
                continue;
            }
            let step = Step { what: done.what.clone(), target: Ok(done.target.clone()), to: done.former.clone() };
            let mut report = step.look(&mut ethtool, session.roots());
            if done.target.is_of_a_device() && !session.device().in_sysfs {
                report.outcome =
                    Outcome::Refused("/sys is that of another network namespace: mount its own".to_owned());
            }
            let report = if dry_run { report } else { step.carry_out(report, &mut ethtool, session.roots()) };
            // What is gone has taken its value along; what was refused is tried again next time.
            if matches!(report.outcome, Outcome::Refused(_)) {
                kept.push(done.clone());
            }
            reports.push(report);
        }
        if !dry_run {
            kept.reverse();
            state.prepared = kept;
            store.save(&state)?;
        }
    }
    Ok(reports)
}

/// Whoever holds it lets go when it is in no state file any more.
fn released(done: &Overwritten) -> StepReport {
    let (what, from) = (done.what.clone(), done.set.clone());
    StepReport { what, from, to: "not held".to_owned(), outcome: Outcome::Changed }
}

/// Whether there is something to change, or to remember.
fn has_work(looked: &[(StepReport, impl Borrow<Step>)], before: Option<&State>, store: &Store) -> bool {
    let before = before.cloned().unwrap_or_else(|| store.empty());
    looked.iter().any(|(report, _)| report.outcome == Outcome::Changed) || remember(before.clone(), looked) != before
}

/// Carries steps out, with what they overwrite on disk before the first. Without the lock it only looks.
fn carry_out(
    steps: Vec<Step>,
    store: &Store,
    lock: Option<&Lock>,
    ethtool: &mut Ethtool,
    roots: &Roots,
) -> Result<Vec<StepReport>> {
    let looked: Vec<_> = steps.into_iter().map(|step| (step.look(ethtool, roots), step)).collect();
    let before = store.load()?;
    if lock.is_none() || !has_work(&looked, before.as_ref(), store) {
        return Ok(looked.into_iter().map(|(report, _)| report).collect());
    }
    let before = before.unwrap_or_else(|| store.empty());
    let known = before.prepared.len();
    let mut state = remember(before, &looked);
    store.save(&state).map_err(|error| error.left("none of these steps was done"))?;
    let mut reports = Vec::new();
    for (report, step) in looked {
        let report = step.carry_out(report, ethtool, roots);
        // What was not done has nothing to be undone.
        if let (Outcome::Lacking(_) | Outcome::Refused(_), Ok(target)) = (&report.outcome, &step.target) {
            let new = state.prepared.split_off(known);
            state.prepared.extend(new.into_iter().filter(|done| done.target != *target));
        }
        reports.push(report);
    }
    store.save(&state)?;
    Ok(reports)
}

/// Adds what the steps overwrite and what they set. What an earlier prepare has remembered is the original.
fn remember(mut state: State, looked: &[(StepReport, impl Borrow<Step>)]) -> State {
    for (report, step) in looked {
        let step = step.borrow();
        let Ok(target) = &step.target else { continue };
        let known = state.prepared.iter_mut().find(|done| done.target == *target);
        match (known, &report.outcome) {
            (Some(done), Outcome::Changed | Outcome::Already | Outcome::Held(_)) => done.set = Some(step.to.clone()),
            (None, Outcome::Changed | Outcome::Held(_)) => state.prepared.push(Overwritten {
                target: target.clone(),
                what: step.what.clone(),
                former: report.from.clone().unwrap_or_default(),
                set: Some(step.to.clone()),
            }),
            _ => {}
        }
    }
    state
}
