//! Flows that the device moves to other queues, as when an RSS table is written anew. The connections stay where they
//! are, and go on.

mod pair;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lull_core::NapiSettings;
use lull_host::{Host, HostConfig};
use lull_net::{Elsewhere, HandedOn, Interest, Network, NetworkConfig, NetworkError, TcpStream, UdpOptions, UdpSocket};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, wire};
use pair::{CLIENT, LOST, Pair, SERVER, config, until, wait};

const QUEUES: usize = 3;

fn moved_to(device: &Arc<dyn Device>, queue: usize) {
    let entries = device.rss_table().len();
    device.set_rss_table(&vec![queue; entries]).unwrap();
}

/// Another process with queues of the interface. It has no connections, and records what it is asked.
#[derive(Debug)]
struct Others {
    queues: Vec<u32>,
    /// The marks of each stranger, which say where it has been.
    strangers: Mutex<Vec<u32>>,
    last_acknowledgements: AtomicUsize,
    /// Whether it takes strangers.
    know_them: AtomicBool,
}

impl Others {
    fn new(queues: Vec<u32>) -> Arc<Others> {
        Arc::new(Others {
            queues,
            strangers: Mutex::default(),
            last_acknowledgements: AtomicUsize::new(0),
            know_them: AtomicBool::new(false),
        })
    }
}

impl Elsewhere for Others {
    fn secret(&self) -> u64 {
        7
    }

    fn queues(&self) -> &[u32] {
        &self.queues
    }

    fn takes_stranger(&self, _syn: Option<SocketAddr>, frame: &Frame) -> bool {
        self.strangers.lock().unwrap().push(frame.seen_by());
        self.know_them.load(Ordering::Relaxed)
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        self.last_acknowledgements.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}

/// A server that has three of an interface's queues, while another process has others.
fn beside(others: &Arc<Others>) -> Pair {
    let (server, client) = mem::pair(MemConfig { queues: QUEUES, peer_queues: Some(1), ..MemConfig::default() });
    let host = Host::new(HostConfig { cpus: vec![None; QUEUES + 1], ..HostConfig::default() }).unwrap();
    let server_config =
        NetworkConfig { elsewhere: Some(others.clone()), ..config(SERVER, (0..QUEUES as u16).collect()) };
    Pair {
        server: Network::new(&host, Arc::new(server), server_config).unwrap(),
        client: Network::new(&host, Arc::new(client), config(CLIENT, vec![QUEUES as u16])).unwrap(),
        host,
    }
}

fn passed_on(pair: &Pair) -> u64 {
    passed_on_by(&pair.server)
}

fn passed_on_by(network: &Network) -> u64 {
    network.stack_counters().iter().map(|counters| counters.passed_on).sum()
}

fn resets(pair: &Pair) -> u64 {
    pair.server.stack_counters().iter().map(|counters| counters.tcp_resets_sent).sum()
}

/// Sends data in one direction, and back.
fn exchange(server: &mut TcpStream, client: &mut TcpStream, data: &[u8]) {
    client.write_all(data).unwrap();
    let mut got = vec![0; data.len()];
    server.read_exact(&mut got).unwrap();
    assert_eq!(got, data);
    server.write_all(data).unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, data);
}

#[test]
fn connections_go_on_in_every_mode_wherever_their_packets_come() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let (mut server, mut client) = pair.connected(80);
    for mode in ["base", "defer50", "suspend20", "napibusy", "fullbusy", "threaded", "threaded-busy", "base"] {
        // The other half of the mode is for an epoll context; these sockets block.
        let _ = pair.server.set_mode(&mode.parse().unwrap()).unwrap();
        for queue in 0..QUEUES {
            moved_to(pair.server.device(), queue);
            exchange(&mut server, &mut client, mode.as_bytes());
        }
    }
    assert!(passed_on(&pair) > 0);
    assert_eq!(resets(&pair), 0);
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0, "its end is seen, too");
}

#[test]
fn a_context_that_waits_hears_of_what_came_by_another_queue() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let worker = pair.worker();
    let (mut server, mut client) = pair.connected(80);
    let epoll = pair.epoll(&server, Interest::READABLE);
    for queue in (0..QUEUES).cycle().take(4 * QUEUES) {
        moved_to(pair.server.device(), queue);
        client.write_all(b"!").unwrap();
        assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
        server.read_exact(&mut [0; 1]).unwrap();
    }
}

#[test]
fn a_great_deal_that_comes_by_another_queue_is_whole() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let (mut server, client) = pair.connected(80);
    let data: Vec<u8> = (0..1_000_000_u32).map(|nth| (nth % 251) as u8).collect();
    for queue in 0..QUEUES {
        moved_to(pair.server.device(), queue);
        std::thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&data).unwrap());
            let mut got = vec![0; data.len()];
            server.read_exact(&mut got).unwrap();
            assert!(got == data);
        });
    }
}

