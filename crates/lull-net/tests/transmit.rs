//! Transmit queues with a discipline (§16): the sockets and the contract are the same, and another thread sends.

mod pair;
mod wrapped;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lull_host::{GroupOptions, Host, HostConfig};
use lull_net::{GroupCpus, Mode, Network, NetworkConfig, Qdisc, Ready, TcpListener, TcpStream, UdpOptions, UdpSocket};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Doorbell, Frame, FramePool, IrqLine, IrqSink, Queue, TxQueue};
use pair::{CLIENT, SERVER, until};
use wrapped::Wrapped;

const PORT: u16 = 9;
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A host whose CPUs 2 and 3 may be a group's.
fn host() -> Host {
    Host::new(HostConfig { cpus: vec![None; 4], ..HostConfig::default() }).unwrap()
}

fn group() -> Option<GroupCpus> {
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    Some(GroupCpus { cpus: vec![2, 3], options })
}

/// Two networks of lull's, each with this discipline. The server's is in this mode.
fn networks(qdisc: Option<Qdisc>, mode: &str, slots: usize) -> (Network, Network) {
    let (server, client) = mem::pair(MemConfig { ring_slots: slots, ..MemConfig::default() });
    let host = host();
    let mode: Mode = mode.parse().unwrap();
    let config = |ip, cpu| NetworkConfig { qdisc, group: group(), ..pair::config(ip, vec![cpu]) };
    let server = Network::new(&host, Arc::new(server), config(SERVER, 0).with_mode(&mode)).unwrap();
    let client = Network::new(&host, Arc::new(client), config(CLIENT, 1)).unwrap();
    (server, client)
}

/// Sends and receives `bytes` on this many connections at once, and compares them.
fn streams(server: &Network, client: &Network, connections: u8, bytes: usize) {
    let listener = TcpListener::bind(server, address(SERVER, PORT)).unwrap();
    thread::scope(|scope| {
        for nth in 0..connections {
            let mut sends = TcpStream::connect(client, address(SERVER, PORT)).unwrap();
            let (mut echoes, _) = listener.accept().unwrap();
            let mut receives = sends.clone();
            scope.spawn(move || {
                let mut buffer = vec![0; 8_000];
                let mut rest = bytes;
                while rest > 0 {
                    let count = echoes.read(&mut buffer).unwrap();
                    assert!(count > 0);
                    echoes.write_all(&buffer[..count]).unwrap();
                    rest -= count;
                }
            });
            scope.spawn(move || {
                let data: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8 ^ nth).collect();
                data.chunks(3_000).for_each(|chunk| sends.write_all(chunk).unwrap());
            });
            scope.spawn(move || {
                let mut got = vec![0; bytes];
                receives.read_exact(&mut got).unwrap();
                assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8 ^ nth), "connection {nth}");
            });
        }
    });
}

#[test]
fn streams_are_whole_with_every_discipline_whoever_sends() {
    for qdisc in [None, Some(Qdisc::NoQueue), Some(Qdisc::PfifoFast), Some(Qdisc::Fq)] {
        for mode in ["base", "threaded", "group-rx", "group", "group50"] {
            let (server, client) = networks(qdisc, mode, 64);
            streams(&server, &client, 3, 100_000);
            let in_force = match qdisc {
                None if mode == "group" || mode == "group50" => Qdisc::PfifoFast,
                other => other.unwrap_or_default(),
            };
            assert_eq!(server.qdisc(), in_force, "{qdisc:?} {mode}");
            let stats = server.transmit_stats();
            let sends_there = in_force != Qdisc::NoQueue || mode == "group" || mode == "group50";
            assert_eq!(stats.len(), usize::from(sends_there), "{qdisc:?} {mode}");
            for stats in stats {
                assert!(stats.frames > 0 && stats.doorbells > 0, "{qdisc:?} {mode}: {stats:?}");
                if mode == "group" || mode == "group50" {
                    assert!(stats.runs <= 2, "senders ran beside a group: {stats:?}");
                }
            }
        }
    }
}

