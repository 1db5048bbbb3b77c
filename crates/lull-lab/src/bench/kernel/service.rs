//! A memcached service over the kernel's sockets: for where no memcached is installed, and for what only the program
//! itself can do, as to wait no longer than a mode says (fullbusy).

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use lull_core::{EpollParams, Mode};
use lull_linux::os::set_epoll_params;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::memcached::Store;
use crate::service::worker::{self, Slots, wait_ms};
use crate::service::{Next, READ_BYTES, Stream, Talk, unix_s};

/// Events taken from epoll at a time.
const EVENTS_MAX: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Keys of events that are not connections.
const LISTENER: u64 = u64::MAX;
const NOTICE: u64 = u64::MAX - 1;

struct Shared {
    store: Arc<Store>,
    stopping: AtomicBool,
    /// How long a worker waits in epoll, in milliseconds; 0 is for ever.
    wait_ms: AtomicU64,
}

struct Running {
    join: JoinHandle<()>,
    tid: i32,
    epoll: Arc<OwnedFd>,
    notice: Arc<OwnedFd>,
}

/// A running service: one thread with one epoll context per core.
pub struct KernelService {
    shared: Arc<Shared>,
    workers: Vec<Running>,
}

impl KernelService {
    /// Starts one worker per core, each listening on `address` (`SO_REUSEPORT`), in the network namespace of the
    /// calling thread.
    ///
    /// # Errors
    /// The address is in use or no device's; a thread or its descriptors cannot be made.
    pub fn start(address: SocketAddr, cores: &[usize], store: Arc<Store>) -> io::Result<KernelService> {
        let shared = Arc::new(Shared { store, stopping: AtomicBool::new(false), wait_ms: AtomicU64::new(0) });
        let mut service = KernelService { shared, workers: Vec::new() };
        for (nth, core) in cores.iter().enumerate() {
            let running = service.start_worker(nth, *core, address)?;
            service.workers.push(running);
        }
        Ok(service)
    }

    fn start_worker(&self, nth: usize, core: usize, address: SocketAddr) -> io::Result<Running> {
        let listener = listener(address)?;
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let notice = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&*epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&*epoll, &*notice, EventData::new_u64(NOTICE), EventFlags::IN)?;
        let worker = Worker {
            shared: self.shared.clone(),
            epoll: epoll.clone(),
            notice: notice.clone(),
            listener,
            connections: Slots::new(),
            input: vec![0; READ_BYTES],
            output: Vec::with_capacity(READ_BYTES),
        };
        let (join, tid) = worker::start(nth, worker, move |_| lull_host::pin_thread(&[core]), Worker::run)?;
        Ok(Running { join, tid, epoll, notice })
    }

    /// The workers' threads.
    pub fn tids(&self) -> Vec<i32> {
        self.workers.iter().map(|worker| worker.tid).collect()
    }

    /// Sets the busy-poll parameters of every worker's context.
    ///
    /// # Errors
    /// The kernel refuses a value.
    pub fn set_epoll(&self, params: &EpollParams) -> io::Result<()> {
        self.workers.iter().try_for_each(|worker| set_epoll_params(worker.epoll.as_fd(), params))
    }

    /// The application's half of a mode: how the contexts poll and how long the workers wait.
    ///
    /// # Errors
    /// The kernel refuses a value.
    pub fn set_mode(&self, mode: &Mode) -> io::Result<()> {
        self.set_epoll(&mode.epoll)?;
        self.shared.wait_ms.store(wait_ms(mode.app), Ordering::Release);
        self.notify();
        Ok(())
    }

    /// Whoever waits in the old way comes back and waits in the new one.
    fn notify(&self) {
        for worker in &self.workers {
            // A counter that is full wakes, too.
            let _ = rustix::io::write(&*worker.notice, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for KernelService {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.notify();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so on stderr.
            let _ = worker.join.join();
        }
    }
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

struct Connection {
    stream: TcpStream,
    talk: Talk,
}

impl Stream for TcpStream {
    fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        io::Read::read(self, into)
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        io::Write::write(self, data)
    }
}

struct Worker {
    shared: Arc<Shared>,
    epoll: Arc<OwnedFd>,
    notice: Arc<OwnedFd>,
    listener: TcpListener,
    connections: Slots<Connection>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.shared.stopping.load(Ordering::Acquire) {
            let wait_ms = self.shared.wait_ms.load(Ordering::Relaxed);
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait_ms as i64 * 1_000_000 };
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            // A signal interrupts and changes nothing.
            let _ = epoll::wait(&*self.epoll, buffer, (wait_ms != 0).then_some(&timeout));
            if events.is_empty() {
                continue;
            }
            let now_s = unix_s();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    NOTICE => {
                        // It is read so that it can be set again.
                        let _ = rustix::io::read(&*self.notice, &mut [0_u8; 8]);
                    }
                    key => self.serve(key as usize, now_s),
                }
            }
        }
    }

    fn accept(&mut self) {
        // WouldBlock, or a connection that died in the queue: epoll says when there is more.
        while let Ok((stream, _)) = self.listener.accept() {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let slot = self.connections.reserve();
            let watch = || epoll::add(&*self.epoll, &stream, EventData::new_u64(slot as u64), EventFlags::IN);
            if ready.is_err() || watch().is_err() {
                self.connections.release(slot);
                continue;
            }
            self.shared.store.connection_opened();
            self.connections.put(slot, Connection { stream, talk: Talk::default() });
        }
    }

    fn serve(&mut self, slot: usize, now_s: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Connection { stream, talk } = connection;
        let was_writing = talk.is_writing();
        let next = talk.serve(stream, &mut self.input, &mut self.output, &self.shared.store, now_s);
        match (was_writing, next) {
            (_, Next::Close) => self.close(slot),
            (false, Next::Write) => self.watch(slot, EventFlags::OUT),
            (true, Next::Read) => self.watch(slot, EventFlags::IN),
            _ => {}
        }
    }

    fn watch(&mut self, slot: usize, flags: EventFlags) {
        let Some(connection) = self.connections.get(slot) else { return };
        if epoll::modify(&*self.epoll, &connection.stream, EventData::new_u64(slot as u64), flags).is_err() {
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
