//! Results that random programs on the kernel and on lull showed to differ once, each by itself.

mod world;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP,
    c_int,
};
use lull_net::{Ready, Shutdown, TcpStream};
use lull_posix::{Errno, epoll, files, flags, is_lull, memory, socket};
use world::*;

const fn error<T>(number: c_int) -> Result<T, Errno> {
    Err(Errno::new(number))
}

const PEEK_NOW: c_int = libc::MSG_PEEK | libc::MSG_DONTWAIT;

fn context() -> c_int {
    peers();
    epoll::epoll_create(0).unwrap()
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) {
    // SAFETY: an int, and its size.
    let set = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) };
    assert_eq!(set, 0);
}

fn get(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = [0; 4];
    socket::getsockopt(fd, level, name, &mut value).map(|length| {
        assert_eq!(length, Ok(4));
        c_int::from_ne_bytes(value)
    })
}

fn accepted(fd: c_int) -> Result<c_int, Errno> {
    socket::accept(fd, 0).map(|accepted| accepted.fd)
}

#[test]
fn a_socket_with_a_peer_in_the_kernel_is_not_connected_to_one_of_lulls() {
    let listener = peer_listener();
    let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = tcp();
    socket::connect(fd, &bytes(&at.local_addr().unwrap().to_string())).unwrap();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    assert_eq!(socket::connect(fd, &to), error(libc::EISCONN));
    assert!(!is_lull(fd));
    close(fd);
}

#[test]
fn who_asks_for_nothing_gets_it_by_read_and_waits_by_recv() {
    let (fd, mut peer) = connected();
    let nothing = |flags| socket::recv(fd, &mut [], socket::Receive { flags });
    assert_eq!(socket::read(fd, &mut []), Ok(0));
    assert_eq!(socket::read(fd, &mut [IoSliceMut::new(&mut [])]), Ok(0));
    assert_eq!(nothing(libc::MSG_DONTWAIT), Err(WOULD_BLOCK));
    peer.write_all(b"x").unwrap();
    until("data", || nothing(libc::MSG_DONTWAIT) == Ok(0));
    assert_eq!(recv(fd, 0).unwrap(), b"x", "it is there still");
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(socket::writev(fd, &[IoSlice::new(&[])]), Ok(0));
    assert_eq!(send(fd, b"", libc::MSG_NOSIGNAL), error(libc::EPIPE), "but sending it says what is the matter");
    close(fd);
}

#[test]
fn a_context_is_no_socket_and_no_file_that_is_read() {
    let epfd = context();
    let mut buffer = [0; 4];
    assert_eq!(socket::read(epfd, &mut [IoSliceMut::new(&mut buffer)]), error(libc::EINVAL));
    assert_eq!(recv(epfd, 0), error(libc::ENOTSOCK));
    assert_eq!(send(epfd, b"x", 0), error(libc::ENOTSOCK));
    assert_eq!(socket::shutdown(epfd, 9), error(libc::ENOTSOCK), "whatever it is asked for");
    assert_eq!(
        socket::accept(epfd, 0x10).map(|accepted| accepted.fd),
        error(libc::EINVAL),
        "flags are looked at first"
    );
    close(epfd);
}

#[test]
fn a_connection_is_not_bound_and_neither_is_what_stands_for_it() {
    let (fd, _peer) = connected();
    assert_eq!(socket::bind(fd, &bytes("0.0.0.0:0")), error(libc::EINVAL));
    assert_eq!(
        socket::bind(fd, &bytes("192.0.2.1:0")),
        error(libc::EADDRNOTAVAIL),
        "what is wrong with it comes first"
    );
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the placeholder's address, and its size.
    assert_eq!(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) }, 0);
    assert_eq!(lull_posix::address::parse(&name).unwrap().port(), 0);
    close(fd);
}

