//! The memcached service on lull sockets: N worker threads, each with one epoll context and one NAPI.

mod talk;
pub(crate) mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lull_core::Mode;
use lull_host::Worker;
use lull_net::shard::ListenOptions;
use lull_net::{Epoll, Event, Interest, Network, Notifier, TcpListener, TcpStream};
use lull_nic::Moderation;

use crate::memcached::Store;
pub(crate) use talk::{Next, READ_BYTES, Stream, Talk};
use worker::{Slots, wait_ms};

/// Events taken from epoll at a time: it bounds how long packets wait while the application works. Memcached, through
/// libevent, starts with 32 and doubles as needed.
const EVENTS_MAX: usize = 64;
/// Bytes read of every connection of a batch before the first is answered.
const AHEAD_BYTES: usize = 256;
/// Connections taken from the listener at a time.
const ACCEPTS_MAX: usize = 64;
/// Keys of events that are not connections.
const LISTENER: u64 = u64::MAX;
const NOTICE: u64 = u64::MAX - 1;

/// What all workers of a service share.
struct Shared {
    store: Arc<Store>,
    stopping: AtomicBool,
    /// How long a worker waits in epoll, in milliseconds; 0 is for ever.
    wait_ms: AtomicU64,
    /// SO_BUSY_POLL of connections, in microseconds.
    busy_poll_usecs: AtomicU64,
}

/// A running service.
pub struct Service {
    shared: Arc<Shared>,
    network: Network,
    /// The device's own, in force unless the mode asks for another.
    moderation: Moderation,
    workers: Vec<Running>,
}

struct Running {
    join: JoinHandle<()>,
    tid: i32,
    epoll: Epoll,
    notifier: Notifier,
}

impl Service {
    /// Starts one worker per queue of `network`, on the CPU of that queue's interrupt, each listening on `address` for
    /// the connections of its own queue.
    ///
    /// # Errors
    /// The address is in use or not the network's; a thread or its descriptors cannot be made.
    pub fn start(network: &Network, store: Arc<Store>, address: SocketAddr) -> io::Result<Service> {
        let shared = Arc::new(Shared {
            store,
            stopping: AtomicBool::new(false),
            wait_ms: AtomicU64::new(0),
            busy_poll_usecs: AtomicU64::new(0),
        });
        let mut service = Service {
            shared,
            network: network.clone(),
            moderation: network.device().moderation(),
            workers: Vec::new(),
        };
        for queue in 0..network.napis().len() {
            let running = service.start_worker(queue, address)?;
            service.workers.push(running);
        }
        Ok(service)
    }

    fn start_worker(&self, queue: usize, address: SocketAddr) -> io::Result<Running> {
        let host = self.network.host();
        let cpu = host.napi_cpu(self.network.napis()[queue]);
        let worker = Worker::new(host, cpu).map_err(io::Error::other)?;
        let epoll = Epoll::new(host);
        let options = ListenOptions { reuse_port: true, nodelay: true, ..ListenOptions::default() };
        let listener = TcpListener::bind_with(&self.network, Some(queue), address, options)?;
        listener.set_nonblocking(true);
        epoll.add(&listener, LISTENER, Interest::READABLE)?;
        let notifier = epoll.notifier(NOTICE);
        let (shared, network, own_epoll) = (self.shared.clone(), self.network.clone(), epoll.clone());
        let pin = |worker: &Worker| worker.pin_thread().map_err(io::Error::other);
        let run = move |worker| WorkerLoop::new(shared, network, queue, worker, own_epoll, listener).run();
        let (join, tid) = worker::start(queue, worker, pin, run)?;
        Ok(Running { join, tid, epoll, notifier })
    }

    /// Puts a delivery mode in force: on every NAPI, on every worker's epoll context, and in how the workers wait.
    ///
    /// # Errors
    /// A setting that the kernel would refuse, too; a mode that coalesces interrupts, on a device that cannot.
    pub fn set_mode(&self, mode: &Mode) -> io::Result<()> {
        let device = self.network.device();
        let wanted = mode.rx_usecs.map_or(self.moderation, |rx_usecs| Moderation { rx_usecs, rx_frames: 0 });
        if device.moderation() != wanted {
            device.set_moderation(wanted).map_err(io::Error::other)?;
        }
        self.network.set_napi_all(&mode.napi).map_err(io::Error::other)?;
        for worker in &self.workers {
            // In our own stack we are the administrator: budgets above 64 take no privilege.
            worker.epoll.set_busy_poll(&mode.epoll, true).map_err(io::Error::other)?;
        }
        self.shared.wait_ms.store(wait_ms(mode.app), Ordering::Release);
        self.shared.busy_poll_usecs.store(u64::from(mode.socket_busy_poll_usecs), Ordering::Release);
        // Whoever waits in the old way comes back and waits in the new one.
        self.workers.iter().for_each(|worker| worker.notifier.notify());
        Ok(())
    }

    /// The network that it serves.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The workers' threads, by the kernel's ids.
    pub fn tids(&self) -> Vec<i32> {
        self.workers.iter().map(|worker| worker.tid).collect()
    }

    /// The workers' epoll contexts.
    pub fn epolls(&self) -> impl Iterator<Item = &Epoll> {
        self.workers.iter().map(|worker| &worker.epoll)
    }

    /// Ends the workers: connections are closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.notifier.notify();
            // A worker that panicked has said so on stderr.
            let _ = worker.join.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

struct Connection {
    stream: TcpStream,
    talk: Talk,
    busy_poll_usecs: u64,
}

impl Stream for TcpStream {
    fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        TcpStream::recv(self, into)
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        TcpStream::send(self, data)
    }
}

