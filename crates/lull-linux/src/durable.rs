//! Files that other processes rely on: written whole or not at all, and locks that end with their holder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

/// What trying to take a lock gave.
pub(crate) enum Taken {
    /// The lock, until the file is closed.
    Yes(File),
    /// What its holder wrote into the file; nothing if it has not done so yet.
    HeldBy(String),
}

/// Writes `content` as JSON into `temporary`, syncs it and renames it to `file` in the same directory. Whoever reads
/// `file` finds the old content or the new one.
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

/// Takes the lock file at `path`, and writes into it who has it now.
pub(crate) fn try_lock(path: &Path, holder: &str) -> io::Result<Taken> {
    loop {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut by = String::new();
                let _ = file.read_to_string(&mut by);
                return Ok(Taken::HeldBy(by.trim().to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        // Its last holder may have removed the file between our opening and locking it: then the lock is nobody's.
        if !fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino())) {
            continue;
        }
        // The text is for people and messages; the lock holds without it, on a full disk too.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        return Ok(Taken::Yes(file));
    }
}
