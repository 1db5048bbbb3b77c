//! Messages as C has them (`msghdr`, `mmsghdr`), on numbers that are lull's.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use lull_fd::linux::set_error;
use lull_net::Ready;

use super::{Message, Receive, Room, Send, getsockopt, recv_message, send_message, sends_by_lull};
use crate::files::File;
use crate::{Errno, Result, cancel, files, inherit, is_engaged, memory, netlink, signals};

/// As in the kernel, no more messages of a call are sent (`__sys_sendmmsg`). Receiving has no such limit (`do_recvmmsg`).
const SENT_MAX: c_uint = 1024;

/// Whether a message goes by lull: the socket is lull's, or becomes so by where it sends to.
///
/// # Safety
/// The program vouches for its address.
pub unsafe fn goes_by_lull(fd: c_int, address: *const sockaddr, length: socklen_t, flags: c_int) -> Result<bool> {
    if files::is_lull_to_send(fd) || inherit::has_datagrams(fd) {
        return Ok(true);
    }
    if address.is_null() || !is_engaged() {
        return Ok(false);
    }
    // SAFETY: as above.
    match unsafe { memory::address(address, length) } {
        Ok(address) => signals::section(|| sends_by_lull(fd, address, flags)),
        // The kernel refuses such an address.
        Err(_) => Ok(false),
    }
}

/// As [`goes_by_lull`], for `sendmsg`: of a name that is longer than the longest address the rest is not looked at.
///
/// # Safety
/// The program vouches for the message's name.
pub unsafe fn message_goes_by_lull(fd: c_int, message: &msghdr, flags: c_int) -> Result<bool> {
    let length = memory::name_of(message).map_or(message.msg_namelen, |length| length as socklen_t);
    // SAFETY: as above.
    unsafe { goes_by_lull(fd, message.msg_name.cast(), length, flags) }
}

/// `recvfrom` with an address.
///
/// # Safety
/// The program vouches for its pointers.
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<usize> {
    // SAFETY: as above.
    unsafe {
        let buffer = IoSliceMut::new(memory::bytes_mut(buffer, count));
        let room = Room { buffers: &mut [buffer], control: &mut [] };
        let message = recv_message(fd, room, Receive { flags })?;
        memory::write_address(message.from.as_bytes(), address, length).map(|()| message.bytes)
    }
}

/// `sendto` with an address.
///
/// # Safety
/// As [`recvfrom`].
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> Result<usize> {
    // SAFETY: as above.
    let (data, to) = unsafe { (memory::bytes(buffer, count), memory::address(address, length)?) };
    send_message(fd, &[IoSlice::new(data)], to, &[], Send { flags })
}

/// `recvmsg`.
///
/// # Safety
/// The program vouches for the message and what it names.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as above.
    unsafe {
        let message = message.as_mut().ok_or(Errno::new(libc::EFAULT))?;
        memory::name_of(message)?;
        let control = memory::if_any_mut(message.msg_control, message.msg_controllen as size_t);
        let mut got = Message::default();
        let received = memory::with_slices_mut(message.msg_iov, memory::buffers_of(message)?, |buffers| {
            got = recv_message(fd, Room { buffers, control }, Receive { flags })?;
            memory::write_address(got.from.as_bytes(), message.msg_name.cast(), &raw mut message.msg_namelen)?;
            Ok(got.bytes)
        })?;
        (message.msg_controllen, message.msg_flags) =
            (got.control_bytes as _, got.flags | flags & libc::MSG_CMSG_CLOEXEC);
        Ok(received)
    }
}

/// One message of `recvmmsg`. A signal that comes while a later one is waited for ends the call, also where its handler restarts calls,
/// and so does a cancellation: what came before is what it returns (`do_recvmmsg`).
///
/// # Safety
/// As [`recvmsg`].
pub unsafe fn recvmsg_of_several(fd: c_int, message: *mut msghdr, flags: c_int, is_first: bool) -> Result<usize> {
    // SAFETY: as above.
    let receive = || unsafe { recvmsg(fd, message, flags) };
    if is_first { signals::call(receive) } else { signals::call_once(receive) }
}

/// `sendmsg`.
///
/// # Safety
/// As [`recvmsg`].
pub unsafe fn sendmsg(fd: c_int, message: &msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as above.
    unsafe {
        let to = memory::if_any(message.msg_name, memory::name_of(message)?);
        let control = memory::if_any(message.msg_control, message.msg_controllen as size_t);
        memory::with_slices(message.msg_iov, memory::buffers_of(message)?, |buffers| {
            send_message(fd, buffers, to, control, Send { flags })
        })
    }
}

/// Whether a number is a context of lull's. Linux refuses such a number even where no message is asked for
/// (`do_recvmmsg`, `__sys_sendmmsg`).
fn is_no_socket(fd: c_int) -> bool {
    signals::section(|| files::get(fd).is_some_and(|file| matches!(*file, File::Epoll(_))))
}

