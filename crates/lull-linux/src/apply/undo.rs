//! Gives a device back what it had, and forgets what cannot be given back.

use std::path::Path;

use serde::Serialize;

use crate::channels::{self, QueuesChange};
use crate::device::{Device, NapiState, QueueKey, Snapshot};
use crate::error::{Error, Result};
use crate::flows::{self, FlowsChange};
use crate::plan::{self, Change, Step};
use crate::session::Session;
use crate::state::{Former, State, Whereabouts, elsewhere_of};

/// The result of [`undo`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Undone {
    /// The changes; there are none if nothing was applied, or if everything had come back by itself.
    pub changes: Vec<Change>,
    /// The number of queues that is given back. This comes before the changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<QueuesChange>,
    /// The queues over which flows are spread again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsChange>,
    /// Queues that show no NAPI now, so that nothing could be given back to them. The state file keeps what they had.
    pub left: Vec<QueueKey>,
    /// Queues that show no NAPI now, and of which the state file no longer keeps what they had ([`undo_and_forget`]).
    pub forgotten: Vec<QueueKey>,
    /// Why the state file could not be used, if it was removed because of that ([`undo_and_forget`]).
    pub forgotten_file: Option<String>,
}

/// Returns what [`undo`] would change, and changes nothing.
///
/// # Errors
/// [`Error::StaleState`], and those of netlink.
pub fn undo_diff(session: &mut Session) -> Result<Undone> {
    let Some(state) = session.store.load()? else { return Ok(Undone::default()) };
    let snapshot = session.snapshot()?;
    let (steps, mut left) = steps_back(&state, &snapshot);
    let queues = channels::change_back(session, &state)?;
    if queues.is_some() {
        // These queues come back first.
        left.clear();
    }
    Ok(Undone {
        queues,
        flows: flows::change_back(session, &state)?,
        changes: steps.iter().flat_map(|(step, _)| step.changes()).collect(),
        left: left.iter().map(|it| it.queue).collect(),
        ..Undone::default()
    })
}

/// Gives every NAPI back what it had before the first [`apply`](crate::apply::apply). It does no harm if nothing was
/// applied.
///
/// # Errors
/// [`Error::StaleState`]; the first refusal of the kernel, after everything else was tried. The state file then keeps
/// what is still to be given back.
pub fn undo(session: &mut Session) -> Result<Undone> {
    give_back(session, false)
}

/// As [`undo`], and what queues had that show no NAPI now is forgotten. It is for queues that were taken away for good.
/// A state file that does not belong to the present device is removed as well.
///
/// # Errors
/// Those of [`undo`]; an error for a state file of a device that still exists, under another name or in another network
/// namespace.
pub fn undo_and_forget(session: &mut Session) -> Result<Undone> {
    match session.store.load() {
        Err(Error::StaleState { reason, path, .. }) => {
            session.forget_other_device(&path, false)?;
            Ok(Undone { forgotten_file: Some(reason), ..Undone::default() })
        }
        _ => give_back(session, true),
    }
}

/// Returns what [`undo_and_forget`] would do, and changes nothing.
///
/// # Errors
/// Those of [`undo_and_forget`].
pub fn undo_and_forget_diff(session: &mut Session) -> Result<Undone> {
    match session.store.load() {
        Err(Error::StaleState { reason, path, .. }) => {
            session.forget_other_device(&path, true)?;
            Ok(Undone { forgotten_file: Some(reason), ..Undone::default() })
        }
        _ => {
            let mut undone = undo_diff(session)?;
            undone.forgotten = std::mem::take(&mut undone.left);
            Ok(undone)
        }
    }
}

fn give_back(session: &mut Session, forget: bool) -> Result<Undone> {
    let _lock = session.locked()?;
    let Some(mut state) = session.store.load()? else { return Ok(Undone::default()) };
    let mut undone = Undone::default();
    let mut first_refusal = None;
    // The queues come first, because a queue that is taken away shows no NAPI.
    match channels::give_back(session, &mut state) {
        Ok(change) => undone.queues = change,
        Err(error) => first_refusal = Some(error),
    }
    match flows::give_back(session, &mut state) {
        Ok(change) => undone.flows = change,
        Err(error) => first_refusal = first_refusal.or(Some(error)),
    }
    let (snapshot, mut kept) = (session.snapshot()?, Vec::new());
    let (steps, without_napi) = steps_back(&state, &snapshot);
    let queues = without_napi.iter().map(|former| former.queue).collect();
    *if forget { &mut undone.forgotten } else { &mut undone.left } = queues;
    state.napis = if forget { Vec::new() } else { without_napi };
    for (step, former) in steps {
        match session.carry_out(&step) {
            Ok(()) => undone.changes.extend(step.changes()),
            Err(error) => {
                kept.push(former.queue);
                state.napis.push(former);
                first_refusal = first_refusal.or(Some(error));
            }
        }
    }
    let saved = session.store.save(&state);
    saved.map_err(|error| error.left("what could be given back was given back before that"))?;
    let Some(refusal) = first_refusal else { return Ok(undone) };
    Err(refusal.left(&left_after(&snapshot.device, &kept)))
}

