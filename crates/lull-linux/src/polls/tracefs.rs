//! A trace instance of our own: buffers, filters and switches that nobody else uses, removed at the end.
//!
//! Where tracefs is not mounted, it is mounted for this process alone, without a place in the tree (`fsmount(2)`): the
//! machine's mounts stay as they were. An instance that a killed process left is removed by the next one. Whose process is
//! in another PID namespace cannot be looked up, so an instance is held by an open file of its own: the kernel refuses to
//! remove one (`tr->ref` in `__remove_instance`).

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::error::{PollsError, os};
use super::format::Format;

/// Where tracefs is mounted by those who mount it.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// More than any file that is read here.
const FILE_BYTES: usize = 16 * 1024;

/// The file of an instance that is kept open.
const HELD_BY: &str = "tracing_on";

/// Names that are tried for one instance and its successors.
const NUMBERS_TRIED: u32 = 10_000;

/// A trace instance.
pub(super) struct Instance {
    path: PathBuf,
    /// Keeps the instance from being removed by those who take it for left over.
    held: Option<fs::File>,
    /// Keeps a mount of our own alive.
    _mount: Option<OwnedFd>,
}

impl Instance {
    pub fn new() -> Result<Instance, PollsError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, mount) = root()?;
        let instances = root.join("instances");
        remove_left_over(&instances);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("lull-{}-{number}", std::process::id());
            let path = instances.join(&name);
            match fs::create_dir(&path).and_then(|()| fs::File::open(path.join(HELD_BY))) {
                Ok(held) => return Ok(Instance { path, held: Some(held), _mount: mount }),
                // It is another PID namespace's, whose process has our number; or was removed by one before it was held.
                Err(error) if number < NUMBERS_TRIED && is_anothers(&error) => {}
                Err(error) => return Err(os(format!("make the trace instance {name}"))(error)),
            }
        }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    pub fn read(&self, file: &str) -> Result<String, PollsError> {
        let read = || -> io::Result<String> {
            // Some of these files tell everything to the first read and nothing to the next: it has to be a large one.
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

    /// CPUs that have a ring buffer.
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
        drop(self.held.take());
        // Nothing can be done about a refusal; the next process tries again.
        let _ = fs::remove_dir(&self.path);
    }
}

fn is_anothers(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotFound};
    matches!(error.kind(), AlreadyExists | NotFound) || error.raw_os_error() == Some(libc::ENODEV)
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

/// Removes instances of processes that are gone.
fn remove_left_over(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("lull-")).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            // Busy, so that it is held by somebody whose PID namespace is another; or gone already.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In other PID namespaces lives who is not seen here: an instance with the name of a process that does not exist
    /// stays while it is held, and is taken for left over afterwards.
    #[test]
    fn an_instance_that_is_held_is_not_taken_for_left_over() {
        let first = match Instance::new() {
            Ok(instance) => instance,
            Err(error) => {
                println!("SKIP: held trace instances: {error}");
                return;
            }
        };
        let instances = first.path.parent().unwrap().to_owned();
        // No process has a number above the limit of all kernels (PID_MAX_LIMIT, 2^22).
        let path = instances.join(format!("lull-{}-0", u32::MAX - std::process::id()));
        fs::create_dir(&path).unwrap();
        let held = fs::File::open(path.join(HELD_BY)).unwrap();
        remove_left_over(&instances);
        assert!(path.is_dir(), "it is held");
        drop(held);
        remove_left_over(&instances);
        assert!(!path.exists(), "nobody holds it");
        let own = first.path.clone();
        assert!(fs::remove_dir(&own).is_err(), "an instance is held by who made it");
        drop(first);
        assert!(!own.exists());
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let first = match Instance::new() {
            Ok(instance) => instance,
            Err(error) => {
                println!("SKIP: names of trace instances: {error}");
                return;
            }
        };
        let instances = first.path.parent().unwrap().to_owned();
        // Of this process, so that it is not left over: as a process with this number elsewhere would name it.
        let taken: Vec<PathBuf> =
            (100..104).map(|number| instances.join(format!("lull-{}-{number}", std::process::id()))).collect();
        taken.iter().for_each(|path| fs::create_dir(path).unwrap());
        let passed: Result<Vec<Instance>, _> = (0..110).map(|_| Instance::new()).collect();
        taken.iter().for_each(|path| fs::remove_dir(path).unwrap());
        passed.unwrap();
    }
}
