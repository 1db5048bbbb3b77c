//! The process that undoes when `lull run` is killed.
//!
//! It is this executable again, in a session of its own and deaf to the signals of terminals and service managers, with
//! a pipe from `lull run` as its standard input. The end of the pipe without a word of dismissal means that `lull run`
//! has died. A dying process closes one file after the other, so its locks may be held a moment longer: they are waited for.

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
/// Its first and only word: it is deaf by now.
const READY: &[u8] = b"ready\n";
/// Nothing is left to undo.
const DONE: &str = "done";
/// A process of the program that was attached to: its number and when it started, since the number may be another's later.
const PROGRAM: &str = "program ";
/// What it does not hear.
const DEAF_TO: [i32; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// How long a lock is waited for, and how often it is tried. Longer than any command holds it but one that stays.
const LOCK_WAIT: Duration = Duration::from_secs(30);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// `lull run`'s side.
pub(super) struct Supervisor {
    child: Child,
    pipe: ChildStdin,
}

impl Supervisor {
    /// Starts it; it is on duty when this returns.
    pub(super) fn start(device: Option<&str>, options: &Options) -> Result<Supervisor> {
        let failed = |error| Error::os("start the supervisor that undoes when lull is killed", "try again", error);
        // The file may have been replaced since this process was started; this one is the very same.
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

    /// A process of the program is attached to from now on.
    pub(super) fn program(&mut self, pid: i32, start: u64) {
        // A supervisor that is gone cannot be told; everything else goes on as without it.
        let _ = writeln!(self.pipe, "{PROGRAM}{pid} {start}");
    }

    /// Nothing is left to undo.
    pub(super) fn dismiss(mut self) {
        let _ = writeln!(self.pipe, "{DONE}");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The supervisor's side: waits for the end of `lull run` and undoes what it has left.
///
/// # Errors
/// Those of undoing; the state file is left, for `lull undo`.
pub fn supervise(device: Option<&str>, options: &Options) -> Result<()> {
    let failed = |error| Error::os("become the supervisor", "it is started by `lull run` only", error);
    // The kernel names a program by its file, and /proc/self/exe would be shown as `exe` by ps.
    let _ = rustix::thread::set_name(c"lull");
    let _deaf = os::take_signals(&DEAF_TO).map_err(failed)?;
    // Fails only for the leader of a process group, which a child of `lull run` is not.
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    // Looked up now: what it undoes is this device, whatever its name is by then.
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
            // The others have their turn all the same.
            Err(error) => of_program = Err(error),
        }
    }
    if let Some(mut session) = session {
        unlocked(|| undo(&mut session))?;
    }
    of_program
}

/// Number and start time of a process.
fn process(words: &str) -> Option<(i32, u64)> {
    let (pid, start) = words.split_once(' ')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// Does what takes a lock that is about to be free.
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

    /// The end of the pipe was seen while the dying `lull run` still had its lock: what it had left was never undone.
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
