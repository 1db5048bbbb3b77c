//! One UDP socket of the program's is one on each queue of the NIC, as a peer's datagrams come in by any of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;

use lull_net::{
    Network, Part, PathMtuDiscovery, Ready, Received, ReceivedError, SendOptions, Shutdown, Source, UdpOptions,
    UdpSocket,
};

use libc::c_int;
use lull_net::lull_bpf::Chooser;

use crate::errno::WOULD_BLOCK;
use crate::socket::options::egress::Egress;
use crate::socket::options::set_busy;
use crate::{Errno, Result};

/// Never empty.
pub(crate) struct Sockets(Vec<UdpSocket>);

impl Sockets {
    pub(super) fn open(network: &Network, local: SocketAddr, options: UdpOptions) -> Result<Sockets> {
        let open = |queue| {
            let socket = UdpSocket::bind_with(network, queue, local, options)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Sockets((0..network.napis().len()).map(open).collect::<Result<_>>()?))
    }

    /// The one that stands for all in what they have in common.
    pub(crate) fn first(&self) -> &UdpSocket {
        &self.0[0]
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> Result<()> {
        Ok(self.0.iter().try_for_each(|socket| socket.connect(peer))?)
    }

    pub(super) fn disconnect(&self) -> Result<()> {
        Ok(self.0.iter().try_for_each(UdpSocket::disconnect)?)
    }

    /// Nothing comes any more, until there is a port again.
    pub(super) fn lose_port(&self) -> Result<()> {
        Ok(self.0.iter().try_for_each(UdpSocket::lose_port)?)
    }

    pub(super) fn bind_again(&self, local: SocketAddr, options: UdpOptions) -> Result<()> {
        Ok(self.0.iter().try_for_each(|socket| socket.bind_again(local, options))?)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<()> {
        // All are shut down, and say the same of it.
        self.0.iter().map(|socket| socket.shutdown(how).map_err(Errno::from)).fold(Ok(()), Result::and)
    }

    pub(crate) fn ready(&self) -> Ready {
        self.0.iter().fold(Ready::empty(), |all, socket| all | socket.ready())
    }

    /// The pending error, if there is one (SO_ERROR).
    pub(crate) fn take_error(&self) -> Result<Option<Errno>> {
        for socket in &self.0 {
            if let Some(error) = socket.take_error()? {
                return Ok(Some(error.into()));
            }
        }
        Ok(None)
    }

    /// The pending error becomes the one of `others`, if there is one.
    pub(super) fn move_errors(&self, others: &Sockets) -> Result<()> {
        Ok(self.0.iter().try_for_each(|socket| socket.move_error(others.first()))?)
    }

    /// Bytes of the datagram that is read next.
    pub(crate) fn unread(&self) -> Result<usize> {
        for socket in &self.0 {
            match socket.unread()? {
                0 => {}
                bytes => return Ok(bytes),
            }
        }
        Ok(0)
    }

    /// Takes a datagram, from the queue whose turn it is first.
    pub(super) fn receive(&self, turn: usize, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<Received> {
        self.each(turn, |socket| socket.recv_msg(buffers, peek))
    }

    /// Several datagrams of one flow may be taken as one from now on (UDP_GRO), or no more.
    pub(super) fn set_gro(&self, on: bool) -> Result<()> {
        Ok(self.0.iter().try_for_each(|socket| socket.set_gro(on))?)
    }

    /// What ICMP says of their datagrams is kept from now on, over IPv4 and over IPv6, or no more. One that is over hears nothing.
    pub(super) fn set_receive_errors(&self, v4: bool, v6: bool) {
        self.0.iter().for_each(|socket| drop(socket.set_receive_errors(v4, v6)));
    }

    /// Takes an error that one of them has kept.
    pub(super) fn receive_error(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<ReceivedError> {
        let mut kept = self.0.iter().map(|socket| socket.recv_error(buffers).map_err(Errno::from));
        kept.find(|kept| *kept != Err(WOULD_BLOCK)).unwrap_or(Err(WOULD_BLOCK))
    }

    /// What each may hold unread. One that is over holds nothing.
    pub(super) fn set_receive_buffer(&self, bytes: usize) {
        self.0.iter().for_each(|socket| drop(socket.set_receive_buffer(bytes)));
    }

    /// Sends a datagram, or several at once. What goes to one peer goes by one queue, while that has room.
    pub(super) fn send(&self, data: &[IoSlice<'_>], to: Option<SocketAddr>, options: SendOptions) -> Result<usize> {
        let first = to.map_or(0, |to| usize::from(to.port()));
        self.each(first, |socket| socket.send_msg(data, to, options))
    }

    /// As the sockets' own: whether they busy poll.
    pub(crate) fn busy_loop(&self, nonblocking: bool) -> bool {
        // Each of them, and not only the first.
        self.0.iter().filter(|socket| socket.busy_loop(nonblocking)).count() > 0
    }

    /// Sets SO_BUSY_POLL or one of its kin, which the kernel's socket has taken.
    pub(super) fn set_busy(&self, name: (c_int, c_int), value: c_int) {
        self.0.iter().for_each(|socket| set_busy!(name, value, socket));
    }

    /// Says how frames of each are to leave.
    pub(super) fn put_egress(&self, egress: Egress) {
        self.0.iter().for_each(|socket| egress.put(socket));
    }

    /// Says what becomes of datagrams that are longer than the path takes.
    pub(super) fn set_path_mtu_discovery(&self, is_v6: bool, how: PathMtuDiscovery) {
        // One that is over sends nothing.
        self.0.iter().for_each(|socket| drop(socket.set_path_mtu_discovery(is_v6, how)));
    }

    /// Attaches a program to the group of each, or takes it away.
    pub(super) fn steer(&self, program: Option<&Arc<Chooser>>) -> Result<()> {
        Ok(self.0.iter().try_for_each(|socket| socket.set_reuseport_program(program.cloned()))?)
    }

    /// Asks one after the other while they would block.
    fn each<R>(&self, first: usize, mut ask: impl FnMut(&UdpSocket) -> io::Result<R>) -> Result<R> {
        let first = first % self.0.len();
        // An error came in by whatever queue, and is the socket's.
        for (at, socket) in self.0.iter().enumerate() {
            if at != first && socket.ready().contains(Ready::ERR) {
                socket.move_error(&self.0[first])?;
            }
        }
        let mut result = Err(WOULD_BLOCK);
        for step in 0..self.0.len() {
            result = ask(&self.0[(first + step) % self.0.len()]).map_err(Errno::from);
            if !matches!(result, Err(WOULD_BLOCK)) {
                break;
            }
        }
        result
    }
}

impl Source for Sockets {
    fn parts(&self) -> Vec<Part> {
        self.0.iter().flat_map(Source::parts).collect()
    }

    fn identity(&self) -> usize {
        // The first one's, which its closing knows.
        self.first().identity()
    }
}
