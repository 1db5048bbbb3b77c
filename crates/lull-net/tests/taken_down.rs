//! A panic above one queue of a network. Its sockets fail with ENETDOWN, and whoever waits is told; other queues, other
//! networks and the process go on.

mod pair;
mod wrapped;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lull_host::{GroupOptions, Host, HostConfig};
use lull_net::{
    GroupCpus, Interest, Network, NetworkConfig, Qdisc, Ready, TcpListener, TcpStream, UdpOptions, UdpSocket,
};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Doorbell, Frame, FramePool, IrqLine, IrqSink, Queue, RxQueue, TxQueue};
use pair::{CLIENT, LOST, Pair, SERVER, until, wait};
use wrapped::Wrapped;

/// The device panics when it is asked where flows from this port arrive.
const PANICS_IN_RSS: u16 = 7;

/// It panics in the next poll that takes frames, once it was told to.
struct PanicsRx(Box<dyn RxQueue>, Arc<AtomicBool>);

impl RxQueue for PanicsRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let taken = self.0.poll(budget, pool, deliver);
        if taken > 0 && self.1.swap(false, Ordering::AcqRel) {
            panic!("a bug above queue 0");
        }
        taken
    }
}

/// A device whose queue 0 panics when `armed`.
fn panics(armed: Arc<AtomicBool>) -> impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device> {
    move |inner| {
        let queue = move |mut queue: Queue| {
            if queue.index == 0 {
                queue.rx = Box::new(PanicsRx(queue.rx, armed.clone()));
            }
            queue
        };
        let rss = |source: SocketAddr| assert!(source.port() != PANICS_IN_RSS, "a bug in the device");
        Arc::new(Wrapped { rss_asked: Box::new(rss), ..Wrapped::new(inner, queue) })
    }
}

#[track_caller]
fn assert_down<T>(result: io::Result<T>) {
    let error = result.err().expect("the queue is down");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NETDOWN.raw_os_error()), "{error}");
}

/// Makes connections to a listener over both queues, until each queue has one. Returns the server's and the client's
/// end for each queue.
fn connections_on_both(pair: &Pair, listener: &TcpListener, port: u16) -> [(TcpStream, TcpStream); 2] {
    let ids: Vec<u32> = pair.server.napis().into_iter().map(|napi| pair.host.napi_id(napi)).collect();
    let mut found = [None, None];
    while found.iter().any(Option::is_none) {
        let client = pair.connect(port);
        let (server, _) = listener.accept().unwrap();
        let queue = ids.iter().position(|id| *id == server.incoming_napi_id()).unwrap();
        found[queue] = Some((server, client));
    }
    found.map(Option::unwrap)
}

#[test]
fn sockets_of_the_queue_fail_and_its_waiters_are_told_while_the_other_queue_goes_on() {
    let armed = Arc::new(AtomicBool::new(false));
    let pair = Pair::with(2, panics(armed.clone()), lull_core::NapiSettings::default());
    let listener = pair.listener(80);
    let [(bad, bad_client), (good, good_client)] = connections_on_both(&pair, &listener, 80);
    let address = SocketAddr::new(SERVER.parse().unwrap(), 53);
    let udp = UdpSocket::bind_with(&pair.server, 0, address, UdpOptions::default()).unwrap();

    // One thread is blocked in a read on the queue, and another waits in epoll.
    let mut reader = bad.clone();
    let blocked = std::thread::spawn(move || reader.read(&mut [0; 64]));
    let epoll = pair.epoll(&udp, Interest::READABLE);
    let worker = pair.worker();
    armed.store(true, Ordering::Release);
    (&bad_client).write_all(b"the last words").unwrap();

    let events = wait(&epoll, &worker, 8, LOST);
    assert!(events[0].ready.contains(Ready::ERR | Ready::HUP), "{events:?}");
    assert_down(blocked.join().unwrap());
    assert_down((&bad).write(b"x"));
    assert_down(udp.recv_from(&mut [0; 64]));
    assert_down(bad.local_addr());
    assert_down(UdpSocket::bind_with(&pair.server, 0, SocketAddr::new(address.ip(), 54), UdpOptions::default()));
    assert_down(TcpListener::bind_with(&pair.server, Some(0), SocketAddr::new(address.ip(), 81), Default::default()));
    drop((bad, udp));
    goes_on_by_the_other_queue(&pair, &listener);

    let echo = |text: &[u8]| {
        (&good_client).write_all(text).unwrap();
        let mut got = vec![0; text.len()];
        (&good).read_exact(&mut got).unwrap();
        assert_eq!(got, text);
    };
    echo(b"still here");
    // The device comes back from a reset without the queue that is down.
    let failed = || pair.host.napis().iter().filter(|napi| napi.failure.is_some()).count();
    // The failure is noted after everybody was told.
    until("the failure is noted", || failed() == 1);
    pair.server.device().reset().unwrap();
    let napis = pair.server.napis();
    until("the reset", || pair.host.napi_id(napis[0]) == 0 && pair.host.napi_id(napis[1]) != 0);
    echo(b"and after a reset");
    drop(pair);
}

