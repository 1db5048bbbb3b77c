//! A network that sends to its own addresses.

mod pair;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use lull_core::NapiSettings;
use lull_net::lull_nic::Frame;
use lull_net::lull_nic::mem::{self, MemConfig};
use lull_net::{
    Elsewhere, HandedOn, Interest, ListenOptions, Network, NetworkConfig, TcpListener, TcpStream, UdpSocket,
};
use pair::*;

const SERVER6: &str = "fd00::2";

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn pair(queues: usize) -> Pair {
    Pair::with(queues, |device| device, NapiSettings::default())
}

#[test]
fn a_connection_to_an_own_address_carries_megabytes_both_ways() {
    for (ip, queues) in [(SERVER, 1), (SERVER6, 1), (SERVER, 3)] {
        let pair = pair(queues);
        let listener = TcpListener::bind(&pair.server, at(ip, 80)).unwrap();
        for _ in 0..queues {
            let mut client = TcpStream::connect(&pair.server, at(ip, 80)).unwrap();
            let (mut served, peer) = listener.accept().unwrap();
            assert_eq!((peer, served.local_addr().unwrap()), (client.local_addr().unwrap(), at(ip, 80)));
            let sent: Vec<u8> = (0..3_000_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
            let echo = std::thread::spawn(move || {
                let mut whole = Vec::new();
                served.read_to_end(&mut whole).unwrap();
                served.write_all(&whole).unwrap();
                served.shutdown(lull_net::Shutdown::Write).unwrap();
            });
            client.write_all(&sent).unwrap();
            client.shutdown(lull_net::Shutdown::Write).unwrap();
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            echo.join().unwrap();
            assert!(back == sent, "{} bytes came back", back.len());
        }
        let counted = pair.server.stack_counters();
        assert!(counted.iter().all(|shard| shard.looped_frames > 0), "each shard had one");
        assert!(counted.iter().all(|shard| shard.tx_frames == 0), "nothing left by the device");
    }
}

#[test]
fn nobody_at_an_own_address_is_a_refusal() {
    let pair = pair(1);
    let refused = TcpStream::connect(&pair.server, at(SERVER, 81)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let own = UdpSocket::bind(&pair.server, at(SERVER, 0)).unwrap();
    own.connect(at(SERVER, 81)).unwrap();
    own.send(b"x").unwrap();
    assert_eq!(own.recv(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let itself = TcpStream::start_connect(&pair.server, Some(at(SERVER, 82)), at(SERVER, 82), Default::default());
    assert_eq!(itself.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn datagrams_reach_own_sockets_and_the_one_that_sent_them() {
    let pair = pair(1);
    for ip in [SERVER, SERVER6] {
        let one = UdpSocket::bind(&pair.server, at(ip, 53)).unwrap();
        let other = UdpSocket::bind(&pair.server, at(ip, 54)).unwrap();
        other.send_to(b"hello", at(ip, 53)).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(one.recv_from(&mut buffer).unwrap(), (5, at(ip, 54)));
        one.connect(at(ip, 53)).unwrap();
        one.send(b"myself").unwrap();
        assert_eq!(one.recv_from(&mut buffer).unwrap(), (6, at(ip, 53)));
    }
}

#[test]
fn one_epoll_hears_both_ends() {
    let pair = pair(1);
    let listener = TcpListener::bind_with(&pair.server, None, at(SERVER, 80), ListenOptions::default()).unwrap();
    let (worker, epoll) = (pair.worker(), pair.epoll(&listener, Interest::READABLE));
    let client = TcpStream::connect(&pair.server, at(SERVER, 80)).unwrap();
    epoll.add(&client, 2, Interest::READABLE).unwrap();
    let mut events = Vec::new();
    epoll.wait(&worker, &mut events, 8, Some(LOST)).unwrap();
    assert_eq!(events.iter().map(|event| event.key).collect::<Vec<_>>(), [1]);
    let (served, _) = listener.accept().unwrap();
    (&served).write_all(b"x").unwrap();
    events.clear();
    epoll.wait(&worker, &mut events, 8, Some(LOST)).unwrap();
    assert_eq!(events.iter().map(|event| event.key).collect::<Vec<_>>(), [2]);
}

#[test]
fn what_loops_is_no_martian_and_no_received_frame() {
    let pair = pair(1);
    let socket = UdpSocket::bind(&pair.server, at(SERVER, 53)).unwrap();
    socket.send_to(b"x", at(SERVER, 53)).unwrap();
    let looped = pair.server.stack_counters()[0];
    assert_eq!((looped.drop_martian, looped.udp_datagrams, looped.rx_frames), (0, 1, 0));
}

/// Stacks elsewhere that take every frame.
#[derive(Debug)]
struct Greedy;

impl Elsewhere for Greedy {
    fn secret(&self) -> u64 {
        7
    }

    fn queues(&self) -> &[u32] {
        &[0]
    }

    fn takes_stranger(&self, _syn: Option<SocketAddr>, _frame: &Frame) -> bool {
        true
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        true
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}

#[test]
fn what_loops_is_no_other_stacks() {
    let pair = pair(1);
    let (port, _) = mem::pair(MemConfig::default());
    let config = NetworkConfig { elsewhere: Some(Arc::new(Greedy)), ..config("10.0.0.9", vec![0]) };
    let network = Network::new(&pair.host, Arc::new(port), config).unwrap();
    let listener = TcpListener::bind(&network, at("10.0.0.9", 80)).unwrap();
    let mut client = TcpStream::connect(&network, at("10.0.0.9", 80)).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(listener.accept().unwrap().0.recv(&mut [0; 8]).unwrap(), 1);
    let refused = TcpStream::connect(&network, at("10.0.0.9", 81)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
