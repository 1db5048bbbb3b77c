//! Calls that send and receive datagrams on sockets of generic netlink. What is not lull's is the kernel's, by the function that
//! the caller has for it.
#![allow(unsafe_code)]

use core::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use lull_fd::linux::KeptError;

use super::{STAND_IN_BYTES, is_next, is_to_kernel, received, send};
use crate::{Result, memory, signals};

/// What is received in the place of a datagram has at most so many bytes.
const RECEIVED_BYTES_MAX: usize = 32 << 10;

/// The kernel's `recvmsg`.
pub type RealReceive = unsafe fn(c_int, *mut msghdr, c_int) -> ssize_t;

/// A message of a call without one.
pub fn message(buffers: *const iovec, count: usize, address: *const sockaddr, length: socklen_t) -> msghdr {
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers.cast_mut(), count as _);
    (message.msg_name, message.msg_namelen) = (address.cast_mut().cast(), length);
    message
}

/// The one buffer of a call that has one.
pub fn buffer(at: *const c_void, count: size_t) -> iovec {
    iovec { iov_base: at.cast_mut(), iov_len: count }
}

/// `recvfrom`; `read` and `recv` without an address.
///
/// # Safety
/// As `recvfrom`.
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    real: RealReceive,
) -> ssize_t {
    let buffer = self::buffer(buffer, count);
    // SAFETY: the program vouches for its pointers.
    unsafe {
        let room = length.as_ref().copied().filter(|_| !address.is_null()).unwrap_or(0);
        let mut message = message(&raw const buffer, 1, address, room);
        let received = recvmsg(fd, &mut message, flags, real);
        if received >= 0 && !address.is_null() && !length.is_null() {
            *length = message.msg_namelen;
        }
        received
    }
}

/// `readv`.
///
/// # Safety
/// As `readv`.
pub unsafe fn readv(fd: c_int, buffers: *const iovec, count: c_int, real: RealReceive) -> ssize_t {
    // SAFETY: the program vouches for its pointers.
    unsafe { recvmsg(fd, &mut message(buffers, count.max(0) as usize, null_mut(), 0), 0, real) }
}

/// `recvmsg`. If what came only stands for a datagram of lull's, that one is handed out.
///
/// # Safety
/// As `recvmsg`.
pub unsafe fn recvmsg(fd: c_int, message: &mut msghdr, flags: c_int, real: RealReceive) -> ssize_t {
    let peeks = flags & libc::MSG_PEEK != 0;
    // The program's room may be less than what stands for a datagram takes: this is received into room of ours.
    if signals::section(|| is_next(fd)) {
        let mut room = vec![0_u8; RECEIVED_BYTES_MAX];
        let mut own = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let asked = (message.msg_iov, message.msg_iovlen);
        (message.msg_iov, message.msg_iovlen) = (&raw mut own, 1);
        // SAFETY: room of ours; the rest of the message is the program's.
        let got = unsafe { real(fd, message, flags & !libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
        (message.msg_iov, message.msg_iovlen) = asked;
        if let Ok(got) = usize::try_from(got) {
            // Another thread may have been faster: then it is the kernel's.
            let datagram = signals::section(|| received(fd, &room[..got], peeks));
            let datagram = datagram.unwrap_or_else(|| room[..got].to_vec());
            // SAFETY: the program vouches for its pointers.
            return unsafe { hand_out(&datagram, message, flags) };
        }
    }
    // SAFETY: the caller's arguments, passed on; it wrote as much as it says, of which the beginning is read.
    unsafe {
        let got = real(fd, message, flags);
        if got != STAND_IN_BYTES as ssize_t {
            return got;
        }
        let _errno = KeptError::keep();
        let stood_in = gathered(message, STAND_IN_BYTES);
        match signals::section(|| received(fd, &stood_in, peeks)) {
            Some(datagram) => hand_out(&datagram, message, flags),
            None => got,
        }
    }
}

/// `sendmsg`, if what the message asks is lull's to answer; nothing if the whole of it is the kernel's, which has not got it
/// yet.
///
/// # Safety
/// As `sendmsg`.
pub unsafe fn sendmsg(fd: c_int, message: &msghdr) -> Option<Result<usize>> {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        let to = memory::if_any(message.msg_name, message.msg_namelen as usize);
        is_to_kernel(to).then(|| send(fd, &gathered(message, usize::MAX))).flatten()
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

#[cfg(test)]
mod tests {
    use core::ptr::null;

    use super::*;

    fn of(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn a_datagram_is_handed_out_over_several_buffers_and_what_is_cut_off_is_said() {
        let (mut one, mut two) = ([0; 3], [0; 2]);
        let room = [of(&mut one), of(&mut two)];
        let mut message = message(room.as_ptr(), 2, null(), 0);
        // SAFETY: the buffers live, and are as long as they say.
        let counts = unsafe { [0, libc::MSG_TRUNC].map(|flags| hand_out(b"abcdefg", &mut message, flags)) };
        assert_eq!((counts, message.msg_flags), ([5, 7], libc::MSG_TRUNC));
        // SAFETY: as above.
        assert_eq!(unsafe { hand_out(b"wxyz", &mut message, 0) }, 4);
        assert_eq!((message.msg_flags, &one, &two), (0, b"wxy", b"ze"));
    }

    #[test]
    fn a_message_is_gathered_from_its_buffers_as_far_as_is_asked() {
        let (mut one, mut two) = (*b"abc", *b"de");
        let parts = [of(&mut one), of(&mut two)];
        let message = message(parts.as_ptr(), 2, null(), 0);
        // SAFETY: as above.
        let gathered = unsafe { [2, 4, usize::MAX].map(|most| gathered(&message, most)) };
        assert_eq!(gathered, [b"ab".to_vec(), b"abcd".to_vec(), b"abcde".to_vec()]);
    }
}
