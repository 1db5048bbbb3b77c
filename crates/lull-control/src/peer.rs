//! The process at the other end of a socket (SO_PEERCRED).
//!
//! A process that this PID namespace does not see has the number 0. A process in a container sees `lull show` on its
//! host so. rustix's type cannot hold this number.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` if this PID namespace does not see the process.
    pub(crate) pid: Option<u32>,
}

pub(crate) fn of(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of_val(&found) as libc::socklen_t;
    let (socket, value) = (stream.as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the kernel writes at most `length` bytes to `found`, which outlives the call. Any bytes are a valid value
    // of it.
    let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut length) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid: found.uid, pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0) })
}
