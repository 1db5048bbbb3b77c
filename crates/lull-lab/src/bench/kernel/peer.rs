//! The generator at the other end of a device of the user's: `lull load`, started by a command that reaches the peer.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::window::STOP_INTERVAL;
use crate::bench::{BenchConfig, BenchError, Run};
use crate::load::log::LoadLog;
use crate::load::{ANNOUNCEMENT, Arrivals, Pace, Summary};

/// The time that a run may take besides its warm-up and window: to reach the peer, to connect, to store the records and
/// to wait for the last answers.
const OVERHEAD_MAX: Duration = Duration::from_secs(60);

/// The generator on the peer.
pub struct Peer {
    /// The command in a shell's words, such as `ssh client lull`. `load` and its arguments follow it.
    command: String,
    server: SocketAddr,
    threads: usize,
    connections: usize,
    records: u64,
    /// Whether the records were stored.
    stored: bool,
}

impl Peer {
    /// Describes a peer that is reached by `command`, for a service at `server`. Nothing runs yet.
    pub fn new(command: &str, server: SocketAddr, config: &BenchConfig) -> Peer {
        Peer {
            command: command.to_owned(),
            server,
            threads: config.workers.min(config.connections),
            connections: config.connections,
            records: config.workload.records,
            stored: false,
        }
    }

    /// Runs a load. `begun` is called when its window begins, or when the load has ended without one.
    ///
    /// # Errors
    ///
    /// The error holds what the command said if it failed, or says that it took far too long.
    pub fn run(&mut self, pace: Pace, run: &Run<'_>, begun: impl FnOnce() + Send) -> Result<Summary, BenchError> {
        let mut child = self.spawn(pace, run)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read_all = || {
            let mut bytes = Vec::new();
            stdout.map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut bytes)).map(|_| bytes)
        };
        let (ended, log, said) = std::thread::scope(|scope| {
            let log = scope.spawn(read_all);
            let said = scope.spawn(|| said_until(stderr, begun));
            let ended = wait(&mut child, run);
            (ended, log.join(), said.join())
        });
        let panicked = |_| BenchError::Invalid("what reads the peer's output panicked".to_owned());
        let (log, said) = (log.map_err(panicked)??, said.map_err(panicked)?);
        match ended? {
            Ended::Stopped => Ok(Summary::default()),
            Ended::Late(after) => {
                Err(self.failed(&format!("it did not end within {:.0} s{}", after.as_secs_f64(), after_colon(&said))))
            }
            Ended::Failed(status) => Err(self.failed(&format!("it ended with {status}{}", after_colon(&said)))),
            Ended::Done => {
                self.stored = true;
                let log = LoadLog::parse(&log).map_err(|error| self.failed(&format!("of what it wrote, {error}")))?;
                Ok(log.summary())
            }
        }
    }

    fn failed(&self, why: &str) -> BenchError {
        let Peer { command, server, .. } = self;
        BenchError::Invalid(format!(
            "cannot put the load on by '{command} load {server}': {why}; the command has to run this version of lull on the \
             peer without asking for anything, and the peer has to reach {server}"
        ))
    }

    fn spawn(&self, pace: Pace, run: &Run<'_>) -> Result<Child, BenchError> {
        let (load, depth, arrivals) = match pace {
            Pace::Open { qps, arrivals, depth } => (format!("{}", qps.round() as u64), depth, Some(arrivals)),
            Pace::Closed { depth } | Pace::Preload { depth } => ("MAX".to_owned(), depth, None),
        };
        let mut words: Vec<String> = vec!["load".into(), self.server.to_string(), "--load".into(), load];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--threads", self.threads.to_string());
        option("--connections", self.connections.to_string());
        option("--records", self.records.to_string());
        option("--depth", depth.to_string());
        option("--warm-up", run.warm_up.as_secs_f64().to_string());
        option("--seconds", run.window.as_secs_f64().to_string());
        option("--hdr", "-".to_owned());
        // Each repetition uses a seed of its own, and so has arrivals of its own, which are the same in every mode.
        option("--seed", (1 + u64::from(run.run)).to_string());
        if arrivals == Some(Arrivals::Facebook) {
            option("--arrivals", "facebook".to_owned());
        }
        words.extend(["--spin".to_owned(), "--announce".to_owned()]);
        if self.stored {
            words.push("--no-preload".to_owned());
        }
        let script = format!("exec {} \"$@\"", self.command);
        let spawned = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        spawned.map_err(|error| self.failed(&format!("cannot run sh ({error})")))
    }
}

/// How the command ended.
enum Ended {
    Done,
    Failed(std::process::ExitStatus),
    Late(Duration),
    Stopped,
}

/// Waits for the command, and ends it if the run is stopped or the command takes far too long.
fn wait(child: &mut Child, run: &Run<'_>) -> io::Result<Ended> {
    let limit = run.warm_up + run.window + OVERHEAD_MAX;
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            let stopped = run.stop.load(Ordering::Relaxed);
            return Ok(match (status.success(), stopped) {
                (_, true) => Ended::Stopped,
                (true, false) => Ended::Done,
                (false, false) => Ended::Failed(status),
            });
        }
        let stopped = run.stop.load(Ordering::Relaxed);
        if stopped || Instant::now() > until {
            // The command may end by itself at this moment.
            let _ = child.kill();
            child.wait()?;
            return Ok(if stopped { Ended::Stopped } else { Ended::Late(limit) });
        }
        std::thread::sleep(STOP_INTERVAL);
    }
}

/// Reads what the command says, and calls `begun` when the window is announced, or at the end if it never is. Returns
/// the last other line that the command said.
fn said_until(stderr: Option<ChildStderr>, begun: impl FnOnce()) -> String {
    let mut begun = Some(begun);
    let mut last = String::new();
    for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok) {
        if line.trim_end().ends_with(ANNOUNCEMENT) {
            if let Some(begun) = begun.take() {
                begun();
            }
        } else if !line.trim().is_empty() {
            last = line;
        }
    }
    if let Some(begun) = begun {
        begun();
    }
    last
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" and said: {said}") }
}

/// Waits until the window of a peer's run begins, or the run is stopped.
pub(super) fn wait_for(begun: &AtomicBool, stop: &AtomicBool) {
    // The window lasts at least a tenth of a second, so reading a millisecond late is good enough.
    while !begun.swap(false, Ordering::AcqRel) && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
