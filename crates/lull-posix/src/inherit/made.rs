//! Sockets that a child makes itself. Those at lull's addresses are on its parent's stack, because the NIC is the
//! parent's.
//!
//! `bind` goes to the kernel, so that the port is taken. At `listen` the child gives its parent the kernel's socket and
//! an end of a pair, and has the other end under its number: what the listener accepts comes out of it, from both
//! worlds if it is bound to a wildcard, as out of a listener's pool (`socket/pool.rs`). A socket that is bound to an
//! address of lull's and connects is a relay from then on. So servers work whose children listen for a second
//! connection of their peer's (FTP).
//!
//! A UDP socket that the child binds to lull's address or to a wildcard is passed on from then on (`datagram`). So servers work whose
//! children answer from a port of their own (TFTP).
//!
//! A socket that is bound to no address of lull's connects, and sends, by the kernel.

mod datagram;
mod owner;

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::{ANSWER_BYTES, Message, NOBODY, Verb, child, named, names_bytes, outlived};
use crate::address::{self, Bytes};
use crate::flows::{End, Kept};
use crate::signals::{INTERRUPTED, RESTARTS};
use crate::socket::Listener;
use crate::socket::datagram::is_udp;
use crate::socket::may_be_another_listeners;
use crate::socket::options::refused;
use crate::socket::pool::{self, Passed};
use crate::{Errno, Result, engine, files, husk, kernel, signals};

pub(super) use owner::{
    bind as bind_for_a_child, connect as connect_for_a_child, listen as listen_for_a_child, probe as probe_for_a_child,
};

/// Whether this process is a child that may ask its parent for sockets.
#[inline]
pub(crate) fn has_parent() -> bool {
    engine::parents_routing().is_some() && child::channel().is_some()
}

/// Whether an address is one of lull's, and its port may be.
fn is_lulls(address: SocketAddr) -> bool {
    engine::parents_routing().is_some_and(|routing| routing.is_own(address.ip()) && routing.takes(address.port()))
}

/// Whether a socket that is bound to `at` hears at addresses of lull's and of the kernel's.
fn is_in_both_worlds(fd: c_int, at: SocketAddr) -> bool {
    let v6_only = at.is_ipv6() && kernel::int_option(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY) == Ok(1);
    at.ip().is_unspecified()
        && engine::parents_routing()
            .is_some_and(|routing| routing.has_family(at.ip(), v6_only) && routing.takes(at.port()))
}

/// The address of a TCP socket of the kernel's.
fn bound(fd: c_int) -> Option<SocketAddr> {
    let is_tcp = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    kernel::getsockname(fd).ok().filter(|_| is_tcp).and_then(|name| address::parse(name.as_bytes()))
}

/// `bind`.
pub(crate) fn bind(fd: c_int, bytes: &[u8]) -> Result<()> {
    if is_udp(fd) {
        return datagram::bind(fd, bytes);
    }
    let at = address::parse(bytes).filter(|_| bound(fd).is_some());
    let is_own = at.is_some_and(is_lulls);
    if let Some(at) = at.filter(|at| is_own || is_in_both_worlds(fd, *at)) {
        refuse_if_taken(fd, at)?;
    }
    if is_own { crate::socket::bind_own(fd, bytes) } else { kernel::bind(fd, bytes) }
}

/// The parent knows where it listens itself, and where its other children do.
fn refuse_if_taken(fd: c_int, at: SocketAddr) -> Result<()> {
    if !may_be_another_listeners(fd, at) {
        return Ok(());
    }
    let (mine, parents) = pair(SocketType::STREAM)?;
    rustix::net::send(&mine, &names_bytes(at, NOBODY), SendFlags::NOSIGNAL).map_err(errno)?;
    let asked = ask(&Message { verb: Verb::Probes, id: 0 }, &parents, fd);
    drop(parents);
    match asked.and_then(|()| read_answer(&mine)) {
        Err(error) if error.number() == libc::EADDRINUSE => Err(error),
        // Whoever could know has ended.
        _ => Ok(()),
    }
}

