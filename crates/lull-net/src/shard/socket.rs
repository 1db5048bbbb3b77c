//! Names and readiness of sockets, and what programs say of them.

pub use std::net::Shutdown;

use lull_nic::frame::Sender;

use super::wire::IpFields;

/// Names a socket of one stack. A stale id is an error wherever it is used, never another socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    // Two bits of kind, 30 of slab index.
    place: u32,
    generation: u32,
}

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketKind {
    /// A TCP connection, in whatever state.
    Tcp,
    /// A listening TCP socket.
    Listener,
    /// A UDP socket.
    Udp,
}

impl SocketId {
    pub(super) fn new(kind: SocketKind, index: u32, generation: u32) -> SocketId {
        SocketId { place: (kind as u32) << 30 | index, generation }
    }

    pub(super) fn index(self) -> u32 {
        self.place & 0x3fff_ffff
    }

    /// The place of the socket among those of its kind, for a caller's own table.
    pub(crate) fn slot(self) -> usize {
        self.index() as usize
    }

    pub(super) fn generation(self) -> u32 {
        self.generation
    }

    /// What kind of socket the id was made for.
    pub fn kind(self) -> SocketKind {
        match self.place >> 30 {
            0 => SocketKind::Tcp,
            1 => SocketKind::Listener,
            _ => SocketKind::Udp,
        }
    }

    /// The id as a number, for a caller's own tables. Never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    /// The id back from [`SocketId::to_bits`]. A number that came from elsewhere gives an id that names nothing.
    pub fn from_bits(bits: u64) -> SocketId {
        SocketId { place: bits as u32, generation: (bits >> 32) as u32 }
    }
}

bitflags::bitflags! {
    /// What `epoll` would say about a socket (`tcp_poll`, `udp_poll`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Ready: u8 {
        /// There is something to read, to accept, or the end of the stream (`EPOLLIN`).
        const READABLE = 1;
        /// There is room to write, or writing fails at once (`EPOLLOUT`).
        const WRITABLE = 2;
        /// Urgent data (`EPOLLPRI`). Never set: smoltcp ignores the urgent pointer.
        const PRI = 4;
        /// The peer will send no more, or reading is shut down (`EPOLLRDHUP`).
        const RDHUP = 8;
        /// Both directions are over (`EPOLLHUP`).
        const HUP = 16;
        /// An error waits to be taken (`EPOLLERR`).
        const ERR = 32;
        /// Stands beside `ERR`, which then says only that errors were kept for whoever asks for them (MSG_ERRQUEUE): no
        /// other call is told of them, or wakes for them. Nobody can wait for this bit.
        const KEPT = 64;
    }
}

impl Ready {
    /// Whether a call would do what it waits for, or say why not.
    #[inline]
    pub(crate) fn ends_wait_for(self, wants: Ready) -> bool {
        self.intersects(wants | Ready::HUP) || self & (Ready::ERR | Ready::KEPT) == Ready::ERR
    }
}

/// An edge: something became ready. One is given for every bit that was clear and is set, and for every arrival of new
/// data, connections or datagrams even if `READABLE` was set before (edge-triggered epoll needs that).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The socket.
    pub socket: SocketId,
    /// Everything that is ready now.
    pub ready: Ready,
    /// What fired: the part of `ready` that is new or was renewed. Never empty.
    pub edges: Ready,
}

/// The most connections that Linux lets wait to be accepted, whatever a program asks for (`net.core.somaxconn`, 5.4 and newer).
pub const SOMAXCONN: usize = 4096;

/// How a listener takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Established connections that may wait to be accepted (the argument of `listen`). As in Linux one more fits. By default
    /// [`SOMAXCONN`].
    pub backlog: usize,
    /// Connections in SYN-RECEIVED, at most, if that is less than the backlog, or than 64 where the backlog is
    /// (`tcp_max_syn_backlog`). Beyond it SYNs are answered by cookies ([`SynCookies`](super::SynCookies)).
    pub syn_backlog: usize,
    /// Other listeners may have the same address if they say the same (`SO_REUSEPORT`); the 4-tuple chooses.
    pub reuse_port: bool,
    /// A listener on `[::]` takes IPv6 only (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// Receive buffer of its connections, in bytes; 0: the stack's default.
    pub rx_buffer_bytes: usize,
    /// Transmit buffer of its connections, in bytes; 0: the stack's default.
    pub tx_buffer_bytes: usize,
    /// Its connections start without Nagle's algorithm (`TCP_NODELAY`, which Linux lets a child inherit).
    pub nodelay: bool,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            backlog: SOMAXCONN,
            syn_backlog: 1024,
            reuse_port: false,
            v6_only: false,
            rx_buffer_bytes: 0,
            tx_buffer_bytes: 0,
            nodelay: false,
        }
    }
}

