//! What a socket call can fail with, as Linux would say it.

use rustix::io::Errno;

/// Why a socket call failed. Each value stands for one Linux `errno`; [`NetError::errno`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// Nothing to read, no room to write, nobody to accept: wait for readiness (`EAGAIN`).
    #[error("the call would block; wait for readiness")]
    WouldBlock,
    /// The id names no socket (any more), or one of another kind (`EBADF`).
    #[error("no such socket")]
    InvalidSocket,
    /// An argument is out of range or does not fit the socket's state (`EINVAL`).
    #[error("invalid argument for this socket")]
    Invalid,
    /// The call does not exist for this kind of socket, or a router said that a source route failed (`EOPNOTSUPP`).
    #[error("not supported by this kind of socket")]
    NotSupported,
    /// The socket has no peer (`ENOTCONN`).
    #[error("the socket is not connected")]
    NotConnected,
    /// The socket has a peer already (`EISCONN`).
    #[error("the socket is connected already")]
    AlreadyConnected,
    /// A datagram needs a destination (`EDESTADDRREQ`).
    #[error("a destination address is required")]
    DestinationRequired,
    /// The peer answered the SYN with a RST, or the datagram with a port unreachable (`ECONNREFUSED`).
    #[error("connection refused by the peer")]
    ConnectionRefused,
    /// The peer sent a RST (`ECONNRESET`).
    #[error("connection reset by the peer")]
    ConnectionReset,
    /// The connection ended before it was accepted (`ECONNABORTED`).
    #[error("connection aborted before it was accepted")]
    ConnectionAborted,
    /// Writing is shut down, here or by a RST after the peer's FIN (`EPIPE`).
    #[error("the socket is shut down for writing")]
    BrokenPipe,
    /// The peer did not answer in time (`ETIMEDOUT`).
    #[error("the peer did not answer in time")]
    TimedOut,
    /// No neighbour answers for the next hop, or a router said so (`EHOSTUNREACH`).
    #[error("no neighbour answers for the next hop")]
    HostUnreachable,
    /// There is no route to the address (`ENETUNREACH`).
    #[error("no route to the address; set a gateway")]
    NetworkUnreachable,
    /// The local address and port are taken (`EADDRINUSE`).
    #[error("the local address is in use")]
    AddressInUse,
    /// The local address is not ours, or no ephemeral port is free (`EADDRNOTAVAIL`).
    #[error("the local address is not available on this stack")]
    AddressNotAvailable,
    /// A datagram exceeds 64 KB, or the path's MTU where its socket does not let it leave in fragments (`EMSGSIZE`).
    #[error("the datagram is longer than 64 KB, or than the path's MTU where it may not leave in fragments")]
    MessageTooLong,
    /// The shard holds as many sockets as it may (`ENOBUFS`).
    #[error("the shard's socket table is full; raise connections_max")]
    NoBuffers,
    /// The socket's queue was taken down by a panic above it (`ENETDOWN`).
    #[error("the socket's network was dropped, or its queue taken down by a panic; make the network anew")]
    NetworkDown,
    /// A router or host asked for a protocol that the destination does not speak (`ENOPROTOOPT`).
    #[error("the destination does not speak the protocol")]
    ProtocolUnreachable,
    /// A router said that its rules forbid it (`EACCES`).
    #[error("a router's rules forbid it")]
    Prohibited,
    /// A header of the packet was wrong to a router or the destination (`EPROTO`).
    #[error("a header of the packet was refused on its way")]
    ProtocolError,
    /// A router said that the destination is down (`EHOSTDOWN`).
    #[error("the destination is down")]
    HostDown,
    /// A router said that the own station is isolated (`ENONET`).
    #[error("a router says that this station is isolated")]
    Isolated,
    /// No program is attached that could be detached (`ENOENT`).
    #[error("no program is attached to the socket's reuseport group")]
    NoProgram,
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
            NetError::Prohibited => Errno::ACCESS,
            NetError::ProtocolError => Errno::PROTO,
            NetError::HostDown => Errno::HOSTDOWN,
            NetError::Isolated => Errno::NONET,
            NetError::NoProgram => Errno::NOENT,
        };
        errno.raw_os_error()
    }
}

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
