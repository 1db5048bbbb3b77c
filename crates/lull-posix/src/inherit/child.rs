//! The child: a number that was its parent's connection becomes the child's end of a relay.
#![allow(unsafe_code)]

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::{Message, NAMES_BYTES, Verb, id, named, names_of};
use crate::address::Bytes;
use crate::files::{self, File, Open};
use crate::socket::Stream;
use crate::{Errno, Result, kernel, signals};

/// The child's end of the channel; -1 without one.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// This child has forked: another process has the same connections of the parent's.
static SHARED: AtomicBool = AtomicBool::new(false);
/// The relays of this process, and of those that it is a child of. None is ever taken out: there are few, and a list that only grows
/// needs no lock, which a `fork` could find held.
static RELAYS: AtomicPtr<Relay> = AtomicPtr::new(null_mut());

/// A connection that this child has asked for.
struct Relay {
    /// Its place in the parent's memory.
    id: usize,
    /// The number that it got first, and what stands under it for as long as it was not closed.
    number: c_int,
    inode: u32,
    local: SocketAddr,
    peer: SocketAddr,
    domain: c_int,
    /// A TCP socket of the kernel's without a peer, which has the options that a relay's socket does not know; -1 until it is needed.
    options: AtomicI32,
    next: *mut Relay,
}

impl Relay {
    /// The socket that has its options.
    fn options(&self) -> Result<c_int> {
        let known = self.options.load(Ordering::Acquire);
        if known >= 0 {
            return Ok(known);
        }
        // The engine, which begins with this elsewhere, may never start in a program that was executed.
        own::begin();
        let made = kernel::out_of_the_way(kernel::socket(self.domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?);
        self.options.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire).map(|_| made).or_else(|other| {
            // Another thread was first.
            own::unmark(made);
            kernel::discard(made);
            Ok(other)
        })
    }
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
    let (local, peer) = match read_whole(&mine, &mut names) {
        Ok(()) => names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?,
        Err(error) => return Err(error),
    };
    if stream.is_nonblocking() {
        kernel::fcntl(mine.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    // Without the name, only a program that this child executes cannot be told of the connection's.
    let _ = named::call(mine.as_raw_fd(), local, peer, stream.domain);
    kernel::dup3(mine.as_raw_fd(), fd, flags)?;
    note(id, fd, local, peer, stream.domain)?;
    files::forget_inherited(fd);
    Ok(())
}

/// One thread at a time notes a relay.
fn note(id: usize, number: c_int, local: SocketAddr, peer: SocketAddr, domain: c_int) -> Result<()> {
    let inode = kernel::inode(number)?;
    let (options, next) = (AtomicI32::new(-1), RELAYS.load(Ordering::Relaxed));
    let relay = Box::new(Relay { id, number, inode, local, peer, domain, options, next });
    RELAYS.store(Box::into_raw(relay), Ordering::Release);
    Ok(())
}

/// Finds the relays that a program inherits from the one that it was executed by.
pub(crate) fn find() {
    /// What is passed to a program that is executed stands far below (`FD_SETSIZE`).
    const NUMBERS: c_int = 1024;
    /// Nobody asks for it a second time.
    const NO_ID: usize = 0;
    for fd in 0..NUMBERS {
        if let Some((local, peer, domain)) = named::names(fd) {
            // It fails for nothing that has a name.
            let _ = note(NO_ID, fd, local, peer, domain);
        }
    }
}

/// What a relay begins with; the other end closes it at once where there is no such connection any more.
fn read_whole(socket: &OwnedFd, bytes: &mut [u8]) -> Result<()> {
    match kernel::recv(socket.as_raw_fd(), bytes, libc::MSG_WAITALL)? {
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

/// The relay behind a number, under whatever number it is by now.
fn relay(fd: c_int) -> Option<&'static Relay> {
    if RELAYS.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let inode = kernel::inode(fd).ok()?;
    relays().find(|relay| relay.inode == inode)
}

/// Whether a number is a connection that this child inherited and uses.
#[inline]
pub(crate) fn is_relay(fd: c_int) -> bool {
    !RELAYS.load(Ordering::Relaxed).is_null() && relay(fd).is_some()
}

/// `getsockname` of a relay.
pub(crate) fn getsockname(fd: c_int) -> Option<Bytes> {
    relay(fd).map(|relay| Bytes::new(relay.local, relay.domain))
}

/// `getpeername` of a relay.
pub(crate) fn getpeername(fd: c_int) -> Option<Bytes> {
    relay(fd).map(|relay| Bytes::new(relay.peer, relay.domain))
}

/// Whether a relay's own socket does not have an option as a TCP socket has it.
fn is_tcps(level: c_int, name: c_int) -> bool {
    level != libc::SOL_SOCKET || matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_KEEPALIVE)
}

/// `setsockopt` of a relay: what TCP alone has is kept, and has no effect.
pub(crate) fn setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Option<Result<()>> {
    let relay = relay(fd)?;
    let to = if is_tcps(level, name) { relay.options() } else { Ok(fd) };
    Some(to.and_then(|to| kernel::setsockopt(to, level, name, value)))
}

/// `getsockopt` of a relay; nothing where its own socket has the answer.
pub(crate) fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<Result<usize>> {
    let relay = relay(fd).filter(|_| is_tcps(level, name))?;
    Some(relay.options().and_then(|options| kernel::getsockopt(options, level, name, value)))
}
