//! Calls that send and receive, on sockets of generic netlink: what is asked about lull's device is answered by lull
//! (`lull_posix::netlink`). Everything else is the kernel's, as on every number that is not lull's.

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use lull_posix::netlink;
use lull_posix::signals::section;

use crate::{answer, real};

pub(crate) use lull_posix::netlink::{is_one, made};

/// As the C library's, for `read` and `recv` on a socket of generic netlink, too.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        match is_one(fd) {
            true => netlink::recvfrom(fd, buffer, count, flags, address, length, real::recvmsg),
            false => real::recvfrom(fd, buffer, count, flags, address, length),
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if is_one(fd) { netlink::readv(fd, buffers, count, real::recvmsg) } else { real::readv(fd, buffers, count) }
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        match message.as_mut() {
            Some(message) if is_one(fd) => netlink::recvmsg(fd, message, flags, real::recvmsg),
            _ => real::recvmsg(fd, message, flags),
        }
    }
}

/// As the C library's, for `write` and `send` on a socket of generic netlink, too.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if !is_one(fd) {
            return real::sendto(fd, buffer, count, flags, address, length);
        }
        let buffer = iovec { iov_base: buffer.cast_mut(), iov_len: count };
        sendmsg(fd, &netlink::message(&raw const buffer, 1, address, length), flags)
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if !is_one(fd) {
            return real::writev(fd, buffers, count);
        }
        sendmsg(fd, &netlink::message(buffers, count.max(0) as usize, core::ptr::null(), 0), 0)
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        let given = message.as_ref().filter(|_| is_one(fd));
        match given.and_then(|given| section(|| netlink::sendmsg(fd, given))) {
            Some(sent) => answer::count(|| sent),
            None => real::sendmsg(fd, message, flags),
        }
    }
}
