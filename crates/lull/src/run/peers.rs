//! What the peers of a program are told that ended without closing its connections: they are reset, as the kernel resets those of
//! its own sockets.
//!
//! Only addresses and ports are known, not where the streams stood. So each peer is sent a SYN from the connection's own port. A
//! peer that still has the connection answers with a challenge ACK (RFC 5961 section 4.2), which says where it stands; that gets a
//! reset with just that number (RFC 9293 section 3.10.7.3), and the next SYN is refused. A peer that is gone answers nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_net::{ConnectOptions, Host, HostConfig, Network, NetworkConfig, Ready, TcpStream};
use lull_nic::Device;

use crate::failure::Failure;

/// How many are told at a time.
const BATCH: usize = 1024;
/// How long one batch has: a SYN that was answered by a challenge is sent again after a second.
const BATCH_TIME: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Resets the connections whose addresses (own, peer's) are given. Returns how many peers said that they are rid of theirs.
pub fn reset(
    device: Arc<dyn Device>,
    config: NetworkConfig,
    connections: &[(SocketAddr, SocketAddr)],
) -> Result<usize, Failure> {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() })?;
    let own: Vec<IpAddr> = config.addresses.iter().map(|(ip, _)| *ip).collect();
    let network = Network::new(&host, device, config)?;
    let mut told = 0;
    for batch in connections.chunks(BATCH) {
        // One between two addresses of the program's own has no peer left.
        let outside = batch.iter().filter(|(_, peer)| !own.contains(&peer.ip()));
        let start = |(own, peer): &(SocketAddr, SocketAddr)| {
            TcpStream::start_connect(&network, Some(*own), *peer, ConnectOptions::default()).ok()
        };
        let mut asked: Vec<TcpStream> = outside.filter_map(start).collect();
        let until = Instant::now() + BATCH_TIME;
        loop {
            let before = asked.len();
            asked.retain(|stream| !stream.ready().intersects(Ready::ERR | Ready::HUP));
            told += before - asked.len();
            if asked.is_empty() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // A connection that came about after all, to a peer that listens on that port, ends with its socket.
        asked.iter().for_each(|stream| drop(stream.set_reset_on_close(true)));
    }
    Ok(told)
}
