//! The wire generator against the shard's TCP stack and the memcached service, in one thread and in virtual time, over
//! a pair of in-memory ports that may lose, repeat and reorder frames.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lull_lab::load::wire::{WireClient, WireConfig};
use lull_lab::load::{Arrivals, Clock, LoadError, Pace, Rng, Summary, Workload, WorkloadConfig};
use lull_lab::memcached::{Session, Store, StoreConfig};
use lull_net::shard::{Batch, Io, ListenOptions, Neighbours, NetError, SocketId, Stack, StackConfig};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Frame, FramePool, Queue, RxQueue};

const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 11_211;
const NOW_S: u32 = 1_700_000_000;
/// A turn of both sides takes this long.
const TURN_NS: u64 = 20_000;
/// The time that is skipped if neither side did anything.
const IDLE_NS: u64 = 500_000;

/// Probabilities, for each frame.
#[derive(Clone, Copy, Default)]
struct Faults {
    drop: f64,
    duplicate: f64,
    reorder: f64,
}

/// A receive queue that loses, repeats and reorders frames, in the same way for the same seed.
struct Faulty {
    inner: Box<dyn RxQueue>,
    faults: Faults,
    rng: Rng,
    held: Option<Frame>,
    dead: Arc<AtomicBool>,
}

impl RxQueue for Faulty {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let Faulty { inner, faults, rng, held, dead } = self;
        let mut delivered = 0;
        let taken = inner.poll(budget, pool, &mut |frame, pool| {
            let [drop, duplicate, reorder] = [rng.unit(), rng.unit(), rng.unit()];
            if dead.load(Relaxed) || drop < faults.drop {
                return pool.recycle(frame);
            }
            let copy = (duplicate < faults.duplicate).then(|| frame.clone());
            if reorder < faults.reorder && held.is_none() {
                *held = Some(frame);
            } else {
                deliver(frame, pool);
                delivered += 1;
                if let Some(frame) = held.take() {
                    deliver(frame, pool);
                    delivered += 1;
                }
            }
            if let Some(frame) = copy {
                deliver(frame, pool);
                delivered += 1;
            }
        });
        if taken == 0
            && let Some(frame) = held.take()
        {
            deliver(frame, pool);
            delivered += 1;
        }
        delivered
    }
}

struct Connection {
    session: Session,
    unread: Vec<u8>,
    out: Vec<u8>,
    closing: bool,
}

struct Server {
    stack: Stack,
    queue: Queue,
    pool: FramePool,
    listener: SocketId,
    connections: BTreeMap<u64, Connection>,
    store: Store,
}

impl Server {
    fn new(queue: Queue, buffer_bytes: usize) -> Server {
        let mut config = StackConfig::new(SERVER.0);
        config.addresses = vec![(IpAddr::V4(SERVER.1), 24)];
        config.tx_checksum_offload = true;
        config.rx_buffer_bytes = buffer_bytes;
        config.tx_buffer_bytes = buffer_bytes;
        let mut stack = Stack::new(config, Arc::new(Neighbours::default())).expect("a valid configuration");
        let options = ListenOptions { nodelay: true, ..ListenOptions::default() };
        let local = SocketAddr::from((SERVER.1, PORT));
        let listener = stack.tcp_listen(local, options).expect("a listener");
        Server {
            stack,
            queue,
            pool: FramePool::new(1024),
            listener,
            connections: BTreeMap::new(),
            store: Store::new(StoreConfig::default()),
        }
    }

