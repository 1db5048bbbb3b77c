//! Sockets with the shape of `std::net`: nonblocking or blocking, any thread may call.
//!
//! A socket is a refcounted open-file object (`Open`), apart from whatever numbers name it: clones are the same socket, as
//! after `dup`. It lives on one shard; a listener may live on several, as a recipe that each shard instantiates.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lull_core::{SettingError, SocketBusy};
use lull_host::Delivery;

use crate::epoll::{Item, forget};
use crate::network::Network;
use crate::queue::{Inside, Queue};
use crate::ready::Level;
use crate::shard::{
    ConnectOptions, Io, Keepalive, ListenOptions, NetError, Ready, Received, Shutdown, SocketId, Stack, UdpOptions,
};

/// A socket on one shard, as wait lists and epoll items know it.
#[derive(Clone)]
pub struct Part {
    queue: Arc<Queue>,
    host: Arc<Delivery>,
    id: SocketId,
    level: Arc<Level>,
}

impl Part {
    /// Puts a socket that was just made under the application's eyes. The shard's lock is held.
    fn new(queue: &Arc<Queue>, host: &Arc<Delivery>, id: SocketId, inside: &mut Inside) -> Part {
        Part { queue: queue.clone(), host: host.clone(), id, level: inside.watch(id) }
    }

    #[inline]
    pub(crate) fn level(&self) -> Ready {
        self.level.get()
    }

    pub(crate) fn napi_id(&self) -> u32 {
        self.queue.napi_id()
    }

    pub(crate) fn watch(&self, item: &Arc<Item>) {
        self.queue.with(&self.host, |inside, _| {
            if let Some(list) = inside.wait_list(self.id) {
                list.add_item(item.clone());
            }
        });
    }

    pub(crate) fn unwatch(&self, item: &Arc<Item>) {
        self.queue.with(&self.host, |inside, _| {
            if let Some(list) = inside.wait_list(self.id) {
                list.remove_item(item);
            }
        });
    }

    /// A call into the stack; the level is brought up to date before the lock is given back.
    #[inline]
    fn call<R>(&self, f: impl FnOnce(&mut Stack, SocketId, &mut Io<'_>) -> R) -> R {
        self.queue.with(&self.host, |inside, now_ns| {
            let result = inside.call(now_ns, |stack, io| f(stack, self.id, io));
            if let Ok(ready) = inside.stack.ready(self.id) {
                self.level.set(ready);
            }
            result
        })
    }

    /// Sleeps until one of `wants`, an error or a hang-up is there; false if `until` came first.
    fn block(&self, wants: Ready, until: Option<Instant>) -> bool {
        let wants = wants | Ready::ERR | Ready::HUP;
        self.queue.with(&self.host, |inside, _| inside.wait_list(self.id).map(|list| list.block(wants)));
        let mut ready = false;
        loop {
            // A thread that delivers meanwhile unparks us after it set the level.
            if self.level().intersects(wants) {
                ready = true;
                break;
            }
            match until {
                None => std::thread::park(),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                    _ => break,
                },
            }
        }
        self.queue.with(&self.host, |inside, _| inside.wait_list(self.id).map(|list| list.unblock()));
        ready
    }
}

/// Something that an epoll context can watch.
pub trait Source {
    /// Its parts, one per shard that it lives on.
    fn parts(&self) -> Vec<Part>;

    /// What tells it from other sources; clones share it.
    fn identity(&self) -> usize;
}

/// The open-file object of a socket on one shard.
struct Open {
    part: Part,
    nonblocking: AtomicBool,
    busy: SocketBusy,
    read_timeout_ns: AtomicU64,
    write_timeout_ns: AtomicU64,
}

/// No timeout.
const FOR_EVER: u64 = 0;

impl Open {
    fn new(part: Part, busy: SocketBusy) -> Open {
        Open {
            part,
            nonblocking: AtomicBool::new(false),
            busy,
            read_timeout_ns: AtomicU64::new(FOR_EVER),
            write_timeout_ns: AtomicU64::new(FOR_EVER),
        }
    }