#[test]
fn a_second_listen_changes_the_backlog() {
    let fd = tcp();
    peers();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 1).unwrap();
    socket::listen(fd, 16).unwrap();
    nonblocking(fd);
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the address, and its size.
    assert_eq!(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) }, 0);
    let at = lull_posix::address::parse(&name).unwrap();
    let waiting: Vec<TcpStream> = (0..6).map(|_| TcpStream::connect(peers(), at).unwrap()).collect();
    let mut got = Vec::new();
    until("all of them, none by a second SYN", || {
        got.extend(accepted(fd));
        got.len() == waiting.len()
    });
    let resent =
        |network: &lull_net::Network| network.stack_counters().iter().map(|c| c.drop_backlog_full).sum::<u64>();
    assert_eq!(resent(&lull_posix::engine::running().unwrap().network), 0);
    got.into_iter().chain([fd]).for_each(close);
}

#[test]
fn a_listener_that_is_shut_down_is_a_socket_as_before() {
    let (fd, at) = listener();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    let waiting = TcpStream::connect(peers(), at).unwrap();
    until("the connection", || wait(epfd, 8, LOST) == [(fd, EPOLLIN)]);
    nonblocking(fd);
    socket::shutdown(fd, libc::SHUT_RDWR).unwrap();
    until("its reset", || waiting.ready().contains(Ready::ERR));
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLHUP)]);
    assert_eq!(accepted(fd), error(libc::EINVAL));
    assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Some(0));
    assert_eq!(socket::shutdown(fd, libc::SHUT_RD), error(libc::ENOTCONN), "once");
    // Its port was given by the kernel, so it is free again.
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert!(!is_lull(fd));
    assert_ne!(flags::fcntl(fd, libc::F_GETFL, 0), Some(Ok(libc::O_RDWR)), "it is the kernel's to ask");
    // SAFETY: numbers only.
    assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK, 0, "it does not block, as before");
    socket::listen(fd, 4).unwrap();
    assert!(is_lull(fd));
    close(epfd);
    close(fd);
}

#[test]
fn behind_the_end_of_a_stream_there_is_no_error_for_a_reader() {
    let (fd, peer) = connected();
    peer.shutdown(Shutdown::Write).unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLRDHUP).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLRDHUP)]);
    peer.set_reset_on_close(true).unwrap();
    drop(peer);
    until("the reset", || wait(epfd, 8, LOST) == [(fd, EPOLLRDHUP | EPOLLHUP | EPOLLERR)]);
    assert_eq!(recv(fd, 0), Ok(Vec::new()));
    assert_eq!(send(fd, b"x", libc::MSG_NOSIGNAL), error(libc::EPIPE), "in CLOSE-WAIT a reset is a broken pipe");
    close(epfd);
    close(fd);
}

#[test]
fn an_error_behind_what_msg_waitall_has_read_is_the_next_calls() {
    let (fd, mut peer) = connected();
    peer.write_all(b"some").unwrap();
    peer.set_reset_on_close(true).unwrap();
    drop(peer);
    until("the reset", || is_over(fd));
    assert_eq!(recv(fd, libc::MSG_WAITALL).unwrap(), b"some");
    assert_eq!(recv(fd, 0), error(libc::ECONNRESET));
    close(fd);
}

#[test]
fn data_for_a_socket_that_is_shut_down_both_ways_resets_the_connection() {
    let (fd, mut peer) = connected();
    socket::shutdown(fd, libc::SHUT_RDWR).unwrap();
    peer.write_all(b"x").unwrap();
    until("the peer's reset", || peer.ready().contains(Ready::ERR));
    assert!(peer.read(&mut [0]).is_ok_and(|count| count == 0), "after the end of the stream");
    assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ERROR), Some(libc::ECONNRESET));
    close(fd);
}

#[test]
fn a_number_that_stands_in_poll_twice_is_waited_for_with_both_requests() {
    let (fd, mut peer) = connected();
    let polls = asleep(move || {
        let one = |events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [one(0), one(libc::POLLIN)];
        let start = std::time::Instant::now();
        assert_eq!(lull_posix::poll::poll(&mut fds, Some(LOST)), Ok(1));
        assert!(start.elapsed() < LOST, "it looks once more when the time is over");
        fds.map(|polled| polled.revents)
    });
    peer.write_all(b"x").unwrap();
    assert_eq!(polls.join().unwrap(), [0, libc::POLLIN]);
    close(fd);
}

