//! The child: a number that was its parent's connection or UDP socket becomes the child's end of a relay.
#![allow(unsafe_code)]

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::thread::futex;

use super::datagrams::{ask, peer};
use super::{Message, NAMES_BYTES, TAKEN, Verb, id, is_passed_on, made, named, names_of, outlived, passing};
use crate::address::{self, Bytes};
use crate::files::{self, File, Open};
use crate::socket::Connecting;
use crate::socket::options::written;
use crate::{Errno, Result, husk, kernel, signals};

/// The child's end of the channel; -1 without one.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// This child has forked: another process has the same connections of the parent's.
static SHARED: AtomicBool = AtomicBool::new(false);
/// This process is a child of such a child, which may be the one that uses what both have.
static FURTHER: AtomicBool = AtomicBool::new(false);
/// There may be relays in this process.
static ANY: AtomicBool = AtomicBool::new(false);
/// There may be ends of listeners (`made.rs`).
static LISTENERS: AtomicBool = AtomicBool::new(false);

/// One of them is of datagrams.
static DATAGRAMS: AtomicBool = AtomicBool::new(false);

pub(super) fn begin(channel: OwnedFd) {
    CHANNEL.store(channel.into_raw_fd(), Ordering::Relaxed);
    SHARED.store(false, Ordering::Relaxed);
    FURTHER.store(false, Ordering::Relaxed);
}

/// This process was forked by a child of the parent's, and has the same channel.
pub(super) fn begin_further() {
    FURTHER.store(true, Ordering::Relaxed);
}

pub(super) fn share() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Held by one thread of the process at a time; a holder from before a fork, in another process, does not count.
pub(super) struct Alone;

