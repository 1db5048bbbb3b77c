//! The kernel's half of each call: typed system calls on placeholders and on what is not lull's.
#![allow(unsafe_code)]

mod blocked;
pub(crate) mod pipe;
mod polled;

use core::ffi::CStr;
use core::mem::{MaybeUninit, size_of};

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_uint, epoll_event, socklen_t};

use lull_net::lull_nic::own;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

pub use self::blocked::NoSignals;
pub use self::polled::{is_broken, is_readable, poll, reads_no_more, shut_down};

use crate::Result;
use crate::raw::raw;

/// Closes a number.
pub fn close(fd: c_int) -> Result<()> {
    // SAFETY: the caller's number, as the program would close it.
    unsafe { raw!(SYS_close, fd) }.map(drop)
}

/// Closes the numbers of a range.
pub fn close_range(first: c_uint, last: c_uint) -> Result<()> {
    // SAFETY: the caller's numbers, as the program would close them.
    unsafe { raw!(SYS_close_range, first, last, 0) }.map(drop)
}

/// Gives back a number that was just made and cannot be used.
pub fn discard(fd: c_int) {
    // Its own number, so the kernel has no reason to refuse.
    let _ = close(fd);
}

/// `fcntl` with a number for its argument.
pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<c_int> {
    // SAFETY: the commands that this crate uses take numbers.
    unsafe { raw!(SYS_fcntl, fd, command, argument) }.map(|result| result as c_int)
}

/// Whether the file behind a number does not block.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Has the file behind a number block, or not.
pub(crate) fn put_nonblocking(fd: c_int, on: bool) {
    if let Ok(flags) = fcntl(fd, libc::F_GETFL, 0) {
        let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        // The number is open, and the flag is one that every file takes.
        let _ = fcntl(fd, libc::F_SETFL, flags as usize);
    }
}

/// A new number for the same file, at least `from`.
pub fn duplicate(fd: c_int, from: c_int, cloexec: bool) -> Result<c_int> {
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    fcntl(fd, command, from as usize)
}

/// A new socket.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_socket, domain, kind, protocol) }.map(|fd| fd as c_int)
}

/// `bind` with an address in the kernel's form.
pub fn bind(fd: c_int, address: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    unsafe { raw!(SYS_bind, fd, address.as_ptr(), address.len()) }.map(drop)
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_listen, fd, backlog) }.map(drop)
}

/// An address as the kernel gives it: at most as long as any.
pub struct RawAddress {
    bytes: libc::sockaddr_storage,
    length: socklen_t,
}

impl RawAddress {
    fn empty() -> RawAddress {
        // SAFETY: plain data, for which zeroes are a value.
        RawAddress { bytes: unsafe { core::mem::zeroed() }, length: size_of::<libc::sockaddr_storage>() as socklen_t }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        let length = (self.length as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: the storage is initialised as a whole.
        unsafe { core::slice::from_raw_parts((&raw const self.bytes).cast(), length) }
    }
}

/// `accept4`.
pub fn accept4(fd: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    let mut address = RawAddress::empty();
    // SAFETY: room for an address, and its size.
    let fd = unsafe { raw!(SYS_accept4, fd, &raw mut address.bytes, &raw mut address.length, flags) }?;
    Ok((fd as c_int, address))
}

/// `getsockname`.
pub fn getsockname(fd: c_int) -> Result<RawAddress> {
    let mut address = RawAddress::empty();
    // SAFETY: room for an address, and its size.
    unsafe { raw!(SYS_getsockname, fd, &raw mut address.bytes, &raw mut address.length) }?;
    Ok(address)
}

/// `setsockopt`.
pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    unsafe { raw!(SYS_setsockopt, fd, level, name, value.as_ptr(), value.len()) }.map(drop)
}

/// `getsockopt`: how many bytes of `value` were written.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Result<usize> {
    let mut length = value.len() as socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told.
    unsafe { raw!(SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut length) }?;
    Ok(length as usize)
}

/// An option that is an `int`.
pub fn int_option(fd: c_int, level: c_int, name: c_int) -> Result<c_int> {
    let mut value = [0; size_of::<c_int>()];
    getsockopt(fd, level, name, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

/// Whether a socket is one of a pair that this process has made (`socketpair`), as far as the kernel tells: its peer is this process.
pub(crate) fn is_of_own_pair(fd: c_int) -> bool {
    // The number of the process comes first (`struct ucred`). A listener has that of who called `listen`.
    let mut peer = [0; size_of::<libc::ucred>()];
    let length = getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut peer);
    length.is_ok_and(|length| length == peer.len())
        && peer[..4] == std::process::id().to_ne_bytes()
        && int_option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens == 0)
}

