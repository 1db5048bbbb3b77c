//! `connect` and `shutdown`, with Linux's results.

mod world;

use std::io::{Read, Write};

use libc::{EPOLL_CTL_ADD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, c_int};
use lull_net::TcpListener;
use lull_posix::{Errno, epoll, flags, is_lull, socket};
use world::*;

const fn error<T>(number: c_int) -> Result<T, Errno> {
    Err(Errno::new(number))
}

fn set_nonblocking(fd: c_int) {
    // SAFETY: a number and a command.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

#[test]
fn a_destination_in_lulls_network_is_lulls_and_data_go_both_ways() {
    let (fd, mut peer) = connecting();
    assert!(is_lull(fd));
    assert_eq!(send(fd, b"hello", 0), Ok(5));
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    peer.write_all(b"world").unwrap();
    assert_eq!((&got, recv(fd, 0).unwrap()), (b"hello", b"world".to_vec()));
    let name = socket::getpeername(fd).unwrap().unwrap();
    assert_eq!(lull_posix::address::parse(&name), Some(peer.local_addr().unwrap()));
    assert_eq!(socket::connect(fd, &name), error(libc::EISCONN));
    close(fd);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// The kernel, which chooses the port, knows nothing of lull's connections.
#[test]
fn a_port_that_the_kernel_chooses_is_none_from_which_there_is_a_connection() {
    const IP_LOCAL_PORT_RANGE: c_int = 51;
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    let bound = |ip: &str, range: std::ops::RangeInclusive<u16>| {
        let fd = tcp();
        let value = (u32::from(*range.end()) << 16 | u32::from(*range.start())).to_ne_bytes();
        // SAFETY: the kernel reads as many bytes as the value has.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE, value.as_ptr().cast(), 4) };
        (set == 0).then(|| {
            socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
            let (mut said, mut length) = ([0; 4], 4);
            // SAFETY: room for the value, and its size.
            let got = unsafe {
                libc::getsockopt(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE, said.as_mut_ptr().cast(), &raw mut length)
            };
            assert_eq!((got, said), (0, value), "the program's option is as it was");
            (fd, name(fd).port())
        })
    };
    let mut ports = (40_000..60_000).step_by(2);
    // Of each two the kernel prefers one (`inet_csk_find_open_port`).
    for (ip, is_second) in [(OWN, false), (OWN, true), ("0.0.0.0", false), ("0.0.0.0", true)] {
        let is_free = |port: u16| std::net::TcpListener::bind(("0.0.0.0", port)).is_ok();
        let first = ports.find(|port| is_free(*port) && is_free(port + 1)).expect("some port is free");
        let (taken, other) = if is_second { (first + 1, first) } else { (first, first + 1) };
        let fd = tcp();
        socket::bind(fd, &bytes(&format!("{OWN}:{taken}"))).unwrap();
        socket::connect(fd, &to).unwrap();
        let peer = listener.accept().unwrap();
        // From here on it is in TIME-WAIT, and the kernel has no socket there.
        close(fd);
        drop(peer);
        let Some(chosen) = bound(ip, first..=first + 1) else {
            println!("SKIP: the kernel has no IP_LOCAL_PORT_RANGE");
            return;
        };
        let (fd, chosen) = chosen;
        assert_eq!(chosen, other, "{taken} has a connection");
        socket::connect(fd, &to).unwrap();
        close(fd);
        drop(listener.accept().unwrap());
    }
}

#[test]
fn a_destination_elsewhere_stays_the_kernels() {
    peers();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = tcp();
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    assert!(!is_lull(fd));
    close(fd);
}

/// The kernel would connect it past lull.
#[test]
fn a_send_that_connects_is_refused_and_leaves_the_socket_to_be_connected() {
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    let fd = tcp();
    assert_eq!(socket::sends_by_lull(fd, &to, libc::MSG_FASTOPEN), Err(Errno::new(libc::EOPNOTSUPP)));
    assert_eq!(socket::sends_by_lull(fd, &bytes("127.0.0.1:9"), libc::MSG_FASTOPEN), Ok(false), "it is the kernel's");
    socket::connect(fd, &to).unwrap();
    assert!(is_lull(fd));
    close(fd);
    // A datagram is none that connects.
    let fd = udp();
    assert_eq!(socket::sends_by_lull(fd, &to, libc::MSG_FASTOPEN), Ok(true));
    close(fd);
}

#[test]
fn a_connect_that_does_not_wait_is_told_by_epoll_and_by_so_error() {
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    let fd = tcp();
    set_nonblocking(fd);
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT).unwrap();
    // The other end is a thread of this process, and may have answered before the call returns: the next one tells.
    assert_eq!(socket::connect(fd, &to), error(libc::EINPROGRESS));
    assert_ne!(flags::fcntl(fd, libc::F_GETFL, 0).unwrap().unwrap() & libc::O_NONBLOCK, 0, "as it was set before");
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)], "it was on the context before it was lull's");
    let mut value = [0xff; 4];
    assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut value), Some(Ok(4)));
    assert_eq!(value, [0; 4]);
    assert_eq!(socket::connect(fd, &to), Ok(()), "the outcome is told once");
    assert_eq!(socket::connect(fd, &to), error(libc::EISCONN));
    close(fd);
    close(epfd);
}

