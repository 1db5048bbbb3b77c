//! What the records of other programs have on a context, which may belong to a program that was attached to and to a
//! child of it that was attached to as well.

use std::path::Path;

use super::params::Params;
use super::record::{Entry, Holder, entries_of_others, holder};
use crate::error::{Error, Result};
use crate::os;
use crate::proc_stat::start_of;
use crate::roots::Roots;

/// A context: process, start time, descriptor.
type Key = (i32, u64, i32);

/// The entries of the records of other programs.
pub(super) struct Others(Vec<(i32, Entry)>);

impl Others {
    /// Reads the entries as they are at this moment. A context is recorded before it is set and until it is given back.
    /// So a caller that finds the same parameters in a context before and after this call finds who has set them.
    pub(super) fn read(directory: &Path, own: i32, roots: &Roots) -> Others {
        let mut entries = entries_of_others(directory, own, roots);
        entries.retain(|(_, entry)| start_of(entry.pid, roots) == Some(entry.start));
        Others(entries)
    }

    fn of(&self, (pid, start, fd): Key) -> impl Iterator<Item = &(i32, Entry)> {
        self.0.iter().filter(move |(_, it)| {
            (it.pid, it.start, it.fd) == (pid, start, fd) || os::same_file((it.pid, it.fd), (pid, fd)).unwrap_or(false)
        })
    }

    /// The parameters that a context had before another lull set the present ones.
    pub(super) fn former(&self, key: Key, now: Params) -> Option<Params> {
        self.of(key).find(|(_, entry)| entry.is_ours(now)).map(|(_, entry)| entry.former)
    }

    /// Refuses a context that another lull keeps in force now, because the two would set it in turns for ever.
    ///
    /// # Errors
    /// [`Error::Locked`] for such a context.
    pub(super) fn is_free(&self, key: Key, directory: &Path) -> Result<()> {
        for (program, _) in self.of(key).filter(|(_, entry)| entry.followed) {
            let by = match holder(directory, *program) {
                None => continue,
                // `lull run` follows what its program has put into the background with records of their own.
                Some(Some(Holder { pid, .. })) if pid.unsigned_abs() == std::process::id() => continue,
                Some(Some(Holder { pid, role })) => format!("process {pid}, lull {} of process {program}", role.word()),
                Some(None) => format!("which one is unknown, on process {program}"),
            };
            return Err(Error::Locked { device: format!("descriptor {} of process {}", key.2, key.0), by });
        }
        Ok(())
    }
}
