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
    /// Binds a socket on the network's first shard that is not down. Of several addresses, each is tried in turn.
    ///
    /// # Errors
    /// `AddrInUse` or `AddrNotAvailable`, of the last address; the error of the operating system's resolver for a host
    /// name.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        addresses::each(local, |local| {
            let bind = |queue| UdpSocket::bind_on(network, queue, local, UdpOptions::default());
            let mut each = network.queues().iter().map(bind);
            let bound = each.find(|bound| !matches!(bound, Err(NetError::NetworkDown)));
            Ok(bound.unwrap_or(Err(NetError::NetworkDown))?)
        })
    }

    /// Binds a socket on shard `queue`. A datagram that comes by another queue, whose shard has no socket for it, is
    /// passed on to this one, which takes a copy. With one socket per shard, and `reuse_port`, each takes the datagrams
    /// of its own queue. Port 0 stands for one that is free on all shards.
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
                // A port that is chosen is not shared either.
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
            // A free port is asked for first, because a socket that is bound, even for a moment, takes datagrams meant
            // for another shard's.
            let port = queue.with(host, |inside, _| inside.stack.free_udp_port())?;
            if is_anothers(port) {
                continue;
            }
            match bind(port) {
                Err(NetError::AddressInUse) => {}
                // It is bound by now. If two shards choose the same port at the same time, at least one of them finds
                // the other's socket.
                Ok(_) if is_anothers(port) => {}
                bound => return bound,
            }
        }
        Err(NetError::AddressNotAvailable)
    }

    /// Sets the peer for [`UdpSocket::send`], from which alone datagrams are taken. Of several addresses, each is tried
    /// in turn.
    ///
    /// # Errors
    /// There is no route; the error of the operating system's resolver for a host name.
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

    /// Takes the socket's port away, and its peer. Nothing comes any more, and what has come can still be read.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn lose_port(&self) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_lose_port(id))?)
    }

    /// Binds a socket that has lost its port to this address and port. What has come before can still be read.
    ///
    /// # Errors
    /// `InvalidInput` if it has a port, or would get none; `AddrInUse`; `AddrNotAvailable` if the address is not the
    /// stack's.
    pub fn bind_again(&self, local: SocketAddr, options: UdpOptions) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_bind_again(id, local, options))?)
    }

    /// Attaches a BPF program to the socket's reuseport group. It chooses among the members on this shard for each
    /// datagram, as that of [`TcpListener::set_reuseport_program`](crate::TcpListener::set_reuseport_program) does for
    /// connections.
    ///
    /// # Errors
    /// As for that function.
    pub fn set_reuseport_program(&self, program: Option<Arc<Chooser>>) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.set_reuseport_program(id, program.clone()))?)
    }

    /// Moves its pending error, if it has one, to another socket, where several sockets are a single one to a program.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn move_error(&self, to: &UdpSocket) -> io::Result<()> {
        if let Some(error) = self.0.part.call(|stack, id, _| stack.take_error(id))? {
            to.0.part.call(|stack, id, io| stack.udp_put_error(id, error, io))?;
        }
        Ok(())
    }

    /// Called when the socket's queue is down, which was reported, while others go on that are the same socket to a
    /// program. It is ready for nothing any more.
    pub fn waits_for_others(&self) {
        self.0.part.waits_for_others();
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; also if there is no peer or no route, or the datagram is too long.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send(id, data, io))
    }

    /// Sends a datagram to `to`; of several addresses it takes the first.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; also if there is no route, or the datagram is too long; the error of the
    /// operating system's resolver for a host name.
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let (open, to) = (&self.0, addresses::first(to)?);
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.udp_send_to(id, data, to, io))
    }

    /// Sends a datagram that is gathered from several buffers, or several datagrams at once, as `options` say, to `to`
    /// or to the peer (sendmsg).
    ///
    /// # Errors
    /// As for [`UdpSocket::send_to`]; `AddrNotAvailable` if [`SendOptions::from`] is no own address; `InvalidInput` if
    /// there are too many datagrams.
    pub fn send_msg(&self, data: &[IoSlice<'_>], to: Option<SocketAddr>, options: SendOptions) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| {
            stack.udp_send_with(id, data, to, options, io)
        })
    }

    /// Allows that consecutive datagrams of one flow are taken as one, of up to 64 KB (UDP_GRO).
    /// [`UdpSocket::recv_msg`] tells how long each of them is: all but the last have the first one's length.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_gro(id, on))?)
    }

    /// Sets whether ICMP errors for datagrams that the socket has sent are kept to be read, over IPv4 and over IPv6
    /// (IP_RECVERR, IPV6_RECVERR). This includes errors without a peer, and those that report an expired hop limit.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_receive_errors(&self, v4: bool, v6: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_receive_errors(id, [v4, v6]))?)
    }

    /// Takes the oldest error that was kept, with the part of its datagram that came back. It never waits
    /// (MSG_ERRQUEUE).
    ///
    /// # Errors
    /// `WouldBlock` if there is none; the socket is gone.
    pub fn recv_error(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<ReceivedError> {
        Ok(self.0.part.call(|stack, id, io| stack.udp_recv_error(id, buffers, io))?)
    }

    /// Sets how much may be there unread, in bytes of frame buffers (SO_RCVBUF). Datagrams beyond that are dropped and
    /// counted; those that are there stay.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_receive_buffer(id, bytes))?)
    }

    /// Sets how the socket heeds the MTU of the path, over IPv4 or over IPv6: whether longer datagrams leave in
    /// fragments or are refused, and whether routers may fragment others (IP_MTU_DISCOVER, IPV6_MTU_DISCOVER).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_path_mtu_discovery(&self, is_v6: bool, how: PathMtuDiscovery) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_set_path_mtu_discovery(id, is_v6, how))?)
    }

    /// The MTU of the path to the peer (IP_MTU), as far as routers have reported it.
    ///
    /// # Errors
    /// The socket has no peer, or is gone.
    pub fn path_mtu(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, io| stack.udp_path_mtu(id, io.now_ns))?)
    }

    /// The length of the datagram that is read next, in bytes; 0 if there is none (FIONREAD).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn unread(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.udp_unread(id))?)
    }

    /// Takes a datagram. Returns its bytes and its sender. What does not fit into `buffer` is lost, which only
    /// [`UdpSocket::recv_msg`] tells.
    ///
    /// # Errors
    /// `WouldBlock`, also for a socket that does not block and is shut down for reading; an error that a router or the
    /// peer has reported.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let take = |stack: &mut Stack, id, io: &mut Io<'_>| stack.udp_recv_from(id, buffer, io);
        self.receive(take).map(|received| (received.bytes, received.from))
    }

    /// Takes a datagram, or waits for one. When the socket is shut down for reading, the wait ends and returns nothing;
    /// a call that does not wait is not told of that (`__skb_wait_for_more_packets`).
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

    /// Takes a datagram from the peer that [`UdpSocket::connect`] has set, or from anybody if there is none.
    ///
    /// # Errors
    /// As for [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }

    /// As [`UdpSocket::recv_from`], without taking the datagram (MSG_PEEK).
    ///
    /// # Errors
    /// As for [`UdpSocket::recv_from`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_msg(&mut [IoSliceMut::new(buffer)], true)?;
        Ok((received.bytes, received.from))
    }

    /// As [`UdpSocket::recv`], without taking the datagram (MSG_PEEK).
    ///
    /// # Errors
    /// As for [`UdpSocket::recv_from`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buffer)?.0)
    }

    /// Takes a datagram into several buffers in turn, or only looks at it with `peek`. Returns all that is known of it,
    /// such as its length and the own address that it was sent to (recvmsg).
    ///
    /// # Errors
    /// As for [`UdpSocket::recv_from`].
    pub fn recv_msg(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<Received> {
        self.receive(|stack, id, io| stack.udp_recv_vectored(id, buffers, peek, io))
    }
}