    fn identity(self: &Arc<Open>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Tries `attempt`; if it would block, busy polls as the socket's options say, and then either says so or sleeps.
    #[inline]
    fn retry<R>(
        &self,
        wants: Ready,
        timeout_ns: &AtomicU64,
        mut attempt: impl FnMut(&mut Stack, SocketId, &mut Io<'_>) -> Result<R, NetError>,
    ) -> io::Result<R> {
        let mut until = None;
        loop {
            match self.part.call(&mut attempt) {
                Err(NetError::WouldBlock) => {}
                other => return other.map_err(io::Error::from),
            }
            let nonblocking = self.nonblocking.load(Ordering::Relaxed);
            if wants == Ready::READABLE && self.busy_poll(nonblocking) {
                continue;
            }
            if nonblocking {
                return Err(NetError::WouldBlock.into());
            }
            if until.is_none() {
                let limit_ns = timeout_ns.load(Ordering::Relaxed);
                until = (limit_ns != FOR_EVER).then(|| Instant::now() + Duration::from_nanos(limit_ns));
            }
            if !self.part.block(wants, until) {
                // SO_RCVTIMEO and SO_SNDTIMEO end with EAGAIN.
                return Err(NetError::WouldBlock.into());
            }
        }
    }

    /// `sk_busy_loop` (§9); true if there is something to read now.
    fn busy_poll(&self, nonblocking: bool) -> bool {
        let Some(plan) = self.busy.plan(self.part.napi_id(), nonblocking) else { return false };
        let is_ready = || self.part.level().intersects(Ready::READABLE | Ready::ERR | Ready::HUP);
        self.part.host.busy_loop(&plan, &mut |_| is_ready());
        is_ready()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let part = &self.part;
        let list = part.queue.with(&part.host, |inside, now_ns| {
            let list = inside.unwatch(part.id);
            // A socket that the stack forgot meanwhile is closed already.
            let _ = inside.call(now_ns, |stack, io| stack.close(part.id, io));
            list
        });
        if let Some(mut list) = list {
            forget(list.take_items(), std::ptr::from_ref(self) as usize);
        }
    }
}

fn timeout_to_ns(timeout: Option<Duration>) -> io::Result<u64> {
    match timeout {
        None => Ok(FOR_EVER),
        Some(timeout) if timeout.is_zero() => Err(NetError::Invalid.into()),
        Some(timeout) => Ok(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1)),
    }
}

fn ns_to_timeout(ns: u64) -> Option<Duration> {
    (ns != FOR_EVER).then(|| Duration::from_nanos(ns))
}

macro_rules! socket_options {
    ($socket:ident) => {
        impl $socket {
            /// Whether calls that would block return `WouldBlock` instead (O_NONBLOCK).
            pub fn set_nonblocking(&self, nonblocking: bool) {
                self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
            }

            /// How long a blocking read waits (SO_RCVTIMEO); `None` is for ever.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.read_timeout_ns.store(timeout_to_ns(timeout)?, Ordering::Relaxed);
                Ok(())
            }

            /// How long a blocking write waits (SO_SNDTIMEO); `None` is for ever.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.write_timeout_ns.store(timeout_to_ns(timeout)?, Ordering::Relaxed);
                Ok(())
            }

            /// SO_RCVTIMEO.
            pub fn read_timeout(&self) -> Option<Duration> {
                ns_to_timeout(self.0.read_timeout_ns.load(Ordering::Relaxed))
            }

            /// SO_SNDTIMEO.
            pub fn write_timeout(&self) -> Option<Duration> {
                ns_to_timeout(self.0.write_timeout_ns.load(Ordering::Relaxed))
            }

            /// What is ready now; what `poll` would report.
            pub fn ready(&self) -> Ready {
                self.0.part.level()
            }

            /// The NAPI that this socket's packets come through (SO_INCOMING_NAPI_ID); 0 while it is disabled.
            pub fn incoming_napi_id(&self) -> u32 {
                self.0.part.napi_id()
            }

            /// SO_BUSY_POLL: how long a read that finds nothing busy polls, in microseconds; 0 is off.
            ///
            /// # Errors
            /// More than 2^31-1.
            pub fn set_busy_poll(&self, usecs: u32) -> Result<(), SettingError> {
                self.0.busy.set_usecs(usecs)
            }

            /// SO_BUSY_POLL.
            pub fn busy_poll(&self) -> u32 {
                self.0.busy.usecs()
            }

            /// SO_PREFER_BUSY_POLL.
            ///
            /// # Errors
            /// Setting it without `privileged` (CAP_NET_ADMIN).
            pub fn set_prefer_busy_poll(&self, prefer: bool, privileged: bool) -> Result<(), SettingError> {
                self.0.busy.set_prefer(prefer, privileged)
            }

            /// SO_PREFER_BUSY_POLL.
            pub fn prefer_busy_poll(&self) -> bool {
                self.0.busy.prefer()
            }

            /// SO_BUSY_POLL_BUDGET, in packets.
            ///
            /// # Errors
            /// More than 65535, or raising it without `privileged` (CAP_NET_ADMIN).
            pub fn set_busy_poll_budget(&self, budget: u32, privileged: bool) -> Result<(), SettingError> {
                self.0.busy.set_budget(budget, privileged)
            }

            /// SO_BUSY_POLL_BUDGET.
            pub fn busy_poll_budget(&self) -> u32 {
                self.0.busy.budget()
            }

            /// Takes the pending error (SO_ERROR).
            ///
            /// # Errors
            /// The socket is gone.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                let error = self.0.part.call(|stack, id, _| stack.take_error(id))?;
                Ok(error.map(io::Error::from))
            }