impl Alone {
    pub(super) fn begin() -> Alone {
        while !Alone::try_begin() {
            // It may wait for the parent for as long as that is stopped. Where the holder has ended meanwhile, this returns at once.
            let _ = futex::wait(&HOLDER, futex::Flags::PRIVATE, std::process::id(), None);
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
        let _ = futex::wake(&HOLDER, futex::Flags::PRIVATE, 1);
    }
}

/// The child is about to use a number: if that was a socket of its parent's, it is a relay from here on.
#[cold]
pub(crate) fn uses(fd: c_int) {
    uses_for(fd, true);
}

/// The child is about to send by a number. What comes to a UDP socket is its parent's until the child asks for it.
#[cold]
pub(crate) fn uses_to_send(fd: c_int) {
    uses_for(fd, false);
}

/// The child is about to wait for a number, or to accept by it: if that was a listener of its parent's, it stands for the end of its
/// pool from here on.
#[cold]
pub(crate) fn asks(fd: c_int) {
    uses(fd);
    let Some(channel) = channel() else { return };
    signals::section(|| {
        let _alone = Alone::begin();
        let Some(file) = files::inherited(fd) else { return };
        // Where it cannot be, the number is a socket that does not listen.
        if let File::Listener(listener) = &*file
            && made::asks(fd, id(&file), listener, channel).is_ok()
        {
            files::forget_inherited(fd);
        }
        // The count of who has it is the parent's.
        mem::forget(file);
    });
}

fn uses_for(fd: c_int, hears: bool) {
    let channel = CHANNEL.load(Ordering::Relaxed);
    if channel < 0 {
        return;
    }
    signals::section(|| {
        let _alone = Alone::begin();
        let Some(file) = files::inherited(fd) else { return };
        // One that was only sent by is in the table of what was inherited still.
        let is_one = datagrams(fd).is_some();
        if !is_one && !is_placeholder(fd, &file) {
            // It was closed unseen, and stands for something else.
            files::forget_inherited(fd);
        } else {
            // Where it cannot be, the number is a socket without a peer, as all husks are.
            let made = if is_one { Ok(()) } else { become_relay(fd, &file, channel) };
            match &*file {
                File::Datagram(_) if !hears || made.is_err() => {}
                File::Datagram(_) => {
                    ask(fd);
                    files::forget_inherited(fd);
                }
                _ if made.is_ok() => files::forget_inherited(fd),
                _ => {}
            }
        }
        // The count of who has it is the parent's.
        mem::forget(file);
    });
}

/// Whether a number is what stands under a socket of lull's: a listener's own socket, a TCP socket that nobody has used, or a UDP
/// socket on its port.
pub(super) fn is_placeholder(fd: c_int, file: &Open) -> bool {
    let protocol = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    match &**file {
        File::Listener(listener) => listener.is_behind(fd),
        File::Datagram(datagram) => {
            let name = kernel::getsockname(fd).ok().and_then(|name| address::parse(name.as_bytes()));
            protocol == Ok(libc::IPPROTO_UDP) && name.is_some_and(|name| name.port() == datagram.port())
        }
        _ => protocol == Ok(libc::IPPROTO_TCP) && !kernel::is_in_use(fd),
    }
}

fn become_relay(fd: c_int, file: &Open, channel: c_int) -> Result<()> {
    let id = id(file);
    let failed = |error: rustix::io::Errno| Errno::new(error.raw_os_error());
    let (domain, nonblocking, kind) = match &**file {
        File::Stream(stream) => (stream.domain, stream.is_nonblocking(), SocketType::STREAM),
        File::Datagram(datagram) => (datagram.domain, datagram.is_nonblocking(), SocketType::SEQPACKET),
        _ => return Err(Errno::new(libc::ENOTSOCK)),
    };
    let is_datagrams = kind == SocketType::SEQPACKET;
    let (mine, parents) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
    let claim = Message { verb: Verb::Claims, id };
    let descriptors = [parents.as_fd(), kernel::borrow(fd)];
    let sent = if is_datagrams { &descriptors[..] } else { &descriptors[..1] };
    claim.send(kernel::borrow(channel), sent, SendFlags::empty()).map_err(failed)?;
    drop(parents);
    let mut names = [0; NAMES_BYTES];
    read_whole(mine.as_raw_fd(), &mut names)?;
    let (local, peer) = names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?;
    if is_datagrams {
        copy_timeouts(fd, mine.as_raw_fd());
    }
    if nonblocking {
        kernel::fcntl(mine.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    named::call(mine.as_raw_fd(), local, peer, domain)?;
    let becomes_one = |number| {
        if let File::Datagram(datagram) = &**file {
            outlived::keep(number, datagram.keeps_port().into());
        }
        stand_under(number, mine.as_raw_fd())
    };
    becomes_one(fd)?;
    // Every other number of the socket has the same relay, also when this one is closed before another is used.
    for number in files::numbers().filter(|number| *number != fd) {
        let Some(other) = files::inherited(number) else { continue };
        let is_another = self::id(&other) == id && is_placeholder(number, &other);
        // The count of who has it is the parent's.
        mem::forget(other);
        if is_another && becomes_one(number).is_ok() && !is_datagrams {
            files::forget_inherited(number);
        }
    }
    if is_datagrams {
        begin_with_datagrams();
    }
    ANY.store(true, Ordering::Release);
    Ok(())
}

/// Whether the channel has no other end any more.
pub(super) fn is_hung_up() -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    channel().is_some_and(|channel| poll(&mut [PollFd::new(&channel, PollFlags::empty())], Some(&now)) == Ok(1))
}

/// There is no parent to ask any more.
pub(super) fn end() {
    let channel = CHANNEL.swap(-1, Ordering::Relaxed);
    if channel >= 0 {
        own::unmark(channel);
        kernel::discard(channel);
    }
}

/// What the parent had of lull's is gone, and cannot be had again.
#[cold]
pub(super) fn say_lost() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say::line(format_args!(
            "process {} cannot use sockets of lull's that it inherited: the process that made them serves it no more",
            std::process::id()
        ));
    }
}

