//! What a socket call can fail with, as Linux would say it.

use rustix::io::Errno;

/// Why a socket call failed. Each value stands for one Linux `errno`; [`NetError::errno`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetError {
    /// Nothing to read, no room to write, nobody to accept: wait for readiness (`EAGAIN`).
    WouldBlock,
    /// The id names no socket (any more), or one of another kind (`EBADF`).
    InvalidSocket,
    /// An argument is out of range or does not fit the socket's state (`EINVAL`).
    Invalid,
    /// The call does not exist for this kind of socket (`EOPNOTSUPP`).
    NotSupported,
    /// The socket has no peer (`ENOTCONN`).
    NotConnected,
    /// The socket has a peer already (`EISCONN`).
    AlreadyConnected,
    /// A datagram needs a destination (`EDESTADDRREQ`).
    DestinationRequired,
    /// The peer answered the SYN with a RST, or the datagram with a port unreachable (`ECONNREFUSED`).
    ConnectionRefused,
    /// The peer sent a RST (`ECONNRESET`).
    ConnectionReset,
    /// The connection ended before it was accepted (`ECONNABORTED`).
    ConnectionAborted,
    /// Writing is shut down, here or by a RST after the peer's FIN (`EPIPE`).
    BrokenPipe,
    /// The peer did not answer in time (`ETIMEDOUT`).
    TimedOut,
    /// No neighbour answers for the next hop, or a router said so (`EHOSTUNREACH`).
    HostUnreachable,
    /// There is no route to the address (`ENETUNREACH`).
    NetworkUnreachable,
    /// The local address and port are taken (`EADDRINUSE`).
    AddressInUse,
    /// The local address is not ours, or no ephemeral port is free (`EADDRNOTAVAIL`).
    AddressNotAvailable,
    /// A datagram exceeds what one frame carries; this stack does not fragment (`EMSGSIZE`).
    MessageTooLong,
    /// The shard holds as many sockets as it may (`ENOBUFS`).
    NoBuffers,
    /// The socket's queue was taken down by a panic above it (`ENETDOWN`).
    NetworkDown,
    /// A router or host asked for a protocol that the destination does not speak (`ENOPROTOOPT`).
    ProtocolUnreachable,
}

impl NetError {
    /// The Linux `errno`, positive.
    pub fn errno(self) -> i32 {
        let errno = match self {
            NetError::WouldBlock => Errno::AGAIN,
            NetError::InvalidSocket => Errno::BADF,
            NetError::Invalid => Errno::INVAL,
            NetError::NotSupported => Errno::OPNOTSUPP,
            NetError::NotConnected => Errno::NOTCONN,
            NetError::AlreadyConnected => Errno::ISCONN,
            NetError::DestinationRequired => Errno::DESTADDRREQ,
            NetError::ConnectionRefused => Errno::CONNREFUSED,
            NetError::ConnectionReset => Errno::CONNRESET,
            NetError::ConnectionAborted => Errno::CONNABORTED,
            NetError::BrokenPipe => Errno::PIPE,
            NetError::TimedOut => Errno::TIMEDOUT,
            NetError::HostUnreachable => Errno::HOSTUNREACH,
            NetError::NetworkUnreachable => Errno::NETUNREACH,
            NetError::AddressInUse => Errno::ADDRINUSE,
            NetError::AddressNotAvailable => Errno::ADDRNOTAVAIL,
            NetError::MessageTooLong => Errno::MSGSIZE,
            NetError::NoBuffers => Errno::NOBUFS,
            NetError::NetworkDown => Errno::NETDOWN,
            NetError::ProtocolUnreachable => Errno::NOPROTOOPT,
        };
        errno.raw_os_error()
    }
}

impl std::fmt::Display for NetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NetError::WouldBlock => "the call would block; wait for readiness",
            NetError::InvalidSocket => "no such socket",
            NetError::Invalid => "invalid argument for this socket",
            NetError::NotSupported => "not supported by this kind of socket",
            NetError::NotConnected => "the socket is not connected",
            NetError::AlreadyConnected => "the socket is connected already",
            NetError::DestinationRequired => "a destination address is required",
            NetError::ConnectionRefused => "connection refused by the peer",
            NetError::ConnectionReset => "connection reset by the peer",
            NetError::ConnectionAborted => "connection aborted before it was accepted",
            NetError::BrokenPipe => "the socket is shut down for writing",
            NetError::TimedOut => "the peer did not answer in time",
            NetError::HostUnreachable => "no neighbour answers for the next hop",
            NetError::NetworkUnreachable => "no route to the address; set a gateway",
            NetError::AddressInUse => "the local address is in use",
            NetError::AddressNotAvailable => "the local address is not available on this stack",
            NetError::MessageTooLong => "the datagram does not fit the MTU",
            NetError::NoBuffers => "the shard's socket table is full; raise connections_max",
            NetError::NetworkDown => {
                "the socket's network was dropped, or its queue taken down by a panic; make the network anew"
            }
            NetError::ProtocolUnreachable => "the destination does not speak the protocol",
        })
    }
}

impl std::error::Error for NetError {}

impl From<NetError> for std::io::Error {
    fn from(error: NetError) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_has_the_errno_and_the_kind() {
        let error = std::io::Error::from(NetError::WouldBlock);
        assert_eq!(error.raw_os_error(), Some(NetError::WouldBlock.errno()));
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(std::io::Error::from(NetError::ConnectionReset).kind(), std::io::ErrorKind::ConnectionReset);
    }
}