#[test]
fn a_refused_connection_says_so_and_the_socket_can_be_used_again() {
    let listener = peer_listener();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let fd = tcp();
    assert_eq!(socket::connect(fd, &bytes(&at.to_string())), error(libc::ECONNREFUSED));
    assert!(!is_lull(fd), "it is the kernel's again, unconnected");
    let listener = peer_listener();
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    close(fd);
}

#[test]
fn an_error_of_a_connect_that_did_not_wait_is_err_and_hup() {
    let listener = peer_listener();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let (fd, epfd) = (tcp(), epoll::epoll_create(0).unwrap());
    set_nonblocking(fd);
    if socket::connect(fd, &bytes(&at.to_string())) == error(libc::EINPROGRESS) {
        ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT).unwrap();
        let events = wait(epfd, 8, LOST);
        assert_eq!(events, [(fd, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP)]);
        let mut value = [0; 4];
        assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut value), Some(Ok(4)));
        assert_eq!(c_int::from_ne_bytes(value), libc::ECONNREFUSED);
    }
    close(fd);
    close(epfd);
}

#[test]
fn a_refused_socket_stays_on_its_contexts_and_tells_them_of_the_next_connection() {
    let listener = peer_listener();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let fd = tcp();
    set_nonblocking(fd);
    let epfd = epoll::epoll_create(0).unwrap();
    assert_eq!(socket::connect(fd, &bytes(&at.to_string())), error(libc::EINPROGRESS));
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT | EPOLLERR | EPOLLHUP)]);
    assert_eq!(socket::connect(fd, &bytes(&at.to_string())), error(libc::ECONNREFUSED));
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT | EPOLLHUP)], "it is on the context, without a connection");
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    assert_eq!(socket::connect(fd, &to), error(libc::EINPROGRESS));
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLOUT)], "of the connection that there is now");
    ctl(epfd, libc::EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT).unwrap();
    ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0).unwrap();
    close(fd);
    close(epfd);
}

#[test]
fn a_port_that_was_bound_is_the_connections() {
    let listener = peer_listener();
    let fd = tcp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    let (_, from) = listener.accept().unwrap();
    let name = socket::getsockname(fd).unwrap().unwrap();
    assert_eq!(lull_posix::address::parse(&name), Some(from));
    let other = tcp();
    assert_eq!(socket::bind(other, &bytes(&from.to_string())), error(libc::EADDRINUSE));
    close(other);
    close(fd);
}

#[test]
fn a_port_that_may_be_shared_has_a_connection_to_each_peer_and_no_second_one() {
    let (first, second) = (peer_listener(), peer_listener());
    let to = |listener: &TcpListener| bytes(&listener.local_addr().unwrap().to_string());
    let sockets = [tcp(), tcp()];
    let mut from = bytes(&format!("{OWN}:0"));
    for fd in sockets {
        let on = 1_i32;
        // SAFETY: an int, and its size.
        assert_eq!(0, unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), 4) });
        socket::bind(fd, &from).unwrap();
        from = bytes(&at(fd).to_string());
    }
    socket::connect(sockets[0], &to(&first)).unwrap();
    assert_eq!(socket::connect(sockets[1], &to(&first)), error(libc::EADDRNOTAVAIL));
    socket::connect(sockets[1], &to(&second)).unwrap();
    assert_eq!(first.accept().unwrap().1, second.accept().unwrap().1);
    sockets.into_iter().for_each(close);
}

#[test]
fn shut_wr_ends_the_stream_for_the_peer_and_not_for_us() {
    let (fd, mut peer) = connected();
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    assert_eq!(send(fd, b"x", libc::MSG_NOSIGNAL), error(libc::EPIPE));
    peer.write_all(b"still").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"still");
    assert_eq!(socket::shutdown(fd, 7), error(libc::EINVAL));
    close(fd);
}

#[test]
fn shut_rd_ends_a_listener_and_shut_wr_does_not() {
    let (fd, _) = listener();
    nonblocking(fd);
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(socket::accept(fd, 0).map(|accepted| accepted.fd), Err(WOULD_BLOCK));
    socket::shutdown(fd, libc::SHUT_RD).unwrap();
    assert_eq!(socket::accept(fd, 0).map(|accepted| accepted.fd), error(libc::EINVAL));
    close(fd);
}

#[test]
fn a_program_reaches_its_own_address() {
    let (listening, at) = listener();
    let fd = tcp();
    socket::connect(fd, &bytes(&at.to_string())).unwrap();
    let served = socket::accept(listening, 0).unwrap().fd;
    assert_eq!(send(fd, b"to myself", 0), Ok(9));
    assert_eq!(recv(served, 0).unwrap(), b"to myself");
    assert_eq!(lull_posix::address::parse(&socket::getpeername(served).unwrap().unwrap()), Some(name(fd)));
    close(served);
    assert_eq!(recv(fd, 0).unwrap(), b"");
    close(fd);
    close(listening);
    let fd = tcp();
    assert_eq!(socket::connect(fd, &bytes(&at.to_string())), error(libc::ECONNREFUSED));
    close(fd);
}