#[test]
fn exclusive_members_are_refused_what_linux_refuses_them() {
    let (fd, _peer) = connected();
    let epfd = context();
    assert_eq!(ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLEXCLUSIVE), error(libc::EINVAL), "before it is looked for");
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLPRI | EPOLLEXCLUSIVE), error(libc::EINVAL));
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE), Ok(()));
    close(epfd);
    close(fd);
}

#[test]
fn a_wait_without_time_sees_what_has_just_become_ready_in_the_kernel() {
    let (fd, _peer) = connected();
    let (mut far, near) = UnixStream::pair().unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    for _ in 0..100 {
        assert_eq!(wait(epfd, 8, NOW), []);
        far.write_all(b"x").unwrap();
        assert_eq!(wait(epfd, 8, NOW), [(near.as_raw_fd(), EPOLLIN)]);
        assert_eq!((&near).read(&mut [0; 8]).unwrap(), 1);
    }
    close(epfd);
    close(fd);
}

#[test]
fn the_end_of_a_stream_is_an_edge_even_if_there_was_something_to_read() {
    let (fd, mut peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    peer.write_all(b"unread").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    close(epfd);
    close(fd);
}

/// `sock_def_readable` names EPOLLPRI beside EPOLLIN, so that an arrival has a context look again at whoever asked for that.
#[test]
fn what_arrives_is_an_edge_for_who_waits_for_urgent_data() {
    for (events, again) in [(EPOLLOUT, false), (EPOLLOUT | EPOLLPRI, true)] {
        let (fd, mut peer) = connected();
        let epfd = context();
        ctl(epfd, EPOLL_CTL_ADD, fd, events | EPOLLET).unwrap();
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)]);
        peer.write_all(b"arrives").unwrap();
        let mut unread = 0;
        until("it arrives", || ioctl(fd, libc::FIONREAD, &mut unread).is_some() && unread == 7);
        let expected: &[(c_int, c_int)] = if again { &[(fd, EPOLLOUT)] } else { &[] };
        assert_eq!(wait(epfd, 8, NOW), expected);
        close(epfd);
        close(fd);
    }
}

/// So haproxy pauses a frontend, and resumes it.
#[test]
fn a_listener_that_is_connected_to_nobody_listens_no_more_until_it_is_told_to_again() {
    let (fd, _) = listener_at(OWN);
    nonblocking(fd);
    let nobody = (libc::AF_UNSPEC as u16).to_ne_bytes();
    let unspecified = [&nobody[..], &[0; 14]].concat();
    for _ in 0..2 {
        assert_eq!(accepted(fd), error(libc::EAGAIN), "it asks for connections");
        socket::connect(fd, &unspecified).unwrap();
        assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Some(0));
        assert_eq!(accepted(fd), error(libc::EINVAL));
        assert_eq!(TcpStream::connect(peers(), at(fd)).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        socket::listen(fd, 8).unwrap();
        assert_eq!(accepted(fd), error(libc::EAGAIN), "it asks for connections again");
        // The kernel had chosen its port, and chooses another one.
        let _peer = TcpStream::connect(peers(), at(fd)).unwrap();
        let mut next = error(libc::EAGAIN);
        until("the connection", || {
            next = accepted(fd);
            next.is_ok()
        });
        close(next.unwrap());
    }
    close(fd);
}

#[test]
fn a_datagram_may_go_to_an_ipv4_address_whose_family_is_not_said() {
    let (from, to) = (udp(), udp());
    for fd in [from, to] {
        socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    }
    let mut address = bytes(&at(to).to_string());
    address[..2].copy_from_slice(&(libc::AF_UNSPEC as u16).to_ne_bytes());
    let sent = socket::send_message(from, &[IoSlice::new(b"hello")], &address, &[], socket::Send { flags: 0 });
    assert_eq!(sent, Ok(5));
    assert_eq!(recv(to, 0).unwrap(), b"hello");
    close(from);
    close(to);
}

