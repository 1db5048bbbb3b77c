//! State files of devices that are not in this network namespace: which of these are in another one, and which belong
//! to nothing that still exists.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Lock, State, Store, lock, lock_files};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::namespaces::{Namespaces, Way};
use crate::netdev::Netdev;
use crate::options::Options;
use crate::roots::Roots;
use crate::state::Term;

/// A state file of a device that is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Elsewhere {
    /// The device, by the name that it has now, or had last.
    pub device: String,
    /// The mode that it was given, where the file says so.
    pub mode: Option<String>,
    /// The file.
    pub file: PathBuf,
    /// Where the device is.
    #[serde(flatten)]
    pub whereabouts: Whereabouts,
}

/// Where the device of a state file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "elsewhere", rename_all = "kebab-case")]
pub enum Whereabouts {
    /// It is in another network namespace.
    Namespace {
        /// The command that undoes it there. There is none where only a socket keeps the namespace alive, which no
        /// command can enter.
        remedy: Option<String>,
        /// What keeps the namespace alive.
        kept_by: String,
    },
    /// It is nowhere. The device, or its whole namespace, is gone, and the file was removed (or would be, in a dry
    /// run).
    Gone,
    /// This could not be found out.
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// One file, until its device is found.
struct Candidate {
    file: PathBuf,
    state: State,
}

/// Finds the state files of devices that are not in this thread's network namespace, and removes those whose device is
/// gone for good (not in a dry run).
///
/// # Errors
/// Those of netlink and of the file system.
pub fn elsewhere(options: &Options, dry_run: bool) -> Result<Vec<Elsewhere>> {
    let (roots, directory) = (&options.roots, &options.state_dir);
    let mut candidates = candidates(directory);
    // Undoing reports those of this namespace, and those under its devices' names.
    let here = stores(directory, roots)?;
    candidates.retain(|it| !here.stores.iter().any(|store| store.owns(&it.file) || store.file() == it.file));
    find(directory, roots, candidates, dry_run, None)
}

/// Where the device of one state file is that is not in this thread's network namespace. It removes the file if that
/// device is gone for good (not in a dry run). There is nothing for a file that does not tell its device. `held` is
/// what the caller has locked.
///
/// # Errors
/// Those of netlink and of the file system.
pub(crate) fn elsewhere_of(
    file: &Path,
    directory: &Path,
    roots: &Roots,
    dry_run: bool,
    held: Option<&Lock>,
) -> Result<Option<Elsewhere>> {
    let candidates = candidates(directory).into_iter().filter(|it| it.file == file).collect();
    Ok(find(directory, roots, candidates, dry_run, held)?.pop())
}

fn find(
    directory: &Path,
    roots: &Roots,
    mut candidates: Vec<Candidate>,
    dry_run: bool,
    held: Option<&Lock>,
) -> Result<Vec<Elsewhere>> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let namespaces = Namespaces::look(roots);
    let mut some_hidden = namespaces.some_hidden;
    let mut nodes_hidden = false;
    let mut found = Vec::new();
    for namespace in namespaces.iter() {
        let files: Vec<PathBuf> = candidates.iter().map(|it| it.file.clone()).collect();
        let look = || {
            let inside = stores(directory, roots)?;
            let owner = |file: &PathBuf| Some(inside.stores.iter().find(|it| it.owns(file))?.device.name.clone());
            let owned: Vec<(PathBuf, String)> =
                files.into_iter().filter_map(|it| Some((it.clone(), owner(&it)?))).collect();
            Ok::<_, Error>((owned, inside.nodes_hidden))
        };
        match namespace.run(look).and_then(|inside| inside) {
            Ok((owned, hidden)) => {
                nodes_hidden |= hidden;
                for (file, name) in owned {
                    if let Some(nth) = candidates.iter().position(|it| it.file == file) {
                        found.push(in_namespace(candidates.swap_remove(nth), name, &namespace.way));
                    }
                }
            }
            Err(_) => some_hidden = true,
        }
    }
    let boot_id = roots.read_proc("sys/kernel/random/boot_id").ok();
    for candidate in candidates {
        let is_of_this_boot = boot_id.as_ref().is_none_or(|boot_id| *boot_id == candidate.state.boot_id);
        let could_be_hidden = some_hidden || (nodes_hidden && candidate.state.node.is_some());
        let whereabouts = if is_of_this_boot && could_be_hidden {
            let reason = "not every network namespace of the machine can be looked into from here: ask as root, outside \
                          of any container";
            Whereabouts::Unknown { reason: reason.to_owned() }
        } else {
            forget(directory, &candidate, dry_run, held)?
        };
        found.push(candidate.into_elsewhere(whereabouts));
    }
    found.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(found)
}

