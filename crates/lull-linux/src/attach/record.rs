//! What the epoll contexts of a program had before they were first changed. There is one file for each program that was
//! attached to, beside those of devices, and one lock, so that two lulls never work on one program.
//!
//! A context is named by process, start time and descriptor. The number of a descriptor may stand for another context
//! later, so something is given back only if the parameters that were set are still there (`detach.rs`).
//!
//! Containers may share the directory, and the number of a process belongs to its PID namespace. So a file's name says
//! which namespace that is, except for the machine's first one (`process-PID.json`, `process-PID-INODE.json`), and
//! nobody touches the files of other namespaces.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::params::Params;
use super::steer;
use crate::durable::{self, Taken};
use crate::error::{Error, Result};
use crate::namespaces::INITIAL_PID_NAMESPACE;
use crate::proc_stat::start_of;
use crate::roots::Roots;

/// The version of the file's format.
const VERSION: u32 = 1;
/// For how long the record of a program that has ended is kept, so that `lull detach` can say that it has.
const ENDED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Which command holds a program's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `lull attach`, which ends at SIGTERM and gives back.
    Attach,
    /// `lull run`, which lives as long as the program.
    Run,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Role::Attach => "attach",
            Role::Run => "run",
        }
    }
}

/// The process that holds a program's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    pub(crate) role: Role,
}

/// One context that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The process.
    pub(crate) pid: i32,
    /// Its start time.
    pub(crate) start: u64,
    /// Its descriptor.
    pub(crate) fd: i32,
    /// What the context had before it was first changed.
    pub(crate) former: Params,
    /// The parameters that were set, or are about to be: the record is written before the context is changed.
    pub(crate) set: Params,
    /// The parameters that an earlier attach had set. The context still has them if this attach was killed before it
    /// came to it.
    #[serde(default)]
    pub(crate) set_earlier: Option<Params>,
    /// Whether the holder of the record's lock keeps the parameters in force. A context that only an earlier attach was
    /// to set, such as that of a child with `--children no` now, is not kept so.
    #[serde(default)]
    pub(crate) followed: bool,
}

impl Entry {
    /// Whether the parameters that the context has now were set by lull.
    pub(crate) fn is_ours(&self, now: Params) -> bool {
        self.set == now || self.set_earlier == Some(now)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    version: u32,
    boot_id: String,
    pid: i32,
    start: u64,
    contexts: Vec<Entry>,
    /// Groups of listeners that were given a program.
    #[serde(default)]
    steered: Vec<steer::Entry>,
}

/// The contents of a record: contexts and groups of listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) contexts: Vec<Entry>,
    pub(crate) steered: Vec<steer::Entry>,
}

impl Known {
    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.is_empty() && self.steered.is_empty()
    }
}

/// What could not be given back, and the first reason.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) known: Known,
    pub(crate) why: Option<Error>,
}

impl Content {
    fn known(&self) -> Known {
        Known { contexts: self.contexts.clone(), steered: self.steered.clone() }
    }

    /// Keeps only entries of processes that live.
    fn retain_living(&mut self, roots: &Roots) {
        let alive = |pid, start| start_of(pid, roots) == Some(start);
        self.contexts.retain(|entry| alive(entry.pid, entry.start));
        self.steered.retain(|entry| entry.processes().iter().any(|&(pid, start)| alive(pid, start)));
    }
}

/// The record of one program. It holds the right to change the program until it is dropped.
pub(crate) struct Record {
    directory: PathBuf,
    content: Content,
    _lock: File,
}

/// The result of opening a record.
pub(crate) enum Opened {
    /// The record; it is empty if there was none for this very process.
    Mine(Record),
    /// Another lull has the program. Nothing is known of one that has only just taken it.
    HeldBy(Option<Holder>),
}

fn path(directory: &Path, pid: i32, extension: &str) -> PathBuf {
    directory.join(match own_namespace() {
        Some(namespace) => format!("process-{pid}-{namespace}.{extension}"),
        None => format!("process-{pid}.{extension}"),
    })
}

/// The inode of this process's PID namespace; `None` for the machine's first one, or if /proc does not tell.
fn own_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|it| it.ino()).filter(|inode| *inode != INITIAL_PID_NAMESPACE)
}

