//! Sockets that a program passes to another process over a Unix socket (SCM_RIGHTS, `unix(7)`).
//!
//! The socket stays this process's. In its place the other process is given the end of a relay, as a child of `fork`
//! has for a connection that it inherited (`inherit.rs`). The relay's name says whose it is, so a call that receives a
//! message looks at each descriptor that came along. Until the relay's end is closed everywhere, the socket is open,
//! whatever this process closes. A listener of the same program's becomes one of both processes
//! (`inherit/passing/listener.rs`).
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::AsRawFd;

use libc::{c_int, c_uint, mmsghdr, msghdr, size_t, ssize_t};

use crate::errno::WOULD_BLOCK;
use crate::inherit::{self, Passing};
use crate::socket::bound;
use crate::socket::options::Options;
use crate::{Result, block, files, kernel, memory};

const NUMBER_BYTES: usize = size_of::<c_int>();

/// Whether a message passes a socket of lull's on.
///
/// # Safety
/// The program vouches for the message and what it names.
#[inline]
pub unsafe fn are_in(message: &msghdr) -> bool {
    // SAFETY: as above.
    let control = unsafe { memory::if_any(message.msg_control, message.msg_controllen as size_t) };
    !control.is_empty() && numbers(control).any(|at| is_lulls(number(control, &at)))
}

/// Whether one of several messages does.
///
/// # Safety
/// As [`are_in`], for each.
pub unsafe fn are_in_any(messages: *const mmsghdr, count: c_uint) -> bool {
    // SAFETY: as above.
    (0..count as usize).any(|nth| unsafe { are_in(&(*messages.add(nth)).msg_hdr) })
}

/// `sendmsg` of such a message on a socket of the kernel's.
///
/// # Errors
/// The kernel's; EOPNOTSUPP for what cannot be passed on, which is said on stderr, too.
///
/// # Safety
/// As [`are_in`].
pub unsafe fn sendmsg(fd: c_int, message: &msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as above.
    let mut control = unsafe { memory::if_any(message.msg_control, message.msg_controllen as size_t) }.to_vec();
    let mut all = Vec::new();
    for at in numbers(&control).collect::<Vec<_>>() {
        let passed = number(&control, &at);
        if let Some(file) = files::get(passed) {
            let passing = Passing::new(passed, file)?;
            control[at].copy_from_slice(&passing.end().as_raw_fd().to_ne_bytes());
            all.push(passing);
        } else if files::is_known(passed) {
            return Err(inherit::refuse_inherited(passed));
        } else if let Some(passing) = Passing::bound(passed) {
            let passing = passing?;
            control[at].copy_from_slice(&passing.end().as_raw_fd().to_ne_bytes());
            all.push(passing);
        }
    }
    let whole = msghdr { msg_control: control.as_mut_ptr().cast(), ..*message };
    // SAFETY: the program's message, with a copy of its ancillary data.
    let call = |flags| unsafe { kernel::sendmsg_as_is(fd, &whole, flags) };
    let waits = flags & libc::MSG_DONTWAIT == 0 && !kernel::is_nonblocking(fd);
    let sent = if waits { until_taken(fd, || call(flags | libc::MSG_DONTWAIT)) } else { call(flags) }?;
    // Where it cannot be sent, nothing that came to the socket has been taken from it.
    all.into_iter().for_each(Passing::begin);
    // SAFETY: as above.
    Ok(if waits { unsafe { send_rest(fd, message, sent, flags) } } else { sent })
}

/// A call that waits takes all of a message for a stream; if it is cut short, it says how much it took (`unix_stream_sendmsg`).
///
/// # Safety
/// As [`are_in`].
unsafe fn send_rest(fd: c_int, message: &msghdr, first: usize, flags: c_int) -> usize {
    let mut sent = first;
    let rest = |buffers: &[IoSlice<'_>]| {
        let mut buffers = buffers.to_vec();
        let mut rest = buffers.as_mut_slice();
        IoSlice::advance_slices(&mut rest, first);
        while !rest.is_empty() {
            let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let more = until_taken(fd, || kernel::sendmsg(fd, rest, &[], &[], flags))?;
            IoSlice::advance_slices(&mut rest, more);
            sent += more;
        }
        Ok(0)
    };
    // SAFETY: as above.
    let _ = memory::buffers_of(message).and_then(|count| unsafe { memory::with_slices(message.msg_iov, count, rest) });
    sent
}

