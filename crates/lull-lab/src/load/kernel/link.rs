//! One connection of the kernel client.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::load::checker::Checker;
use crate::load::workload::{Query, Workload};

/// An output buffer that grew beyond this is freed when it is empty.
const KEPT_BUFFER_BYTES: usize = 16 * 1024;

/// The state of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// It has to be opened.
    Waiting,
    /// The kernel is connecting.
    Connecting(OwnedFd),
    /// It is open.
    Up(OwnedFd),
}

/// A request that is outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub intended_ns: u64,
    pub request: Query,
}

#[derive(Debug)]
pub(super) struct Link {
    pub state: State,
    /// Outstanding requests; at most the load's depth.
    pub pending: VecDeque<Pending>,
    pub checker: Checker,
    out: Vec<u8>,
    sent: usize,
    /// Whether epoll watches the socket for room to write.
    pub watches_write: bool,
}

impl Link {
    pub fn new() -> Link {
        Link {
            state: State::Waiting,
            pending: VecDeque::new(),
            checker: Checker::default(),
            out: Vec::new(),
            sent: 0,
            watches_write: false,
        }
    }

    /// Appends a request to the bytes that have to be written.
    pub fn enqueue(&mut self, workload: &Workload, pending: Pending) {
        let at = self.out.len();
        self.out.resize(at + workload.request_bytes(pending.request), 0);
        workload.encode(pending.request, &mut self.out[at..]);
        self.pending.push_back(pending);
    }

    /// Writes as much as the kernel takes. Returns true if that was all.
    pub fn flush(&mut self) -> io::Result<bool> {
        let State::Up(fd) = &self.state else { return Ok(true) };
        while self.sent < self.out.len() {
            match rustix::net::send(fd, &self.out[self.sent..], SendFlags::NOSIGNAL) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent = 0;
        if self.out.capacity() > KEPT_BUFFER_BYTES {
            self.out = Vec::new();
        } else {
            self.out.clear();
        }
        Ok(true)
    }
}

/// Starts a connection. The socket becomes writable when it is up or has failed.
pub(super) fn open(server: SocketAddr) -> io::Result<OwnedFd> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    match rustix::net::connect(&fd, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

/// Returns the result of a connection that [`open`] started.
pub(super) fn connect_result(fd: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::socket_error(fd)??)
}
