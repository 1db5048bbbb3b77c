//! A flood of SYNs with forged sources, and a client that is served while it goes on.

mod pair;
mod shard_harness;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_host::{Host, HostConfig};
use lull_net::{Network, TcpListener, TcpStream};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, FramePool, Queue};
use pair::{CLIENT, SERVER, config, until};
use shard_harness::Peer;

/// How many forged SYNs there are for each round of the switch.
const FLOOD_FRAMES: u64 = 32;

/// A switch with three ports: the server, the client, and somebody who forges SYNs from every address of the network.
struct Switch {
    server: Queue,
    client: Queue,
    server_mac: [u8; 6],
    client_mac: [u8; 6],
    pool: FramePool,
    /// Frames of the client for which the server's ring had no room.
    waiting: Vec<Frame>,
}

impl Switch {
    fn forged(&self, number: u64) -> Frame {
        let source = SocketAddr::from(([10, 0, 0, 10 + (number % 240) as u8], 1024 + (number / 240 % 60_000) as u16));
        let to = SocketAddr::new(SERVER.parse().unwrap(), 80);
        let mut frame = Peer { from: source, to, seq: number as u32, ..Peer::new(1) }.syn().frame();
        frame.data_mut()[..6].copy_from_slice(&self.server_mac);
        frame.data_mut()[6..12].copy_from_slice(&self.client_mac);
        frame
    }

    fn round(&mut self, forged: &AtomicU64) {
        let (waiting, pool) = (&mut self.waiting, &mut self.pool);
        self.client.rx.poll(64, pool, &mut |frame, _| waiting.push(frame));
        for frame in std::mem::take(waiting) {
            if let Err(frame) = self.server.tx.transmit(frame) {
                waiting.push(frame);
            }
        }
        for _ in 0..FLOOD_FRAMES {
            let frame = self.forged(forged.load(Ordering::Relaxed));
            if self.server.tx.transmit(frame).is_err() {
                break;
            }
            forged.fetch_add(1, Ordering::Relaxed);
        }
        self.server.tx.doorbell();
        self.server.tx.reap_sent(&mut self.pool);
        let client = &mut self.client;
        // The answers to forged SYNs reach the client's station as well, which does not want them.
        self.server.rx.poll(256, &mut self.pool, &mut |frame, _| drop(client.tx.transmit(frame)));
        client.tx.doorbell();
        client.tx.reap_sent(&mut self.pool);
    }
}

#[test]
fn a_client_is_served_during_a_flood_of_forged_syns() {
    let (server, to_server) = mem::pair(MemConfig::default());
    let (to_client, client) = mem::pair(MemConfig::default());
    let mut switch = Switch {
        server: to_server.take_queue(0).unwrap(),
        client: to_client.take_queue(0).unwrap(),
        server_mac: server.info().mac,
        client_mac: client.info().mac,
        pool: FramePool::new(1024),
        waiting: Vec::new(),
    };
    let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
    // As each knows the other's station, nothing depends on an ARP request that the flood may push off a ring.
    let mut configs = [config(SERVER, vec![0]), config(CLIENT, vec![1])];
    configs[0].neighbours = vec![(CLIENT.parse().unwrap(), switch.client_mac)];
    configs[1].neighbours = vec![(SERVER.parse().unwrap(), switch.server_mac)];
    let [server_config, client_config] = configs;
    let server = Network::new(&host, Arc::new(server), server_config).unwrap();
    let client = Network::new(&host, Arc::new(client), client_config).unwrap();
    let address = SocketAddr::new(SERVER.parse().unwrap(), 80);
    let listener = TcpListener::bind(&server, address).unwrap();

    let (forged, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                switch.round(&forged);
                std::thread::yield_now();
            }
        });
        let sent_cookies = || server.stack_counters()[0].syncookies_sent;
        until("a flood beyond every queue", || sent_cookies() > 10_000);
        let before = forged.load(Ordering::Relaxed);
        let mut connection = TcpStream::connect(&client, address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        connection.write_all(b"in the middle of it").unwrap();
        let mut question = [0; 19];
        accepted.read_exact(&mut question).unwrap();
        accepted.write_all(&question).unwrap();
        let mut answer = [0; 19];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"in the middle of it");
        let cookies = sent_cookies();
        until("that the flood goes on", || sent_cookies() > cookies);
        assert!(forged.load(Ordering::Relaxed) > before);
        over.store(true, Ordering::Relaxed);
    });
    let counters = server.stack_counters()[0];
    assert_eq!((counters.syncookies_recv, counters.tcp_accepted), (1, 1));
    assert!(counters.tcp_syns - counters.timeout_syn_received <= 1024, "half-open connections are bounded");
}