    /// Does one turn. Returns whether there was anything to do.
    fn turn(&mut self, now_ns: u64) -> bool {
        let mut frames = Vec::new();
        self.queue.rx.poll(64, &mut self.pool, &mut |frame, _| frames.push(frame));
        let mut changes = Vec::new();
        let mut worked = !frames.is_empty();
        macro_rules! io {
            () => {
                &mut Io {
                    now_ns,
                    tx: &mut *self.queue.tx,
                    pool: &mut self.pool,
                    changes: &mut changes,
                    batch: Batch::NONE,
                }
            };
        }
        for frame in frames {
            self.stack.receive(frame, io!());
        }
        if self.stack.next_deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.stack.run_timers(io!());
        }
        if self.stack.has_blocked() {
            self.stack.flush_blocked(io!());
        }
        let mut at = 0;
        // Calls may add changes, which are handled until none is left.
        while at < changes.len() {
            let socket = changes[at].socket;
            at += 1;
            worked = true;
            if socket == self.listener {
                while let Ok((id, _)) = self.stack.tcp_accept(self.listener) {
                    let connection =
                        Connection { session: Session::new(), unread: Vec::new(), out: Vec::new(), closing: false };
                    self.connections.insert(id.to_bits(), connection);
                    serve(&mut self.stack, &mut self.connections, &self.store, id, io!());
                }
            } else {
                serve(&mut self.stack, &mut self.connections, &self.store, socket, io!());
            }
        }
        self.queue.tx.doorbell();
        worked
    }

    fn close_all(&mut self, now_ns: u64) {
        let mut changes = Vec::new();
        for bits in std::mem::take(&mut self.connections).into_keys() {
            let io = &mut Io {
                now_ns,
                tx: &mut *self.queue.tx,
                pool: &mut self.pool,
                changes: &mut changes,
                batch: Batch::NONE,
            };
            self.stack.close(SocketId::from_bits(bits), io).expect("an open connection");
        }
        self.queue.tx.doorbell();
    }
}

fn serve(stack: &mut Stack, connections: &mut BTreeMap<u64, Connection>, store: &Store, id: SocketId, io: &mut Io<'_>) {
    let Some(connection) = connections.get_mut(&id.to_bits()) else { return };
    let mut buffer = [0; 2048];
    loop {
        match stack.tcp_send(id, &connection.out, io) {
            Ok(sent) => drop(connection.out.drain(..sent)),
            Err(NetError::WouldBlock) => {}
            Err(_) => connection.closing = true,
        }
        if !connection.out.is_empty() && !connection.closing {
            return;
        }
        match stack.tcp_recv(id, &mut buffer, io) {
            Ok(bytes @ 1..) => connection.unread.extend_from_slice(&buffer[..bytes]),
            Err(NetError::WouldBlock) => {}
            Ok(0) | Err(_) => connection.closing = true,
        }
        if connection.closing {
            connections.remove(&id.to_bits());
            let _ = stack.close(id, io);
            return;
        }
        if connection.unread.is_empty() {
            return;
        }
        let fed = connection.session.feed(&connection.unread, &mut connection.out, store, NOW_S);
        connection.unread.drain(..fed.consumed);
        connection.closing = fed.close;
    }
}

struct World<C: Clock> {
    now_ns: Rc<Cell<u64>>,
    client: WireClient<C>,
    server: Server,
    /// While set, frames towards the client are lost.
    dead: Arc<AtomicBool>,
    _ports: (MemPort, MemPort),
}

struct Set {
    connections: usize,
    faults: Faults,
    buffer_bytes: usize,
    offload: bool,
    workload: WorkloadConfig,
}

impl Default for Set {
    fn default() -> Set {
        Set {
            connections: 16,
            faults: Faults::default(),
            buffer_bytes: 16 * 1024,
            offload: true,
            workload: WorkloadConfig { records: 1000, ..WorkloadConfig::default() },
        }
    }
}

