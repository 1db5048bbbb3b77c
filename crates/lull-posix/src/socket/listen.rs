//! `bind`, `listen`: where a listener becomes lull's.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use libc::c_int;
use lull_fd::say;
use lull_net::{ListenOptions, SOMAXCONN, TcpListener};

use super::options::{Options, refused, steer};
use super::{Listener, datagram, pool};
use crate::engine::{self, Share};
use crate::files::{self, File};
use crate::{Errno, Result, address, elsewhere, epoll, flags, flows, inherit, kernel};

/// A negative backlog is a very large one, as it is unsigned inside the kernel (`__sys_listen`).
fn limited(backlog: c_int) -> usize {
    usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN)
}

/// `bind`. The kernel's socket is bound in any case: so ports that are taken are refused, port 0 becomes one, and the address can
/// be asked for. lull's addresses are not the machine's, which takes IP_FREEBIND.
pub fn bind(fd: c_int, bytes: &[u8]) -> Result<()> {
    if inherit::made::has_parent() && !inherit::goes_on() {
        return inherit::made::bind(fd, bytes);
    }
    files::hand_back_ended(fd);
    if let Some(File::Stream(stream)) = files::get(fd).as_deref() {
        return bind_again(stream.domain, bytes);
    }
    let address = address::parse(bytes);
    let keeps_port = address.is_some_and(|address| address.port() != 0);
    let lulls = address.is_some_and(|address| engine::is_own(address.ip()) && engine::takes(address.port()));
    if lulls || address.is_some_and(|address| address.ip().is_unspecified()) {
        refuse_if_taken(fd, address)?;
    }
    if !lulls || !is_of_a_protocol_of_lulls(fd) {
        kernel::bind(fd, bytes)?;
        return datagram::bound(fd, keeps_port);
    }
    // Without an engine a datagram socket cannot be lull's, and a bind cannot be taken back. A stream needs none yet.
    if datagram::is_udp(fd) {
        engine::engine()?;
    }
    bind_own(fd, bytes)?;
    datagram::bound(fd, keeps_port)
}

/// lull's address would take a socket of another protocol (UDP-Lite, SCTP, MPTCP) to where nothing ever comes: the kernel says that it
/// does not have that address.
fn is_of_a_protocol_of_lulls(fd: c_int) -> bool {
    // What is no socket, or none of these families, is told so by the call.
    let Ok(protocol) = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) else { return true };
    let is_one = [libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&protocol);
    if !is_one {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            say::line(format_args!(
                "the program binds a socket of protocol {protocol} to an address of lull's, which has TCP and UDP only: refused"
            ))
        });
    }
    is_one
}

/// Binds the kernel's socket to an address of lull's.
pub(crate) fn bind_own(fd: c_int, bytes: &[u8]) -> Result<()> {
    let freebind = Freebind::begin(fd);
    let bound = kernel::bind(fd, bytes);
    freebind.end();
    bound
}

/// A connection has its address. Its placeholder, which may stand for others as well, must not get one (`__inet_bind`: what
/// is wrong with the new address is told first).
fn bind_again(domain: c_int, bytes: &[u8]) -> Result<()> {
    let asked = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let mut any_port = bytes.to_vec();
    any_port.iter_mut().skip(2).take(2).for_each(|byte| *byte = 0);
    let bound = bind(asked, &any_port);
    kernel::discard(asked);
    bound.and(Err(Errno::new(libc::EINVAL)))
}

/// SO_REUSEADDR lets a socket have a port that others have, unless one of them listens (`inet_csk_bind_conflict`). The
/// placeholder of a listener that is lull's does not, so lull's own table is asked.
fn refuse_if_taken(fd: c_int, address: Option<SocketAddr>) -> Result<()> {
    let Some(address) = address.filter(|address| address.port() != 0) else { return Ok(()) };
    let Some(engine) = engine::running() else { return Ok(()) };
    // One that is bound already is refused for that first (`__inet_bind`).
    let is_bound =
        kernel::getsockname(fd).is_ok_and(|name| address::parse(name.as_bytes()).is_some_and(|at| at.port() != 0));
    if is_bound {
        return Ok(());
    }
    if kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR) != Ok(1)
        || kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP)
    {
        return Ok(());
    }
    match TcpListener::bind_with(&engine.network, None, address, asked(fd, 0, false)).map_err(Errno::from) {
        Err(error) if error.number() == libc::EADDRINUSE => Err(error),
        _ => Ok(()),
    }
}

/// IP_FREEBIND for the length of a call; afterwards it is as the program left it.
struct Freebind {
    fd: c_int,
    level: c_int,
    name: c_int,
    before: c_int,
}

