//! Random programs: what they are made of.

use libc::{c_int, c_uint, c_ulong};
use proptest::prelude::*;
use proptest::sample::select;

use super::ancillary::{self, Piece};
use super::datagram_ops;
use super::machine::SIOCATMARK;
use super::run::NEVER_OVER_S;

/// Which of the program's numbers: one of those that suit, or now and then any at all.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    pub nth: u8,
    pub any: bool,
}

/// Where a socket is bound.
#[derive(Clone, Copy, Debug)]
pub enum At {
    Own,
    Wildcard,
    Loopback,
    OwnPortOf(Pick),
    Foreign,
    WrongFamily,
    Short,
}

/// Where a socket is connected to.
#[derive(Clone, Copy, Debug)]
pub enum To {
    Listener(u8),
    Refused { in_kernel: bool },
    WrongFamily,
    Short,
}

/// How bytes are moved between a pipe or a file and a socket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Whether an offset is given for the socket, and for the pipe.
    Splice { flags: c_uint, offsets: [bool; 2] },
    /// With an offset, or without.
    Sendfile { at: Option<i64> },
}

/// Seconds and nanoseconds.
pub type Timeout = (i64, i64);

/// What is done: by a thread of the program, or by a peer.
#[derive(Clone, Debug)]
pub enum Op {
    /// `socket`, `bind` and `listen`.
    Serve {
        domain: c_int,
        at: At,
        nonblocking: bool,
        backlog: c_int,
    },
    /// A peer connects, and is accepted.
    Arrive {
        pick: Pick,
        in_kernel: bool,
        flags: c_int,
    },
    /// `socket` and `connect` to a peer that listens, which accepts.
    Depart {
        domain: c_int,
        nonblocking: bool,
        in_kernel: bool,
    },
    Socket {
        domain: c_int,
        flags: c_int,
    },
    Bind {
        pick: Pick,
        at: At,
    },
    Listen {
        pick: Pick,
        backlog: c_int,
    },
    Connect {
        pick: Pick,
        to: To,
    },
    Accept {
        pick: Pick,
        flags: c_int,
    },
    Recv {
        pick: Pick,
        sizes: Vec<usize>,
        flags: Option<c_int>,
    },
    Send {
        pick: Pick,
        sizes: Vec<usize>,
        flags: Option<c_int>,
    },
    /// `recvmsg` with a name and room for ancillary data.
    RecvMessage {
        pick: Pick,
        sizes: Vec<usize>,
        room: usize,
        flags: c_int,
    },
    /// `sendmsg` with ancillary data.
    SendMessage {
        pick: Pick,
        sizes: Vec<usize>,
        control: Vec<Piece>,
        flags: c_int,
    },
    /// `splice` into a pipe, or `sendfile`.
    MoveOut {
        pick: Pick,
        size: usize,
        way: Way,
    },
    /// `splice` out of a pipe, or `sendfile` of a file.
    MoveIn {
        pick: Pick,
        size: usize,
        way: Way,
    },
    /// An `ioctl` that tells of a socket's queues.
    Queue {
        pick: Pick,
        request: c_ulong,
    },
    /// `recvmmsg`.
    RecvMany {
        pick: Pick,
        sizes: Vec<usize>,
        flags: c_int,
        timeout: Option<Timeout>,
    },
    /// `sendmmsg`.
    SendMany {
        pick: Pick,
        sizes: Vec<usize>,
        flags: c_int,
    },
    Shutdown {
        pick: Pick,
        how: c_int,
    },
    Close {
        pick: Pick,
    },
    Dup {
        pick: Pick,
    },
    Dup2 {
        pick: Pick,
        to: Pick,
    },
    GetFlags {
        pick: Pick,
    },
    SetNonblocking {
        pick: Pick,
        on: bool,
        by_ioctl: bool,
    },
    SetOption {
        pick: Pick,
        option: (c_int, c_int),
        value: c_int,
        bytes: usize,
    },
    SetTimeout {
        pick: Pick,
        name: c_int,
        us: i64,
    },
    /// SO_LINGER.
    SetLinger {
        pick: Pick,
        on: bool,
        seconds: c_int,
    },
    GetOption {
        pick: Pick,
        option: (c_int, c_int),
    },
    Name {
        pick: Pick,
        of_peer: bool,
    },
    /// A signal to one of the threads, if it waits.
    Signal {
        restarts: bool,
    },
    EpollCreate,
    EpollCtl {
        context: Pick,
        pick: Pick,
        what: c_int,
        events: u32,
    },
    EpollWait {
        pick: Pick,
        timeout_ms: c_int,
    },
    Poll {
        members: Vec<(Pick, i16)>,
        timeout_ms: c_int,
        by_select: bool,
    },
    Eventfd,
    Fork {
        picks: Vec<Pick>,
    },
    PeerConnect {
        pick: Pick,
        in_kernel: bool,
    },
    PeerListen {
        in_kernel: bool,
    },
    PeerAccept {
        nth: u8,
    },
    PeerSend {
        nth: u8,
        size: usize,
    },
    PeerRecv {
        nth: u8,
        size: usize,
    },
    PeerShutdown {
        nth: u8,
        how: c_int,
    },
    PeerClose {
        nth: u8,
        reset: bool,
    },
    Datagrams(datagram_ops::Op),
}

