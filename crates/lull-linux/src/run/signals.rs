//! What is sent to `lull run` is meant for the program.
//!
//! Signals are read from a signalfd, which leaves their dispositions alone: the program inherits what was ignored
//! (`nohup`), and is started with the mask that there was before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::error::{Error, Result};
use crate::os::{self, TakenSignals};

/// What is passed on. SIGCHLD, SIGTSTP and SIGCONT are left to their own ways, so that job control works.
const PASSED_ON: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// The signals of this process, taken.
pub(super) struct Signals(TakenSignals);

impl Signals {
    pub(super) fn take() -> Result<Signals> {
        let taken = os::take_signals(&PASSED_ON);
        taken.map(Signals).map_err(|error| Error::os("take signals", "close some descriptors (ulimit -n)", error))
    }

    /// Has the program started as if they had not been taken.
    pub(super) fn leave_to(&self, command: &mut Command) {
        os::with_mask_before(command, &self.0);
    }

    /// Passes on what has come. What the kernel has sent, as a terminal does to its whole foreground group at Ctrl-C,
    /// the program has got too; what the program itself has sent is not for it.
    pub(super) fn pass_on(&self, program: &OwnedFd, pid: Pid) -> io::Result<()> {
        while let Some(came) = os::next_signal(self.0.as_fd())? {
            if came.by_kernel || came.sender == pid.as_raw_nonzero().get() {
                continue;
            }
            let Some(signal) = Signal::from_named_raw(came.number) else { continue };
            match pidfd_send_signal(program, signal) {
                // It has ended, or is one that this user may not signal (set-user-ID).
                Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
