//! Why the host could not do as asked.

use std::{fmt, io};

use lull_core::SettingError;

/// Why the host could not do as asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostError {
    /// A setting outside its limits.
    Setting(SettingError),
    /// More CPUs, instances or workers than there is room for.
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        max: usize,
    },
    /// There is no such CPU.
    NoCpu {
        /// Asked for.
        cpu: u16,
        /// How many there are.
        cpus: usize,
    },
    /// There is no such instance.
    NoNapi {
        /// The device's index.
        ifindex: u32,
        /// The instance's id.
        id: u32,
    },
    /// The instance is enabled already: `napi_enable` is not idempotent (`napi_semantics` §11).
    Enabled {
        /// Its place in the host's table.
        napi: u32,
    },
    /// The instance is disabled: `napi_disable` is not idempotent either.
    Disabled {
        /// Its place in the host's table.
        napi: u32,
    },
    /// A panic above the queue took it down.
    Failed {
        /// Its place in the host's table.
        napi: u32,
        /// Where the panic was, and its message.
        why: String,
    },
    /// The operating system refused.
    Os {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Setting(error) => error.fmt(f),
            HostError::Full { what, max } => write!(f, "cannot have more than {max} {what}"),
            HostError::NoCpu { cpu, cpus } => write!(f, "there is no CPU {cpu}: the host has {cpus}, numbered from 0"),
            HostError::NoNapi { ifindex, id } => write!(f, "there is no NAPI {id} on device {ifindex}"),
            HostError::Enabled { napi } => {
                write!(f, "cannot enable NAPI instance {napi}: it is enabled already; disable it first")
            }
            HostError::Disabled { napi } => {
                write!(f, "cannot disable NAPI instance {napi}: it is not enabled; enable it first")
            }
            HostError::Failed { napi, why } => {
                write!(
                    f,
                    "cannot enable NAPI instance {napi}: its queue was taken down by {why}; remove it and add it anew"
                )
            }
            HostError::Os { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for HostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HostError::Os { source, .. } => Some(source),
            HostError::Setting(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SettingError> for HostError {
    fn from(error: SettingError) -> HostError {
        HostError::Setting(error)
    }
}
