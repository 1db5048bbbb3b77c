//! Sockets with the shape of std: blocking calls, timeouts, scatter and gather, options, UDP, faults.

mod pair;

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lull_core::NapiSettings;
use lull_host::{Host, HostConfig};
use lull_net::{
    Keepalive, Network, NetworkConfig, PathMtuDiscovery, Ready, Shutdown, TcpStream, UdpOptions, UdpSocket,
};
use lull_nic::fault::{Fault, FaultConfig, Rates};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Link};
use pair::{CLIENT, Pair, SERVER, until};

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Sends `bytes` there and back, and checks every byte.
fn echo(pair: &Pair, port: u16, bytes: usize) {
    let (mut server, client) = pair.connected(port);
    let echoing = std::thread::spawn(move || {
        let mut buffer = vec![0; 32 * 1024];
        loop {
            match server.read(&mut buffer).unwrap() {
                0 => return,
                count => server.write_all(&buffer[..count]).unwrap(),
            }
        }
    });
    let data: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut writer, sent) = (client.clone(), data.clone());
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    (&client).read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    echoing.join().unwrap();
    assert!(back == data, "{} of {} bytes came back", back.len(), data.len());
}

#[test]
fn blocking_calls_carry_a_stream_both_ways() {
    let pair = Pair::new();
    echo(&pair, 7, 3 << 20);
}

