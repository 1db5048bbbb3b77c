//! Results of calls that random programs do not make, or not at such moments, each as Linux has it.

mod world;

use std::cell::Cell;
use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use libc::{c_int, iovec, mmsghdr, msghdr};
use lull_net::UdpSocket;
use lull_posix::{Errno, epoll, flags, is_lull, memory, poll, socket};
use world::*;

const fn error<T>(number: c_int) -> Result<T, Errno> {
    Err(Errno::new(number))
}

fn get(fd: c_int, level: c_int, name: c_int) -> Option<Result<c_int, Errno>> {
    let mut value = [0; 4];
    socket::getsockopt(fd, level, name, &mut value).map(|length| length.map(|_| c_int::from_ne_bytes(value)))
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) {
    // SAFETY: an int, and its size.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) }, 0);
}

/// A pipe that does not block: where it is read, and where it is written.
fn pipe() -> (std::fs::File, std::fs::File) {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: room for two numbers, which are nobody else's.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK), 0);
        ends.iter().for_each(|end| lull_posix::files::forget(*end));
        (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1]))
    }
}

fn poll_now(fd: c_int, events: i16) -> i16 {
    let mut polled = [libc::pollfd { fd, events, revents: 0 }];
    poll::poll(&mut polled, Some(NOW)).unwrap();
    polled[0].revents
}

/// So the next write says that the connection was reset, and no SIGPIPE comes.
#[test]
fn a_reset_behind_what_a_blocking_write_has_taken_is_the_next_calls() {
    let (fd, peer) = connected();
    let data = vec![7; 64 << 20];
    let writes = asleep(move || send(fd, &data, libc::MSG_NOSIGNAL));
    peer.set_reset_on_close(true).unwrap();
    drop(peer);
    let taken = writes.join().unwrap().unwrap();
    assert!(taken > 0 && taken < 64 << 20, "{taken}");
    assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ERROR), Some(Ok(libc::ECONNRESET)));
    close(fd);
}

#[test]
fn a_reset_behind_what_a_splice_has_moved_is_the_next_calls() {
    let (fd, mut peer) = connected();
    peer.write_all(b"hello").unwrap();
    peer.set_reset_on_close(true).unwrap();
    drop(peer);
    until("the reset", || poll_now(fd, 0) & libc::POLLERR != 0);
    let (mut end, into) = pipe();
    assert_eq!(socket::splice((fd, false), (into.as_raw_fd(), false), 99, libc::SPLICE_F_NONBLOCK), Ok(5));
    end.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(recv(fd, 0), error(libc::ECONNRESET));
    close(fd);
}

#[test]
fn sendfile_out_of_a_connection_is_a_splice_into_a_pipe_and_nothing_else() {
    let (fd, mut peer) = connected();
    nonblocking(fd);
    peer.write_all(b"hello").unwrap();
    until("data", || poll_now(fd, libc::POLLIN) != 0);
    let (mut end, into) = pipe();
    let sendfile = |to: c_int, offset: Option<&mut libc::off_t>| socket::sendfile(to, fd, offset, 3);
    assert_eq!(sendfile(into.as_raw_fd(), Some(&mut 0)), error(libc::ESPIPE));
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    assert_eq!(sendfile(null.as_raw_fd(), None), error(libc::EINVAL));
    assert_eq!(sendfile(into.as_raw_fd(), None), Ok(3));
    let mut moved = [0; 3];
    end.read_exact(&mut moved).unwrap();
    assert_eq!(&moved, b"hel");
    assert_eq!(sendfile(into.as_raw_fd(), None), Ok(2));
    assert_eq!(sendfile(into.as_raw_fd(), None), error(libc::EAGAIN));
    let directory = std::fs::File::open("/").unwrap();
    assert_eq!(socket::sendfile(fd, directory.as_raw_fd(), None, 3), error(libc::EINVAL));
    close(fd);
}