#[test]
fn one_poll_takes_all_that_was_passed_on() {
    const DATAGRAMS: u64 = 40;
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let server = UdpSocket::bind(&pair.server, at(SERVER, 53)).unwrap();
    let client = UdpSocket::bind(&pair.client, at(CLIENT, 53)).unwrap();
    client.send_to(b"who", at(SERVER, 53)).unwrap();
    server.recv_from(&mut [0; 3]).unwrap();
    // The socket is on the first shard, whose NAPI is busy elsewhere for a while.
    moved_to(pair.server.device(), 1);
    let napi = pair.server.napis()[0];
    let before = passed_on(&pair);
    pair.host.disable(napi).unwrap();
    for _ in 0..DATAGRAMS {
        client.send_to(b"one", at(SERVER, 53)).unwrap();
    }
    until("they are passed on", || passed_on(&pair) == before + DATAGRAMS);
    pair.host.enable(napi).unwrap();
    client.send_to(b"one", at(SERVER, 53)).unwrap();
    for _ in 0..=DATAGRAMS {
        assert_eq!(server.recv_from(&mut [0; 3]).unwrap().0, 3);
    }
}

#[test]
fn a_handshake_that_moves_is_finished() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let listener = pair.listener(80);
    for queue in (0..QUEUES).cycle().take(2 * QUEUES) {
        // The SYN and the acknowledgement of its answer come by different queues, in either order.
        std::thread::scope(|scope| {
            scope.spawn(|| moved_to(pair.server.device(), queue));
            let client = pair.connect(80);
            exchange(&mut listener.accept().unwrap().0, &mut { client }, b"hello");
        });
    }
}

#[test]
fn nobodys_segment_is_refused_once_by_the_last_who_is_asked() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    for queue in 0..QUEUES {
        moved_to(pair.server.device(), queue);
        let (before, passed_before) = (resets(&pair), passed_on(&pair));
        let refused = TcpStream::connect(&pair.client, SocketAddr::new(SERVER.parse().unwrap(), 81)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(resets(&pair) > before);
        // On a very busy machine the client's SYN may be repeated before the reset arrives.
        until("each SYN is refused once, after all have been asked", || {
            passed_on(&pair) - passed_before == (QUEUES as u64 - 1) * (resets(&pair) - before)
        });
    }
}

#[test]
fn what_was_passed_on_while_the_queues_were_disabled_is_heard_of_when_they_are_enabled() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let (mut server, mut client) = pair.connected(80);
    for queue in (0..QUEUES).cycle().take(4 * QUEUES) {
        moved_to(pair.server.device(), queue);
        client.write_all(b"!").unwrap();
        pair.server.device().reset().unwrap();
        server.read_exact(&mut [0; 1]).unwrap();
    }
    // By then the reset that came last was handled.
    until("the queues are enabled", || pair.server.napis().iter().all(|napi| pair.host.napi_id(*napi) != 0));
    exchange(&mut server, &mut client, b"after");
}

#[test]
fn queues_of_a_process_that_has_others_beside_it_ask_each_other_first() {
    let others = Others::new(vec![4, 2, 5]);
    let pair = beside(&others);
    let (mut server, mut client) = pair.connected(80);
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let (asked, asks) = (
        UdpSocket::bind(&pair.server, at(SERVER, 53)).unwrap(),
        UdpSocket::bind(&pair.client, at(CLIENT, 53)).unwrap(),
    );
    for queue in 0..QUEUES {
        moved_to(pair.server.device(), queue);
        exchange(&mut server, &mut client, b"moved");
        asks.send_to(b"moved", at(SERVER, 53)).unwrap();
        assert_eq!(asked.recv_from(&mut [0; 5]).unwrap().0, 5);
    }
    assert!(passed_on(&pair) > 0);
    assert_eq!((resets(&pair), others.strangers.lock().unwrap().as_slice()), (0, &[][..]));
}

