//! Calls that send and receive datagrams, on sockets of generic netlink: what is asked about lull's device is answered by lull
//! (`lull_posix::netlink`). Everything else is the kernel's, as on every number that is not lull's.

use core::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use lull_posix::is_engaged;
use lull_posix::memory;
use lull_posix::netlink::{self, STAND_IN_BYTES};

use crate::{Errno, answer, real};

pub(crate) use lull_posix::netlink::is_one;

/// What is received in the place of a datagram has at most so many bytes.
const RECEIVED_BYTES_MAX: usize = 32 << 10;

/// Notes a new socket that may be asked for the family `netdev`.
#[inline]
pub(crate) fn made(fd: c_int, domain: c_int, protocol: c_int) {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_GENERIC && fd >= 0 && is_engaged() {
        netlink::made(fd);
    }
}

fn message(buffers: *mut iovec, count: usize, address: *mut c_void, length: socklen_t) -> msghdr {
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers, count as _);
    (message.msg_name, message.msg_namelen) = (address, length);
    message
}

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
    let mut buffer = iovec { iov_base: buffer, iov_len: count };
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if !is_one(fd) {
            return real::recvfrom(fd, buffer.iov_base, count, flags, address, length);
        }
        let room = length.as_ref().copied().filter(|_| !address.is_null()).unwrap_or(0);
        let mut message = message(&raw mut buffer, 1, address.cast(), room);
        let received = recvmsg(fd, &mut message, flags);
        if received >= 0 && !address.is_null() && !length.is_null() {
            *length = message.msg_namelen;
        }
        received
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    let mut message = message(buffers.cast_mut(), count.max(0) as usize, null_mut(), 0);
    // SAFETY: the program vouches for its pointers.
    unsafe { if is_one(fd) { recvmsg(fd, &mut message, 0) } else { real::readv(fd, buffers, count) } }
}

/// As the C library's. On a socket of generic netlink, if what came only stands for a datagram of lull's, that one is handed
/// out.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    match unsafe { message.as_mut() } {
        // SAFETY: as above.
        Some(message) if is_one(fd) => unsafe { receive(fd, message, flags) },
        // SAFETY: as above.
        _ => unsafe { real::recvmsg(fd, message, flags) },
    }
}

/// # Safety
/// As `recvmsg`.
unsafe fn receive(fd: c_int, message: &mut msghdr, flags: c_int) -> ssize_t {
    let peeks = flags & libc::MSG_PEEK != 0;
    // The program's room may be less than what stands for a datagram takes: this is received into room of ours.
    if netlink::is_next(fd) {
        let mut room = vec![0_u8; RECEIVED_BYTES_MAX];
        let mut own = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let asked = (message.msg_iov, message.msg_iovlen);
        (message.msg_iov, message.msg_iovlen) = (&raw mut own, 1);
        // SAFETY: room of ours; the rest of the message is the program's.
        let got = unsafe { real::recvmsg(fd, message, flags & !libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
        (message.msg_iov, message.msg_iovlen) = asked;
        if let Ok(got) = usize::try_from(got) {
            // Another thread may have been faster: then it is the kernel's.
            let datagram = netlink::received(fd, &room[..got], peeks).unwrap_or_else(|| room[..got].to_vec());
            // SAFETY: the program vouches for its pointers.
            return unsafe { hand_out(&datagram, message, flags) };
        }
    }
    // SAFETY: the caller's arguments, passed on; it wrote as much as it says, of which the beginning is read.
    unsafe {
        let got = real::recvmsg(fd, message, flags);
        if got != STAND_IN_BYTES as ssize_t {
            return got;
        }
        let _errno = Errno::keep();
        match netlink::received(fd, &gathered(message, STAND_IN_BYTES), peeks) {
            Some(datagram) => hand_out(&datagram, message, flags),
            None => got,
        }
    }
}

/// # Safety
/// The program vouches for its buffers.
unsafe fn buffers<'a>(message: &msghdr) -> &'a [iovec] {
    if message.msg_iov.is_null() {
        return &[];
    }
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

/// The first bytes of a message, `most` or as many as there is room for.
///
/// # Safety
/// The program vouches for its buffers, which were written or are to be sent.
unsafe fn gathered(message: &msghdr, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    // SAFETY: as above.
    for buffer in unsafe { buffers(message) } {
        // SAFETY: as above.
        let bytes = unsafe { memory::bytes(buffer.iov_base, buffer.iov_len) };
        all.extend_from_slice(&bytes[..bytes.len().min(most - all.len())]);
    }
    all
}

/// Hands a datagram out as `recvmsg` does: what there is no room for is cut off, and said (MSG_TRUNC).
///
/// # Safety
/// The program vouches for its pointers.
unsafe fn hand_out(datagram: &[u8], message: &mut msghdr, flags: c_int) -> ssize_t {
    let mut left = datagram;
    // SAFETY: as above.
    for buffer in unsafe { buffers(message) } {
        let (now, later) = left.split_at(left.len().min(buffer.iov_len));
        // SAFETY: as above.
        unsafe { memory::bytes_mut(buffer.iov_base, now.len()) }.copy_from_slice(now);
        left = later;
    }
    message.msg_flags &= !libc::MSG_TRUNC;
    if !left.is_empty() {
        message.msg_flags |= libc::MSG_TRUNC;
    }
    let whole = flags & libc::MSG_TRUNC != 0;
    (if whole { datagram.len() } else { datagram.len() - left.len() }) as ssize_t
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
    let mut buffer = iovec { iov_base: buffer.cast_mut(), iov_len: count };
    let message = message(&raw mut buffer, 1, address.cast_mut().cast(), length);
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if is_one(fd) {
            sendmsg(fd, &message, flags)
        } else {
            real::sendto(fd, buffer.iov_base, count, flags, address, length)
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    let message = message(buffers.cast_mut(), count.max(0) as usize, null_mut(), 0);
    // SAFETY: the program vouches for its pointers.
    unsafe { if is_one(fd) { sendmsg(fd, &message, 0) } else { real::writev(fd, buffers, count) } }
}

/// As the C library's. What a socket of generic netlink asks about lull's device is answered by lull.
///
/// # Safety
/// As the C library's.
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        if let Some(given) = message.as_ref().filter(|_| is_one(fd))
            && netlink::is_to_kernel(memory::if_any(given.msg_name, given.msg_namelen as usize))
        {
            let datagram = gathered(given, usize::MAX);
            if let Some(sent) = lull_posix::signals::section(|| netlink::send(fd, &datagram)) {
                return answer::count(|| sent);
            }
        }
        real::sendmsg(fd, message, flags)
    }
}