/// `listen`.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    if is_listener(fd) || files::is_listener_of_the_parents(fd) {
        // Its backlog stays what it was.
        return Ok(());
    }
    let Some(at) = bound(fd) else { return kernel::listen(fd, backlog) };
    let is_wildcard = is_in_both_worlds(fd, at);
    if !is_lulls(at) && !is_wildcard {
        return kernel::listen(fd, backlog);
    }
    // With an option that lull has not, one on a wildcard stays the kernel's.
    if refused::is_set(fd) {
        return if is_wildcard { kernel::listen(fd, backlog) } else { refused::check(fd) };
    }
    if is_wildcard {
        kernel::listen(fd, backlog)?;
    }
    let at = bound(fd).unwrap_or(at);
    match become_listener(fd, at, backlog) {
        // Its kernel's half listens.
        Err(_) if is_wildcard => Ok(()),
        listens => listens,
    }
}

fn become_listener(fd: c_int, at: SocketAddr, backlog: c_int) -> Result<()> {
    let (mine, parents) = pair(SocketType::SEQPACKET)?;
    let claim = Message { verb: Verb::Listens, id: usize::try_from(backlog).unwrap_or(usize::MAX) };
    ask(&claim, &parents, fd)?;
    drop(parents);
    read_answer(&mine)?;
    let domain = if at.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    named::call_listener(
        mine.as_raw_fd(),
        at,
        kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(domain),
    )?;
    replace(fd, mine)?;
    child::has_listeners();
    Ok(())
}

/// A listener that this child has inherited is asked for connections: the number stands for the end of its pool from here on, out of
/// which its parent and whoever else has inherited it take what comes, too.
pub(super) fn asks(fd: c_int, id: usize, listener: &Listener, channel: BorrowedFd<'_>) -> Result<()> {
    let end = listener.pool_of_a_child().ok_or(Errno::new(libc::EINVAL))?;
    // The parent, which may never ask itself, gives what comes to the pool.
    let asks = Message { verb: Verb::Asks, id: 0 };
    asks.send(channel, &[kernel::borrow(fd)], SendFlags::empty()).map_err(errno)?;
    let takes = end.takes().as_raw_fd();
    let called = named::call_listener(takes, listener.bound, listener.domain);
    // It has a name already where another child has asked before.
    if !named::is_listener(takes) {
        called?;
    }
    outlived::keep_listener(fd, id, listener.backlog(), end.ends().map(|end| end.as_raw_fd()));
    stands_for(fd, takes)?;
    child::has_listeners();
    outlived::watch_the_parent();
    Ok(())
}

/// A listener that this child has asked, whose socket is under its number again, with the ends of its pool, which others that outlive
/// the parent have as well.
pub(super) fn kept_anew(number: c_int, backlog: u32, ends: [c_int; 2]) -> Result<Kept> {
    let end = |number| Result::Ok(End { number, inode: kernel::inode(number)? });
    let (inode, pool) = (kernel::inode(number)?, Some([end(ends[0])?, end(ends[1])?]));
    // No process is called 0: `listen` was another one's.
    Ok(Kept { inode, number, called_in: 0, noted_in: std::process::id(), backlog, pool })
}

/// Whether a socket that connects does so by the parent: it is bound to an address of lull's.
pub(crate) fn connects(fd: c_int) -> bool {
    has_parent() && bound(fd).is_some_and(is_lulls) && !kernel::is_in_use(fd)
}

/// `connect` of such a socket. It waits for the outcome, also where the socket does not wait.
pub(crate) fn connect(fd: c_int, bytes: &[u8]) -> Result<()> {
    let (Some(from), Some(to)) = (bound(fd), address::parse(bytes)) else { return kernel::connect(fd, bytes) };
    refused::check(fd)?;
    let (mine, parents) = pair(SocketType::STREAM)?;
    let sent = rustix::net::send(&mine, &names_bytes(from, to), SendFlags::NOSIGNAL);
    sent.map_err(errno)?;
    ask(&Message { verb: Verb::Connects, id: 0 }, &parents, fd)?;
    drop(parents);
    until_answered(&mine)?;
    read_answer(&mine)?;
    let domain = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    child::take_names(mine.as_raw_fd(), domain)?;
    replace(fd, mine)
}

fn pair(kind: SocketType) -> Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map_err(errno)
}

/// Asks the parent for what the kernel's socket `fd` is to be; it answers by the pair that `parents` is an end of.
fn ask(claim: &Message, parents: &std::os::fd::OwnedFd, fd: c_int) -> Result<()> {
    let channel = child::channel().ok_or(Errno::new(libc::ENETDOWN))?;
    claim.send(channel, &[parents.as_fd(), kernel::borrow(fd)], SendFlags::empty()).map_err(errno)
}