impl Set {
    fn world(self) -> World<impl Clock> {
        let offloads = lull_nic::Offloads { rx_checksum: self.offload, tx_checksum: self.offload, tso: false };
        let config = MemConfig { macs: [SERVER.0, CLIENT.0], offloads, ..MemConfig::default() };
        let (server_port, client_port) = mem::pair(config);
        let dead = Arc::new(AtomicBool::new(false));
        let faulty = |mut queue: Queue, seed, dead: &Arc<AtomicBool>| {
            let (inner, rng) = (queue.rx, Rng::new(seed));
            queue.rx = Box::new(Faulty { inner, faults: self.faults, rng, held: None, dead: dead.clone() });
            queue
        };
        let never = Arc::new(AtomicBool::new(false));
        let server_queue = faulty(server_port.take_queue(0).expect("a queue"), 1, &never);
        let client_queue = faulty(client_port.take_queue(0).expect("a queue"), 2, &dead);
        let workload = Arc::new(Workload::new(self.workload).expect("a valid workload"));
        let server = Server::new(server_queue, self.buffer_bytes);
        workload.for_each_record(|key, value| {
            server.store.store(lull_lab::memcached::StoreMode::Set, key, value, 0, 0, NOW_S);
        });
        let now_ns = Rc::new(Cell::new(1_000_000));
        let clock = {
            let now_ns = now_ns.clone();
            move || now_ns.get()
        };
        let config = WireConfig {
            tx_checksum_offload: self.offload,
            drain_ns_max: 60_000_000_000,
            silence_ns_max: 30_000_000_000,
            ..WireConfig::new(CLIENT, (SERVER.1, PORT), self.connections)
        };
        let client = WireClient::new(config, workload, client_queue, clock).expect("a valid configuration");
        World { now_ns, client, server, dead, _ports: (server_port, client_port) }
    }
}

impl<C: Clock> World<C> {
    /// Does a turn of both sides. Returns false when the client's load is over.
    fn turn(&mut self) -> Result<bool, LoadError> {
        let doorbells = self.client.recorder().doorbells();
        let running = self.client.poll()?;
        let served = self.server.turn(self.now_ns.get());
        let idle = !served && self.client.recorder().doorbells() == doorbells;
        self.now_ns.set(self.now_ns.get() + if idle { IDLE_NS } else { TURN_NS });
        Ok(running)
    }

    fn connect(&mut self) {
        let wanted = self.client.connections();
        for _ in 0..1_000_000 {
            self.turn().expect("no load, no error");
            if self.client.established() == wanted {
                return;
            }
        }
        panic!("{} of {wanted} connections are up", self.client.established());
    }

    fn run(&mut self, load: Pace, warmup_ms: u64, duration_ms: u64) -> Result<Summary, LoadError> {
        self.client.begin(load, Duration::from_millis(warmup_ms), Duration::from_millis(duration_ms))?;
        while self.turn()? {}
        Ok(self.client.finish())
    }
}

fn open(qps: f64, depth: u16) -> Pace {
    Pace::Open { qps, arrivals: Arrivals::Facebook, depth }
}

fn assert_all_answered(summary: &Summary) {
    assert!(summary.sent > 0, "{summary:?}");
    // The answers to what went out during the warm-up may come after it.
    assert!(summary.received >= summary.sent, "{summary:?}");
    let faults = (summary.misses, summary.errors, summary.lost, summary.unanswered);
    assert_eq!(faults, (0, 0, 0, 0), "{summary:?}");
}

#[test]
fn every_request_is_answered() {
    for offload in [true, false] {
        let mut world = Set { connections: 100, offload, ..Set::default() }.world();
        world.connect();
        for load in [open(50_000.0, 1), open(50_000.0, 4), Pace::Closed { depth: 1 }, Pace::Closed { depth: 3 }] {
            let summary = world.run(load, 1, 4).expect("a whole run");
            assert_all_answered(&summary);
            assert_eq!((summary.retransmits, summary.reconnects), (0, 0), "{summary:?}");
        }
        let preload = world.run(Pace::Preload { depth: 4 }, 0, 0).expect("a whole preload");
        assert_eq!((preload.stored, preload.sent), (1000, 1000));
    }
}