/// One step of a program.
#[derive(Clone, Debug)]
pub struct Step {
    /// Shrinking leaves steps out.
    pub is_done: bool,
    /// The program's second thread does it.
    pub by_second: bool,
    pub op: Op,
}

/// Rule "room": bytes that may be unread in one direction.
pub const ROOM_BYTES: usize = lull_net::BUFFER_BYTES / 2 - 1;

/// Options of sockets: level and name. Without SO_PRIORITY, which IP_TOS changes on Linux.
pub const OPTIONS: [(c_int, c_int); 26] = [
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::SOL_IP, libc::IP_RECVERR),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_TCLASS),
    (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::SOL_IPV6, libc::IPV6_V6ONLY),
    (libc::SOL_SOCKET, libc::SO_ERROR),
    (libc::SOL_SOCKET, libc::SO_TYPE),
    (libc::SOL_SOCKET, libc::SO_DOMAIN),
    (libc::SOL_SOCKET, libc::SO_PROTOCOL),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_IP, libc::IP_TOS),
    (libc::SOL_IP, libc::IP_TTL),
];

pub fn pick() -> impl Strategy<Value = Pick> {
    (any::<u8>(), prop::bool::weighted(0.06)).prop_map(|(nth, any)| Pick { nth, any })
}

/// A family; of IPv6 a socket has addresses of IPv4 in IPv6's form.
pub fn domain() -> impl Strategy<Value = c_int> {
    prop_oneof![3 => Just(libc::AF_INET), 1 => Just(libc::AF_INET6)]
}

pub fn at() -> impl Strategy<Value = At> {
    prop_oneof![
        8 => Just(At::Own),
        2 => Just(At::Wildcard),
        1 => Just(At::Loopback),
        2 => pick().prop_map(At::OwnPortOf),
        1 => select(vec![At::Foreign, At::WrongFamily, At::Short]),
    ]
}

pub fn to() -> impl Strategy<Value = To> {
    prop_oneof![
        8 => any::<u8>().prop_map(To::Listener),
        2 => prop::bool::weighted(0.2).prop_map(|in_kernel| To::Refused { in_kernel }),
        1 => select(vec![To::WrongFamily, To::Short]),
    ]
}

pub fn kernels() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn backlog() -> impl Strategy<Value = c_int> {
    select(vec![0, 1, 4, 4, 16, -1])
}

pub fn new_flags() -> impl Strategy<Value = c_int> {
    select(vec![0, libc::SOCK_NONBLOCK, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC])
}

