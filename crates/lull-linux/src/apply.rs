//! Apply, diff and undo: the only code that changes NAPIs.
//!
//! Settings are set per NAPI (`napi-set`), never device-wide: a device-wide write would overwrite the settings of every
//! queue. The rules:
//!
//! - everything that can be refused is refused before the first change (`plan.rs`);
//! - the state file with the former values is on disk before the first change;
//! - what a state file already holds stays: it is the original, whatever was applied since;
//! - a failure part-way gives back what was in force before this call.

mod undo;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use undo::{Undone, undo, undo_and_forget, undo_and_forget_diff, undo_diff};

use crate::device::{Device, Snapshot};
use crate::error::{Error, Result};
use crate::identity::Node;
use crate::machine;
use crate::netdev::{Netdev, Policy};
use crate::plan::{self, Change, DeviceRequest, Step};
use crate::roots::Roots;
use crate::sched::{self, Scheduling};
use crate::state::{Former, Lock, STATE_DIR, State, Store, Term};

/// Where a session reads and keeps things.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of state files and locks.
    pub state_dir: PathBuf,
    /// `/sys` and `/proc`.
    pub roots: Roots,
}

impl Default for Options {
    fn default() -> Options {
        Options { state_dir: STATE_DIR.into(), roots: Roots::default() }
    }
}

impl Options {
    /// Options with the state files in `state_dir`.
    pub fn in_dir(state_dir: &Path) -> Options {
        Options { state_dir: state_dir.to_owned(), ..Options::default() }
    }
}

/// Work on one device.
pub struct Session {
    netdev: Netdev,
    device: Device,
    roots: Roots,
    store: Store,
    lock: Option<Lock>,
}

/// What `apply` did.
#[derive(Clone, Debug, Serialize)]
pub struct Applied {
    /// The changes; none if the mode was in force already.
    pub changes: Vec<Change>,
}

impl Session {
    /// Looks the device up in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn open(device: &str, options: &Options) -> Result<Session> {
        let mut netdev = Netdev::new();
        let roots = options.roots.clone();
        let device = Device::open(device, &mut netdev, &roots)?;
        let store = Store::new(&options.state_dir, &device, &roots)?;
        Ok(Session { netdev, device, roots, store, lock: None })
    }

    /// The device that the session works on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The roots of `/sys` and `/proc`.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The netlink socket that the session works with.
    pub fn netdev(&mut self) -> &mut Netdev {
        &mut self.netdev
    }

    /// What is in force on the device now.
    ///
    /// # Errors
    /// Those of netlink; [`Error::UnknownDevice`] if it has vanished.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.device.snapshot(&mut self.netdev, &self.roots)
    }

    /// What the kernel's `napi-set` takes.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn policy(&mut self) -> Result<Policy> {
        self.netdev.policy()
    }

    /// What was in force before, if anything was applied.
    ///
    /// # Errors
    /// [`Error::StaleState`].
    pub fn state(&self) -> Result<Option<State>> {
        self.store.load()
    }

    /// The state file of the device.
    pub fn state_file(&self) -> PathBuf {
        self.store.file()
    }

    /// Where this device's state is kept.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Takes the device until the session ends, instead of for each call.
    ///
    /// # Errors
    /// [`Error::Locked`].
    pub fn hold(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(self.store.lock(Term::Stay)?);
        }
        Ok(())
    }

    /// Takes the device until the session ends, and waits for another lull that works on it for a moment, which `log`
    /// is told.
    ///
    /// # Errors
    /// [`Error::Locked`] after `limit`, and at once by a lull that stays.
    pub fn wait_for_lock(&mut self, limit: Duration, log: &mut dyn FnMut(&str)) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(self.store.wait_for_lock(limit, log)?);
        }
        Ok(())
    }

    /// Forgets what was in force before: for a device that has vanished with it.
    ///
    /// # Errors
    /// The state file cannot be removed. A device that is in another network namespace now has not vanished: it keeps
    /// its state, and this says so.
    pub fn forget(&mut self) -> Result<()> {
        if self.device.node.as_ref().is_some_and(Node::is_there) {
            return Err(Error::Moved { device: self.device.name.clone() });
        }
        let _lock = self.locked()?;
        self.store.remove()
    }

    /// The lock for one call, unless the session has it anyway.
    pub(crate) fn locked(&self) -> Result<Option<Lock>> {
        if self.lock.is_some() { Ok(None) } else { self.store.lock(Term::Moment).map(Some) }
    }

    fn steps(&mut self, request: &DeviceRequest) -> Result<(Vec<Step>, Snapshot)> {
        // What needs no kernel comes first: a wrong value is told as such.
        request.settings()?;
        let policy = self.policy()?;
        let snapshot = self.snapshot()?;
        let (kernel, online) = (machine::kernel_release(), machine::online_cpus(&self.roots));
        Ok((plan::plan(&snapshot, request, &policy, &kernel, &online)?, snapshot))
    }
}

