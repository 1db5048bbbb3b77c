//! The right to change a device: lock files that say who has it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::durable::{self, Taken};
use crate::error::{Error, Result};

/// How often to try a lock that is waited for.
const RETRY: Duration = Duration::from_millis(20);
/// For how long the lock file of a command that was killed is kept at least.
const LEFT_KEPT: Duration = Duration::from_secs(60);
/// What a holder writes behind its number that keeps the device until it is told to end.
const STAYS: &str = " stays";

/// The right to change a device, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    /// The locks of the files that it consists of, in the order in which they were taken.
    files: Vec<Held>,
}

impl Lock {
    /// Whether this file is among those that it consists of.
    pub(super) fn has(&self, file: &Path) -> bool {
        self.files.iter().any(|held| held.path == file)
    }
}

/// The lock of one file.
#[derive(Debug)]
struct Held {
    _file: File,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The file is still locked here, so whoever has opened it in the meantime finds that it is not the one in the
        // directory.
        let _ = fs::remove_file(&self.path);
    }
}

/// How somebody takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// For one change.
    Moment,
    /// Until the holder is told to end, as with `apply --watch` and `run`.
    Stay,
}

/// For how long a lock is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// At most so long.
    pub limit: Duration,
    /// No longer once this is set.
    pub stop: &'a AtomicBool,
}

impl Patience<'static> {
    /// For so long, whatever happens meanwhile.
    pub fn of(limit: Duration) -> Patience<'static> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Patience { limit, stop: &NEVER }
    }
}

/// Takes the locks at `paths`, which are those of `device`. They end with the process, however that ends.
///
/// # Errors
/// [`Error::Locked`] with the process that has one of them.
pub(super) fn take(paths: Vec<PathBuf>, device: &str, term: Term) -> Result<Lock> {
    let stays = if term == Term::Stay { STAYS } else { "" };
    let take = |path: PathBuf| match attempt(&path, &format!("{}{stays}", std::process::id()))? {
        Taken::Yes(file) => Ok(Held { _file: file, path }),
        Taken::HeldBy(by) => Err(locked(device, &by)),
    };
    Ok(Lock { files: paths.into_iter().map(take).collect::<Result<_>>()? })
}

/// The same as [`take`], but it waits for a holder that works on the device only for a moment, and reports that to
/// `log` once.
///
/// # Errors
/// [`Error::Locked`] if the holder stays, or holds it until `patience` is at its end.
pub(super) fn wait(
    paths: Vec<PathBuf>,
    device: &str,
    patience: Patience<'_>,
    log: &mut dyn FnMut(&str),
) -> Result<Lock> {
    let until = Instant::now() + patience.limit;
    let mut told = false;
    let mut files = Vec::new();
    for path in paths {
        files.push(wait_for(path, device, (until, patience.stop), &mut told, log)?);
    }
    Ok(Lock { files })
}

fn wait_for(
    path: PathBuf,
    device: &str,
    (until, stop): (Instant, &AtomicBool),
    told: &mut bool,
    log: &mut dyn FnMut(&str),
) -> Result<Held> {
    loop {
        let by = match attempt(&path, &std::process::id().to_string())? {
            Taken::Yes(file) => return Ok(Held { _file: file, path }),
            Taken::HeldBy(by) => by,
        };
        if by.ends_with(STAYS) || Instant::now() > until {
            return Err(locked(device, &by));
        }
        if !std::mem::replace(told, true) {
            log(&format!("waiting for another lull ({}) that works on {device}", holder(&by)));
        }
        std::thread::sleep(RETRY);
        if stop.load(Ordering::Relaxed) {
            return Err(locked(device, &by));
        }
    }
}