/// Whether a TCP socket of the kernel's is more than a new one, bound or not: it listens, has a peer, or had one.
pub fn is_in_use(fd: c_int) -> bool {
    /// `TCP_CLOSE` of include/net/tcp_states.h.
    const CLOSE: u8 = 7;
    let mut state = [CLOSE];
    // The first field of the answer is the state; the answer is cut off behind it.
    let told = getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state);
    if told.is_ok() && state != [CLOSE] {
        return true;
    }
    // The end of a connection shuts both directions down (`tcp_done`).
    let mut polled = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    poll(&mut polled, 0, None).is_ok() && polled[0].revents & libc::POLLRDHUP != 0
}

/// `epoll_ctl`.
pub fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
    let event = event.as_ref().map_or(core::ptr::null(), |event| event as *const epoll_event);
    // SAFETY: the kernel reads an event where there is one, and refuses a call that lacks it.
    unsafe { raw!(SYS_epoll_ctl, epfd, what, fd, event) }.map(drop)
}

/// `epoll_wait` with a timeout in milliseconds, and with another mask of signals meanwhile, if there is one.
pub fn epoll_wait(
    epfd: c_int,
    events: &mut [MaybeUninit<epoll_event>],
    timeout_ms: c_int,
    mask: Option<&u64>,
) -> Result<usize> {
    let max = events.len().min(c_int::MAX as usize);
    let mask = mask.map_or(core::ptr::null(), |mask| &raw const *mask);
    // SAFETY: the kernel writes at most as many events as it is told, and reads a mask if there is one.
    unsafe { raw!(SYS_epoll_pwait, epfd, events.as_mut_ptr(), max, timeout_ms, mask, 8) }
}

/// Whether the program at a path, as seen from the directory `at`, is a file that this process may execute. A kernel that cannot
/// say so is taken to mean that it may.
pub fn is_executable(at: c_int, path: &CStr) -> bool {
    let flags = libc::AT_EACCESS | if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: a path that ends with a zero.
    let may = unsafe { raw!(SYS_faccessat2, at, path.as_ptr(), libc::X_OK, flags) };
    // SAFETY: plain data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above, and room for what the kernel writes.
    let is_there = unsafe { raw!(SYS_newfstatat, at, path.as_ptr(), &raw mut stat, flags & libc::AT_EMPTY_PATH) };
    let is_file = is_there.is_ok() && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    is_file && may.map_or_else(|error| error.number() == libc::ENOSYS, |_| true)
}