#[test]
fn a_mode_takes_transmitting_over_and_gives_it_back_under_load() {
    let (server, client) = networks(None, "base", 64);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, client, over) = (&server, &client, &over);
        scope.spawn(move || {
            for mode in ["group", "base", "group-rx", "group50", "suspend20", "group", "base"].iter().cycle().take(28) {
                // No context waits here, so there is no application's half.
                let _ = server.set_mode(&mode.parse().unwrap()).unwrap();
                assert_eq!(server.transmit_napis().is_empty(), !matches!(*mode, "group" | "group50"), "{mode}");
            }
            over.store(true, Ordering::Relaxed);
        });
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                streams(server, client, 2, 60_000);
            }
        });
    });
    streams(&server, &client, 2, 60_000);
}

/// A network of lull's at one end of a wire. The other end belongs to the test, which alone decides when there is room.
struct Bench {
    _peer: MemPort,
    queue: Queue,
    network: Network,
    pool: FramePool,
}

impl Bench {
    fn new(qdisc: Qdisc, mode: &str, slots: usize) -> Bench {
        Bench::with(Some(qdisc), mode, slots, |port| port)
    }

    fn with(
        qdisc: Option<Qdisc>,
        mode: &str,
        slots: usize,
        decorate: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
    ) -> Bench {
        let (peer, port) = mem::pair(MemConfig { ring_slots: slots, ..MemConfig::default() });
        let host = host();
        let config = NetworkConfig {
            neighbours: vec![(SERVER.parse().unwrap(), PEER_MAC)],
            qdisc,
            group: group(),
            ..pair::config(CLIENT, vec![0])
        };
        let mode: Mode = mode.parse().unwrap();
        let network = Network::new(&host, decorate(Arc::new(port)), config.with_mode(&mode)).unwrap();
        Bench { queue: peer.take_queue(0).unwrap(), _peer: peer, network, pool: FramePool::new(64) }
    }

    fn socket(&self, port: u16) -> UdpSocket {
        UdpSocket::bind(&self.network, address(CLIENT, port)).unwrap()
    }

    fn take(&mut self, budget: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.queue.rx.poll(budget, &mut self.pool, &mut |frame, _| frames.push(frame));
        frames
    }

    /// The UDP datagrams that come until there are `count` of them: the source port and the payload's first byte of
    /// each.
    fn datagrams(&mut self, count: usize) -> Vec<(u16, u8)> {
        let mut got = Vec::new();
        until("the datagrams", || {
            for frame in self.take(64) {
                let data = frame.data();
                // This looks for Ethernet, IPv4 and UDP.
                if data.len() > 42 && data[12..14] == [8, 0] && data[23] == 17 {
                    got.push((u16::from_be_bytes([data[34], data[35]]), data[42]));
                }
            }
            got.len() >= count
        });
        got
    }
}

#[test]
fn senders_that_find_no_room_go_on_when_there_is_some_and_nothing_is_lost() {
    for qdisc in [Qdisc::NoQueue, Qdisc::PfifoFast, Qdisc::Fq] {
        for mode in ["base", "group", "group50"] {
            if qdisc == Qdisc::NoQueue && mode == "base" {
                // Nothing stands between the shard and its ring here; `full_ring.rs` has tests for that.
                continue;
            }
            let mut bench = Bench::new(qdisc, mode, 32);
            let socket = bench.socket(1000);
            let flood = thread::spawn(move || {
                (0..5_000u32)
                    .for_each(|nth| assert_eq!(socket.send_to(&[nth as u8; 900], address(SERVER, PORT)).unwrap(), 900));
            });
            // A discipline bounds what it takes from one flow, and the sender waits before it drops any.
            let mut got = Vec::new();
            let dropped = |bench: &Bench| bench.network.transmit_stats()[0].dropped as usize;
            while got.len() + dropped(&bench) < 5_000 {
                got.extend(bench.datagrams(1));
                thread::yield_now();
            }
            flood.join().unwrap();
            assert_eq!((got.len(), dropped(&bench)), (5_000, 0), "{qdisc} {mode}");
            assert!(got.iter().enumerate().all(|(nth, (_, number))| *number == nth as u8), "{qdisc} {mode}: in order");
        }
    }
}

