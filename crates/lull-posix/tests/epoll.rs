//! Epoll over both worlds, with Linux's results.

mod world;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int};
use lull_net::{TcpStream, UdpSocket};
use lull_posix::{Errno, epoll, files, socket};
use world::*;

fn context() -> c_int {
    peers();
    epoll::epoll_create(libc::EPOLL_CLOEXEC).unwrap()
}

#[test]
fn a_level_is_reported_again_until_it_is_drained() {
    let (fd, mut peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    peer.write_all(b"x").unwrap();
    for _ in 0..3 {
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    }
    recv(fd, 0).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    close(fd);
    close(epfd);
}

/// As where a program makes it by number, or has it from another process: with what is on it already.
#[test]
fn a_context_that_lull_has_not_seen_made_is_one_for_both_worlds_from_its_first_member_of_lulls_on() {
    let ((fd, mut peer), (mut far, near)) = (connected(), UnixStream::pair().unwrap());
    // SAFETY: numbers only.
    let epfd = unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) } as c_int;
    ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    peer.write_all(b"x").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    recv(fd, 0).unwrap();
    far.write_all(b"x").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(near.as_raw_fd(), EPOLLIN)]);
    assert_eq!(ctl(near.as_raw_fd(), EPOLL_CTL_ADD, fd, EPOLLIN), Err(Errno::new(libc::EINVAL)), "no context");
    close(fd);
    close(epfd);
}

#[test]
fn an_edge_is_reported_once_and_a_one_shot_until_it_is_modified() {
    let (fd, mut peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    peer.write_all(b"x").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN | EPOLLOUT)]);
    close(fd);
    close(epfd);
}

#[test]
fn members_of_both_worlds_are_reported_by_one_wait() {
    let (fd, mut peer) = connected();
    let (mut far, near) = UnixStream::pair().unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    far.write_all(b"x").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(near.as_raw_fd(), EPOLLIN)], "with a member of lull's that has nothing");
    peer.write_all(b"x").unwrap();
    let mut seen = Vec::new();
    until("both", || {
        seen = wait(epfd, 8, LOST);
        seen.len() == 2
    });
    seen.sort_unstable();
    let mut both = [(near.as_raw_fd(), EPOLLIN), (fd, EPOLLIN)];
    both.sort_unstable();
    assert_eq!(seen, both);
    close(fd);
    close(epfd);
}

/// A listener on a wildcard that has a connection in each world, and a member of the kernel's that is always ready: a wait that tells
/// of it has asked the kernel's context, which holds the listener's other half.
struct BothHalves {
    epfd: c_int,
    listener: c_int,
    near: UnixStream,
    _others: (UnixStream, TcpStream, std::net::TcpStream),
}

impl BothHalves {
    /// The listener is told of first while lull's half alone has a connection.
    fn begin(events: c_int) -> BothHalves {
        let (epfd, (mut far, near)) = (context(), UnixStream::pair().unwrap());
        let (listener, at) = listener_at("0.0.0.0");
        ctl(epfd, EPOLL_CTL_ADD, listener, events).unwrap();
        let lulls = TcpStream::connect(peers(), SocketAddr::new(OWN.parse().unwrap(), at.port())).unwrap();
        assert_eq!(wait(epfd, 8, LOST), [(listener, EPOLLIN)]);
        let kernels = std::net::TcpStream::connect(("127.0.0.1", at.port())).unwrap();
        ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
        far.write_all(b"x").unwrap();
        BothHalves { epfd, listener, near, _others: (far, lulls, kernels) }
    }

    /// How often the listener is told of until the kernel's context has been asked, at most so often in a wait.
    fn told(&self, most: usize) -> usize {
        let mut told = 0;
        until("the kernel's context is asked", || {
            let seen = wait(self.epfd, 8, NOW);
            let here = seen.iter().filter(|(fd, _)| *fd == self.listener).count();
            assert!(here <= most, "{seen:?}");
            told += here;
            seen.contains(&(self.near.as_raw_fd(), EPOLLIN))
        });
        told
    }

    fn end(self) {
        [self.listener, self.epfd].into_iter().for_each(close);
    }
}

#[test]
fn a_listener_with_connections_of_both_worlds_is_told_of_once_by_a_wait() {
    let halves = BothHalves::begin(EPOLLIN);
    assert!(halves.told(1) >= 1);
    halves.end();
}

#[test]
fn a_one_shot_listener_in_both_worlds_is_told_of_by_one_of_them_until_it_is_modified() {
    let halves = BothHalves::begin(EPOLLIN | EPOLLONESHOT);
    for _ in 0..2 {
        assert_eq!(halves.told(0), 0);
    }
    for _ in 0..2 {
        ctl(halves.epfd, EPOLL_CTL_MOD, halves.listener, EPOLLIN | EPOLLONESHOT).unwrap();
        assert_eq!(halves.told(1), 1);
        assert_eq!(halves.told(0), 0);
    }
    ctl(halves.epfd, EPOLL_CTL_MOD, halves.listener, EPOLLIN).unwrap();
    assert!(halves.told(1) + halves.told(1) >= 2);
    halves.end();
}

