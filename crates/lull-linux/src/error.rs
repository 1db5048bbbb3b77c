//! Errors of the kernel plane: each names the operation, the object and the remedy, in one line.

use std::fmt;
use std::io;
use std::path::PathBuf;

use lull_core::{ModeError, SettingError};

/// What went wrong, on what object, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device has this name in this network namespace.
    #[error("{}", no_device(device, there_are))]
    UnknownDevice {
        /// The name.
        device: String,
        /// The devices that exist.
        there_are: Vec<String>,
    },
    /// The device has no such receive queue.
    #[error("{device} has no queue {queue} with a NAPI: there are {}", list(there_are))]
    UnknownQueue {
        /// The device.
        device: String,
        /// The queue.
        queue: u32,
        /// The queues that have a NAPI.
        there_are: Vec<u32>,
    },
    /// The device shows no NAPI to set anything on.
    #[error("{device} shows no NAPI to set anything on: {remedy}")]
    NoNapi {
        /// The device.
        device: String,
        /// What makes it show some.
        remedy: String,
    },
    /// The kernel, the driver or the device cannot do what was asked.
    #[error("cannot {what}: {reason}; {remedy}")]
    Unsupported {
        /// What.
        what: String,
        /// The reason.
        reason: String,
        /// What to do instead.
        remedy: String,
    },
    /// A value above its limit.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A name that is no mode.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// An argument that makes no sense here.
    #[error("{what}: {remedy}")]
    Input {
        /// What the request was.
        what: String,
        /// Why that is not possible, and what is.
        remedy: String,
    },
    /// No such process, or it ended meanwhile.
    #[error("no process {pid}: it does not exist, or has ended; `ps` lists those that run")]
    NoProcess {
        /// The process.
        pid: i32,
    },
    /// The device is in another network namespace than it was.
    #[error("{device} was moved to another network namespace: `lull undo` there gives back what it had")]
    Moved {
        /// The device.
        device: String,
    },
    /// Another lull has the device.
    #[error("another lull works on {device} ({by}): wait for it, or end it with SIGTERM")]
    Locked {
        /// The device.
        device: String,
        /// Who has it, as far as the lock file says.
        by: String,
    },
    /// A state file that belongs to another boot, device or version.
    #[error("the state file {} cannot be used ({reason}); {remedy}", path.display())]
    StaleState {
        /// The file.
        path: PathBuf,
        /// How it differs.
        reason: String,
        /// How to have it forgotten.
        remedy: String,
    },
    /// The kernel refused an operation.
    #[error("cannot {what}: {source}{}; {remedy}", in_parentheses(said))]
    Os {
        /// The operation and its object.
        what: String,
        /// What to do.
        remedy: String,
        /// The refusal.
        source: io::Error,
        /// The kernel's own words, if it had any.
        said: Option<String>,
    },
    /// An operation failed half-way, and what was done before could not be taken back.
    #[error("{cause}; and what was changed before could not be restored: {restoring}; `lull undo` tries again")]
    NotRestored {
        /// The failure.
        cause: Box<Error>,
        /// The failure of the restoring.
        restoring: Box<Error>,
    },
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error of an operation that the kernel refused. EPERM and EACCES get the remedy for missing rights instead of
    /// `remedy`.
    pub fn os(what: impl Into<String>, remedy: impl Into<String>, source: io::Error) -> Error {
        let remedy = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "run it as root (it takes CAP_NET_ADMIN in the initial user namespace)".into()
            }
            _ => remedy.into(),
        };
        Error::Os { what: what.into(), remedy, source, said: None }
    }

    /// The error of a file that could not be read or written. CAP_NET_ADMIN is never what is missing there.
    pub fn file(what: impl Into<String>, remedy: impl Into<String>, source: io::Error) -> Error {
        let mut remedy = remedy.into();
        if source.kind() == io::ErrorKind::PermissionDenied {
            remedy = format!("run it as root, or {remedy}");
        }
        Error::Os { what: what.into(), remedy, source, said: None }
    }

    /// The same error, with a text on the state in which it has left the device or program.
    pub(crate) fn left(self, left: &str) -> Error {
        match self {
            Error::Os { what, remedy, source, said } => {
                Error::Os { what, remedy: format!("{remedy}; {left}"), source, said }
            }
            Error::Unsupported { what, reason, remedy } => {
                Error::Unsupported { what, reason, remedy: format!("{remedy}; {left}") }
            }
            other => other,
        }
    }

    /// The errno, if the kernel returned one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Os { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// The message for an unknown device. A device that was known by its index may have lost its name to another one.
fn no_device(device: &String, there_are: &[String]) -> String {
    if there_are.contains(device) {
        return format!("the device '{device}' is gone, and another one has its name now");
    }
    format!("no device '{device}' in this network namespace: there are {}", list(there_are))
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// The kernel's own words, in parentheses after its refusal.
fn in_parentheses(said: &Option<String>) -> String {
    said.as_ref().map_or(String::new(), |said| format!(" ({said})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_left_its_name_to_another_is_not_said_to_be_among_those_that_there_are() {
        let says = |there_are: [&str; 2]| {
            let there_are = there_are.map(str::to_owned).to_vec();
            Error::UnknownDevice { device: "va".to_owned(), there_are }.to_string()
        };
        assert_eq!(says(["lo", "va"]), "the device 'va' is gone, and another one has its name now");
        assert_eq!(says(["lo", "vb"]), "no device 'va' in this network namespace: there are lo, vb");
    }
}