#[test]
fn a_connection_says_how_long_its_segments_and_its_paths_packets_are_and_who_its_peer_is() {
    let (fd, _peer) = connected();
    let mtu = get(fd, libc::SOL_IP, libc::IP_MTU).unwrap().unwrap();
    assert_eq!(mtu, 1500);
    // 20 bytes of IP, 20 of TCP, and 12 of timestamps.
    assert_eq!(get(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG), Some(Ok(mtu - 52)));
    let peer = socket::getpeername(fd).unwrap().unwrap().to_vec();
    let mut told = [0; 16];
    assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERNAME, &mut told), Some(Ok(16)));
    assert_eq!(told[..], peer[..]);
    assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERNAME, &mut told[..4]), Some(Ok(4)));
    let longer = socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERNAME, &mut [0; 17]);
    assert_eq!(longer, Some(error(libc::EINVAL)));
    close(fd);
}

#[test]
fn a_datagram_socket_says_how_long_packets_to_its_peer_may_be() {
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert_eq!(get(fd, libc::SOL_IP, libc::IP_MTU), None, "without a peer the kernel has the answer");
    socket::connect(fd, &bytes(&format!("{PEER}:9"))).unwrap();
    assert_eq!(get(fd, libc::SOL_IP, libc::IP_MTU), Some(Ok(1500)));
    close(fd);
}

/// Nobody would raise it.
#[test]
fn a_signal_that_tells_of_a_socket_is_refused_and_none_is_not() {
    // Those of <asm-generic/fcntl.h> and <asm-generic/sockios.h> that libc does not have.
    let [set_signal, set_owner_ex] = [10, 15];
    let [set_owner_by_ioctl, set_group_by_ioctl] = [0x8901, 0x8902];
    let (stream, _peer) = connected();
    let datagram = udp();
    socket::bind(datagram, &bytes(&format!("{OWN}:0"))).unwrap();
    let listener = tcp();
    socket::bind(listener, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(listener, 1).unwrap();
    for fd in [stream, datagram, listener] {
        let itself = std::process::id();
        for (command, argument) in [
            (libc::F_SETOWN, itself as usize),
            (set_owner_ex, (&raw const itself).addr()),
            (set_signal, libc::SIGUSR1 as usize),
            (libc::F_SETFL, (libc::O_ASYNC | libc::O_NONBLOCK) as usize),
        ] {
            assert_eq!(flags::fcntl(fd, command, argument), Some(error(libc::EINVAL)), "{command}");
        }
        assert_eq!(flags::fcntl(fd, libc::F_GETFL, 0), Some(Ok(libc::O_RDWR)), "what is refused changes nothing");
        for command in [libc::F_SETOWN, set_signal] {
            assert_ne!(flags::fcntl(fd, command, 0), Some(error(libc::EINVAL)), "{command}");
        }
        for request in [libc::FIOASYNC, set_owner_by_ioctl, set_group_by_ioctl] {
            for (mut value, told) in [(itself as c_int, error(libc::EINVAL)), (0, Ok(()))] {
                // SAFETY: these requests have an `int` there.
                let asked = unsafe { flags::ioctl(fd, request, (&raw mut value).addr()) };
                assert_eq!(asked, Some(told), "{request:#x}");
            }
        }
        close(fd);
    }
}

#[test]
fn a_datagram_socket_is_writable_by_its_third_name_too() {
    for ip in [OWN, "0.0.0.0"] {
        let (fd, epfd) = (udp(), epoll::epoll_create(0).unwrap());
        socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
        ctl(epfd, libc::EPOLL_CTL_ADD, fd, libc::EPOLLWRBAND).unwrap();
        assert_eq!(wait(epfd, 8, LOST), [(fd, libc::EPOLLOUT)]);
        ctl(epfd, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN).unwrap();
        assert_eq!(wait(epfd, 8, NOW), []);
        close(epfd);
        close(fd);
    }
}

/// So programs ask which of their addresses leads to another one.
#[test]
fn a_peer_may_have_port_0_which_nobody_listens_at() {
    let fd = udp();
    socket::connect(fd, &bytes(&format!("{PEER}:0"))).unwrap();
    assert_eq!(name(fd).ip().to_string(), OWN);
    assert!(
        socket::getpeername(fd).is_some_and(|name| name.is_err()),
        "which counts for none where its name is asked for"
    );
    assert_eq!(send(fd, b"x", 0), Ok(1));
    let to = bytes(&format!("{PEER}:0"));
    let sent = socket::send_message(fd, &[IoSlice::new(b"x")], &to, &[], socket::Send { flags: 0 });
    assert_eq!(sent, error(libc::EINVAL), "to send there needs a peer");
    close(fd);
    let fd = tcp();
    assert_eq!(socket::connect(fd, &to), error(libc::ECONNREFUSED));
    close(fd);
}

#[test]
fn an_address_of_a_length_that_none_has_is_not_valid() {
    let (fd, _peer) = connected();
    let to = bytes(&format!("{PEER}:9"));
    // SAFETY: of an address that is too long nothing is read.
    unsafe {
        for length in [129, u32::MAX] {
            assert_eq!(memory::address(to.as_ptr().cast(), length).map(<[u8]>::len), error(libc::EINVAL));
            let sent = socket::sendto(fd, b"x".as_ptr().cast(), 1, 0, to.as_ptr().cast(), length);
            assert_eq!(sent, error(libc::EINVAL));
        }
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), u32::MAX);
        assert_eq!(socket::sendmsg(fd, &message, 0), error(libc::EINVAL));
        assert_eq!(socket::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT), error(libc::EINVAL));
    }
    close(fd);
}