/// The number stands for the end of a relay, and stays closed to what is executed if it was.
pub(super) fn stand_under(number: c_int, relay: c_int) -> Result<()> {
    let cloexec = kernel::fcntl(number, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    kernel::dup3(relay, number, if cloexec { libc::O_CLOEXEC } else { 0 }).map(drop)
}

/// A number stands for the end of a relay that its owner has offered ([`super::offer`]), and is one from here on. Returns the peer.
pub(crate) fn adopt(number: c_int, domain: c_int) -> Result<SocketAddr> {
    // Its owner may have ended.
    let said = send(kernel::borrow(number), &[TAKEN], SendFlags::NOSIGNAL);
    said.map_err(|error| Errno::new(error.raw_os_error()))?;
    take_names(number, domain)
}

/// A number stands for the end of a relay, which begins with the names that it is called after from here on. Returns the peer.
pub(super) fn take_names(number: c_int, domain: c_int) -> Result<SocketAddr> {
    let mut names = [0; NAMES_BYTES];
    read_whole(number, &mut names)?;
    let (local, peer) = names_of(&names).ok_or(Errno::new(libc::ENOTCONN))?;
    named::call(number, local, peer, domain)?;
    ANY.store(true, Ordering::Release);
    Ok(peer)
}

/// There may be relays in this process.
pub(super) fn has_relays() {
    ANY.store(true, Ordering::Release);
}

/// There may be ends of listeners in this process.
pub(super) fn has_listeners() {
    LISTENERS.store(true, Ordering::Release);
    ANY.store(true, Ordering::Release);
}

/// There may be relays of datagrams in this process.
pub(super) fn begin_with_datagrams() {
    DATAGRAMS.store(true, Ordering::Release);
    ANY.store(true, Ordering::Release);
}

#[inline]
pub(super) fn may_have_listeners() -> bool {
    LISTENERS.load(Ordering::Relaxed)
}

/// The child's end of the channel, if there is one.
pub(super) fn channel() -> Option<BorrowedFd<'static>> {
    let channel = CHANNEL.load(Ordering::Relaxed);
    (channel >= 0).then(|| kernel::borrow(channel))
}

/// Looks for the relays that a program inherits from the one that it was executed by.
pub(crate) fn find() {
    numbers_of_programs().for_each(found);
}

/// What is passed to a program that is executed stands far below the end of these (`FD_SETSIZE`).
pub(super) fn numbers_of_programs() -> impl Iterator<Item = c_int> {
    0..1024
}

/// A number may stand for the end of a relay, which this program has from another one.
pub(crate) fn found(fd: c_int) {
    passing::becomes_listener(fd);
    if named::names(fd).is_none() {
        return;
    }
    ANY.store(true, Ordering::Release);
    LISTENERS.fetch_or(named::is_listener(fd), Ordering::Release);
    if is_of_datagrams(fd) {
        DATAGRAMS.store(true, Ordering::Release);
        // Whoever had it before may have given it a peer. Where the owner has ended, the next call says so.
        let _ = peer::ask(fd, &[]);
        // What this program waits for is not seen as the other's was.
        ask(fd);
    }
}

/// The kernel has taken both from the program once already.
pub(super) fn copy_timeouts(from: c_int, to: c_int) {
    for name in TIMEOUTS {
        let mut value = [0; 16];
        if let Ok(length) = kernel::getsockopt(from, libc::SOL_SOCKET, name, &mut value) {
            let _ = kernel::setsockopt(to, libc::SOL_SOCKET, name, &value[..length]);
        }
    }
}

const TIMEOUTS: [c_int; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];

