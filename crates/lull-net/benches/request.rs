//! What a request costs from ring to ring: poll, stack, epoll, `recv`, `send` and doorbell, on one thread and the in-memory NIC.
//!
//! `cargo bench -p lull-net --bench request [-- MODE... NUMBER...]`: how many requests are in the ring at once.
//! Nothing in it waits for another thread, so that a counter of
//! instructions (`valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*serve_round*'`) sees the same in each run;
//! valgrind needs `RUSTFLAGS='--cfg rustix_use_libc'`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_core::Mode;
use lull_host::{Host, HostConfig, Worker};
use lull_net::shard::{Batch, ConnectOptions, Io, SocketId, Stack, StackConfig};
use lull_net::{Epoll, Event, Interest, ListenOptions, Network, NetworkConfig, TcpListener, TcpStream};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Doorbell, Frame, FramePool, Queue, TxQueue};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const PORT: u16 = 7;
/// Fewer than the weight of a NAPI: a poll that takes as many is followed by an empty one, which completes without deferral.
const CONNECTIONS: usize = 32;
const MESSAGE: [u8; 64] = [b'e'; 64];
/// So many requests are in the ring when the server looks.
const AT_ONCE: [usize; 3] = [1, 8, CONNECTIONS];
const MODES: [&str; 3] = ["base", "suspend20", "fullbusy"];
/// So many rounds of all connections, for a counter of instructions.
const ROUNDS_VARIABLE: &str = "LULL_REQUEST_ROUNDS";
const ROUNDS: usize = 2000;

fn main() -> Result<()> {
    // `cargo test --benches` runs this without measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with `cargo bench -p lull-net --bench request`");
        return Ok(());
    }
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let (numbers, modes): (Vec<_>, Vec<_>) = named.into_iter().partition(|word| word.parse::<usize>().is_ok());
    let modes = if modes.is_empty() { MODES.map(str::to_owned).to_vec() } else { modes };
    let numbers = if numbers.is_empty() { AT_ONCE.map(|at_once| at_once.to_string()).to_vec() } else { numbers };
    for name in modes {
        let mut bench = Bench::new(&name.parse()?)?;
        for at_once in &numbers {
            let ns = bench.nanoseconds_per_request(at_once.parse::<usize>()?.clamp(1, CONNECTIONS), rounds)?;
            println!("{name:<10} {at_once:>2} requests in the ring at once: {ns:5.0} ns each");
        }
    }
    Ok(())
}

/// What the client sends, until it is put on the wire.
#[derive(Default)]
struct Kept(Vec<Frame>);

impl TxQueue for Kept {
    fn transmit(&mut self, frame: Frame) -> std::result::Result<(), Frame> {
        self.0.push(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        1024
    }
}

/// The client: a stack that is driven by hand.
struct Client {
    stack: Stack,
    kept: Kept,
    pool: FramePool,
    now_ns: u64,
    wire: Queue,
    /// The device is gone without it.
    _port: MemPort,
}

impl Client {
    fn call<R>(&mut self, f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R) -> R {
        let mut changes = Vec::new();
        let (tx, pool) = (&mut self.kept, &mut self.pool);
        f(&mut self.stack, &mut Io { now_ns: self.now_ns, tx, pool, changes: &mut changes, batch: Batch::NONE })
    }

