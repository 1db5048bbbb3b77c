//! The lifetimes of networks and their sockets and of hosts and their workers, and what belongs together.

mod pair;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lull_core::NapiSettings;
use lull_host::{Host, HostConfig, Worker};
use lull_net::{
    Epoll, EpollParams, Interest, ListenOptions, Network, NetworkConfig, Ready, TcpListener, TcpStream, UdpOptions,
    UdpSocket,
};
use lull_nic::mem::{self, MemConfig};
use pair::{CLIENT, LOST, Pair, SERVER, until, wait};

/// Both networks go while sockets are open. Nobody waits for ever, and every call reports the reason.
#[test]
fn sockets_of_a_dropped_network_fail_and_wake_who_waits() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let epoll = pair.epoll(&server, Interest::READABLE);
    let listener = pair.listener(8);
    let worker = pair.worker();
    let waiting = {
        let epoll = epoll.clone();
        std::thread::spawn(move || wait(&epoll, &worker, 8, LOST))
    };
    let reading = std::thread::spawn(move || client.recv(&mut [0; 8]).unwrap_err().kind());
    let accepting = std::thread::spawn(move || listener.accept().map(|_| ()).unwrap_err().kind());
    until("it sleeps", || epoll.waiting() == 1);
    let Pair { server: server_network, client: client_network, host: _host } = pair;
    drop(server_network);
    drop(client_network);
    assert_eq!(reading.join().unwrap(), ErrorKind::NetworkDown);
    assert_eq!(accepting.join().unwrap(), ErrorKind::NetworkDown);
    let events = waiting.join().unwrap();
    assert!(events[0].ready.contains(Ready::ERR | Ready::HUP), "{events:?}");
    assert_eq!(server.send(b"x").unwrap_err().kind(), ErrorKind::NetworkDown);
}

/// Nobody answers. TCP alone would find that out only two minutes later.
#[test]
fn connect_timeout_ends_the_attempt() {
    let pair = Pair::new();
    let nobody = SocketAddr::new("10.0.0.77".parse().unwrap(), 7);
    pair.client.neighbours().add_permanent(nobody.ip(), [2, 0, 0, 0, 0, 77]);
    let connect = |timeout| TcpStream::connect_timeout(&pair.client, nobody, timeout).unwrap_err().kind();
    assert_eq!(connect(Duration::from_millis(1)), ErrorKind::TimedOut);
    assert_eq!(connect(Duration::ZERO), ErrorKind::InvalidInput);
    let _listener = pair.listener(7);
    let at = SocketAddr::new(SERVER.parse().unwrap(), 7);
    assert!(TcpStream::connect_timeout(&pair.client, at, LOST).is_ok());
}

#[test]
fn a_worker_of_another_host_is_refused() {
    let pair = Pair::new();
    let other = Host::new(HostConfig::default()).unwrap();
    let worker = Worker::new(&other, 0).unwrap();
    let error = Epoll::new(&pair.host).wait(&worker, &mut Vec::new(), 1, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("another host"), "{error}");
}

/// Its edges would come from threads that deliver for another host, and that cannot poll for this one's waiters.
#[test]
fn a_socket_of_another_host_is_refused() {
    let (pair, other) = (Pair::new(), Pair::new());
    let listener = pair.listener(7);
    let epoll = Epoll::new(&other.host);
    let error = epoll.add(&listener, 1, Interest::READABLE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("another host"), "{error}");
    assert_eq!(epoll.delete(&listener).unwrap_err().kind(), ErrorKind::NotFound);
    pair.epoll(&listener, Interest::READABLE).delete(&listener).unwrap();
}

