//! `read`, `write` and their kin.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::{null, null_mut};

use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use lull_posix::memory::enough;
use lull_posix::signals::section;
use lull_posix::socket::{self, Receive, Send};
use lull_posix::{is_lull, memory, netlink, rights, takes_data};

use crate::taken_over::taken_over;
use crate::{answer, real};

/// Whether a call on this number may be answered here.
#[inline]
fn is_ours(fd: c_int) -> bool {
    takes_data(fd) || netlink::is_one(fd)
}

/// # Safety
/// As `recv`.
#[inline]
unsafe fn receive(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    if netlink::is_one(fd) {
        // SAFETY: as above.
        return unsafe { netlink::recvfrom(fd, buffer, count, flags, null_mut(), null_mut(), real::recvmsg) };
    }
    // SAFETY: it is the program's buffer, for which the program vouches.
    let buffer = unsafe { memory::bytes_mut(buffer, count) };
    answer::count(|| socket::recv(fd, &mut [IoSliceMut::new(buffer)], Receive { flags }))
}

/// # Safety
/// As `send`.
#[inline]
unsafe fn transmit(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    if netlink::is_one(fd) {
        // SAFETY: as above.
        return unsafe { ask(fd, &netlink::message(&netlink::buffer(buffer, count), 1, null(), 0), flags) };
    }
    // SAFETY: it is the program's buffer, for which the program vouches.
    let buffer = unsafe { memory::bytes(buffer, count) };
    answer::count(|| socket::send(fd, &[IoSlice::new(buffer)], Send { flags }))
}

/// # Safety
/// As `read`.
#[inline]
unsafe fn read_from(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if netlink::is_one(fd) {
        // SAFETY: as above.
        return unsafe { receive(fd, buffer, count, 0) };
    }
    // SAFETY: it is the program's buffer, for which the program vouches.
    let buffer = unsafe { memory::bytes_mut(buffer, count) };
    answer::count(|| socket::read(fd, &mut [IoSliceMut::new(buffer)]))
}

/// # Safety
/// As `write`.
#[inline]
unsafe fn write_to(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    if netlink::is_one(fd) {
        // SAFETY: as above.
        return unsafe { transmit(fd, buffer, count, 0) };
    }
    // SAFETY: it is the program's buffer, for which the program vouches.
    let buffer = unsafe { memory::bytes(buffer, count) };
    answer::count(|| socket::write(fd, &[IoSlice::new(buffer)]))
}

/// `sendmsg` on a socket of generic netlink. Requests about lull's own device are answered by lull.
///
/// # Safety
/// As `sendmsg`.
unsafe fn ask(fd: c_int, message: &msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        match section(|| netlink::sendmsg(fd, message)) {
            Some(sent) => answer::count(|| sent),
            None => real::sendmsg(fd, message, flags),
        }
    }
}

