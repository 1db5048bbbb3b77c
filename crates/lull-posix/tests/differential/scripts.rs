//! Programs that once made a difference.

use libc::c_int;

use super::ancillary::{Piece, Source};
use super::datagram_ops::Op as Datagrams;
use super::program::{At, Op, Pick, To};
use super::{alone, does_the_same};

const FIRST: Pick = Pick { nth: 0, any: false };
const NOBODY: To = To::Refused { in_kernel: false };

fn open(domain: c_int) -> Op {
    Op::Datagrams(Datagrams::Open { domain, at: At::Own, nonblocking: true, chooses: false })
}

/// One byte to a port where nobody is, or to nobody.
fn send(to: Option<To>, flags: c_int, control: Vec<Piece>) -> Op {
    Op::Datagrams(Datagrams::SendTo { pick: FIRST, to, sizes: vec![1], control, flags })
}

fn connect(to: To) -> Op {
    Op::Datagrams(Datagrams::Connect { pick: FIRST, to })
}

fn set(option: (c_int, c_int)) -> Op {
    Op::Datagrams(Datagrams::Set { pick: FIRST, option, value: 1 })
}

fn receive(room: usize, flags: c_int) -> Op {
    Op::Datagrams(Datagrams::RecvFrom { pick: FIRST, sizes: vec![100], room, flags })
}

fn int(value: c_int) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// What a traceroute reads beside the error: how many hops the answer had left, its class, and where it came to.
#[test]
fn an_error_is_told_with_the_header_of_its_message() {
    let _alone = alone();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        let mut ops = vec![open(domain), set((libc::SOL_IP, libc::IP_RECVERR))];
        for option in [libc::IP_RECVTTL, libc::IP_RECVTOS, libc::IP_PKTINFO] {
            ops.extend([
                set((libc::SOL_IP, option)),
                send(Some(NOBODY), 0, Vec::new()),
                receive(512, libc::MSG_ERRQUEUE),
            ]);
        }
        ops.extend([send(Some(NOBODY), 0, Vec::new()), receive(50, libc::MSG_ERRQUEUE)]);
        does_the_same(&ops, 1);
    }
}

#[test]
fn ancillary_data_are_judged_as_on_linux() {
    let _alone = alone();
    let wrong = Piece::Plain(libc::SOL_SOCKET, 99, int(1));
    let of_a_unix_socket = [
        Piece::Plain(libc::SOL_SOCKET, libc::SCM_RIGHTS, Vec::new()),
        Piece::Plain(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, vec![0; 12]),
    ];
    let of_the_other_family = [
        Piece::Plain(libc::SOL_IPV6, 99, int(1)),
        Piece::Plain(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, int(256)),
        Piece::Plain(libc::SOL_IPV6, libc::IPV6_PKTINFO, vec![0; 20]),
    ];
    for domain in [libc::AF_INET, libc::AF_INET6] {
        let mut ops =
            vec![open(domain), send(None, 0, vec![wrong.clone()]), send(Some(NOBODY), 0, vec![wrong.clone()])];
        for piece in of_a_unix_socket.iter().chain(&of_the_other_family) {
            ops.push(send(Some(NOBODY), 0, vec![piece.clone()]));
        }
        ops.push(send(Some(NOBODY), 0, vec![Piece::Source(Source::Foreign)]));
        does_the_same(&ops, 1);
    }
}

#[test]
fn ancillary_data_of_a_connection_are_judged_as_on_linux() {
    let _alone = alone();
    let send = |control| Op::SendMessage { pick: FIRST, sizes: vec![1], control, flags: libc::MSG_NOSIGNAL };
    let wrong = || vec![Piece::Wrong(libc::SOL_IP, libc::IP_TTL, int(1), 100)];
    let ops = [
        Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false },
        send(wrong()),
        send(vec![Piece::Plain(libc::SOL_SOCKET, 99, int(1))]),
        send(vec![Piece::Plain(libc::SOL_SOCKET, libc::SCM_RIGHTS, Vec::new())]),
        send(vec![Piece::Plain(libc::SOL_IP, libc::IP_TTL, int(0))]),
        Op::Shutdown { pick: FIRST, how: libc::SHUT_WR },
        send(wrong()),
    ];
    does_the_same(&ops, 1);
}

#[test]
fn a_message_tells_how_much_is_left_where_it_is_asked_to() {
    let _alone = alone();
    let receive = |size| Op::RecvMessage { pick: FIRST, sizes: vec![size], room: 512, flags: libc::MSG_DONTWAIT };
    let inq = (libc::IPPROTO_TCP, libc::TCP_INQ);
    let ops = [
        Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false },
        Op::SetOption { pick: FIRST, option: inq, value: 1, bytes: 4 },
        Op::PeerSend { nth: 0, size: 100 },
        receive(30),
        receive(70),
        receive(1),
        Op::PeerSend { nth: 0, size: 5 },
        Op::PeerShutdown { nth: 0, how: libc::SHUT_WR },
        receive(4),
        receive(1),
        receive(1),
    ];
    does_the_same(&ops, 1);
    let ops = [
        Op::Serve { domain: libc::AF_INET, at: At::Own, nonblocking: true, backlog: 4 },
        Op::SetOption { pick: FIRST, option: inq, value: 1, bytes: 4 },
        Op::Arrive { pick: FIRST, in_kernel: false, flags: libc::SOCK_NONBLOCK },
        Op::PeerSend { nth: 0, size: 100 },
        receive(30),
    ];
    does_the_same(&ops, 1);
}