#[test]
fn others_are_asked_once_for_what_no_queue_of_the_process_can_place() {
    let others = Others::new(vec![4, 2, 5]);
    let pair = beside(&others);
    for (queue, last_asked) in [(0, 2), (1, 2), (2, 1)] {
        moved_to(pair.server.device(), queue);
        let refused = TcpStream::connect(&pair.client, SocketAddr::new(SERVER.parse().unwrap(), 81)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // The last shard that was asked has not marked the frame yet.
        let seen_by = 0b11_0100 & !(1 << others.queues[last_asked]);
        let strangers = std::mem::take(&mut *others.strangers.lock().unwrap());
        // On a very busy machine the client's SYN may be repeated before the reset arrives.
        assert!(
            !strangers.is_empty() && strangers.iter().all(|marks| *marks == seen_by),
            "{strangers:?}, not {seen_by}"
        );
    }
    assert_eq!(others.last_acknowledgements.load(Ordering::Relaxed), 0, "a SYN acknowledges nothing");
}

#[test]
fn others_are_asked_for_the_socket_of_a_datagram_before_its_sender_is_told_that_there_is_none() {
    let others = Others::new(vec![4, 2, 5]);
    let pair = beside(&others);
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let client = UdpSocket::bind(&pair.client, at(CLIENT, 54)).unwrap();
    client.connect(at(SERVER, 53)).unwrap();
    // The other process has no socket for it either.
    client.send(b"who").unwrap();
    assert_eq!(client.recv(&mut [0; 3]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(others.strangers.lock().unwrap().len(), 1, "once, for all queues of the process");
    let refused = || pair.server.stack_counters().iter().map(|counters| counters.drop_no_socket).sum::<u64>();
    let (before, passed_before) = (refused(), passed_on(&pair));
    others.know_them.store(true, Ordering::Relaxed);
    client.send(b"who").unwrap();
    // The datagram goes from shard to shard, and then to the other process.
    until("it is theirs", || passed_on(&pair) == passed_before + QUEUES as u64);
    assert_eq!(refused(), before, "its sender is told nothing");
}

#[test]
fn numbers_that_frames_cannot_be_marked_with_are_refused() {
    for queues in [vec![], vec![1, 2], vec![1, 1], vec![1, 31]] {
        let (device, _) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
        let is_right = queues == [1, 2];
        let config = NetworkConfig { elsewhere: Some(Others::new(queues)), ..config(SERVER, vec![0, 1]) };
        match Network::new(&host, Arc::new(device), config) {
            Err(NetworkError::QueueNumbers { queues: 2, .. }) => assert!(!is_right),
            other => assert!(is_right && other.is_ok(), "{other:?}"),
        }
    }
}

/// A router's message in a frame that a device's other end sends: a datagram from port 53 was too long for the path.
fn too_long(from: [u8; 6], to: [u8; 6], mtu: u16) -> Frame {
    let ip = |source: &str, destination: &str, protocol: u8, payload: &[u8], length: usize| {
        let mut packet = vec![0; wire::IPV4];
        (packet[0], packet[8], packet[9]) = (0x45, 64, protocol);
        wire::put16(&mut packet, 2, (wire::IPV4 + length) as u16);
        packet[12..16].copy_from_slice(&source.parse::<Ipv4Addr>().unwrap().octets());
        packet[16..20].copy_from_slice(&destination.parse::<Ipv4Addr>().unwrap().octets());
        wire::put_checksum(&mut packet, 10, 0);
        [packet, payload.to_vec()].concat()
    };
    let about = ip(SERVER, CLIENT, wire::PROTOCOL_UDP, &[0, 53, 0, 9, 0, 0, 0, 0], 1400);
    let mut icmp = [&[3, 4, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &about].concat();
    wire::put_checksum(&mut icmp, 2, 0);
    let packet = ip(CLIENT, SERVER, wire::PROTOCOL_ICMP, &icmp, icmp.len());
    Frame::copy_from(&[&to[..], &from, &wire::ETHERTYPE_IPV4.to_be_bytes(), &packet].concat())
}

/// A program's datagram socket is one socket on each queue, and a router's message comes by one of the queues.
#[test]
fn every_shard_hears_how_long_a_datagram_may_be() {
    let (server, peer) = mem::pair(MemConfig { queues: QUEUES, peer_queues: Some(1), ..MemConfig::default() });
    let host = Host::new(HostConfig { cpus: vec![None; QUEUES], ..HostConfig::default() }).unwrap();
    let network = Network::new(&host, Arc::new(server), config(SERVER, (0..QUEUES as u16).collect())).unwrap();
    let at = SocketAddr::new(SERVER.parse().unwrap(), 53);
    let bind = |queue| UdpSocket::bind_with(&network, queue, at, UdpOptions::default()).unwrap();
    let _sockets: Vec<UdpSocket> = (0..QUEUES).map(bind).collect();
    let mut queue = peer.take_queue(0).unwrap();
    let frame = too_long(peer.info().mac, network.device().info().mac, 1000);
    assert!(queue.tx.transmit(frame).is_ok());
    queue.tx.doorbell();
    let told = || network.stack_counters().iter().filter(|counters| counters.path_mtu_reduced == 1).count();
    until("all have heard it", || told() == QUEUES);
    assert_eq!(passed_on_by(&network), 0, "no shard gives on what another has told it");
}
