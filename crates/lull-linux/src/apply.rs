//! Apply, diff and undo. This is the only code that changes NAPIs.
//!
//! Settings are set per NAPI (`napi-set`), never device-wide, because a device-wide write would overwrite the settings
//! of every queue. The rules are:
//!
//! - everything that can be refused is refused before the first change (`plan.rs`);
//! - the state file with the former values is on disk before the first change;
//! - what a state file already holds stays, as it is the original, whatever was applied since;
//! - if something fails half-way, what was in force before this call is given back.

mod step;
mod undo;

use lull_core::{NapiSettings, Threaded};
use serde::Serialize;

pub use undo::{Undone, undo, undo_and_forget, undo_and_forget_diff, undo_diff};

use crate::device::Snapshot;
use crate::error::{Error, Result};
use crate::machine;
pub use crate::options::Options;
use crate::plan::{self, Change, DeviceRequest, Step};
use crate::sched::Scheduling;
pub use crate::session::Session;
use crate::state::{Former, State};

/// The result of [`apply`].
#[derive(Clone, Debug, Serialize)]
pub struct Applied {
    /// The changes; there are none if the mode was in force already.
    pub changes: Vec<Change>,
}

impl Session {
    fn steps(&mut self, request: &DeviceRequest) -> Result<(Vec<Step>, Snapshot)> {
        // What needs no kernel comes first, so that a wrong value is reported as one.
        request.settings()?;
        let snapshot = self.snapshot()?;
        Ok((self.steps_from(&snapshot, request)?, snapshot))
    }

    fn steps_from(&mut self, snapshot: &Snapshot, request: &DeviceRequest) -> Result<Vec<Step>> {
        let policy = self.policy()?;
        let (kernel, online) = (machine::kernel_release(), machine::online_cpus(&self.roots));
        plan::plan(snapshot, request, &policy, &kernel, &online)
    }
}

/// Returns what [`apply`] would change, and changes nothing.
///
/// # Errors
/// Those errors of [`apply`] that it finds before the first change.
pub fn diff(session: &mut Session, request: &DeviceRequest) -> Result<Vec<Change>> {
    let before = session.store.load()?;
    let (steps, snapshot) = session.steps(request)?;
    plan::check_surplus(&snapshot, request)?;
    check_threads(before.as_ref(), &steps, &snapshot)?;
    Ok(steps.iter().flat_map(Step::changes).collect())
}

/// Puts a mode in force on all NAPIs that the request is about, or on none.
///
/// # Errors
/// Whatever is refused. The device is then as it was before the call, or [`Error::NotRestored`] says that it is not.
pub fn apply(session: &mut Session, request: &DeviceRequest) -> Result<Applied> {
    let _lock = session.locked()?;
    let before = session.store.load()?;
    let (steps, snapshot) = session.steps(request)?;
    plan::check_surplus(&snapshot, request)?;
    put_in_force(session, before, &steps, &snapshot, &|_| request.mode.name().to_owned())
}

/// The result of [`apply_again`].
pub(crate) struct AppliedAgain {
    pub(crate) applied: Applied,
    /// The named queues that show no NAPI.
    pub(crate) missing: Vec<u32>,
    /// Why the threads of some NAPIs were not ended. Nothing else of these NAPIs was changed either.
    pub(crate) unseen: Vec<Error>,
}

/// As [`apply`], for a request that was applied before. The device may have fewer queues now than the request names or
/// gives CPUs for. A NAPI whose thread cannot be ended ([`check_threads`]) does not keep the others from being changed.
///
/// # Errors
/// Those of [`apply`].
pub(crate) fn apply_again(session: &mut Session, request: &DeviceRequest) -> Result<AppliedAgain> {
    let _lock = session.locked()?;
    let before = session.store.load()?;
    let snapshot = session.snapshot()?;
    let (mut there, mut missing) = (request.clone(), Vec::new());
    if let Some(queues) = &mut there.queues {
        missing = queues.extract_if(.., |queue| !snapshot.serves(*queue)).collect();
    }
    let (steps, unseen) = seen(before.as_ref(), session.steps_from(&snapshot, &there)?, &snapshot);
    let applied = put_in_force(session, before, &steps, &snapshot, &|_| request.mode.name().to_owned())?;
    Ok(AppliedAgain { applied, missing, unseen })
}

/// The steps without those that [`check_threads`] refuses, and why it refuses them.
fn seen(before: Option<&State>, steps: Vec<Step>, snapshot: &Snapshot) -> (Vec<Step>, Vec<Error>) {
    let (mut seen, mut unseen) = (Vec::new(), Vec::new());
    for step in steps {
        match check_threads(before, std::slice::from_ref(&step), snapshot) {
            Ok(()) => seen.push(step),
            Err(error) => unseen.push(error),
        }
    }
    (seen, unseen)
}

/// Refuses to end a thread whose CPUs and policy cannot be seen from here, unless the state file has them. What is not
/// seen could not be given back.
///
/// # Errors
/// [`Error::Unsupported`] for the first such thread.
pub(crate) fn check_threads(before: Option<&State>, steps: &[Step], snapshot: &Snapshot) -> Result<()> {
    for step in steps {
        let ends = step.from.threaded != Threaded::Off && step.to.threaded == Threaded::Off;
        if !ends || step.thread.as_ref().is_none_or(|thread| thread.scheduling.is_some()) {
            continue;
        }
        let former = before.and_then(|state| Some(&state.napis[state.former_of(step.key, step.napi_id, snapshot)?]));
        let is_known =
            |former: &Former| former.thread.is_some() || NapiSettings::from(former.settings).threaded == Threaded::Off;
        if former.is_some_and(is_known) {
            continue;
        }
        return Err(Error::Unsupported {
            what: format!("end the thread of {} queue {}", snapshot.device, step.key),
            reason: "its CPUs and policy cannot be seen in this pid namespace, and could not be given back".to_owned(),
            remedy: "run lull in the initial one, or end the thread yourself first".to_owned(),
        });
    }
    Ok(())
}

