//! Why a network could not be made or changed.

use std::io;

use lull_core::SettingError;
use lull_host::HostError;
use lull_nic::DeviceError;

use crate::shard::NetError;

/// Why a network could not be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The host refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A setting of the stack is out of its limits.
    #[error(
        "{device}: {error}: check addresses, prefixes, gateways (each on an own network), buffer sizes and the MTU"
    )]
    Stack {
        /// The device.
        device: String,
        /// What is wrong.
        #[source]
        error: NetError,
    },
    /// A mode of a busy-polling CPU group, for a network that has no CPUs for one.
    #[error("cannot poll {device} by a group: it has no CPUs for one; name them (NetworkConfig::group, --group-cpus)")]
    NoGroupCpus {
        /// The device.
        device: String,
    },
    /// What has the same addresses on other queues ([`Elsewhere`](crate::Elsewhere)) numbers this network's queues in another way.
    #[error(
        "cannot share the addresses of {device}: Elsewhere::queues names {named:?}; name each of its {queues} queues once, by a \
         number below {}",
        lull_nic::passing::QUEUES_MAX
    )]
    QueueNumbers {
        /// The device.
        device: String,
        /// Its queues.
        queues: usize,
        /// The numbers that they were given.
        named: Vec<u32>,
    },
    /// The system gave no random seed.
    #[error("cannot seed sequence numbers from getrandom: {0}")]
    Seed(#[source] io::Error),
}

impl From<SettingError> for NetworkError {
    fn from(error: SettingError) -> NetworkError {
        NetworkError::Host(HostError::Setting(error))
    }
}

/// So that `?` works where sockets are used, too. The kind is the cause's.
impl From<NetworkError> for io::Error {
    fn from(error: NetworkError) -> io::Error {
        let kind = match error {
            NetworkError::Host(error) => return error.into(),
            NetworkError::Device(error) => return error.into(),
            NetworkError::Seed(ref source) => source.kind(),
            NetworkError::Stack { .. } | NetworkError::NoGroupCpus { .. } | NetworkError::QueueNumbers { .. } => {
                io::ErrorKind::InvalidInput
            }
        };
        io::Error::new(kind, error)
    }
}
