//! UDP sockets, with Linux's results.

mod world;

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLONESHOT, EPOLLOUT, c_int, pollfd};
use lull_net::UdpSocket;
use lull_posix::socket::{self, Message, Receive, Room, Send};
use lull_posix::{Errno, address, epoll, is_lull, poll};
use world::*;

/// `include/uapi/linux/udp.h`.
const ESP_IN_UDP: c_int = 2;

const fn error<T>(number: c_int) -> Result<T, Errno> {
    Err(Errno::new(number))
}

fn bound(ip: &str) -> (c_int, SocketAddr) {
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
    (fd, name(fd))
}

/// A socket on a port that the program chose.
fn bound_for_good(ip: &str) -> (c_int, SocketAddr) {
    let (fd, at) = bound(ip);
    close(fd);
    let fd = udp();
    socket::bind(fd, &bytes(&at.to_string())).unwrap();
    (fd, at)
}

fn peer() -> UdpSocket {
    UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap()
}

/// As the preload library does it.
fn send_to(fd: c_int, data: &[u8], to: SocketAddr) -> Result<usize, Errno> {
    let to = bytes(&to.to_string());
    assert!(is_lull(fd) || socket::sends_by_lull(fd, &to, 0)?);
    socket::send_message(fd, &[IoSlice::new(data)], &to, &[], Send::default())
}

fn message(fd: c_int, flags: c_int, room: usize) -> Result<(Vec<u8>, SocketAddr, Message), Errno> {
    let mut buffer = vec![0; room];
    let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut [] };
    let message = socket::recv_message(fd, room, Receive { flags })?;
    buffer.truncate(message.bytes);
    let from = address::parse(message.from.as_bytes()).unwrap();
    Ok((buffer, from, message))
}

fn received(fd: c_int) -> (Vec<u8>, SocketAddr) {
    let (data, from, _) = message(fd, 0, 64).unwrap();
    (data, from)
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    if is_lull(fd) {
        return socket::setsockopt(fd, level, name, &value.to_ne_bytes());
    }
    // SAFETY: an option of the size of an int.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) }, 0);
    Ok(())
}

/// A socket of the kernel's on loopback.
fn kernels_peer() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LOST)).unwrap();
    socket
}

fn on_loopback(at: SocketAddr) -> SocketAddr {
    SocketAddr::new("127.0.0.1".parse().unwrap(), at.port())
}

#[test]
fn a_socket_on_lulls_address_hears_and_answers_its_peers() {
    let (fd, at) = bound(OWN);
    assert!(is_lull(fd) && at.port() != 0);
    let peer = peer();
    peer.send_to(b"question", at).unwrap();
    let (data, from) = received(fd);
    assert_eq!((data.as_slice(), from), (&b"question"[..], peer.local_addr().unwrap()));
    assert_eq!(send_to(fd, b"answer", from), Ok(6));
    let mut buffer = [0; 16];
    assert_eq!(peer.recv_from(&mut buffer).unwrap(), (6, at));
    close(fd);
}

#[test]
fn a_socket_on_a_wildcard_hears_both_worlds_and_answers_each_by_its_own() {
    let (fd, at) = bound("0.0.0.0");
    assert!(is_lull(fd));
    let (lulls, kernels) = (peer(), kernels_peer());
    let lulls_view = SocketAddr::new(OWN.parse().unwrap(), at.port());
    for _ in 0..40 {
        lulls.send_to(b"lull", lulls_view).unwrap();
        kernels.send_to(b"kernel", on_loopback(at)).unwrap();
        let mut heard = [received(fd), received(fd)];
        heard.sort();
        assert_eq!(heard[0], (b"kernel".to_vec(), kernels.local_addr().unwrap()));
        assert_eq!(heard[1], (b"lull".to_vec(), lulls.local_addr().unwrap()));
        for (_, from) in heard {
            assert_eq!(send_to(fd, b"answer", from), Ok(6));
        }
        let mut buffer = [0; 16];
        assert_eq!(lulls.recv_from(&mut buffer).unwrap(), (6, lulls_view));
        assert_eq!(kernels.recv_from(&mut buffer).unwrap(), (6, on_loopback(at)));
    }
    close(fd);
}

/// Linux refuses to change an exclusive member, so that it is added anew when a half of it becomes lull's, and when it is the
/// kernel's alone again.
#[test]
fn an_exclusive_member_sends_into_lulls_world_and_is_told_of_both() {
    let fd = udp();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | libc::EPOLLEXCLUSIVE).unwrap();
    let (lulls, kernels) = (peer(), kernels_peer());
    assert_eq!(send_to(fd, b"first", lulls.local_addr().unwrap()), Ok(5));
    let (_, from) = lulls.recv_from(&mut [0; 16]).unwrap();
    lulls.send_to(b"lull", from).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(received(fd).0, b"lull");
    kernels.send_to(b"kernel", on_loopback(from)).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(received(fd).0, b"kernel");
    close(fd);
    close(epfd);
}

