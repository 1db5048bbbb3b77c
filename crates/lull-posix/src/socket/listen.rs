//! `listen`: where a listener becomes lull's.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::c_int;
use lull_net::{ListenOptions, SOMAXCONN, TcpListener};

use super::bind::bind_own;
use super::options::{Options, refused, steer};
use super::{Listener, bound, pool};
use crate::elsewhere::{Heard, Others};
use crate::engine::{self, Share};
use crate::files::{self, File};
use crate::{Errno, Result, address, elsewhere, epoll, flows, fork, inherit, kernel};

/// A negative backlog is a very large one, as it is unsigned inside the kernel (`__sys_listen`).
fn limited(backlog: c_int) -> usize {
    usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN)
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
    // A socket on a wildcard stays the kernel's if it has an option that lull does not have.
    if refused::is_set(fd) {
        return if worlds == Worlds::Lulls { refused::check(fd) } else { kernel::listen(fd, backlog) };
    }
    match worlds {
        Worlds::Both => kernel::listen(fd, backlog)?,
        Worlds::Lulls => has_a_port(fd, bound)?,
    }
    // Once the kernel listens, port 0 has become a port.
    let bound = bound_stream(fd).unwrap_or(bound);
    let shared = bound::listens(fd);
    let (called_in, passed_on) =
        shared.as_ref().map_or((std::process::id(), false), |shared| (shared.bound_in, shared.passed_on));
    let new_pool = || engine::listens_lazily().then(pool::Pool::new)?.ok();
    let pool = shared.map(|shared| shared.pool).or_else(new_pool);
    let listener = Listener::new(fd, bound, worlds, limited(backlog), called_in, pool)?;
    if passed_on {
        listener.is_passed_on();
    }
    listener.keep(fd, None);
    // A process that has queues has its connections from here on, whenever it asks for them.
    if !engine::listens_lazily() || engine::running().is_some() {
        listener.real()?;
    }
    epoll::becomes_lulls(fd, || files::put(fd, File::Listener(listener)))?;
    // Another thread may be starting the engine, and have looked for listeners before.
    elsewhere::others().inspect(|others| awaits(others, fd));
    Ok(())
}

/// From which world the connections of a listener come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worlds {
    Lulls,
    Both,
}

fn is_v6_only(fd: c_int, bound: SocketAddr) -> bool {
    bound.is_ipv6() && kernel::int_option(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1)
}

/// The worlds that a socket bound to this address accepts from; `None` if lull's is not among them.
pub(super) fn worlds(fd: c_int, bound: SocketAddr) -> Option<Worlds> {
    let wildcard = || bound.ip().is_unspecified() && engine::has_family(bound.ip(), is_v6_only(fd, bound));
    let worlds = if engine::is_own(bound.ip()) { Some(Worlds::Lulls) } else { wildcard().then_some(Worlds::Both) };
    worlds.filter(|_| engine::takes(bound.port()))
}

