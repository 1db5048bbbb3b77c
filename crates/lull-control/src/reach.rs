//! A connection to a socket file, for which nobody is waited longer than was said.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects, and waits for a listener whose queue is full no longer than until then, or not at all.
pub(crate) fn reach(path: &Path, until: Option<Instant>) -> io::Result<UnixStream> {
    let how = if until.is_none() { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | how, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        if let Some(end) = until {
            // It bounds a connect as well.
            set_socket_timeout(&socket, Timeout::Send, Some(left(end)?))?;
        }
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The time until the end.
pub(crate) fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