#[test]
fn a_message_of_too_many_buffers_is_too_long_and_a_call_with_them_is_not_valid() {
    let (fd, _peer) = connected();
    let mut byte = 0_u8;
    let buffer = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut buffers = vec![buffer; 1025];
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers.as_mut_ptr(), buffers.len() as _);
    // SAFETY: the message and its buffers are here.
    unsafe {
        assert_eq!(socket::sendmsg(fd, &message, 0), error(libc::EMSGSIZE));
        assert_eq!(socket::recvmsg(fd, &mut message, libc::MSG_DONTWAIT), error(libc::EMSGSIZE));
        let written = memory::with_slices(buffers.as_ptr(), buffers.len(), |buffers| socket::writev(fd, buffers));
        assert_eq!(written, error(libc::EINVAL));
    }
    close(fd);
}

/// Who looks again and again sees a segment that arrives meanwhile as a whole, and never its first byte alone.
#[test]
fn a_segment_that_arrives_during_a_peek_is_not_cut_off() {
    let (fd, mut peer) = connected();
    let writer = std::thread::spawn(move || {
        let mut answer = [0];
        for _ in 0..500 {
            peer.write_all(b"hello").unwrap();
            peer.read_exact(&mut answer).unwrap();
        }
    });
    for round in 0..500 {
        let mut room = [0_u8; 8];
        let seen = loop {
            match socket::recv(fd, &mut [IoSliceMut::new(&mut room)], socket::Receive { flags: PEEK_NOW }) {
                Err(why) => assert_eq!(why, Errno::new(libc::EAGAIN)),
                Ok(count) => break count,
            }
        };
        assert_eq!(seen, 5, "round {round}: {room:?}");
        assert_eq!(recv(fd, 0).unwrap(), b"hello");
        assert_eq!(send(fd, b".", 0), Ok(1));
    }
    writer.join().unwrap();
    close(fd);
}

/// What is peeked at is looked for no further than there is something, however much is asked for.
#[test]
fn as_much_as_there_ever_is_may_be_peeked_at() {
    let (fd, mut peer) = connected();
    peer.write_all(b"hello").unwrap();
    let mut room = [0_u8; 5];
    // SAFETY: no more than is there is written.
    let all = unsafe { memory::bytes_mut(room.as_mut_ptr().cast(), usize::MAX) };
    assert_eq!(all.len(), 0x7fff_f000, "the most of a call");
    let peeked = socket::recv(fd, &mut [IoSliceMut::new(all)], socket::Receive { flags: libc::MSG_PEEK });
    assert_eq!((peeked, &room), (Ok(5), b"hello"));
    close(fd);
}

#[test]
fn a_shutdown_of_ones_own_is_an_edge() {
    let (fd, _peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    socket::shutdown(fd, libc::SHUT_RD).unwrap();
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLOUT)]);
    close(epfd);
    close(fd);
}

#[test]
fn every_shutdown_of_a_udp_socket_is_an_edge_though_it_has_no_peer() {
    let (epfd, fd) = (context(), udp());
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert!(is_lull(fd));
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    for _ in 0..2 {
        assert_eq!(wait(epfd, 8, NOW), []);
        assert_eq!(socket::shutdown(fd, libc::SHUT_RD), error(libc::ENOTCONN));
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    }
    close(epfd);
    close(fd);
}

#[test]
fn the_end_of_a_stream_is_an_edge_of_everything_that_is_ready() {
    let (fd, peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)]);
    close(epfd);
    close(fd);
}

#[test]
fn a_shutdown_that_ends_nothing_wakes_who_watches_a_listener() {
    let (fd, at) = listener();
    let _peer = TcpStream::connect(peers(), at).unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)]);
    close(epfd);
    close(fd);
}

#[test]
fn a_socket_that_is_bound_says_so_before_it_looks_at_the_port() {
    let (listening, at) = listener();
    let fd = tcp();
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert_eq!(socket::bind(fd, &bytes(&at.to_string())), error(libc::EINVAL));
    [listening, fd].into_iter().for_each(close);
}

#[test]
fn a_socket_that_was_refused_has_lost_the_port_that_was_chosen_for_it() {
    let listener = peer_listener();
    let refused = bytes(&listener.local_addr().unwrap().to_string());
    drop(listener);
    let fd = tcp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert_eq!(socket::connect(fd, &refused), error(libc::ECONNREFUSED));
    assert_eq!(socket::bind(fd, &bytes(&format!("{OWN}:0"))), Ok(()), "it is not bound any more");
    close(fd);
}

