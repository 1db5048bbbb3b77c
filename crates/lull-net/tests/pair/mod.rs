//! Two networks of lull's at the two ends of an in-memory NIC.
#![allow(dead_code)] // Each test file uses a part of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_core::{EpollOptions, NapiSettings};
use lull_host::{Host, HostConfig, Worker};
use lull_net::{Epoll, Event, Interest, Network, NetworkConfig, TcpListener, TcpStream};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig};

pub const SERVER: &str = "10.0.0.2";
pub const CLIENT: &str = "10.0.0.1";
/// A wait that takes this long has lost something.
pub const LOST: Duration = Duration::from_secs(120);

pub struct Pair {
    pub server: Network,
    pub client: Network,
    pub host: Host,
}

pub fn config(ip: &str, cpus: Vec<u16>) -> NetworkConfig {
    let v6 = if ip == SERVER { "fd00::2" } else { "fd00::1" };
    NetworkConfig {
        addresses: vec![(ip.parse().unwrap(), 24), (v6.parse().unwrap(), 64)],
        cpus,
        connections_max: 256,
        ..NetworkConfig::default()
    }
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(1, |device| device, NapiSettings::default())
    }

    /// Makes `queues` queues at the server, each on a CPU of its own. The server's device may be decorated.
    pub fn with(queues: usize, decorate: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>, napi: NapiSettings) -> Pair {
        Pair::with_options(queues, decorate, napi, EpollOptions::strict_linux())
    }

    /// What is written in a batch of events waits for more of it, but no longer than this.
    pub fn coalescing(coalesce_ns: u64) -> Pair {
        Pair::coalescing_over(|device| device, coalesce_ns)
    }

    /// As [`Pair::coalescing`], but the server's device may be decorated.
    pub fn coalescing_over(decorate: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>, coalesce_ns: u64) -> Pair {
        let (server, client) = mem::pair(MemConfig::default());
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
        let server_config = NetworkConfig { coalesce_ns, ..config(SERVER, vec![0]) };
        Pair {
            server: Network::new(&host, decorate(Arc::new(server)), server_config).unwrap(),
            client: Network::new(&host, Arc::new(client), config(CLIENT, vec![1])).unwrap(),
            host,
        }
    }

    /// As [`Pair::with`], and `epoll` says how contexts differ from Linux.
    pub fn with_options(
        queues: usize,
        decorate: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
        napi: NapiSettings,
        epoll: EpollOptions,
    ) -> Pair {
        let (server, client) = mem::pair(MemConfig { queues, peer_queues: Some(1), ..MemConfig::default() });
        let host = Host::new(HostConfig { cpus: vec![None; queues + 1], epoll, ..HostConfig::default() }).unwrap();
        let cpus = (0..queues as u16).collect();
        let server_config = NetworkConfig { napi, ..config(SERVER, cpus) };
        Pair {
            server: Network::new(&host, decorate(Arc::new(server)), server_config).unwrap(),
            client: Network::new(&host, Arc::new(client), config(CLIENT, vec![queues as u16])).unwrap(),
            host,
        }
    }

    pub fn listener(&self, port: u16) -> TcpListener {
        TcpListener::bind(&self.server, SocketAddr::new(SERVER.parse().unwrap(), port)).unwrap()
    }

    pub fn connect(&self, port: u16) -> TcpStream {
        TcpStream::connect(&self.client, SocketAddr::new(SERVER.parse().unwrap(), port)).unwrap()
    }

    /// Makes a connection. Returns the server's end and the client's end.
    pub fn connected(&self, port: u16) -> (TcpStream, TcpStream) {
        let listener = self.listener(port);
        let client = self.connect(port);
        let (server, _) = listener.accept().unwrap();
        (server, client)
    }

    pub fn worker(&self) -> Worker {
        Worker::new(&self.host, 0).unwrap()
    }

    pub fn epoll(&self, source: &impl lull_net::Source, interest: Interest) -> Epoll {
        let epoll = Epoll::new(&self.host);
        epoll.add(source, 1, interest).unwrap();
        epoll
    }
}

/// The events that one wait reports, at most `max` of them.
pub fn wait(epoll: &Epoll, worker: &Worker, max: usize, timeout: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    let count = epoll.wait(worker, &mut events, max, Some(timeout)).unwrap();
    assert_eq!(count, events.len());
    events
}

/// Waits until `condition` holds.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LOST, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}
