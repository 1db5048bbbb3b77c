//! The other ends of the program's connections: sockets of the kernel, or of a network of lull's.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};
use lull_net::{ConnectOptions, Ready, Shutdown, TcpListener, TcpStream};
use lull_posix::Errno;
use lull_posix::address::{self, Bytes};

use super::machine::{Machine, Result};
use super::world;

/// A peer's connection. It never blocks, and sends at once.
pub enum Peer {
    Kernels(OwnedFd),
    Lulls(TcpStream),
}

/// A peer that listens.
pub enum PeerListener {
    Kernels(OwnedFd),
    Lulls(TcpListener),
}

fn kernels_socket() -> OwnedFd {
    // SAFETY: numbers only; the number is nobody else's.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "socket: {}", Errno::last());
        lull_posix::files::forget(fd);
        OwnedFd::from_raw_fd(fd)
    }
}

fn set(fd: &OwnedFd, level: c_int, name: c_int, value: &[u8]) {
    // SAFETY: a value, and its size.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as socklen_t) };
    assert_eq!(set, 0, "setsockopt: {}", Errno::last());
}

fn bytes(ip: Ipv4Addr, port: u16) -> Bytes {
    Bytes::new(SocketAddrV4::new(ip, port).into(), libc::AF_INET)
}

fn bind(fd: &OwnedFd, ip: Ipv4Addr) {
    let address = bytes(ip, 0);
    // SAFETY: an address, and its size.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), address.len() as socklen_t) };
    assert_eq!(bound, 0, "bind: {}", Errno::last());
}

impl Peer {
    /// A socket of the kernel's that begins to connect.
    pub fn kernels(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Peer {
        let fd = kernels_socket();
        set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        set(&fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1_i32.to_ne_bytes());
        bind(&fd, from);
        let to = bytes(to, port);
        // SAFETY: an address, and its size. Whether it succeeds is seen later.
        unsafe { libc::connect(fd.as_raw_fd(), to.as_ptr().cast(), to.len() as socklen_t) };
        Peer::Kernels(fd)
    }

    /// A socket of lull's that begins to connect.
    pub fn lulls(to: Ipv4Addr, port: u16) -> Peer {
        let options = ConnectOptions { nodelay: true, ..ConnectOptions::default() };
        let to = SocketAddr::from((to, port));
        let stream = TcpStream::start_connect(world::peers(), None, to, options).unwrap();
        stream.set_nonblocking(true).unwrap();
        Peer::Lulls(stream)
    }

    /// Its address.
    pub fn name(&self) -> Option<SocketAddr> {
        match self {
            Peer::Kernels(fd) => address::parse(&Machine::Kernel.name(fd.as_raw_fd(), false).ok()?),
            Peer::Lulls(stream) => stream.local_addr().ok(),
        }
    }

    /// As [`awaits_last_ack`].
    pub fn awaits_last_ack(&self) -> bool {
        match self {
            Peer::Kernels(fd) => awaits_last_ack(Machine::Kernel, fd.as_raw_fd()),
            Peer::Lulls(stream) => {
                stream.info().is_ok_and(|info| matches!(info.state, "FIN-WAIT-1" | "LAST-ACK" | "CLOSING"))
            }
        }
    }

    /// What it is connected to, while it is.
    pub fn remote(&self) -> Option<SocketAddr> {
        match self {
            Peer::Kernels(fd) => address::parse(&Machine::Kernel.name(fd.as_raw_fd(), true).ok()?),
            Peer::Lulls(stream) => stream.peer_addr().ok(),
        }
    }

    /// What is ready, in the bits of `poll`, and how much could be read.
    pub fn state(&self) -> (u32, usize) {
        match self {
            Peer::Kernels(fd) => state(Machine::Kernel, fd.as_raw_fd()),
            Peer::Lulls(stream) => (bits(stream.ready()), stream.unread().unwrap_or(0)),
        }
    }

    /// What it was given and has not sent, while it is connected.
    pub fn unsent(&self) -> usize {
        if self.state().0 & libc::POLLHUP as u32 != 0 {
            return 0;
        }
        match self {
            Peer::Kernels(fd) => Machine::Kernel.unsent(fd.as_raw_fd()),
            Peer::Lulls(stream) => stream.unsent().unwrap_or(0),
        }
    }

    pub fn send(&self, data: &[u8]) -> Result<usize> {
        match self {
            Peer::Kernels(fd) => {
                Machine::Kernel.send(fd.as_raw_fd(), &[std::io::IoSlice::new(data)], Some(libc::MSG_NOSIGNAL))
            }
            Peer::Lulls(stream) => Ok(stream.send(data)?),
        }
    }

    pub fn recv(&self, length: usize) -> Result<Vec<u8>> {
        let mut buffer = vec![0; length];
        let count = match self {
            Peer::Kernels(fd) => {
                Machine::Kernel.recv(fd.as_raw_fd(), &mut [std::io::IoSliceMut::new(&mut buffer)], Some(0))?
            }
            Peer::Lulls(stream) => stream.recv(&mut buffer)?,
        };
        buffer.truncate(count);
        Ok(buffer)
    }

    pub fn shutdown(&self, how: c_int) -> Result<()> {
        match self {
            Peer::Kernels(fd) => Machine::Kernel.shutdown(fd.as_raw_fd(), how),
            Peer::Lulls(stream) => Ok(stream.shutdown(match how {
                libc::SHUT_RD => Shutdown::Read,
                libc::SHUT_WR => Shutdown::Write,
                _ => Shutdown::Both,
            })?),
        }
    }

    /// Closing it will reset the connection.
    pub fn reset_on_close(&self) {
        match self {
            Peer::Kernels(fd) => set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1_i32, 0].map(i32::to_ne_bytes).concat()),
            Peer::Lulls(stream) => stream.set_reset_on_close(true).unwrap(),
        }
    }
}

