//! The right to change a device: lock files that say who has it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::durable::{self, Taken};
use crate::error::{Error, Result};

/// How often to try a lock that is waited for.
const RETRY: Duration = Duration::from_millis(20);
/// What a holder that keeps the device until it is told to end writes after its number.
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