/// A notification descriptor is where a program's new connections come from: it must not starve behind busy sockets.
#[test]
fn a_member_of_the_kernels_is_seen_while_lulls_are_always_ready() {
    let (fd, mut peer) = connected();
    let (mut far, near) = UnixStream::pair().unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    peer.write_all(b"never read").unwrap();
    assert_eq!(wait(epfd, 1, LOST), [(fd, EPOLLIN)]);
    far.write_all(b"x").unwrap();
    until("the kernel's turn", || wait(epfd, 1, LOST) == [(near.as_raw_fd(), EPOLLIN)]);
    until("lull's turn", || wait(epfd, 1, LOST) == [(fd, EPOLLIN)]);
    close(fd);
    close(epfd);
}

/// A dispatcher accepts, and another thread that sleeps already gets the connection on its context.
#[test]
fn a_member_of_lulls_that_another_thread_adds_wakes_a_sleeper() {
    let (listening, at) = listener();
    let epfd = context();
    let (_far, near) = UnixStream::pair().unwrap();
    ctl(epfd, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    let sleeper = asleep(move || wait(epfd, 8, LOST));
    let peer = thread::spawn(move || {
        let mut peer = TcpStream::connect(peers(), at).unwrap();
        peer.write_all(b"x").unwrap();
        peer
    });
    let fd = socket::accept(listening, 0).unwrap().fd;
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(fd, EPOLLIN)]);
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)], "what called the sleeper is no event");
    drop(peer.join().unwrap());
    [fd, listening, epfd].into_iter().for_each(close);
}

#[test]
fn a_socket_that_becomes_a_listener_moves_with_the_context_that_has_it() {
    let epfd = context();
    let fd = tcp();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(wait(epfd, 8, NOW), [(fd, libc::EPOLLHUP)], "an unconnected socket, as Linux says");
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 1).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    let peer = TcpStream::connect(peers(), at(fd)).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    drop(peer);
    close(fd);
    assert_eq!(wait(epfd, 8, NOW), [], "closed, it has left");
    close(epfd);
}

/// The C library closes descriptors by itself (`fclose`): nobody saw the former member of that number go.
#[test]
fn a_wildcard_listener_does_not_join_a_context_that_its_numbers_former_socket_was_on() {
    let epfd = context();
    let former = tcp();
    ctl(epfd, EPOLL_CTL_ADD, former, EPOLLIN).unwrap();
    let fd = tcp();
    // SAFETY: both numbers are this test's own. The former socket is closed, and a new one has its number.
    assert_eq!(unsafe { libc::dup2(fd, former) }, former);
    close(fd);
    socket::bind(former, &bytes("0.0.0.0:0")).unwrap();
    socket::listen(former, 1).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_DEL, former, 0), Err(Errno::new(libc::ENOENT)), "it was never added");
    ctl(epfd, EPOLL_CTL_ADD, former, EPOLLIN).unwrap();
    let peer = TcpStream::connect(peers(), at(former)).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(former, EPOLLIN)]);
    drop(peer);
    close(former);
    close(epfd);
}

/// What one wait reports, by number.
fn told(epfd: c_int) -> Vec<(c_int, c_int)> {
    let mut told = wait(epfd, 8, LOST);
    told.sort_unstable();
    told
}

#[test]
fn a_socket_is_a_member_of_its_own_under_each_of_its_numbers() {
    let error = |number| Err(Errno::new(number));
    let (fd, mut peer) = connected();
    let other = files::duplicate(fd, fd, true).unwrap();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    // As nfs-ganesha, which sends by a duplicate.
    ctl(epfd, EPOLL_CTL_ADD, other, EPOLLOUT | EPOLLONESHOT).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, other, EPOLLOUT), error(libc::EEXIST));
    assert_eq!(told(epfd), [(other, EPOLLOUT)]);
    peer.write_all(b"x").unwrap();
    assert_eq!(told(epfd), [(fd, EPOLLIN)], "the other one was told of once");
    ctl(epfd, EPOLL_CTL_MOD, other, EPOLLIN | EPOLLONESHOT).unwrap();
    assert_eq!(told(epfd), [(other, EPOLLIN)], "and this one has had its edge");
    ctl(epfd, EPOLL_CTL_MOD, other, EPOLLIN).unwrap();
    ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN).unwrap();
    assert_eq!(told(epfd), [(fd, EPOLLIN), (other, EPOLLIN)]);
    ctl(epfd, EPOLL_CTL_DEL, fd, 0).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, 0), error(libc::ENOENT));
    assert_eq!(told(epfd), [(other, EPOLLIN)]);
    close(epfd);
    [fd, other].into_iter().for_each(close);
}