#[test]
fn a_ring_that_always_has_room_interrupts_nobody() {
    let (server, client) = networks(Some(Qdisc::Fq), "base", 64);
    let listener = TcpListener::bind(&server, address(SERVER, PORT)).unwrap();
    let mut asks = TcpStream::connect(&client, address(SERVER, PORT)).unwrap();
    let (mut answers, _) = listener.accept().unwrap();
    // One frame is on its way at a time. Its arrival is an interrupt of the CPU that would take those of the ring as
    // well.
    for nth in 0..100u8 {
        asks.write_all(&[nth]).unwrap();
        answers.read_exact(&mut [0]).unwrap();
        answers.write_all(&[nth]).unwrap();
        asks.read_exact(&mut [0]).unwrap();
    }
    let queue = server.transmit_napis()[0];
    assert!(server.transmit_stats()[0].frames >= 100);
    assert_eq!(server.host().napi_irqs(queue), 0, "{:?}", server.host().napi_stats(queue));
}

#[test]
fn a_socket_has_no_more_below_it_than_its_limit_and_is_told_when_it_has_less() {
    let mut bench = Bench::new(Qdisc::Fq, "base", 4);
    let socket = bench.socket(1000);
    // The socket is paced, so that two frames are its limit.
    socket.set_max_pacing_rate(Some(1_000_000)).unwrap();
    assert_eq!(socket.max_pacing_rate().unwrap(), Some(1_000_000));
    socket.set_nonblocking(true).unwrap();
    // A socket without a limit would never be told to wait, and the discipline would drop what is above its own limit.
    let sent = (0..1_000).take_while(|_| socket.send_to(&[7; 1_000], address(SERVER, PORT)).is_ok()).count();
    // The ring holds four frames, and the others below the limit wait above it.
    assert!((4..=16).contains(&sent), "{sent} frames below a paced socket");
    assert!(!socket.ready().contains(Ready::WRITABLE));
    // It does not hold up another socket.
    let other = bench.socket(1001);
    other.send_to(&[8; 100], address(SERVER, PORT)).unwrap();
    let got = bench.datagrams(sent + 1);
    assert_eq!(got.iter().filter(|(port, _)| *port == 1001).count(), 1);
    until("the socket writable", || socket.ready().contains(Ready::WRITABLE));
}

#[test]
fn a_paced_socket_keeps_its_rate_whoever_sends() {
    for mode in ["base", "group", "group50"] {
        let mut bench = Bench::new(Qdisc::Fq, mode, 256);
        let socket = bench.socket(1000);
        socket.set_max_pacing_rate(Some(2_000_000)).unwrap();
        let began = Instant::now();
        let sender = thread::spawn(move || {
            (0..100u8).for_each(|nth| assert!(socket.send_to(&[nth; 958], address(SERVER, PORT)).is_ok()));
        });
        let got = bench.datagrams(100);
        sender.join().unwrap();
        assert!(got.iter().enumerate().all(|(nth, (_, number))| *number == nth as u8), "in order");
        // 100 KB at 2 MB/s take 50 ms, less the first turn of ten frames of the longest kind. They may always take
        // longer.
        assert!(began.elapsed().as_millis() >= 35, "{mode}: {:?}", began.elapsed());
    }
}

