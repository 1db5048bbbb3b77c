//! What was in force before: one file for each device in a directory under `/run`. It is written and synced before the
//! first change, so that it is there for `undo` whatever happens to the program that made the changes.
//!
//! The file identifies the boot and the device: by what tells it from every other one (`identity.rs`) and, where that
//! cannot be seen, by network namespace and index. With another boot, or a device that was made anew, the values that
//! it would restore are gone as well, and it is refused. A device that was renamed or moved keeps its file.

mod decided;
mod elsewhere;
mod lock;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::{Device, QueueKey, Snapshot};
use crate::durable;
use crate::error::{Error, Result};
use crate::ethtool::Knob;
use crate::identity::Node;
pub use crate::options::STATE_DIR;
use crate::overwritten::{Overwritten, Target};
use crate::roots::Roots;
use crate::sched::Scheduling;
use crate::values::Values;

pub(crate) use elsewhere::elsewhere_of;
pub use elsewhere::{Elsewhere, Whereabouts, elsewhere};
pub(crate) use lock::Term;
pub use lock::{Lock, Patience, sweep};

/// The version of the file's format.
const VERSION: u32 = 1;

/// The content of a state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    boot_id: String,
    netns_cookie: u64,
    device: String,
    ifindex: u32,
    /// The number of [`Device::node`].
    #[serde(default)]
    node: Option<u64>,
    /// What the NAPIs had before.
    pub napis: Vec<Former>,
    /// How many receive queues there were, if a running program has changed that (`run --one-napi queues`).
    #[serde(default)]
    pub queues: Option<FormerQueues>,
    /// Over which of them flows were spread, if a running program has changed that (`run --one-napi steer`).
    #[serde(default)]
    pub flows: Option<FormerTable>,
    /// What the steps of `prepare` have overwritten, in their order.
    #[serde(default)]
    pub prepared: Vec<Overwritten>,
}

impl State {
    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        !self.is_applied() && self.prepared.is_empty()
    }

    /// Whether there is something that `undo` gives back.
    pub fn is_applied(&self) -> bool {
        !self.napis.is_empty() || self.queues.is_some() || self.flows.is_some()
    }

    /// The state with the files of `prepare` under the name that the device has now.
    fn named(mut self, device: &str) -> State {
        let (then, now) = (format!("class/net/{}/", self.device), format!("class/net/{device}/"));
        for done in &mut self.prepared {
            if let Target::Sys(path) = &mut done.target
                && let Some(rest) = path.strip_prefix(&then)
            {
                *path = format!("{now}{rest}");
            }
        }
        device.clone_into(&mut self.device);
        self
    }

    /// Which of `napis` is what a NAPI of the snapshot had. It goes by the id, which the kernel gives to no other NAPI.
    /// Drivers such as virtio-net keep a NAPI whose queue is taken away, and it has another name until the queue is
    /// back. Where the one with the former id is gone, as after a link flap of a veth, the queue says which one is in
    /// its place.
    pub fn former_of(&self, queue: QueueKey, napi_id: u32, snapshot: &Snapshot) -> Option<usize> {
        let is_there = |id: u32| snapshot.napis.iter().any(|napi| napi.id == id);
        let by_id = self.napis.iter().position(|former| former.napi_id == napi_id);
        by_id.or_else(|| self.napis.iter().position(|it| it.queue == queue && !is_there(it.napi_id)))
    }
}

/// What one NAPI had before it was first changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// Its queue, by which it is found again where the id has changed, as happens with every link flap of some drivers.
    pub queue: QueueKey,
    /// Its id when it was last changed.
    pub napi_id: u32,
    /// The settings that it had.
    pub settings: Values,
    /// Where and how its thread ran, if it had one.
    pub thread: Option<Scheduling>,
    /// The mode that was put in force.
    pub mode: String,
}

/// A number of queues before it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerQueues {
    /// Which queues these are.
    pub knob: Knob,
    /// How many there were.
    pub former: u32,
}

/// An indirection table before it was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerTable {
    /// The queue of each entry.
    pub table: Vec<u32>,
    /// Whether it was the driver's own, which follows the number of queues.
    pub default: bool,
}

