//! UDP sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lull_bpf::Chooser;
use lull_core::{SettingError, SocketBusy};

use super::addresses;
use super::open::{Open, Part, Source, ns_to_timeout, timeout_to_ns};
use super::options::socket_options;
use crate::network::Network;
use crate::queue::Queue;
use crate::shard::{
    Io, IpFields, NetError, PathMtuDiscovery, Ready, Received, ReceivedError, SendOptions, Shutdown, SocketId, Stack,
    UdpOptions,
};

/// A UDP socket on one shard.
#[derive(Clone)]
pub struct UdpSocket(Arc<Open>);
socket_options!(UdpSocket);

impl UdpSocket {
    /// Binds on the network's first shard that is not down. Of several addresses each is tried in turn.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, of the last address; what the operating system's resolver says of a host name.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        addresses::each(local, |local| {
            let bind = |queue| UdpSocket::bind_on(network, queue, local, UdpOptions::default());
            let mut each = network.queues().iter().map(bind);
            let bound = each.find(|bound| !matches!(bound, Err(NetError::NetworkDown)));
            Ok(bound.unwrap_or(Err(NetError::NetworkDown))?)
        })
    }

    /// Binds on shard `queue`. What comes by another queue, whose shard has no socket for it, is passed on to this one, which takes
    /// a copy: one socket per shard, with `reuse_port`, has them all where they come. Port 0 stands for one that is free on all shards.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `InvalidInput` if there is no such queue.
    pub fn bind_with(network: &Network, queue: usize, local: SocketAddr, options: UdpOptions) -> io::Result<UdpSocket> {
        Ok(UdpSocket::bind_on(network, network.queue(queue)?, local, options)?)
    }

    fn bind_on(
        network: &Network,
        queue: &Arc<Queue>,
        local: SocketAddr,
        options: UdpOptions,
    ) -> Result<UdpSocket, NetError> {
        let host = network.delivery();
        let is_chosen = local.port() == 0;
        let bind = |port| {
            let part = queue.with(host, |inside, _| {
                // Nor is it shared.
                if is_chosen && inside.stack.has_udp_port(port) {
                    return Err(NetError::AddressInUse);
                }
                let id = inside.stack.udp_bind(SocketAddr::new(local.ip(), port), options)?;
                Ok(Part::new(queue, host, id, inside))
            })?;
            Ok::<_, NetError>(UdpSocket(Arc::new(Open::new(part, SocketBusy::new(network.sysctl())))))
        };
        if !is_chosen {
            return bind(local.port());
        }
        let is_anothers = |port| {
            let has = |other: &Arc<Queue>| other.with(host, |inside, _| inside.stack.has_udp_port(port));
            network.queues().iter().any(|other| !Arc::ptr_eq(other, queue) && has(other))
        };
        let ports = queue.with(host, |inside, _| inside.stack.config().ephemeral_ports.len());
        for _ in 0..ports {
            // Asked for first: what is bound, if for a moment, takes what comes to another shard's socket.
            let port = queue.with(host, |inside, _| inside.stack.free_udp_port())?;
            if is_anothers(port) {
                continue;
            }
            match bind(port) {
                Err(NetError::AddressInUse) => {}
                // It is bound by now: of two shards that choose the same port at the same time one finds the other's, or both do.
                Ok(_) if is_anothers(port) => {}
                bound => return bound,
            }
        }
        Err(NetError::AddressNotAvailable)
    }

    /// Sets the peer for [`UdpSocket::send`], and takes datagrams from it only. Of several addresses each is tried in turn.
    ///
    /// # Errors
    /// No route; what the operating system's resolver says of a host name.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        addresses::each(peer, |peer| Ok(self.0.part.call(|stack, id, _| stack.udp_connect(id, Some(peer)))?))
    }

    /// Undoes [`UdpSocket::connect`]: datagrams of all peers are taken again (connect to AF_UNSPEC).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn disconnect(&self) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_connect(id, None))?)
    }

    /// Takes the socket's port away, and its peer: nothing comes any more, and what came stays to be read.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn lose_port(&self) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_lose_port(id))?)
    }

    /// Binds a socket that has lost its port to this address and port. What came stays to be read.
    ///
    /// # Errors
    /// `InvalidInput` if it has a port, or is to have none; `AddrInUse`; `AddrNotAvailable` if it is not the stack's address.
    pub fn bind_again(&self, local: SocketAddr, options: UdpOptions) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_bind_again(id, local, options))?)
    }

    /// Attaches a classic BPF program to the socket's reuseport group, which chooses among its members on this shard for each
    /// datagram, as [`TcpListener::set_reuseport_program`](crate::TcpListener::set_reuseport_program) does for connections.
    ///
    /// # Errors
    /// As there.
    pub fn set_reuseport_program(&self, program: Option<Arc<Chooser>>) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.set_reuseport_program(id, program.clone()))?)
    }

    /// Its pending error becomes the other one's, if it has one: where several of them are one socket to a program.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn move_error(&self, to: &UdpSocket) -> io::Result<()> {
        if let Some(error) = self.0.part.call(|stack, id, _| stack.take_error(id))? {
            to.0.part.call(|stack, id, io| stack.udp_put_error(id, error, io))?;
        }
        Ok(())
    }

    /// Its queue is down, which was told, and others of several that are one socket to a program go on: it is ready for nothing any
    /// more.
    pub fn waits_for_others(&self) {
        self.0.part.waits_for_others();
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; no peer, no route, too long.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send(id, data, io))
    }

    /// Sends a datagram to `to`, to the first of several addresses.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; no route, too long; what the operating system's resolver says of a host name.
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let (open, to) = (&self.0, addresses::first(to)?);
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send_to(id, data, to, io))
    }

    /// Sends a datagram that is gathered from several buffers, or several at once, to `to` or to the peer, as `options` say (sendmsg).
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `AddrNotAvailable` if [`SendOptions::from`] is no own address; `InvalidInput` if they are too many.
    pub fn send_msg(&self, data: &[IoSlice<'_>], to: Option<SocketAddr>, options: SendOptions) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| {
            stack.udp_send_with(id, data, to, options, io)
        })
    }

    /// From now on several datagrams of one flow that came one behind the other may be taken as one, of up to 64 KB
    /// (UDP_GRO). [`UdpSocket::recv_msg`] tells how long each of them is: all have the first one's length but the last.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_gro(id, on))?)
    }

    /// From now on what ICMP says of datagrams that it has sent is kept to be read, over IPv4 and over IPv6 (IP_RECVERR, IPV6_RECVERR):
    /// also of those without a peer, and also that one was on its way for too long.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_receive_errors(&self, v4: bool, v6: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_receive_errors(id, [v4, v6]))?)
    }

    /// Takes the oldest error that was kept, with what came back of its datagram. It never waits (MSG_ERRQUEUE).
    ///
    /// # Errors
    /// `WouldBlock` if there is none; the socket is gone.
    pub fn recv_error(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<ReceivedError> {
        Ok(self.0.part.call(|stack, id, io| stack.udp_recv_error(id, buffers, io))?)
    }

    /// What it may hold unread, in bytes of frame buffers (SO_RCVBUF): what comes beyond is dropped and counted. What is there stays.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_receive_buffer(id, bytes))?)
    }

    /// Sets how the socket heeds the MTU of the path, over IPv4 or over IPv6: whether what is longer leaves in fragments or is
    /// refused, and whether routers may cut the rest (IP_MTU_DISCOVER, IPV6_MTU_DISCOVER).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_path_mtu_discovery(&self, is_v6: bool, how: PathMtuDiscovery) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_path_mtu_discovery(id, is_v6, how))?)
    }

    /// The MTU of the path to the peer (IP_MTU), as far as routers have told of it.
    ///
    /// # Errors
    /// The socket has no peer, or is gone.
    pub fn path_mtu(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, io| stack.udp_path_mtu(id, io.now_ns))?)
    }

    /// Bytes of the datagram that is read next, 0 if there is none (FIONREAD).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn unread(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_unread(id))?)
    }

    /// Takes a datagram: its bytes and who sent it. What does not fit `buffer` is lost; [`UdpSocket::recv_msg`] tells.
    ///
    /// # Errors
    /// `WouldBlock`, also of a socket that does not block and is shut down for reading; an error that a router or the peer
    /// reported.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let take = |stack: &mut Stack, id, io: &mut Io<'_>| stack.udp_recv_from(id, buffer, io);
        self.receive(take).map(|received| (received.bytes, received.from))
    }

    /// Takes one, or waits for it. The end of reading ends the wait, with nothing; who does not wait is not told of it
    /// (`__skb_wait_for_more_packets`).
    fn receive(
        &self,
        take: impl FnMut(&mut Stack, SocketId, &mut Io<'_>) -> Result<Received, NetError>,
    ) -> io::Result<Received> {
        let open = &self.0;
        let received = open.retry(Ready::READABLE, &open.read_timeout_ns, take)?;
        if received.is_end && open.nonblocking.load(Ordering::Relaxed) {
            return Err(NetError::WouldBlock.into());
        }
        Ok(received)
    }

    /// Takes a datagram of the peer that was set by [`UdpSocket::connect`], or of anybody if none was.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }

    /// As [`UdpSocket::recv_from`], without taking it (MSG_PEEK).
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_msg(&mut [IoSliceMut::new(buffer)], true)?;
        Ok((received.bytes, received.from))
    }

    /// As [`UdpSocket::recv`], without taking it (MSG_PEEK).
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buffer)?.0)
    }

    /// Takes a datagram into several buffers in turn, or looks at it with `peek`, and tells all that is known of it: how
    /// long it was, and which own address it was sent to (recvmsg).
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_msg(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<Received> {
        self.receive(|stack, id, io| stack.udp_recv_vectored(id, buffers, peek, io))
    }
}