            /// The own address (getsockname).
            ///
            /// # Errors
            /// The socket is gone.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.part.call(|stack, id, _| stack.local_addr(id))?)
            }

            /// The peer's address (getpeername).
            ///
            /// # Errors
            /// `NotConnected`.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.part.call(|stack, id, _| stack.peer_addr(id))?)
            }

            /// Closes one direction or both.
            ///
            /// # Errors
            /// `NotConnected`.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                Ok(self.0.part.call(|stack, id, io| stack.shutdown(id, how, io))?)
            }
        }

        impl Source for $socket {
            fn parts(&self) -> Vec<Part> {
                vec![self.0.part.clone()]
            }

            fn identity(&self) -> usize {
                self.0.identity()
            }
        }

        impl std::fmt::Debug for $socket {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($socket)).field("ready", &self.ready()).finish_non_exhaustive()
            }
        }
    };
}

/// A TCP connection. Clones are the same socket; it closes with the last of them.
#[derive(Clone)]
pub struct TcpStream(Arc<Open>);
socket_options!(TcpStream);

impl TcpStream {
    /// Opens a connection and waits for it, for as long as TCP tries.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, no route, no free port.
    pub fn connect(network: &Network, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::start_connect(network, None, remote, ConnectOptions::default())?;
        stream.0.part.block(Ready::WRITABLE, None);
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    /// Starts to open a connection, from `local` if given: it becomes writable, or has an error, later.
    ///
    /// # Errors
    /// No route, no free port, an address that is not the network's.
    pub fn start_connect(
        network: &Network,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> io::Result<TcpStream> {
        let (queue, host) = network.queue_for(remote);
        let part = queue.with(host, |inside, now_ns| {
            let id = inside.call(now_ns, |stack, io| stack.tcp_connect(local, remote, options, io))?;
            Ok::<Part, NetError>(Part::new(queue, host, id, inside))
        })?;
        Ok(TcpStream(Arc::new(Open::new(part, SocketBusy::new(network.sysctl())))))
    }

    /// Reads into several buffers in turn.
    ///
    /// # Errors
    /// `WouldBlock`, or what ended the connection.
    pub fn recv_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| stack.tcp_recv_vectored(id, buffers, io))
    }

