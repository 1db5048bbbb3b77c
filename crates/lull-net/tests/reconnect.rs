//! A device that reconnects. Each network takes the place in the host's table that the network before it gave back.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_host::{Host, HostConfig, Worker};
use lull_net::{Epoll, Interest, Network, NetworkConfig, TcpListener, TcpStream};
use lull_nic::mem::{self, MemConfig};

/// The three queues of two networks have places, and there are no more.
const NAPIS_MAX: usize = 3;
const RECONNECTS: u32 = 10_000;
const SERVER: &str = "10.0.0.2";
const CLIENT: &str = "10.0.0.1";

fn config(ip: &str) -> NetworkConfig {
    NetworkConfig {
        addresses: vec![(ip.parse().unwrap(), 24)],
        cpus: vec![0, 1],
        connections_max: 16,
        ..NetworkConfig::default()
    }
}

/// Ends the other threads, even when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn networks(host: &Host) -> (Network, Network) {
    let config_of_device = MemConfig { queues: 2, peer_queues: Some(1), ring_slots: 64, ..MemConfig::default() };
    let (server, client) = mem::pair(config_of_device);
    let server = Network::new(host, Arc::new(server), config(SERVER)).unwrap();
    (server, Network::new(host, Arc::new(client), config(CLIENT)).unwrap())
}

/// The control thread of a network that is just being told of its device may be the last to hold the network.
#[track_caller]
fn gone(host: &Host) {
    let start = Instant::now();
    while !host.napis().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(120), "the networks are not removed: {:?}", host.napis());
        std::thread::yield_now();
    }
}

/// A worker waits in one context all the time. The context's sockets come and go with their networks.
#[test]
fn ten_thousand_reconnects_need_no_more_places_than_one() {
    let host = Host::new(HostConfig { cpus: vec![None; 2], napis_max: NAPIS_MAX, ..HostConfig::default() }).unwrap();
    let epoll = Epoll::new(&host);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let worker = Worker::new(&host, 0).unwrap();
            let mut events = Vec::new();
            while !over.load(Ordering::Acquire) {
                epoll.wait(&worker, &mut events, 8, Some(Duration::from_millis(1))).unwrap();
            }
        });
        let _ends = Ends(&over);
        let mut last_napis = Vec::new();
        for round in 0..RECONNECTS {
            let (server, client) = networks(&host);
            assert_ne!(server.napis(), last_napis, "no index is given out twice");
            last_napis = server.napis();
            if round % 100 == 99 {
                let address = SocketAddr::new(SERVER.parse().unwrap(), 80);
                let listener = TcpListener::bind(&server, address).unwrap();
                epoll.add(&listener, 1, Interest::READABLE).unwrap();
                let mut ours = TcpStream::connect(&client, address).unwrap();
                let (mut theirs, _) = listener.accept().unwrap();
                epoll.add(&theirs, 2, Interest::READABLE).unwrap();
                ours.write_all(b"there").unwrap();
                let mut got = [0; 5];
                theirs.read_exact(&mut got).unwrap();
                theirs.write_all(&got).unwrap();
                ours.read_exact(&mut got).unwrap();
                // The sockets outlive their networks, and find that out.
                drop((server, client));
                gone(&host);
                let error = ours.write(b"x").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NETDOWN.raw_os_error()), "{error}");
            } else {
                drop((server, client));
                gone(&host);
            }
        }
    });
}

/// A network that cannot be made leaves nothing behind. Here there are places for two of its three queues.
#[test]
fn a_network_that_was_refused_takes_no_places() {
    let host = Host::new(HostConfig { cpus: vec![None; 2], napis_max: 2, ..HostConfig::default() }).unwrap();
    for _ in 0..2 {
        let (device, _peer) = mem::pair(MemConfig { queues: 3, peer_queues: Some(1), ..MemConfig::default() });
        let refused = Network::new(&host, Arc::new(device), config(SERVER)).unwrap_err();
        assert!(refused.to_string().contains("HostConfig::napis_max"), "{refused}");
        assert!(host.napis().is_empty());
    }
    let (device, _peer) = mem::pair(MemConfig { queues: 2, peer_queues: Some(1), ..MemConfig::default() });
    Network::new(&host, Arc::new(device), config(SERVER)).unwrap();
}
