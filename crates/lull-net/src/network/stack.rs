//! The configuration of a network's stacks.

use std::net::SocketAddr;
use std::sync::Arc;

use lull_host::Host;
use lull_nic::Device;

use super::config::NetworkConfig;
use super::error::NetworkError;
use crate::epoch::epoch_ns;
use crate::shard::{Place, StackConfig, Steering};

/// The configuration of the stack of the queue at `place`.
pub(super) fn stack_config(
    host: &Host,
    device: &Arc<dyn Device>,
    config: &NetworkConfig,
    place: Place,
) -> Result<StackConfig, NetworkError> {
    let info = device.info();
    Ok(StackConfig {
        mtu_bytes: info.mtu_bytes,
        addresses: config.addresses.clone(),
        allowed_sources: config.allowed_sources.clone(),
        gateway4: config.gateway4,
        gateway6: config.gateway6,
        rx_buffer_bytes: config.rx_buffer_bytes,
        tx_buffer_bytes: config.tx_buffer_bytes,
        growth: config.growth,
        connections_max: config.connections_max,
        tx_checksum_offload: info.offloads.tx_checksum,
        tx_segmentation_offload: info.offloads.tx_checksum && info.offloads.tso,
        seed: random_seed()?,
        elsewhere: config.elsewhere.clone(),
        epoch_ns: epoch_ns(|| host.now_ns()),
        ephemeral_ports: config.ephemeral_ports.clone(),
        timestamps: config.timestamps,
        coalesce_ns: config.coalesce_ns,
        share_doorbells: info.dear_doorbell,
        syncookies: config.syncookies,
        timeouts: config.timeouts,
        steering: steering(device, place.queue as usize),
        place,
        ..StackConfig::new(info.mac)
    })
}

fn random_seed() -> Result<u64, NetworkError> {
    let mut seed = [0u8; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| NetworkError::Seed(errno.into()))?;
    Ok(u64::from_ne_bytes(seed))
}

/// The local ports with which a flow comes back to `queue`. If the device cannot tell, a segment may come by any queue
/// and is passed on. Then each queue has a share of the ports, so that no two shards give the same port to connections
/// of theirs.
fn steering(device: &Arc<dyn Device>, queue: usize) -> Option<Steering> {
    let queues = device.info().queues;
    if queues == 1 {
        return None;
    }
    let device = device.clone();
    Some(Arc::new(move |local: SocketAddr, remote: SocketAddr| {
        device.rss_queue(remote, local).unwrap_or(usize::from(local.port()) % queues) == queue
    }))
}