    /// Takes what arrived, and puts what it has to send on the wire.
    fn exchange(&mut self) {
        let mut frames = Vec::new();
        self.wire.rx.poll(4 * CONNECTIONS, &mut FramePool::new(0), &mut |frame, _| frames.push(frame));
        self.now_ns += 1000;
        for frame in frames {
            self.call(|stack, io| stack.receive(frame, io));
        }
        self.call(|stack, io| stack.run_timers(io));
        for frame in self.kept.0.drain(..) {
            assert!(self.wire.tx.transmit(frame).is_ok(), "the ring has room");
        }
        self.wire.tx.doorbell();
    }
}

struct Bench {
    client: Client,
    ids: Vec<SocketId>,
    epoll: Epoll,
    network: Network,
    worker: Worker,
    streams: Vec<TcpStream>,
    events: Vec<Event>,
    buffer: Vec<u8>,
}

impl Bench {
    fn new(mode: &Mode) -> Result<Bench> {
        let (server, port) = mem::pair(MemConfig::default());
        let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() })?;
        let neighbours = vec![(CLIENT.parse()?, port.info().mac)];
        let config = NetworkConfig {
            addresses: vec![(SERVER.parse()?, 24)],
            cpus: vec![0],
            neighbours,
            ..NetworkConfig::default()
        };
        let server_mac = server.info().mac;
        let network = Network::new(&host, Arc::new(server), config)?;
        let to = SocketAddr::new(SERVER.parse()?, PORT);
        let listener =
            TcpListener::bind_with(&network, Some(0), to, ListenOptions { nodelay: true, ..ListenOptions::default() })?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(&host);
        let worker = Worker::new(&host, 0)?;
        let mut config = StackConfig::new(port.info().mac);
        config.addresses = vec![(CLIENT.parse()?, 24)];
        let known: Arc<lull_net::shard::Neighbours> = Arc::default();
        known.add_permanent(SERVER.parse()?, server_mac);
        let wire = port.take_queue(0)?;
        let mut client = Client {
            stack: Stack::new(config, known)?,
            kept: Kept::default(),
            pool: FramePool::new(256),
            now_ns: 1_000_000_000,
            wire,
            _port: port,
        };
        let (mut ids, mut streams, mut events) = (Vec::new(), Vec::new(), Vec::new());
        for key in 0..CONNECTIONS {
            ids.push(client.call(|stack, io| {
                stack.tcp_connect(None, to, ConnectOptions { nodelay: true, ..ConnectOptions::default() }, io)
            })?);
            let stream = loop {
                client.exchange();
                epoll.wait(&worker, &mut events, CONNECTIONS, Some(Duration::ZERO))?;
                if let Ok((stream, _)) = listener.accept() {
                    break stream;
                }
            };
            stream.set_nonblocking(true)?;
            epoll.add(&stream, key as u64, Interest::READABLE)?;
            streams.push(stream);
        }
        let _ = network.set_mode(mode)?.on(&epoll)?;
        Ok(Bench { client, ids, epoll, network, worker, streams, events, buffer: vec![0; 16 * 1024] })
    }

    fn nanoseconds_per_request(&mut self, at_once: usize, rounds: usize) -> Result<f64> {
        let mut best = f64::MAX;
        for _ in 0..5 {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds / 5 {
                for at in (0..CONNECTIONS).step_by(at_once) {
                    let asking = self.ids[at..CONNECTIONS.min(at + at_once)].to_vec();
                    for &id in &asking {
                        self.client.call(|stack, io| stack.tcp_send(id, &MESSAGE, io))?;
                    }
                    self.client.exchange();
                    let start = Instant::now();
                    let answered = self.serve_round(asking.len())?;
                    spent += start.elapsed();
                    assert_eq!(answered, asking.len());
                    self.client.exchange();
                    let mut buffer = [0; 2 * MESSAGE.len()];
                    for id in asking {
                        let count = self.client.call(|stack, io| stack.tcp_recv(id, &mut buffer, io))?;
                        assert_eq!(count, MESSAGE.len());
                    }
                }
            }
            best = best.min(spent.as_nanos() as f64 / (rounds / 5 * CONNECTIONS) as f64);
        }
        Ok(best)
    }

    /// Answers until so many requests are answered, as a server's loop does.
    #[inline(never)]
    fn serve_round(&mut self, requests: usize) -> Result<usize> {
        let mut answered = 0;
        while answered < requests {
            self.events.clear();
            self.epoll.wait(&self.worker, &mut self.events, CONNECTIONS, None)?;
            let _cork = self.network.cork(0);
            for event in &self.events {
                let stream = &self.streams[event.key as usize];
                let count = stream.recv(&mut self.buffer)?;
                stream.send(&self.buffer[..count])?;
                answered += 1;
            }
        }
        Ok(answered)
    }
}