/// What is asked of a network and not of one queue is done by the queues that are up. Queue 0 is down.
fn goes_on_by_the_other_queue(pair: &Pair, listener: &TcpListener) {
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let far = TcpListener::bind(&pair.client, at(CLIENT, 90)).unwrap();
    let out: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(&pair.server, at(CLIENT, 90)).unwrap()).collect();
    assert!((0..4).all(|_| far.accept().is_ok()));
    drop(out);
    // A port that the program chooses belongs to the queue to which its segments come.
    let queues: Vec<Option<usize>> = (5000..5032)
        .map(|port| {
            let (own, remote) = (at(SERVER, port), at(CLIENT, 90));
            let queue = pair.server.device().rss_queue(remote, own);
            let stream = TcpStream::start_connect(&pair.server, Some(own), remote, Default::default());
            match queue {
                Some(0) => assert_down(stream),
                _ => drop(stream.unwrap()),
            }
            queue
        })
        .collect();
    assert!(queues.contains(&Some(0)) && queues.contains(&Some(1)));

    let table = pair.server.device().rss_table();
    pair.server.device().set_rss_table(&vec![1; table.len()]).unwrap();
    let new = TcpListener::bind(&pair.server, at(SERVER, 81)).unwrap();
    for (listener, port) in [(listener, 80), (&new, 81)] {
        assert_eq!(listener.local_addr().unwrap(), at(SERVER, port));
        listener.set_nonblocking(true).unwrap();
        // Whichever queue has its turn, the one that is down is not reported any more.
        for _ in 0..4 {
            assert_eq!(listener.accept().err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
            assert_eq!((listener.ready(), listener.arrivals().unwrap().1), (Ready::empty(), 0));
        }
        listener.set_nonblocking(false).unwrap();
        for _ in 0..2 {
            let client = pair.connect(port);
            assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
        }
    }
    let udp = UdpSocket::bind(&pair.server, at(SERVER, 55)).unwrap();
    udp.send_to(b"x", at(CLIENT, 55)).unwrap();
    pair.server.device().set_rss_table(&table).unwrap();
}

#[test]
fn a_group_mode_is_put_in_force_beside_a_queue_that_is_down() {
    let armed = Arc::new(AtomicBool::new(false));
    let (server, client) = mem::pair(MemConfig { queues: 2, peer_queues: Some(1), ..MemConfig::default() });
    let host = Host::new(HostConfig { cpus: vec![None; 4], ..HostConfig::default() }).unwrap();
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    let group = Some(GroupCpus { cpus: vec![3], options });
    let config = NetworkConfig { group, ..pair::config(SERVER, vec![0, 1]) };
    let server = Network::new(&host, panics(armed.clone())(Arc::new(server)), config).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![2])).unwrap();
    let pair = Pair { server, client, host };
    let listener = pair.listener(80);
    let [(_bad, bad_client), (good, good_client)] = connections_on_both(&pair, &listener, 80);
    armed.store(true, Ordering::Release);
    (&bad_client).write_all(b"the last words").unwrap();
    until("the failure is noted", || pair.host.napis().iter().any(|napi| napi.failure.is_some()));
    let _ = pair.server.set_mode(&"group".parse().unwrap()).unwrap();
    let [bad_napi, good_napi] = pair.server.napis()[..] else { panic!("two queues") };
    let members: Vec<u32> = pair.host.groups()[0].members.iter().map(|(napi, _)| *napi).collect();
    assert!(members.contains(&good_napi) && !members.contains(&bad_napi), "{members:?}");
    (&good_client).write_all(b"still here").unwrap();
    let mut got = [0; 10];
    (&good).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
}

