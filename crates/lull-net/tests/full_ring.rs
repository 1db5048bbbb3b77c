//! Senders that found the transmit ring full. Each of them goes on when there is room, and only then.

mod pair;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use lull_core::EpollParams;
use lull_host::{Host, HostConfig, Worker};
use lull_net::shard::{Batch, Io, ListenOptions, Stack, StackConfig};
use lull_net::{Epoll, Interest, Network, NetworkConfig, Ready, TcpStream, UdpSocket};
use lull_nic::fault::{Fault, FaultConfig};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Frame, FramePool, Link, Queue};
use pair::{CLIENT, SERVER, until};

const SLOTS: usize = 32;
const PORT: u16 = 9;
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn ports() -> (MemPort, MemPort) {
    mem::pair(MemConfig { ring_slots: SLOTS, ..MemConfig::default() })
}

/// A network of lull's at one end of a wire. The other end belongs to the test, which alone decides when there is room.
struct Bench {
    peer: Option<MemPort>,
    queue: Queue,
    network: Network,
    host: Host,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(|port| port)
    }

    fn with(decorate: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>) -> Bench {
        let (peer, port) = ports();
        let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap();
        let config =
            NetworkConfig { neighbours: vec![(SERVER.parse().unwrap(), PEER_MAC)], ..pair::config(CLIENT, vec![0]) };
        let network = Network::new(&host, decorate(Arc::new(port)), config).unwrap();
        Bench { queue: peer.take_queue(0).unwrap(), peer: Some(peer), network, host }
    }

    fn socket(&self, port: u16) -> UdpSocket {
        UdpSocket::bind(&self.network, address(CLIENT, port)).unwrap()
    }

    /// Sends until the ring is full. Returns how many datagrams that took.
    fn fill(&self, socket: &UdpSocket) -> usize {
        socket.set_nonblocking(true).unwrap();
        let sent = (0..).take_while(|_| socket.send_to(b"fills", address(SERVER, PORT)).is_ok()).count();
        socket.set_nonblocking(false).unwrap();
        assert!(!socket.ready().contains(Ready::WRITABLE));
        sent
    }

    /// Connects to a stack that the test drives by hand, and that sends nothing from then on.
    fn connect(&mut self) -> TcpStream {
        let mut config = StackConfig::new(PEER_MAC);
        config.addresses = vec![(SERVER.parse().unwrap(), 24)];
        let mut stack = Stack::new(config, Arc::default()).unwrap();
        stack.tcp_listen(address(SERVER, PORT), ListenOptions::default()).unwrap();
        let (mut pool, mut changes) = (FramePool::new(64), Vec::new());
        let network = self.network.clone();
        let connecting = thread::spawn(move || TcpStream::connect(&network, address(SERVER, PORT)).unwrap());
        until("the connection", || {
            for frame in self.take(64) {
                let mut io = Io {
                    now_ns: 1,
                    tx: &mut *self.queue.tx,
                    pool: &mut pool,
                    changes: &mut changes,
                    batch: Batch::NONE,
                };
                stack.receive(frame, &mut io);
            }
            self.queue.tx.doorbell();
            stack.counters().tcp_established > 0 && connecting.is_finished()
        });
        connecting.join().unwrap()
    }

    /// A socket that found the ring full, and a function that waits for its next edge with these parameters.
    fn full_and_watched(&self, params: &EpollParams) -> (UdpSocket, impl FnOnce() -> Ready + Send + use<>) {
        let socket = self.socket(1);
        let worker = Worker::new(&self.host, 0).unwrap();
        let epoll = Epoll::new(&self.host);
        epoll.set_busy_poll(params, false).unwrap();
        epoll.add(&socket, 7, Interest::WRITABLE | Interest::EDGE).unwrap();
        assert_eq!(pair::wait(&epoll, &worker, 8, pair::LOST).len(), 1, "writable at first");
        self.fill(&socket);
        assert!(pair::wait(&epoll, &worker, 8, Duration::ZERO).is_empty());
        let wait = move || {
            let events = pair::wait(&epoll, &worker, 8, pair::LOST);
            assert_eq!((events.len(), events[0].key), (1, 7));
            events[0].ready
        };
        (socket, wait)
    }

    fn take(&mut self, budget: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.queue.rx.poll(budget, &mut FramePool::new(0), &mut |frame, _| frames.push(frame));
        frames
    }
}

