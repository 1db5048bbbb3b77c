//! What `poll` says of the kernel's descriptors.

use libc::c_int;

use crate::Result;
use crate::raw::raw;

/// `poll` with a timeout in nanoseconds, of which a negative one is for ever, and with another mask of signals meanwhile, if there is
/// one.
pub fn poll(fds: &mut [libc::pollfd], timeout_ns: i64, mask: Option<&u64>) -> Result<usize> {
    let timeout = libc::timespec { tv_sec: timeout_ns / 1_000_000_000, tv_nsec: timeout_ns % 1_000_000_000 };
    let timeout = if timeout_ns < 0 { core::ptr::null() } else { &raw const timeout };
    let mask = mask.map_or(core::ptr::null(), |mask| &raw const *mask);
    // SAFETY: as many structs as the kernel is told, and a timeout and a mask where there is one.
    unsafe { raw!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, 8) }
}

/// Whether `poll` calls a descriptor readable now.
pub fn is_readable(fd: c_int) -> bool {
    polled(fd, libc::POLLIN) != 0
}

/// Whether a socket is shut down for reading.
pub fn reads_no_more(fd: c_int) -> bool {
    shut_down(fd).0
}

/// Whether a socket is shut down for reading, and whether for writing as well.
pub fn shut_down(fd: c_int) -> (bool, bool) {
    let said = polled(fd, libc::POLLRDHUP);
    (said & libc::POLLRDHUP != 0, said & libc::POLLHUP != 0)
}

/// Whether `poll` tells of an error: of the end of a pipe that is written to, that nobody reads from it.
pub fn is_broken(fd: c_int) -> bool {
    polled(fd, 0) & libc::POLLERR != 0
}

/// What `poll` says of a descriptor now.
fn polled(fd: c_int, events: i16) -> i16 {
    let mut polled = [libc::pollfd { fd, events, revents: 0 }];
    poll(&mut polled, 0, None).map_or(0, |_| polled[0].revents)
}