#[test]
fn a_datagram_that_is_written_in_parts_begins_behind_the_error_that_waits() {
    let _alone = alone();
    let ops = [
        open(libc::AF_INET),
        connect(NOBODY),
        send(None, 0, Vec::new()),
        send(None, libc::MSG_MORE, Vec::new()),
        send(None, libc::MSG_MORE, Vec::new()),
    ];
    does_the_same(&ops, 1);
}

#[test]
fn a_datagram_socket_of_ipv6_has_peers_of_ipv4() {
    let _alone = alone();
    let send_much = Op::Datagrams(Datagrams::Send { pick: FIRST, sizes: vec![70_000], flags: None });
    let ops = [
        open(libc::AF_INET6),
        send_much,
        send(None, libc::MSG_OOB, Vec::new()),
        send(Some(To::Short), libc::MSG_OOB, Vec::new()),
        send(Some(To::WrongFamily), 0, Vec::new()),
        connect(To::WrongFamily),
        Op::Name { pick: FIRST, of_peer: true },
    ];
    does_the_same(&ops, 1);
    // One that is not bound yet.
    for op in [send(Some(To::WrongFamily), 0, Vec::new()), connect(To::WrongFamily)] {
        let socket = Op::Datagrams(Datagrams::Socket { domain: libc::AF_INET6, flags: libc::SOCK_NONBLOCK });
        does_the_same(&[socket, op.clone(), op], 1);
    }
}

#[test]
fn a_socket_of_ipv6_alone_reaches_no_ipv4() {
    let _alone = alone();
    let option = (libc::SOL_IPV6, libc::IPV6_V6ONLY);
    let set = || Op::SetOption { pick: FIRST, option, value: 1, bytes: 4 };
    let datagrams = || Op::Datagrams(Datagrams::Socket { domain: libc::AF_INET6, flags: libc::SOCK_NONBLOCK });
    does_the_same(&[datagrams(), set(), send(Some(NOBODY), 0, Vec::new())], 1);
    does_the_same(&[datagrams(), set(), connect(NOBODY)], 1);
    let listen = Op::PeerListen { in_kernel: false };
    let socket = || Op::Socket { domain: libc::AF_INET6, flags: libc::SOCK_NONBLOCK };
    does_the_same(&[listen, socket(), set(), Op::Connect { pick: FIRST, to: To::Listener(0) }], 1);
    // A connection stays what it is.
    let depart = Op::Depart { domain: libc::AF_INET6, nonblocking: true, in_kernel: false };
    does_the_same(&[depart, set()], 1);
}

#[test]
fn errors_of_a_connection_are_looked_for_before_urgent_data() {
    let _alone = alone();
    let depart = Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false };
    let receive = Op::Recv { pick: FIRST, sizes: vec![1], flags: Some(libc::MSG_OOB | libc::MSG_ERRQUEUE) };
    does_the_same(&[depart, receive], 1);
}

#[test]
fn recvmmsg_leaves_its_time_alone_where_there_is_no_message() {
    let _alone = alone();
    let receive = |timeout| {
        let flags = libc::MSG_DONTWAIT;
        Op::Datagrams(Datagrams::RecvMany { pick: FIRST, sizes: vec![9, 9], flags, timeout: Some(timeout) })
    };
    let ops = [
        open(libc::AF_INET),
        receive((3600, 0)),
        receive((0, 0)),
        Op::Datagrams(Datagrams::PeerOpen { in_kernel: false }),
        Op::Datagrams(Datagrams::PeerSend { nth: 0, pick: FIRST, size: 5 }),
        receive((3600, 0)),
    ];
    does_the_same(&ops, 1);
}

#[test]
fn a_listener_of_ipv6_that_listens_again_has_a_port() {
    let _alone = alone();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        let ops = [
            Op::Serve { domain, at: At::Own, nonblocking: true, backlog: 4 },
            Op::Shutdown { pick: FIRST, how: libc::SHUT_RD },
            Op::Listen { pick: FIRST, backlog: 4 },
            Op::Socket { domain, flags: 0 },
            Op::Bind { pick: FIRST, at: At::OwnPortOf(FIRST) },
        ];
        does_the_same(&ops, 1);
    }
}

#[test]
fn a_connection_says_before_whose_an_address_is_that_it_has_one_over_ipv6_alone() {
    let _alone = alone();
    let any = Pick { nth: 0, any: true };
    for domain in [libc::AF_INET, libc::AF_INET6] {
        let depart = Op::Depart { domain, nonblocking: true, in_kernel: false };
        let bind = |at| Op::Bind { pick: any, at };
        does_the_same(&[depart, bind(At::Foreign), bind(At::Own), bind(At::WrongFamily), bind(At::Short)], 1);
    }
}