/// The process, the PID namespace and the extension in a file's name.
fn parts(name: &str) -> Option<(i32, Option<u64>, &str)> {
    let (process, extension) = name.strip_prefix("process-")?.split_once('.')?;
    let (pid, namespace) = match process.split_once('-') {
        Some((pid, namespace)) => (pid, Some(namespace.parse().ok()?)),
        None => (process, None),
    };
    Some((pid.parse().ok()?, namespace, extension))
}

impl Record {
    /// Takes the lock and reads what there is. `start` is the program's start time, or `None` if it has ended.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(directory: &Path, pid: i32, start: Option<u64>, role: Role, roots: &Roots) -> Result<Opened> {
        fs::create_dir_all(directory).map_err(|error| {
            let what = format!("create the state directory {}", directory.display());
            Error::file(what, "name one that can be written with --state-dir", error)
        })?;
        sweep(directory, Some(pid), roots);
        let lock_path = path(directory, pid, "lock");
        let holder = format!("{} {}", std::process::id(), role.word());
        let taken = durable::try_lock(&lock_path, &holder).map_err(|error| {
            Error::file(format!("lock {}", lock_path.display()), "name another directory with --state-dir", error)
        })?;
        let lock = match taken {
            Taken::Yes(lock) => lock,
            Taken::HeldBy(by) => return Ok(Opened::HeldBy(parse_holder(&by))),
        };
        let boot_id = roots
            .read_proc("sys/kernel/random/boot_id")
            .map_err(|error| Error::os("identify this boot", "mount /proc", error))?;
        let known = read(directory, pid)?;
        let mut content = Content {
            version: VERSION,
            boot_id,
            pid,
            start: start.unwrap_or(0),
            contexts: Vec::new(),
            steered: Vec::new(),
        };
        match known {
            Some(known) if (&known.boot_id, known.pid) == (&content.boot_id, pid) => {
                let is_its = start.is_none_or(|now| now == known.start);
                content = Content { start: start.unwrap_or(known.start), ..known };
                if !is_its {
                    // The number belongs to another process by now. Children of the former one may live on, and what
                    // they had is kept here until somebody gives it back.
                    content.retain_living(roots);
                    if content.known().is_empty() {
                        remove(&path(directory, pid, "json"))?;
                    }
                }
            }
            // A record of another boot has nothing that could be given back.
            Some(_) => remove(&path(directory, pid, "json"))?,
            None => {}
        }
        Ok(Opened::Mine(Record { directory: directory.to_owned(), content, _lock: lock }))
    }

    /// When the process of this record started, whoever works on it; `None` if there is no record.
    ///
    /// # Errors
    /// [`Error::StaleState`] for a record that cannot be read.
    pub(super) fn start(directory: &Path, pid: i32) -> Result<Option<u64>> {
        Ok(read(directory, pid)?.map(|it| it.start))
    }

    /// What the record of a program has, whoever works on it; `None` if there is no record.
    ///
    /// # Errors
    /// [`Error::StaleState`] for a record that cannot be read.
    pub(crate) fn peek(directory: &Path, pid: i32) -> Result<Option<Known>> {
        Ok(read(directory, pid)?.map(|it| it.known()))
    }

    /// Removes a record, whatever is in it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn forget_file(directory: &Path, pid: i32) -> Result<()> {
        remove(&path(directory, pid, "json"))
    }

    /// The contents of the record.
    pub(crate) fn known(&self) -> Known {
        self.content.known()
    }

    pub(crate) fn contexts(&self) -> &[Entry] {
        &self.content.contexts
    }

    pub(crate) fn entry(&self, pid: i32, start: u64, fd: i32) -> Option<&Entry> {
        self.content.contexts.iter().find(|entry| (entry.pid, entry.start, entry.fd) == (pid, start, fd))
    }

    /// Adds entries, in place of those of the same descriptors, and has them on the disk before it returns. From now on
    /// the entries for which `found` is true are followed. With `at_first`, the others, which an earlier attach has
    /// left, are not.
    ///
    /// # Errors
    /// Those of the file system. The file is then as it was.
    pub(crate) fn add(&mut self, entries: Vec<Entry>, found: impl Fn(&Entry) -> bool, at_first: bool) -> Result<()> {
        let before = self.content.contexts.clone();
        let is_added = !entries.is_empty();
        for entry in entries {
            self.content.contexts.retain(|it| (it.pid, it.start, it.fd) != (entry.pid, entry.start, entry.fd));
            self.content.contexts.push(entry);
        }
        for entry in &mut self.content.contexts {
            let is_found = found(entry);
            entry.followed = is_found || entry.followed && !at_first;
        }
        if !is_added && self.content.contexts == before {
            return Ok(());
        }
        let written = self.save();
        if written.is_err() {
            self.content.contexts = before;
        }
        written
    }

    /// Adds groups of listeners, in place of what was known of them before, and has them on the disk before it returns.
    ///
    /// # Errors
    /// Those of the file system. The file is then as it was.
    pub(crate) fn add_steered(&mut self, entries: Vec<steer::Entry>) -> Result<()> {
        let before = self.content.steered.clone();
        self.content.steered.retain(|known| !entries.iter().any(|entry| entry.is_of_the_group_of(known)));
        self.content.steered.extend(entries);
        let written = self.save();
        if written.is_err() {
            self.content.steered = before;
        }
        written
    }

    /// Forgets the contexts of processes that have ended.
    pub(crate) fn forget(&mut self, ended: &[i32]) {
        self.content.contexts.retain(|entry| !ended.contains(&entry.pid));
    }

    fn save(&self) -> Result<()> {
        let pid = self.content.pid;
        let (new, file) = (path(&self.directory, pid, "new"), path(&self.directory, pid, "json"));
        durable::write_json(&new, &file, &self.content).map_err(|error| {
            let what = format!("write the state file {}", file.display());
            Error::file(what, "free space there, or name another directory with --state-dir", error)
        })
    }

    /// Restores the record as it was before an addition. A record with nothing in it is removed.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn put_back(&mut self, before: Known) -> Result<()> {
        (self.content.contexts, self.content.steered) = (before.contexts, before.steered);
        if self.content.known().is_empty() { self.remove_file() } else { self.save() }
    }

    /// Keeps what could not be given back, for somebody who tries again. If there is nothing, the record is removed.
    ///
    /// # Errors
    /// The reason why something could not be given back, or an error of the file system.
    pub(crate) fn close(mut self, kept: Kept) -> Result<()> {
        let count = kept.known.contexts.len() + kept.known.steered.len();
        let pid = self.content.pid;
        self.put_back(kept.known)?;
        let Some(error) = kept.why else { return Ok(()) };
        let who = if count > 1 { format!("it and {} more keep", count - 1) } else { "it keeps".to_owned() };
        Err(error.left(&format!("{who} what was set, and `lull detach --pid {pid}` tries again")))
    }

    /// Keeps the record of a program that has ended, with nothing in it to give back. So the next `detach` can say that
    /// it has ended, while a number that was never attached to stays unknown.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn keep_ended(mut self) -> Result<()> {
        self.clear();
        self.save()
    }

    fn clear(&mut self) {
        self.content.contexts.clear();
        self.content.steered.clear();
    }

    fn remove_file(&self) -> Result<()> {
        remove(&path(&self.directory, self.content.pid, "json"))
    }
}

