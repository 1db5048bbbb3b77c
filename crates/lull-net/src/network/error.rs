//! Why a network could not be made or changed.

use std::io;
use std::net::IpAddr;

use lull_core::SettingError;
use lull_host::HostError;
use lull_nic::DeviceError;

use crate::shard::OutOfLimits;

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
    /// An address that no stack can have.
    #[error("cannot have the address {address}/{prefix}: {why}")]
    Address {
        /// The address.
        address: IpAddr,
        /// The length of its prefix.
        prefix: u8,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// A gateway is in none of the own networks, so that nobody there would answer for it.
    #[error(
        "cannot send by the gateway {gateway}: it is on no network of the own addresses{}; name a router that is on one, or \
         correct the address or its prefix",
        listed(addresses)
    )]
    Gateway {
        /// The gateway.
        gateway: IpAddr,
        /// The own addresses with the lengths of their prefixes.
        addresses: Vec<(IpAddr, u8)>,
    },
    /// Another setting of the stack is out of its limits.
    #[error("cannot make a stack on {device}: {error}")]
    Stack {
        /// The device.
        device: String,
        /// Which one, and its limits.
        #[source]
        error: OutOfLimits,
    },
    /// The mode has a busy-polling CPU group, and the network has no CPUs for one.
    #[error("cannot poll {device} by a group: it has no CPUs for one; name them (NetworkConfig::group, --group-cpus)")]
    NoGroupCpus {
        /// The device.
        device: String,
    },
    /// The stacks with the same addresses on other queues ([`Elsewhere`](crate::Elsewhere)) number this network's
    /// queues in another way.
    #[error(
        "cannot share the addresses of {device}: Elsewhere::queues names {named:?}; name each of its {queues} queues once, by a \
         number below {}",
        lull_nic::passing::QUEUES_MAX
    )]
    QueueNumbers {
        /// The device.
        device: String,
        /// The number of its queues.
        queues: usize,
        /// The numbers that they were given.
        named: Vec<u32>,
    },
    /// The system gave no random seed.
    #[error("cannot seed sequence numbers from getrandom: {0}")]
    Seed(#[source] io::Error),
}

/// Addresses in brackets, after a space; the text is empty if there are none.
fn listed(addresses: &[(IpAddr, u8)]) -> String {
    let shown: Vec<String> = addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) }
}

impl From<SettingError> for NetworkError {
    fn from(error: SettingError) -> NetworkError {
        NetworkError::Host(HostError::Setting(error))
    }
}

/// This makes `?` work in functions that also use sockets. The error's kind is that of its cause.
impl From<NetworkError> for io::Error {
    fn from(error: NetworkError) -> io::Error {
        let kind = match error {
            NetworkError::Host(error) => return error.into(),
            NetworkError::Device(error) => return error.into(),
            NetworkError::Seed(ref source) => source.kind(),
            NetworkError::Address { .. }
            | NetworkError::Gateway { .. }
            | NetworkError::Stack { .. }
            | NetworkError::NoGroupCpus { .. }
            | NetworkError::QueueNumbers { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