impl Freebind {
    fn begin(fd: c_int) -> Freebind {
        let v6 = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6);
        let (level, name) = if v6 { (libc::SOL_IPV6, libc::IPV6_FREEBIND) } else { (libc::SOL_IP, libc::IP_FREEBIND) };
        let before = kernel::int_option(fd, level, name).unwrap_or(0);
        let freebind = Freebind { fd, level, name, before };
        freebind.set(1);
        freebind
    }

    fn set(&self, value: c_int) {
        // Refused, the bind says what is wrong.
        let _ = kernel::setsockopt(self.fd, self.level, self.name, &value.to_ne_bytes());
    }

    fn end(self) {
        self.set(self.before);
    }
}

/// `listen`. A socket that is bound to an address of lull's becomes lull's; one that is bound to a wildcard is in both worlds.
pub fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    if inherit::made::has_parent() && !inherit::goes_on() {
        return inherit::made::listen(fd, backlog);
    }
    files::hand_back_ended(fd);
    if files::is_lull(fd) {
        return listen_again(fd, backlog);
    }
    let Some(bound) = bound_stream(fd) else { return kernel::listen(fd, backlog) };
    let Some(worlds) = worlds(fd, bound) else { return kernel::listen(fd, backlog) };
    // With an option that lull has not, one on a wildcard stays the kernel's.
    if refused::is_set(fd) {
        return if worlds == Worlds::Lulls { refused::check(fd) } else { kernel::listen(fd, backlog) };
    }
    match worlds {
        Worlds::Both => kernel::listen(fd, backlog)?,
        Worlds::Lulls => has_a_port(fd, bound)?,
    }
    // Port 0 has become one when the kernel listens.
    let bound = bound_stream(fd).unwrap_or(bound);
    let pool = if engine::listens_lazily() { pool::Pool::new().ok() } else { None };
    let listener = Listener::new(fd, bound, worlds, limited(backlog), std::process::id(), pool)?;
    listener.keep(fd, None);
    // A process that has queues has its connections from here on, whenever it asks for them.
    if !engine::listens_lazily() || engine::running().is_some() {
        listener.real()?;
    }
    epoll::becomes_lulls(fd, || files::put(fd, File::Listener(listener)))
}

/// Whose the connections are that a listener hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worlds {
    Lulls,
    Both,
}

fn is_v6_only(fd: c_int, bound: SocketAddr) -> bool {
    bound.is_ipv6() && kernel::int_option(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1)
}

/// What a socket that is bound there hears of; nothing of lull's if it is none.
pub(super) fn worlds(fd: c_int, bound: SocketAddr) -> Option<Worlds> {
    let wildcard = || bound.ip().is_unspecified() && engine::has_family(bound.ip(), is_v6_only(fd, bound));
    let worlds = if engine::is_own(bound.ip()) { Some(Worlds::Lulls) } else { wildcard().then_some(Worlds::Both) };
    worlds.filter(|_| engine::takes(bound.port()))
}

/// A listener that was shut down has lost a port that the kernel had chosen, though its name still has it (`tcp_disconnect`).
/// Linux chooses another when it listens again (`inet_csk_listen_start`); here the placeholder does not listen, so that it is
/// bound instead. One that has a port refuses.
fn has_a_port(fd: c_int, bound: SocketAddr) -> Result<()> {
    let domain = if bound.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    match bind_own(fd, &address::Bytes::new(SocketAddr::new(bound.ip(), 0), domain)) {
        Err(error) if error.number() != libc::EINVAL => Err(error),
        _ => Ok(()),
    }
}

