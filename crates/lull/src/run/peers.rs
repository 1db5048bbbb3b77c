//! How the launcher tells the peers of connections that were left open, if no process of the program can: by a network
//! of its own on the program's NIC ([`left_open`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lull_net::{Elsewhere, HandedOn, Host, HostConfig, Network, NetworkConfig};
use lull_nic::passing::QUEUES_MAX;
use lull_nic::{Device, Frame};
use lull_posix::left_open;
use lull_units::counted;

use crate::failure::Failure;

/// What the launcher prints when this many connections were left open, and this many of their peers were told.
pub fn left(connections: usize, told: usize) -> String {
    let were = if told == 1 { "was" } else { "were" };
    format!(
        "the program left {} open; {} {were} told by a reset",
        counted(connections, "connection"),
        counted(told, "peer")
    )
}

/// The longest time for which the launcher tells peers. Meanwhile the next process that wants a queue waits for it, or
/// the caller of `lull run` does.
const ALL_TIME: Duration = Duration::from_secs(9);

/// Resets the connections whose addresses (own, peer's) are given. Returns how many peers have confirmed it.
pub fn reset(
    device: Arc<dyn Device>,
    config: NetworkConfig,
    connections: &[(SocketAddr, SocketAddr)],
) -> Result<usize, Failure> {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() })?;
    let own: Vec<IpAddr> = config.addresses.iter().map(|(ip, _)| *ip).collect();
    let network = Network::new(&host, device, config)?;
    // A connection between two of the program's own addresses has no peer that is left.
    let outside: Vec<_> = connections.iter().filter(|(_, peer)| !own.contains(&peer.ip())).copied().collect();
    Ok(left_open::reset(&network, &outside, ALL_TIME))
}

/// Stands for the program while none of its processes has a queue and the launcher resets what the last one left. A
/// client that connects meanwhile repeats its SYN (RFC 6298 section 2), and reaches the next process.
#[derive(Debug)]
pub struct Between(Vec<u32>);

impl Between {
    /// Makes one for a NIC with this many queues, or none if frames cannot tell queues apart; there a client that
    /// connects at this moment is refused.
    pub fn on(queues: usize) -> Option<Arc<dyn Elsewhere>> {
        (queues <= QUEUES_MAX).then(|| Arc::new(Between((0..queues as u32).collect())) as Arc<dyn Elsewhere>)
    }
}

impl Elsewhere for Between {
    fn secret(&self) -> u64 {
        0
    }

    fn queues(&self) -> &[u32] {
        &self.0
    }

    fn takes_stranger(&self, syn: Option<SocketAddr>, _frame: &Frame) -> bool {
        syn.is_some()
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        false
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}