/// Where the state of one device is kept.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    device: Device,
    boot_id: String,
}

impl Store {
    /// The store of a device.
    ///
    /// # Errors
    /// `/proc` does not tell the boot.
    pub fn new(directory: &Path, device: &Device, roots: &Roots) -> Result<Store> {
        let boot_id = roots
            .read_proc("sys/kernel/random/boot_id")
            .map_err(|error| Error::os("identify this boot", "mount /proc", error))?;
        Ok(Store { directory: directory.to_owned(), device: device.clone(), boot_id })
    }

    /// The file of the device's state, without its extension. For people, it is named after device and namespace. A
    /// device that was renamed or moved since keeps the file's old name.
    fn stem(&self) -> PathBuf {
        let named = |name: &str, cookie: u64| self.directory.join(format!("{name}@{cookie}"));
        let here = named(&self.device.name, self.device.netns_cookie);
        let is_its = |stem: &PathBuf| self.peek(stem).is_some_and(|state| self.is_of_this_device(&state));
        if is_its(&here) {
            return here;
        }
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let states = entries.filter(|path| path.extension().is_some_and(|it| it == "json"));
        states.map(|path| path.with_extension("")).find(is_its).unwrap_or(here)
    }

    /// The state of a file, if it can be read at all.
    fn peek(&self, stem: &Path) -> Option<State> {
        serde_json::from_str(&fs::read_to_string(with(stem, "json")).ok()?).ok()
    }

    /// The lock files of the device, which are the same whatever it is called.
    fn lock_files(&self) -> Vec<PathBuf> {
        let device = &self.device;
        let node = device.node.as_ref().map(Node::number);
        lock_files(&self.directory, node, device.ifindex, device.netns_cookie)
    }

    fn is_of_this_device(&self, state: &State) -> bool {
        state.version == VERSION && state.boot_id == self.boot_id && self.another_device(state).is_none()
    }

    /// The reason why a state of this boot is not this device's.
    fn another_device(&self, state: &State) -> Option<String> {
        let (device, node) = (&self.device, self.device.node.as_ref().map(Node::number));
        if state.node.is_some() && state.node == node {
            return None;
        }
        if state.netns_cookie != device.netns_cookie {
            return Some("it is of another network namespace".to_owned());
        }
        if state.ifindex != device.ifindex {
            let (was, is) = (state.ifindex, device.ifindex);
            return Some(format!("it is of another device of this name: index {was} then, {is} now"));
        }
        (state.node.is_some() && node.is_some())
            .then(|| "it is of another device, which was deleted before this one got its name and index".to_owned())
    }

    /// The state file.
    pub fn file(&self) -> PathBuf {
        with(&self.stem(), "json")
    }

    fn create_directory(&self) -> Result<()> {
        fs::create_dir_all(&self.directory).map_err(|error| {
            let what = format!("create the state directory {}", self.directory.display());
            Error::file(what, "name one that can be written with --state-dir", error)
        })
    }

    /// The process that has the device until it is told to end (`apply --watch`, `run`), if its lock can be read.
    pub(crate) fn kept_by(&self) -> Option<u32> {
        self.lock_files().iter().find_map(|path| lock::stayer(path))
    }

    /// Takes the device for this process. The lock ends with the process, however that ends.
    ///
    /// # Errors
    /// [`Error::Locked`] with the process that has it.
    pub(crate) fn lock(&self, term: Term) -> Result<Lock> {
        self.create_directory()?;
        lock::take(self.lock_files(), &self.device.name, term)
    }

    /// Takes the device, after waiting for another lull that works on it for a moment.
    ///
    /// # Errors
    /// [`Error::Locked`] when `patience` is at its end, and at once if the other one stays.
    pub(crate) fn wait_for_lock(&self, patience: Patience<'_>, log: &mut dyn FnMut(&str)) -> Result<Lock> {
        self.create_directory()?;
        lock::wait(self.lock_files(), &self.device.name, patience, log)
    }