/// Waits for an answer that may take long. A signal whose handler was installed without SA_RESTART ends the wait, and the cancellation of
/// the thread does: the parent gives up what it was asked for then.
fn until_answered(mine: &std::os::fd::OwnedFd) -> Result<()> {
    loop {
        match pool::wait_in_kernel(mine.as_raw_fd(), None) {
            Err(RESTARTS) if signals::restarts() => {}
            Err(RESTARTS) => {
                kernel::shutdown(mine.as_raw_fd(), libc::SHUT_WR)?;
                // When it has answered, its socket is gone, and another may have the addresses.
                let _ = read_answer(mine);
                return Err(INTERRUPTED);
            }
            // A thread that is to be cancelled is called out.
            Ok(()) if !kernel::is_readable(mine.as_raw_fd()) => {}
            _ => return Ok(()),
        }
    }
}

/// What the parent has answered.
fn read_answer(mine: &std::os::fd::OwnedFd) -> Result<()> {
    let mut said = [0; ANSWER_BYTES];
    child::read_whole(mine.as_raw_fd(), &mut said)?;
    match c_int::from_ne_bytes(said) {
        0 => Ok(()),
        error => Err(Errno::new(error)),
    }
}

/// The number stands for the end of a pair from here on.
fn replace(fd: c_int, mine: std::os::fd::OwnedFd) -> Result<()> {
    stands_for(fd, mine.as_raw_fd())
}

/// The number stands for what `end` does from here on, and blocks as it did.
pub(super) fn stands_for(fd: c_int, end: c_int) -> Result<()> {
    let nonblocking = if kernel::is_nonblocking(fd) { libc::O_NONBLOCK } else { 0 };
    kernel::fcntl(end, libc::F_SETFL, (libc::O_RDWR | nonblocking) as usize)?;
    child::copy_timeouts(fd, end);
    let cloexec = kernel::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    kernel::dup3(end, fd, if cloexec { libc::O_CLOEXEC } else { 0 }).map(drop)
}

/// Whether a number is the end of a listener that another process has for this one.
#[inline]
pub(crate) fn is_listener(fd: c_int) -> bool {
    child::may_have_listeners() && named::is_listener(fd)
}

/// `accept` of such a number: a number for the next connection, and its peer.
pub(crate) fn accept(fd: c_int, flags: c_int) -> Result<(c_int, SocketAddr)> {
    let domain = named::names(fd).map_or(libc::AF_INET, |(.., domain)| domain);
    if husk::is_husk() {
        // Where the number came from a process that has asked, and forked this one, nobody here watches yet.
        outlived::watch_the_parent();
    }
    loop {
        // Without a free number the connection waits for a later call (`__sys_accept4_file`).
        kernel::discard(kernel::duplicate(fd, 0, true)?);
        let next = match pool::next_passed(fd) {
            // It has been told to look whether the number is its own by now.
            Err(pool::LOOK) if !outlived::goes_on_soon() || is_listener(fd) => continue,
            next => next?,
        };
        // The end of it is the parent's: nobody listens any more.
        let (passed, socket) = next.ok_or(Errno::new(libc::EINVAL))?;
        // The number is the program's.
        let number = socket.into_raw_fd();
        let peer = match passed {
            Passed::Relay => super::adopt(number, domain),
            Passed::Kernels => {
                let peer = kernel::getpeername(number);
                peer.map(|peer| address::parse(peer.as_bytes()).unwrap_or(NOBODY))
            }
        };
        // Whose peer or owner has ended meanwhile is not told.
        match peer.and_then(|peer| pool::flagged(number, flags).map(|()| peer)) {
            Ok(peer) => {
                own::unmark(number);
                return Ok((number, peer));
            }
            Err(_) => kernel::discard(number),
        }
    }
}

/// The kernel's form of a peer's address, on a listener of `domain`.
pub(crate) fn peers_name(fd: c_int, peer: SocketAddr) -> Bytes {
    Bytes::new(peer, named::names(fd).map_or(libc::AF_INET, |(.., domain)| domain))
}

pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::new(error.raw_os_error())
}