#[test]
fn a_socket_in_the_place_of_a_paced_one_is_not_put_off_by_its_rate() {
    let mut bench = Bench::new(Qdisc::Fq, "base", 256);
    let paced = bench.socket(1000);
    // Each frame puts its flow off for as long as one may, which is a second.
    paced.set_max_pacing_rate(Some(1)).unwrap();
    paced.send_to(&[1; 100], address(SERVER, PORT)).unwrap();
    assert_eq!(bench.datagrams(1), [(1000, 1)]);
    drop(paced);
    let next = bench.socket(1001);
    next.send_to(&[2; 100], address(SERVER, PORT)).unwrap();
    assert_eq!(bench.datagrams(1), [(1001, 2)]);
    assert_eq!(bench.network.transmit_stats()[0].throttled, 0);
}

#[test]
fn a_paced_socket_in_the_place_of_another_is_not_held_up_by_what_that_left_behind() {
    let mut bench = Bench::new(Qdisc::Fq, "base", 256);
    let paced = bench.socket(1000);
    paced.set_max_pacing_rate(Some(1)).unwrap();
    // The first frame is sent, and the others leave a second after each other. They are as many as a paced socket may
    // have below it.
    (0..3).for_each(|nth| assert!(paced.send_to(&[nth; 1_472], address(SERVER, PORT)).is_ok()));
    // On a busy machine the second may be over before this looks.
    assert_eq!(bench.datagrams(1)[0], (1000, 0));
    drop(paced);
    // Each socket is in the place of the one before it.
    for port in 1001..1004 {
        let next = bench.socket(port);
        next.set_max_pacing_rate(Some(1_000_000)).unwrap();
        next.set_nonblocking(true).unwrap();
        assert_eq!(next.send_to(&[7; 100], address(SERVER, PORT)).unwrap(), 100);
        until("its datagram", || bench.datagrams(1).contains(&(port, 7)));
    }
}

