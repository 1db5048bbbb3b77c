//! The child: a number that was its parent's connection becomes the child's end of a relay.
#![allow(unsafe_code)]

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::{Message, NAMES_BYTES, TAKEN, Verb, id, named, names_of};
use crate::address::Bytes;
use crate::files::{self, File, Open};
use crate::socket::Stream;
use crate::{Errno, Result, kernel, signals};

/// The child's end of the channel; -1 without one.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// This child has forked: another process has the same connections of the parent's.
static SHARED: AtomicBool = AtomicBool::new(false);
/// There may be relays in this process.
static ANY: AtomicBool = AtomicBool::new(false);
/// The relays that this process has asked for, and of those that it is a child of. None is ever taken out: there are few, and a list that only grows
/// needs no lock, which a `fork` could find held.
static RELAYS: AtomicPtr<Relay> = AtomicPtr::new(null_mut());

/// A connection that this child has asked for. Its names are the socket's (`named.rs`).
struct Relay {
    /// Its place in the parent's memory.
    id: usize,
    /// The number that it got first, and what stands under it for as long as it was not closed.
    number: c_int,
    inode: u32,
    next: *mut Relay,
}

pub(super) fn begin(channel: OwnedFd) {
    CHANNEL.store(channel.into_raw_fd(), Ordering::Relaxed);
    SHARED.store(false, Ordering::Relaxed);
}

pub(super) fn share() {
    SHARED.store(true, Ordering::Relaxed);
}

/// One thread of the process at a time; a holder that another process had at a fork is none.
struct Alone;

impl Alone {
    fn begin() -> Alone {
        while !Alone::try_begin() {
            std::thread::yield_now();
        }
        Alone
    }

