//! Ports of connections on a device that does not tell by which queue a segment comes, such as a TAP. No two shards of
//! a network have the same connection.

mod pair;
mod wrapped;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use lull_core::NapiSettings;
use lull_host::{Host, HostConfig};
use lull_net::{ConnectOptions, Network, NetworkConfig, TcpStream, UdpOptions, UdpSocket};
use lull_nic::Device;
use lull_nic::mem::{self, MemConfig};
use pair::{Pair, SERVER, config};
use wrapped::Wrapped;

const QUEUES: usize = 3;
const OWN: &str = "10.0.0.2";
/// Nobody answers at this address.
const REMOTE: &str = "10.0.0.9";

/// A network that has these ports for its connections. Nobody is at the other end.
fn network(first: u16, last: u16, tells_queues: bool) -> Network {
    let (device, _) = mem::pair(MemConfig { queues: QUEUES, peer_queues: Some(1), ..MemConfig::default() });
    let device = Wrapped { tells_queues, ..Wrapped::new(Arc::new(device), |queue| queue) };
    let host = Host::new(HostConfig { cpus: vec![None; QUEUES], ..HostConfig::default() }).unwrap();
    let config = NetworkConfig { ephemeral_ports: first..=last, ..config(SERVER, (0..QUEUES as u16).collect()) };
    Network::new(&host, Arc::new(device), config).unwrap()
}

fn connect(network: &Network, local: Option<&str>) -> Result<TcpStream, ErrorKind> {
    let (local, remote) = (local.map(|local| local.parse().unwrap()), SocketAddr::new(REMOTE.parse().unwrap(), 80));
    TcpStream::start_connect(network, local, remote, ConnectOptions::default()).map_err(|error| error.kind())
}

#[test]
fn two_shards_never_connect_from_the_same_port_to_the_same_peer() {
    // This is done for a port of each shard.
    for port in 40_000..40_000 + QUEUES as u16 {
        let network = network(port, port, false);
        let _first = connect(&network, None).unwrap();
        for _ in 0..QUEUES {
            assert_eq!(connect(&network, None).err(), Some(ErrorKind::AddrNotAvailable));
        }
    }
    for tells_queues in [false, true] {
        let network = network(40_000, 40_099, tells_queues);
        let streams: Vec<TcpStream> = (0..100).map(|_| connect(&network, None).unwrap()).collect();
        let ports: HashSet<u16> = streams.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
        assert_eq!(ports.len(), 100, "each of them has one of its own, and none is left over");
        assert_eq!(connect(&network, None).err(), Some(ErrorKind::AddrNotAvailable));
    }
}

#[test]
fn nor_from_one_that_the_program_chooses() {
    for tells_queues in [false, true] {
        let network = network(40_000, 40_000, tells_queues);
        for local in [format!("{OWN}:5000"), format!("{OWN}:5001"), format!("{OWN}:5002"), "0.0.0.0:5003".to_owned()] {
            let _first = connect(&network, Some(&local)).unwrap();
            for again in [local.replace("0.0.0.0", OWN), local.replace(OWN, "0.0.0.0")].iter().cycle().take(2 * QUEUES)
            {
                assert_eq!(connect(&network, Some(again)).err(), Some(ErrorKind::AddrInUse), "{again}");
            }
        }
        // A port that the program chooses first is no other connection's afterwards, whichever shard the port belongs
        // to.
        for port in 40_000..40_000 + QUEUES as u16 {
            let network = self::network(port, port, tells_queues);
            let _chosen = connect(&network, Some(&format!("{OWN}:{port}"))).unwrap();
            for _ in 0..QUEUES {
                assert_eq!(connect(&network, None).err(), Some(ErrorKind::AddrNotAvailable));
            }
        }
    }
}

#[test]
fn nor_from_one_of_a_listener_to_a_peer_whose_connection_it_has() {
    let silent =
        |inner| Arc::new(Wrapped { tells_queues: false, ..Wrapped::new(inner, |queue| queue) }) as Arc<dyn Device>;
    let pair = Pair::with(QUEUES, silent, NapiSettings::default());
    let listener = pair.listener(80);
    // The connections come by all of the queues.
    for _ in 0..4 * QUEUES {
        let client = pair.connect(80);
        let (_server, peer) = listener.accept().unwrap();
        let local = Some(SocketAddr::new(SERVER.parse().unwrap(), 80));
        let again = TcpStream::start_connect(&pair.server, local, peer, ConnectOptions::default());
        assert_eq!(again.err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        assert_eq!(client.local_addr().unwrap(), peer);
    }
}

#[test]
fn two_shards_never_choose_the_same_port_for_datagrams() {
    const PORTS: u16 = 8;
    let network = network(40_000, 40_000 + PORTS - 1, false);
    let bind = |queue, port| {
        let local = SocketAddr::new(OWN.parse().unwrap(), port);
        UdpSocket::bind_with(&network, queue, local, UdpOptions::default())
    };
    // One of the ports is taken by name.
    let mut sockets = vec![bind(QUEUES - 1, 40_003).unwrap()];
    sockets.extend((1..usize::from(PORTS)).map(|nth| bind(nth % QUEUES, 0).unwrap()));
    let ports: HashSet<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    assert_eq!(ports.len(), usize::from(PORTS));
    for queue in 0..QUEUES {
        assert_eq!(bind(queue, 0).err().map(|error| error.kind()), Some(ErrorKind::AddrNotAvailable));
    }
    // A port that is free again can be had by any shard.
    drop(sockets.pop());
    assert!((0..QUEUES).all(|queue| bind(queue, 0).is_ok()));
}