#[test]
fn a_connection_in_the_place_of_a_paced_one_is_not_put_off_by_its_rate() {
    let (server, client) = networks(Some(Qdisc::Fq), "base", 64);
    let listener = TcpListener::bind(&server, address(SERVER, PORT)).unwrap();
    let mut paced = TcpStream::connect(&client, address(SERVER, PORT)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    paced.set_max_pacing_rate(Some(1)).unwrap();
    paced.write_all(&[1]).unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    // The reset is paced as well, and puts the flow off for a second.
    paced.set_reset_on_close(true).unwrap();
    drop(paced);
    assert!(accepted.read(&mut [0]).is_err());
    let before = client.transmit_stats()[0].throttled;
    let mut next = TcpStream::connect(&client, address(SERVER, PORT)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    next.write_all(&[2]).unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    assert_eq!(client.transmit_stats()[0].throttled, before);
}

#[test]
fn a_priority_passes_what_floods_in_its_band() {
    let mut bench = Bench::new(Qdisc::PfifoFast, "base", 8);
    let (flood, urgent) = (bench.socket(1000), bench.socket(1001));
    urgent.set_priority(6, false).unwrap();
    assert_eq!(urgent.priority().unwrap(), 6);
    assert!(urgent.set_priority(7, false).is_err(), "that takes a privilege");
    assert!(flood.set_priority(8, true).is_ok() && flood.set_priority(16, true).is_err());
    (0..200).for_each(|_| assert!(flood.send_to(&[1; 100], address(SERVER, PORT)).is_ok()));
    urgent.send_to(&[2; 100], address(SERVER, PORT)).unwrap();
    let got = bench.datagrams(201);
    let place = got.iter().position(|(port, _)| *port == 1001).unwrap();
    assert!(place <= 8, "it came {place}th, behind those that were on the ring");
}

/// A device that wants several doorbells for what is on its ring, as the kernel's AF_XDP sockets in copy mode do.
struct Again {
    inner: Box<dyn TxQueue>,
    refuses: u32,
}

impl TxQueue for Again {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.refuses = 3;
        self.inner.transmit(frame)
    }
    fn doorbell(&mut self) -> Doorbell {
        if self.refuses != 0 {
            self.refuses -= 1;
            return Doorbell::Again;
        }
        self.inner.doorbell()
    }
    fn free_slots(&self) -> usize {
        self.inner.free_slots()
    }
}

#[test]
fn a_device_that_takes_nothing_at_a_doorbell_is_rung_again_whoever_sends() {
    fn again(inner: Arc<dyn Device>) -> Arc<dyn Device> {
        let queue = |mut queue: Queue| {
            queue.tx = Box::new(Again { inner: queue.tx, refuses: 0 });
            queue
        };
        Arc::new(Wrapped::new(inner, queue))
    }
    for mode in ["base", "group", "group50"] {
        let mut bench = Bench::with(Some(Qdisc::Fq), mode, 32, again);
        let socket = bench.socket(1000);
        for nth in 0..20 {
            socket.send_to(&[nth; 10], address(SERVER, PORT)).unwrap();
            assert_eq!(bench.datagrams(1), [(1000, nth)], "{mode}");
        }
    }
}

#[test]
fn a_reset_and_the_end_of_the_network_leave_nothing_waiting() {
    for mode in ["base", "group"] {
        let (server, client) = networks(Some(Qdisc::Fq), mode, 64);
        streams(&server, &client, 1, 50_000);
        server.device().reset().unwrap();
        until("enabled again", || server.transmit_napis().iter().all(|napi| server.host().napi_id(*napi) != 0));
        let (server_too, client_too) = (server.clone(), client.clone());
        // Connections outlive a reset; new ones find a queue that sends.
        until("a connection after the reset", || {
            let listener = TcpListener::bind(&server_too, address(SERVER, PORT)).unwrap();
            let stream = TcpStream::connect(&client_too, address(SERVER, PORT));
            drop(listener);
            stream.is_ok()
        });
        let socket = UdpSocket::bind(&server, address(SERVER, 5)).unwrap();
        drop((server_too, server));
        // The thread that has enabled the queues after the reset may hold the network for a moment longer.
        until("its network is gone", || socket.send_to(b"x", address(CLIENT, 5)).is_err());
    }
}

/// It takes what is on the ring at a doorbell only while it is open, and counts the doorbells that it refuses.
struct Gate {
    inner: Box<dyn TxQueue>,
    gate: Arc<Passes>,
}

#[derive(Default)]
struct Passes {
    is_open: AtomicBool,
    refused: AtomicU32,
    /// The room interrupt, if it was unmasked while the gate is closed. Nothing raises it then.
    armed: Mutex<Option<Arc<dyn IrqLine>>>,
}

impl Passes {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn open(&self) {
        let mut armed = self.armed.lock().unwrap();
        self.is_open.store(true, Ordering::Release);
        armed.take().into_iter().for_each(|line| line.unmask());
    }
}

struct GateRoom {
    inner: Arc<dyn IrqLine>,
    gate: Arc<Passes>,
}

impl IrqLine for GateRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.inner.connect(sink);
    }
    fn mask(&self) {
        *self.gate.armed.lock().unwrap() = None;
        self.inner.mask();
    }
    fn unmask(&self) {
        let mut armed = self.gate.armed.lock().unwrap();
        if !self.gate.is_open() {
            *armed = Some(self.inner.clone());
            return;
        }
        drop(armed);
        self.inner.unmask();
    }
    fn pending(&self) -> Option<bool> {
        if self.gate.is_open() { self.inner.pending() } else { Some(false) }
    }
}

impl TxQueue for Gate {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.inner.transmit(frame)
    }
    fn doorbell(&mut self) -> Doorbell {
        if self.gate.is_open() {
            return self.inner.doorbell();
        }
        self.gate.refused.fetch_add(1, Ordering::Release);
        Doorbell::Again
    }
    fn free_slots(&self) -> usize {
        self.inner.free_slots()
    }
}