#[test]
fn large_values_pass_small_windows() {
    let workload = WorkloadConfig {
        records: 50,
        value: lull_lab::load::Distribution::Uniform(30_000.0),
        update_ratio: 0.5,
        ..WorkloadConfig::default()
    };
    let mut world = Set { connections: 4, buffer_bytes: 4096, workload, ..Set::default() }.world();
    world.connect();
    for depth in [1, 4] {
        let summary = world.run(Pace::Closed { depth }, 0, 40).expect("a whole run");
        assert_all_answered(&summary);
        assert!(summary.stored > 10 && summary.hits > 10, "{summary:?}");
    }
}

#[test]
fn losses_repeats_and_reordering_only_cost_time() {
    let faults = Faults { drop: 0.02, duplicate: 0.02, reorder: 0.02 };
    let mut world = Set { faults, ..Set::default() }.world();
    world.connect();
    for (load, duration_ms) in [(open(2000.0, 2), 1500), (Pace::Closed { depth: 2 }, 200)] {
        let summary = world.run(load, 0, duration_ms).expect("a whole run");
        assert_all_answered(&summary);
        assert!(summary.retransmits > 0 && summary.reconnects == 0, "{summary:?}");
    }
}

#[test]
fn a_link_that_flaps_is_survived() {
    let mut world = Set::default().world();
    world.connect();
    let (warmup, duration) = (Duration::ZERO, Duration::from_secs(4));
    world.client.begin(open(1000.0, 1), warmup, duration).expect("a valid load");
    let start_ns = world.now_ns.get();
    loop {
        let elapsed_ms = (world.now_ns.get() - start_ns) / 1_000_000;
        world.dead.store((500..1200).contains(&elapsed_ms), Relaxed);
        if !world.turn().expect("the link comes back") {
            break;
        }
    }
    let summary = world.client.finish();
    assert_all_answered(&summary);
    assert!(summary.latency_max_ns > 500_000_000, "waiting counts from the intended time: {summary:?}");
}

#[test]
fn a_server_that_vanishes_is_an_error() {
    let mut world = Set::default().world();
    world.connect();
    world.client.begin(Pace::Closed { depth: 1 }, Duration::ZERO, Duration::from_secs(3600)).expect("a valid load");
    world.dead.store(true, Relaxed);
    let error = loop {
        match world.turn() {
            Ok(running) => assert!(running),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LoadError::NoProgress { .. }), "{error}");
}

#[test]
fn connections_that_the_server_closes_come_back() {
    let mut world = Set::default().world();
    world.connect();
    world.client.begin(open(5000.0, 1), Duration::ZERO, Duration::from_secs(1)).expect("a valid load");
    for _ in 0..200 {
        assert!(world.turn().expect("a running load"));
    }
    world.server.close_all(world.now_ns.get());
    while world.turn().expect("the connections come back") {}
    let summary = world.client.finish();
    assert_eq!(summary.reconnects, 16, "{summary:?}");
    assert_eq!((summary.received + summary.lost, summary.unanswered), (summary.sent, 0), "{summary:?}");
    assert_eq!(world.client.established(), 16);
}

#[test]
fn nobody_at_the_address_is_an_error() {
    let (_server, client) = mem::pair(MemConfig::default());
    let workload = Arc::new(Workload::new(WorkloadConfig { records: 1, ..WorkloadConfig::default() }).expect("valid"));
    let now_ns = Cell::new(0);
    let clock = || now_ns.replace(now_ns.get() + 100_000);
    let config = WireConfig::new(CLIENT, (SERVER.1, PORT), 1);
    let queue = client.take_queue(0).expect("a queue");
    let mut client = WireClient::new(config, workload, queue, clock).expect("a valid configuration");
    let result = client.connect_all(Duration::from_secs(1));
    let Err(LoadError::Connect { connected: 0, wanted: 1, why }) = result else { panic!("{result:?}") };
    assert!(why.contains("ARP"), "{why}");
    let stop = AtomicBool::new(true);
    assert!(client.run(open(f64::NAN, 1), Duration::ZERO, Duration::ZERO, &stop).is_err());
}