/// A number that was an eventfd's is a socket's that becomes lull's while a thread waits.
#[test]
fn a_number_that_comes_back_ends_no_wait() {
    let epfd = context();
    // SAFETY: numbers only.
    let eventfd = unsafe { libc::eventfd(0, 0) };
    files::forget(eventfd);
    ctl(epfd, EPOLL_CTL_ADD, eventfd, EPOLLIN).unwrap();
    let fd = tcp();
    files::duplicate_to(fd, eventfd, 0).unwrap();
    close(fd);
    let (ready, mut rings) = UnixStream::pair().unwrap();
    ctl(epfd, EPOLL_CTL_ADD, ready.as_raw_fd(), EPOLLIN).unwrap();
    let waits = asleep(move || wait(epfd, 8, LOST));
    socket::bind(eventfd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(eventfd, 4).unwrap();
    until("what that rang was looked at", || waits.sleeps_or_is_over());
    rings.write_all(b"x").unwrap();
    assert_eq!(waits.join().unwrap(), [(ready.as_raw_fd(), EPOLLIN)]);
    [eventfd, epfd].into_iter().for_each(close);
}

/// What looks whether a number is a member may put it on the context for a moment, with data of lull's own.
#[test]
fn what_is_lulls_own_for_a_moment_ends_no_wait() {
    /// `kernel::IGNORED_DATA`, which no program sees.
    const OWN_DATA: u64 = 0xa96c_756c_6c00_0001;
    let epfd = context();
    let (ready, mut rings) = UnixStream::pair().unwrap();
    ctl(epfd, EPOLL_CTL_ADD, ready.as_raw_fd(), EPOLLIN).unwrap();
    let waits = asleep(move || wait(epfd, 8, LOST));
    let (hung_up, _) = UnixStream::pair().unwrap();
    let mut own = libc::epoll_event { events: libc::EPOLLONESHOT as u32, u64: OWN_DATA };
    // SAFETY: the kernel reads the struct.
    assert_eq!(unsafe { libc::epoll_ctl(epfd, EPOLL_CTL_ADD, hung_up.as_raw_fd(), &raw mut own) }, 0);
    until("the hang-up was looked at", || waits.sleeps_or_is_over());
    rings.write_all(b"x").unwrap();
    assert_eq!(waits.join().unwrap(), [(ready.as_raw_fd(), EPOLLIN)]);
    close(epfd);
}

#[test]
fn a_connection_has_the_options_of_its_listener_that_are_only_stored() {
    let fd = tcp();
    peers();
    let options = [
        (libc::SOL_SOCKET, libc::SO_BROADCAST, 1),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 3),
        (libc::SOL_IP, libc::IP_TTL, 9),
    ];
    options.iter().for_each(|(level, name, value)| set(fd, *level, *name, *value));
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 4).unwrap();
    let _peer = TcpStream::connect(peers(), name(fd)).unwrap();
    let got = accepted(fd).unwrap();
    for (level, name, value) in options {
        assert_eq!(get(got, level, name), Some(value), "{level} {name}");
    }
    [fd, got].into_iter().for_each(close);
}

#[test]
fn so_reuseaddr_does_not_share_the_port_of_a_listener() {
    let fd = tcp();
    peers();
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 4).unwrap();
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the address, and its size.
    assert_eq!(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) }, 0);
    let at = lull_posix::address::parse(&name).unwrap();
    let other = tcp();
    set(other, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    assert_eq!(socket::bind(other, &name), error(libc::EADDRINUSE));
    let wildcard = SocketAddr::from(([0, 0, 0, 0], at.port()));
    assert_eq!(socket::bind(other, &bytes(&wildcard.to_string())), error(libc::EADDRINUSE));
    close(fd);
    assert_eq!(socket::bind(other, &name), Ok(()), "nobody listens any more");
    close(other);
}