impl Listener {
    /// The one behind a number, for which the process `called_in` has called `listen`.
    pub(super) fn new(
        fd: c_int,
        bound: SocketAddr,
        worlds: Worlds,
        backlog: usize,
        called_in: u32,
        pool: Option<pool::Pool>,
    ) -> Result<Listener> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let inode = kernel::inode(fd)?;
        Ok(Listener {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            inode,
            bound,
            asked: asked(fd, 0, is_v6_only(fd, bound)),
            backlog: AtomicUsize::new(backlog),
            called_in,
            real: OnceLock::new(),
            pool,
            becoming: Mutex::new(()),
            stopped: AtomicBool::new(false),
            both_worlds: worlds == Worlds::Both,
            domain: if bound.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET },
            nonblocking: AtomicBool::new(flags::is_nonblocking(fd)),
            options: Options::of_listener(fd),
            program: Mutex::new(steer::take_remembered(inode, bound)),
            handed_on: AtomicBool::new(false),
            has_heirs: AtomicBool::new(false),
        })
    }

    /// lull's half, if it listens.
    pub(crate) fn if_real(&self) -> Option<&TcpListener> {
        self.real.get().map(Arc::as_ref)
    }

    /// lull's half. It is made here, for a process that asks for connections, on the queues that it then has.
    pub(crate) fn real(&self) -> Result<&TcpListener> {
        if let Some(real) = self.if_real() {
            return Ok(real);
        }
        let _one_at_a_time = self.becoming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(real) = self.if_real() {
            return Ok(real);
        }
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Errno::new(libc::EINVAL));
        }
        let (backlog, rx_buffer_bytes) = (self.backlog.load(Ordering::Relaxed), self.options.buffers().receive);
        let asked = ListenOptions { backlog, rx_buffer_bytes, ..self.asked };
        let engine = engine::engine_with(if self.is_inherited() { Share::One } else { Share::All })
            .inspect_err(|_| self.is_shared_with_a_child())?;
        let listener = TcpListener::bind_with(&engine.network, None, self.bound, asked)?;
        listener.set_nonblocking(true)?;
        self.asked_for();
        let real = self.real.get_or_init(|| Arc::new(listener));
        pool::serve(self, real);
        // Behind it: whoever attaches a program meanwhile either finds the listener or leaves the program to be found here.
        if let Some(program) = self.program.lock().unwrap_or_else(PoisonError::into_inner).take() {
            real.set_reuseport_program(Some(program))?;
        }
        Ok(real)
    }

    /// This process has forked a child, which has the listener as well, and may execute a program that asks for connections.
    pub(crate) fn is_inherited_by_a_child(&self) {
        if self.has_heirs.load(Ordering::Relaxed) || self.is_inherited() {
            return;
        }
        let _one_at_a_time = self.becoming.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_heirs.store(true, Ordering::Release);
        if let Some(real) = self.real.get() {
            pool::serve(self, real);
            epoll::has_a_pool(self);
        }
    }

    /// Whether this process has called `listen` for it, and it hears those who connect to this address.
    pub(crate) fn is_ours_at(&self, to: SocketAddr) -> bool {
        let ip = self.bound.ip();
        !self.is_inherited() && self.bound.port() == to.port() && (ip == to.ip() || ip.is_unspecified())
    }

    /// Whether another process, which made this one, has called `listen`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.called_in != std::process::id()
    }

    /// Connections are asked for here from now on. Of several processes that inherited it, the last one has them.
    pub(crate) fn asked_for(&self) {
        if let Some(others) = elsewhere::others() {
            others.listens(self.bound, self.inode);
            if let Some(engine) = engine::running() {
                others.kept().into_iter().for_each(|frame| engine.network.take_over(frame));
            }
        }
    }
}

/// The address of a bound TCP socket of the kernel's; nothing if it is anything else.
pub(super) fn bound_stream(fd: c_int) -> Option<SocketAddr> {
    if !engine::is_engaged() || kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
        return None;
    }
    address::parse(kernel::getsockname(fd).ok()?.as_bytes())
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Others have it.
        let handed_on = *self.handed_on.get_mut();
        let stays = self.is_inherited() || handed_on;
        if handed_on {
            // Its ends stay open.
            std::mem::forget(self.pool.take());
        }
        // Closed first: a connection that came between the two would be reset. One that serves others through the pool goes on.
        match (self.real.take().map(Arc::try_unwrap), elsewhere::others()) {
            (Some(Ok(closed)), others) => {
                drop(closed);
                others.inspect(|others| others.listens_no_more(self.bound, self.inode, stays));
            }
            (Some(Err(_serves_on)), _) => {}
            // Whoever made it leaves it to those who inherit it, until now.
            (None, _) if !stays => {
                flows::of_the_program().inspect(|flows| flows.closed_for_good(self.inode));
            }
            _ => {}
        }
    }
}

/// What was asked for, by `listen` and by options before it.
pub(crate) fn asked(fd: c_int, backlog: c_int, v6_only: bool) -> ListenOptions {
    let flag = |level, name| kernel::int_option(fd, level, name).is_ok_and(|value| value != 0);
    ListenOptions {
        backlog: limited(backlog),
        reuse_port: flag(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        v6_only,
        nodelay: flag(libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ..ListenOptions::default()
    }
}

fn listen_again(fd: c_int, backlog: c_int) -> Result<()> {
    match files::get(fd).as_deref() {
        Some(File::Listener(listener)) => {
            if listener.both_worlds {
                kernel::listen(fd, backlog)?;
            }
            listener.backlog.store(limited(backlog), Ordering::Relaxed);
            Ok(listener.if_real().map_or(Ok(()), |real| real.set_backlog(limited(backlog)))?)
        }
        Some(File::Stream(_)) => Err(Errno::new(libc::EINVAL)),
        _ => kernel::listen(fd, backlog),
    }
}