/// Removes lock files of devices that commands which were killed have left: nobody else would, once their device is gone. One
/// that was taken lately is left, as somebody may just be opening it.
pub fn sweep(directory: &Path) {
    let Ok(files) = fs::read_dir(directory) else { return };
    let is_old = |path: &Path| {
        let taken = fs::metadata(path).and_then(|it| it.modified());
        taken.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > LEFT_KEPT))
    };
    let names_a_device = |path: &PathBuf| path.file_name().is_some_and(|name| is_of_a_device(&name.to_string_lossy()));
    for path in files.flatten().map(|file| file.path()).filter(names_a_device) {
        if is_old(&path)
            && let Ok(Taken::Yes(_lock)) = durable::try_lock_for(&path, "", Duration::ZERO)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether a lock file of this name is that of a device (`state.rs`).
fn is_of_a_device(name: &str) -> bool {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    name.strip_suffix(".lock").is_some_and(|stem| match (stem.strip_prefix("node-"), stem.split_once('@')) {
        (Some(node), _) => is_number(node),
        (None, Some((index, cookie))) => is_number(index) && is_number(cookie),
        (None, None) => false,
    })
}

/// The process that has the lock at `path` until it is told to end.
pub(super) fn stayer(path: &Path) -> Option<u32> {
    durable::lock_holder(path)?.trim().strip_suffix(STAYS)?.parse().ok()
}

fn attempt(path: &Path, holder: &str) -> Result<Taken> {
    durable::try_lock(path, holder).map_err(|error| {
        Error::file(format!("lock {}", path.display()), "name another directory with --state-dir", error)
    })
}

fn locked(device: &str, by: &str) -> Error {
    Error::Locked { device: device.to_owned(), by: holder(by) }
}

fn holder(by: &str) -> String {
    match by.strip_suffix(STAYS) {
        Some(pid) => format!("process {pid}, which stays until it is told to end"),
        None if by.is_empty() => "it has just started".to_owned(),
        None => format!("process {by}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Scratch {
            Scratch(std::env::temp_dir().join(format!("lull-lock-{test}-{}", std::process::id())))
        }

        fn files(&self) -> Vec<PathBuf> {
            vec![self.0.clone()]
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_holder_that_works_for_a_moment_is_waited_for_and_named() {
        let scratch = Scratch::new("moment");
        let held = take(scratch.files(), "va", Term::Moment).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let path = scratch.files();
        let waiter = std::thread::spawn(move || {
            wait(path, "va", Patience::of(LIMIT), &mut |line| tell.send(line.to_owned()).unwrap()).map(drop)
        });
        let said = told.recv().unwrap();
        assert!(said.contains("waiting") && said.contains(&std::process::id().to_string()), "{said}");
        drop(held);
        waiter.join().unwrap().unwrap();
        assert!(told.recv().is_err(), "it is said once");
    }

    #[test]
    fn a_holder_that_stays_is_not_waited_for_and_the_wait_is_bounded() {
        let scratch = Scratch::new("stays");
        let held = take(scratch.files(), "va", Term::Stay).unwrap();
        let said =
            wait(scratch.files(), "va", Patience::of(LIMIT), &mut |line| panic!("{line}")).unwrap_err().to_string();
        assert!(said.contains("stays until"), "{said}");
        drop(held);
        let _held = take(scratch.files(), "va", Term::Moment).unwrap();
        let mut told = 0;
        let short = Patience::of(Duration::from_millis(50));
        wait(scratch.files(), "va", short, &mut |_| told += 1).unwrap_err();
        assert_eq!(told, 1);
    }

    #[test]
    fn locks_that_killed_commands_left_are_swept_and_no_others() {
        let directory = std::env::temp_dir().join(format!("lull-lock-sweep-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [held, left, fresh, notes] =
            ["node-7.lock", "5@33907.lock", "node-8.lock", "notes@home.lock"].map(|name| directory.join(name));
        let lock = take(vec![held.clone()], "va", Term::Stay).unwrap();
        [&left, &fresh, &notes].into_iter().for_each(|path| fs::write(path, "4194399").unwrap());
        let long_ago = SystemTime::now() - 2 * LEFT_KEPT;
        for path in [&held, &left, &notes] {
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        sweep(&directory);
        let are_there = [&held, &left, &fresh, &notes].map(|path| path.exists());
        drop(lock);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(are_there, [true, false, true, true]);
    }

    #[test]
    fn who_is_told_to_end_while_it_waits_does_not_take_the_lock() {
        let scratch = Scratch::new("told-to-end");
        let mut held = Some(take(scratch.files(), "va", Term::Moment).unwrap());
        let stop = AtomicBool::new(false);
        let waited = wait(scratch.files(), "va", Patience { limit: LIMIT, stop: &stop }, &mut |_| {
            stop.store(true, Ordering::Relaxed);
            drop(held.take());
        });
        assert!(matches!(waited, Err(Error::Locked { .. })), "{waited:?}");
    }
}