#[test]
fn after_a_shutdown_connect_has_nothing_more_to_tell() {
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    let fd = tcp();
    set_nonblocking(fd);
    assert_eq!(socket::connect(fd, &to), error(libc::EINPROGRESS));
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)]);
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(socket::connect(fd, &to), error(libc::EISCONN));
    close(epfd);
    close(fd);
    let refused = listener.local_addr().unwrap();
    drop(listener);
    let fd = tcp();
    set_nonblocking(fd);
    assert_eq!(socket::connect(fd, &bytes(&refused.to_string())), error(libc::EINPROGRESS));
    until("the refusal", || is_over(fd));
    assert_eq!(socket::shutdown(fd, libc::SHUT_WR), error(libc::ENOTCONN));
    assert_eq!(socket::connect(fd, &bytes(&refused.to_string())), error(libc::EINVAL), "it is being disconnected");
    close(fd);
}

#[test]
fn who_shuts_down_before_anybody_answered_has_a_socket_as_before() {
    let nobody = bytes(nobody());
    let fd = tcp();
    set_nonblocking(fd);
    assert_eq!(socket::connect(fd, &nobody), error(libc::EINPROGRESS));
    assert!(is_lull(fd));
    assert_eq!(socket::shutdown(fd, libc::SHUT_WR), Ok(()));
    assert!(!is_lull(fd));
    let listener = peer_listener();
    assert_eq!(
        socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())),
        error(libc::EINPROGRESS),
        "it can be connected"
    );
    close(fd);
    // A thread that waits for the answer does not wait on.
    let fd = tcp();
    let waits = std::thread::spawn(move || socket::connect(fd, &nobody));
    until("the thread connects", || is_lull(fd));
    until("it is given up", || socket::shutdown(fd, libc::SHUT_RDWR).is_ok() || !is_lull(fd));
    assert_eq!(waits.join().unwrap(), error(libc::ECONNRESET));
    close(fd);
}

#[test]
fn a_listener_that_listens_again_has_the_port_that_it_names() {
    let (fd, at) = listener();
    socket::shutdown(fd, libc::SHUT_RD).unwrap();
    // Its port is free now. Whoever takes it does not get in the way.
    let other = tcp();
    socket::bind(other, &bytes(&at.to_string())).unwrap();
    socket::listen(other, 4).unwrap();
    socket::listen(fd, 4).unwrap();
    let again = name(fd);
    assert_ne!(again.port(), at.port());
    let third = tcp();
    assert_eq!(socket::bind(third, &bytes(&again.to_string())), error(libc::EADDRINUSE), "its new port is its own");
    [fd, other, third].into_iter().for_each(close);
}

#[test]
fn who_waits_for_a_connection_waits_on_when_the_number_is_closed() {
    peers();
    let fd = tcp();
    socket::listen(fd, 4).unwrap();
    let at = format!("127.0.0.1:{}", name(fd).port());
    let waits = asleep(move || accepted(fd));
    // Another number keeps the listener, and its first one is another file's.
    let other = files::duplicate(fd, 0, false).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    files::duplicate_to(file.as_raw_fd(), fd, 0).unwrap();
    let _peer = std::net::TcpStream::connect(at).unwrap();
    let got = waits.join().unwrap().unwrap();
    [fd, other, got].into_iter().for_each(close);
}

fn is_over(fd: c_int) -> bool {
    let mut polled = [libc::pollfd { fd, events: 0, revents: 0 }];
    lull_posix::poll::poll(&mut polled, Some(NOW)) == Ok(1) && polled[0].revents & libc::POLLHUP != 0
}