/// A pipe: the end that is read, and the one that is written.
pub fn pipe() -> Result<[OwnedFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers.
    unsafe { raw!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    // SAFETY: the kernel has just made them, and nobody else has them.
    Ok(ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Reads a byte: how many came, which is none at the end of a pipe.
pub fn read_byte(fd: &OwnedFd) -> Result<usize> {
    let mut byte = 0_u8;
    // SAFETY: room for the byte.
    unsafe { raw!(SYS_read, fd.as_raw_fd(), &raw mut byte, 1) }
}

/// `send` without flags: all of it, as datagrams are.
pub fn send(fd: c_int, datagram: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has; there is no address.
    unsafe { raw!(SYS_sendto, fd, datagram.as_ptr(), datagram.len(), 0, 0, 0) }.map(drop)
}

/// `recv`.
pub fn recv(fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as the slice has; no address is asked for.
    unsafe { raw!(SYS_recvfrom, fd, buffer.as_mut_ptr(), buffer.len(), flags, 0, 0) }
}

/// An eventfd.
pub fn eventfd(count: c_uint) -> Result<OwnedFd> {
    // SAFETY: numbers only; the kernel has just made what it returns, and nobody else has it.
    own::made(|| unsafe { owned(raw!(SYS_eventfd2, count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) })
}

/// Makes an eventfd readable.
pub fn add_to_eventfd(fd: c_int) {
    let one = 1_u64;
    // A count that is full is readable.
    // SAFETY: the kernel reads eight bytes.
    let _ = unsafe { raw!(SYS_write, fd, &raw const one, 8) };
}

/// Makes an eventfd unreadable, until the next that is added.
pub fn empty_eventfd(fd: c_int) {
    let mut count = 0_u64;
    // One that is empty already says so.
    // SAFETY: the kernel writes eight bytes.
    let _ = unsafe { raw!(SYS_read, fd, &raw mut count, 8) };
}

/// Sends a signal to the calling thread, as the kernel does for SIGPIPE.
pub fn signal_self(signal: c_int) {
    // SAFETY: numbers only. A thread can always signal itself.
    unsafe {
        let process = raw!(SYS_getpid).unwrap_or_default();
        let thread = raw!(SYS_gettid).unwrap_or_default();
        let _ = raw!(SYS_tgkill, process, thread, signal);
    }
}

/// `dup3`.
pub fn dup3(fd: c_int, to: c_int, flags: c_int) -> Result<c_int> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_dup3, fd, to, flags) }.map(|fd| fd as c_int)
}

/// The calling thread's name. lull's threads have names that begin with `lull-`, but for the host's, which deliver.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: room for the longest name.
    let _ = unsafe { raw!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Names the calling thread, which is taken for one of lull's if its name begins with `lull-`.
pub(crate) fn name_thread(name: &CStr) {
    // SAFETY: the name ends with a zero.
    let _ = unsafe { raw!(SYS_prctl, libc::PR_SET_NAME, name.as_ptr()) };
}

/// The inode of an open file: every process that inherited a socket sees the same.
pub fn inode(fd: c_int) -> Result<u32> {
    // SAFETY: plain data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: room for what the kernel writes.
    unsafe { raw!(SYS_fstat, fd, &raw mut stat) }?;
    // Those of sockets have 32 bits (`get_next_ino`).
    Ok(stat.st_ino as u32)
}

/// A number that the kernel has just given out.
///
/// # Safety
/// Nobody else has it.
unsafe fn owned(made: Result<usize>) -> Result<OwnedFd> {
    // SAFETY: as the caller says.
    made.map(|number| unsafe { OwnedFd::from_raw_fd(number as c_int) })
}

/// What waits at a socket of lull's, with the descriptors that come along, which are lull's own from here on: how many bytes, and how
/// the kernel flags them. It waits for nothing.
pub fn receive_with_descriptors(
    from: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
    control: &mut RecvAncillaryBuffer<'_>,
) -> rustix::io::Result<(usize, ReturnFlags, Vec<OwnedFd>)> {
    let (mut bytes, mut flags) = (0, ReturnFlags::empty());
    let descriptors = own::made(|| received(from, parts, control, &mut bytes, &mut flags))?;
    Ok((bytes, flags, descriptors))
}

/// As [`receive_with_descriptors`], of what no child of `fork` is to have open.
pub fn receive_for_no_child(
    from: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
    control: &mut RecvAncillaryBuffer<'_>,
) -> rustix::io::Result<(usize, ReturnFlags, Vec<OwnedFd>)> {
    let (mut bytes, mut flags) = (0, ReturnFlags::empty());
    let descriptors = own::made_for_no_child(|| received(from, parts, control, &mut bytes, &mut flags))?;
    Ok((bytes, flags, descriptors))
}

fn received(
    from: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
    control: &mut RecvAncillaryBuffer<'_>,
    bytes: &mut usize,
    flags: &mut ReturnFlags,
) -> rustix::io::Result<Vec<OwnedFd>> {
    let got = rustix::net::recvmsg(from, parts, control, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?;
    (*bytes, *flags) = (got.bytes, got.flags);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(rights.flatten().collect())
}

/// A new socket of lull's own.
pub fn own_socket(domain: c_int, kind: c_int) -> Result<OwnedFd> {
    // SAFETY: numbers only; the kernel has just made what it returns, and nobody else has it.
    own::made(|| unsafe { owned(raw!(SYS_socket, domain, kind | libc::SOCK_CLOEXEC, 0)) })
}

/// A descriptor of lull's own for what a number of the program's stands for, which the program may close meanwhile.
pub fn kept_duplicate(fd: c_int) -> Result<OwnedFd> {
    // SAFETY: the kernel has just made what it returns, and nobody else has it.
    own::made(|| unsafe { owned(duplicate(fd, 0, true).map(|number| number as usize)) })
}

/// A number of the program's as a descriptor, for the length of a call. If the program closes it meanwhile, the kernel's
/// calls say so.
pub fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: it is not closed through this, and the kernel checks every number that it is given. -1 is never passed.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

/// `epoll_create1`.
pub fn epoll_create(flags: c_int) -> Result<c_int> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_epoll_create1, flags) }.map(|fd| fd as c_int)
}

