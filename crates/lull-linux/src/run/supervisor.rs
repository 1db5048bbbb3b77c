//! The process that undoes when `lull run` is killed.
//!
//! It is this executable again, in a session of its own and deaf to the signals of terminals and service managers. Its
//! standard input is a pipe from `lull run`. If the pipe ends without a word of dismissal, `lull run` has died. A dying
//! process closes one file after the other, so its locks may be held a moment longer, and the supervisor waits for
//! them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::apply::{Options, Session, undo};
use crate::attach::detach_started;
use crate::error::{Error, Result};
use crate::os;

/// The hidden subcommand that is the supervisor.
const SUBCOMMAND: &str = "supervise";
/// Its first and only word: it ignores those signals by now.
const READY: &[u8] = b"ready\n";
/// The word that nothing is left to undo.
const DONE: &str = "done";
/// The word for a process of the program that was attached to: its number, and when it started, since the number may be
/// another's later.
const PROGRAM: &str = "program ";
/// The signals that it ignores.
const DEAF_TO: [i32; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// How long it waits for a lock, and how often it tries. This is longer than any command holds it except one that
/// stays.
const LOCK_WAIT: Duration = Duration::from_secs(30);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// `lull run`'s side.
pub(super) struct Supervisor {
    child: Child,
    pipe: ChildStdin,
}

impl Supervisor {
    /// Starts the supervisor, which is on duty when this returns.
    pub(super) fn start(device: Option<&str>, options: &Options) -> Result<Supervisor> {
        let failed = |error| Error::os("start the supervisor that undoes when lull is killed", "try again", error);
        // The file may have been replaced since this process was started, and this path is the very same program.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lull").arg(SUBCOMMAND).arg("--state-dir").arg(&options.state_dir);
        if let Some(device) = device {
            command.arg("--dev").arg(device);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut word = vec![0; READY.len()];
        let ready = child.stdout.take().map(|mut stdout| stdout.read_exact(&mut word));
        match (ready, child.stdin.take()) {
            (Some(Ok(())), Some(pipe)) if word == READY => Ok(Supervisor { child, pipe }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(std::io::Error::other("it ended at once")))
            }
        }
    }

    /// The number of its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells that a process of the program is attached to from now on.
    pub(super) fn program(&mut self, pid: i32, start: u64) {
        // A supervisor that is gone cannot be told. Everything else goes on without it.
        let _ = writeln!(self.pipe, "{PROGRAM}{pid} {start}");
    }

    /// Tells that nothing is left to undo.
    pub(super) fn dismiss(mut self) {
        let _ = writeln!(self.pipe, "{DONE}");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The supervisor's side, which waits for the end of `lull run` and undoes what it has left.
///
/// # Errors
/// Those of undoing. The state file is left, for `lull undo`.
pub fn supervise(device: Option<&str>, options: &Options) -> Result<()> {
    let failed = |error| Error::os("become the supervisor", "it is started by `lull run` only", error);
    // The kernel names a program by its file, and ps would show /proc/self/exe as `exe`.
    let _ = rustix::thread::set_name(c"lull");
    let _deaf = os::take_signals(&DEAF_TO).map_err(failed)?;
    // This fails only for the leader of a process group, which a child of `lull run` is not.
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    // The device is looked up now, so that it is the one that is undone, whatever its name is by then.
    let session = device.map(|device| Session::open(device, options)).transpose()?;
    std::io::stdout().write_all(READY).and_then(|()| std::io::stdout().flush()).map_err(failed)?;
    let mut programs = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        let Ok(line) = line else { break };
        if line == DONE {
            return Ok(());
        }
        programs.extend(line.strip_prefix(PROGRAM).and_then(process));
    }
    let mut of_program = Ok(());
    for (pid, start) in programs {
        match unlocked(|| detach_started(pid, start, options)) {
            // It has ended along with lull.
            Err(Error::NoProcess { .. }) | Ok(_) => {}
            // The others have their turn nevertheless.
            Err(error) => of_program = Err(error),
        }
    }
    if let Some(mut session) = session {
        unlocked(|| undo(&mut session))?;
    }
    of_program
}

/// The number and start time of a process.
fn process(words: &str) -> Option<(i32, u64)> {
    let (pid, start) = words.split_once(' ')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// Does work that takes a lock which is about to become free.
fn unlocked<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match work() {
            Err(Error::Locked { .. }) if Instant::now() < until => std::thread::sleep(LOCK_RETRY),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of the pipe is seen while the dying `lull run` still has its lock. What it has left has to be undone
    /// nevertheless.
    #[test]
    fn a_lock_that_is_held_a_moment_longer_is_waited_for() {
        let mut tries = 0;
        let done = unlocked(|| {
            tries += 1;
            let held = Error::Locked { device: "va".to_owned(), by: "process 1".to_owned() };
            if tries < 3 { Err(held) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 3);
        let other = unlocked(|| Err::<(), _>(Error::NoProcess { pid: 1 }));
        assert!(matches!(other, Err(Error::NoProcess { pid: 1 })), "anything else is told at once");
    }
}
