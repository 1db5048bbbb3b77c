//! Files on which other processes rely, as they are written completely or not at all, and locks that end with their
//! holder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// How long a lock that is not free is asked for again. A process that only asks for the lock's holder has it for a
/// moment ([`lock_holder`]), in which the file still has the text of the last one.
const ASKED_FOR: Duration = Duration::from_millis(20);

/// The result of an attempt to take a lock.
pub(crate) enum Taken {
    /// The lock, until the file is closed.
    Yes(File),
    /// What its holder wrote into the file; the text is empty if it has not done so yet.
    HeldBy(String),
}

/// Writes `content` as JSON into `temporary`, syncs it and renames it to `file` in the same directory. A reader of
/// `file` finds either the old content or the new one.
pub(crate) fn write_json(temporary: &Path, file: &Path, content: &impl Serialize) -> io::Result<()> {
    let written = (|| {
        let mut text = serde_json::to_vec_pretty(content)?;
        text.push(b'\n');
        let mut new = File::create(temporary)?;
        new.write_all(&text)?;
        new.sync_all()?;
        fs::rename(temporary, file)?;
        File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

/// Why a file with this text is not of `version`, whatever else is in it: the shape of another version is not known here.
pub(crate) fn another_version(text: &str, version: u32) -> Option<String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let is = serde_json::from_str::<Versioned>(text).ok()?.version;
    (is != version).then(|| format!("it is of version {is}, and this lull writes {version}"))
}

/// Takes the lock file at `path`, and writes into it who has it now. It is its owner's alone: whoever may open a file, to read
/// it even, may hold its lock.
pub(crate) fn try_lock(path: &Path, holder: &str) -> io::Result<Taken> {
    try_lock_for(path, holder, ASKED_FOR)
}

/// As [`try_lock`], but asks again for this long.
pub(crate) fn try_lock_for(path: &Path, holder: &str, patience: Duration) -> io::Result<Taken> {
    let since = Instant::now();
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        // A file that exists already may have another mode, and may belong to another user.
        if file.metadata()?.mode() & 0o077 != 0 {
            let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut by = String::new();
                let _ = file.read_to_string(&mut by);
                return Ok(Taken::HeldBy(by.trim().to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        // The last holder may have removed the file between the opening and the locking here. Then this lock belongs to
        // no file.
        if !fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
            continue;
        }
        // The text is for people and messages. The lock holds without it, even on a full disk.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        return Ok(Taken::Yes(file));
    }
}

/// What the holder of the lock file at `path` wrote into it; `None` if nobody holds it.
pub(crate) fn lock_holder(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    // The lock is shared, so that two who only ask do not find each other. It is released when the file is closed.
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    let mut by = String::new();
    let _ = file.read_to_string(&mut by);
    Some(by.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::starting;

    /// A file that is removed when this is dropped.
    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_lock_is_its_owners_alone_also_where_it_was_not() {
        let _nobody_starts = starting::no_program();
        let scratch = Scratch(std::env::temp_dir().join(format!("lull-durable-{}.lock", std::process::id())));
        let path = &scratch.0;
        let mode = || fs::metadata(path).unwrap().mode() & 0o777;
        let lock = try_lock(path, "1").unwrap();
        assert!(matches!(lock, Taken::Yes(_)) && mode() == 0o600, "{:o}", mode());
        drop(lock);
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let lock = try_lock(path, "2").unwrap();
        assert!(matches!(lock, Taken::Yes(_)) && mode() == 0o600, "{:o}", mode());
        assert!(matches!(try_lock(path, "3").unwrap(), Taken::HeldBy(by) if by == "2"));
        assert_eq!(lock_holder(path).as_deref(), Some("2"));
        drop(lock);
        assert_eq!(lock_holder(path), None);
    }

    #[test]
    fn who_only_asks_for_the_holder_keeps_nobody_from_the_lock() {
        let _nobody_starts = starting::no_program();
        let scratch = Scratch(std::env::temp_dir().join(format!("lull-durable-asked-{}.lock", std::process::id())));
        let path = &scratch.0;
        fs::write(path, "1").unwrap();
        let asking = File::open(path).unwrap();
        flock(&asking, FlockOperation::NonBlockingLockShared).unwrap();
        let patience = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| try_lock_for(path, "2", patience).unwrap());
            // It has the file open once more, as before each time that it asks.
            let opened = || {
                let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
                links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to == *path)).count()
            };
            while opened() < 2 && !taken.is_finished() {
                std::thread::yield_now();
            }
            drop(asking);
            assert!(matches!(taken.join().unwrap(), Taken::Yes(_)));
        });
        assert_eq!(fs::read_to_string(path).unwrap(), "2");
    }
}