/// The contexts that the records of other programs have, each with its program. A record that cannot be read is
/// reported to those who ask for its program.
pub(super) fn entries_of_others(directory: &Path, own: i32, roots: &Roots) -> Vec<(i32, Entry)> {
    let boot_id = roots.read_proc("sys/kernel/random/boot_id").ok();
    let Ok(files) = fs::read_dir(directory) else { return Vec::new() };
    let others = files.flatten().filter_map(|file| match parts(file.file_name().to_str()?)? {
        (pid, namespace, "json") if pid != own && namespace == own_namespace() => read(directory, pid).ok().flatten(),
        _ => None,
    });
    let of_this_boot = others.filter(|content| Some(&content.boot_id) == boot_id.as_ref());
    of_this_boot.flat_map(|it| it.contexts.into_iter().map(move |entry| (it.pid, entry))).collect()
}

/// Who has a program's lock; `None` if nobody has it.
pub(super) fn holder(directory: &Path, pid: i32) -> Option<Option<Holder>> {
    durable::lock_holder(&path(directory, pid, "lock")).map(|text| parse_holder(&text))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file(format!("remove the state file {}", file.display()), "remove it by hand", error))
        }
        _ => Ok(()),
    }
}

/// The record of a program. If it cannot be read that is an error, because it has what the program had.
fn read(directory: &Path, pid: i32) -> Result<Option<Content>> {
    let file = path(directory, pid, "json");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Error::file(format!("read the state file {}", file.display()), "make it readable", error));
        }
    };
    let stale = |reason: String| {
        let remedy = format!(
            "process {pid} keeps what was set, and `lull detach --pid {pid} --forget` forgets what it had before"
        );
        Error::StaleState { path: file.clone(), reason, remedy }
    };
    if let Some(reason) = durable::another_version(&text, VERSION) {
        return Err(stale(reason));
    }
    let content = serde_json::from_str(&text).map_err(|error| stale(format!("it cannot be read: {error}")))?;
    Ok(Some(content))
}

