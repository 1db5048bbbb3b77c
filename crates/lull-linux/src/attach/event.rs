//! What a look over a program has found or done.

use std::fmt;

use serde::Serialize;

use super::params::Params;
use super::sockets::OnContext;
use super::steer::Steered;

/// What a look has found or done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A context got its parameters.
    Set {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
        /// Its descriptor.
        fd: i32,
        /// The parameters that the context had.
        former: Params,
        /// The parameters that it has now.
        now: Params,
    },
    /// A context has the parameters already.
    Had {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
        /// Its descriptor.
        fd: i32,
        /// The parameters.
        now: Params,
    },
    /// A context keeps parameters that the program has set by itself.
    Kept {
        /// The process.
        pid: i32,
        /// Its descriptor.
        fd: i32,
        /// The parameters.
        now: Params,
    },
    /// The listeners of an address are steered.
    Steered(Steered),
    /// The sockets on a context that has parameters.
    Sockets(OnContext),
    /// Something that keeps the mode from working.
    Warning {
        /// The text says what is wrong, where, and what to do.
        text: String,
    },
    /// A child is followed from now on.
    Child {
        /// The child.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A process has ended.
    Ended {
        /// The process.
        pid: i32,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Set { pid, name, fd, former, now } => {
                write!(f, "{name} (process {pid}) descriptor {fd}: {now} (was: {former})")
            }
            Event::Had { pid, name, fd, now } => write!(f, "{name} (process {pid}) descriptor {fd}: {now} already"),
            Event::Kept { pid, fd, now } => {
                write!(f, "process {pid} descriptor {fd}: the program's own {now} stay")
            }
            Event::Steered(steered) => steered.fmt(f),
            Event::Sockets(sockets) => sockets.fmt(f),
            Event::Warning { text } => write!(f, "warning: {text}"),
            Event::Child { pid, name } => write!(f, "child {name} (process {pid}) is followed"),
            Event::Ended { pid } => write!(f, "process {pid} has ended"),
        }
    }
}
