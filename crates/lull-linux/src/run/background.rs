//! Processes that a program has put into the background, as daemons do: `memcached -d` returns at once and goes on as
//! an orphan.
//!
//! This process is a *subreaper* (`prctl(2)`), so an orphan of the program becomes its child. The mode stays in force
//! until the last of them has ended.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};

use crate::attach::children;
use crate::error::{Error, Result};
use crate::roots::Roots;

/// Orphans of the program become children of this process from now on.
pub(super) fn adopt() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| {
        Error::os("adopt what the program puts into the background", "it takes Linux 3.4 or newer", error.into())
    })
}

/// What has been left in the background.
#[derive(Default)]
pub(super) struct Background {
    processes: Vec<(Pid, OwnedFd)>,
}

impl Background {
    /// Takes in who became an orphan, and drops who has ended. Returns who is new.
    pub(super) fn refresh(&mut self, not: Option<u32>, roots: &Roots) -> Vec<i32> {
        // One that has ended is waited for, so that its number is free.
        self.processes.retain(|(pid, _)| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        let mut new = Vec::new();
        for child in children(std::process::id() as i32, roots) {
            let known = self.processes.iter().any(|(pid, _)| pid.as_raw_nonzero().get() == child);
            let Some(pid) = Pid::from_raw(child).filter(|_| !known && u32::try_from(child).ok() != not) else {
                continue;
            };
            if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
                continue;
            }
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                self.processes.push((pid, pidfd));
                new.push(child);
            }
        }
        new
    }

    pub(super) fn processes(&self) -> &[(Pid, OwnedFd)] {
        &self.processes
    }
}