#[test]
fn epoll_and_poll_tell_of_datagrams_of_both_worlds() {
    let (fd, at) = bound("0.0.0.0");
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    let polled = || {
        let mut fds = [pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 }];
        poll::poll(&mut fds, Some(NOW)).unwrap();
        fds[0].revents
    };
    assert_eq!(polled(), libc::POLLOUT);
    let (lulls, kernels) = (peer(), kernels_peer());
    for round in 0..4 {
        match round % 2 {
            0 => drop(lulls.send_to(b"x", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap()),
            _ => drop(kernels.send_to(b"x", on_loopback(at)).unwrap()),
        }
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
        assert_eq!(polled(), libc::POLLIN | libc::POLLOUT);
        received(fd);
        assert_eq!(wait(epfd, 8, NOW), []);
    }
    ctl(epfd, EPOLL_CTL_DEL, fd, 0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT).unwrap();
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLOUT)], "once, not once from each world");
    close(fd);
    close(epfd);
}

#[test]
fn a_socket_of_nobodys_yet_sends_by_lull_and_hears_the_answer() {
    let fd = udp();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    let peer = peer();
    assert_eq!(send_to(fd, b"question", peer.local_addr().unwrap()), Ok(8));
    assert!(is_lull(fd));
    let mut buffer = [0; 16];
    let (_, from) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!(from, SocketAddr::new(OWN.parse().unwrap(), name(fd).port()));
    peer.send_to(b"answer", from).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)], "it was on the context before it was lull's");
    assert_eq!(received(fd), (b"answer".to_vec(), peer.local_addr().unwrap()));
    close(fd);
    close(epfd);
}

#[test]
fn a_peer_of_lulls_is_the_only_one_that_is_heard_until_there_is_none() {
    let (fd, at) = bound_for_good("0.0.0.0");
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    let (right, wrong, kernels) = (peer(), peer(), kernels_peer());
    kernels.send_to(b"early", on_loopback(at)).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    socket::connect(fd, &bytes(&right.local_addr().unwrap().to_string())).unwrap();
    let own = SocketAddr::new(OWN.parse().unwrap(), at.port());
    assert_eq!(name(fd), own);
    assert_eq!(address::parse(&socket::getpeername(fd).unwrap().unwrap()), Some(right.local_addr().unwrap()));
    kernels.send_to(b"other world", on_loopback(at)).unwrap();
    wrong.send_to(b"wrong", own).unwrap();
    right.send_to(b"right", own).unwrap();
    assert_eq!(received(fd).0, b"right");
    assert_eq!(wait(epfd, 8, NOW), [], "what it does not hear wakes nobody");
    assert_eq!(send(fd, b"to the peer", 0), Ok(11));
    assert_eq!(right.recv_from(&mut [0; 16]).unwrap(), (11, own));
    let unspecified = [0; 16];
    socket::connect(fd, &unspecified).unwrap();
    assert_eq!(name(fd), at, "as it was bound");
    assert_eq!(send(fd, b"x", 0), error(libc::EDESTADDRREQ));
    kernels.send_to(b"late", on_loopback(at)).unwrap();
    assert_eq!(received(fd).0, b"late");
    close(fd);
    close(epfd);
}

#[test]
fn a_peer_of_the_kernels_makes_it_the_kernels_until_there_is_none() {
    let (fd, at) = bound_for_good("0.0.0.0");
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT).unwrap();
    let kernels = kernels_peer();
    socket::connect(fd, &bytes(&kernels.local_addr().unwrap().to_string())).unwrap();
    assert!(!is_lull(fd));
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)], "the kernel tells of writing, too");
    kernels.send_to(b"x", on_loopback(at)).unwrap();
    until("the datagram", || wait(epfd, 8, LOST) == [(fd, EPOLLIN | EPOLLOUT)]);
    socket::connect(fd, &[0; 16]).unwrap();
    assert!(is_lull(fd));
    let lulls = peer();
    lulls.send_to(b"y", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
    let mut heard = [received(fd).0, received(fd).0];
    heard.sort();
    assert_eq!(heard, [b"x", b"y"]);
    close(fd);
    close(epfd);
}

/// Linux has one socket behind both numbers.
#[test]
fn every_number_of_a_socket_is_the_kernels_while_its_peer_is() {
    let (fd, at) = bound_for_good("0.0.0.0");
    let copy = lull_posix::files::duplicate(fd, 0, true).unwrap();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, copy, EPOLLIN | EPOLLOUT).unwrap();
    let (lulls, kernels) = (peer(), kernels_peer());
    let own = SocketAddr::new(OWN.parse().unwrap(), at.port());
    socket::connect(fd, &bytes(&kernels.local_addr().unwrap().to_string())).unwrap();
    assert!(!is_lull(fd) && !is_lull(copy));
    assert_eq!(wait(epfd, 8, LOST), [(copy, EPOLLOUT)], "the kernel tells of writing, by the other number as well");
    // Nobody hears it any more: the port is free in lull's world.
    drop(UdpSocket::bind(world::own(), own).unwrap());
    socket::connect(copy, &[0; 16]).unwrap();
    assert!(is_lull(fd) && is_lull(copy), "without a peer it hears both worlds, by both numbers");
    for number in [fd, copy] {
        lulls.send_to(b"x", own).unwrap();
        assert_eq!(received(number).0, b"x");
    }
    close(fd);
    lulls.send_to(b"x", own).unwrap();
    until("the other number's member is told of it", || wait(epfd, 8, LOST) == [(copy, EPOLLIN | EPOLLOUT)]);
    [copy, epfd].into_iter().for_each(close);
}

