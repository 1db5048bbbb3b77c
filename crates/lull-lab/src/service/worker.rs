//! A worker: it waits, accepts, reads a batch of requests ahead, and answers them. It is the same on every plane.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Limits;
use super::plane::{EVENTS_MAX, LISTENER, NOTICE, Plane, Stream, Watch};
use super::slots::Slots;
use super::talk::{Desk, Next, READ_BYTES, Talk};
use crate::memcached::Store;

/// The number of bytes read of every connection of a batch before the first is answered.
const AHEAD_BYTES: usize = 256;
/// The number of connections taken from the listener at a time.
const ACCEPTS_MAX: usize = 64;
/// The answer to a client that comes when there is no slot left (memcached's words, with `maxconns_fast`).
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// The number of checks for idle connections during an idle timeout.
const SWEEPS: u32 = 4;

/// The state that all workers of a service share.
pub(super) struct Shared {
    pub store: Arc<Store>,
    pub limits: Limits,
    pub stopping: AtomicBool,
    /// How long a worker waits in epoll, in milliseconds; 0 is for ever.
    pub wait_ms: AtomicU64,
    /// Events that a worker takes from epoll at a time, 1 to [`EVENTS_MAX`].
    pub events_max: AtomicUsize,
    /// SO_BUSY_POLL of connections, in microseconds.
    pub busy_poll_usecs: AtomicU64,
    /// Whether a refusal was reported. One line is enough, because the counter shows the others.
    pub refusal_told: AtomicBool,
}

/// Starts the `nth` worker's thread, which pins itself and then serves. Returns its kernel id once it is pinned.
///
/// # Errors
///
/// This fails if no thread can be made, or if it cannot be pinned. Nothing runs then.
pub(super) fn start<P: Plane>(nth: usize, plane: P, shared: Arc<Shared>) -> io::Result<(JoinHandle<()>, i32)> {
    let (started, starting) = mpsc::channel();
    let join = std::thread::Builder::new().name(format!("worker/{nth}")).spawn(move || {
        let pinned = plane.pin();
        let go = pinned.is_ok();
        // The thread that starts it waits for this message.
        let _ = started.send(pinned.map(|()| lull_host::thread_id()));
        if go {
            Worker { plane, desk: WorkerDesk::new(shared) }.run();
        }
    })?;
    let tid = starting.recv().map_err(io::Error::other)??;
    Ok((join, tid))
}

struct Connection<S> {
    stream: S,
    talk: Talk,
    busy_poll_usecs: u64,
    /// The time when it was last served, or `None` if idle connections are not closed.
    served_at: Option<Instant>,
}

struct Worker<P: Plane> {
    plane: P,
    desk: WorkerDesk<P::Stream>,
}

/// The worker without its plane, which is borrowed meanwhile to hold transmission back.
struct WorkerDesk<S> {
    shared: Arc<Shared>,
    connections: Slots<Connection<S>>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The bytes read from the batch's connections, [`AHEAD_BYTES`] for each event.
    ahead: Vec<u8>,
    ahead_bytes: Vec<usize>,
    /// The time of the next check for idle connections, or `None` if there is no idle timeout.
    sweep_at: Option<Instant>,
}

impl<P: Plane> Worker<P> {
    fn run(mut self) {
        let mut keys: Vec<u64> = Vec::with_capacity(EVENTS_MAX);
        while !self.desk.shared.stopping.load(Ordering::Acquire) {
            keys.clear();
            let events_max = self.desk.shared.events_max.load(Ordering::Relaxed);
            self.plane.wait(&mut keys, events_max, self.desk.timeout());
            if !keys.is_empty() {
                let _batch = self.plane.batch();
                self.desk.answer(&self.plane, &keys);
            }
            self.desk.sweep();
        }
    }
}

impl<S: Stream> WorkerDesk<S> {
    fn new(shared: Arc<Shared>) -> WorkerDesk<S> {
        WorkerDesk {
            sweep_at: shared.limits.idle_timeout.map(|_| Instant::now()),
            shared,
            connections: Slots::new(),
            input: vec![0; READ_BYTES],
            output: Vec::with_capacity(READ_BYTES),
            ahead: vec![0; EVENTS_MAX * AHEAD_BYTES],
            ahead_bytes: Vec::with_capacity(EVENTS_MAX),
        }
    }