#[test]
fn nonblocking_calls_say_so_and_timeouts_end_blocking_ones() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let full = vec![7; 1 << 20];
    let mut written = 0;
    let blocked = loop {
        match server.send(&full) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
    assert!(written > 0 && written < full.len(), "memory is bounded: {written} bytes");
    let (server, _client) = (server, client);
    server.set_nonblocking(false).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    // What the peer's stack has taken meanwhile made room. As the peer's application reads nothing, that ends.
    let error = loop {
        if let Err(error) = server.send(&full) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(server.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn scatter_gather_peek_and_options() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    client.set_nodelay(true).unwrap();
    assert_eq!(client.send_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")]).unwrap(), 5);
    until("data", || server.peek(&mut [0; 8]).is_ok_and(|count| count == 5));
    let (mut first, mut second) = ([0; 3], [0; 8]);
    let count = server.recv_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
    assert_eq!((count, &first, &second[..2]), (5, b"abc", &b"de"[..]));
    assert_eq!(server.local_addr().unwrap(), at(SERVER, 7));
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), at(SERVER, 7));
    assert_eq!(pair.host.napi_id(pair.server.napis()[0]), server.incoming_napi_id());
    assert_eq!(server.take_error().unwrap().map(|error| error.kind()), None);
    assert!(server.buffer_sizes().unwrap().0 >= 16 * 1024);
    server.set_keepalive(Some(Keepalive::default())).unwrap();
    server.set_user_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(server.set_busy_poll(1 << 31).is_err());
    assert!(server.set_prefer_busy_poll(true, false).is_err());
    assert!(server.set_busy_poll_budget(9, false).is_err());
    server.set_busy_poll(50).unwrap();
    server.set_prefer_busy_poll(true, true).unwrap();
    server.set_busy_poll_budget(16, true).unwrap();
    assert_eq!((server.busy_poll(), server.prefer_busy_poll(), server.busy_poll_budget()), (50, true, 16));
}

#[test]
fn a_receive_call_busy_polls_as_its_options_say() {
    let pair = Pair::new();
    let (server, _client) = pair.connected(7);
    let stats = || pair.host.napi_stats(pair.server.napis()[0]);
    server.set_nonblocking(true).unwrap();
    let before = stats();
    let _ = server.recv(&mut [0; 8]);
    assert_eq!((stats() - before).busy_calls, 0, "off by default");
    server.set_busy_poll(1_000).unwrap();
    // Another thread may still poll the last frames of the handshake; then the call has no instance to poll.
    until("a nonblocking caller gets one round and the stop's", || {
        let before = stats();
        assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let polled = stats() - before;
        assert!(polled.busy_calls <= 1 && polled.busy_polls <= 2, "{polled:?}");
        (polled.busy_calls, polled.busy_polls) == (1, 2)
    });
    server.set_nonblocking(false).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let before = stats();
    assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!((stats() - before).busy_polls >= 2);
}

#[test]
fn connecting_where_nobody_listens_or_answers() {
    let pair = Pair::new();
    assert_eq!(TcpStream::connect(&pair.client, at(SERVER, 9)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(TcpStream::connect(&pair.client, at("10.0.0.77", 9)).unwrap_err().kind(), ErrorKind::HostUnreachable);
    assert_eq!(
        TcpStream::connect(&pair.client, at("192.168.9.9", 9)).unwrap_err().kind(),
        ErrorKind::NetworkUnreachable
    );
    let taken = pair.listener(10);
    let again = lull_net::TcpListener::bind(&pair.server, at(SERVER, 10));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(taken);
    lull_net::TcpListener::bind(&pair.server, at(SERVER, 10)).unwrap();
}

/// The device's queues can still be had when the configuration has been corrected.
#[test]
fn an_address_or_gateway_that_cannot_be_is_named_before_a_queue_is_taken() {
    let host = Host::new(HostConfig::default()).unwrap();
    let (device, _peer) = mem::pair(MemConfig::default());
    let device: Arc<dyn Device> = Arc::new(device);
    let own = |address: &str, prefix| NetworkConfig {
        addresses: vec![(address.parse().unwrap(), prefix)],
        ..NetworkConfig::default()
    };
    let by = |config: NetworkConfig, gateway: &str| match gateway.parse().unwrap() {
        IpAddr::V4(ip) => NetworkConfig { gateway4: Some(ip), ..config },
        IpAddr::V6(ip) => NetworkConfig { gateway6: Some(ip), ..config },
    };
    for (config, says) in [
        (own("10.0.0.2", 40), "10.0.0.2/40: a prefix of IPv4 has 32 bits"),
        (own("fd00::2", 129), "fd00::2/129: a prefix of IPv6 has 128 bits"),
        (own("0.0.0.0", 0), "0.0.0.0/0: it stands for any address"),
        (own("224.0.0.9", 8), "224.0.0.9/8: it is a group's"),
        (own("255.255.255.255", 32), "255.255.255.255/32: it is everybody's"),
        (own("::ffff:10.0.0.2", 96), "it is an IPv4 address"),
        (
            by(own("10.0.0.2", 24), "10.9.0.1"),
            "gateway 10.9.0.1: it is on no network of the own addresses (10.0.0.2/24)",
        ),
        (by(own("fd00::2", 64), "fd01::1"), "gateway fd01::1: it is on no network of the own addresses (fd00::2/64)"),
        (by(NetworkConfig::default(), "10.9.0.1"), "no network of the own addresses; name a router"),
    ] {
        let refused = Network::new(&host, device.clone(), config).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains(says), "{says}: {refused}");
    }
    let config = by(by(own("10.0.0.2", 24), "10.0.0.1"), "fe80::1");
    Network::new(&host, device, config).unwrap();
}

#[test]
fn udp_both_ways_over_both_families() {
    let pair = Pair::new();
    for (server_ip, client_ip) in [(SERVER, CLIENT), ("fd00::2", "fd00::1")] {
        let server = UdpSocket::bind(&pair.server, at(server_ip, 53)).unwrap();
        let client = UdpSocket::bind_with(&pair.client, 0, at(client_ip, 0), UdpOptions::default()).unwrap();
        client.connect((server_ip, 53)).unwrap();
        client.send(b"question").unwrap();
        let mut buffer = [0; 4];
        assert_eq!(server.peek_from(&mut buffer).unwrap(), (4, client.local_addr().unwrap()));
        let received = server.recv_msg(&mut [IoSliceMut::new(&mut buffer)], false).unwrap();
        assert_eq!((received.bytes, received.datagram_bytes, &buffer), (4, 8, b"ques"), "the rest is lost");
        server.send_to(b"answer", received.from).unwrap();
        let mut buffer = [0; 64];
        assert_eq!((client.peek(&mut buffer).unwrap(), client.recv(&mut buffer).unwrap()), (6, 6));
        // Only the peer is heard, until there is none.
        assert_eq!(client.peer_addr().unwrap(), at(server_ip, 53));
        client.disconnect().unwrap();
        assert_eq!(client.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(client.send(b"to whom").unwrap_err().raw_os_error(), Some(89), "EDESTADDRREQ");
        let stranger = UdpSocket::bind(&pair.server, at(server_ip, 0)).unwrap();
        stranger.send_to(b"hello", client.local_addr().unwrap()).unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (5, stranger.local_addr().unwrap()));
        assert_eq!(server.send_to(&[0; 65_528], received.from).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
        server.set_path_mtu_discovery(received.from.is_ipv6(), PathMtuDiscovery::Do).unwrap();
        assert_eq!(server.send_to(&[0; 2000], received.from).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
        server.set_path_mtu_discovery(received.from.is_ipv6(), PathMtuDiscovery::Want).unwrap();
        assert_eq!(server.send_to(&[7; 60_000], received.from).unwrap(), 60_000);
        let mut buffer = vec![0; 65_536];
        assert_eq!(client.recv(&mut buffer).unwrap(), 60_000);
    }
}

#[test]
fn sockets_have_the_small_calls_of_std() {
    let pair = Pair::new();
    let listener = lull_net::TcpListener::bind(&pair.server, at(SERVER, 7)).unwrap();
    let client = TcpStream::connect(&pair.client, at(SERVER, 7)).unwrap();
    let served = listener.try_clone().unwrap().incoming().next().unwrap().unwrap();
    assert!(listener.take_error().unwrap().is_none());
    assert!(!client.nodelay().unwrap());
    client.set_nodelay(true).unwrap();
    assert!(client.try_clone().unwrap().nodelay().unwrap(), "a clone is the same socket");
    // These calls are made by shared references, and from several buffers.
    let written = (&client).write_vectored(&[IoSlice::new(b"one "), IoSlice::new(b"two")]).unwrap();
    assert_eq!(written, 7, "a fresh connection has room");
    let (mut first, mut second) = ([0; 4], [0; 3]);
    until("both arrived", || served.peek(&mut [0; 8]).unwrap() == 7);
    let count = (&served).read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
    assert_eq!((count, &first, &second), (7, b"one ", b"two"));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!((&served).read(&mut first).unwrap(), 0);
}

#[test]
fn a_lossy_link_delays_but_loses_nothing() {
    let rates = Rates { drop: 0.01, duplicate: 0.02, corrupt: 0.01, reorder: 0.02, ..Rates::default() };
    let fault = |device| -> Arc<dyn Device> {
        Arc::new(Fault::new(device, FaultConfig { seed: 11, rx: rates, tx: rates, ..FaultConfig::default() }).unwrap())
    };
    let pair = Pair::with(1, fault, NapiSettings::default());
    echo(&pair, 7, 64 * 1024);
}

#[test]
fn connections_survive_a_link_flap() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let lost = || pair.client.device().counters(0).tx_dropped;
    let before = lost();
    pair.server.device().set_link(Link::Down).unwrap();
    (&client).write_all(b"into the dark").unwrap();
    until("the segment is lost", || lost() > before);
    pair.server.device().set_link(Link::Up).unwrap();
    let mut buffer = [0; 13];
    (&server).read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"into the dark");
}

#[test]
fn a_reset_keeps_connections_settings_and_ids() {
    let napi = NapiSettings { defer_hard_irqs: 7, gro_flush_timeout_ns: 50_000, ..NapiSettings::default() };
    let pair = Pair::with(1, |device| device, napi);
    let (server, client) = pair.connected(7);
    let id = server.incoming_napi_id();
    for round in 0..5 {
        pair.server.device().reset().unwrap();
        until("the queue is back", || server.incoming_napi_id() == id);
        (&client).write_all(&[round]).unwrap();
        let mut buffer = [0; 1];
        (&server).read_exact(&mut buffer).unwrap();
        assert_eq!(buffer[0], round);
    }
    assert_eq!(pair.host.napis()[0].settings, napi);
}

#[test]
fn a_stream_under_way_survives_flaps_and_resets() {
    let napi = NapiSettings { defer_hard_irqs: 3, gro_flush_timeout_ns: 100_000, ..NapiSettings::default() };
    let pair = Pair::with(1, |device| device, napi);
    let device = pair.server.device().clone();
    let disturbing = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            device.reset().unwrap();
            std::thread::sleep(Duration::from_millis(5));
            device.set_link(Link::Down).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            device.set_link(Link::Up).unwrap();
        }
    });
    echo(&pair, 7, 4 << 20);
    disturbing.join().unwrap();
    assert_eq!(pair.host.napis()[0].settings, napi);
}

#[test]
fn a_device_that_is_gone_ends_nothing_abruptly() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let host = pair.host.clone();
    drop(client);
    drop(pair.client);
    // The FIN came through before the device went, or the connection is silent. In neither case does a call with a
    // timeout hang.
    server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let outcome = server.recv(&mut [0; 8]);
    assert!(matches!(&outcome, Ok(0)) || outcome.is_err(), "{outcome:?}");
    assert!(!server.ready().contains(Ready::PRI));
    drop(host);
}