    /// A state of this device with nothing in it.
    pub fn empty(&self) -> State {
        State {
            version: VERSION,
            boot_id: self.boot_id.clone(),
            netns_cookie: self.device.netns_cookie,
            device: self.device.name.clone(),
            ifindex: self.device.ifindex,
            node: self.device.node.as_ref().map(Node::number),
            napis: Vec::new(),
            queues: None,
            flows: None,
            prepared: Vec::new(),
        }
    }

    /// The directory of all state files.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The store of another device in the same directory.
    pub(crate) fn of(&self, device: Device) -> Store {
        Store { device, ..self.clone() }
    }

    /// The store of what was changed on the whole machine rather than on the device.
    pub fn of_machine(&self) -> Store {
        // Cookies and indices of real devices begin at 1.
        let device = Device {
            name: "machine".to_owned(),
            ifindex: 0,
            netns_cookie: 0,
            driver: None,
            in_sysfs: false,
            node: None,
        };
        Store { device, ..self.clone() }
    }

    /// The state of this device, if there is one.
    ///
    /// # Errors
    /// [`Error::StaleState`] if the file is of another boot, device or version, or is no state file at all.
    pub fn load(&self) -> Result<Option<State>> {
        let path = self.file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::file(format!("read the state file {}", path.display()), "make it readable", error));
            }
        };
        let stale = |reason: String| Error::StaleState { path: path.clone(), reason, remedy: self.forgetting() };
        if let Some(reason) = durable::another_version(&text, VERSION) {
            let remedy = format!("undo with the lull that wrote it; {}", self.forgetting());
            return Err(Error::StaleState { path: path.clone(), reason, remedy });
        }
        let state: State = serde_json::from_str(&text).map_err(|error| stale(format!("it cannot be read: {error}")))?;
        if state.boot_id != self.boot_id {
            return Err(stale("it is of another boot".to_owned()));
        }
        match self.another_device(&state) {
            Some(reason) => Err(stale(reason)),
            None => Ok(Some(state.named(&self.device.name))),
        }
    }

    /// What removes a state file that is of no use.
    fn forgetting(&self) -> String {
        match self.device.ifindex {
            0 => "remove the file".to_owned(),
            _ => format!("`lull undo {} --forget` forgets it", self.device.name),
        }
    }

    /// Whether this file is the state of this very device.
    pub(crate) fn owns(&self, file: &Path) -> bool {
        self.peek(&file.with_extension("")).is_some_and(|state| self.is_of_this_device(&state))
    }

    /// Writes the state so that it is whole on the disk, or not there at all. An empty state removes the file.
    ///
    /// # Errors
    /// Those of the file system. The file is then as it was.
    pub fn save(&self, state: &State) -> Result<()> {
        if state.is_empty() {
            return self.remove();
        }
        self.create_directory()?;
        let stem = self.stem();
        let (temporary, file) = (with(&stem, "new"), with(&stem, "json"));
        durable::write_json(&temporary, &file, state).map_err(|error| {
            let what = format!("write the state file {}", file.display());
            Error::file(what, "free space there, or name another directory with --state-dir", error)
        })
    }

    /// Removes the state file, whatever is in it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn remove(&self) -> Result<()> {
        let path = self.file();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file(format!("remove the state file {}", path.display()), "remove it by hand", error))
            }
            _ => Ok(()),
        }
    }
}

/// The lock files of a device, in the order in which everybody takes them: that of its node, by which it is known
/// wherever it is, and that of its index, for those who see no node.
fn lock_files(directory: &Path, node: Option<u64>, ifindex: u32, netns_cookie: u64) -> Vec<PathBuf> {
    let of_node = node.map(|node| format!("node-{node}.lock"));
    let names = of_node.into_iter().chain([format!("{ifindex}@{netns_cookie}.lock")]);
    names.map(|name| directory.join(name)).collect()
}

/// A stem with an extension. The name of a device may have a dot in it (`eth0.5`), so nothing is cut off.
fn with(stem: &Path, extension: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(".");
    path.push(extension);
    path.into()
}

#[cfg(test)]
mod tests;
