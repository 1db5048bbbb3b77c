//! What the launcher tells peers of connections that were left open, where no process of the program can: a network of its own on the
//! program's NIC ([`left_open`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lull_net::{Elsewhere, HandedOn, Host, HostConfig, Network, NetworkConfig};
use lull_nic::passing::QUEUES_MAX;
use lull_nic::{Device, Frame};
use lull_posix::left_open;
use lull_units::counted;

use crate::failure::Failure;

/// What the launcher says of so many connections that were left open, whose peers were told so often.
pub fn left(connections: usize, told: usize) -> String {
    let were = if told == 1 { "was" } else { "were" };
    format!(
        "the program left {} open; {} {were} told by a reset",
        counted(connections, "connection"),
        counted(told, "peer")
    )
}

/// How long the launcher tells peers, while the next process that would have a queue waits for it, or whoever has called `lull run`.
const ALL_TIME: Duration = Duration::from_secs(9);

/// Resets the connections whose addresses (own, peer's) are given. Returns how many peers said that they are rid of theirs.
pub fn reset(
    device: Arc<dyn Device>,
    config: NetworkConfig,
    connections: &[(SocketAddr, SocketAddr)],
) -> Result<usize, Failure> {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() })?;
    let own: Vec<IpAddr> = config.addresses.iter().map(|(ip, _)| *ip).collect();
    let network = Network::new(&host, device, config)?;
    // One between two addresses of the program's own has no peer left.
    let outside: Vec<_> = connections.iter().filter(|(_, peer)| !own.contains(&peer.ip())).copied().collect();
    Ok(left_open::reset(&network, &outside, ALL_TIME))
}

/// A program without a process that has a queue, for as long as the launcher resets what the last one left: who connects meanwhile asks
/// again (RFC 6298 section 2), and is the next process's.
#[derive(Debug)]
pub struct Between(Vec<u32>);

impl Between {
    /// On a NIC with so many queues; none where frames cannot tell them apart. There who connects is refused for that moment.
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
