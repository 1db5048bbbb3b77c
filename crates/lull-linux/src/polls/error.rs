//! Why polls cannot be recorded.

use std::io;

/// Longest name of an interface, in bytes (`IFNAMSIZ` without its end).
pub(super) const DEVICE_NAME_BYTES_MAX: usize = 15;

/// Why polls cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollsError {
    /// It is not the name of an interface.
    #[error(
        "cannot trace the device '{0}': a device's name has 1 to {DEVICE_NAME_BYTES_MAX} bytes, none of them a quote or \
         blank"
    )]
    Name(String),
    /// The thread numbers of the trace stand for other threads here, or for none.
    #[error("cannot trace polls: {ELSEWHERE}; {INITIAL}")]
    PidNamespace,
    /// tracefs is not mounted and cannot be.
    #[error(
        "cannot trace polls: tracefs is not mounted and this process may not mount it ({0}); run as root (CAP_SYS_ADMIN)"
    )]
    NoTracefs(#[source] io::Error),
    /// The kernel refused.
    #[error("cannot trace polls: {what}: {source}; run as root on a kernel with CONFIG_EVENT_TRACING")]
    Os {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no memory for the ring buffers.
    #[error("cannot trace polls: {what}: {source}; {FEWER}")]
    Memory {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel's description of an event or a page is not understood.
    #[error("cannot trace polls: {0}; this kernel's trace format is not known")]
    Format(String),
}

const ELSEWHERE: &str =
    "the trace names threads by their numbers in the initial PID namespace, and this process is in another one";
const FEWER: &str = "free memory, or trace fewer devices at once: every CPU has a ring buffer for each";
const INITIAL: &str = "run lull in the initial one (a container: with the host's PID namespace)";

pub(super) fn os(what: impl Into<String>) -> impl FnOnce(io::Error) -> PollsError {
    move |source| match source.raw_os_error() {
        Some(libc::ENOMEM) => PollsError::Memory { what: what.into(), source },
        _ => PollsError::Os { what: what.into(), source },
    }
}

impl From<PollsError> for crate::Error {
    fn from(error: PollsError) -> crate::Error {
        let remedy = "run it as root (CAP_SYS_ADMIN) on a kernel with CONFIG_EVENT_TRACING".to_owned();
        match error {
            PollsError::Os { what, source } => {
                crate::Error::Os { what: format!("trace polls ({what})"), remedy, source, said: None }
            }
            PollsError::Memory { what, source } => {
                let remedy = FEWER.to_owned();
                crate::Error::Os { what: format!("trace polls ({what})"), remedy, source, said: None }
            }
            PollsError::NoTracefs(source) => {
                crate::Error::Os { what: "mount tracefs to trace polls".to_owned(), remedy, source, said: None }
            }
            PollsError::Name(name) => crate::Error::Input {
                what: format!("cannot trace the polls of '{name}'"),
                remedy: "name a device, as `lull show` lists them".to_owned(),
            },
            PollsError::PidNamespace => crate::Error::Unsupported {
                what: "trace polls".to_owned(),
                reason: ELSEWHERE.to_owned(),
                remedy: INITIAL.to_owned(),
            },
            PollsError::Format(reason) => crate::Error::Unsupported {
                what: "trace polls".to_owned(),
                reason,
                remedy: "this kernel's trace format is not known".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_has_a_remedy_of_its_own() {
        let said =
            |errno| crate::Error::from(os("size the ring buffers")(io::Error::from_raw_os_error(errno))).to_string();
        assert!(said(libc::ENOMEM).contains("fewer devices") && said(libc::EPERM).contains("CAP_SYS_ADMIN"));
    }
}
