//! The MTU of an interface changes while a network is on it, as by `ip link set DEV mtu N`. The other end is the
//! kernel's TCP and UDP.

mod pair;
mod wrapped;

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use lull_host::{Host, HostConfig};
use lull_net::{Network, NetworkConfig, TcpListener, UdpOptions, UdpSocket};
use lull_nic::mem::{self, MemConfig};
use lull_nic::packet::{Packet, PacketConfig};
use lull_nic::xdp::{Xdp, XdpAddress, XdpConfig};
use lull_nic::{Device, DeviceEvent, FramePool, namespace};
use pair::{CLIENT, SERVER, until};
use wrapped::{Watcher, Wrapped};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 9);
const BYTES: usize = 4 << 20;
/// A wait in this file that takes this long has lost something.
const LOST: Duration = Duration::from_secs(120);

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn done(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The other end of a veth pair in its namespace, with the things that are done there, one after the other.
struct Peer {
    /// Sends work to a thread that stays in the namespace.
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl Peer {
    /// Moves the calling thread into a namespace with one end of a veth pair, `x0`. The error says what is missing for
    /// that.
    fn new() -> Result<Peer, String> {
        namespace::enter_private().map_err(|error| error.to_string())?;
        let (work, works) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || {
            namespace::enter_private().unwrap();
            works.into_iter().for_each(|work| work());
        });
        let peer = Peer { work };
        let namespace = peer.does(|| File::open("/proc/thread-self/ns/net").unwrap());
        let at = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        done(&format!("ip link add x0 type veth peer name x1 netns {at}"));
        done("ip link set x0 up");
        peer.does(|| {
            done(&format!("ip addr add {PEER}/24 dev x1"));
            done("ip link set x1 up");
        });
        Ok(peer)
    }

    fn does<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (tell, told) = mpsc::channel();
        self.work.send(Box::new(move || tell.send(work()).unwrap())).unwrap();
        told.recv().expect("it panicked")
    }
}

fn a_stream_goes_on(open: impl FnOnce() -> Arc<dyn Device>) {
    let peer = match Peer::new() {
        Ok(peer) => peer,
        Err(why) => return println!("SKIP: {why}"),
    };
    let device = open();
    let host = Host::new(HostConfig::default()).unwrap();
    let config = NetworkConfig { addresses: vec![(IpAddr::V4(OURS), 24)], ..NetworkConfig::default() };
    let network = Network::new(&host, device.clone(), config).unwrap();
    let listener = TcpListener::bind(&network, SocketAddr::new(IpAddr::V4(OURS), 7)).unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let all: Vec<u8> = (0..BYTES).map(pattern).collect();
        let mut left = &all[..];
        while !left.is_empty() {
            left = &left[stream.send(left).unwrap()..];
        }
        // This waits until the client has read everything.
        assert_eq!(stream.recv(&mut [0]).unwrap(), 0);
    });
    let (mut client, udp) = peer.does(|| {
        let udp = std::net::UdpSocket::bind((PEER, 7)).unwrap();
        (TcpStream::connect(SocketAddr::new(IpAddr::V4(OURS), 7)).unwrap(), udp)
    });
    client.set_read_timeout(Some(LOST)).unwrap();
    let mut got = vec![0; BYTES];
    // As the client does not read, the server is held up, and most of the stream is still to come.
    let (begin, rest) = got.split_at_mut(BYTES / 32);
    client.read_exact(begin).unwrap();
    done("ip link set x0 mtu 1400");
    client.read_exact(rest).unwrap();
    assert!(got.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    drop(client);
    server.join().unwrap();
    assert_eq!(device.info().mtu_bytes, 1400);

    // A datagram that fitted before leaves in fragments now.
    udp.set_read_timeout(Some(LOST)).unwrap();
    let socket = UdpSocket::bind(&network, SocketAddr::new(IpAddr::V4(OURS), 8)).unwrap();
    assert_eq!(socket.send_to(&[8; 1450], SocketAddr::new(IpAddr::V4(PEER), 7)).unwrap(), 1450);
    let mut datagram = [0; 2000];
    assert_eq!(udp.recv(&mut datagram).unwrap(), 1450);
    assert!(datagram[..1450].iter().all(|byte| *byte == 8));
}

#[test]
fn connections_over_af_xdp_outlive_a_lower_mtu() {
    a_stream_goes_on(|| {
        let addresses = vec![XdpAddress { ip: IpAddr::V4(OURS), is_hosts: false }];
        Arc::new(Xdp::open(&XdpConfig { name: "x0".to_owned(), addresses, ..XdpConfig::default() }).unwrap())
    });
}

#[test]
fn connections_over_a_packet_socket_outlive_a_lower_mtu() {
    a_stream_goes_on(|| {
        let config = PacketConfig { name: "x0".to_owned(), addresses: vec![IpAddr::V4(OURS)] };
        Arc::new(Packet::open(&config).unwrap())
    });
}

#[test]
fn an_mtu_that_is_lowered_while_a_network_is_made_is_not_replaced_by_the_one_that_was_read_before() {
    let (peer, port) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
    let (watcher, readings) = (Arc::new(OnceLock::<Watcher>::new()), AtomicUsize::new(0));
    let watches = watcher.clone();
    let mtu_bytes = move |mtu_bytes: usize| {
        let Some(watcher) = watcher.get() else { return mtu_bytes };
        if readings.fetch_add(1, Ordering::Relaxed) > 0 {
            return 1400;
        }
        // The MTU changes as soon as it was read, and the thread that is told of it goes on, if it is not kept waiting
        // until this returns.
        watcher(DeviceEvent::Mtu);
        (0..10_000).for_each(|_| std::thread::yield_now());
        mtu_bytes
    };
    let device = Wrapped {
        mtu_bytes: Box::new(mtu_bytes),
        watched: Box::new(move |watcher| _ = watches.set(watcher)),
        ..Wrapped::new(Arc::new(port), |queue| queue)
    };
    let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
    let server = (SERVER.parse().unwrap(), [2, 0, 0, 0, 0, 1]);
    let config = NetworkConfig { neighbours: vec![server], ..pair::config(CLIENT, vec![0, 1]) };
    let network = Network::new(&host, Arc::new(device), config).unwrap();
    let mut far = [peer.take_queue(0).unwrap(), peer.take_queue(1).unwrap()];
    for queue in 0..2 {
        let from = SocketAddr::new(CLIENT.parse().unwrap(), 1000 + queue as u16);
        let socket = UdpSocket::bind_with(&network, queue, from, UdpOptions::default()).unwrap();
        // The datagram is longer than 1,400 bytes, so that it leaves in two fragments then.
        until("a datagram in fragments", || {
            assert_eq!(socket.send_to(&[8; 1450], SocketAddr::new(server.0, 7)).unwrap(), 1450);
            let mut frames = |far: &mut lull_nic::Queue| far.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
            far.iter_mut().map(&mut frames).sum::<usize>() == 2
        });
    }
}