/// The caller gets its own panic, and everybody else an error.
#[test]
fn a_panic_in_a_socket_call_takes_the_queue_down() {
    let pair = Pair::with(2, panics(Arc::default()), lull_core::NapiSettings::default());
    let listener = pair.listener(80);
    let connections = connections_on_both(&pair, &listener, 80);
    let remote = SocketAddr::new(pair::CLIENT.parse().unwrap(), PANICS_IN_RSS);
    let connect = || TcpStream::start_connect(&pair.server, None, remote, Default::default());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(connect)).is_err());
    let failed: Vec<bool> = pair.host.napis().iter().map(|napi| napi.failure.is_some()).collect();
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1, "{failed:?}");
    for (queue, (server, client)) in connections.iter().enumerate() {
        if failed[pair.server.napis()[queue] as usize] {
            assert_down((&*server).write(b"x"));
        } else {
            (&*client).write_all(b"y").unwrap();
            assert_eq!((&*server).read(&mut [0; 8]).unwrap(), 1);
        }
    }
}

/// It panics in the next doorbell, once it was told to.
struct PanicsTx(Box<dyn TxQueue>, Arc<AtomicBool>);

impl TxQueue for PanicsTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.transmit(frame)
    }
    fn doorbell(&mut self) -> Doorbell {
        assert!(!self.1.swap(false, Ordering::AcqRel), "a bug in the transmit half of the device");
        self.0.doorbell()
    }
    fn free_slots(&self) -> usize {
        self.0.free_slots()
    }
}

/// With a discipline somebody else has the ring: a sender, the queue's own NAPI, or a group's poller.
#[test]
fn a_panic_in_a_transmit_queue_takes_the_queue_down_and_it_can_be_taken_away() {
    for (from, to) in [("base", "group"), ("group", "base"), ("group50", "group50")] {
        let armed = Arc::new(AtomicBool::new(false));
        let (device, peer) = mem::pair(MemConfig::default());
        let _end = peer.take_queue(0).unwrap();
        let panics = armed.clone();
        let queue = move |mut queue: Queue| {
            queue.tx = Box::new(PanicsTx(queue.tx, panics.clone()));
            queue
        };
        let device = Wrapped::new(Arc::new(device), queue);
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
        let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
        let config = NetworkConfig {
            neighbours: vec![(CLIENT.parse().unwrap(), [2, 0, 0, 0, 0, 9])],
            qdisc: Some(Qdisc::Fq),
            group: Some(GroupCpus { cpus: vec![1], options }),
            ..pair::config(SERVER, vec![0])
        };
        let network = Network::new(&host, Arc::new(device), config.with_mode(&from.parse().unwrap())).unwrap();
        let socket = UdpSocket::bind(&network, SocketAddr::new(SERVER.parse().unwrap(), 53)).unwrap();
        let send = || socket.send_to(b"x", SocketAddr::new(CLIENT.parse().unwrap(), 53));
        send().unwrap();
        armed.store(true, Ordering::Release);
        // If a sender runs the queue, the panic is its own.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(send));
        until("the queue is down", || host.napis().iter().all(|napi| napi.failure.is_some()));
        // That nobody polls the queue any more is noted before its sockets are told.
        let mut sent = Ok(1);
        until("its sockets are told", || {
            sent = send();
            sent.is_err()
        });
        assert_down(sent);

        let goes = std::thread::spawn(move || {
            let _ = network.set_mode(&to.parse().unwrap());
            drop((socket, network));
        });
        until("the network goes", || goes.is_finished());
        goes.join().unwrap();
        until("its devices go", || host.napis().is_empty());
    }
}