/// A number that was closed meanwhile is not one of the socket's any more, whatever it is now.
#[test]
fn a_number_that_is_another_sockets_by_now_stays_that() {
    let (fd, _) = bound_for_good("0.0.0.0");
    let copy = lull_posix::files::duplicate(fd, 0, true).unwrap();
    socket::connect(fd, &bytes(&kernels_peer().local_addr().unwrap().to_string())).unwrap();
    let other = udp();
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::dup2(other, copy) }, copy);
    socket::connect(fd, &[0; 16]).unwrap();
    assert!(is_lull(fd) && !is_lull(copy));
    [fd, copy, other].into_iter().for_each(close);
}

#[test]
fn a_socket_that_becomes_the_kernels_waits_as_little_as_before() {
    let (fd, _) = bound("0.0.0.0");
    assert_eq!(ioctl(fd, libc::FIONBIO, &mut 1), Some(Ok(())));
    let kernels = kernels_peer();
    socket::connect(fd, &bytes(&kernels.local_addr().unwrap().to_string())).unwrap();
    assert!(!is_lull(fd));
    // SAFETY: numbers only.
    assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK, 0);
    close(fd);
}

/// What holds a port in lull's world alone, the kernel does not know of.
#[test]
fn a_wildcards_port_that_is_taken_in_lulls_world_is_refused() {
    let (fd, at) = bound("0.0.0.0");
    close(fd);
    let taken = UdpSocket::bind(world::own(), SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
    let fd = udp();
    assert_eq!(socket::bind(fd, &bytes(&at.to_string())), error(libc::EADDRINUSE));
    close(fd);
    drop(taken);
}

#[test]
fn a_port_that_the_kernel_chose_is_lost_with_the_peer() {
    for ip in [OWN, "0.0.0.0"] {
        let ((fd, _), peer) = (bound(ip), peer());
        socket::connect(fd, &bytes(&peer.local_addr().unwrap().to_string())).unwrap();
        socket::connect(fd, &[0; 16]).unwrap();
        assert_eq!(name(fd), SocketAddr::new(ip.parse().unwrap(), 0));
        assert_eq!(send_to(fd, b"x", peer.local_addr().unwrap()), Ok(1));
        let (_, from) = peer.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from, SocketAddr::new(OWN.parse().unwrap(), name(fd).port()));
        close(fd);
    }
}

/// What came by either world to a wildcard stays the socket's where it is bound to an own address (`__udp_disconnect`, `inet_bind`).
#[test]
fn what_came_by_both_worlds_is_read_after_it_is_bound_to_an_own_address() {
    let ((fd, at), peer, kernels) = (bound("0.0.0.0"), peer(), kernels_peer());
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    kernels.send_to(b"kernel's", on_loopback(at)).unwrap();
    peer.send_to(b"lull's", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
    // What is sent later comes later.
    let (last, last_at) = bound(OWN);
    peer.send_to(b"last", last_at).unwrap();
    assert_eq!(received(last).0, b"last");
    close(last);
    socket::connect(fd, &[0; 16]).unwrap();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let now_at = name(fd);
    assert_eq!(now_at.ip(), OWN.parse::<std::net::IpAddr>().unwrap());
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)]);
    let mut data = [received(fd).0, received(fd).0];
    data.sort();
    assert_eq!(data, [b"kernel's".to_vec(), b"lull's".to_vec()]);
    assert_eq!(message(fd, libc::MSG_DONTWAIT, 64).err(), Some(WOULD_BLOCK));
    peer.send_to(b"x", now_at).unwrap();
    assert_eq!((wait(epfd, 8, LOST), received(fd).0), (vec![(fd, EPOLLIN)], b"x".to_vec()));
    close(epfd);
    close(fd);
}

/// It was the kernel's alone when they came.
#[test]
fn what_a_peer_of_the_kernels_sent_is_read_after_it_is_bound_to_an_own_address() {
    let ((fd, _), kernels) = (bound("0.0.0.0"), kernels_peer());
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    socket::connect(fd, &bytes(&kernels.local_addr().unwrap().to_string())).unwrap();
    assert!(!is_lull(fd));
    kernels.send_to(b"kernel's", name(fd)).unwrap();
    socket::connect(fd, &[0; 16]).unwrap();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert!(is_lull(fd));
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)]);
    assert_eq!(received(fd).0, b"kernel's");
    close(epfd);
    close(fd);
}

