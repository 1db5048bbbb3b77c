//! Why the host could not do as asked.

use std::io;

use lull_core::SettingError;

use crate::group::error::GroupError;

/// Why the host could not do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A setting outside its limits.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// More CPUs, instances or workers than there is room for.
    #[error("cannot have more than {max} {what}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        max: usize,
    },
    /// There is no such CPU.
    #[error("there is no CPU {cpu}: the host has {cpus}, numbered from 0")]
    NoCpu {
        /// Asked for.
        cpu: u16,
        /// How many there are.
        cpus: usize,
    },
    /// There is no such instance.
    #[error("there is no NAPI {id} on device {ifindex}")]
    NoNapi {
        /// The device's index.
        ifindex: u32,
        /// The instance's id.
        id: u32,
    },
    /// The instance is enabled already: `napi_enable` is not idempotent (`napi_semantics` §11).
    #[error("cannot enable NAPI instance {napi}: it is enabled already; disable it first")]
    Enabled {
        /// Its place in the host's table.
        napi: u32,
    },
    /// The instance is disabled: `napi_disable` is not idempotent either.
    #[error("cannot disable NAPI instance {napi}: it is not enabled; enable it first")]
    Disabled {
        /// Its place in the host's table.
        napi: u32,
    },
    /// A panic above the queue took it down.
    #[error("NAPI instance {napi} is down: its queue was taken down by {why}; remove it and add it anew")]
    Failed {
        /// Its place in the host's table.
        napi: u32,
        /// Where the panic was, and its message.
        why: String,
    },
    /// The instance cannot be removed while it is enabled.
    #[error("cannot remove NAPI instance {napi}: it is enabled; disable it first")]
    InUse {
        /// Its place in the host's table.
        napi: u32,
    },
    /// The instance was removed.
    #[error("there is no NAPI instance {napi} any more: it was removed; add its queue anew")]
    Removed {
        /// The place that it had in the host's table.
        napi: u32,
    },
    /// There is no such device: it was removed.
    #[error("there is no device {ifindex} any more: it was removed; add it anew")]
    NoDevice {
        /// The device's index.
        ifindex: u32,
    },
    /// A busy-polling CPU group cannot be as asked.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// So that `?` works where sockets are used, too. The kind is the cause's.
impl From<HostError> for io::Error {
    fn from(error: HostError) -> io::Error {
        match error {
            HostError::Setting(error) => error.into(),
            HostError::Os { ref source, .. } => io::Error::new(source.kind(), error),
            other => io::Error::other(other),
        }
    }
}