/// Carries steps out, all or none. `name` returns the name of what is applied, given the name of what was applied to
/// the NAPI before.
pub(crate) fn put_in_force(
    session: &mut Session,
    before: Option<State>,
    steps: &[Step],
    snapshot: &Snapshot,
    name: &dyn Fn(Option<&str>) -> String,
) -> Result<Applied> {
    if steps.is_empty() {
        return Ok(Applied { changes: Vec::new() });
    }
    check_threads(before.as_ref(), steps, snapshot)?;
    let base = before.clone().unwrap_or_else(|| session.store.empty());
    let remembered = session.store.save(&remember(base, steps, snapshot, name));
    remembered.map_err(|error| error.left("nothing was changed"))?;
    for (done, step) in steps.iter().enumerate() {
        let Err(cause) = session.carry_out(step) else { continue };
        // The step that failed may have been carried out in part.
        let restored = session.restore(&steps[..=done]);
        let restored = restored.and_then(|()| session.store.save(&before.unwrap_or_else(|| session.store.empty())));
        return Err(match restored {
            Ok(()) => cause,
            Err(restoring) => Error::NotRestored { cause: Box::new(cause), restoring: Box::new(restoring) },
        });
    }
    Ok(Applied { changes: steps.iter().flat_map(Step::changes).collect() })
}

/// Adds what the steps will overwrite, unless an earlier apply has recorded the original already.
fn remember(mut state: State, steps: &[Step], snapshot: &Snapshot, name: &dyn Fn(Option<&str>) -> String) -> State {
    for step in steps {
        match state.former_of(step.key, step.napi_id, snapshot) {
            Some(nth) => {
                let former = &mut state.napis[nth];
                (former.queue, former.napi_id) = (step.key, step.napi_id);
                former.mode = name(Some(&former.mode));
            }
            None => state.napis.push(Former {
                queue: step.key,
                napi_id: step.napi_id,
                settings: step.from.into(),
                thread: step.thread.as_ref().and_then(|thread| thread.scheduling.clone()),
                mode: name(None),
            }),
        }
    }
    state
}

impl Session {
    /// Gives back what was in force before the steps, beginning with the last step.
    fn restore(&mut self, steps: &[Step]) -> Result<()> {
        let snapshot = self.snapshot()?;
        let mut first_refusal = Ok(());
        for step in steps.iter().rev() {
            // A NAPI that is gone has no settings any more.
            let Some(napi) = snapshot.napis.iter().find(|napi| napi.id == step.napi_id) else { continue };
            let thread: Option<&Scheduling> = step.thread.as_ref().and_then(|thread| thread.scheduling.as_ref());
            let done = self.carry_out(&plan::back(napi, step.from.into(), thread));
            first_refusal = first_refusal.and(done);
        }
        first_refusal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{QueueKey, Thread};
    use crate::sched::ThreadPolicy;

    #[test]
    fn a_thread_that_is_not_seen_is_ended_only_where_nothing_of_it_is_lost() {
        let directory = std::env::temp_dir().join(format!("lull-unseen-{}", std::process::id()));
        let mut session = Session::open("lo", &Options::in_dir(&directory)).unwrap();
        let (snapshot, none) = (session.snapshot().unwrap(), NapiSettings::default());
        let threaded = NapiSettings { threaded: Threaded::On, ..none };
        let scheduling = Scheduling { cpus: vec![0], policy: ThreadPolicy::Fifo(3) };
        let step = |from, to, scheduling| Step {
            key: QueueKey::Rx(0),
            napi_id: 9,
            from,
            to,
            thread: Some(Thread { pid: 7, scheduling }),
            thread_cpus: None,
            thread_policy: None,
        };
        let before = |settings: NapiSettings, thread| {
            let mut state = session.store().empty();
            let mode = "threaded".to_owned();
            state.napis.push(Former { queue: QueueKey::Rx(0), napi_id: 9, settings: settings.into(), thread, mode });
            state
        };
        let ends = |before: Option<State>, scheduling| {
            check_threads(before.as_ref(), &[step(threaded, none, scheduling)], &snapshot).is_ok()
        };
        assert!(!ends(None, None), "what it had is nowhere");
        assert!(!ends(Some(before(threaded, None)), None), "nor here");
        assert!(ends(None, Some(scheduling.clone())), "it is seen");
        assert!(ends(Some(before(threaded, Some(scheduling))), None), "it was seen");
        assert!(ends(Some(before(none, None)), None), "it was started by lull");
        assert!(check_threads(None, &[step(threaded, threaded, None)], &snapshot).is_ok(), "it stays");
        // The thread of a new queue keeps the mode from no other queue when it is applied again.
        let steps = vec![step(threaded, none, None), Step { key: QueueKey::Rx(1), ..step(threaded, threaded, None) }];
        let (seen, unseen) = seen(None, steps, &snapshot);
        assert_eq!(seen.iter().map(|step| step.key).collect::<Vec<_>>(), [QueueKey::Rx(1)]);
        assert!(unseen.len() == 1 && unseen[0].to_string().contains("queue 0"), "{unseen:?}");
    }
}