/// This goes the whole way between two networks: 200,000 datagrams pass a ring of 32 slots.
#[test]
fn a_blocking_datagram_sender_goes_on() {
    const DATAGRAMS: usize = 200_000;
    let (server, client) = ports();
    let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() }).unwrap();
    let server = Network::new(&host, Arc::new(server), pair::config(SERVER, vec![0])).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![1])).unwrap();
    let to = address(SERVER, PORT);
    let sink = UdpSocket::bind(&server, to).unwrap();
    let sender = UdpSocket::bind(&client, address(CLIENT, PORT)).unwrap();
    // This makes the neighbour known before the stream begins.
    sender.send_to(b"first", to).unwrap();
    sink.recv_from(&mut [0; 8]).unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    thread::spawn(move || {
        for _ in 0..DATAGRAMS {
            sender.send_to(&[0; 64], to).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    until("the last datagram", || sent.load(Ordering::SeqCst) == DATAGRAMS);
}

/// Nobody is told of room that does not exist, and one free slot is enough for all to be told.
#[test]
fn all_senders_on_a_ring_go_on() {
    const SENDERS: u16 = 8;
    const DATAGRAMS: usize = 50;
    let mut bench = Bench::new();
    let filled = bench.fill(&bench.socket(1));
    assert_eq!(filled, SLOTS);
    let sent = Arc::new(AtomicUsize::new(0));
    let begin = Arc::new(Barrier::new(usize::from(SENDERS) + 1));
    for sender in 0..SENDERS {
        let (socket, sent, begin) = (bench.socket(100 + sender), sent.clone(), begin.clone());
        thread::spawn(move || {
            begin.wait();
            for _ in 0..DATAGRAMS {
                socket.send_to(b"waits", address(SERVER, PORT)).unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    begin.wait();
    assert_eq!(sent.load(Ordering::SeqCst), 0, "the ring is full");
    let mut received = 0;
    until("every sender's last datagram", || {
        received += bench.take(1).len();
        received == SLOTS + usize::from(SENDERS) * DATAGRAMS
    });
    assert_eq!(sent.load(Ordering::SeqCst), usize::from(SENDERS) * DATAGRAMS);
}

#[test]
fn epoll_reports_room_to_a_nonblocking_sender() {
    let mut bench = Bench::new();
    let (socket, waits) = bench.full_and_watched(&EpollParams::default());
    let waiter = thread::spawn(waits);
    assert_eq!(bench.take(1).len(), 1);
    assert!(waiter.join().unwrap().contains(Ready::WRITABLE));
    assert_eq!(socket.send_to(b"goes", address(SERVER, PORT)).unwrap(), 4);
}

/// A busy poller, who owns the NAPI for longer than anybody waits, looks for room by itself: no frame comes, and the
/// room interrupt only asks the owner to look again.
#[test]
fn a_busy_poller_hears_of_room() {
    let mut bench = Bench::new();
    let params = EpollParams { busy_poll_usecs: i32::MAX as u32, ..EpollParams::default() };
    let (_socket, waits) = bench.full_and_watched(&params);
    let calls = |bench: &Bench| bench.host.napis()[0].stats.busy_calls;
    let before = calls(&bench);
    let waiter = thread::spawn(waits);
    until("the busy poll", || calls(&bench) > before);
    assert_eq!(bench.take(1).len(), 1);
    assert!(waiter.join().unwrap().contains(Ready::WRITABLE));
}

/// A TCP connection whose segments found the ring full sends them when there is room. No frame is received meanwhile.
/// Timers cannot be the cause: retransmissions come after 1, 3, 7 and 15 s, and this test has more rounds than that.
#[test]
fn tcp_goes_on_without_a_frame_or_a_timer() {
    let mut bench = Bench::new();
    let stream = bench.connect();
    // The far end acknowledges nothing.
    stream.set_nodelay(true).unwrap();
    for round in 0..20 {
        let data = format!("round {round:02}");
        bench.fill(&bench.socket(1));
        (&stream).write_all(data.as_bytes()).unwrap();
        assert!(stream.ready().contains(Ready::WRITABLE), "its own buffer has room");
        let datagrams = bench.take(SLOTS);
        assert!(datagrams.iter().all(|frame| frame.data().ends_with(b"fills")));
        until("the segment", || bench.take(1).iter().any(|frame| frame.data().ends_with(data.as_bytes())));
    }
}

/// A cork does not hold back a doorbell for which somebody waits, as room comes only after it.
#[test]
fn a_full_ring_ends_a_cork() {
    let mut bench = Bench::new();
    let (network, socket) = (bench.network.clone(), bench.socket(1));
    // The rest of the ring is not a multiple of what a cork holds back at most.
    assert_eq!(socket.send_to(b"first", address(SERVER, PORT)).unwrap(), 5);
    let _cork = network.cork(0);
    assert_eq!(bench.fill(&socket), SLOTS - 1);
    assert_eq!(bench.take(64).len(), SLOTS);
}

/// A link that goes down takes what waits for it, as Linux drops what a device without carrier is given.
#[test]
fn a_link_that_goes_down_drops_what_waits() {
    let bench = Bench::new();
    let (socket, waits) = bench.full_and_watched(&EpollParams::default());
    bench.peer.as_ref().unwrap().set_link(Link::Down).unwrap();
    assert!(waits().contains(Ready::WRITABLE));
    // All datagrams are lost, and none waits.
    for _ in 0..2 * SLOTS {
        assert_eq!(socket.send_to(b"lost", address(SERVER, PORT)).unwrap(), 4);
    }
    assert!(bench.network.device().counters(0).tx_dropped >= SLOTS as u64);
}

/// Without a device there is no route, and whoever waited for one is told so.
#[test]
fn a_device_that_goes_leaves_no_sender_waiting() {
    let mut bench = Bench::new();
    let socket = bench.socket(1);
    bench.fill(&socket);
    let sender = socket.clone();
    let blocked = thread::spawn(move || {
        loop {
            if let Err(error) = sender.send_to(b"waits", address(SERVER, PORT)) {
                return error;
            }
        }
    });
    bench.peer = None;
    assert_eq!(blocked.join().unwrap().kind(), std::io::ErrorKind::NetworkUnreachable);
}

/// The room interrupt may come late (an injector of faults holds it back), and a reset masks it. Nobody waits for ever.
#[test]
fn senders_go_on_through_late_room_interrupts_and_resets() {
    const DATAGRAMS: usize = 2_000;
    let faults = Arc::new(Mutex::new(None));
    let kept = faults.clone();
    let mut bench = Bench::with(move |port| {
        let config = FaultConfig { room_hold_ns: 200_000, ..FaultConfig::default() };
        let fault = Arc::new(Fault::new(port, config).unwrap());
        *kept.lock().unwrap() = Some(fault.clone());
        fault
    });
    let fault = faults.lock().unwrap().take().unwrap();
    let socket = bench.socket(1);
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    thread::spawn(move || {
        for _ in 0..DATAGRAMS {
            socket.send_to(b"goes", address(SERVER, PORT)).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut resets = 0;
    until("the last datagram", || {
        bench.take(64);
        let sent = sent.load(Ordering::SeqCst);
        if resets < 10 && sent >= resets * DATAGRAMS / 10 {
            resets += 1;
            fault.reset().unwrap();
        }
        sent == DATAGRAMS
    });
    assert!(fault.stats().rooms_held > 0);
}