#[test]
fn a_ring_that_changes_hands_is_rung_again_for_what_its_last_doorbell_left() {
    for (from, to) in [("base", "group"), ("group", "base")] {
        let gate = Arc::new(Passes::default());
        let passes = gate.clone();
        let decorate = move |inner: Arc<dyn Device>| -> Arc<dyn Device> {
            let queue = move |mut queue: Queue| {
                queue.tx = Box::new(Gate { inner: queue.tx, gate: passes.clone() });
                queue.tx_irq = Arc::new(GateRoom { inner: queue.tx_irq, gate: passes.clone() });
                queue
            };
            Arc::new(Wrapped::new(inner, queue))
        };
        let mut bench = Bench::with(None, from, 32, decorate);
        let socket = bench.socket(1000);
        socket.send_to(&[7; 10], address(SERVER, PORT)).unwrap();
        until("a doorbell", || gate.refused.load(Ordering::Acquire) > 0);
        let _ = bench.network.set_mode(&to.parse().unwrap()).unwrap();
        assert!(bench.take(64).is_empty());
        gate.open();
        assert_eq!(bench.datagrams(1), [(1000, 7)], "{from} to {to}");
    }
}

#[test]
fn senders_that_wait_for_room_hear_of_it_where_a_discipline_is_refused_half_way() {
    let (peer, port) = mem::pair(MemConfig { ring_slots: 4, queues: 2, ..MemConfig::default() });
    // Two instances receive, and there is room for only one of the two that would send.
    let host = Host::new(HostConfig { cpus: vec![None; 4], napis_max: 3, ..HostConfig::default() }).unwrap();
    let config = NetworkConfig {
        neighbours: vec![(SERVER.parse().unwrap(), PEER_MAC)],
        group: group(),
        ..pair::config(CLIENT, vec![0, 1])
    };
    let network = Network::new(&host, Arc::new(port), config).unwrap();
    let mut far = [peer.take_queue(0).unwrap(), peer.take_queue(1).unwrap()];
    let socket = UdpSocket::bind_with(&network, 0, address(CLIENT, 1000), UdpOptions::default()).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.send_to(b"fills", address(SERVER, PORT)).is_ok() {}
    assert!(!socket.ready().contains(Ready::WRITABLE));

    let refused = network.set_mode(&"group".parse().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("napis_max"), "{refused}");
    far.iter_mut().for_each(|queue| _ = queue.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ()));
    until("the socket writable", || socket.ready().contains(Ready::WRITABLE));
}

/// Counts the frames that end a connection, by FIN or by RST, as they reach the ring.
struct CountsEnds {
    inner: Box<dyn TxQueue>,
    ends: Arc<AtomicU32>,
    /// Whether the wire takes [`PORTION`] frames, and then nothing for [`SLOWLY`].
    is_slow: Arc<AtomicBool>,
    portion: (usize, Instant),
}

const PORTION: usize = 8;
const SLOWLY: Duration = Duration::from_millis(40);

impl CountsEnds {
    fn takes_nothing(&self) -> bool {
        let (taken, since) = self.portion;
        self.is_slow.load(Ordering::Relaxed) && taken == PORTION && since.elapsed() < SLOWLY
    }
}

impl TxQueue for CountsEnds {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.takes_nothing() {
            return Err(frame);
        }
        if self.portion.0 == PORTION {
            self.portion = (0, Instant::now());
        }
        self.portion.0 += 1;
        // This looks for Ethernet, IPv4 and TCP.
        let data = frame.data();
        let ends = data.len() > 47 && data[12..14] == [8, 0] && data[23] == 6 && data[47] & 0b101 != 0;
        self.inner.transmit(frame)?;
        self.ends.fetch_add(u32::from(ends), Ordering::Relaxed);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        self.inner.doorbell()
    }

    fn free_slots(&self) -> usize {
        if self.takes_nothing() { 0 } else { self.inner.free_slots() }
    }
}

