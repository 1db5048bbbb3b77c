//! What is sent to `lull run` is meant for the program.
//!
//! Signals are read from a signalfd, which leaves their dispositions alone. The program inherits what was ignored
//! (`nohup`), and is started with the mask that there was before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Error, Result};
use crate::os::{self, Came, TakenSignals};

/// The signals that are passed on, besides all real-time signals. SIGCHLD, SIGTSTP and SIGCONT keep their effect on
/// this process, so that job control works. SIGURG, SIGPIPE and the faults of a thread concern nobody else.
const PASSED_ON: [i32; 13] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGIO,
    libc::SIGPWR,
];
/// The signals that have no effect on this process. In the background it would otherwise be stopped at a line that it
/// prints.
const DEAF_TO: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// The signals of this process, which it has taken.
pub(super) struct Signals(TakenSignals);

impl Signals {
    pub(super) fn take() -> Result<Signals> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        let all: Vec<i32> = PASSED_ON.into_iter().chain(DEAF_TO).chain(real_time).collect();
        let taken = os::take_signals(&all);
        taken.map(Signals).map_err(|error| Error::os("take signals", "close some descriptors (ulimit -n)", error))
    }

    /// Makes the program start as if they had not been taken.
    pub(super) fn leave_to(&self, command: &mut Command) {
        os::with_mask_before(command, &self.0);
    }

    /// Sleeps until one of the processes has ended, a signal has come, or the time is over.
    pub(super) fn sleep<'a>(
        &self,
        pidfds: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<&Timespec>,
    ) -> Result<()> {
        let mut ready = vec![PollFd::new(self, PollFlags::IN)];
        ready.extend(pidfds.map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN)));
        match poll(&mut ready, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Passes on what has come. What the kernel has sent, as a terminal does to its whole foreground group at Ctrl-C, a
    /// program in the foreground has received as well. What the program itself has sent is not for it.
    pub(super) fn pass_on(&self, program: &OwnedFd, pid: Pid, say: &mut dyn FnMut(&str)) -> Result<()> {
        self.each(|came| {
            let pid = pid.as_raw_nonzero().get();
            if came.by_kernel || came.sender == pid { Ok(()) } else { send(program, pid, came, say) }
        })
        .map_err(failed)
    }

    /// Passes on to processes in the background what has come. A process that has sent it does not receive it. Returns
    /// whether one of the signals asked to end.
    pub(super) fn pass_on_to_all(&self, processes: &[(Pid, OwnedFd)], say: &mut dyn FnMut(&str)) -> Result<bool> {
        let mut end = false;
        self.each(|came| {
            end |= matches!(came.number, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP);
            let all = processes.iter().map(|(pid, pidfd)| (pid.as_raw_nonzero().get(), pidfd));
            all.filter(|(pid, _)| *pid != came.sender).try_for_each(|(pid, pidfd)| send(pidfd, pid, came, say))
        })
        .map_err(failed)?;
        Ok(end)
    }

    fn each(&self, mut take: impl FnMut(&Came) -> io::Result<()>) -> io::Result<()> {
        while let Some(came) = os::next_signal(self.0.as_fd())? {
            if !DEAF_TO.contains(&came.number) {
                take(&came)?;
            }
        }
        Ok(())
    }
}

/// The program that was started, with a descriptor that is readable once the program has ended.
pub(super) fn watched(child: &Child) -> Result<(Pid, OwnedFd)> {
    let pid = Pid::from_child(child);
    Ok((pid, pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?))
}

/// Waiting for the program failed.
pub(super) fn failed(error: io::Error) -> Error {
    Error::os("wait for the program", "it takes Linux 5.4 or newer", error)
}

fn send(program: &OwnedFd, pid: i32, came: &Came, say: &mut dyn FnMut(&str)) -> io::Result<()> {
    match os::send_signal(program.as_fd(), came) {
        // The kernel tells the sender of a real-time signal that there is no room for it, and that is this process.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
            say(&format!(
                "signal {} was not passed on to process {pid}, whose queue of signals is full: raise its RLIMIT_SIGPENDING \
                 (ulimit -i), and send the signal again",
                came.number
            ));
            Ok(())
        }
        // It has ended, or is one that this user may not signal (set-user-ID).
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EPERM)) => Err(error),
        _ => Ok(()),
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