/// `__udp_disconnect`.
#[test]
fn what_came_is_read_after_the_peer_and_the_port_are_lost() {
    for ip in [OWN, "0.0.0.0"] {
        let ((fd, at), peer) = (bound(ip), peer());
        let epfd = epoll::epoll_create(0).unwrap();
        ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
        let (own, peers) = (SocketAddr::new(OWN.parse().unwrap(), at.port()), peer.local_addr().unwrap());
        socket::connect(fd, &bytes(&peers.to_string())).unwrap();
        for data in [&b"first"[..], b"second"] {
            peer.send_to(data, own).unwrap();
        }
        // What is sent later comes later.
        let (last, last_at) = bound(OWN);
        peer.send_to(b"last", last_at).unwrap();
        assert_eq!(received(last).0, b"last");
        close(last);
        socket::connect(fd, &[0; 16]).unwrap();
        assert_eq!(name(fd), SocketAddr::new(ip.parse().unwrap(), 0));
        assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)]);
        assert_eq!(received(fd), (b"first".to_vec(), peers));
        // What is sent to its former port is nobody's.
        peer.send_to(b"late", own).unwrap();
        assert_eq!(send_to(fd, b"x", peers), Ok(1));
        let (_, from) = peer.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from, SocketAddr::new(own.ip(), name(fd).port()));
        peer.send_to(b"third", from).unwrap();
        assert_eq!([received(fd).0, received(fd).0], [b"second".to_vec(), b"third".to_vec()]);
        close(epfd);
        close(fd);
    }
}

#[test]
fn a_socket_that_has_lost_its_port_is_bound_anew() {
    let ((fd, _), (other, at), peer) = (bound(OWN), bound(OWN), peer());
    close(other);
    socket::connect(fd, &bytes(&peer.local_addr().unwrap().to_string())).unwrap();
    socket::connect(fd, &[0; 16]).unwrap();
    socket::bind(fd, &bytes(&at.to_string())).unwrap();
    peer.send_to(b"x", at).unwrap();
    assert_eq!(received(fd).0, b"x");
    // The program chose this one, which stays.
    socket::connect(fd, &bytes(&peer.local_addr().unwrap().to_string())).unwrap();
    socket::connect(fd, &[0; 16]).unwrap();
    assert_eq!(name(fd), at);
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap_err();
    close(fd);
}

#[test]
fn a_port_where_nobody_is_refuses_and_says_so_once() {
    let gone = peer();
    let at = gone.local_addr().unwrap();
    drop(gone);
    let fd = udp();
    socket::connect(fd, &bytes(&at.to_string())).unwrap();
    assert_eq!(send(fd, b"x", 0), Ok(1));
    assert_eq!(message(fd, 0, 8).map(drop), error(libc::ECONNREFUSED));
    assert_eq!(message(fd, libc::MSG_DONTWAIT, 8).map(drop), Err(WOULD_BLOCK));
    send(fd, b"x", 0).unwrap();
    let mut fds = [pollfd { fd, events: 0, revents: 0 }];
    assert_eq!(poll::poll(&mut fds, Some(LOST)), Ok(1));
    let mut value = [0; 4];
    assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut value), Some(Ok(4)));
    assert_eq!(c_int::from_ne_bytes(value), libc::ECONNREFUSED);
    socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut value).unwrap().unwrap();
    assert_eq!(value, [0; 4], "once");
    close(fd);
}

#[test]
fn peek_and_trunc_say_how_long_it_is() {
    let (fd, at) = bound(OWN);
    let peer = peer();
    peer.send_to(b"0123456789", at).unwrap();
    let (data, _, told) = message(fd, libc::MSG_PEEK, 4).unwrap();
    assert_eq!((data.as_slice(), told.bytes, told.flags), (&b"0123"[..], 4, libc::MSG_TRUNC));
    let mut value = 0;
    assert_eq!(ioctl(fd, libc::FIONREAD, &mut value), Some(Ok(())));
    assert_eq!(value, 10);
    let (_, _, told) = message(fd, libc::MSG_PEEK | libc::MSG_TRUNC, 4).unwrap();
    assert_eq!(told.bytes, 10);
    assert_eq!(recv(fd, 0).unwrap(), b"0123456789");
    peer.send_to(b"", at).unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"", "an empty datagram is one");
    assert_eq!(recv(fd, libc::MSG_DONTWAIT), Err(WOULD_BLOCK));
    close(fd);
}

#[test]
fn a_read_waits_as_long_as_so_rcvtimeo_says() {
    for ip in [OWN, "0.0.0.0"] {
        let (fd, _) = bound(ip);
        let timeout = [0_i64.to_ne_bytes(), 20_000_i64.to_ne_bytes()].concat();
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout).unwrap();
        let start = std::time::Instant::now();
        assert_eq!(recv(fd, 0), Err(WOULD_BLOCK));
        assert!(start.elapsed() >= Duration::from_millis(20));
        nonblocking(fd);
        assert_eq!(recv(fd, 0), Err(WOULD_BLOCK));
        close(fd);
    }
}