/// Adds a descriptor of lull's own to a context.
pub fn add_member(context: BorrowedFd<'_>, member: BorrowedFd<'_>, events: u32, data: u64) -> Result<()> {
    let event = epoll_event { events, u64: data };
    epoll_ctl(context.as_raw_fd(), libc::EPOLL_CTL_ADD, member.as_raw_fd(), Some(event))
}

/// Calls those out who wait in a context of the kernel's, until what this returns is closed.
pub fn call_out_of(context: BorrowedFd<'_>) -> Result<OwnedFd> {
    let readable = eventfd(1)?;
    add_member(context, readable.as_fd(), libc::EPOLLIN as u32, IGNORED_DATA)?;
    Ok(readable)
}

/// Whether a descriptor is on a context. A member stays as it is: EPOLL_CTL_MOD would arm a one-shot again.
pub fn is_member(epfd: c_int, fd: c_int) -> bool {
    match epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(epoll_event { events: 0, u64: IGNORED_DATA })) {
        Ok(()) => {
            // It was no member, and is none again. Its data marks a hang-up that somebody is told of in between, so
            // that it is ignored.
            let _ = epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
            false
        }
        Err(error) => error.number() == libc::EEXIST,
    }
}

/// Whether a number is a context of epoll's. `nobodys` can be polled, and is on no context.
pub fn is_context(number: c_int, nobodys: BorrowedFd<'_>) -> bool {
    // What is on none cannot be taken off a context, and nothing else has members at all (`do_epoll_ctl`).
    epoll_ctl(number, libc::EPOLL_CTL_DEL, nobodys.as_raw_fd(), None).is_err_and(|error| error.number() == libc::ENOENT)
}

/// What waits to be read from a socket.
pub fn unread(fd: c_int) -> Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes the int.
    unsafe { raw!(SYS_ioctl, fd, libc::FIONREAD, &raw mut bytes) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// What the other end of a Unix socket has not read yet, in the kernel's bytes (`unix_outq_len`).
pub fn unread_by_peer(fd: c_int) -> Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes the int.
    unsafe { raw!(SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut bytes) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// EPIOCSPARAMS.
pub fn set_epoll_params(epfd: c_int, params: &libc::epoll_params) -> Result<()> {
    // SAFETY: the kernel reads the struct.
    unsafe { raw!(SYS_ioctl, epfd, libc::EPIOCSPARAMS, params as *const libc::epoll_params) }.map(drop)
}

/// EPIOCGPARAMS.
pub fn epoll_params(epfd: c_int) -> Result<libc::epoll_params> {
    let mut params = libc::epoll_params { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: 0, __pad: 0 };
    // SAFETY: the kernel writes the struct.
    unsafe { raw!(SYS_ioctl, epfd, libc::EPIOCGPARAMS, &raw mut params) }?;
    Ok(params)
}

/// The data of members that are lull's own business in a context of the program's: no event of theirs is handed out. A pointer
/// or a number of the program's never looks like this.
pub const IGNORED_DATA: u64 = 0xa96c_756c_6c00_0001;

/// The data of an event that the kernel has written, or lull.
pub fn event_data(event: &MaybeUninit<epoll_event>) -> u64 {
    // SAFETY: the caller looks only at events that were written; the struct is plain data.
    unsafe { event.assume_init() }.u64
}

/// What an event that the kernel has written, or lull, says is ready.
pub fn event_ready(event: &MaybeUninit<epoll_event>) -> u32 {
    // SAFETY: as in `event_data`.
    unsafe { event.assume_init() }.events
}

/// `connect` with an address in the kernel's form.
pub fn connect(fd: c_int, address: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    unsafe { raw!(SYS_connect, fd, address.as_ptr(), address.len()) }.map(drop)
}

/// `getpeername`.
pub fn getpeername(fd: c_int) -> Result<RawAddress> {
    let mut address = RawAddress::empty();
    // SAFETY: room for an address, and its size.
    unsafe { raw!(SYS_getpeername, fd, &raw mut address.bytes, &raw mut address.length) }?;
    Ok(address)
}

/// A socket hears nothing from now on, and what it has heard is thrown away: a filter drops all that comes.
pub fn hear_nothing(fd: c_int) -> Result<()> {
    // BPF_RET with BPF_K: as many bytes of every packet are kept as `k` says.
    let mut nothing = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: nothing.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>();
    // SAFETY: the kernel copies the program.
    unsafe { raw!(SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &raw const program, size) }?;
    while recvmsg(fd, &mut [], &mut [], libc::MSG_DONTWAIT).is_ok() {}
    Ok(())
}

/// Takes the filter of [`hear_nothing`] away.
pub fn hear_again(fd: c_int) {
    // A program that has taken the filter away itself has what it wants.
    let _ = setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32.to_ne_bytes());
}

/// What `recvmsg` tells of a message.
pub struct Received {
    /// What it returns.
    pub bytes: usize,
    /// Who sent it.
    pub from: RawAddress,
    /// Bytes of ancillary data.
    pub control_bytes: usize,
    /// MSG_TRUNC and its kin.
    pub flags: c_int,
}

/// `recvmsg`.
pub fn recvmsg(
    fd: c_int,
    buffers: &mut [std::io::IoSliceMut<'_>],
    control: &mut [u8],
    flags: c_int,
) -> Result<Received> {
    let mut from = RawAddress::empty();
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = ((&raw mut from.bytes).cast(), from.length);
    (message.msg_iov, message.msg_iovlen) = (buffers.as_mut_ptr().cast(), buffers.len() as _);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), control.len() as _);
    // SAFETY: an `IoSliceMut` is an iovec; the kernel writes to what the message names, and no further.
    let bytes = unsafe { raw!(SYS_recvmsg, fd, &raw mut message, flags) }?;
    from.length = message.msg_namelen;
    Ok(Received { bytes, from, control_bytes: message.msg_controllen as usize, flags: message.msg_flags })
}

