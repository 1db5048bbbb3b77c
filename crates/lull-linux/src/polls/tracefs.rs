//! A trace instance of lull's own: buffers, filters and switches that nobody else uses, and that are removed at the
//! end.
//!
//! Where tracefs is not mounted, it is mounted for this process alone, without a place in the tree (`fsmount(2)`), so
//! the machine's mounts stay as they were. An instance that a killed process left goes on recording. The next process
//! that traces removes it, and so does `lull undo`. Which processes there are is known, since all that trace are in the
//! initial PID namespace.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::error::{PollsError, os};
use super::format::Format;
use crate::proc_stat::{start_of, stat};
use crate::roots::Roots;

/// Where tracefs is usually mounted.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// More than any file that is read here.
const FILE_BYTES: usize = 16 * 1024;

/// How often, and how long after one another, lull tries to remove a busy instance.
const REMOVALS_MAX: u32 = 200;
const REMOVAL_RETRY: Duration = Duration::from_millis(5);

/// A trace instance.
pub(super) struct Instance {
    path: PathBuf,
    /// Keeps a mount of lull's own alive.
    _mount: Option<OwnedFd>,
}

impl Instance {
    pub fn new() -> Result<Instance, PollsError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, mount) = root()?;
        let instances = root.join("instances");
        remove_left_over_in(&instances);
        let name = name_of(std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = instances.join(&name);
        fs::create_dir(&path).map_err(os(format!("make the trace instance {name}")))?;
        Ok(Instance { path, _mount: mount })
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    pub fn read(&self, file: &str) -> Result<String, PollsError> {
        let read = || -> io::Result<String> {
            // Some of these files give everything to the first read and nothing to the next, so that read has to be a
            // large one.
            let mut text = vec![0; FILE_BYTES];
            let got = fs::File::open(self.path.join(file))?.read(&mut text)?;
            Ok(String::from_utf8_lossy(&text[..got]).into_owned())
        };
        read().map_err(os(format!("read {file}")))
    }

    pub fn write(&self, file: &str, text: &str) -> Result<(), PollsError> {
        fs::write(self.path.join(file), text).map_err(os(format!("write {text} to {file}")))
    }

    pub fn event(&self, name: &str) -> Result<Format, PollsError> {
        Format::parse(&self.read(&format!("events/{name}/format"))?)
    }

    /// The CPUs that have a ring buffer.
    pub fn cpus(&self) -> Result<Vec<u32>, PollsError> {
        let entries = fs::read_dir(self.path.join("per_cpu")).map_err(os("list the CPUs"))?;
        let number = |entry: io::Result<fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.strip_prefix("cpu")?.parse::<u32>().ok()
        };
        let mut cpus: Vec<u32> = entries.filter_map(number).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        remove(&self.path, || std::thread::sleep(REMOVAL_RETRY));
    }
}

/// The name of a process's n-th instance. It has the time at which the process began, as its number may become
/// another's.
fn name_of(pid: u32, nth: u32) -> String {
    match start_of(pid as i32, &Roots::default()) {
        Some(start) => format!("lull-{pid}-{start}-{nth}"),
        None => format!("lull-{pid}-{nth}"),
    }
}

/// Whether the instance of this name is lull's, and its process is gone.
fn is_of_the_gone(name: &str) -> bool {
    let numbers = name.strip_prefix("lull-").map(|rest| rest.split('-').map(str::parse).collect());
    let Some(Ok(numbers)): Option<Result<Vec<u64>, _>> = numbers else { return false };
    let now = |pid: u64| stat(i32::try_from(pid).ok()?, &Roots::default());
    match numbers[..] {
        [pid, start, _] => now(pid).is_none_or(|stat| stat.start != start),
        // The name is without the beginning, where that could not be seen.
        [pid, _] => now(pid).is_none(),
        _ => false,
    }
}

/// Removes an instance. While it is busy, `busy` is called before each further try: a child that another thread is
/// starting has these files open until it executes its program. Nothing can be done about another refusal, and the next
/// process tries again.
fn remove(path: &Path, mut busy: impl FnMut()) {
    for _ in 0..REMOVALS_MAX {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => busy(),
            _ => return,
        }
    }
}

fn root() -> Result<(PathBuf, Option<OwnedFd>), PollsError> {
    let mounted = PLACES.iter().map(Path::new).find(|place| place.join("instances").is_dir());
    if let Some(place) = mounted {
        return Ok((place.to_owned(), None));
    }
    let mount = || -> io::Result<OwnedFd> {
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
    };
    let mount = mount().map_err(PollsError::NoTracefs)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())), Some(mount)))
}

/// Removes the instances of processes that are gone, and returns their names.
pub(super) fn remove_left_over() -> Vec<String> {
    // The mount has to stay for as long as the path is used.
    root().map_or_else(|_| Vec::new(), |(root, _mount)| remove_left_over_in(&root.join("instances")))
}

fn remove_left_over_in(instances: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(instances) else { return Vec::new() };
    let of_the_gone = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.to_owned();
        // It is busy, or gone already, so it is left to others.
        (is_of_the_gone(&name) && fs::remove_dir(entry.path()).is_ok()).then_some(name)
    };
    entries.filter_map(Result::ok).filter_map(of_the_gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_of_the_process_that_made_it_and_of_no_later_one_of_its_number() {
        let own = std::process::id();
        assert!(!is_of_the_gone(&name_of(own, 0)) && !is_of_the_gone(&format!("lull-{own}-0")));
        assert!(is_of_the_gone(&format!("lull-{own}-1-0")), "it began when the machine did");
        assert!(is_of_the_gone("lull-4194399-0") && is_of_the_gone("lull-4194399-7-0"));
        for another in ["lull-x-0", "lull-", "lulls-4194399-0", "lull-4194399", "lull-4194399-1-2-3"] {
            assert!(!is_of_the_gone(another), "{another}");
        }
    }

    #[test]
    fn a_busy_instance_is_removed_once_its_files_are_closed() {
        let _nobody_starts = crate::starting::no_program();
        let instance = match Instance::new() {
            Ok(instance) => instance,
            Err(error) => {
                println!("SKIP: a trace instance: {error}");
                return;
            }
        };
        let mut held = Some(fs::File::open(instance.path("trace_pipe")).unwrap());
        remove(&instance.path, || drop(held.take()));
        assert!(held.is_none(), "an open file does not keep it");
        assert!(!instance.path.exists());
    }
}