/// What [`apply`] would change; changes nothing.
///
/// # Errors
/// Those of [`apply`] that it finds before the first change.
pub fn diff(session: &mut Session, request: &DeviceRequest) -> Result<Vec<Change>> {
    session.store.load()?;
    let (steps, snapshot) = session.steps(request)?;
    plan::check_surplus(&snapshot, request)?;
    Ok(steps.iter().flat_map(Step::changes).collect())
}

/// Puts a mode in force, on all NAPIs that the request is about or on none.
///
/// # Errors
/// Whatever is refused; the device is then as it was before the call, or [`Error::NotRestored`] says that it is not.
pub fn apply(session: &mut Session, request: &DeviceRequest) -> Result<Applied> {
    let _lock = session.locked()?;
    let before = session.store.load()?;
    let (steps, snapshot) = session.steps(request)?;
    plan::check_surplus(&snapshot, request)?;
    put_in_force(session, before, &steps, &snapshot, &|_| request.mode.name().to_owned())
}

/// As [`apply`], for a request that was applied before: the device may have fewer queues now than CPUs were given for.
///
/// # Errors
/// Those of [`apply`].
pub(crate) fn apply_again(session: &mut Session, request: &DeviceRequest) -> Result<Applied> {
    let _lock = session.locked()?;
    let before = session.store.load()?;
    let (steps, snapshot) = session.steps(request)?;
    put_in_force(session, before, &steps, &snapshot, &|_| request.mode.name().to_owned())
}

/// Carries steps out, all or none. `name` says what they are called after what was applied to a NAPI before.
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
    let base = before.clone().unwrap_or_else(|| session.store.empty());
    let remembered = session.store.save(&remember(base, steps, snapshot, name));
    remembered.map_err(|error| error.left("nothing was changed"))?;
    for (done, step) in steps.iter().enumerate() {
        let Err(cause) = session.carry_out(step) else { continue };
        // The step that failed may have gone half its way.
        let restored = session.restore(&steps[..=done]);
        let restored = restored.and_then(|()| session.store.save(&before.unwrap_or_else(|| session.store.empty())));
        return Err(match restored {
            Ok(()) => cause,
            Err(restoring) => Error::NotRestored { cause: Box::new(cause), restoring: Box::new(restoring) },
        });
    }
    Ok(Applied { changes: steps.iter().flat_map(Step::changes).collect() })
}

/// Adds what the steps will overwrite, unless an earlier apply has already remembered the original.
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
    fn carry_out(&mut self, step: &Step) -> Result<()> {
        let change = step.napi_change();
        if !change.is_empty() {
            self.netdev.set(step.napi_id, &change).map_err(|error| self.on_device(error, step))?;
        }
        // A thread that this step has ended needs nothing.
        if step.to.threaded == lull_core::Threaded::Off {
            return Ok(());
        }
        let (cpus, policy) = (step.cpus_to_set(), step.policy_to_set());
        if cpus.is_none() && policy.is_none() {
            return Ok(());
        }
        let pid = self.thread_of(step)?;
        sched::set(pid, cpus, policy).map_err(|source| Error::Os {
            what: format!("schedule the thread {pid} of {} queue {}", self.device.name, step.key),
            remedy: sched::remedy(&source).to_owned(),
            source,
            said: None,
        })
    }

    fn thread_of(&mut self, step: &Step) -> Result<i32> {
        let missing = || Error::Unsupported {
            what: format!("schedule the thread of {} queue {}", self.device.name, step.key),
            reason: format!("NAPI {} shows no thread to this process", step.napi_id),
            remedy: "run lull in the initial pid namespace, or leave CPUs and policy out".to_owned(),
        };
        let snapshot = self.device.snapshot(&mut self.netdev, &self.roots)?;
        let napi = snapshot.napis.into_iter().find(|napi| napi.id == step.napi_id);
        let thread = napi.and_then(|napi| napi.thread).filter(|thread| thread.scheduling.is_some());
        thread.map(|thread| thread.pid).ok_or_else(missing)
    }

    /// Gives back what was in force before the steps, the last first.
    fn restore(&mut self, steps: &[Step]) -> Result<()> {
        let snapshot = self.snapshot()?;
        let mut first_refusal = Ok(());
        for step in steps.iter().rev() {
            // A NAPI that is gone has taken its settings along.
            let Some(napi) = snapshot.napis.iter().find(|napi| napi.id == step.napi_id) else { continue };
            let thread: Option<&Scheduling> = step.thread.as_ref().and_then(|thread| thread.scheduling.as_ref());
            let done = self.carry_out(&plan::back(napi, step.from.into(), thread));
            first_refusal = first_refusal.and(done);
        }
        first_refusal
    }

    fn on_device(&self, error: Error, step: &Step) -> Error {
        match error {
            Error::Os { what, remedy, source, said } => {
                Error::Os { what: format!("{what} ({} queue {})", self.device.name, step.key), remedy, source, said }
            }
            other => other,
        }
    }
}