impl Candidate {
    fn into_elsewhere(self, whereabouts: Whereabouts) -> Elsewhere {
        let mode = self.state.napis.first().map(|former| former.mode.clone());
        Elsewhere { device: self.state.device, mode, file: self.file, whereabouts }
    }
}

/// The state files that can be read, except that of the machine.
fn candidates(directory: &Path) -> Vec<Candidate> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let candidate = |file: PathBuf| {
        let state: State = serde_json::from_str(&fs::read_to_string(&file).ok()?).ok()?;
        (state.version == super::VERSION && state.ifindex != 0).then_some(Candidate { file, state })
    };
    let files =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "json"));
    files.filter_map(candidate).collect()
}

/// The devices of this thread's network namespace.
struct Here {
    stores: Vec<Store>,
    /// Whether some of them cannot be told from their predecessors.
    nodes_hidden: bool,
}

fn stores(directory: &Path, roots: &Roots) -> Result<Here> {
    let mut netdev = Netdev::new();
    let mut here = Here { stores: Vec::new(), nodes_hidden: false };
    for link in netdev.links()? {
        let device = match Device::open(&link.name, &mut netdev, roots) {
            // It was listed a moment ago, and is gone.
            Err(Error::UnknownDevice { .. }) => continue,
            device => device?,
        };
        here.nodes_hidden |= device.node.is_none();
        here.stores.push(Store::new(directory, &device, roots)?);
    }
    Ok(here)
}

fn in_namespace(candidate: Candidate, name: String, way: &Way) -> Elsewhere {
    let undo =
        if !candidate.state.is_applied() { format!("lull prepare {name} --undo") } else { format!("lull undo {name}") };
    let remedy = (!matches!(way, Way::Socket(_))).then(|| format!("{way} {undo}"));
    let kept_by = match way {
        Way::Named(name) => format!("ip netns {name}"),
        Way::Process(pid) => format!("process {pid}"),
        Way::File(path) => path.display().to_string(),
        Way::Socket(pid) => format!("a socket of process {pid}"),
    };
    let elsewhere = candidate.into_elsewhere(Whereabouts::Namespace { remedy, kept_by });
    Elsewhere { device: name, ..elsewhere }
}

/// Removes the file of a device that is gone, unless somebody else than the holder of `held` still works on it.
fn forget(directory: &Path, candidate: &Candidate, dry_run: bool, held: Option<&Lock>) -> Result<Whereabouts> {
    if dry_run {
        return Ok(Whereabouts::Gone);
    }
    let state = &candidate.state;
    let mut files = lock_files(directory, state.node, state.ifindex, state.netns_cookie);
    // The device that has the index now may be the one that the caller works on. A lock that the caller has would
    // refuse even the caller.
    files.retain(|file| held.is_none_or(|lock| !lock.has(file)));
    let _lock = match lock::take(files, &state.device, Term::Moment) {
        Ok(lock) => lock,
        Err(Error::Locked { by, .. }) => return Ok(Whereabouts::Unknown { reason: format!("{by} works on it") }),
        Err(error) => return Err(error),
    };
    match fs::remove_file(&candidate.file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file(format!("remove the state file {}", candidate.file.display()), "remove it by hand", error))
        }
        _ => Ok(Whereabouts::Gone),
    }
}
