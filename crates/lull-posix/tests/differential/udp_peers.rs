//! The other ends of the program's datagrams: sockets of the kernel, or of a network of lull's, that hear everybody.

use std::net::SocketAddr;

use lull_net::UdpSocket;
use lull_posix::Errno;

use super::machine::{KERNELS_PEER, Machine, Result};
use super::peers::{bits, state};
use super::world;

/// A peer's socket. It never blocks.
pub enum DatagramPeer {
    Kernels(std::net::UdpSocket),
    Lulls(UdpSocket),
}

/// A peer on both sides.
pub struct DatagramPair {
    /// None once it is closed.
    pub sides: Option<[DatagramPeer; 2]>,
    pub in_kernel: bool,
    /// What it has, or had.
    pub ports: [u16; 2],
}

impl DatagramPeer {
    fn open(machine: Machine, in_kernel: bool) -> DatagramPeer {
        match machine {
            Machine::Lull if !in_kernel => {
                let at = SocketAddr::from((machine.peer(false), 0));
                let socket = UdpSocket::bind(world::peers(), at).unwrap();
                socket.set_nonblocking(true).unwrap();
                DatagramPeer::Lulls(socket)
            }
            _ => {
                let socket = std::net::UdpSocket::bind((KERNELS_PEER, 0)).unwrap();
                lull_posix::files::forget(std::os::fd::AsRawFd::as_raw_fd(&socket));
                socket.set_nonblocking(true).unwrap();
                DatagramPeer::Kernels(socket)
            }
        }
    }

    fn port(&self) -> u16 {
        match self {
            DatagramPeer::Kernels(socket) => socket.local_addr().unwrap().port(),
            DatagramPeer::Lulls(socket) => socket.local_addr().unwrap().port(),
        }
    }

    /// What is ready, in the bits of `poll`, and how long the next datagram is.
    pub fn state(&self) -> (u32, usize) {
        match self {
            DatagramPeer::Kernels(socket) => state(Machine::Kernel, std::os::fd::AsRawFd::as_raw_fd(socket)),
            DatagramPeer::Lulls(socket) => (bits(socket.ready()), socket.unread().unwrap_or(0)),
        }
    }
}

impl DatagramPair {
    pub fn open(machines: [Machine; 2], in_kernel: bool) -> DatagramPair {
        let sides = machines.map(|machine| DatagramPeer::open(machine, in_kernel));
        let ports = sides.each_ref().map(DatagramPeer::port);
        DatagramPair { sides: Some(sides), in_kernel, ports }
    }

    pub fn state(&self, side: usize) -> (u32, usize) {
        self.sides.as_ref().map_or((0, 0), |sides| sides[side].state())
    }

    fn side(&self, side: usize) -> Result<&DatagramPeer> {
        self.sides.as_ref().map(|sides| &sides[side]).ok_or(Errno::new(libc::EBADF))
    }

    pub fn send(&self, side: usize, data: &[u8], to: SocketAddr) -> Result<usize> {
        Ok(match self.side(side)? {
            DatagramPeer::Kernels(socket) => socket.send_to(data, to)?,
            DatagramPeer::Lulls(socket) => socket.send_to(data, to)?,
        })
    }

    pub fn recv(&self, side: usize) -> Result<(Vec<u8>, SocketAddr)> {
        let mut buffer = vec![0; 2048];
        let (count, from) = match self.side(side)? {
            DatagramPeer::Kernels(socket) => socket.recv_from(&mut buffer)?,
            DatagramPeer::Lulls(socket) => socket.recv_from(&mut buffer)?,
        };
        buffer.truncate(count);
        Ok((buffer, from))
    }
}