#[test]
fn pktinfo_says_which_own_address_it_came_to_and_answers_from_there() {
    for ip in [OWN, "0.0.0.0"] {
        let (fd, at) = bound(ip);
        let mut control = [0; 64];
        let peer = peer();
        let own = SocketAddr::new(OWN.parse().unwrap(), at.port());
        for asked in [0, 1] {
            set(fd, libc::SOL_IP, libc::IP_PKTINFO, asked).unwrap();
            peer.send_to(b"x", own).unwrap();
            let mut buffer = [0];
            let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut control };
            let message = socket::recv_message(fd, room, Receive::default()).unwrap();
            assert_eq!(message.control_bytes, [0, 32][asked as usize]);
        }
        assert_eq!(control[20..24], [10, 0, 0, 2]);
        let to = bytes(&peer.local_addr().unwrap().to_string());
        let answer =
            |control: &[u8]| socket::send_message(fd, &[IoSlice::new(b"answer")], &to, control, Send::default());
        assert_eq!(answer(&control[..32]), Ok(6));
        assert_eq!(peer.recv_from(&mut [0; 16]).unwrap(), (6, own));
        control[23] = 77;
        assert!(answer(&control[..32]).is_err(), "no own address");
        close(fd);
    }
}

/// When a datagram came, and not when it was read; asked for before the socket is lull's, or after.
#[test]
fn a_timestamp_says_when_a_datagram_came() {
    /// Clocks of the day and of the engine do not run quite alike.
    const SLACK: Duration = Duration::from_millis(10);
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let stamp = |fd: c_int| {
        let (mut buffer, mut control) = ([0], [0; 64]);
        let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut control };
        let message = socket::recv_message(fd, room, Receive::default()).unwrap();
        let number = |at: usize| u64::from_ne_bytes(control[at..at + 8].try_into().unwrap());
        let kind = c_int::from_ne_bytes(control[12..16].try_into().unwrap());
        (message.control_bytes == 32).then(|| (kind, number(16), number(24)))
    };
    let peer = peer();
    for ip in [OWN, "0.0.0.0"] {
        for (option, part_ns) in [(libc::SO_TIMESTAMP, 1000), (libc::SO_TIMESTAMPNS, 1)] {
            for first in [false, true] {
                let fd = udp();
                if first {
                    set(fd, libc::SOL_SOCKET, option, 1).unwrap();
                }
                socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
                if !first {
                    set(fd, libc::SOL_SOCKET, option, 1).unwrap();
                }
                // Others may have the CPU between two looks at the clocks, but not every time.
                let is_when_it_came = (0..50).any(|_| {
                    let before = now();
                    peer.send_to(b"x", SocketAddr::new(OWN.parse().unwrap(), name(fd).port())).unwrap();
                    message(fd, libc::MSG_PEEK, 1).unwrap();
                    let after = now();
                    std::thread::sleep(10 * SLACK);
                    let (kind, secs, part) = stamp(fd).expect("a timestamp");
                    assert_eq!(kind, option);
                    let came = Duration::from_secs(secs) + Duration::from_nanos(part * part_ns);
                    came + SLACK > before && came < after + SLACK
                });
                assert!(is_when_it_came, "{option} on {ip}");
                set(fd, libc::SOL_SOCKET, option, 0).unwrap();
                peer.send_to(b"x", SocketAddr::new(OWN.parse().unwrap(), name(fd).port())).unwrap();
                assert_eq!(stamp(fd), None);
                close(fd);
            }
        }
    }
}

#[test]
fn addresses_are_shared_only_by_those_who_both_say_so() {
    for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        let (first, second, third) = (udp(), udp(), udp());
        set(first, libc::SOL_SOCKET, option, 1).unwrap();
        set(second, libc::SOL_SOCKET, option, 1).unwrap();
        socket::bind(first, &bytes(&format!("{OWN}:0"))).unwrap();
        let at = name(first);
        socket::bind(second, &bytes(&at.to_string())).unwrap();
        assert_eq!(socket::bind(third, &bytes(&at.to_string())), error(libc::EADDRINUSE));
        // Under SO_REUSEADDR the last one hears everything.
        if option == libc::SO_REUSEADDR {
            for _ in 0..8 {
                peer().send_to(b"x", at).unwrap();
                assert_eq!(recv(second, 0).unwrap(), b"x");
            }
        }
        [first, second, third].into_iter().for_each(close);
    }
}