/// Two networks, a listener of the first, how many ends of connections the first one has put on its ring, and whether
/// its wire is slow.
fn that_ends(qdisc: Option<Qdisc>) -> (Network, Network, TcpListener, Arc<AtomicU32>, Arc<AtomicBool>) {
    let (server, client) = mem::pair(MemConfig { ring_slots: 64, ..MemConfig::default() });
    let (host, ends, is_slow) = (host(), Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, slow) = (ends.clone(), is_slow.clone());
    let counts = move |queue: Queue| {
        let portion = (0, Instant::now());
        let tx = CountsEnds { inner: queue.tx, ends: counted.clone(), is_slow: slow.clone(), portion };
        Queue { tx: Box::new(tx), ..queue }
    };
    let server = Wrapped::new(Arc::new(server), counts);
    let config =
        |ip, cpu| NetworkConfig { qdisc, group: group(), connections_max: 1_000, ..pair::config(ip, vec![cpu]) };
    let server = Network::new(&host, Arc::new(server), config(SERVER, 0)).unwrap();
    let client = Network::new(&host, Arc::new(client), config(CLIENT, 1)).unwrap();
    let listener = TcpListener::bind(&server, address(SERVER, PORT)).unwrap();
    (server, client, listener, ends, is_slow)
}

#[test]
fn the_end_of_a_paced_connection_has_left_when_the_process_ends() {
    let (server, client, listener, ends, _) = that_ends(Some(Qdisc::Fq));
    let mut peer = TcpStream::connect(&client, address(SERVER, PORT)).unwrap();
    let (mut paced, _) = listener.accept().unwrap();
    paced.set_max_pacing_rate(Some(1)).unwrap();
    paced.write_all(&[1]).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    until("all is acknowledged", || paced.unacknowledged().unwrap() == 0);
    server.end_all();
    assert_eq!(ends.load(Ordering::Relaxed), 1, "its flow is put off for a second");
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

#[test]
fn each_of_many_peers_is_told_when_the_process_ends_whoever_sends() {
    const CONNECTIONS: u32 = 300;
    let fq = Some(Qdisc::Fq);
    for (qdisc, mode) in [(None, "base"), (Some(Qdisc::PfifoFast), "base"), (fq, "base"), (fq, "group")] {
        // These are more than the ring holds, and more than a discipline takes of frames that are no socket's.
        let (mut connections, _networks) = where_all_ends_leave(CONNECTIONS, false, qdisc, mode);
        for (peer, _) in &mut connections {
            assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{qdisc:?} {mode}");
        }
    }
}

/// This many connections of a server that has ended, all of which it has put an end to on its ring, and the networks of
/// both.
fn where_all_ends_leave(
    count: u32,
    slowly: bool,
    qdisc: Option<Qdisc>,
    mode: &str,
) -> (Vec<(TcpStream, TcpStream)>, [Network; 2]) {
    let mut told = Vec::new();
    // A client that is kept from its CPU is a wire that takes nothing, for which the server waits 200 ms. This does not
    // happen in every try.
    for _ in 0..5 {
        let (server, client, listener, ends, is_slow) = that_ends(qdisc);
        let _ = server.set_mode(&mode.parse().unwrap()).unwrap();
        let connections: Vec<_> = (0..count).map(|_| with_unread_data(&client, &listener)).collect();
        is_slow.store(slowly, Ordering::Relaxed);
        server.end_all();
        told.push(ends.load(Ordering::Relaxed));
        if told.last() == Some(&count) {
            return (connections, [server, client]);
        }
    }
    panic!("{told:?} of {count} were told: {qdisc:?} {mode}");
}

/// Both ends of a connection whose server has data that it never reads.
fn with_unread_data(client: &Network, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut peer = TcpStream::connect(client, address(SERVER, PORT)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    peer.write_all(b"unread").unwrap();
    until("the data", || accepted.ready().contains(Ready::READABLE));
    (peer, accepted)
}

/// In all, the wire takes longer than a wire may that takes nothing.
#[test]
fn a_slow_wire_is_waited_for_while_it_takes_something_when_the_process_ends() {
    const CONNECTIONS: u32 = 72;
    for qdisc in [None, Some(Qdisc::PfifoFast)] {
        drop(where_all_ends_leave(CONNECTIONS, true, qdisc, "base"));
    }
}
