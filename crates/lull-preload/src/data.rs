//! `read`, `write` and their kin.

use std::io::{IoSlice, IoSliceMut};

use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use lull_posix::socket::{self, Receive, Send};
use lull_posix::{is_lull, memory};

use crate::taken_over::taken_over;
use crate::{answer, real};

/// # Safety
/// As `recv`.
#[inline]
unsafe fn receive(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's buffer.
    let buffer = unsafe { memory::bytes_mut(buffer, count) };
    answer::count(|| socket::recv(fd, &mut [IoSliceMut::new(buffer)], Receive { flags }))
}

/// # Safety
/// As `send`.
#[inline]
unsafe fn transmit(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's buffer.
    let buffer = unsafe { memory::bytes(buffer, count) };
    answer::count(|| socket::send(fd, &[IoSlice::new(buffer)], Send { flags }))
}

/// `__chk_fail`: a program that would write past its buffer ends, whoever it reads from.
pub(crate) fn enough(count: size_t, room: size_t) {
    if count > room {
        crate::say::line(format_args!("a read of {count} bytes into a buffer of {room}: the program ends"));
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

taken_over! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t, if is_lull(fd) => receive(fd, buffer, count, 0);

    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t,
        if is_lull(fd) => receive(fd, buffer, count, flags);

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t,
        if is_lull(fd) => transmit(fd, buffer, count, 0);

    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t,
        if is_lull(fd) => transmit(fd, buffer, count, flags);

    /// A program that was built with checks calls it with the buffer's whole room.
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t {
        enough(count, room);
        read(fd, buffer, count)
    }

    /// As [`__read_chk`].
    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t, flags: c_int) -> ssize_t {
        enough(count, room);
        recv(fd, buffer, count, flags)
    }

    /// A stream gives no address (`inet_recvmsg` with `tcp_recvmsg`).
    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        count: size_t,
        flags: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> ssize_t {
        if !is_lull(fd) {
            return real::recvfrom(fd, buffer, count, flags, address, length);
        }
        let received = receive(fd, buffer, count, flags);
        if received >= 0 && !address.is_null() && !length.is_null() {
            *length = 0;
        }
        received
    }

    /// As [`__read_chk`].
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        count: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> ssize_t {
        enough(count, room);
        recvfrom(fd, buffer, count, flags, address, length)
    }

    /// A connected stream ignores the address.
    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        count: size_t,
        flags: c_int,
        address: *const sockaddr,
        length: socklen_t,
    ) -> ssize_t,
        if is_lull(fd) => transmit(fd, buffer, count, flags);

    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
        if !is_lull(fd) {
            return real::readv(fd, buffers, count);
        }
        let Ok(given) = size_t::try_from(count) else { return answer::refused(libc::EINVAL) as ssize_t };
        answer::count(|| {
            memory::with_slices_mut(buffers, given, |buffers| socket::recv(fd, buffers, Receive::default()))
        })
    }

    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
        if !is_lull(fd) {
            return real::writev(fd, buffers, count);
        }
        let Ok(given) = size_t::try_from(count) else { return answer::refused(libc::EINVAL) as ssize_t };
        answer::count(|| memory::with_slices(buffers, given, |buffers| socket::send(fd, buffers, Send::default())))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if !is_lull(fd) {
            return real::recvmsg(fd, message, flags);
        }
        let Some(message) = message.as_mut() else { return answer::refused(libc::EFAULT) as ssize_t };
        let received = answer::count(|| {
            memory::with_slices_mut(message.msg_iov, message.msg_iovlen as size_t, |buffers| {
                socket::recv(fd, buffers, Receive { flags })
            })
        });
        if received >= 0 {
            // A stream has no address and no ancillary data.
            (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        }
        received
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if !is_lull(fd) {
            return real::sendmsg(fd, message, flags);
        }
        let Some(message) = message.as_ref() else { return answer::refused(libc::EFAULT) as ssize_t };
        answer::count(|| {
            memory::with_slices(message.msg_iov, message.msg_iovlen as size_t, |buffers| {
                socket::send(fd, buffers, Send { flags })
            })
        })
    }

    /// On a socket of lull's it is `recvmsg` again and again.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if !is_lull(fd) {
            return real::recvmmsg(fd, messages, count, flags, timeout);
        }
        // After the first message the rest are taken as far as they are there.
        let rest = if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        let flags = flags & !libc::MSG_WAITFORONE;
        each(messages, count, |nth, message| recvmsg(fd, message, if nth == 0 { flags } else { flags | rest }))
    }

    /// On a socket of lull's it is `sendmsg` again and again.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        if is_lull(fd) => each(messages, count, |_, message| sendmsg(fd, message, flags));

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t,
        if is_lull(to) || is_lull(from) => answer::count(|| socket::sendfile(to, from, offset.as_mut(), count));

    /// It is [`sendfile`], whose offset has 64 bits here as well.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(to, from, offset, count)
    }

    /// A socket of lull's has no pages to give away: programs then read and write.
    fn splice(
        from: c_int,
        at: *mut loff_t,
        to: c_int,
        there: *mut loff_t,
        count: size_t,
        flags: c_uint,
    ) -> ssize_t,
        if is_lull(from) || is_lull(to) => answer::refused(libc::EINVAL) as ssize_t;
}

/// One call for each message, until one fails; how many did not, or -1 if that was the first.
///
/// # Safety
/// The program vouches for the messages.
unsafe fn each(messages: *mut mmsghdr, count: c_uint, mut call: impl FnMut(usize, *mut msghdr) -> ssize_t) -> c_int {
    // As in the kernel, no more than that are looked at (`__sys_sendmmsg`).
    let count = count.min(1024) as usize;
    for nth in 0..count {
        // SAFETY: as above.
        let message = unsafe { &mut *messages.add(nth) };
        match call(nth, &raw mut message.msg_hdr) {
            done if done >= 0 => message.msg_len = done as c_uint,
            failed if nth == 0 => return failed as c_int,
            _ => return nth as c_int,
        }
    }
    count as c_int
}
