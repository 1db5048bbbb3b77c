//! The right to change a device: a lock file that says who has it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::durable::{self, Taken};
use crate::error::{Error, Result};

/// How often a lock that is waited for is tried.
const RETRY: Duration = Duration::from_millis(20);
/// What a holder writes behind its number that keeps the device until it is told to end.
const STAYS: &str = " stays";

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

/// How somebody takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// For one change.
    Moment,
    /// Until it is told to end, as `apply --watch` and `run` do.
    Stay,
}

/// Takes the lock at `path`, which is that of `device`. It ends with the process, however that ends.
///
/// # Errors
/// [`Error::Locked`] with the process that has it.
pub(super) fn take(path: &Path, device: &str, term: Term) -> Result<Lock> {
    let stays = if term == Term::Stay { STAYS } else { "" };
    match attempt(path, &format!("{}{stays}", std::process::id()))? {
        Taken::Yes(file) => Ok(Lock { _file: file, path: path.to_owned() }),
        Taken::HeldBy(by) => Err(locked(device, &by)),
    }
}

/// As [`take`], but waits for a holder that works on the device for a moment only, and tells `log` about it once.
///
/// # Errors
/// [`Error::Locked`] if the holder stays, or holds it for longer than `limit`.
pub(super) fn wait(path: &Path, device: &str, limit: Duration, log: &mut dyn FnMut(&str)) -> Result<Lock> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let by = match attempt(path, &std::process::id().to_string())? {
            Taken::Yes(file) => return Ok(Lock { _file: file, path: path.to_owned() }),
            Taken::HeldBy(by) => by,
        };
        if by.ends_with(STAYS) || begun.elapsed() > limit {
            return Err(locked(device, &by));
        }
        if !told {
            log(&format!("waiting for another lull ({}) that works on {device}", holder(&by)));
            told = true;
        }
        std::thread::sleep(RETRY);
    }
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
        let held = take(&scratch.0, "va", Term::Moment).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let path = scratch.0.clone();
        let waiter = std::thread::spawn(move || {
            wait(&path, "va", LIMIT, &mut |line| tell.send(line.to_owned()).unwrap()).map(drop)
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
        let held = take(&scratch.0, "va", Term::Stay).unwrap();
        let said = wait(&scratch.0, "va", LIMIT, &mut |line| panic!("{line}")).unwrap_err().to_string();
        assert!(said.contains("stays until"), "{said}");
        drop(held);
        let _held = take(&scratch.0, "va", Term::Moment).unwrap();
        let mut told = 0;
        wait(&scratch.0, "va", Duration::from_millis(50), &mut |_| told += 1).unwrap_err();
        assert_eq!(told, 1);
    }
}