/// A listener that was shut down has lost a port that the kernel had chosen, though its name still has it (`tcp_disconnect`).
/// Linux chooses another when it listens again (`inet_csk_listen_start`); here the placeholder does not listen, so that it is
/// bound instead. One that has a port refuses.
fn has_a_port(fd: c_int, bound: SocketAddr) -> Result<()> {
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    // With this option `bind` leaves the port for whoever listens (`inet_csk_listen_start`).
    const LATER: (c_int, c_int) = (libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    let is_left = bound.port() == 0 && kernel::int_option(fd, LATER.0, LATER.1) == Ok(1);
    let set =
        |value: c_int| if is_left { kernel::setsockopt(fd, LATER.0, LATER.1, &value.to_ne_bytes()) } else { Ok(()) };
    set(0)?;
    let found = bind_own(fd, &address::Bytes::new(SocketAddr::new(bound.ip(), 0), domain));
    set(1)?;
    match found {
        Err(error) if error.number() != libc::EINVAL => Err(error),
        _ => Ok(()),
    }
}

impl Listener {
    /// The listener behind a number, for which the process `called_in` has called `listen`.
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
        fork::has_a_listener();
        Ok(Listener {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            open: Arc::new(()),
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
            // A socket of IPv6 may be bound to an address of IPv4.
            domain: kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?,
            nonblocking: AtomicBool::new(kernel::is_nonblocking(fd)),
            options: Options::of_listener(fd),
            program: Mutex::new(steer::take_remembered(inode, bound)),
            handed_on: AtomicBool::new(false),
            has_heirs: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
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
        let asked = self.asked_now();
        let _expected = elsewhere::expects(self.heard());
        let engine = engine::engine_with(if self.is_inherited() { Share::One } else { Share::All })
            .inspect_err(|_| self.waits_for_a_queue())?;
        let listener = TcpListener::bind_with(&engine.network, None, self.bound, asked)?;
        listener.set_nonblocking(true)?;
        self.asked_for();
        let real = self.real.get_or_init(|| Arc::new(listener));
        pool::serve(self, real);
        // This comes after the listener is there. A thread that attaches a program meanwhile either finds the listener,
        // or leaves the program to be found here.
        if let Some(program) = self.program.lock().unwrap_or_else(PoisonError::into_inner).take() {
            real.set_reuseport_program(Some(program))?;
        }
        Ok(real)
    }

    /// The addresses at which it accepts connections.
    pub(super) fn heard(&self) -> Heard {
        Heard { at: self.bound, v6_only: self.asked.v6_only }
    }

    /// The settings that lull's half is made with.
    pub(super) fn asked_now(&self) -> ListenOptions {
        let (backlog, rx_buffer_bytes) = (self.backlog.load(Ordering::Relaxed), self.options.buffers().receive);
        ListenOptions { backlog, rx_buffer_bytes, ..self.asked }
    }

    /// Called when this process has forked a child, which has the listener as well and may execute a program that asks
    /// for connections.
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

    /// Called when another process has been given it over a Unix socket.
    pub(crate) fn is_passed_on(&self) {
        self.passed_on.store(true, Ordering::Relaxed);
        self.is_inherited_by_a_child();
    }

    /// Whether this process has called `listen` for it, and it accepts connections to this address.
    pub(crate) fn is_ours_at(&self, to: SocketAddr) -> bool {
        let ip = self.bound.ip();
        !self.is_inherited() && self.bound.port() == to.port() && (ip == to.ip() || ip.is_unspecified())
    }

    /// Whether another process, which made this one, has called `listen`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.called_in != std::process::id()
    }

    /// From now on connections are asked for here. If several processes do so, each has the connections that come to
    /// its queues, and those that one does not accept soon go to all.
    pub(crate) fn asked_for(&self) {
        if let Some(others) = elsewhere::others() {
            others.listens(self.heard(), self.inode);
            if others.share(self.inode) {
                self.is_everybodys();
            }
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
        // Other processes have the listener.
        let handed_on = *self.handed_on.get_mut();
        if handed_on {
            // The pool's ends stay open.
            std::mem::forget(self.pool.take());
        }
        if let (true, Some(pool), Some(real)) = (*self.passed_on.get_mut(), &self.pool, self.real.get()) {
            pool::serve_on(self, pool, real);
        }
        let stays = handed_on || self.is_anothers();
        // It is closed first, because a connection that came between the two steps would be reset. A listener that
        // serves others through the pool goes on.
        match (self.real.take().map(Arc::try_unwrap), elsewhere::others()) {
            (Some(Ok(closed)), others) => {
                drop(closed);
                others.inspect(|others| others.listens_no_more(self.inode, stays));
            }
            (Some(Err(_serves_on)), _) => {}
            (None, others) => {
                // The process that made it has left it to those who inherit it, until now.
                if !stays {
                    flows::of_the_program().inspect(|flows| flows.closed_for_good(self.inode));
                }
                others.inspect(|others| others.never_listens(self.inode));
            }
        }
    }
}

/// Waits for connections to the listeners that nobody here has asked so far, for each until somebody does or it is
/// closed.
pub(crate) fn await_unasked(others: &Others) {
    files::numbers().for_each(|number| awaits(others, number));
}

/// As [`await_unasked`], of what is behind a number.
pub(super) fn awaits(others: &Others, number: c_int) {
    let unasked = || match files::get(number).as_deref() {
        Some(File::Listener(listener)) if listener.if_real().is_none() && !listener.stopped.load(Ordering::Relaxed) => {
            Some((listener.heard(), listener.inode))
        }
        _ => None,
    };
    if let Some((heard, inode)) = unasked() {
        others.may_listen(heard, inode);
        // Another thread may have closed it, or shut it down, before it was noted.
        if unasked().is_none() {
            others.never_listens(inode);
        }
    }
}

/// What the program has asked for, by `listen` and by options before it.
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use libc::epoll_event;

    use super::*;

    /// Calls of another thread may come between the step that makes the socket lull's and the step that moves it to
    /// lull's contexts. On Linux it would be a member all the while.
    #[test]
    fn calls_about_a_member_that_becomes_lulls_find_it_on_its_context() {
        const ALREADY: Result<()> = Err(Errno::new(libc::EEXIST));
        const NOT_THERE: Result<()> = Err(Errno::new(libc::ENOENT));
        for (what, first, again) in [
            (libc::EPOLL_CTL_MOD, Ok(()), Ok(())),
            (libc::EPOLL_CTL_DEL, Ok(()), NOT_THERE),
            (libc::EPOLL_CTL_ADD, ALREADY, ALREADY),
        ] {
            for worlds in [Worlds::Lulls, Worlds::Both] {
                let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let (fd, bound) = (socket.as_raw_fd(), socket.local_addr().unwrap());
                let epfd = kernel::epoll_create(libc::EPOLL_CLOEXEC).unwrap();
                epoll::adopt(epfd, &[]).unwrap();
                let event = Some(epoll_event { events: libc::EPOLLIN as u32, u64: 7 });
                let call = || epoll::epoll_ctl(epfd, what, fd, event);
                epoll::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event).unwrap();
                let listener = Listener::new(fd, bound, worlds, 1, std::process::id(), None).unwrap();
                let mut called = NOT_THERE;
                let becomes = || files::put(fd, File::Listener(listener)).inspect(|()| called = call());
                epoll::becomes_lulls(fd, becomes).unwrap();
                assert_eq!((called, call()), (first, again), "{what} {worlds:?}");
                drop(files::end(fd));
                files::close(epfd).unwrap();
            }
        }
    }
}