fn set_nonblocking(fd: c_int) {
    // SAFETY: a number and a command.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

/// A refused socket that was duplicated: every number of it is the kernel's again.
#[test]
fn every_number_of_a_socket_that_was_refused_can_be_connected_anew() {
    let listener = peer_listener();
    let refused = listener.local_addr().unwrap();
    drop(listener);
    let fd = tcp();
    set_nonblocking(fd);
    assert_eq!(socket::connect(fd, &bytes(&refused.to_string())), error(libc::EINPROGRESS));
    let other = files::duplicate(fd, 0, false).unwrap();
    until("the refusal", || is_over(fd));
    assert_eq!(socket::connect(fd, &bytes(&refused.to_string())), error(libc::ECONNREFUSED));
    assert!(!is_lull(fd) && !is_lull(other));
    close(fd);
    close(other);
}

#[test]
fn a_socket_of_another_protocol_cannot_have_lulls_address() {
    peers();
    // SAFETY: three numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE) };
    if fd < 0 {
        eprintln!("SKIP: this kernel has no UDP-Lite");
        return;
    }
    assert_eq!(socket::bind(fd, &bytes(&format!("{OWN}:0"))), error(libc::EADDRNOTAVAIL));
    assert_eq!(socket::bind(fd, &bytes("127.0.0.1:0")), Ok(()));
    close(fd);
}

/// Bytes that were written and are not acknowledged.
fn unacknowledged(fd: c_int) -> c_int {
    let mut bytes = 0;
    ioctl(fd, libc::TIOCOUTQ, &mut bytes).unwrap().unwrap();
    bytes
}

/// Writes to a peer that does not read, until so much is not acknowledged and nothing more may be written.
fn is_full_at(fd: c_int, bytes: c_int) {
    until("it is full", || {
        while send(fd, &[7; 700], libc::MSG_DONTWAIT).is_ok() {}
        assert!(unacknowledged(fd) <= bytes, "{}", unacknowledged(fd));
        // An acknowledgement may come between the two.
        unacknowledged(fd) == bytes && send(fd, b"x", libc::MSG_DONTWAIT) == Err(WOULD_BLOCK)
    });
}

fn set_lulls(fd: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    socket::setsockopt(fd, libc::SOL_SOCKET, name, &value.to_ne_bytes())
}

#[test]
fn a_connection_takes_as_much_as_its_send_buffer_or_its_listeners_reads() {
    let fd = tcp();
    peers();
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 5_000);
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 4).unwrap();
    let _peers = [(); 3].map(|()| TcpStream::connect(peers(), name(fd)).unwrap());
    let got = accepted(fd).unwrap();
    is_full_at(got, 10_000);
    set_lulls(got, libc::SO_SNDBUF, 100_000).unwrap();
    assert_eq!(get(got, libc::SOL_SOCKET, libc::SO_SNDBUF), Some(200_000));
    is_full_at(got, 200_000);
    // An option of the listener's that was set while it listens.
    set_lulls(fd, libc::SO_SNDBUF, 3_000).unwrap();
    let other = accepted(fd).unwrap();
    is_full_at(other, 6_000);
    let third = accepted(fd).unwrap();
    if set_lulls(third, libc::SO_SNDBUFFORCE, 4_000) == error(libc::EPERM) {
        eprintln!("SKIP: without CAP_NET_ADMIN nothing is forced");
    } else {
        assert_eq!(get(third, libc::SOL_SOCKET, libc::SO_SNDBUF), Some(8_000));
        is_full_at(third, 8_000);
    }
    [fd, got, other, third].into_iter().for_each(close);
}

/// As it is told by TCP_INFO.
fn told(fd: c_int) -> libc::tcp_info {
    let mut bytes = [0; size_of::<libc::tcp_info>()];
    assert_eq!(socket::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes), Some(Ok(bytes.len())));
    // SAFETY: numbers, which any bytes are.
    unsafe { bytes.as_ptr().cast::<libc::tcp_info>().read_unaligned() }
}

#[test]
fn a_receive_buffer_is_as_large_as_is_asked_for_before_or_afterwards() {
    let listener = peer_listener();
    let fd = tcp();
    peers();
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 30_000);
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    assert_eq!(told(fd).tcpi_rcv_space, 30_000);
    set_lulls(fd, libc::SO_RCVBUF, 70_000).unwrap();
    assert_eq!(told(fd).tcpi_rcv_space, 70_000);
    // On a busy machine a question may be sent again, which tells no round trip, and makes the window smaller for a while.
    until("a question that is answered in time", || {
        send(fd, b"question", 0).unwrap();
        peer.read_exact(&mut [0; 8]).unwrap();
        peer.write_all(b"answer").unwrap();
        assert_eq!(recv(fd, 0).unwrap(), b"answer");
        let told = told(fd);
        told.tcpi_rtt > 0 && told.tcpi_rttvar > 0 && told.tcpi_snd_cwnd >= 10
    });
    close(fd);
}