/// Programs name the buffer that they have for an address, which may be longer than any.
#[test]
fn a_message_with_a_name_that_is_longer_than_any_address_goes_by_lull() {
    let fd = udp();
    let peer = UdpSocket::bind(peers(), format!("{PEER}:0")).unwrap();
    let mut to = bytes(&peer.local_addr().unwrap().to_string());
    to.resize(200, 0);
    let mut buffer = iovec { iov_base: b"x".as_ptr().cast_mut().cast(), iov_len: 1 };
    // SAFETY: plain data, for which zeroes are a value; the message, its buffer and its name are here.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
        (message.msg_name, message.msg_namelen) = (to.as_mut_ptr().cast(), 200);
        assert_eq!(socket::message_goes_by_lull(fd, &message, 0), Ok(true));
        assert_eq!(socket::sendmsg(fd, &message, 0), Ok(1));
        message.msg_namelen = u32::MAX;
        assert_eq!(socket::message_goes_by_lull(udp(), &message, 0), Ok(false), "the kernel refuses it");
    }
    close(fd);
}

#[test]
fn a_message_of_a_stream_tells_the_flag_that_it_was_asked_with() {
    let (fd, mut peer) = connected();
    peer.write_all(b"hello").unwrap();
    let mut room = [0_u8; 8];
    let mut buffer = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: plain data, for which zeroes are a value; the message and its buffer are here.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
        assert_eq!(socket::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC), Ok(5));
        assert_eq!(message.msg_flags, libc::MSG_CMSG_CLOEXEC);
    }
    close(fd);
}

#[test]
fn a_connection_that_there_is_does_not_begin_with_data() {
    let (fd, _peer) = connected();
    assert_eq!(send(fd, b"x", libc::MSG_FASTOPEN), error(libc::EOPNOTSUPP));
    close(fd);
}

#[test]
fn a_datagram_socket_that_takes_more_says_so_by_three_names() {
    const NAMES: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert!(is_lull(fd));
    assert_eq!(poll_now(fd, NAMES), NAMES);
    let mut polled = [libc::pollfd { fd, events: libc::POLLWRBAND, revents: 0 }];
    assert_eq!(poll::poll(&mut polled, Some(LOST)), Ok(1));
    let (stream, _peer) = connected();
    assert_eq!(poll_now(stream, NAMES), libc::POLLOUT | libc::POLLWRNORM, "and a connection by two");
    [fd, stream].into_iter().for_each(close);
}

/// An eventfd can always be written to, and says so by one name alone.
#[test]
fn poll_sleeps_by_a_name_that_a_file_of_the_kernels_never_says() {
    // SAFETY: numbers only.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) };
    lull_posix::files::forget(eventfd);
    let (fd, mut peer) = connected();
    let waits = asleep(move || {
        let one = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut polled = [one(eventfd, libc::POLLWRNORM), one(eventfd, libc::POLLIN), one(fd, libc::POLLIN)];
        assert_eq!(poll::poll(&mut polled, Some(LOST)), Ok(1));
        polled.map(|polled| polled.revents)
    });
    peer.write_all(b"x").unwrap();
    assert_eq!(waits.join().unwrap(), [0, 0, libc::POLLIN]);
    // SAFETY: the number is this test's own.
    unsafe { libc::close(eventfd) };
    close(fd);
}

