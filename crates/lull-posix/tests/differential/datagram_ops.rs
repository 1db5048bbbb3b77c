//! What random programs do with datagram sockets.

use libc::{c_int, c_ulong};
use proptest::prelude::*;
use proptest::sample::select;

use super::ancillary::{self, OPTIONS, Piece};
use super::machine::{SIOCATMARK, SIOCOUTQNSD};
use super::program::{At, Pick, Timeout, To, at, domain, kernels, many_timeout, new_flags, pick, to};

/// The longest datagram that arrives: none is cut up (rule "room" of `datagrams`).
const DATAGRAM_BYTES: usize = 1400;

/// What is done with datagram sockets.
#[derive(Clone, Debug)]
pub enum Op {
    Socket {
        domain: c_int,
        flags: c_int,
    },
    /// `socket` and `bind`, to a port that the program chose or the kernel chooses.
    Open {
        domain: c_int,
        at: At,
        nonblocking: bool,
        chooses: bool,
    },
    Bind {
        pick: Pick,
        at: At,
    },
    Connect {
        pick: Pick,
        to: To,
    },
    /// `connect` to AF_UNSPEC.
    Disconnect {
        pick: Pick,
    },
    SendTo {
        pick: Pick,
        /// Nobody, or its peer, without.
        to: Option<To>,
        sizes: Vec<usize>,
        control: Vec<Piece>,
        flags: c_int,
    },
    Send {
        pick: Pick,
        sizes: Vec<usize>,
        flags: Option<c_int>,
    },
    SendMany {
        pick: Pick,
        sizes: Vec<usize>,
        flags: c_int,
    },
    RecvFrom {
        pick: Pick,
        sizes: Vec<usize>,
        /// For ancillary data.
        room: usize,
        flags: c_int,
    },
    /// An option that is a number.
    Set {
        pick: Pick,
        option: (c_int, c_int),
        value: c_int,
    },
    Get {
        pick: Pick,
        option: (c_int, c_int),
    },
    Recv {
        pick: Pick,
        sizes: Vec<usize>,
        flags: Option<c_int>,
    },
    RecvMany {
        pick: Pick,
        sizes: Vec<usize>,
        flags: c_int,
        timeout: Option<Timeout>,
    },
    /// An `ioctl` that tells of its queues.
    Queue {
        pick: Pick,
        request: c_ulong,
    },
    Shutdown {
        pick: Pick,
        how: c_int,
    },
    PeerOpen {
        in_kernel: bool,
    },
    PeerSend {
        nth: u8,
        pick: Pick,
        size: usize,
    },
    PeerRecv {
        nth: u8,
    },
    PeerClose {
        nth: u8,
    },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..300_usize, 1 => Just(0_usize), 1 => 1..=DATAGRAM_BYTES]
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => size().prop_map(|size| vec![size]),
        2 => prop::collection::vec(0..400_usize, 0..4),
        1 => Just(vec![70_000]),
    ]
}

fn many() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(size(), 0..4)
}

fn recv_flags() -> impl Strategy<Value = c_int> {
    let now = libc::MSG_DONTWAIT;
    select(vec![
        0,
        now,
        now,
        now | libc::MSG_PEEK,
        now | libc::MSG_TRUNC,
        libc::MSG_PEEK,
        libc::MSG_TRUNC | libc::MSG_PEEK | now,
        libc::MSG_ERRQUEUE,
        libc::MSG_ERRQUEUE,
        libc::MSG_OOB | now,
        libc::MSG_WAITALL | now,
        libc::MSG_CMSG_CLOEXEC | now,
    ])
}

fn send_flags() -> impl Strategy<Value = c_int> {
    select(vec![0, 0, 0, libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL, libc::MSG_OOB, libc::MSG_MORE])
}

pub fn ops() -> impl Strategy<Value = Op> {
    let optional = |flags: BoxedStrategy<c_int>| prop_oneof![1 => Just(None), 1 => flags.prop_map(Some)];
    prop_oneof![
        2 => (domain(), new_flags()).prop_map(|(domain, flags)| Op::Socket { domain, flags }),
        8 => (domain(), at(), any::<bool>(), any::<bool>())
            .prop_map(|(domain, at, nonblocking, chooses)| Op::Open { domain, at, nonblocking, chooses }),
        2 => (pick(), at()).prop_map(|(pick, at)| Op::Bind { pick, at }),
        6 => (pick(), to()).prop_map(|(pick, to)| Op::Connect { pick, to }),
        3 => pick().prop_map(|pick| Op::Disconnect { pick }),
        10 => (pick(), prop::option::weighted(0.8, to()), sizes(), ancillary::pieces(), send_flags())
            .prop_map(|(pick, to, sizes, control, flags)| Op::SendTo { pick, to, sizes, control, flags }),
        6 => (pick(), sizes(), optional(send_flags().boxed()))
            .prop_map(|(pick, sizes, flags)| Op::Send { pick, sizes, flags }),
        2 => (pick(), many(), select(vec![0, libc::MSG_DONTWAIT]))
            .prop_map(|(pick, sizes, flags)| Op::SendMany { pick, sizes, flags }),
        12 => (pick(), sizes(), ancillary::room(), recv_flags())
            .prop_map(|(pick, sizes, room, flags)| Op::RecvFrom { pick, sizes, room, flags }),
        6 => (pick(), select(OPTIONS.to_vec()), select(vec![1, 1, 1, 0, 0, 2, -1])).prop_map(|(pick, option, value)| {
            let times = if option == (libc::SOL_UDP, libc::UDP_SEGMENT) { ancillary::EACH_BYTES } else { 1 };
            Op::Set { pick, option, value: value * times }
        }),
        2 => (pick(), select(OPTIONS.to_vec())).prop_map(|(pick, option)| Op::Get { pick, option }),
        5 => (pick(), sizes(), optional(recv_flags().boxed()))
            .prop_map(|(pick, sizes, flags)| Op::Recv { pick, sizes, flags }),
        3 => (pick(), many(), prop_oneof![recv_flags(), Just(libc::MSG_WAITFORONE)], many_timeout())
            .prop_map(|(pick, sizes, flags, timeout)| Op::RecvMany { pick, sizes, flags, timeout }),
        2 => (pick(), select(vec![libc::FIONREAD, libc::FIONREAD, libc::TIOCOUTQ, SIOCOUTQNSD, SIOCATMARK]))
            .prop_map(|(pick, request)| Op::Queue { pick, request }),
        3 => (pick(), 0..3).prop_map(|(pick, how)| Op::Shutdown { pick, how }),
        3 => kernels().prop_map(|in_kernel| Op::PeerOpen { in_kernel }),
        16 => (any::<u8>(), pick(), size()).prop_map(|(nth, pick, size)| Op::PeerSend { nth, pick, size }),
        4 => any::<u8>().prop_map(|nth| Op::PeerRecv { nth }),
        1 => any::<u8>().prop_map(|nth| Op::PeerClose { nth }),
    ]
}
