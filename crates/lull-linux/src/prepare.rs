//! The set-up of a machine and a device for low latency, step by step from a profile: queues, rings, coalescing, RPS
//! and RFS, interrupts, and the machine-wide steps that a profile has to name.
//!
//! What a step overwrites is in a state file before it is done: the device's own, and one for the machine. What device
//! or kernel lack is reported and is no failure.

mod keep;
mod profile;
mod step;
mod steps;

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
use crate::state::{State, Store, Term};

/// Does the steps of a profile.
///
/// # Errors
/// A stale state file, another lull at work, a state file that cannot be written: nothing was changed. A step that is
/// refused is in the reports.
pub fn prepare(session: &mut Session, profile: &Profile, dry_run: bool) -> Result<Vec<StepReport>> {
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    let mut reports = Vec::new();
    let mut ethtool = Ethtool::new(session.device());
    // The queues first: what follows is for the queues that there are then.
    reports.extend(carry_out(queue_steps(&profile.device), &device, &mut ethtool, session.roots(), dry_run)?);
    let snapshot = session.snapshot()?;
    let steps = device_steps(&profile.device, &snapshot, session.device().in_sysfs, session.roots())?;
    reports.extend(carry_out(steps, &device, &mut ethtool, session.roots(), dry_run)?);
    let steps = machine_steps(&profile.machine, session.roots())?;
    reports.extend(carry_out(steps, &machine, &mut ethtool, session.roots(), dry_run)?);
    Ok(reports)
}

/// Gives back what the steps have overwritten, the last first. Harmless when nothing was prepared.
///
/// # Errors
/// As [`prepare`]; what is refused is in the reports, and stays in the state file.
pub fn unprepare(session: &mut Session, dry_run: bool) -> Result<Vec<StepReport>> {
    let mut ethtool = Ethtool::new(session.device());
    let mut reports = Vec::new();
    for store in [session.store().of_machine(), session.store().clone()] {
        let Some(mut state) = store.load()? else { continue };
        let _lock = if dry_run { None } else { Some(store.lock(Term::Moment)?) };
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

/// Carries steps out, with what they overwrite on disk before the first.
fn carry_out(
    steps: Vec<Step>,
    store: &Store,
    ethtool: &mut Ethtool,
    roots: &Roots,
    dry_run: bool,
) -> Result<Vec<StepReport>> {
    let looked: Vec<_> = steps.into_iter().map(|step| (step.look(ethtool, roots), step)).collect();
    let before = store.load()?;
    let same = before == Some(remember(before.clone().unwrap_or_else(|| store.empty()), &looked));
    let changing = looked.iter().any(|(report, _)| matches!(report.outcome, Outcome::Changed | Outcome::Held(_)));
    if dry_run || same || (before.is_none() && !changing) {
        return Ok(looked.into_iter().map(|(report, _)| report).collect());
    }
    let _lock = store.lock(Term::Moment)?;
    let before = store.load()?.unwrap_or_else(|| store.empty());
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
fn remember(mut state: State, looked: &[(StepReport, Step)]) -> State {
    for (report, step) in looked {
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