/// `sendmsg` with an address in the kernel's form and ancillary data, if there are bytes of either.
pub fn sendmsg(fd: c_int, data: &[std::io::IoSlice<'_>], to: &[u8], control: &[u8], flags: c_int) -> Result<usize> {
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len() as socklen_t);
    (message.msg_iov, message.msg_iovlen) = (data.as_ptr().cast_mut().cast(), data.len() as _);
    (message.msg_control, message.msg_controllen) = (control.as_ptr().cast_mut().cast(), control.len() as _);
    // SAFETY: an `IoSlice` is an iovec; the kernel only reads what the message names.
    unsafe { raw!(SYS_sendmsg, fd, &raw const message, flags) }
}

/// `sendmsg` of a program's message.
///
/// # Safety
/// As the call.
pub unsafe fn sendmsg_as_is(fd: c_int, message: &libc::msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: the caller vouches for what the message names.
    unsafe { raw!(SYS_sendmsg, fd, core::ptr::from_ref(message), flags) }
}

/// Takes a socket's peer away.
pub fn disconnect(fd: c_int) -> Result<()> {
    // As long as any address of the internet.
    let mut nobody = [0; size_of::<libc::sockaddr_in>()];
    nobody[..2].copy_from_slice(&(libc::AF_UNSPEC as u16).to_ne_bytes());
    connect(fd, &nobody)
}

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_shutdown, fd, how) }.map(drop)
}

/// A descriptor of a process, which is readable when that has ended.
pub fn pidfd_open(process: libc::pid_t) -> Result<OwnedFd> {
    // SAFETY: numbers only; the kernel has just made what it returns, and nobody else has it.
    own::made(|| unsafe { owned(raw!(SYS_pidfd_open, process, 0)) })
}

/// `pread`.
pub fn pread(fd: c_int, buffer: &mut [u8], at: libc::off_t) -> Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as the slice has.
    unsafe { raw!(SYS_pread64, fd, buffer.as_mut_ptr(), buffer.len(), at) }
}

/// Where a file is read from next.
pub fn position(fd: c_int) -> Result<libc::off_t> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_lseek, fd, 0, libc::SEEK_CUR) }.map(|at| at as libc::off_t)
}

/// Sets where a file is read from next.
pub fn set_position(fd: c_int, at: libc::off_t) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { raw!(SYS_lseek, fd, at, libc::SEEK_SET) }.map(drop)
}