    /// Returns how long to wait: as the mode says, and not beyond the next check for idle connections.
    fn timeout(&self) -> Option<Duration> {
        let of_mode = match self.shared.wait_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        };
        let of_sweep = self.sweep_at.map(|at| at.saturating_duration_since(Instant::now()));
        match (of_mode, of_sweep) {
            (Some(mode), Some(sweep)) => Some(mode.min(sweep)),
            (mode, sweep) => mode.or(sweep),
        }
    }

    fn answer<P: Plane<Stream = S>>(&mut self, plane: &P, keys: &[u64]) {
        let now_s = unix_s();
        // With thousands of connections none is in the cache. If they are touched together, their cache misses overlap.
        for key in keys {
            if let Some(connection) = self.connections.get(*key as usize) {
                connection.stream.touch();
                std::hint::black_box(connection.talk.is_idle());
            }
        }
        self.read_ahead(keys);
        for (at, key) in keys.iter().enumerate() {
            match *key {
                LISTENER => self.accept(plane),
                NOTICE => {}
                key => self.serve(plane, key as usize, at, now_s),
            }
        }
    }

    /// Reads the requests of a batch, and prefetches the items that they ask for.
    fn read_ahead(&mut self, keys: &[u64]) {
        self.ahead_bytes.clear();
        for (key, ahead) in keys.iter().zip(self.ahead.chunks_exact_mut(AHEAD_BYTES)) {
            let read = match self.connections.get(*key as usize) {
                Some(connection) if !connection.talk.is_writing() => connection.stream.recv(ahead).unwrap_or(0),
                _ => 0,
            };
            self.ahead_bytes.push(read);
        }
        let requests = self.ahead.chunks_exact(AHEAD_BYTES).zip(&self.ahead_bytes);
        self.shared.store.look_ahead(requests.filter_map(|(ahead, &read)| key_of_get(&ahead[..read])));
    }

    fn accept<P: Plane<Stream = S>>(&mut self, plane: &P) {
        for _ in 0..ACCEPTS_MAX {
            let stream = match plane.accept(self.shared.limits.keepalive) {
                Ok(stream) => stream,
                // The error is WouldBlock, or a connection that ended in the queue. The listener reports further ones.
                Err(_) => return,
            };
            if self.connections.len() >= self.shared.limits.connections_max {
                self.refuse(&stream);
                continue;
            }
            let slot = self.connections.reserve();
            if plane.add(&stream, slot as u64).is_err() {
                self.connections.release(slot);
                continue;
            }
            self.shared.store.connection_opened();
            let served_at = self.sweep_at.map(|_| Instant::now());
            let connection = Connection { stream, talk: Talk::default(), busy_poll_usecs: 0, served_at };
            self.connections.put(slot, connection);
        }
    }

    /// Tells a client that there is no slot left, and reports the first such case on stderr.
    fn refuse(&self, stream: &S) {
        self.shared.store.connection_refused();
        // A client that has already gone is not told.
        let _ = stream.send(TOO_MANY);
        if !self.shared.refusal_told.swap(true, Ordering::Relaxed) {
            eprintln!(
                "lull: all {} connections of a worker are taken: clients are refused and counted \
                 (rejected_connections in `stats`); raise --connections-max, or set --idle-timeout",
                self.shared.limits.connections_max
            );
        }
    }

    fn serve<P: Plane<Stream = S>>(&mut self, plane: &P, slot: usize, at: usize, now_s: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let busy_poll_usecs = self.shared.busy_poll_usecs.load(Ordering::Relaxed);
        if connection.busy_poll_usecs != busy_poll_usecs {
            // A mode's times are within the limits. If the plane cannot busy poll, the mode was refused before.
            let _ = connection.stream.set_busy_poll(busy_poll_usecs as u32);
            connection.busy_poll_usecs = busy_poll_usecs;
        }
        if let Some(served_at) = &mut connection.served_at {
            *served_at = Instant::now();
        }
        let was_writing = connection.talk.is_writing();
        let Connection { stream, talk, .. } = connection;
        let (input, output, store) = (&mut self.input[..], &mut self.output, &*self.shared.store);
        let mut desk = Desk { input, output, store, now_s };
        let ahead = &self.ahead[at * AHEAD_BYTES..][..self.ahead_bytes[at]];
        let mut next = Next::Read;
        if !ahead.is_empty() {
            next = talk.answer(stream, ahead, &mut desk);
        }
        // The input that was read ahead was complete unless it filled its buffer. Busy polling by SO_BUSY_POLL happens
        // in a call that finds nothing, and memcached reads until one does.
        if next == Next::Read && (ahead.is_empty() || ahead.len() == AHEAD_BYTES || busy_poll_usecs != 0) {
            next = talk.serve(stream, &mut desk);
        }
        match (was_writing, next) {
            (_, Next::Close) => self.close(slot),
            (false, Next::Write) => self.watch(plane, slot, Watch::Room),
            (true, Next::Read) => self.watch(plane, slot, Watch::Input),
            _ => {}
        }
    }

    fn watch<P: Plane<Stream = S>>(&mut self, plane: &P, slot: usize, watch: Watch) {
        let Some(connection) = self.connections.get(slot) else { return };
        if plane.watch(&connection.stream, slot as u64, watch).is_err() {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        // Dropping the stream closes it and takes it out of the epoll set.
        if self.connections.take(slot).is_some() {
            self.shared.store.connection_closed();
        }
    }

    /// Closes the connections that have been idle for too long, if it is time to check.
    fn sweep(&mut self) {
        let (Some(sweep_at), Some(idle_timeout)) = (self.sweep_at, self.shared.limits.idle_timeout) else { return };
        let now = Instant::now();
        if now < sweep_at {
            return;
        }
        self.sweep_at = Some(now + idle_timeout / SWEEPS);
        let idle = |connection: &Connection<S>| connection.served_at.is_some_and(|at| now - at >= idle_timeout);
        for slot in self.connections.find(idle) {
            self.shared.store.connection_idle();
            self.close(slot);
        }
    }
}

/// Returns the (first) key of a request that is likely a get. There is no prefetch for others.
fn key_of_get(request: &[u8]) -> Option<&[u8]> {
    let keys = request.strip_prefix(b"get ").or_else(|| request.strip_prefix(b"gets "))?;
    let end = keys.iter().position(|byte| byte.is_ascii_whitespace())?;
    Some(&keys[..end])
}

/// Returns the seconds since 1970, as memcached counts them.
fn unix_s() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}
