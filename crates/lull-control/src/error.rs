//! The errors between a command and a process, each with its remedy.

use std::io;
use std::path::PathBuf;

/// Why a process could not be reached, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process has no control socket.
    #[error(
        "process {pid} offers no control socket: it does not run lull's user plane, or it belongs to another user (root \
         reaches every user's)"
    )]
    NoSocket {
        /// The process.
        pid: u32,
    },
    /// The process is in another PID namespace.
    #[error(
        "a process of the program is in a PID namespace of its own and cannot be asked from here: make that namespace outside, \
         around lull (as `unshare --pid --fork lull run ...` does)"
    )]
    OutOfSight,
    /// Nothing listens behind the socket's file.
    #[error("process {pid} is gone: nothing listens at {}; a service started again makes a new socket", path.display())]
    Gone {
        /// The process.
        pid: u32,
        /// The file.
        path: PathBuf,
    },
    /// Another process than the one that was asked for listens behind the file.
    #[error(
        "the socket {} belongs to process {found}, not to process {pid}: remove the file if nobody needs it",
        path.display()
    )]
    Impostor {
        /// The process that was asked for.
        pid: u32,
        /// The process that listens.
        found: u32,
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {what} {}: {source}; {remedy}", path.display())]
    Os {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What would help.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended, or no more came, before the answer was complete.
    #[error("process {pid} did not answer: {source}; it may be stopped or ending, so try again")]
    Silent {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The answer is not one that this version knows.
    #[error(
        "process {pid} answered what this version of lull does not understand ({why}): use the version that it runs"
    )]
    Foreign {
        /// The process.
        pid: u32,
        /// What is wrong with the answer.
        why: String,
    },
    /// The process refused.
    #[error("process {pid} refused: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// Its reason, with the object and the remedy.
        why: String,
    },
}