    /// Reads.
    ///
    /// # Errors
    /// `WouldBlock`, or what ended the connection.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| stack.tcp_recv(id, buffer, io))
    }

    /// Reads without taking (MSG_PEEK).
    ///
    /// # Errors
    /// `WouldBlock`, or what ended the connection.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, _| stack.tcp_peek(id, buffer))
    }

    /// Writes: as much as there is room for, at least one byte.
    ///
    /// # Errors
    /// `WouldBlock`, `BrokenPipe`, or what ended the connection.
    #[inline]
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.tcp_send(id, data, io))
    }

    /// Writes from several buffers at once: one segment where they fit one.
    ///
    /// # Errors
    /// As [`TcpStream::send`].
    pub fn send_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.tcp_send_vectored(id, data, io))
    }

    /// TCP_NODELAY.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_nodelay(id, nodelay, io))?)
    }

    /// SO_KEEPALIVE with its times; `None` is off.
    ///
    /// # Errors
    /// `InvalidInput` for a time or count of zero.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_keepalive(id, keepalive, io))?)
    }

    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged; `None` is the stack's default.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout_ns = timeout.map(|timeout| timeout.as_nanos() as u64);
        Ok(self.0.part.call(|stack, id, io| stack.set_user_timeout(id, timeout_ns, io))?)
    }

    /// Whether closing resets the connection (SO_LINGER with a time of zero).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_reset_on_close(&self, reset: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.set_reset_on_close(id, reset))?)
    }

    /// SO_RCVBUF and SO_SNDBUF, in bytes.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn buffer_sizes(&self) -> io::Result<(usize, usize)> {
        Ok(self.0.part.call(|stack, id, _| stack.buffer_sizes(id))?)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listening TCP socket, on one shard or on all of a network's.
#[derive(Clone)]
pub struct TcpListener(Arc<Listening>);

struct Listening {
    opens: Vec<Open>,
    /// Where the next accept looks first, so that no shard starves.
    turn: AtomicUsize,
    nonblocking: AtomicBool,
}

impl TcpListener {
    /// One listener over all shards of the network.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`.
    pub fn bind(network: &Network, local: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind_with(network, None, local, ListenOptions::default())
    }

    /// A listener on one shard (`queue`), or on all of them. Several with `reuse_port`, one per shard, are how each
    /// worker gets the connections of its own NAPI.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `InvalidInput` if there is no such queue.
    pub fn bind_with(
        network: &Network,
        queue: Option<usize>,
        local: SocketAddr,
        options: ListenOptions,
    ) -> io::Result<TcpListener> {
        let host = network.delivery();
        let queues = network.queues();
        let queues = match queue {
            None => queues,
            Some(index) => queues.get(index..=index).ok_or(NetError::Invalid)?,
        };
        let open = |queue: &Arc<Queue>| {
            let part = queue.with(host, |inside, _| {
                let id = inside.stack.tcp_listen(local, options)?;
                Ok::<Part, NetError>(Part::new(queue, host, id, inside))
            })?;
            Ok(Open::new(part, SocketBusy::new(network.sysctl())))
        };
        // A failure part-way drops, and so closes, those that were opened.
        let opens = queues.iter().map(open).collect::<io::Result<Vec<Open>>>()?;
        Ok(TcpListener(Arc::new(Listening { opens, turn: AtomicUsize::new(0), nonblocking: AtomicBool::new(false) })))
    }