#[test]
fn a_member_stays_until_the_last_number_of_its_file_is_closed() {
    let error = |number| Err(Errno::new(number));
    let (first, mut peer) = connected();
    // No other test gets this number once it is closed: it is not among the lowest free ones.
    const HIGH: c_int = 700;
    let fd = files::duplicate(first, HIGH, true).unwrap();
    let other = files::duplicate(fd, fd, true).unwrap();
    close(first);
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    close(fd);
    peer.write_all(b"x").unwrap();
    assert_eq!(told(epfd), [(fd, EPOLLIN)], "closed, but for the other number");
    assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, 0), error(libc::EBADF));
    let (next, mut nexts_peer) = connected();
    let next = moved(next, fd);
    for what in [EPOLL_CTL_DEL, EPOLL_CTL_MOD] {
        assert_eq!(ctl(epfd, what, next, EPOLLIN), error(libc::ENOENT), "the number is another file's");
    }
    ctl(epfd, EPOLL_CTL_ADD, next, EPOLLIN | EPOLLOUT).unwrap();
    assert_eq!(told(epfd), [(fd, EPOLLIN), (next, EPOLLOUT)], "both are there by this number");
    close(other);
    assert_eq!(told(epfd), [(next, EPOLLOUT)], "the last number is closed");
    nexts_peer.write_all(b"x").unwrap();
    until("it is told of", || told(epfd) == [(next, EPOLLIN | EPOLLOUT)]);
    [next, epfd].into_iter().for_each(close);
}

/// The file of `fd` is under `to` alone.
fn moved(fd: c_int, to: c_int) -> c_int {
    files::duplicate_to(fd, to, 0).unwrap();
    close(fd);
    to
}

/// Listeners and UDP sockets, of lull's alone and in both worlds.
#[test]
fn members_in_parts_are_members_by_each_number() {
    for (ip, is_stream) in [(OWN, true), ("0.0.0.0", true), (OWN, false), ("0.0.0.0", false)] {
        let fd = if is_stream { listener_at(ip).0 } else { udp() };
        if !is_stream {
            socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
        }
        let other = files::duplicate(fd, fd, true).unwrap();
        let epfd = context();
        [fd, other].into_iter().for_each(|number| ctl(epfd, EPOLL_CTL_ADD, number, EPOLLIN).unwrap());
        let to = SocketAddr::new(OWN.parse().unwrap(), name(fd).port());
        let _peer = if is_stream {
            Some(TcpStream::connect(peers(), to).unwrap())
        } else {
            let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
            peer.send_to(b"x", to).unwrap();
            None
        };
        until("both are told of", || told(epfd) == [(fd, EPOLLIN), (other, EPOLLIN)]);
        ctl(epfd, EPOLL_CTL_DEL, fd, 0).unwrap();
        assert_eq!(told(epfd), [(other, EPOLLIN)], "{ip} {is_stream}");
        ctl(epfd, EPOLL_CTL_MOD, other, 0).unwrap();
        assert_eq!(wait(epfd, 8, NOW), [], "{ip} {is_stream}");
        [fd, other, epfd].into_iter().for_each(close);
    }
}

#[test]
fn errors_are_linuxs() {
    let (fd, _peer) = connected();
    let epfd = context();
    let error = |number| Err(Errno::new(number));
    assert_eq!(ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN), error(libc::ENOENT));
    assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, EPOLLIN), error(libc::ENOENT));
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN), error(libc::EEXIST));
    assert_eq!(ctl(epfd, 77, fd, EPOLLIN), error(libc::EINVAL));
    assert_eq!(epoll::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, None), error(libc::EFAULT));
    assert_eq!(epoll::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, None), Ok(()), "an event is not looked at");
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, 999_999, EPOLLIN), error(libc::EBADF));
    assert_eq!(ctl(fd, EPOLL_CTL_ADD, epfd, EPOLLIN), error(libc::EINVAL), "a socket is no context");
    assert_eq!(epoll::epoll_wait(epfd, &mut [], None), Err(Errno::new(libc::EINVAL)), "no room");
    let one = &mut [std::mem::MaybeUninit::uninit()];
    assert_eq!(epoll::epoll_wait(fd, one, None), Err(Errno::new(libc::EINVAL)), "a socket is no context");
    close(fd);
    close(epfd);
}

#[test]
fn the_end_of_a_stream_is_rdhup_and_readable() {
    let (fd, mut peer) = connected();
    let epfd = context();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP).unwrap();
    peer.shutdown(lull_net::Shutdown::Write).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN | EPOLLRDHUP)]);
    assert_eq!(recv(fd, 0).unwrap(), b"");
    send(fd, b"x", 0).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 1);
    close(fd);
    close(epfd);
}
