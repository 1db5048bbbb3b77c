//! A program under the preload library alone. Nothing is set for it in the kernel and nothing is to be undone, but the
//! process that has started it stays until it has ended, with everything that it has put into the background.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use rustix::event::Timespec;

use super::background::{self, Background};
use super::signals::{self, Signals};
use super::{exit_code, program, way};
use crate::error::{Error, Result};
use crate::roots::Roots;

/// How often lull waits for orphans that have ended, while the program runs.
const REAP_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often lull looks for what the program has left in the background, once it has ended.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A program that loads the preload library.
#[derive(Debug)]
pub struct Plain {
    command: Vec<OsString>,
    library: PathBuf,
}

impl Plain {
    /// Checks that the program loads the library.
    ///
    /// # Errors
    /// There is no such program, there is no library, or the program does not load one, with the reason.
    pub fn of(command: &[OsString]) -> Result<Plain> {
        let name = command.first().ok_or_else(|| Error::Input {
            what: "no program to run".to_owned(),
            remedy: "name one after `--`".to_owned(),
        })?;
        let path = program::find(name)?;
        let read = |error| Error::os(format!("read the program {}", path.display()), "make it readable", error);
        if let Some(reason) = program::no_preload(&path).map_err(read)? {
            return Err(Error::Unsupported {
                what: format!("run {} on lull's user plane", name.to_string_lossy()),
                reason: format!("it takes a preload library, and {reason}"),
                remedy: "use the kernel plane, which can attach to it: `lull run --dev DEV --mode MODE -- ...`"
                    .to_owned(),
            });
        }
        Ok(Plain { command: command.to_vec(), library: way::library()? })
    }

    /// Runs the program with these variables to its end and returns its exit status, or 128 + n if signal n ended it.
    /// `started` is called when the program has its descriptors.
    ///
    /// The caller has to be the only thread of its process, since signals are taken for the program from here on.
    ///
    /// # Errors
    /// What the system says about the start.
    pub fn run(&self, variables: &[(&str, OsString)], started: impl FnOnce(), say: &mut dyn FnMut(&str)) -> Result<u8> {
        let signals = Signals::take()?;
        let roots = Roots::default();
        background::adopt(&roots)?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env("LD_PRELOAD", way::preloaded(&self.library));
        for name in way::VARIABLES {
            command.env_remove(name);
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        signals.leave_to(&mut command);
        let mut child = command.spawn().map_err(|error| {
            Error::os(format!("run {}", self.command[0].to_string_lossy()), "check that it is a program", error)
        })?;
        started();
        let (pid, pidfd) = signals::watched(&child)?;
        let status = loop {
            signals.sleep([pidfd.as_fd()].into_iter(), Some(&REAP_EVERY))?;
            signals.pass_on(&pidfd, pid, say)?;
            background::reap(&[child.id()], &roots);
            if let Some(status) = child.try_wait().map_err(signals::failed)? {
                break status;
            }
        };
        stay(&signals, say)?;
        Ok(exit_code(status))
    }
}

/// Stays until what is left of the program in the background has ended, or this process is told twice to end.
fn stay(signals: &Signals, say: &mut dyn FnMut(&str)) -> Result<()> {
    let (mut background, roots) = (Background::default(), Roots::default());
    loop {
        background.refresh(None, &roots, &"the NIC", say);
        if background.is_empty() {
            return Ok(());
        }
        signals.sleep(background.pidfds(), Some(&LOOK_EVERY))?;
        if background.pass_on(signals, say)? {
            return Ok(());
        }
    }
}