fn accept_flags() -> impl Strategy<Value = c_int> {
    prop_oneof![12 => new_flags(), 1 => Just(0x10)]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..400_usize, 2 => 1..3000_usize, 1 => Just(0_usize), 1 => Just(ROOM_BYTES)]
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![6 => size().prop_map(|size| vec![size]), 2 => prop::collection::vec(size(), 0..4)]
}

fn recv_flags() -> impl Strategy<Value = Option<c_int>> {
    prop_oneof![
        4 => Just(None),
        4 => select(vec![
            0,
            libc::MSG_DONTWAIT,
            libc::MSG_DONTWAIT,
            libc::MSG_PEEK,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
            libc::MSG_WAITALL,
            libc::MSG_WAITALL | libc::MSG_DONTWAIT,
            libc::MSG_TRUNC | libc::MSG_DONTWAIT,
            libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT,
            libc::MSG_OOB,
            libc::MSG_ERRQUEUE,
            libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT,
            libc::MSG_PEEK | libc::MSG_WAITALL,
            libc::MSG_TRUNC | libc::MSG_WAITALL,
            libc::MSG_TRUNC,
            libc::MSG_OOB | libc::MSG_PEEK,
            libc::MSG_OOB | libc::MSG_ERRQUEUE,
            libc::MSG_ERRQUEUE | libc::MSG_PEEK,
            libc::MSG_WAITALL | libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT,
        ]).prop_map(Some),
    ]
}

fn many_flags() -> impl Strategy<Value = c_int> {
    let waits = libc::MSG_DONTWAIT;
    select(vec![0, waits, waits, waits | libc::MSG_PEEK, libc::MSG_WAITFORONE, waits | libc::MSG_TRUNC])
}

fn way() -> impl Strategy<Value = Way> {
    const STRANGE: c_uint = 0x80;
    let flags = select(vec![0, 0, libc::SPLICE_F_NONBLOCK, libc::SPLICE_F_MOVE | libc::SPLICE_F_GIFT, STRANGE]);
    let offsets = prop_oneof![6 => Just([false; 2]), 1 => any::<[bool; 2]>()];
    let at = prop::option::of(select(vec![0_i64, 0, 1, 100, 100_000, -1]));
    prop_oneof![
        (flags, offsets).prop_map(|(flags, offsets)| Way::Splice { flags, offsets }),
        at.prop_map(|at| Way::Sendfile { at }),
    ]
}

/// `recvmmsg`'s: none, one that is over, one that is never over, and some that are no times.
pub fn many_timeout() -> impl Strategy<Value = Option<Timeout>> {
    prop_oneof![
        6 => Just(None),
        4 => select(vec![(0, 0), (3600, 0), (3600, 999_999_999), (-1, 0), (0, -1), (0, 1_000_000_000)]).prop_map(Some),
    ]
}

fn send_flags() -> impl Strategy<Value = Option<c_int>> {
    prop_oneof![
        4 => Just(None),
        4 => select(vec![
            0,
            libc::MSG_NOSIGNAL,
            libc::MSG_DONTWAIT,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            libc::MSG_EOR | libc::MSG_CONFIRM,
            libc::MSG_DONTROUTE,
            libc::MSG_MORE,
            libc::MSG_MORE | libc::MSG_DONTWAIT,
            libc::MSG_ZEROCOPY,
            libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC | libc::MSG_ERRQUEUE,
        ]).prop_map(Some),
    ]
}

fn how() -> impl Strategy<Value = c_int> {
    prop_oneof![9 => 0..3, 1 => select(vec![3, -1])]
}

fn timeout() -> impl Strategy<Value = c_int> {
    prop_oneof![10 => Just(0), 1 => 1..4, 4 => Just(-1)]
}

fn epoll_events() -> impl Strategy<Value = u32> {
    let bit = |bit: c_int, share: f64| prop::bool::weighted(share).prop_map(move |on| if on { bit as u32 } else { 0 });
    (
        bit(libc::EPOLLIN, 0.8),
        bit(libc::EPOLLOUT, 0.4),
        bit(libc::EPOLLRDHUP, 0.3),
        bit(libc::EPOLLET, 0.35),
        bit(libc::EPOLLONESHOT, 0.15),
        bit(libc::EPOLLEXCLUSIVE, 0.05),
        bit(libc::EPOLLPRI, 0.05),
    )
        .prop_map(|(a, b, c, d, e, f, g)| a | b | c | d | e | f | g)
}

