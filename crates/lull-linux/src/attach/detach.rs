//! Gives epoll contexts back what they had before somebody attached to them.
//!
//! Only parameters that were set and are still there are given back. A context that has other parameters by now was
//! changed by somebody else, or is another one under the same number, and is left alone.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use super::params::{Params, params_of, set_params};
use super::record::{Entry, Holder, Kept, Known, Opened, Record, Role};
use super::steer;
use super::tree::{Member, refuse_thread};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::proc_stat::start_of;
use crate::roots::Roots;

/// How long to wait for a `lull attach` that was told to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// What was given back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Contexts that have their former parameters again.
    pub contexts: Vec<Given>,
    /// Contexts that were closed or changed by somebody else since.
    pub left: Vec<Context>,
    /// Addresses whose listeners are again chosen by the hash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsteered: Vec<SocketAddr>,
}

impl Restored {
    /// Whether nothing was given back or left alone.
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty() && self.left.is_empty() && self.unsteered.is_empty()
    }
}

impl fmt::Display for Restored {
    /// A line for each context and address, joined by line ends.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self
            .contexts
            .iter()
            .map(|Given { context, now }| format!("process {} descriptor {}: {now} again", context.pid, context.fd));
        let left = self.left.iter().map(|Context { pid, fd }| {
            format!("process {pid} descriptor {fd}: closed or changed by somebody else since, left alone")
        });
        let unsteered = self.unsteered.iter().map(|address| format!("{address}: listeners chosen by the hash again"));
        f.write_str(&given.chain(left).chain(unsteered).collect::<Vec<_>>().join("\n"))
    }
}

/// An epoll context that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Context {
    /// The process.
    pub pid: i32,
    /// Its descriptor.
    pub fd: i32,
}

/// A context that was given back what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Given {
    /// The context.
    #[serde(flatten)]
    pub context: Context,
    /// The parameters that it has again.
    pub now: Params,
}

/// The result of [`detach`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "detached", rename_all = "kebab-case")]
pub enum Detached {
    /// Nothing was set in the program.
    Nothing,
    /// Parameters were set in the program, which has ended by itself since; its contexts went with it.
    Over,
    /// The record of what the program had could not be read and was removed. What was set stays.
    Forgotten {
        /// Why it could not be read.
        reason: String,
    },
    /// Parameters were given back.
    Restored(Restored),
    /// A `lull attach` followed the program. It was told to end, and has given the parameters back.
    Ended {
        /// Its process.
        follower: i32,
    },
}