/// An error of a socket of lull's that waits to be told (`sk_err`).
fn has_error(file: &File) -> bool {
    match file {
        File::Stream(stream) => stream.stream.ready().contains(Ready::ERR),
        File::Datagram(_) => true,
        File::Listener(_) | File::Epoll(_) => false,
    }
}

/// Takes that error (`sock_error`).
fn take_error(fd: c_int) -> Option<c_int> {
    signals::section(|| {
        files::get(fd).filter(|file| has_error(file))?;
        let mut error = [0; size_of::<c_int>()];
        getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)?.ok()?;
        Some(c_int::from_ne_bytes(error)).filter(|error| *error != 0)
    })
}

/// Whether a connection has nothing left to be received but its error, which stays for the next call (`do_recvmmsg`).
fn has_error_alone(fd: c_int) -> bool {
    let is_so = |file: &File| match file {
        File::Stream(stream) => stream.has_error_alone(),
        _ => false,
    };
    signals::section(|| files::get(fd).is_some_and(|file| is_so(&file)))
}

/// `timespec64_valid`.
fn is_valid(time: &timespec) -> bool {
    time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec)
}

/// Makes one call of several: a handler of a signal that comes between two of them runs when all are over, and the signal ends the wait of
/// the second. It is a cancellation point.
fn one_call(all: impl FnOnce() -> c_int) -> c_int {
    let call = || {
        signals::section(|| match all() {
            -1 => Err(Errno::from(std::io::Error::last_os_error())),
            done => Ok(done),
        })
    };
    cancel::at_point(call).unwrap_or_else(|error| {
        // A handler may have changed it.
        set_error(error.number());
        -1
    })
}

/// `recvmmsg`, which is `recvmsg` again and again, but tells an error first, also where there is something to be received. `receive`
/// is told of each message whether it is the first ([`recvmsg_of_several`]).
///
/// # Safety
/// The program vouches for the messages.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: Option<&mut timespec>,
    mut receive: impl FnMut(*mut msghdr, c_int, bool) -> ssize_t,
) -> c_int {
    if timeout.as_ref().is_some_and(|timeout| !is_valid(timeout)) {
        set_error(libc::EINVAL);
        return -1;
    }
    if is_no_socket(fd) {
        set_error(libc::ENOTSOCK);
        return -1;
    }
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = take_error(fd)
    {
        set_error(error);
        return -1;
    }
    // After the first message only those are taken that are there already.
    let rest = if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
    let flags = flags & !libc::MSG_WAITFORONE;
    let until = timeout.as_ref().and_then(|timeout| {
        let timeout = Duration::new(timeout.tv_sec.try_into().ok()?, timeout.tv_nsec.try_into().ok()?);
        Instant::now().checked_add(timeout)
    });
    // As in the kernel, the time is looked at between messages and ends no wait for one (recvmmsg(2), BUGS).
    let goes_on = |nth| nth == 0 || until.is_none_or(|until| Instant::now() < until) && !has_error_alone(fd);
    // SAFETY: as above.
    let mut all = || unsafe {
        each(messages, count, goes_on, |nth, message| {
            receive(message, if nth == 0 { flags } else { flags | rest }, nth == 0)
        })
    };
    let done = if netlink::is_one(fd) { all() } else { one_call(all) };
    // Without a message it stays what it was (`__sys_recvmmsg`).
    if let (1.., Some(timeout), Some(until)) = (done, timeout, until) {
        let left = until.saturating_duration_since(Instant::now());
        (timeout.tv_sec, timeout.tv_nsec) = (left.as_secs() as _, left.subsec_nanos().into());
    }
    done
}

/// `sendmmsg`, which is `sendmsg` again and again.
///
/// # Safety
/// The program vouches for the messages.
pub unsafe fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    mut send: impl FnMut(*mut msghdr) -> ssize_t,
) -> c_int {
    if is_no_socket(fd) {
        set_error(libc::ENOTSOCK);
        return -1;
    }
    // SAFETY: as above.
    unsafe { each(messages, count.min(SENT_MAX), |_| true, |_, message| send(message)) }
}

/// Whether `sendmmsg` is [`send_in_turn`]: the number is a UDP socket of lull's, and every message goes by lull.
///
/// # Safety
/// The program vouches for the messages.
pub unsafe fn may_be_sent_in_turn(fd: c_int, messages: &[mmsghdr], flags: c_int) -> bool {
    // SAFETY: as above.
    let goes = |one: &mmsghdr| unsafe { message_goes_by_lull(fd, &one.msg_hdr, flags) } == Ok(true);
    let is_datagram = || files::get(fd).is_some_and(|file| matches!(*file, File::Datagram(_)));
    signals::section(is_datagram) && messages.iter().all(goes)
}

