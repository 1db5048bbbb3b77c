use lull_host::HostConfig;
use lull_nic::mem::{self, MemConfig};

use super::*;
use crate::shard::Ready;
use crate::wakes::Wakes;
use crate::{Network, NetworkConfig, UdpSocket};

#[test]
fn a_socket_that_is_taken_out_while_it_is_added_is_on_no_wait_list() {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap();
    let (port, _peer) = mem::pair(MemConfig::default());
    let address: std::net::SocketAddr = "10.0.0.1:9".parse().unwrap();
    let config = NetworkConfig { addresses: vec![(address.ip(), 24)], cpus: vec![0], ..NetworkConfig::default() };
    let network = Network::new(&host, Arc::new(port), config).unwrap();
    let socket = UdpSocket::bind(&network, address).unwrap();
    let epoll = Epoll::new(&host);
    // These are the steps of `add`, with another thread's `delete` in between.
    let item =
        Item::new(epoll.context(), Member::of(&socket), 1, Interest::READABLE | Interest::EXCLUSIVE, socket.parts());
    epoll.context().items().insert(item.member, item.clone());
    epoll.delete(&socket).unwrap();
    item.watch();
    assert_eq!(Arc::strong_count(&item), 1, "nobody else has it");
    // A wait list that has the item for a moment still goes on to the next one.
    assert!(!item.fire(Ready::READABLE, 0, &mut Wakes::default()));
    assert!(!epoll.context().is_available());
}

#[test]
fn a_wait_that_does_not_wait_is_not_interrupted() {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap();
    let worker = Worker::new(&host, 0).unwrap();
    let epoll = Epoll::new(&host);
    let wait = |timeout| epoll.wait_unless(&worker, &mut Vec::new(), 8, timeout, &|| true);
    assert_eq!(wait(Some(Duration::ZERO)).unwrap(), 0);
    for waits in [None, Some(Duration::from_secs(120))] {
        assert_eq!(wait(waits).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