#[test]
fn what_cannot_be_sent_is_refused_as_linux_does() {
    let (fd, _) = bound(OWN);
    let peer = peer();
    let at = peer.local_addr().unwrap();
    assert_eq!(send(fd, b"x", 0), error(libc::EDESTADDRREQ));
    assert_eq!(send_to(fd, b"x", SocketAddr::new(at.ip(), 0)), error(libc::EINVAL));
    assert_eq!(send_to(fd, &[0; 70_000], at), error(libc::EMSGSIZE));
    assert_eq!(send_to(fd, b"x", "192.0.2.1:9".parse().unwrap()), error(libc::ENETUNREACH));
    let everybody = ["10.0.0.255:9", "255.255.255.255:9"].map(|at| at.parse().unwrap());
    assert_eq!(everybody.map(|at| send_to(fd, b"x", at)), [error(libc::EACCES); 2]);
    set(fd, libc::SOL_SOCKET, libc::SO_BROADCAST, 1).unwrap();
    assert_eq!(everybody.map(|at| send_to(fd, b"x", at)), [Ok(1); 2]);
    assert_eq!(send(fd, b"x", libc::MSG_OOB), error(libc::EOPNOTSUPP));
    assert_eq!(socket::accept(fd, 0).map(|accepted| accepted.fd), error(libc::EOPNOTSUPP));
    assert_eq!(socket::listen(fd, 1), error(libc::EOPNOTSUPP));
    let v6 = address::Bytes::new("[fd00::1]:9".parse().unwrap(), libc::AF_INET6);
    let sent = socket::send_message(fd, &[IoSlice::new(b"x")], &v6, &[], Send::default());
    assert_eq!(sent, error(libc::EAFNOSUPPORT));
    close(fd);
}

#[test]
fn options_that_lull_would_only_store_are_refused() {
    let (fd, _) = bound(OWN);
    assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1), error(libc::EOPNOTSUPP));
    assert_eq!(set(fd, libc::SOL_UDP, libc::UDP_ENCAP, ESP_IN_UDP), error(libc::EOPNOTSUPP));
    assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 65_536), Ok(()));
    let (both, _) = bound("0.0.0.0");
    assert_eq!(set(both, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1), Ok(()), "the kernel's half has it");
    assert_eq!(set(both, libc::SOL_UDP, libc::UDP_ENCAP, ESP_IN_UDP), error(libc::EOPNOTSUPP));
    close(fd);
    close(both);
}