    /// Whether [`TcpListener::accept`] returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Takes a connection. It stays on the shard that it came in by.
    ///
    /// # Errors
    /// `WouldBlock`.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let first = self.0.turn.fetch_add(1, Ordering::Relaxed);
            for step in 0..self.0.opens.len() {
                let open = &self.0.opens[(first + step) % self.0.opens.len()];
                if let Some(accepted) = self.accept_from(open)? {
                    return Ok(accepted);
                }
            }
            if self.0.nonblocking.load(Ordering::Relaxed) {
                return Err(NetError::WouldBlock.into());
            }
            self.block();
        }
    }

    fn accept_from(&self, open: &Open) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let Part { queue, host, id, level } = &open.part;
        let accepted = queue.with(host, |inside, _| {
            let accepted = inside.stack.tcp_accept(*id);
            if let Ok(ready) = inside.stack.ready(*id) {
                level.set(ready);
            }
            accepted.map(|(id, peer)| (Part::new(queue, host, id, inside), peer))
        });
        match accepted {
            Ok((part, peer)) => {
                let busy = SocketBusy::new(&lull_core::Sysctl::default());
                // A child inherits the listener's busy-poll time.
                let _ = busy.set_usecs(open.busy.usecs());
                Ok(Some((TcpStream(Arc::new(Open::new(part, busy))), peer)))
            }
            Err(NetError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn block(&self) {
        match &self.0.opens[..] {
            [open] => {
                open.part.block(Ready::READABLE, None);
            }
            opens => {
                let each = |f: &dyn Fn(&mut crate::ready::WaitList)| {
                    for Open { part, .. } in opens {
                        part.queue.with(&part.host, |inside, _| inside.wait_list(part.id).map(f));
                    }
                };
                each(&|list| list.block(Ready::READABLE | Ready::ERR | Ready::HUP));
                while opens.iter().all(|open| open.part.level().is_empty()) {
                    std::thread::park();
                }
                each(&|list| list.unblock());
            }
        }
    }

    /// The own address.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.opens[0].part.call(|stack, id, _| stack.local_addr(id))?)
    }

    /// SO_BUSY_POLL, which accepted connections inherit.
    ///
    /// # Errors
    /// More than 2^31-1.
    pub fn set_busy_poll(&self, usecs: u32) -> Result<(), SettingError> {
        self.0.opens.iter().try_for_each(|open| open.busy.set_usecs(usecs))
    }
}

impl Source for TcpListener {
    fn parts(&self) -> Vec<Part> {
        self.0.opens.iter().map(|open| open.part.clone()).collect()
    }

    fn identity(&self) -> usize {
        // The first part's, which its closing knows too.
        std::ptr::from_ref(&self.0.opens[0]) as usize
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("shards", &self.0.opens.len()).finish_non_exhaustive()
    }
}

/// A UDP socket on one shard.
#[derive(Clone)]
pub struct UdpSocket(Arc<Open>);
socket_options!(UdpSocket);

impl UdpSocket {
    /// Binds on the network's first shard.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`.
    pub fn bind(network: &Network, local: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind_with(network, 0, local, UdpOptions::default())
    }

    /// Binds on shard `queue`. With several queues, packets reach the shard that RSS sends them to: bind one socket per shard
    /// with `reuse_port` to have them all.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `InvalidInput` if there is no such queue.
    pub fn bind_with(network: &Network, queue: usize, local: SocketAddr, options: UdpOptions) -> io::Result<UdpSocket> {
        let host = network.delivery();
        let queue = network.queues().get(queue).ok_or(NetError::Invalid)?;
        let part = queue.with(host, |inside, _| {
            let id = inside.stack.udp_bind(local, options)?;
            Ok::<Part, NetError>(Part::new(queue, host, id, inside))
        })?;
        Ok(UdpSocket(Arc::new(Open::new(part, SocketBusy::new(network.sysctl())))))
    }

    /// Sets the peer for [`UdpSocket::send`], and takes datagrams from it only; `None` undoes it.
    ///
    /// # Errors
    /// No route.
    pub fn connect(&self, peer: Option<SocketAddr>) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_connect(id, peer))?)
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; no peer, no route, too long.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send(id, data, io))
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; no route, too long.
    pub fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send_to(id, data, to, io))
    }

    /// Takes a datagram. What does not fit `buffer` is lost; [`Received`] tells.
    ///
    /// # Errors
    /// `WouldBlock`, or an error that a router or the peer reported.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| stack.udp_recv_from(id, buffer, io))
    }

    /// Takes a datagram into several buffers in turn, or looks at it with `peek`.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_vectored(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<Received> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| {
            stack.udp_recv_vectored(id, buffers, peek, io)
        })
    }
}