/// What a device has after an undo of which the kernel has refused a part, in words.
fn left_after(device: &str, kept: &[QueueKey]) -> String {
    let what = match kept {
        [] => "its NAPIs have what they had before".to_owned(),
        [queue] => format!("queue {queue} keeps what was applied, and every other NAPI has what it had before"),
        queues => {
            let queues = queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("queues {queues} keep what was applied, and every other NAPI has what it had before")
        }
    };
    format!("{what}; `lull undo {device}` gives back the rest when that is mended")
}

/// The steps that give the former values back, each with these values, and what queues had that show no NAPI.
fn steps_back(state: &State, snapshot: &Snapshot) -> (Vec<(Step, Former)>, Vec<Former>) {
    let mut left = Vec::new();
    let mut steps = Vec::new();
    for (nth, former) in state.napis.iter().enumerate() {
        let is_its = |napi: &&NapiState| state.former_of(napi.key, napi.id, snapshot) == Some(nth);
        match snapshot.napis.iter().find(is_its) {
            Some(napi) => steps.push((plan::back(napi, former.settings, former.thread.as_ref()), former.clone())),
            None => left.push(former.clone()),
        }
    }
    (steps.into_iter().filter(|(step, _)| !step.is_empty()).collect(), left)
}

impl Session {
    /// Removes the state file of a device that had the name of this one (not in a dry run). It refuses if that device
    /// still exists, under another name or in another network namespace.
    fn forget_other_device(&mut self, file: &Path, dry_run: bool) -> Result<()> {
        let refused = |what: String, remedy: String| Err(Error::Input { what, remedy });
        for link in self.netdev.links()? {
            // A device that has vanished meanwhile is not the one.
            let Ok(device) = Device::open(&link.name, &mut self.netdev, &self.roots) else { continue };
            if device.ifindex != self.device.ifindex && self.store.of(device).owns(file) {
                return refused(
                    format!("{} is of {}, which had another name then", file.display(), link.name),
                    format!("`lull undo {}` first", link.name),
                );
            }
        }
        let found = elsewhere_of(file, self.store.directory(), &self.roots, dry_run, self.lock())?;
        let Some(found) = found else {
            // The file belongs to no device that could be looked for.
            let _lock = if dry_run { None } else { self.locked()? };
            return if dry_run { Ok(()) } else { self.store.remove() };
        };
        match found.whereabouts {
            Whereabouts::Gone => Ok(()),
            Whereabouts::Namespace { remedy, kept_by } => refused(
                format!("{} is of {}, which is in another network namespace now", file.display(), found.device),
                remedy.map_or_else(
                    || format!("only {kept_by} keeps that namespace: both go with it"),
                    |remedy| format!("`{remedy}` first"),
                ),
            ),
            Whereabouts::Unknown { reason } => refused(
                format!("{} is kept: its device may be in another network namespace ({reason})", file.display()),
                "remove the file if that device is gone".to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::options::Options;
    use crate::state::Patience;

    #[test]
    fn the_state_of_another_boot_is_forgotten_by_who_has_the_lock_of_the_same_index() {
        let directory = std::env::temp_dir().join(format!("lull-same-index-{}", std::process::id()));
        let mut session = Session::open("lo", &Options::in_dir(&directory)).unwrap();
        // The loopback device has the same index in every boot, and its directory in /sys has another number.
        let mut state = serde_json::to_value(session.store.empty()).unwrap();
        state["boot_id"] = "another boot".into();
        state["node"] = 1.into();
        let file = session.state_file();
        fs::create_dir_all(&directory).unwrap();
        fs::write(&file, state.to_string()).unwrap();
        session.wait_for_lock(Patience::of(Duration::from_secs(60)), &mut |line| panic!("{line}")).unwrap();
        let undone = undo_and_forget(&mut session);
        let (is_left, other) = (file.exists(), Session::open("lo", &Options::in_dir(&directory)).unwrap());
        let is_held = other.locked().is_err();
        drop(session);
        fs::remove_dir_all(&directory).unwrap();
        assert!(undone.unwrap().forgotten_file.is_some_and(|why| why.contains("another boot")) && !is_left);
        assert!(is_held, "the session has its lock as before");
    }
}