/// Makes a call that does not wait as one that does, for as long as the socket says.
fn until_taken(fd: c_int, send: impl Fn() -> Result<usize>) -> Result<usize> {
    match send() {
        Err(WOULD_BLOCK) => block::until_taken(fd, Options::of_placeholder(fd).send_timeout(), send),
        sent => sent,
    }
}

/// What the kernel's `recvmsg` has returned: sockets that came along and are another process's are known as such from here on. What
/// their numbers stood for was closed unseen.
///
/// # Safety
/// As [`are_in`], of what was received.
#[inline]
pub unsafe fn received(result: ssize_t, message: *const msghdr) -> ssize_t {
    // SAFETY: as above; the kernel has written the message.
    if result >= 0 && !unsafe { (*message).msg_control }.is_null() {
        // SAFETY: as above.
        unsafe { find(&*message) };
    }
    result
}

/// As [`received`], of the kernel's `recvmmsg`.
///
/// # Safety
/// As [`received`], for as many messages as it returned.
#[inline]
pub unsafe fn all_received(count: c_int, messages: *const mmsghdr) -> c_int {
    for nth in 0..count.max(0) as usize {
        // SAFETY: as above.
        unsafe { received(0, &raw const (*messages.add(nth)).msg_hdr) };
    }
    count
}

/// # Safety
/// As [`received`].
unsafe fn find(message: &msghdr) {
    // SAFETY: as above.
    let control = unsafe { memory::if_any(message.msg_control, message.msg_controllen as size_t) };
    for number in numbers(control).map(|at| number(control, &at)) {
        inherit::found(files::given_out(number));
    }
}

/// Whether a number is lull's, or stands for what a child has from a process whose it is: its sockets are relays from here on, and its
/// listeners ends of their pools, which the kernel passes on.
fn is_lulls(number: c_int) -> bool {
    files::is_lull_to_wait(number) || files::is_known(number) || bound::is_one(number)
}

fn number(control: &[u8], at: &Range<usize>) -> c_int {
    control[at.clone()].try_into().map_or(-1, c_int::from_ne_bytes)
}

/// Where the numbers of descriptors stand in ancillary data. What is malformed has none, and is refused by the kernel.
fn numbers(control: &[u8]) -> impl Iterator<Item = Range<usize>> {
    parts(control).flat_map(|part| part.step_by(NUMBER_BYTES)).map(|at| at..at + NUMBER_BYTES)
}

/// The data of each SCM_RIGHTS part, in whole numbers (`cmsg(3)`).
fn parts(control: &[u8]) -> impl Iterator<Item = Range<usize>> {
    /// Length, level, type; the next part is aligned.
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    let mut begin = 0_usize;
    let next = move || {
        let header = control.get(begin..)?.get(..HEADER_BYTES)?;
        let int = |at: usize| c_int::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::from_ne_bytes(*header.first_chunk()?);
        let end = begin.checked_add(length).filter(|end| length >= HEADER_BYTES && *end <= control.len())?;
        let data = begin + HEADER_BYTES..end - (length - HEADER_BYTES) % NUMBER_BYTES;
        begin = end.checked_next_multiple_of(size_of::<size_t>())?;
        Some(if (int(8), int(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) { data } else { 0..0 })
    };
    std::iter::from_fn(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(level: c_int, kind: c_int, data: &[u8], length: usize) -> Vec<u8> {
        let mut part = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data].concat();
        part.resize(part.len().next_multiple_of(8), 0);
        part
    }

    #[test]
    fn numbers_are_found_behind_other_parts_and_what_is_cut_has_none() {
        let numbers_of = |control: &[u8]| numbers(control).map(|at| number(control, &at)).collect::<Vec<_>>();
        let three = [3_i32, 40, 500].map(c_int::to_ne_bytes).concat();
        let rights = |length| part(libc::SOL_SOCKET, libc::SCM_RIGHTS, &three, length);
        let other = part(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[7; 12], 28);
        assert_eq!(numbers_of(&[other.clone(), rights(28), other.clone(), rights(20)].concat()), [3, 40, 500, 3]);
        assert_eq!(numbers_of(&rights(27)), [3, 40], "the kernel takes whole numbers");
        assert!(numbers_of(&rights(16)).is_empty());
        for length in [0, 15, 33, usize::MAX - 3, usize::MAX] {
            assert!(numbers_of(&rights(length)).is_empty(), "{length}");
        }
        for cut in 0..16 {
            assert!(numbers_of(&rights(28)[..cut]).is_empty());
        }
        assert!(numbers_of(&part(libc::SOL_IP, libc::SCM_RIGHTS, &three, 28)).is_empty(), "another level");
    }
}