impl Drop for Record {
    /// Removes the lock file of a program with nothing to give back, together with the lock; `try_lock` takes into
    /// account that it may vanish.
    fn drop(&mut self) {
        if self.content.known().is_empty() {
            let _ = fs::remove_file(path(&self.directory, self.content.pid, "lock"));
        }
    }
}

fn parse_holder(text: &str) -> Option<Holder> {
    let (pid, role) = text.split_once(' ')?;
    let role = [Role::Attach, Role::Run].into_iter().find(|it| it.word() == role)?;
    Some(Holder { pid: pid.parse().ok()?, role })
}

/// Removes what is left of programs that ended a while ago, or whose number belongs to another process by now, and the
/// locks that killed commands have left. What is left of `own` is left to the caller, and what belongs to another PID
/// namespace to those who see its processes.
pub(super) fn sweep(directory: &Path, own: Option<i32>, roots: &Roots) {
    let Ok(files) = fs::read_dir(directory) else { return };
    for file in files.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some((pid, namespace, extension)) = parts(&name) else { continue };
        if Some(pid) == own || namespace != own_namespace() {
            continue;
        }
        let record = path(directory, pid, "json");
        match extension {
            "json" => remove_over(&record, &path(directory, pid, "lock"), || is_over(&record, roots)),
            // Without a record nothing has to be given back, whether the program lives on or not.
            "lock" => remove_over(&record, &file.path(), || !record.exists()),
            _ => {}
        }
    }
}

/// Removes a record that is over, and its lock. The former holder of the lock may have written the record anew.
fn remove_over(record: &Path, lock: &Path, is_over: impl Fn() -> bool) {
    if is_over()
        // A lock that somebody has is not waited for, as there may be many.
        && let Ok(Taken::Yes(_lock)) = durable::try_lock_for(lock, "", Duration::ZERO)
        && is_over()
    {
        let _ = fs::remove_file(record);
        let _ = fs::remove_file(lock);
    }
}

/// Whether neither the program of a record nor any of its processes exists any more, and nobody will ask for it.
fn is_over(file: &Path, roots: &Roots) -> bool {
    let content = fs::read_to_string(file).ok().and_then(|text| serde_json::from_str::<Content>(&text).ok());
    let alive = |pid, start| start_of(pid, roots) == Some(start);
    let written = || fs::metadata(file).and_then(|it| it.modified());
    let is_old = || written().is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > ENDED_KEPT));
    content.is_some_and(|it| {
        let has_ended = !alive(it.pid, it.start)
            && !it.contexts.iter().any(|entry| alive(entry.pid, entry.start))
            && !it.steered.iter().flat_map(steer::Entry::processes).any(|&(pid, start)| alive(pid, start));
        has_ended && (start_of(it.pid, roots).is_some() || is_old())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_name_tells_the_process_and_its_namespace() {
        assert_eq!(parts("process-12.json"), Some((12, None, "json")));
        assert_eq!(parts("process-12-4026532500.lock"), Some((12, Some(4_026_532_500), "lock")));
        for other in ["process-12-a.json", "process-notes.lock", "process-12", "eth0.json"] {
            assert_eq!(parts(other), None);
        }
    }

    #[test]
    fn what_is_of_another_namespace_or_was_written_meanwhile_is_not_swept() {
        let directory = std::env::temp_dir().join(format!("lull-record-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let foreign = ["process-1-1.lock", "process-4194399-1.json"].map(|name| directory.join(name));
        foreign.iter().for_each(|file| fs::write(file, "").unwrap());
        let (record, lock) = (path(&directory, 5, "json"), path(&directory, 5, "lock"));
        fs::write(&record, "").unwrap();
        // The record is over at the first look only.
        let looks = Cell::new(0);
        remove_over(&record, &lock, || looks.replace(looks.get() + 1) == 0);
        assert!(record.exists() && lock.exists());
        remove_over(&record, &lock, || true);
        assert!(!record.exists() && !lock.exists());
        sweep(&directory, None, &Roots::default());
        assert!(foreign.iter().all(|file| file.exists()));
        fs::remove_dir_all(&directory).unwrap();
    }
}
