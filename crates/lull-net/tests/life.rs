//! What lives how long, and what belongs together: networks and their sockets, hosts and their workers, ports.

mod pair;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lull_core::NapiSettings;
use lull_host::{Host, HostConfig, Worker};
use lull_net::shard::ListenOptions;
use lull_net::{Epoll, Interest, Ready, TcpListener, TcpStream};
use pair::{LOST, Pair, SERVER, until, wait};

/// Both networks go while sockets are open: nobody waits for ever, and every call says why.
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

/// Nobody answers, which TCP alone would find out two minutes later.
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

/// Its edges would come from threads that deliver for another host, which cannot poll for this one's waiters.
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
