//! What was in force before: one file for each device in a directory under `/run`, written and synced before the first
//! change, so that it is there for `undo` whatever happens to the program that made the changes.
//!
//! The file names the boot, the network namespace and the device by index. With another boot, a device that was made
//! anew, or a namespace that is gone, the values that it would restore are gone as well, and it is refused.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::{Device, QueueKey, Snapshot};
use crate::durable::{self, Taken};
use crate::error::{Error, Result};
use crate::prepare::Overwritten;
use crate::roots::Roots;
use crate::sched::Scheduling;
use crate::values::Values;

/// Where state files are kept unless somewhere else is named. `/run` is empty after a boot, as the settings are.
pub const STATE_DIR: &str = "/run/lull";
/// The version of the file's shape.
const VERSION: u32 = 1;

/// The content of a state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    boot_id: String,
    netns_cookie: u64,
    device: String,
    ifindex: u32,
    /// What the NAPIs had before.
    pub napis: Vec<Former>,
    /// What the steps of `prepare` have overwritten, in their order.
    #[serde(default)]
    pub prepared: Vec<Overwritten>,
}

impl State {
    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.napis.is_empty() && self.prepared.is_empty()
    }

    /// Which of `napis` is what a NAPI of the snapshot had: by its id, which the kernel gives to no other one. Drivers
    /// such as virtio-net keep a NAPI whose queue is taken away, and it has another name until the queue is back.
    /// Where the one with the former id is gone, as after a link flap of a veth, the queue says who is in its place.
    pub fn former_of(&self, queue: QueueKey, napi_id: u32, snapshot: &Snapshot) -> Option<usize> {
        let is_there = |id: u32| snapshot.napis.iter().any(|napi| napi.id == id);
        let by_id = self.napis.iter().position(|former| former.napi_id == napi_id);
        by_id.or_else(|| self.napis.iter().position(|it| it.queue == queue && !is_there(it.napi_id)))
    }
}

/// What one NAPI had before it was first changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// Its queue, by which it is found again where the id has changed, as with every link flap of some drivers.
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

/// Where the state of one device is kept.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    device: Device,
    boot_id: String,
}

