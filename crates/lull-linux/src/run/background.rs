//! Processes that a program has put into the background, as daemons do: `memcached -d` returns at once and goes on as
//! an orphan.
//!
//! This process is a *subreaper* (`prctl(2)`), so an orphan of the program becomes its child. The mode stays in force
//! until the last of them has ended.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};

use super::signals::Signals;
use crate::attach::children;
use crate::error::{Error, Result};
use crate::programs::name_of;
use crate::roots::Roots;

/// The children that this process had before it adopted any. A shell that executes `lull` in its own place leaves it
/// its own.
static BEFORE: OnceLock<BTreeSet<i32>> = OnceLock::new();

/// Orphans of the program, which is yet to be started, become children of this process from now on.
pub(super) fn adopt(roots: &Roots) -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| {
        Error::os("adopt what the program puts into the background", "it takes Linux 3.4 or newer", error.into())
    })?;
    BEFORE.get_or_init(|| children(std::process::id() as i32, roots));
    Ok(())
}

/// Waits for orphans that have ended, so that they do not stay as zombies for as long as the program runs. Processes of
/// `ours` are waited for by others.
pub(super) fn reap(ours: &[u32], roots: &Roots) {
    for child in children(std::process::id() as i32, roots) {
        let is_ours = ours.contains(&child.unsigned_abs()) || was_before(child);
        if let Some(pid) = Pid::from_raw(child).filter(|_| !is_ours) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn was_before(child: i32) -> bool {
    BEFORE.get().is_some_and(|before| before.contains(&child))
}

/// The processes that are left in the background.
#[derive(Default)]
pub(super) struct Background {
    processes: Vec<(Pid, OwnedFd)>,
    told_to_end: bool,
}

impl Background {
    /// Takes in the processes that have become orphans, other than process `not`, and drops those that have ended.
    /// Returns the new ones, and says for each that `what` stays until it has ended.
    pub(super) fn refresh(
        &mut self,
        not: Option<u32>,
        roots: &Roots,
        what: &dyn Display,
        say: &mut dyn FnMut(&str),
    ) -> Vec<i32> {
        // One that has ended is waited for, so that its number becomes free.
        self.processes.retain(|(pid, _)| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        let mut new = Vec::new();
        for child in children(std::process::id() as i32, roots) {
            let known = was_before(child) || self.processes.iter().any(|(pid, _)| pid.as_raw_nonzero().get() == child);
            let Some(pid) = Pid::from_raw(child).filter(|_| !known && u32::try_from(child).ok() != not) else {
                continue;
            };
            if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
                continue;
            }
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                self.processes.push((pid, pidfd));
                let name = name_of(child, roots);
                say(&format!("{name} (process {child}) is left in the background: {what} stays until it has ended"));
                new.push(child);
            }
        }
        new
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// A descriptor of each process, which is readable once the process has ended.
    pub(super) fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes.iter().map(|(_, pidfd)| pidfd.as_fd())
    }

    /// Passes on the signals that have come. Returns whether one of them told this process to end for the second time.
    pub(super) fn pass_on(&mut self, signals: &Signals, say: &mut dyn FnMut(&str)) -> Result<bool> {
        if !signals.pass_on_to_all(&self.processes, say)? {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.told_to_end, true) {
            say("passed on to what is left in the background; once more ends lull alone");
            return Ok(false);
        }
        Ok(true)
    }
}
