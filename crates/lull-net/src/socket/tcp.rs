//! TCP connections.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lull_core::{SettingError, SocketBusy};

use super::addresses;
use super::open::{Open, Part, Source, ns_to_timeout, timeout_to_ns};
use super::options::socket_options;
use crate::network::Network;
use crate::queue::Queue;
use crate::shard::{ConnectOptions, IpFields, Keepalive, NetError, Ready, SendRoom, Shutdown, TcpInfo, Unaccepted};

/// A TCP connection. Clones are the same socket, which closes with the last of them.
#[derive(Clone)]
pub struct TcpStream(pub(super) Arc<Open>);
socket_options!(TcpStream);

impl TcpStream {
    /// Opens a connection and waits for it for as long as TCP tries. Of several addresses, each is tried in turn. The
    /// operating system resolves a host name; it is not resolved through `network`.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, no route or no free port, of the last address; the resolver's error for a name.
    pub fn connect(network: &Network, remote: impl ToSocketAddrs) -> io::Result<TcpStream> {
        addresses::each(remote, |remote| TcpStream::connect_until(network, remote, None))
    }

    /// Opens a connection and waits for it, for at most `timeout`.
    ///
    /// # Errors
    /// As for [`TcpStream::connect`]; `TimedOut` if the time is up, which ends the attempt; `InvalidInput` for a
    /// timeout of zero.
    pub fn connect_timeout(network: &Network, remote: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(NetError::Invalid.into());
        }
        // A time beyond the clock's range stands for ever.
        TcpStream::connect_until(network, remote, Instant::now().checked_add(timeout))
    }

    fn connect_until(network: &Network, remote: SocketAddr, until: Option<Instant>) -> io::Result<TcpStream> {
        let stream = TcpStream::start_connect(network, None, remote, ConnectOptions::default())?;
        if !stream.0.part.block(Ready::WRITABLE, until) {
            return Err(NetError::TimedOut.into());
        }
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    /// Starts to open a connection, from `local` if that is given. Later the socket becomes writable, or has an error.
    ///
    /// # Errors
    /// There is no route or no free port, or the address is not the network's.
    pub fn start_connect(
        network: &Network,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> io::Result<TcpStream> {
        let host = network.delivery();
        let connect = |queue: &Arc<Queue>| {
            queue.with(host, |inside, now_ns| {
                let id = inside.call(now_ns, |stack, io| stack.tcp_connect(local, remote, options, io))?;
                Ok::<Part, NetError>(Part::new(queue, host, id, inside))
            })
        };
        let part = match local.filter(|local| local.port() != 0) {
            Some(local) => network.queue_between(local, remote).and_then(connect),
            // If one shard has no port left, or is down, another may do.
            None => {
                let mut none = NetError::NetworkDown;
                let part = network.queues_in_turn().map(connect).find(|part| match part {
                    Err(NetError::NetworkDown) => false,
                    Err(NetError::AddressNotAvailable) => {
                        none = NetError::AddressNotAvailable;
                        false
                    }
                    _ => true,
                });
                part.unwrap_or(Err(none))
            }
        };
        Ok(TcpStream(Arc::new(Open::new(part?, SocketBusy::new(network.sysctl())))))
    }

    /// Leaves a connection that was accepted for another process, and that nobody has used, to a process that listens
    /// at its address now or soon ([`Network::handing_on`]). It is closed here.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn leave(&self, was: Unaccepted) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.tcp_leave(id, was, io))?)
    }

    /// Reads into several buffers in turn.
    ///
    /// # Errors
    /// `WouldBlock`, or the error that ended the connection.
    pub fn recv_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| stack.tcp_recv_vectored(id, buffers, io))
    }

    /// Reads data that have come.
    ///
    /// # Errors
    /// `WouldBlock`, or the error that ended the connection.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, io| stack.tcp_recv(id, buffer, io))
    }

    /// Reads data without taking them (MSG_PEEK).
    ///
    /// # Errors
    /// `WouldBlock`, or the error that ended the connection.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::READABLE, &open.read_timeout_ns, |stack, id, _| stack.tcp_peek(id, buffer))
    }

    /// Writes as much as there is room for, which is at least one byte.
    ///
    /// # Errors
    /// `WouldBlock`, `BrokenPipe`, or the error that ended the connection.
    #[inline]
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.tcp_send(id, data, io))
    }

    /// Writes from several buffers at once. If they fit one segment, they leave in one.
    ///
    /// # Errors
    /// As for [`TcpStream::send`].
    pub fn send_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.tcp_send_vectored(id, data, io))
    }

    /// As [`TcpStream::send_vectored`], but with more to follow: data that fill no segment wait for it (MSG_MORE).
    ///
    /// # Errors
    /// As for [`TcpStream::send`].
    pub fn send_more(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let open = &self.0;
        open.retry(Ready::WRITABLE, &open.write_timeout_ns, |stack, id, io| stack.tcp_send_more(id, data, io))
    }

    /// Makes data that fill no segment wait until this is turned off (TCP_CORK), for 200 ms at most.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_cork(id, cork, io))?)
    }

    /// Makes the socket readable only when it has this many bytes (SO_RCVLOWAT), which may be half of the receive
    /// buffer at most. Fewer bytes can be read nevertheless.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_low_water(&self, bytes: u32) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_low_water(id, bytes, io))?)
    }

    /// Turns Nagle's algorithm off or on (TCP_NODELAY).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_nodelay(id, nodelay, io))?)
    }

    /// Whether Nagle's algorithm is off (TCP_NODELAY).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.0.part.call(|stack, id, _| stack.nodelay(id))?)
    }

    /// Sets SO_KEEPALIVE with its times; `None` turns it off.
    ///
    /// # Errors
    /// `InvalidInput` for a time or count of zero.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_keepalive(id, keepalive, io))?)
    }

    /// Sets how long data may stay unacknowledged (TCP_USER_TIMEOUT); `None` stands for the stack's default.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout_ns = timeout.map(|timeout| timeout_to_ns(Some(timeout))).transpose()?;
        Ok(self.0.part.call(|stack, id, io| stack.set_user_timeout(id, timeout_ns, io))?)
    }

    /// Sets whether closing resets the connection (SO_LINGER with a time of zero).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_reset_on_close(&self, reset: bool) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, _| stack.set_reset_on_close(id, reset))?)
    }

    /// The state of the connection (TCP_INFO).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn info(&self) -> io::Result<TcpInfo> {
        Ok(self.0.part.call(|stack, id, io| stack.tcp_info(id, io.now_ns))?)
    }

    /// How many bytes have come and were not read (FIONREAD).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn unread(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.tcp_unread(id))?)
    }

    /// How many bytes were written that the peer has not acknowledged (SIOCOUTQ).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.tcp_unacknowledged(id))?)
    }

    /// How many bytes were written that were never sent (SIOCOUTQNSD).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn unsent(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.tcp_unsent(id))?)
    }

    /// Sets the size of the receive buffer (SO_RCVBUF), which changes when all data were read that have come. It no
    /// longer grows by itself.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_receive_buffer(id, bytes, io))?)
    }

    /// Sets how much may be written that is not acknowledged, or not sent (SO_SNDBUF, TCP_NOTSENT_LOWAT).
    ///
    /// # Errors
    /// The socket is gone.
    pub fn set_send_room(&self, room: SendRoom) -> io::Result<()> {
        Ok(self.0.part.call(|stack, id, io| stack.set_send_room(id, room, io))?)
    }

    /// How many bytes may be written now. If it is 0, whoever waits until it is writable is told of an edge when there
    /// is room.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn send_room(&self) -> io::Result<usize> {
        Ok(self.0.part.call(|stack, id, _| stack.tcp_room(id))?)
    }

    /// The present sizes of the receive buffer and the transmit buffer, in bytes.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn buffer_sizes(&self) -> io::Result<(usize, usize)> {
        Ok(self.0.part.call(|stack, id, _| stack.buffer_sizes(id))?)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_vectored(buffers)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