taken_over! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t, if is_ours(fd) => read_from(fd, buffer, count);

    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t,
        if is_ours(fd) => receive(fd, buffer, count, flags);

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t,
        if is_ours(fd) => write_to(fd, buffer, count);

    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t,
        if is_ours(fd) => transmit(fd, buffer, count, flags);

    /// A program that was built with checks calls this function with the size of the whole buffer.
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t {
        enough(count, room);
        read(fd, buffer, count)
    }

    /// As [`__read_chk`].
    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t, flags: c_int) -> ssize_t {
        enough(count, room);
        recv(fd, buffer, count, flags)
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        count: size_t,
        flags: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> ssize_t {
        if !is_ours(fd) {
            return real::recvfrom(fd, buffer, count, flags, address, length);
        }
        if netlink::is_one(fd) {
            return netlink::recvfrom(fd, buffer, count, flags, address, length, real::recvmsg);
        }
        if address.is_null() {
            return receive(fd, buffer, count, flags);
        }
        answer::count(|| socket::recvfrom(fd, buffer, count, flags, address, length))
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

    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        count: size_t,
        flags: c_int,
        address: *const sockaddr,
        length: socklen_t,
    ) -> ssize_t {
        match socket::goes_by_lull(fd, address, length, flags) {
            Err(error) => answer::refused(error.number()) as ssize_t,
            Ok(false) if netlink::is_one(fd) => {
                ask(fd, &netlink::message(&netlink::buffer(buffer, count), 1, address, length), flags)
            }
            Ok(false) => real::sendto(fd, buffer, count, flags, address, length),
            Ok(true) if address.is_null() => transmit(fd, buffer, count, flags),
            Ok(true) => answer::count(|| socket::sendto(fd, buffer, count, flags, address, length)),
        }
    }

    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
        if !is_ours(fd) {
            return real::readv(fd, buffers, count);
        }
        if netlink::is_one(fd) {
            return netlink::readv(fd, buffers, count, real::recvmsg);
        }
        let Ok(given) = size_t::try_from(count) else { return answer::refused(libc::EINVAL) as ssize_t };
        answer::count(|| {
            memory::with_slices_mut(buffers, given, |buffers| socket::read(fd, buffers))
        })
    }

    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
        if !is_ours(fd) {
            return real::writev(fd, buffers, count);
        }
        if netlink::is_one(fd) {
            return ask(fd, &netlink::message(buffers, count.max(0) as usize, null(), 0), 0);
        }
        let Ok(given) = size_t::try_from(count) else { return answer::refused(libc::EINVAL) as ssize_t };
        answer::count(|| memory::with_slices(buffers, given, |buffers| socket::writev(fd, buffers)))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        match message.as_mut() {
            Some(message) if netlink::is_one(fd) => netlink::recvmsg(fd, message, flags, real::recvmsg),
            _ if takes_data(fd) => answer::count(|| socket::recvmsg(fd, message, flags)),
            _ => rights::received(real::recvmsg(fd, message, flags), message),
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let Some(given) = message.as_ref() else { return real::sendmsg(fd, message, flags) };
        match socket::message_goes_by_lull(fd, given, flags) {
            Err(error) => answer::refused(error.number()) as ssize_t,
            Ok(false) if netlink::is_one(fd) => ask(fd, given, flags),
            Ok(false) if rights::are_in(given) => answer::count(|| rights::sendmsg(fd, given, flags)),
            Ok(false) => real::sendmsg(fd, message, flags),
            Ok(true) => answer::count(|| socket::sendmsg(fd, given, flags)),
        }
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if !is_ours(fd) {
            return rights::all_received(real::recvmmsg(fd, messages, count, flags, timeout), messages);
        }
        let receive = |message, flags, is_first| match netlink::is_one(fd) {
            true => recvmsg(fd, message, flags),
            false => answer::told(socket::recvmsg_of_several(fd, message, flags, is_first)),
        };
        socket::recvmmsg(fd, messages, count, flags, timeout.as_mut(), receive)
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let given = if messages.is_null() { &[][..] } else { core::slice::from_raw_parts(messages, count as usize) };
        if socket::may_be_sent_in_turn(fd, given, flags) {
            return socket::send_in_turn(fd, messages, count, flags);
        }
        let is_lulls = |one: &msghdr| socket::message_goes_by_lull(fd, one, flags) != Ok(false);
        if !given.iter().any(|one| is_lulls(&one.msg_hdr)) && !netlink::is_one(fd) && !rights::are_in_any(messages, count) {
            return real::sendmmsg(fd, messages, count, flags);
        }
        socket::sendmmsg(fd, messages, count, |message| sendmsg(fd, message, flags))
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t,
        if is_lull(to) || is_lull(from) => answer::count(|| socket::sendfile(to, from, offset.as_mut(), count));

    /// This is [`sendfile`], whose offset has 64 bits here as well.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(to, from, offset, count)
    }

    fn splice(from: c_int, at: *mut loff_t, to: c_int, there: *mut loff_t, count: size_t, flags: c_uint) -> ssize_t,
        if is_lull(from) || is_lull(to) =>
            answer::count(|| socket::splice((from, !at.is_null()), (to, !there.is_null()), count, flags));
}