/// IP_RECVERR, set before the socket is lull's or after, with a peer and without.
#[test]
fn what_icmp_says_is_read_from_the_queue_of_errors() {
    let nowhere = {
        let peer = peer();
        peer.local_addr().unwrap()
    };
    for (first, connected) in [(false, false), (false, true), (true, false), (true, true)] {
        let fd = udp();
        if first {
            set(fd, libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
        }
        socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
        if !first {
            set(fd, libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
        }
        let mut control = [0; 64];
        let mut read = |room: usize| {
            let mut buffer = vec![0; room];
            let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut control };
            let message = socket::recv_message(fd, room, Receive { flags: libc::MSG_ERRQUEUE })?;
            buffer.truncate(message.bytes);
            let from = address::parse(message.from.as_bytes()).unwrap();
            Ok((buffer, from, message.flags, control[..message.control_bytes].to_vec()))
        };
        assert_eq!(read(8), Err(WOULD_BLOCK), "it does not wait");
        if connected {
            socket::connect(fd, &bytes(&nowhere.to_string())).unwrap();
            send(fd, b"data", 0).unwrap();
        } else {
            send_to(fd, b"data", nowhere).unwrap();
        }
        let mut asked = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
        assert_eq!(poll::poll(&mut asked, Some(LOST)), Ok(1));
        assert_eq!(asked[0].revents, libc::POLLERR);
        assert_eq!(recv(fd, 0), error(libc::ECONNREFUSED));
        let (data, to, flags, control) = read(3).unwrap();
        assert_eq!((&data[..], to, flags), (&b"dat"[..], nowhere, libc::MSG_ERRQUEUE | libc::MSG_TRUNC));
        // A header of 16 bytes, sock_extended_err and the address of who has said so.
        assert_eq!(control.len(), 16 + 16 + 16);
        assert_eq!(control[8..16], [[0; 4], [libc::IP_RECVERR as u8, 0, 0, 0]].concat());
        assert_eq!(
            control[16..32],
            [libc::ECONNREFUSED as u8, 0, 0, 0, libc::SO_EE_ORIGIN_ICMP, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(control[32..40], [libc::AF_INET as u8, 0, 0, 0, 10, 0, 0, 1]);
        assert_eq!(read(8), Err(WOULD_BLOCK));
        close(fd);
    }
}

#[test]
fn shut_down_without_a_peer_is_an_error_and_wakes_readers() {
    let (fd, _) = bound(OWN);
    assert_eq!(socket::shutdown(fd, libc::SHUT_RD), error(libc::ENOTCONN));
    assert_eq!(recv(fd, 0).unwrap(), b"");
    close(fd);
    let (fd, _) = bound(OWN);
    let reader = asleep(move || recv(fd, 0));
    assert_eq!(socket::shutdown(fd, libc::SHUT_RD), error(libc::ENOTCONN));
    assert_eq!(reader.join().unwrap(), Ok(Vec::new()));
    close(fd);
    let fd = udp();
    socket::connect(fd, &bytes(&peer().local_addr().unwrap().to_string())).unwrap();
    assert_eq!(socket::shutdown(fd, libc::SHUT_WR), Ok(()));
    assert_eq!(send(fd, b"x", 0), error(libc::EPIPE));
    close(fd);
}

#[test]
fn after_the_end_of_reading_who_does_not_wait_would_block_and_who_waits_is_told() {
    for ip in [OWN, "0.0.0.0"] {
        let ((fd, at), peer) = (bound(ip), peer());
        assert_eq!(socket::shutdown(fd, libc::SHUT_RD), error(libc::ENOTCONN));
        assert_eq!(recv(fd, libc::MSG_DONTWAIT), Err(WOULD_BLOCK));
        let mut buffer = [0; 8];
        let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut [] };
        let told = socket::recv_message(fd, room, Receive::default()).unwrap();
        assert_eq!((told.bytes, told.from.as_bytes(), told.flags), (0, &[][..], 0), "and nobody has sent it");
        // What comes is taken all the same (`__udp_enqueue_schedule_skb`).
        peer.send_to(b"late", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
        until("the datagram", || recv(fd, libc::MSG_DONTWAIT) == Ok(b"late".to_vec()));
        assert_eq!(recv(fd, 0).unwrap(), b"");
        nonblocking(fd);
        assert_eq!(recv(fd, 0), Err(WOULD_BLOCK));
        close(fd);
    }
}

/// Longer than the path takes is sent in fragments, unless the socket says otherwise, before it is lull's or after.
#[test]
fn long_datagrams_leave_in_fragments_unless_they_must_not() {
    static LONG: [u8; 20_000] = [7; 20_000];
    for ip in [OWN, "0.0.0.0"] {
        let ((fd, _), peer) = (bound(ip), peer());
        peer.set_read_timeout(Some(LOST)).unwrap();
        let at = peer.local_addr().unwrap();
        let mut buffer = vec![0; 65_536];
        assert_eq!(send_to(fd, &LONG, at), Ok(LONG.len()));
        let (count, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..count], LONG);
        peer.send_to(&[8; 30_000], from).unwrap();
        let (data, ..) = message(fd, 0, 65_536).unwrap();
        assert_eq!(data, [8; 30_000]);
        set(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO).unwrap();
        assert_eq!(send_to(fd, &LONG, at), error(libc::EMSGSIZE));
        assert_eq!(send_to(fd, b"short", at), Ok(5));
        set(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT).unwrap();
        assert_eq!(send_to(fd, &LONG, at), Ok(LONG.len()));
        close(fd);
        let fd = udp();
        set(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE).unwrap();
        socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
        assert_eq!(send_to(fd, &LONG, at), error(libc::EMSGSIZE));
        close(fd);
    }
}

/// `udp_sendmsg` looks for a destination, and only what has one finds the socket shut down.
#[test]
fn without_a_destination_it_is_not_told_that_writing_is_shut_down() {
    for ip in [OWN, "0.0.0.0"] {
        let ((fd, _), peer) = (bound(ip), peer());
        assert_eq!(socket::shutdown(fd, libc::SHUT_RDWR), error(libc::ENOTCONN));
        let at = peer.local_addr().unwrap();
        assert_eq!(send(fd, b"x", 0), error(libc::EDESTADDRREQ));
        assert_eq!(send_to(fd, b"x", SocketAddr::new(at.ip(), 0)), error(libc::EINVAL));
        assert_eq!(send_to(fd, &[0; 70_000], at), error(libc::EMSGSIZE));
        assert_eq!(send(fd, &[0; 70_000], 0), error(libc::EMSGSIZE));
        assert_eq!(send_to(fd, b"x", at), error(libc::EPIPE));
        close(fd);
    }
}

/// Waits until an error waits at a socket.
fn fails(fd: c_int) {
    let mut fds = [pollfd { fd, events: 0, revents: 0 }];
    assert_eq!(poll::poll(&mut fds, Some(LOST)), Ok(1));
}

/// Connects a socket to where nobody is, which tells it so; where that is.
fn refused(fd: c_int) -> SocketAddr {
    let gone = peer();
    let at = gone.local_addr().unwrap();
    drop(gone);
    socket::connect(fd, &bytes(&at.to_string())).unwrap();
    assert_eq!(send(fd, b"x", 0), Ok(1));
    fails(fd);
    at
}

#[test]
fn an_error_that_waits_is_told_to_who_has_a_destination() {
    let fd = udp();
    let at = refused(fd);
    assert_eq!(send_to(fd, b"x", SocketAddr::new(at.ip(), 0)), error(libc::EINVAL));
    assert_eq!(send(fd, b"x", 0), error(libc::ECONNREFUSED));
    close(fd);
}

#[test]
fn an_error_of_lulls_half_is_told_to_who_sends_by_the_kernels() {
    let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, _) = bound("0.0.0.0");
    refused(fd);
    socket::connect(fd, &[0; 16]).unwrap();
    assert_eq!(send_to(fd, b"x", kernels.local_addr().unwrap()), error(libc::ECONNREFUSED));
    assert_eq!(send_to(fd, b"x", kernels.local_addr().unwrap()), Ok(1));
    close(fd);
}

#[test]
fn an_error_that_waits_stays_the_sockets_where_it_is_bound_again() {
    let fd = udp();
    let at = refused(fd);
    socket::connect(fd, &[0; 16]).unwrap();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    fails(fd);
    assert_eq!(send_to(fd, b"x", at), error(libc::ECONNREFUSED));
    assert_eq!(send_to(fd, b"x", at), Ok(1));
    close(fd);
}

#[test]
fn epoll_tells_once_of_a_socket_in_both_worlds() {
    let (fd, at) = bound("0.0.0.0");
    let (mine, other) = (epoll::epoll_create(0).unwrap(), udp());
    ctl(mine, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT).unwrap();
    // One that is the kernel's alone, with the same data, is told of by itself.
    let kernels = kernels_peer();
    socket::bind(other, &bytes("127.0.0.1:0")).unwrap();
    kernels.send_to(b"kernel", on_loopback(at)).unwrap();
    until("both halves are told of", || wait(mine, 8, NOW) == [(fd, EPOLLIN | EPOLLOUT)]);
    kernels.send_to(b"kernel", name(other)).unwrap();
    let event = libc::epoll_event { events: EPOLLIN as u32, u64: fd as u64 };
    epoll::epoll_ctl(mine, EPOLL_CTL_ADD, other, Some(event)).unwrap();
    until("both sockets are told of", || wait(mine, 8, NOW).len() >= 2);
    [fd, mine, other].into_iter().for_each(close);
}

#[test]
fn a_one_shot_socket_in_both_worlds_is_told_of_by_one_of_them_until_it_is_modified() {
    let (fd, at) = bound("0.0.0.0");
    let (mine, other, kernels, peer) = (epoll::epoll_create(0).unwrap(), udp(), kernels_peer(), peer());
    ctl(mine, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT).unwrap();
    peer.send_to(b"lull", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
    assert_eq!(wait(mine, 8, LOST), [(fd, EPOLLIN)]);
    kernels.send_to(b"kernel", on_loopback(at)).unwrap();
    // One of the kernel's that is always ready: who is told of it has asked the kernel's half of the other as well.
    socket::bind(other, &bytes("127.0.0.1:0")).unwrap();
    kernels.send_to(b"kernel", name(other)).unwrap();
    ctl(mine, EPOLL_CTL_ADD, other, EPOLLIN).unwrap();
    let told = || {
        let mut told = 0;
        until("the kernel's half is asked", || {
            let seen = wait(mine, 8, NOW);
            told += seen.iter().filter(|(member, _)| *member == fd).count();
            seen.contains(&(other, EPOLLIN))
        });
        told
    };
    assert_eq!(told(), 0);
    ctl(mine, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT).unwrap();
    assert_eq!((told(), told()), (1, 0));
    [fd, mine, other].into_iter().for_each(close);
}

#[test]
fn closing_gives_the_port_back_in_both_worlds() {
    for ip in [OWN, "0.0.0.0"] {
        let (fd, at) = bound(ip);
        let copy = lull_posix::files::duplicate(fd, 0, true).unwrap();
        close(fd);
        let peer = peer();
        peer.send_to(b"x", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
        assert_eq!(recv(copy, 0).unwrap(), b"x", "the other number has it");
        close(copy);
        let again = udp();
        socket::bind(again, &bytes(&at.to_string())).unwrap();
        assert!(is_lull(again));
        close(again);
    }
}

#[test]
fn a_program_sends_to_its_own_address() {
    let ((fd, at), other) = (bound("0.0.0.0"), udp());
    let own = SocketAddr::new(OWN.parse().unwrap(), at.port());
    assert_eq!(send_to(other, b"to myself", own), Ok(9));
    let (data, from) = received(fd);
    assert_eq!((data.as_slice(), from), (&b"to myself"[..], SocketAddr::new(own.ip(), name(other).port())));
    assert_eq!(send_to(fd, b"and back", from), Ok(8));
    assert_eq!(received(other), (b"and back".to_vec(), own));
    close(fd);
    close(other);
}

#[test]
fn neither_world_starves() {
    let (fd, at) = bound("0.0.0.0");
    let (lulls, kernels) = (peer(), kernels_peer());
    for _ in 0..40 {
        lulls.send_to(b"lull", SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
    }
    kernels.send_to(b"kernel", on_loopback(at)).unwrap();
    // What is sent later comes later.
    let (last, last_at) = bound(OWN);
    lulls.send_to(b"last", last_at).unwrap();
    assert_eq!(received(last).0, b"last");
    close(last);
    // The kernel has a turn in sixteen reads, whatever has come from lull's side meanwhile.
    let before = (0..40).take_while(|_| received(fd).0 == b"lull").count();
    assert!(before < 16, "the kernel's datagram waited for {before} of lull's");
    close(fd);
}