/// What a relay begins with; the other end closes it at once where there is no such connection any more.
pub(super) fn read_whole(socket: c_int, bytes: &mut [u8]) -> Result<()> {
    let mut count = 0;
    while count < bytes.len() {
        match kernel::recv(socket, &mut bytes[count..], libc::MSG_WAITALL) {
            Ok(0) => return Err(Errno::new(libc::ENOTCONN)),
            Ok(more) => count += more,
            // It is there in a moment.
            Err(signals::INTERRUPTED) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The child has closed a number without using it, or has given it to something else.
pub(crate) fn closed(file: &Open) {
    /// The number's own reference, and the one that the parent took for its child.
    const LAST: u32 = 2;
    let channel = CHANNEL.load(Ordering::Relaxed);
    // There are more references if the parent's threads were in calls on it, and a number that was closed before leaves
    // its own behind.
    let has_another_number = || file.references() != LAST && files::is_named(file) || outlived::has(id(file));
    if let File::Listener(listener) = &**file
        && !files::is_named(file)
        && !outlived::has(id(file))
    {
        listener.leaves_the_pool();
    }
    if channel >= 0 && is_passed_on(file) && !SHARED.load(Ordering::Relaxed) && !has_another_number() {
        release(channel, id(file));
    }
}

fn release(channel: c_int, id: usize) {
    // Where there is no room for it, the connection is kept until this process ends.
    let release = Message { verb: Verb::Releases, id };
    let _ = release.send(kernel::borrow(channel), &[], SendFlags::DONTWAIT);
}

/// The child has closed a listener that it has used.
pub(super) fn releases(id: usize) {
    let channel = CHANNEL.load(Ordering::Relaxed);
    if channel >= 0 && !SHARED.load(Ordering::Relaxed) {
        release(channel, id);
    }
}

/// Whether a number stands for a socket of the parent's that this process has not used.
pub(super) fn has_unused(id: usize) -> bool {
    files::numbers().filter_map(files::inherited).any(|file| {
        let is_it = self::id(&file) == id;
        // The count of who has it is the parent's.
        mem::forget(file);
        is_it
    })
}

/// The names of a connection of the parent's that this process, a child's child, has not used, and its domain. To ask for them is no use
/// there: the child, which has made it, may be the one that serves (`ncat -l -k -e`). A child itself has the connection from then on,
/// so that what it executes has it, too.
pub(crate) fn unused(fd: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    if !FURTHER.load(Ordering::Relaxed) || !husk::is_husk() {
        return None;
    }
    let file = files::inherited(fd)?;
    let names = match &*file {
        File::Stream(stream) if !stream.is_connecting(Connecting::Over) || !is_placeholder(fd, &file) => None,
        File::Stream(stream) => Some((stream.names.0, stream.names.1, stream.domain)),
        _ => None,
    };
    // The count of who has it is the parent's.
    mem::forget(file);
    names
}

/// The names of the relay behind a number, and its domain.
fn relay(fd: c_int) -> Option<(SocketAddr, SocketAddr, c_int)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    named::names(fd).map(|names| renewed(fd, names))
}

/// A relay of datagrams may have been given a peer since it was called after its socket.
fn renewed(fd: c_int, (local, peer, domain): (SocketAddr, SocketAddr, c_int)) -> (SocketAddr, SocketAddr, c_int) {
    let (local, peer) = peer::names(fd).unwrap_or((local, peer));
    (local, peer, domain)
}

/// `connect` of a relay; nothing if it is none.
pub(crate) fn connect(fd: c_int, to: &[u8]) -> Option<Result<()>> {
    relay(fd)?;
    Some(if is_of_datagrams(fd) { peer::ask(fd, to) } else { Err(Errno::new(libc::EISCONN)) })
}

fn is_of_datagrams(relay: c_int) -> bool {
    named::of_datagrams(relay).is_some()
}

/// The peer of the relay of datagrams behind a number, unspecified if it has none, and its domain.
pub(super) fn datagrams(fd: c_int) -> Option<(SocketAddr, c_int)> {
    if !DATAGRAMS.load(Ordering::Acquire) {
        return None;
    }
    named::of_datagrams(fd).map(|names| renewed(fd, names)).map(|(_, peer, domain)| (peer, domain))
}

/// Whether a number is a UDP socket that another process passes on to this one.
#[inline]
pub(crate) fn has_datagrams(fd: c_int) -> bool {
    DATAGRAMS.load(Ordering::Relaxed) && datagrams(fd).is_some()
}

/// Whether a number is a socket that another process passes on to this one.
#[inline]
pub(crate) fn is_relay(fd: c_int) -> bool {
    ANY.load(Ordering::Relaxed) && relay(fd).is_some()
}

/// The peer of the relay of datagrams behind a number, if it has one.
pub(super) fn peer_of(fd: c_int) -> Option<Bytes> {
    datagrams(fd).filter(|(peer, _)| peer.port() != 0).map(|(peer, domain)| Bytes::new(peer, domain))
}

/// `getsockname` of a relay.
pub(crate) fn getsockname(fd: c_int) -> Option<Bytes> {
    relay(fd).map(|(local, _, domain)| Bytes::new(local, domain))
}

/// `getpeername` of a relay.
pub(crate) fn getpeername(fd: c_int) -> Option<Result<Bytes>> {
    let (_, peer, domain) = relay(fd)?;
    Some(if peer.port() == 0 { Err(Errno::new(libc::ENOTCONN)) } else { Ok(Bytes::new(peer, domain)) })
}

/// Whether a relay's own socket does not have an option as a socket of the internet has it.
fn keeps_beside(fd: c_int, level: c_int, name: c_int) -> bool {
    let is_of_it = || match is_of_datagrams(fd) {
        true => !TIMEOUTS.contains(&name),
        false => matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_KEEPALIVE),
    };
    level != libc::SOL_SOCKET || is_of_it()
}

/// A socket of the kernel's without a peer, which has the options that relays' sockets do not know: those of all relays of this
/// process of one kind together, as they have no effect.
fn options(fd: c_int, domain: c_int) -> Result<c_int> {
    static SOCKETS: [AtomicI32; 4] = [const { AtomicI32::new(-1) }; 4];
    let is_datagrams = is_of_datagrams(fd);
    let socket = &SOCKETS[usize::from(domain == libc::AF_INET6) + if is_datagrams { 2 } else { 0 }];
    let known = socket.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    // The engine, which begins with this elsewhere, may never start in a program that was executed.
    own::begin();
    let kind = if is_datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let made = kernel::own_socket(domain, kind)?.into_raw_fd();
    socket.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire).map(|_| made).or_else(|other| {
        // Another thread was first.
        own::unmark(made);
        kernel::discard(made);
        Ok(other)
    })
}