/// `sendmmsg` with datagrams that all go by lull: they share doorbells.
///
/// # Safety
/// The program vouches for the messages.
pub unsafe fn send_in_turn(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let count = count.min(SENT_MAX);
    let call = |nth: usize, message: *mut msghdr| {
        // SAFETY: as above.
        let send = || unsafe { sendmsg(fd, &*message, flags) };
        // Only a call that has sent nothing is made again.
        match if nth == 0 { signals::call(send) } else { signals::call_once(send) } {
            Ok(bytes) => bytes as ssize_t,
            Err(error) => {
                set_error(error.number());
                -1
            }
        }
    };
    one_call(|| {
        let _in_turn = lull_net::in_turn(count as usize);
        // SAFETY: as above.
        unsafe { each(messages, count, |_| true, call) }
    })
}

/// Makes one call for each message until one fails. Returns how many did not, or -1 if the first one failed.
///
/// # Safety
/// The program vouches for the messages.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    goes_on: impl Fn(usize) -> bool,
    mut call: impl FnMut(usize, *mut msghdr) -> ssize_t,
) -> c_int {
    let count = count as usize;
    for nth in 0..count {
        if !goes_on(nth) {
            return nth as c_int;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn messages() -> [mmsghdr; 3] {
        // SAFETY: plain data, for which zeroes are a value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn messages_are_counted_until_one_fails() {
        for (fails_at, told, lengths) in [(0, -1, [0, 0, 0]), (2, 2, [1, 2, 0]), (9, 3, [1, 2, 3])] {
            let (mut messages, mut nth) = (messages(), 0);
            let send = |_: *mut msghdr| {
                nth += 1;
                if nth > fails_at { -1 } else { nth }
            };
            // SAFETY: as many messages as it says.
            assert_eq!(unsafe { sendmmsg(-1, messages.as_mut_ptr(), 3, send) }, told);
            assert_eq!(messages.map(|message| message.msg_len), lengths);
        }
    }

    #[test]
    fn more_messages_are_received_at_once_than_are_sent() {
        // SAFETY: plain data, for which zeroes are a value.
        let mut messages: Vec<mmsghdr> = (0..1030).map(|_| unsafe { std::mem::zeroed() }).collect();
        // SAFETY: as many messages as it says.
        unsafe {
            assert_eq!(recvmmsg(-1, messages.as_mut_ptr(), 1030, 0, None, |_, _, _| 1), 1030);
            assert_eq!(sendmmsg(-1, messages.as_mut_ptr(), 1030, |_| 1), 1024);
        }
    }

    #[test]
    fn only_the_first_message_is_waited_for_if_one_is_enough() {
        let mut flags_of_each = Vec::new();
        let receive = |_: *mut msghdr, flags, _: bool| {
            flags_of_each.push(flags);
            1
        };
        let flags = libc::MSG_WAITFORONE | libc::MSG_PEEK;
        // SAFETY: as many messages as it says.
        assert_eq!(unsafe { recvmmsg(-1, messages().as_mut_ptr(), 3, flags, None, receive) }, 3);
        let rest = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        assert_eq!(flags_of_each, [libc::MSG_PEEK, rest, rest]);
    }

    #[test]
    fn a_time_that_is_none_is_refused_before_anything_is_received() {
        for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            let mut timeout = timespec { tv_sec, tv_nsec };
            let receive = |_: *mut msghdr, _, _: bool| unreachable!("nothing is received");
            // SAFETY: as many messages as it says.
            assert_eq!(unsafe { recvmmsg(-1, messages().as_mut_ptr(), 3, 0, Some(&mut timeout), receive) }, -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn a_signal_between_two_messages_ends_the_wait_for_the_second() {
        static HANDLED: AtomicBool = AtomicBool::new(false);
        extern "C" fn handles(_: c_int) {
            HANDLED.store(true, Ordering::Relaxed);
        }
        // SAFETY: plain data, for which zeroes are a value.
        let mut asked: libc::sigaction = unsafe { std::mem::zeroed() };
        asked.sa_sigaction = handles as extern "C" fn(c_int) as usize;
        asked.sa_flags = libc::SA_RESTART;
        signals::sigaction(libc::SIGURG, Some(&asked), libc::sigaction).unwrap();
        let receive = |_: *mut msghdr, _, is_first: bool| {
            if is_first {
                // SAFETY: a signal with a handler.
                assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
                return 1;
            }
            assert!(signals::is_interrupted() && !HANDLED.load(Ordering::Relaxed));
            -1
        };
        // SAFETY: as many messages as it says.
        assert_eq!(unsafe { recvmmsg(-1, messages().as_mut_ptr(), 3, 0, None, receive) }, 1);
        assert!(HANDLED.load(Ordering::Relaxed));
    }

    #[test]
    fn time_that_is_over_leaves_the_messages_behind_the_first() {
        let mut timeout = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: as many messages as it says.
        let told = unsafe { recvmmsg(-1, messages().as_mut_ptr(), 3, 0, Some(&mut timeout), |_, _, _| 5) };
        assert_eq!((told, timeout.tv_sec, timeout.tv_nsec), (1, 0, 0));
    }
}