/// Gives the epoll contexts of a program their former parameters back. It does no harm if nothing was set.
///
/// # Errors
/// [`Error::NoProcess`] for a process that neither exists nor was attached to; [`Error::Input`] for a thread that is not its
/// process's first; [`Error::Locked`] while `lull run` has the program; no right to signal the `lull attach` that follows
/// it, or to look into the program: what could not be given back stays in the record then.
pub fn detach(pid: i32, options: &Options) -> Result<Detached> {
    let roots = &options.roots;
    // A record that cannot be read is reported when the lock is taken; a `lull attach` that follows the program knows
    // what is in it.
    let was_set = Record::peek(&options.state_dir, pid).map_or(true, |known| known.is_some());
    let start = start_of(pid, roots);
    let since = Instant::now();
    let mut told: Option<Holder> = None;
    loop {
        match Record::open(&options.state_dir, pid, start, Role::Attach, roots)? {
            Opened::Mine(record) => {
                let known = record.known();
                let (restored, kept) = restore(&known, roots, false);
                record.close(kept)?;
                return match told {
                    Some(holder) if known.is_empty() => Ok(Detached::Ended { follower: holder.pid }),
                    _ if start.is_none() && was_set && restored.is_empty() => Ok(Detached::Over),
                    _ if !known.is_empty() => Ok(Detached::Restored(restored)),
                    _ if start.is_none() => Err(Error::NoProcess { pid }),
                    _ => refuse_thread(pid, roots).map(|()| Detached::Nothing),
                };
            }
            Opened::HeldBy(Some(holder)) if holder.role == Role::Attach => {
                if told != Some(holder) {
                    end(holder, pid, roots)?;
                    told = Some(holder);
                }
            }
            Opened::HeldBy(Some(holder)) => {
                let by = format!("process {}, lull run, which gives back when the program ends", holder.pid);
                return Err(Error::Locked { device: format!("process {pid}"), by });
            }
            Opened::HeldBy(None) => {}
        }
        if since.elapsed() > END_WITHIN {
            let by = told.map_or_else(|| "which one is unknown".to_owned(), |holder| format!("process {}", holder.pid));
            return Err(Error::Locked { device: format!("process {pid}"), by });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As [`detach`], for the process that started at this time. A process that has got its number since is left as it is,
/// with what was set in it.
///
/// # Errors
/// Those of [`detach`].
pub(crate) fn detach_started(pid: i32, start: u64, options: &Options) -> Result<Detached> {
    let recorded = Record::start(&options.state_dir, pid)?;
    // Without a record, at most a lock has to be removed.
    if recorded.or_else(|| start_of(pid, &options.roots)).is_some_and(|it| it != start) {
        return Ok(Detached::Nothing);
    }
    detach(pid, options)
}

/// Returns what [`detach`] would give back, and changes nothing.
///
/// # Errors
/// [`Error::NoProcess`] for a process that neither exists nor was attached to; [`Error::Input`] for a thread that is not its
/// process's first; no right to look into the program.
pub fn detach_diff(pid: i32, options: &Options) -> Result<Detached> {
    let is_over = start_of(pid, &options.roots).is_none();
    let Some(known) = Record::peek(&options.state_dir, pid)? else {
        let nothing = || refuse_thread(pid, &options.roots).map(|()| Detached::Nothing);
        return if is_over { Err(Error::NoProcess { pid }) } else { nothing() };
    };
    let (restored, kept) = restore(&known, &options.roots, true);
    if let Some(error) = kept.why {
        return Err(error);
    }
    Ok(if is_over && restored.is_empty() { Detached::Over } else { Detached::Restored(restored) })
}

/// As [`detach`], but a record that cannot be read is removed.
///
/// # Errors
/// Those of [`detach`]; an error if the record cannot be removed.
pub fn detach_and_forget(pid: i32, options: &Options) -> Result<Detached> {
    match detach(pid, options) {
        Err(Error::StaleState { reason, .. }) => {
            Record::forget_file(&options.state_dir, pid)?;
            Ok(Detached::Forgotten { reason })
        }
        detached => detached,
    }
}

/// Tells a `lull attach` to end.
fn end(holder: Holder, pid: i32, roots: &Roots) -> Result<()> {
    let Some(process) = Pid::from_raw(holder.pid) else { return Ok(()) };
    // A process that has ended by itself has released the lock, as the next look shows.
    let Ok(pidfd) = pidfd_open(process, PidfdFlags::empty()) else { return Ok(()) };
    // The number came from the lock file, which only its holder writes. A stranger that has got the number since is
    // told apart by its name, which is not lull's.
    if !roots.read_proc(&format!("{}/comm", holder.pid)).is_ok_and(|name| name.starts_with("lull")) {
        return Ok(());
    }
    match pidfd_send_signal(&pidfd, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::Os {
            what: format!("end the lull attach (process {}) that follows process {pid}", holder.pid),
            remedy: "run it as the user who started that, or as root".to_owned(),
            source: error.into(),
            said: None,
        }),
    }
}

/// Gives back what still is as it was set, and returns what it could not give back. In a dry run it only returns what
/// would be given back.
pub(super) fn restore(known: &Known, roots: &Roots, dry: bool) -> (Restored, Kept) {
    let (mut restored, mut kept) = (Restored::default(), Kept::default());
    for entry in &known.steered {
        match steer::take_away(entry, roots, dry) {
            Ok(true) => restored.unsteered.push(entry.address()),
            // The listeners are closed, or somebody else has taken the program away.
            Ok(false) => {}
            Err(error) => {
                kept.known.steered.push(entry.clone());
                kept.why.get_or_insert(error);
            }
        }
    }
    for entry in &known.contexts {
        let context = Context { pid: entry.pid, fd: entry.fd };
        match give_back(entry, roots, dry) {
            Ok(Outcome::Given) => restored.contexts.push(Given { context, now: entry.former }),
            Ok(Outcome::Left) => restored.left.push(context),
            Ok(Outcome::Nothing) => {}
            Err(error) => {
                kept.known.contexts.push(entry.clone());
                kept.why.get_or_insert(error);
            }
        }
    }
    (restored, kept)
}

/// What becomes of one context.
enum Outcome {
    /// It has its former parameters.
    Given,
    /// It was closed or changed by somebody else.
    Left,
    /// Its process has ended, or the parameters were given back already.
    Nothing,
}

fn give_back(entry: &Entry, roots: &Roots, dry: bool) -> Result<Outcome> {
    let Some(member) = Member::started(entry.pid, entry.start, roots)? else { return Ok(Outcome::Nothing) };
    Ok(match params_of(&member, entry.fd)? {
        Some(now) if entry.is_ours(now) => {
            let is_there = dry || set_params(&member, entry.fd, &entry.former.into())?;
            if is_there { Outcome::Given } else { Outcome::Left }
        }
        // This is a second number of a context that has just been given back.
        Some(now) if now == entry.former => Outcome::Nothing,
        _ => Outcome::Left,
    })
}