fn poll_events() -> impl Strategy<Value = i16> {
    const OTHER_NAMES: i16 = libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLWRNORM | libc::POLLWRBAND;
    prop_oneof![
        5 => select(vec![0, libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLOUT, libc::POLLIN | libc::POLLRDHUP]),
        1 => select(vec![libc::POLLRDNORM, libc::POLLWRNORM, libc::POLLWRBAND, libc::POLLIN | libc::POLLPRI, OTHER_NAMES]),
    ]
}

fn files() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (domain(), at(), any::<bool>(), backlog())
            .prop_map(|(domain, at, nonblocking, backlog)| Op::Serve { domain, at, nonblocking, backlog }),
        12 => (pick(), kernels(), accept_flags()).prop_map(|(pick, in_kernel, flags)| Op::Arrive { pick, in_kernel, flags }),
        8 => (domain(), any::<bool>(), kernels())
            .prop_map(|(domain, nonblocking, in_kernel)| Op::Depart { domain, nonblocking, in_kernel }),
        3 => (domain(), new_flags()).prop_map(|(domain, flags)| Op::Socket { domain, flags }),
        3 => (pick(), at()).prop_map(|(pick, at)| Op::Bind { pick, at }),
        3 => (pick(), backlog()).prop_map(|(pick, backlog)| Op::Listen { pick, backlog }),
        4 => (pick(), to()).prop_map(|(pick, to)| Op::Connect { pick, to }),
        8 => (pick(), accept_flags()).prop_map(|(pick, flags)| Op::Accept { pick, flags }),
        6 => pick().prop_map(|pick| Op::Close { pick }),
        3 => pick().prop_map(|pick| Op::Dup { pick }),
        2 => (pick(), pick()).prop_map(|(pick, to)| Op::Dup2 { pick, to }),
        1 => Just(Op::Eventfd),
    ]
}

fn data() -> impl Strategy<Value = Op> {
    prop_oneof![
        14 => (pick(), sizes(), recv_flags()).prop_map(|(pick, sizes, flags)| Op::Recv { pick, sizes, flags }),
        14 => (pick(), sizes(), send_flags()).prop_map(|(pick, sizes, flags)| Op::Send { pick, sizes, flags }),
        3 => (pick(), sizes(), ancillary::room(), select(vec![0, libc::MSG_DONTWAIT, libc::MSG_PEEK, libc::MSG_CMSG_CLOEXEC]))
            .prop_map(|(pick, sizes, room, flags)| Op::RecvMessage { pick, sizes, room, flags }),
        3 => (pick(), sizes(), ancillary::pieces(), select(vec![0, libc::MSG_NOSIGNAL]))
            .prop_map(|(pick, sizes, control, flags)| Op::SendMessage { pick, sizes, control, flags }),
        3 => (pick(), 0..400_usize, way()).prop_map(|(pick, size, way)| Op::MoveOut { pick, size, way }),
        3 => (pick(), 0..400_usize, way()).prop_map(|(pick, size, way)| Op::MoveIn { pick, size, way }),
        2 => (pick(), select(vec![libc::FIONREAD, SIOCATMARK])).prop_map(|(pick, request)| Op::Queue { pick, request }),
        3 => (pick(), prop::collection::vec(size(), 0..4), many_flags(), many_timeout())
            .prop_map(|(pick, sizes, flags, timeout)| Op::RecvMany { pick, sizes, flags, timeout }),
        3 => (pick(), prop::collection::vec(size(), 0..4), select(vec![0, libc::MSG_NOSIGNAL, libc::MSG_DONTWAIT]))
            .prop_map(|(pick, sizes, flags)| Op::SendMany { pick, sizes, flags }),
        5 => (pick(), how()).prop_map(|(pick, how)| Op::Shutdown { pick, how }),
        2 => pick().prop_map(|pick| Op::GetFlags { pick }),
        4 => (pick(), any::<bool>(), any::<bool>())
            .prop_map(|(pick, on, by_ioctl)| Op::SetNonblocking { pick, on, by_ioctl }),
        4 => (pick(), select(OPTIONS.to_vec()), select(vec![-1, 0, 1, 1, 2, 60]), select(vec![4_usize, 4, 4, 4, 1, 8]))
            .prop_map(|(pick, option, value, bytes)| Op::SetOption { pick, option, value, bytes }),
        1 => (pick(), select(vec![libc::SO_RCVTIMEO, libc::SO_SNDTIMEO]), select(vec![0_i64, 1_000, 2_000, NEVER_OVER_S * 1_000_000]))
            .prop_map(|(pick, name, us)| Op::SetTimeout { pick, name, us }),
        2 => (pick(), any::<bool>(), select(vec![0, 0, 1, 60, -1]))
            .prop_map(|(pick, on, seconds)| Op::SetLinger { pick, on, seconds }),
        6 => (pick(), select(OPTIONS.to_vec())).prop_map(|(pick, option)| Op::GetOption { pick, option }),
        3 => (pick(), any::<bool>()).prop_map(|(pick, of_peer)| Op::Name { pick, of_peer }),
    ]
}