#[test]
fn a_listener_that_was_shut_down_has_queues_as_any_socket() {
    let (fd, _) = listener();
    let mut bytes = -1;
    assert_eq!(ioctl(fd, libc::FIONREAD, &mut bytes), Some(error(libc::EINVAL)));
    socket::shutdown(fd, libc::SHUT_RDWR).unwrap();
    assert_eq!(ioctl(fd, libc::FIONREAD, &mut bytes), None, "the placeholder has the answer");
    close(fd);
}

#[test]
fn ancillary_data_of_other_protocols_are_passed_over() {
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let peer = UdpSocket::bind(peers(), format!("{PEER}:0")).unwrap();
    let to = bytes(&peer.local_addr().unwrap().to_string());
    let control = |level: c_int| [&16_usize.to_ne_bytes()[..], &level.to_ne_bytes(), &99_i32.to_ne_bytes()].concat();
    let sent = |level| socket::send_message(fd, &[IoSlice::new(b"x")], &to, &control(level), socket::Send { flags: 0 });
    assert_eq!(sent(libc::IPPROTO_TCP), Ok(1));
    assert_eq!(sent(libc::SOL_IP), error(libc::EINVAL));
    close(fd);
}

/// With IP_BIND_ADDRESS_NO_PORT a port is chosen by `listen`.
#[test]
fn a_port_that_bind_has_left_to_listen_is_one() {
    peers();
    let fd = tcp();
    set(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert_eq!(name(fd).port(), 0);
    socket::listen(fd, 4).unwrap();
    assert_ne!(name(fd).port(), 0);
    let _peer = lull_net::TcpStream::connect(peers(), at(fd)).unwrap();
    close(socket::accept(fd, 0).unwrap().fd);
    close(fd);
}

/// `recvmmsg` of two messages.
fn receive_two(fd: c_int) -> c_int {
    let mut rooms = [[0_u8; 8]; 2];
    let mut buffers = rooms.each_mut().map(|room| iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
    let failure = Cell::new(None);
    // SAFETY: plain data, for which zeroes are a value; the messages and their buffers are here.
    unsafe {
        let mut messages: [mmsghdr; 2] = std::mem::zeroed();
        for (message, buffer) in messages.iter_mut().zip(&mut buffers) {
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (buffer, 1);
        }
        socket::recvmmsg(fd, messages.as_mut_ptr(), 2, 0, None, |message, flags, is_first| {
            socket::recvmsg_of_several(fd, message, flags, is_first).map_or_else(
                |error| {
                    failure.set(Some(error));
                    -1
                },
                |count| count as isize,
            )
        })
    }
}

/// What came is what it returns; the first message is waited for anew.
#[test]
fn a_signal_ends_the_wait_for_a_later_message_though_its_handler_restarts_calls() {
    extern "C" fn nothing(_signal: c_int) {}
    // SAFETY: plain data, for which zeroes are a value.
    let mut asked: libc::sigaction = unsafe { std::mem::zeroed() };
    (asked.sa_sigaction, asked.sa_flags) = (nothing as extern "C" fn(c_int) as usize, libc::SA_RESTART);
    lull_posix::signals::sigaction(libc::SIGUSR1, Some(&asked), libc::sigaction).unwrap();
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let peer = UdpSocket::bind(peers(), format!("{PEER}:0")).unwrap();
    let waits = asleep(move || receive_two(fd));
    waits.interrupt();
    until("it waits anew", || waits.sleeps_or_is_over());
    assert!(!waits.is_over());
    peer.send_to(b"one", at(fd)).unwrap();
    until("the first was read", || poll_now(fd, libc::POLLIN) == 0 && waits.sleeps_or_is_over());
    assert!(!waits.is_over());
    until("the signal ends it", || {
        waits.interrupt();
        std::thread::sleep(Duration::from_millis(1));
        waits.is_over()
    });
    assert_eq!(waits.join().unwrap(), 1);
    close(fd);
}