struct WorkerLoop {
    shared: Arc<Shared>,
    network: Network,
    queue: usize,
    worker: Worker,
    epoll: Epoll,
    listener: TcpListener,
    connections: Slots<Connection>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// What was read of the batch's connections, [`AHEAD_BYTES`] for each event.
    ahead: Vec<u8>,
    ahead_bytes: Vec<usize>,
}

impl WorkerLoop {
    fn new(
        shared: Arc<Shared>,
        network: Network,
        queue: usize,
        worker: Worker,
        epoll: Epoll,
        listener: TcpListener,
    ) -> WorkerLoop {
        WorkerLoop {
            shared,
            network,
            queue,
            worker,
            epoll,
            listener,
            connections: Slots::new(),
            input: vec![0; READ_BYTES],
            output: Vec::with_capacity(READ_BYTES),
            ahead: vec![0; EVENTS_MAX * AHEAD_BYTES],
            ahead_bytes: Vec::with_capacity(EVENTS_MAX),
        }
    }

    fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while !self.shared.stopping.load(Ordering::Acquire) {
            events.clear();
            let wait_ms = self.shared.wait_ms.load(Ordering::Relaxed);
            let timeout = (wait_ms != 0).then(|| Duration::from_millis(wait_ms));
            // The only error is a maximum of 0.
            let _ = self.epoll.wait(&self.worker, &mut events, EVENTS_MAX, timeout);
            if events.is_empty() {
                continue;
            }
            let now_s = unix_s();
            // With thousands of connections each is cold: touched together, their cache misses overlap.
            for event in &events {
                let connection = self.connections.get(event.key as usize);
                std::hint::black_box(connection.map(|it| (it.stream.ready(), it.talk.is_idle())));
            }
            let network = self.network.clone();
            let _cork = network.cork(self.queue);
            self.read_ahead(&events);
            for (at, event) in events.iter().enumerate() {
                match event.key {
                    LISTENER => self.accept(),
                    NOTICE => {}
                    key => self.serve(key as usize, at, now_s),
                }
            }
        }
    }

    /// Reads the requests of a batch, and asks for the memory of what they want.
    fn read_ahead(&mut self, events: &[Event]) {
        self.ahead_bytes.clear();
        for (event, ahead) in events.iter().zip(self.ahead.chunks_exact_mut(AHEAD_BYTES)) {
            let connection = self.connections.get(event.key as usize);
            let read = match connection {
                Some(connection) if !connection.talk.is_writing() => connection.stream.recv(ahead).unwrap_or(0),
                _ => 0,
            };
            self.ahead_bytes.push(read);
        }
        let requests = self.ahead.chunks_exact(AHEAD_BYTES).zip(&self.ahead_bytes);
        self.shared.store.look_ahead(requests.filter_map(|(ahead, &read)| key_of_get(&ahead[..read])));
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            // WouldBlock, or a connection that died in the queue: the listener says when there is more.
            let Ok((stream, _peer)) = self.listener.accept() else { return };
            stream.set_nonblocking(true);
            let slot = self.connections.reserve();
            if self.epoll.add(&stream, slot as u64, Interest::READABLE).is_err() {
                self.connections.release(slot);
                continue;
            }
            self.shared.store.connection_opened();
            let connection = Connection { stream, talk: Talk::default(), busy_poll_usecs: 0 };
            self.connections.put(slot, connection);
        }
    }

    fn serve(&mut self, slot: usize, at: usize, now_s: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let busy_poll_usecs = self.shared.busy_poll_usecs.load(Ordering::Relaxed);
        if connection.busy_poll_usecs != busy_poll_usecs {
            // A mode's times are within the limits.
            let _ = connection.stream.set_busy_poll(busy_poll_usecs as u32);
            connection.busy_poll_usecs = busy_poll_usecs;
        }
        let was_writing = connection.talk.is_writing();
        let Connection { stream, talk, .. } = connection;
        let (input, output, store) = (&mut self.input, &mut self.output, &self.shared.store);
        let ahead = &self.ahead[at * AHEAD_BYTES..][..self.ahead_bytes[at]];
        let mut next = Next::Read;
        if !ahead.is_empty() {
            next = talk.answer(stream, ahead, output, store, now_s);
        }
        // What was read ahead was all that there was, unless it filled its place.
        if next == Next::Read && (ahead.is_empty() || ahead.len() == AHEAD_BYTES) {
            next = talk.serve(stream, input, output, store, now_s);
        }
        match (was_writing, next) {
            (_, Next::Close) => self.close(slot),
            (false, Next::Write) => self.watch(slot, Interest::WRITABLE),
            (true, Next::Read) => self.watch(slot, Interest::READABLE),
            _ => {}
        }
    }

    fn watch(&mut self, slot: usize, interest: Interest) {
        let Some(connection) = self.connections.get(slot) else { return };
        if self.epoll.modify(&connection.stream, slot as u64, interest).is_err() {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        // Dropping the stream closes it and takes it out of the set.
        if self.connections.take(slot).is_some() {
            self.shared.store.connection_closed();
        }
    }
}

/// The (first) key of a request that is likely a get; what is not is simply not looked ahead for.
fn key_of_get(request: &[u8]) -> Option<&[u8]> {
    let keys = request.strip_prefix(b"get ").or_else(|| request.strip_prefix(b"gets "))?;
    let end = keys.iter().position(|byte| byte.is_ascii_whitespace())?;
    Some(&keys[..end])
}

/// Seconds since 1970, as memcached counts them.
pub(crate) fn unix_s() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}