/// The right to change a device, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked here: whoever has opened the file meanwhile finds that it is not the one in the directory.
        let _ = fs::remove_file(&self.path);
    }
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

    /// Named for people by device and namespace.
    fn path(&self, extension: &str) -> PathBuf {
        self.directory.join(format!("{}@{}.{extension}", self.name_then(), self.device.netns_cookie))
    }

    /// The lock is the device's, whatever it is called.
    fn lock_file(&self) -> PathBuf {
        self.directory.join(format!("{}@{}.lock", self.device.ifindex, self.device.netns_cookie))
    }

    /// The device's name; the one that it had when its state file was written, if it was renamed since.
    fn name_then(&self) -> String {
        let named = |name: &str| self.directory.join(format!("{name}@{}.json", self.device.netns_cookie));
        if named(&self.device.name).exists() {
            return self.device.name.clone();
        }
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let states = entries.filter_map(|path| {
            let state: State = serde_json::from_str(&fs::read_to_string(&path).ok()?).ok()?;
            (path == named(&state.device) && self.is_of_this_device(&state)).then_some(state.device)
        });
        states.into_iter().next().unwrap_or_else(|| self.device.name.clone())
    }

    fn is_of_this_device(&self, state: &State) -> bool {
        let device = (self.device.netns_cookie, self.device.ifindex);
        state.version == VERSION && state.boot_id == self.boot_id && (state.netns_cookie, state.ifindex) == device
    }

    /// The state file.
    pub fn file(&self) -> PathBuf {
        self.path("json")
    }

    fn create_directory(&self) -> Result<()> {
        fs::create_dir_all(&self.directory).map_err(|error| {
            let what = format!("create the state directory {}", self.directory.display());
            Error::os(what, "name one that can be written with --state-dir", error)
        })
    }

    /// Takes the device for this process. The lock ends with the process, however it ends.
    ///
    /// # Errors
    /// [`Error::Locked`] with the process that has it.
    pub fn lock(&self) -> Result<Lock> {
        self.create_directory()?;
        let path = self.lock_file();
        let failed = |error: io::Error| {
            Error::os(format!("lock {}", path.display()), "name another directory with --state-dir", error)
        };
        match durable::try_lock(&path, &std::process::id().to_string()).map_err(failed)? {
            Taken::Yes(file) => Ok(Lock { _file: file, path }),
            Taken::HeldBy(by) => {
                let by = if by.is_empty() { "it has just started".to_owned() } else { format!("process {by}") };
                Err(Error::Locked { device: self.device.name.clone(), by })
            }
        }
    }

    /// A state of this device with nothing in it.
    pub fn empty(&self) -> State {
        State {
            version: VERSION,
            boot_id: self.boot_id.clone(),
            netns_cookie: self.device.netns_cookie,
            device: self.device.name.clone(),
            ifindex: self.device.ifindex,
            napis: Vec::new(),
            prepared: Vec::new(),
        }
    }

    /// The store of what was changed on the whole machine rather than on the device.
    pub fn of_machine(&self) -> Store {
        // Cookies and indices of real devices begin at 1.
        let device = Device { name: "machine".to_owned(), ifindex: 0, netns_cookie: 0, driver: None, in_sysfs: false };
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
                return Err(Error::os(format!("read the state file {}", path.display()), "make it readable", error));
            }
        };
        let stale = |reason: String| Error::StaleState { path: path.clone(), reason };
        let state: State = serde_json::from_str(&text).map_err(|error| stale(format!("it cannot be read: {error}")))?;
        if state.version != VERSION {
            return Err(stale(format!("it is of version {}, and this lull writes {VERSION}", state.version)));
        }
        if state.boot_id != self.boot_id {
            return Err(stale("it is of another boot".to_owned()));
        }
        if state.netns_cookie != self.device.netns_cookie {
            return Err(stale("it is of another network namespace".to_owned()));
        }
        if state.ifindex != self.device.ifindex {
            let (was, is) = (state.ifindex, self.device.ifindex);
            return Err(stale(format!("it is of another device of this name: index {was} then, {is} now")));
        }
        Ok(Some(state))
    }

    /// Writes the state so that it is whole on the disk, or not at all. An empty state removes the file.
    ///
    /// # Errors
    /// Those of the file system; the file is as it was.
    pub fn save(&self, state: &State) -> Result<()> {
        if state.is_empty() {
            return self.remove();
        }
        self.create_directory()?;
        let temporary = self.path("new");
        durable::write_json(&temporary, &self.file(), state).map_err(|error| {
            let what = format!("write the state file {}", self.file().display());
            Error::os(what, "free space there, or name another directory with --state-dir; nothing was changed", error)
        })
    }

    fn remove(&self) -> Result<()> {
        let path = self.file();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::os(format!("remove the state file {}", path.display()), "remove it by hand", error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::NapiState;
    use crate::sched::ThreadPolicy;
    use crate::values::ThreadedName;

    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn store(test: &str) -> (Scratch, Store) {
        let directory = std::env::temp_dir().join(format!("lull-state-{test}-{}", std::process::id()));
        let device = Device { name: "veth7".to_owned(), ifindex: 7, netns_cookie: 99, driver: None, in_sysfs: false };
        let store = Store { directory: directory.clone(), device, boot_id: "this boot".to_owned() };
        (Scratch(directory), store)
    }

    fn state(store: &Store) -> State {
        let settings = Values {
            defer_hard_irqs: 7,
            gro_flush_timeout_ns: u64::MAX,
            irq_suspend_timeout_ns: 0,
            threaded: ThreadedName::On,
        };
        let thread = Scheduling { cpus: vec![0, 3], policy: ThreadPolicy::Fifo(50) };
        let former =
            |queue| Former { queue, napi_id: 1, settings, thread: Some(thread.clone()), mode: "base".to_owned() };
        State {
            napis: vec![former(QueueKey::Rx(0)), former(QueueKey::Tx(1)), former(QueueKey::Nth(2))],
            ..store.empty()
        }
    }

    #[test]
    fn what_is_written_is_read_and_an_empty_state_is_no_file() {
        let (_scratch, store) = store("round");
        assert_eq!(store.load().unwrap(), None);
        let state = state(&store);
        store.save(&state).unwrap();
        assert_eq!(store.load().unwrap(), Some(state));
        assert!(!store.path("new").exists());
        store.save(&store.empty()).unwrap();
        assert_eq!(store.load().unwrap(), None);
        store.save(&store.empty()).unwrap();
    }

    #[test]
    fn a_napi_is_known_by_its_id_and_by_its_queue_where_the_id_is_gone() {
        let (_scratch, store) = store("former");
        let settings = state(&store).napis[0].settings;
        let napi = |(key, id)| NapiState { key, rx: vec![], tx: vec![], id, irq: None, thread: None, settings };
        let snapshot = |napis: &[(QueueKey, u32)]| Snapshot {
            device: "veth7".to_owned(),
            ifindex: 7,
            driver: None,
            up: true,
            queues_linked: true,
            rx_queues: 2,
            defaults: None,
            napis: napis.iter().copied().map(napi).collect(),
        };
        let mut known = state(&store);
        for (nth, former) in known.napis.iter_mut().enumerate() {
            (former.queue, former.napi_id) = (QueueKey::Rx(nth as u32), 11 + nth as u32);
        }
        let former_of = |queue, id, napis: &[_]| known.former_of(queue, id, &snapshot(napis));
        let (q0, q1, q2, nth1) = (QueueKey::Rx(0), QueueKey::Rx(1), QueueKey::Rx(2), QueueKey::Nth(1));
        // virtio-net without its second queue.
        let fewer = [(q0, 11), (nth1, 12), (q2, 13)];
        assert_eq!(former_of(nth1, 12, &fewer), Some(1));
        // After a flap of a veth: new ids, and one queue fewer.
        let flapped = [(q0, 21), (q1, 22)];
        assert_eq!((former_of(q0, 21, &flapped), former_of(q1, 22, &flapped)), (Some(0), Some(1)));
        // The NAPI that had the first queue serves the second one now: what the first queue has is another.
        let moved = [(q0, 31), (q1, 11)];
        assert_eq!((former_of(q0, 31, &moved), former_of(q1, 11, &moved)), (None, Some(0)));
        assert_eq!(former_of(QueueKey::Rx(9), 99, &flapped), None);
    }

    #[test]
    fn a_renamed_device_keeps_its_state_and_its_lock() {
        let (_scratch, mut store) = store("renamed");
        let state = state(&store);
        store.save(&state).unwrap();
        let first = store.lock().unwrap();
        store.device.name = "uplink".to_owned();
        assert_eq!(store.load().unwrap(), Some(state.clone()));
        assert!(store.lock().is_err());
        drop(first);
        store.save(&state).unwrap();
        store.device.ifindex = 8;
        assert_eq!(store.load().unwrap(), None, "another device");
        store.device.ifindex = 7;
        store.save(&store.empty()).unwrap();
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 0);
    }

    #[test]
    fn other_boots_devices_and_versions_are_refused() {
        let (_scratch, mut store) = store("stale");
        let state = state(&store);
        store.save(&state).unwrap();
        let refused = |store: &Store, word: &str| {
            let said = store.load().unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("remove the file") && said.contains("veth7@99"), "{said}");
        };
        store.boot_id = "another".to_owned();
        refused(&store, "another boot");
        store.boot_id = "this boot".to_owned();
        store.device.ifindex = 8;
        refused(&store, "index 7 then, 8 now");
        store.device.ifindex = 7;
        store.save(&State { version: 9, ..state.clone() }).unwrap();
        refused(&store, "version 9");
        store.save(&State { netns_cookie: 1, ..state }).unwrap();
        refused(&store, "namespace");
        fs::write(store.file(), "{").unwrap();
        refused(&store, "cannot be read");
    }

    #[test]
    fn the_second_lock_is_refused_with_the_first_ones_process() {
        let (_scratch, store) = store("lock");
        let first = store.lock().unwrap();
        let said = store.lock().unwrap_err().to_string();
        assert!(said.contains(&std::process::id().to_string()) && said.contains("veth7"), "{said}");
        drop(first);
        store.lock().unwrap();
    }
}
