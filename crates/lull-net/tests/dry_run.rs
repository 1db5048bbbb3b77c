//! Dry runs of a group's poller (§15) go through a network's receive path, and leave no trace.

mod pair;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use lull_host::{GroupOptions, Host, HostConfig};
use lull_net::{GroupCpus, Mode, Network, NetworkConfig, TcpListener, UdpSocket};
use lull_nic::mem::{self, MemConfig};
use pair::{CLIENT, SERVER};

const PORT: u16 = 9;
const WALKS: u64 = 200;

/// A network whose queue a group polls, dry runs included, and a network that sends to it.
fn networks() -> (Host, Network, Network) {
    let host = Host::new(HostConfig { cpus: vec![None; 3], ..HostConfig::default() }).unwrap();
    let (server, client) = mem::pair(MemConfig::default());
    let mut options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    options.config.dry_run = true;
    let config = NetworkConfig { group: Some(GroupCpus { cpus: vec![1], options }), ..pair::config(SERVER, vec![0]) };
    let mode: Mode = "group".parse().unwrap();
    let server = Network::new(&host, Arc::new(server), config.with_mode(&mode)).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![2])).unwrap();
    (host, server, client)
}

/// Waits until the poller has made this many further dry runs.
fn walk(host: &Host) {
    let walks = || host.groups()[0].pollers[0].info.stats.dry_runs;
    let (before, begun) = (walks(), Instant::now());
    while walks() < before + WALKS {
        assert!(begun.elapsed() < pair::LOST, "{} walks of {WALKS}", walks() - before);
        std::thread::yield_now();
    }
}

#[test]
fn walks_leave_sockets_and_counters_as_they_were_and_packets_find_their_way() {
    let (host, server, client) = networks();
    let address = SocketAddr::new(SERVER.parse().unwrap(), PORT);
    let listener = TcpListener::bind(&server, address).unwrap();
    let socket = UdpSocket::bind(&server, address).unwrap();
    let asks = UdpSocket::bind(&client, SocketAddr::new(CLIENT.parse().unwrap(), PORT)).unwrap();
    let mut buffer = [0; 8];
    for round in 0..3 {
        asks.send_to(&[round], address).unwrap();
        assert_eq!(socket.recv_from(&mut buffer).unwrap().0, 1);
        assert_eq!(buffer[0], round);
        // What the datagram has left to be done is done before the first dry run.
        walk(&host);
        let seen = || {
            let stacks = server.stack_counters();
            let irqs: Vec<u64> = server.napis().iter().map(|napi| host.napi_irqs(*napi)).collect();
            (stacks, server.sockets(), server.transmit_stats(), server.undelivered(), irqs, server.memory_bytes())
        };
        let before = seen();
        walk(&host);
        assert_eq!(seen(), before);
    }
    drop(listener);
}
