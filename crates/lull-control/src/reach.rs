//! A connection to a socket's file, which is waited for no longer than the caller says.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects. If the listener's queue is full, this waits until the given time at most, or not at all if there is none.
pub(crate) fn reach(path: &Path, until: Option<Instant>) -> io::Result<UnixStream> {
    let how = if until.is_none() { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | how, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        if let Some(end) = until {
            // This timeout bounds a connect as well.
            set_socket_timeout(&socket, Timeout::Send, Some(left(end)?))?;
        }
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The time that is left until the end, or an error if there is none.
pub(crate) fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