/// How a connection is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Receive buffer, in bytes; 0: the stack's default.
    pub rx_buffer_bytes: usize,
    /// Transmit buffer, in bytes; 0: the stack's default.
    pub tx_buffer_bytes: usize,
    /// Without Nagle's algorithm (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Does not connect, but has the peer reset what it still has of a former connection between the same addresses.
    /// The peer answers the SYN by a challenge ACK (RFC 5961 section 4.2), we answer that by a reset (RFC 9293 section
    /// 3.10.7.3), and the attempt ends with [`NetError::ConnectionReset`](super::NetError::ConnectionReset). Only one
    /// SYN is sent, since another would be a new connection if the peer listens on that port.
    pub only_to_reset: bool,
}

/// How a UDP socket is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// Other sockets may have the same address if they say the same (`SO_REUSEPORT`); the 4-tuple chooses.
    pub reuse_port: bool,
    /// Other sockets may have the same address if they say the same (`SO_REUSEADDR`); the last of them hears everything.
    pub reuse_address: bool,
    /// A socket on `[::]` takes IPv6 only (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// What it may hold unread, in bytes of frame buffers; 0: the stack's default.
    pub rx_bytes: usize,
}

/// When an idle connection is probed (`SO_KEEPALIVE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe, in nanoseconds (`TCP_KEEPIDLE`).
    pub idle_ns: u64,
    /// Between probes, in nanoseconds (`TCP_KEEPINTVL`).
    pub interval_ns: u64,
    /// Unanswered probes before the connection is reset (`TCP_KEEPCNT`).
    pub probes: u32,
}

impl Default for Keepalive {
    /// Linux: 7200 s, 75 s, 9.
    fn default() -> Keepalive {
        Keepalive { idle_ns: 7_200_000_000_000, interval_ns: 75_000_000_000, probes: 9 }
    }
}

/// How a datagram is sent, where that differs from what its socket says (sendmsg).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// The own address that it comes from, if the socket is bound to none (IP_PKTINFO).
    pub from: Option<std::net::IpAddr>,
    /// The data is several datagrams of this many bytes each, of which the last may have fewer (UDP_SEGMENT): at most
    /// 128, and 64 KB in all. 0 means one datagram.
    pub each_bytes: u16,
    /// What its header says over IPv4, and over IPv6; `None` stands for what the socket says.
    pub ip: [IpFields; 2],
}

/// A datagram's measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes copied out.
    pub bytes: usize,
    /// Bytes that the datagram had. More than `bytes`: the rest is lost (`MSG_TRUNC`).
    pub datagram_bytes: usize,
    /// Who sent it.
    pub from: std::net::SocketAddr,
    /// The address that it was sent to: an own one, a broadcast address, or a group's.
    pub to: std::net::IpAddr,
    /// The own address that an answer comes from.
    pub own: std::net::IpAddr,
    /// It is several datagrams of one flow that were joined: how many bytes each has but the last, which may have fewer.
    pub each_bytes: Option<u16>,
    /// What its IP header said: DSCP and ECN (IP_RECVTOS, IPV6_RECVTCLASS).
    pub traffic_class: u8,
    /// What its IP header said: how many hops were left (IP_RECVTTL, IPV6_RECVHOPLIMIT).
    pub hop_limit: u8,
    /// How long ago the stack took it in, in nanoseconds (SO_TIMESTAMP).
    pub waited_ns: u64,
    /// There was no datagram because reading is shut down, and a caller that would have waited is told so.
    pub is_end: bool,
}

/// How a socket asked that its frames leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Egress {
    pub(super) pacing_bytes_per_s: u64,
    pub(super) priority: u8,
    /// Over IPv4, and over IPv6.
    pub(super) ip: [IpFields; 2],
}

impl Egress {
    #[inline]
    pub(super) fn sender(self, kind: SocketKind, index: u32, generation: u32) -> Sender {
        let Egress { pacing_bytes_per_s, priority, .. } = self;
        // Not 0, which is nobody.
        let id = (index << 1 | u32::from(kind == SocketKind::Udp)).wrapping_add(2);
        Sender { pacing_bytes_per_s, id, generation: generation as u16, priority }
    }
}
