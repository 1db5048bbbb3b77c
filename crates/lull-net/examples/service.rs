//! A service with two workers in the mode suspend20: an echo over TCP and UDP, a client, and an orderly end.
//!
//! `cargo run --release -p lull-net --example service` runs it over the in-memory NIC with a client in the same process.
//! `... --example service -- TAP` opens the TAP interface of that name, whose other end is the kernel at 10.0.0.1, and serves
//! until its standard input ends; it needs CAP_NET_ADMIN (`unshare -Urn` is enough).

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use lull_net::lull_nic::mem::{self, MemConfig};
use lull_net::lull_nic::tap::{Tap, TapConfig};
use lull_net::{
    Device, Epoll, Host, HostConfig, Interest, ListenOptions, Mode, Network, NetworkConfig, Notifier, TcpListener,
    TcpStream, UdpOptions, UdpSocket, Worker,
};

const WORKERS: u16 = 2;
const ADDRESS: &str = "10.0.0.2";
const PORT: u16 = 7;
const EVENTS_MAX: usize = 64;
/// The keys of events; connections have theirs from 3 on.
const LISTENER: u64 = 0;
const DATAGRAMS: u64 = 1;
const STOP: u64 = 2;
const CONNECTIONS: u64 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A lull CPU for each worker, and one for the client.
    let host = Host::new(HostConfig { cpus: vec![None; usize::from(WORKERS) + 1], ..HostConfig::default() })?;
    let queues = usize::from(WORKERS);
    let (device, peer): (Arc<dyn Device>, Option<mem::MemPort>) = match std::env::args().nth(1) {
        Some(name) => {
            let tap = Tap::open(TapConfig { name, queues, offloads: true, ..TapConfig::default() })?;
            tap.kernel_side("10.0.0.1".parse()?, 24)?;
            (Arc::new(tap), None)
        }
        None => {
            let (server, client) = mem::pair(MemConfig { queues, peer_queues: Some(1), ..MemConfig::default() });
            (Arc::new(server), Some(client))
        }
    };

    // The network's half of the mode comes with it. The queues' interrupts go to CPUs 0 and 1.
    let mode: Mode = "suspend20".parse()?;
    let config = NetworkConfig {
        addresses: vec![(ADDRESS.parse()?, 24)],
        cpus: (0..WORKERS).collect(),
        ..NetworkConfig::default()
    };
    let network = Network::new(&host, device, config.with_mode(&mode))?;
    let workers = (0..WORKERS).map(|nth| start(&network, nth, &mode)).collect::<io::Result<Vec<_>>>()?;

    match peer {
        Some(port) => {
            let addresses = vec![("10.0.0.1".parse()?, 24)];
            let config = NetworkConfig { addresses, cpus: vec![WORKERS], ..NetworkConfig::default() };
            ask(&Network::new(&host, Arc::new(port), config)?)?;
        }
        None => {
            println!("echo on {ADDRESS}:{PORT}, TCP and UDP, until the standard input ends");
            io::copy(&mut io::stdin(), &mut io::sink())?;
        }
    }

    // Each worker returns from its wait and ends.
    for (stop, worker) in workers {
        stop.notify();
        let echoed = worker.join().expect("the worker says what went wrong")?;
        println!("a worker echoed {echoed} messages");
    }
    Ok(())
}

/// Starts the worker of queue `nth` on that queue's CPU. Sockets with `reuse_port`, one set per queue, give each worker what
/// arrives on its own queue, so its context busy polls and suspends one NAPI.
fn start(network: &Network, nth: u16, mode: &Mode) -> io::Result<(Notifier, JoinHandle<io::Result<u64>>)> {
    let worker = Worker::new(network.host(), nth)?;
    let queue = usize::from(nth);
    let at = (ADDRESS.parse::<std::net::IpAddr>().map_err(io::Error::other)?, PORT).into();
    let options = ListenOptions { reuse_port: true, nodelay: true, ..ListenOptions::default() };
    let listener = TcpListener::bind_with(network, Some(queue), at, options)?;
    let datagrams = UdpSocket::bind_with(network, queue, at, UdpOptions { reuse_port: true, ..UdpOptions::default() })?;
    listener.set_nonblocking(true)?;
    datagrams.set_nonblocking(true)?;

    let epoll = Epoll::new(network.host());
    // The application's half of the mode: the context's parameters, and how long to wait in it.
    let policy = epoll.set_mode(mode)?;
    epoll.add(&listener, LISTENER, Interest::READABLE)?;
    epoll.add(&datagrams, DATAGRAMS, Interest::READABLE)?;
    let stop = epoll.notifier(STOP);

    let (network, mut echo) =
        (network.clone(), Echo { epoll, listener, datagrams, connections: Vec::new(), echoed: 0 });
    let serve = move || {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            echo.epoll.wait(&worker, &mut events, EVENTS_MAX, policy.timeout())?;
            // One doorbell for the answers of the batch.
            let _cork = network.cork(queue);
            for event in &events {
                match event.key {
                    STOP => return Ok(echo.echoed),
                    LISTENER => echo.accept()?,
                    DATAGRAMS => echo.answer_datagrams()?,
                    connection => echo.answer((connection - CONNECTIONS) as usize),
                }
            }
        }
    };
    Ok((stop, std::thread::Builder::new().name(format!("worker/{nth}")).spawn(serve)?))
}

struct Echo {
    epoll: Epoll,
    listener: TcpListener,
    datagrams: UdpSocket,
    connections: Vec<Option<TcpStream>>,
    echoed: u64,
}

/// Nothing more to do until the next event.
fn is_done(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Echo {
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _peer)) => stream,
                Err(error) if is_done(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            self.epoll.add(&stream, CONNECTIONS + self.connections.len() as u64, Interest::READABLE)?;
            self.connections.push(Some(stream));
        }
    }

    fn answer_datagrams(&mut self) -> io::Result<()> {
        let mut buffer = [0; 2048];
        loop {
            match self.datagrams.recv_from(&mut buffer) {
                Ok((count, from)) => {
                    self.datagrams.send_to(&buffer[..count], from)?;
                    self.echoed += 1;
                }
                Err(error) if is_done(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers a connection once; epoll reports it again while there is more. A client that does not read its answers is
    /// dropped here; a service would keep what is left and wait for room.
    fn answer(&mut self, connection: usize) {
        let Some(stream) = &mut self.connections[connection] else { return };
        let mut buffer = [0; 2048];
        let echoed = match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => stream.write_all(&buffer[..count]).is_ok(),
            Err(error) => is_done(&error),
        };
        self.echoed += u64::from(echoed);
        if !echoed {
            // With its last clone the socket closes and leaves the context.
            self.connections[connection] = None;
        }
    }
}

/// A client that blocks in its calls.
fn ask(network: &Network) -> io::Result<()> {
    let mut streams = (0..8).map(|_| TcpStream::connect(network, (ADDRESS, PORT))).collect::<io::Result<Vec<_>>>()?;
    for round in 0..100 {
        for stream in &mut streams {
            let message = format!("message {round:03}");
            stream.write_all(message.as_bytes())?;
            let mut reply = vec![0; message.len()];
            stream.read_exact(&mut reply)?;
            assert_eq!(reply, message.as_bytes());
        }
    }
    let socket = UdpSocket::bind(network, "10.0.0.1:0")?;
    socket.send_to(b"datagram", (ADDRESS, PORT))?;
    let mut reply = [0; 16];
    let (count, _from) = socket.recv_from(&mut reply)?;
    assert_eq!(&reply[..count], b"datagram");
    println!("800 messages over 8 connections and a datagram came back");
    Ok(())
}