#[test]
fn addresses_are_given_as_std_has_them_and_each_is_tried() {
    let pair = Pair::new();
    let listener = TcpListener::bind(&pair.server, &[("10.0.0.99", 7), (SERVER, 7)].map(at)[..]).unwrap();
    assert_eq!(listener.local_addr().unwrap().to_string(), format!("{SERVER}:7"), "the first is not the network's");
    let stream = TcpStream::connect(&pair.client, &[(SERVER, 9), (SERVER, 7)].map(at)[..]).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), at((SERVER, 7)), "the first refuses");
    let refused = TcpStream::connect(&pair.client, (SERVER, 9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let nowhere: [SocketAddr; 0] = [];
    assert_eq!(TcpStream::connect(&pair.client, &nowhere[..]).unwrap_err().kind(), ErrorKind::InvalidInput);

    let receiver = UdpSocket::bind(&pair.server, format!("{SERVER}:53")).unwrap();
    let sender = UdpSocket::bind(&pair.client, (CLIENT, 0)).unwrap();
    sender.send_to(b"a question", (SERVER, 53)).unwrap();
    assert_eq!(receiver.recv_from(&mut [0; 16]).unwrap().0, 10);
    receiver.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(receiver.read_timeout().unwrap(), Some(Duration::from_millis(1)));
    assert_eq!(receiver.recv_from(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(receiver.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    receiver.set_read_timeout(None).unwrap();
    assert_eq!((receiver.read_timeout().unwrap(), receiver.write_timeout().unwrap()), (None, None));
}

fn at((ip, port): (&str, u16)) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

#[test]
fn errors_of_networks_and_hosts_become_io_errors() {
    let pair = Pair::new();
    let kind = |error: std::io::Error| error.kind();
    let taken = Network::new(&pair.host, pair.server.device().clone(), NetworkConfig::default()).unwrap_err();
    let said = taken.to_string();
    let error = std::io::Error::from(taken);
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::ResourceBusy, said));
    let beyond = NapiSettings { defer_hard_irqs: u32::MAX, ..NapiSettings::default() };
    assert_eq!(kind(pair.server.set_napi_all(&beyond).unwrap_err().into()), ErrorKind::InvalidInput);
    let params = EpollParams { busy_poll_budget: 65, ..EpollParams::default() };
    let refused = Epoll::new(&pair.host).set_busy_poll(&params, false).unwrap_err();
    assert_eq!(kind(refused.into()), ErrorKind::PermissionDenied);
}

/// Whoever is refused reads which setting it is, and what it has to be.
#[test]
fn a_setting_out_of_its_limits_is_named() {
    let pair = Pair::new();
    let plain = NetworkConfig::default;
    #[allow(clippy::reversed_empty_ranges, reason = "the range is empty")]
    let refused = [
        (NetworkConfig { rx_buffer_bytes: 0, ..plain() }, 1500, "rx_buffer_bytes is 0, and must be 256 to "),
        (NetworkConfig { tx_buffer_bytes: 1 << 40, ..plain() }, 1500, "tx_buffer_bytes is 1099511627776, and"),
        (NetworkConfig { connections_max: 0, ..plain() }, 1500, "connections_max is 0, and must be 1 to "),
        (NetworkConfig { ephemeral_ports: 5..=4, ..plain() }, 1500, "ephemeral_ports is 5..=4, and must be a range"),
        (plain(), 60, "the device's MTU is 60, and must be 1280 to 65535"),
    ];
    for (config, mtu_bytes, says) in refused {
        let (device, _peer) = mem::pair(MemConfig { mtu_bytes, ..MemConfig::default() });
        let error = Network::new(&pair.host, Arc::new(device), config).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot make a stack on mem0: {says}")), "{error}");
    }
}

#[test]
fn a_queue_that_there_is_not_is_named() {
    let pair = Pair::new();
    let says = "there is no queue 7: mem0 has 1, numbered from 0";
    let listener = TcpListener::bind_with(&pair.server, Some(7), at((SERVER, 7)), ListenOptions::default());
    let socket = UdpSocket::bind_with(&pair.server, 7, at((SERVER, 7)), UdpOptions::default());
    for error in [listener.unwrap_err(), socket.unwrap_err()] {
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidInput, says));
    }
}

/// A time that does not fit 64 bits of nanoseconds is a long one, whatever its lowest bits say.
#[test]
fn the_longest_timeouts_are_taken() {
    let pair = Pair::new();
    let (_server, client) = pair.connected(7);
    for timeout in [Duration::from_nanos(u64::MAX) + Duration::from_nanos(1), Duration::MAX] {
        client.set_user_timeout(Some(timeout)).unwrap();
        client.set_read_timeout(Some(timeout)).unwrap();
    }
    assert_eq!(client.set_user_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn port_0_is_a_free_port_on_every_shard() {
    let pair = Pair::with(2, |device| device, NapiSettings::default());
    let any = SocketAddr::new(SERVER.parse().unwrap(), 0);
    for reuse_port in [false, true] {
        let options = ListenOptions { reuse_port, ..ListenOptions::default() };
        let listeners: Vec<TcpListener> =
            (0..50).map(|_| TcpListener::bind_with(&pair.server, None, any, options).unwrap()).collect();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let distinct: std::collections::BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(distinct.len(), listeners.len(), "nobody shares: {ports:?}");
        assert!(ports.iter().all(|port| *port >= 32_768));
        let _client = pair.connect(ports[0]);
        listeners[0].accept().unwrap();
    }
}