/// In this state nothing happens.
const QUIET: u32 = 0;
/// In this state the next look at the ring panics.
const NEXT: u32 = 1;
/// In this state the look after the next panics.
const NEXT_BUT_ONE: u32 = 2;
/// In this state the next doorbell arms [`NEXT_BUT_ONE`].
const BEHIND_A_DOORBELL: u32 = 3;
/// In this state the next connection of the room interrupt arms [`NEXT`].
const BEHIND_A_CONNECT: u32 = 4;
/// In this state it has panicked.
const SPRUNG: u32 = 5;

struct Trap {
    tx: Box<dyn TxQueue>,
    when: Arc<AtomicU32>,
}

impl TxQueue for Trap {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.tx.transmit(frame)
    }
    fn doorbell(&mut self) -> Doorbell {
        let _ = self.when.compare_exchange(BEHIND_A_DOORBELL, NEXT_BUT_ONE, Ordering::AcqRel, Ordering::Acquire);
        self.tx.doorbell()
    }
    fn free_slots(&self) -> usize {
        self.tx.free_slots()
    }
    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        let turns = |from, to| self.when.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        assert!(!turns(NEXT, SPRUNG), "a bug in the transmit half of the device");
        turns(NEXT_BUT_ONE, NEXT);
        self.tx.reap_sent(pool)
    }
}

struct TrapLine {
    line: Arc<dyn IrqLine>,
    when: Arc<AtomicU32>,
}

impl IrqLine for TrapLine {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.line.connect(sink);
        let _ = self.when.compare_exchange(BEHIND_A_CONNECT, NEXT, Ordering::AcqRel, Ordering::Acquire);
    }
    fn mask(&self) {
        self.line.mask();
    }
    fn unmask(&self) {
        self.line.unmask();
    }
    fn pending(&self) -> Option<bool> {
        self.line.pending()
    }
}

#[test]
fn a_panic_in_the_ring_while_it_changes_hands_takes_its_queue_down_and_no_other() {
    for (from, to, when) in [("base", "group", BEHIND_A_DOORBELL), ("group", "base", BEHIND_A_CONNECT)] {
        let trap = Arc::new(AtomicU32::new(QUIET));
        let (device, peer) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
        let mut far = [peer.take_queue(0).unwrap(), peer.take_queue(1).unwrap()];
        let trapped = trap.clone();
        let queue = move |mut queue: Queue| {
            if queue.index == 0 {
                queue.tx = Box::new(Trap { tx: queue.tx, when: trapped.clone() });
                queue.tx_irq = Arc::new(TrapLine { line: queue.tx_irq, when: trapped.clone() });
            }
            queue
        };
        let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
        let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
        let config = NetworkConfig {
            neighbours: vec![(CLIENT.parse().unwrap(), [2, 0, 0, 0, 0, 9])],
            group: Some(GroupCpus { cpus: vec![1], options }),
            ..pair::config(SERVER, vec![0, 0])
        }
        .with_mode(&from.parse().unwrap());
        let network = Network::new(&host, Arc::new(Wrapped::new(Arc::new(device), queue)), config).unwrap();
        let socket = |queue, port| {
            let address = SocketAddr::new(SERVER.parse().unwrap(), port);
            UdpSocket::bind_with(&network, queue, address, UdpOptions::default()).unwrap()
        };
        let (bad, good) = (socket(0, 53), socket(1, 54));
        trap.store(when, Ordering::Release);
        let changes = {
            let network = network.clone();
            // This is refused if the group would have the queue that is down.
            std::thread::spawn(move || drop(network.set_mode(&to.parse().unwrap())))
        };
        until("the mode is changed", || changes.is_finished());
        changes.join().unwrap();
        assert_eq!(trap.load(Ordering::Acquire), SPRUNG);
        let peers = SocketAddr::new(CLIENT.parse().unwrap(), 53);
        assert_down(bad.send_to(b"x", peers));
        good.send_to(b"x", peers).unwrap();
        let mut arrives = |queue: &mut Queue| queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ()) > 0;
        until("the other queue sends", || far.iter_mut().any(&mut arrives));

        let goes = std::thread::spawn(move || drop((bad, good, network)));
        until("the network goes", || goes.is_finished());
        goes.join().unwrap();
        until("its devices go", || host.napis().is_empty());
    }
}