    fn try_begin() -> bool {
        let process = std::process::id();
        let holder = HOLDER.load(Ordering::Relaxed);
        holder != process && HOLDER.compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

static HOLDER: AtomicU32 = AtomicU32::new(0);

impl Drop for Alone {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// The child is about to use a number: if that was a connection of its parent's, it is a relay from here on.
#[cold]
pub(crate) fn uses(fd: c_int) {
    let channel = CHANNEL.load(Ordering::Relaxed);
    if channel < 0 {
        return;
    }
    signals::section(|| {
        let _alone = Alone::begin();
        let Some(file) = files::inherited(fd) else { return };
        if !is_placeholder(fd) {
            // It was closed unseen, and stands for something else.
            files::forget_inherited(fd);
        } else if let File::Stream(stream) = &*file {
            // Where it cannot be, the number is a socket without a peer, as all husks are.
            let _ = become_relay(fd, id(&file), stream, channel);
        }
        // The count of who has it is the parent's.
        mem::forget(file);
    });
}

/// Whether a number is what stands under a connection of lull's: a TCP socket that nobody has used.
fn is_placeholder(fd: c_int) -> bool {
    let protocol = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    protocol == Ok(libc::IPPROTO_TCP) && !kernel::is_in_use(fd)
}

fn become_relay(fd: c_int, id: usize, stream: &Stream, channel: c_int) -> Result<()> {
    let cloexec = kernel::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    // Another number of the same connection has the same relay.
    let known = relays().find(|relay| relay.id == id && kernel::inode(relay.number) == Ok(relay.inode));
    if let Some(known) = known {
        kernel::dup3(known.number, fd, flags)?;
        files::forget_inherited(fd);
        return Ok(());
    }
    let (mine, parents) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| Errno::new(error.raw_os_error()))?;
    let claim = Message { verb: Verb::Claims, id };
    claim
        .send(kernel::borrow(channel), Some(parents.as_fd()), SendFlags::empty())
        .map_err(|error| Errno::new(error.raw_os_error()))?;
    drop(parents);
    let mut names = [0; NAMES_BYTES];
    let (local, peer) = match read_whole(mine.as_raw_fd(), &mut names) {
        Ok(()) => names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?,
        Err(error) => return Err(error),
    };
    if stream.is_nonblocking() {
        kernel::fcntl(mine.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    named::call(mine.as_raw_fd(), local, peer, stream.domain)?;
    kernel::dup3(mine.as_raw_fd(), fd, flags)?;
    let relay = Box::new(Relay { id, number: fd, inode: kernel::inode(fd)?, next: RELAYS.load(Ordering::Relaxed) });
    RELAYS.store(Box::into_raw(relay), Ordering::Release);
    ANY.store(true, Ordering::Release);
    files::forget_inherited(fd);
    Ok(())
}

/// A number stands for the end of a relay that its owner has offered ([`super::offer`]), and is one from here on. Returns the peer.
pub(crate) fn adopt(number: c_int, domain: c_int) -> Result<SocketAddr> {
    // Its owner may have ended.
    let said = send(kernel::borrow(number), &[TAKEN], SendFlags::NOSIGNAL);
    said.map_err(|error| Errno::new(error.raw_os_error()))?;
    let mut names = [0; NAMES_BYTES];
    read_whole(number, &mut names)?;
    let (local, peer) = names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?;
    named::call(number, local, peer, domain)?;
    ANY.store(true, Ordering::Release);
    Ok(peer)
}

/// Looks for the relays that a program inherits from the one that it was executed by.
pub(crate) fn find() {
    /// What is passed to a program that is executed stands far below (`FD_SETSIZE`).
    const NUMBERS: c_int = 1024;
    if (0..NUMBERS).any(|fd| named::names(fd).is_some()) {
        ANY.store(true, Ordering::Release);
    }
}

/// What a relay begins with; the other end closes it at once where there is no such connection any more.
fn read_whole(socket: c_int, bytes: &mut [u8]) -> Result<()> {
    match kernel::recv(socket, bytes, libc::MSG_WAITALL)? {
        count if count == bytes.len() => Ok(()),
        _ => Err(Errno::new(libc::ENOTCONN)),
    }
}

/// The child has closed a number without using it, or has given it to something else.
pub(crate) fn closed(file: &Open) {
    /// The number's own reference, and the one that the parent took for its child.
    const LAST: u32 = 2;
    let channel = CHANNEL.load(Ordering::Relaxed);
    let is_stream = matches!(**file, File::Stream(_));
    if channel >= 0 && is_stream && file.references() == LAST && !SHARED.load(Ordering::Relaxed) {
        // Where there is no room for it, the connection is kept until this process ends.
        let release = Message { verb: Verb::Releases, id: id(file) };
        let _ = release.send(kernel::borrow(channel), None, SendFlags::DONTWAIT);
    }
}

fn relays() -> impl Iterator<Item = &'static Relay> {
    // SAFETY: whoever is in the list was leaked into it, whole.
    let first = unsafe { RELAYS.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |relay| unsafe { relay.next.as_ref() })
}

/// The names of the relay behind a number, and its domain.
fn relay(fd: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    named::names(fd)
}

/// Whether a number is a connection that another process passes on to this one.
#[inline]
pub(crate) fn is_relay(fd: c_int) -> bool {
    ANY.load(Ordering::Relaxed) && relay(fd).is_some()
}

/// `getsockname` of a relay.
pub(crate) fn getsockname(fd: c_int) -> Option<Bytes> {
    relay(fd).map(|(local, _, domain)| Bytes::new(local, domain))
}

/// `getpeername` of a relay.
pub(crate) fn getpeername(fd: c_int) -> Option<Bytes> {
    relay(fd).map(|(_, peer, domain)| Bytes::new(peer, domain))
}

/// Whether a relay's own socket does not have an option as a TCP socket has it.
fn is_tcps(level: c_int, name: c_int) -> bool {
    level != libc::SOL_SOCKET || matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_KEEPALIVE)
}

/// A TCP socket of the kernel's without a peer, which has the options that relays' sockets do not know: those of all relays of this
/// process together, as they have no effect.
fn options(domain: c_int) -> Result<c_int> {
    static SOCKETS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
    let socket = &SOCKETS[usize::from(domain == libc::AF_INET6)];
    let known = socket.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    // The engine, which begins with this elsewhere, may never start in a program that was executed.
    own::begin();
    let made = kernel::out_of_the_way(kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?);
    socket.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire).map(|_| made).or_else(|other| {
        // Another thread was first.
        own::unmark(made);
        kernel::discard(made);
        Ok(other)
    })
}

/// `setsockopt` of a relay: what TCP alone has is kept, and has no effect.
pub(crate) fn setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Option<Result<()>> {
    let (.., domain) = relay(fd)?;
    let to = if is_tcps(level, name) { options(domain) } else { Ok(fd) };
    Some(to.and_then(|to| kernel::setsockopt(to, level, name, value)))
}

/// `getsockopt` of a relay; nothing where its own socket has the answer.
pub(crate) fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<Result<usize>> {
    let (.., domain) = relay(fd).filter(|_| is_tcps(level, name))?;
    Some(options(domain).and_then(|options| kernel::getsockopt(options, level, name, value)))
}
