//! Listening TCP sockets.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lull_bpf::Chooser;
use lull_core::{SettingError, SocketBusy};

use super::open::{Open, Part, Source};
use super::{TcpStream, addresses};
use crate::batch;
use crate::network::Network;
use crate::queue::Queue;
use crate::shard::{EPHEMERAL_PORTS, ListenOptions, NetError, Ready, Shutdown, Unaccepted};

/// A listening TCP socket, on one shard or on all of a network's.
#[derive(Clone)]
pub struct TcpListener(Arc<Listening>);

struct Listening {
    opens: Vec<Open>,
    /// Which part the next accept asks first, so that no shard starves.
    turn: AtomicUsize,
    nonblocking: AtomicBool,
}

/// Listeners that are bound together.
struct Group {
    members: usize,
    program: Option<Arc<Chooser>>,
}

impl TcpListener {
    /// Makes one listener over all shards of the network. Of several addresses, each is tried in turn.
    ///
    /// # Errors
    /// `AddrInUse` or `AddrNotAvailable`, of the last address; the error of the operating system's resolver for a host
    /// name.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let options = ListenOptions::default();
        addresses::each(local, |local| TcpListener::bind_with(network, None, local, options))
    }

    /// Makes a listener on one shard (`queue`), or on all of them. With one listener per shard, and `reuse_port`, each
    /// worker gets the connections of its own NAPI. Port 0 stands for a free ephemeral port, which is the same on all
    /// shards; [`TcpListener::local_addr`] tells which it is.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `InvalidInput` if there is no such queue.
    pub fn bind_with(
        network: &Network,
        queue: Option<usize>,
        local: SocketAddr,
        options: ListenOptions,
    ) -> io::Result<TcpListener> {
        let queues = match queue {
            None => network.queues(),
            Some(index) => std::slice::from_ref(network.queue(index)?),
        };
        let mut group = TcpListener::open_at(network, queues, local, options, &Group { members: 1, program: None })?;
        Ok(group.remove(0))
    }

    /// Makes a reuseport group of `members` listeners over all shards. `program` chooses among them from the first SYN
    /// on (see [`TcpListener::set_reuseport_program`]); otherwise a SYN between a bind and an attachment could go to
    /// any member.
    ///
    /// # Errors
    /// As [`TcpListener::bind_with`]; `InvalidInput` without a member, or without `reuse_port` in `options`.
    pub fn bind_group(
        network: &Network,
        members: usize,
        local: SocketAddr,
        options: ListenOptions,
        program: Option<Arc<Chooser>>,
    ) -> io::Result<Vec<TcpListener>> {
        if members == 0 || !options.reuse_port {
            return Err(NetError::Invalid.into());
        }
        Ok(TcpListener::open_at(network, network.queues(), local, options, &Group { members, program })?)
    }

    fn open_at(
        network: &Network,
        queues: &[Arc<Queue>],
        local: SocketAddr,
        options: ListenOptions,
        group: &Group,
    ) -> Result<Vec<TcpListener>, NetError> {
        if local.port() != 0 {
            return TcpListener::open(network, queues, local, options, group);
        }
        // Any port to start from will do; a random one keeps listeners that are made anew from getting the same port.
        let first = std::collections::hash_map::RandomState::new().build_hasher().finish() as usize;
        let ports = usize::from(EPHEMERAL_PORTS.end() - EPHEMERAL_PORTS.start()) + 1;
        let alone = Group { members: 1, program: None };
        for step in 0..ports {
            let port = EPHEMERAL_PORTS.start() + ((first + step) % ports) as u16;
            let at = SocketAddr::new(local.ip(), port);
            // A port that others share is not free either.
            match TcpListener::open(network, queues, at, ListenOptions { reuse_port: false, ..options }, &alone) {
                Ok(listener) if !options.reuse_port => return Ok(listener),
                Ok(listener) => drop(listener),
                Err(NetError::AddressInUse) => continue,
                Err(error) => return Err(error),
            }
            // Another socket may have taken the port in between.
            match TcpListener::open(network, queues, at, options, group) {
                Err(NetError::AddressInUse) => {}
                opened => return opened,
            }
        }
        Err(NetError::AddressInUse)
    }

    /// Opens the listener. On a queue that is down nobody listens, unless all queues are.
    fn open(
        network: &Network,
        queues: &[Arc<Queue>],
        local: SocketAddr,
        options: ListenOptions,
        group: &Group,
    ) -> Result<Vec<TcpListener>, NetError> {
        let host = network.delivery();
        let mut members: Vec<Vec<Open>> = (0..group.members).map(|_| Vec::with_capacity(queues.len())).collect();
        for queue in queues {
            let mut parts = Vec::with_capacity(group.members);
            let opened = queue.with(host, |inside, _| {
                for _ in 0..group.members {
                    let id = inside.stack.tcp_listen(local, options)?;
                    parts.push(Part::new(queue, host, id, inside));
                }
                match (parts.first(), &group.program) {
                    (Some(part), Some(program)) => inside.stack.set_reuseport_program(part.id, Some(program.clone())),
                    _ => Ok(()),
                }
            });
            for (opens, part) in members.iter_mut().zip(parts) {
                opens.push(Open::new(part, SocketBusy::new(network.sysctl())));
            }
            match opened {
                Ok(()) | Err(NetError::NetworkDown) => {}
                // The parts that were opened are dropped, and thereby closed.
                Err(error) => return Err(error),
            }
        }
        if members.iter().any(Vec::is_empty) {
            return Err(NetError::NetworkDown);
        }
        let listener = |opens| {
            TcpListener(Arc::new(Listening { opens, turn: AtomicUsize::new(0), nonblocking: AtomicBool::new(false) }))
        };
        Ok(members.into_iter().map(listener).collect())
    }

    /// Another handle of the same listener, as `clone` gives.
    ///
    /// # Errors
    /// There is none: the result has the shape of `std::net`'s.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(self.clone())
    }

    /// Whether [`TcpListener::accept`] returns `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// There is none: the result has the shape of `std::net`'s.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// The connections one after the other, as from a loop around [`TcpListener::accept`]. It never ends by itself.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Takes a connection. It stays on the shard by which it came in.
    ///
    /// # Errors
    /// `WouldBlock` if there is no connection.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_for_another().map(|(stream, peer, _)| (stream, peer))
    }

    /// As [`TcpListener::accept`], and also returns what allows to leave the connection to another process that listens
    /// at its address ([`TcpStream::leave`]), as long as nothing was read from it or written to it.
    ///
    /// # Errors
    /// `WouldBlock` if there is no connection.
    pub fn accept_for_another(&self) -> io::Result<(TcpStream, SocketAddr, Unaccepted)> {
        loop {
            let first = self.0.turn.fetch_add(1, Ordering::Relaxed);
            let mut down = Vec::new();
            for step in 0..self.0.opens.len() {
                let open = &self.0.opens[(first + step) % self.0.opens.len()];
                match self.accept_from(open) {
                    Ok(Some(accepted)) => return Ok(accepted),
                    Ok(None) => {}
                    Err(NetError::NetworkDown) => down.push(&open.part),
                    Err(error) => return Err(error.into()),
                }
            }
            if down.len() == self.0.opens.len() {
                return Err(NetError::NetworkDown.into());
            }
            // It was reported that these queues went down, and no connection comes by them any more, so they do not end
            // a wait for connections of the others. A queue that goes down after it was asked does.
            down.into_iter().for_each(Part::waits_for_others);
            if self.0.nonblocking.load(Ordering::Relaxed) {
                batch::in_vain();
                return Err(NetError::WouldBlock.into());
            }
            batch::about_to_wait();
            self.block();
        }
    }

    /// The answers of all parts whose queue is not down.
    fn each<R>(&self, mut ask: impl FnMut(&Open) -> Result<R, NetError>) -> io::Result<Vec<R>> {
        let mut answers = Vec::with_capacity(self.0.opens.len());
        for open in &self.0.opens {
            match ask(open) {
                Ok(answer) => answers.push(answer),
                Err(NetError::NetworkDown) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if answers.is_empty() { Err(NetError::NetworkDown.into()) } else { Ok(answers) }
    }

    /// How many connections were accepted so far, and how many wait.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn arrivals(&self) -> io::Result<(u64, usize)> {
        let each = self.each(|open| open.part.call(|stack, id, _| stack.tcp_arrivals(id)))?;
        Ok(each.into_iter().fold((0, 0), |all, (taken, wait)| (all.0 + taken, all.1 + wait)))
    }

    fn accept_from(&self, open: &Open) -> Result<Option<(TcpStream, SocketAddr, Unaccepted)>, NetError> {
        let Part { queue, host, id, level } = &open.part;
        let accepted = queue.with(host, |inside, _| {
            let accepted = inside.stack.tcp_accept_for_another(*id);
            if let Ok(ready) = inside.stack.ready(*id) {
                level.set(ready);
            }
            accepted.map(|(id, peer, was)| (Part::new(queue, host, id, inside), peer, was))
        });
        match accepted {
            Ok((part, peer, was)) => Ok(Some((TcpStream(Arc::new(open.child(part))), peer, was))),
            Err(NetError::WouldBlock) => Ok(None),
            Err(error) => Err(error),
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

    /// Attaches a BPF program to the listener's reuseport group in place of the present one; `None` takes that away
    /// (SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF, SO_DETACH_REUSEPORT_BPF). For each SYN the program chooses
    /// among the members: it returns the number of a listener, in the order in which they were bound. When one is
    /// closed, the last one gets its number. If a number belongs to no listener, the 4-tuple's hash chooses. The
    /// listeners of one group are bound to the same shards.
    ///
    /// # Errors
    /// `InvalidInput` if the listener was bound without `reuse_port`; `NotFound` if there is no program to take away.
    pub fn set_reuseport_program(&self, program: Option<Arc<Chooser>>) -> io::Result<()> {
        let set = |open: &Open| open.part.call(|stack, id, _| stack.set_reuseport_program(id, program.clone()));
        self.each(set).map(drop)
    }

    /// Sets how many connections may wait to be accepted on each shard from now on.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_backlog(&self, backlog: usize) -> io::Result<()> {
        self.each(|open| open.part.call(|stack, id, _| stack.set_backlog(id, backlog))).map(drop)
    }

    /// Stops listening (`shutdown`): calls that wait for a connection end, and connections that wait to be accepted are reset.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.each(|open| open.part.call(|stack, id, io| stack.shutdown(id, how, io))).map(drop)
    }

    /// What is ready now, which is what `poll` would report.
    pub fn ready(&self) -> Ready {
        self.0.opens.iter().fold(Ready::empty(), |all, open| all | open.part.level())
    }

    /// The listener's own address.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let mut each = self.0.opens.iter().map(|open| open.part.call(|stack, id, _| stack.local_addr(id)));
        Ok(each.find(|local| *local != Err(NetError::NetworkDown)).unwrap_or(Err(NetError::NetworkDown))?)
    }

    /// Takes the pending error (SO_ERROR).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let each = self.each(|open| open.part.call(|stack, id, _| stack.take_error(id)))?;
        Ok(each.into_iter().flatten().next().map(io::Error::from))
    }

    /// SO_BUSY_POLL, which accepted connections inherit.
    ///
    /// # Errors
    /// The time is more than 2^31-1.
    pub fn set_busy_poll(&self, usecs: u32) -> Result<(), SettingError> {
        self.0.opens.iter().try_for_each(|open| open.set_busy_poll(usecs))
    }
}

/// The connections of a listener; [`TcpListener::incoming`] returns it.
#[derive(Debug)]
pub struct Incoming<'l> {
    listener: &'l TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _peer)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}

impl Source for TcpListener {
    fn parts(&self) -> Vec<Part> {
        self.0.opens.iter().map(|open| open.part.clone()).collect()
    }

    fn identity(&self) -> usize {
        // It is that of the first part, which the part's closing knows as well.
        std::ptr::from_ref(&self.0.opens[0]) as usize
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("shards", &self.0.opens.len()).finish_non_exhaustive()
    }
}