impl PeerListener {
    pub fn kernels(ip: Ipv4Addr) -> PeerListener {
        let fd = kernels_socket();
        set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        bind(&fd, ip);
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::listen(fd.as_raw_fd(), 64) }, 0, "listen: {}", Errno::last());
        PeerListener::Kernels(fd)
    }

    pub fn lulls(ip: Ipv4Addr) -> PeerListener {
        let options = lull_net::ListenOptions { backlog: 64, nodelay: true, ..lull_net::ListenOptions::default() };
        let listener = TcpListener::bind_with(world::peers(), None, SocketAddr::from((ip, 0)), options).unwrap();
        listener.set_nonblocking(true).unwrap();
        PeerListener::Lulls(listener)
    }

    pub fn port(&self) -> u16 {
        match self {
            PeerListener::Kernels(fd) => {
                let name = Machine::Kernel.name(fd.as_raw_fd(), false).unwrap();
                address::parse(&name).unwrap().port()
            }
            PeerListener::Lulls(listener) => listener.local_addr().unwrap().port(),
        }
    }

    pub fn accept(&self) -> Result<Peer> {
        match self {
            PeerListener::Kernels(fd) => {
                let (fd, _) = Machine::Kernel.accept(fd.as_raw_fd(), libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
                // SAFETY: nobody else's number.
                Ok(Peer::Kernels(unsafe { OwnedFd::from_raw_fd(fd) }))
            }
            PeerListener::Lulls(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Peer::Lulls(stream))
            }
        }
    }
}

pub fn bits(ready: Ready) -> u32 {
    const MAP: [(Ready, c_int); 6] = [
        (Ready::READABLE, libc::EPOLLIN),
        (Ready::WRITABLE, libc::EPOLLOUT),
        (Ready::PRI, libc::EPOLLPRI),
        (Ready::RDHUP, libc::EPOLLRDHUP),
        (Ready::HUP, libc::EPOLLHUP),
        (Ready::ERR, libc::EPOLLERR),
    ];
    MAP.iter().filter(|(ours, _)| ready.contains(*ours)).fold(0, |all, (_, bit)| all | *bit as u32)
}

/// What `poll` says of a number, and how much could be read from it.
pub fn state(machine: Machine, fd: c_int) -> (u32, usize) {
    const ALL: c_int = (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI) as c_int;
    let mut polled = [libc::pollfd { fd, events: ALL as i16, revents: 0 }];
    machine.poll(&mut polled, 0).unwrap();
    let ready = polled[0].revents;
    (ready as u16 as u32, machine.unread(fd))
}

/// Whether a connection has sent a FIN that its peer has not acknowledged (`TCP_FIN_WAIT1`, `TCP_LAST_ACK`, `TCP_CLOSING`). What is no
/// TCP socket has not.
pub fn awaits_last_ack(machine: Machine, fd: c_int) -> bool {
    let info = machine.getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 1);
    info.is_ok_and(|state| matches!(state[..], [4] | [9] | [11]))
}