/// `setsockopt` of a relay: what TCP or UDP alone has is kept, and has no effect.
pub(crate) fn setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Option<Result<()>> {
    let (.., domain) = relay(fd)?;
    let to = if keeps_beside(fd, level, name) { options(fd, domain) } else { Ok(fd) };
    Some(to.and_then(|to| kernel::setsockopt(to, level, name, value)))
}

/// `getsockopt` of a relay; nothing where its own socket has the answer.
pub(crate) fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<Result<usize>> {
    let (.., domain) = relay(fd)?;
    let listeners = match name {
        libc::SO_ACCEPTCONN => Some(1),
        libc::SO_TYPE => Some(libc::SOCK_STREAM),
        _ => None,
    };
    let is_listeners = level == libc::SOL_SOCKET && LISTENERS.load(Ordering::Relaxed) && named::is_listener(fd);
    if let Some(answer) = listeners.filter(|_| is_listeners) {
        return Some(Ok(written(&c_int::to_ne_bytes(answer), value)));
    }
    if !keeps_beside(fd, level, name) {
        return None;
    }
    let told = options(fd, domain).and_then(|options| kernel::getsockopt(options, level, name, value));
    if let (Ok(1..), libc::IPPROTO_TCP, libc::TCP_INFO, false) = (&told, level, name, is_of_datagrams(fd)) {
        value[0] = state(fd);
    }
    Some(told)
}

/// The state of a relay's connection or listener, by the numbers of include/net/tcp_states.h: the first byte of TCP_INFO, by which
/// servers tell whether an answer is still waited for (puma). Whether this process has shut down what it sends is not known.
fn state(fd: c_int) -> u8 {
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    const LISTEN: u8 = 10;
    match kernel::shut_down(fd) {
        _ if LISTENERS.load(Ordering::Relaxed) && named::is_listener(fd) => LISTEN,
        (true, true) => CLOSE,
        (true, false) => CLOSE_WAIT,
        (false, _) => ESTABLISHED,
    }
}