fn readiness() -> impl Strategy<Value = Op> {
    let add_or_else = || {
        prop_oneof![
            6 => Just(libc::EPOLL_CTL_ADD), 3 => Just(libc::EPOLL_CTL_MOD), 2 => Just(libc::EPOLL_CTL_DEL), 1 => Just(9)
        ]
    };
    prop_oneof![
        3 => prop::bool::weighted(0.7).prop_map(|restarts| Op::Signal { restarts }),
        3 => Just(Op::EpollCreate),
        12 => (pick(), pick(), add_or_else(), epoll_events())
            .prop_map(|(context, pick, what, events)| Op::EpollCtl { context, pick, what, events }),
        14 => (pick(), timeout()).prop_map(|(pick, timeout_ms)| Op::EpollWait { pick, timeout_ms }),
        9 => (prop::collection::vec((pick(), poll_events()), 0..5), timeout(), prop::bool::weighted(0.33))
            .prop_map(|(members, timeout_ms, by_select)| Op::Poll { members, timeout_ms, by_select }),
    ]
}

fn peers() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (pick(), kernels()).prop_map(|(pick, in_kernel)| Op::PeerConnect { pick, in_kernel }),
        2 => kernels().prop_map(|in_kernel| Op::PeerListen { in_kernel }),
        4 => any::<u8>().prop_map(|nth| Op::PeerAccept { nth }),
        16 => (any::<u8>(), size()).prop_map(|(nth, size)| Op::PeerSend { nth, size: size.max(1) }),
        8 => (any::<u8>(), size()).prop_map(|(nth, size)| Op::PeerRecv { nth, size: size.max(1) }),
        4 => (any::<u8>(), 0..3).prop_map(|(nth, how)| Op::PeerShutdown { nth, how }),
        3 => (any::<u8>(), prop::bool::weighted(0.3)).prop_map(|(nth, reset)| Op::PeerClose { nth, reset }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let fork = prop::collection::vec(pick(), 0..4).prop_map(|picks| Op::Fork { picks });
    let datagrams = datagram_ops::ops().prop_map(Op::Datagrams);
    prop_oneof![60 => files(), 56 => data(), 40 => readiness(), 46 => peers(), 50 => datagrams, 1 => fork]
}

/// A program of at least this many steps.
pub fn program() -> impl Strategy<Value = Vec<Step>> {
    let step = (prop::bool::weighted(1.0), prop::bool::weighted(0.2), op());
    prop::collection::vec(step.prop_map(|(is_done, by_second, op)| Step { is_done, by_second, op }), 50..90)
}
