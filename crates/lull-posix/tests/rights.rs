//! Sockets of lull's that one process passes to another over a Unix socket (SCM_RIGHTS). Here both are this one, which has what it
//! was given by the number alone, as another one has.

mod world;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use libc::{EPOLL_CTL_ADD, EPOLLIN, c_int, msghdr};
use lull_net::UdpSocket;
use lull_posix::socket::{Receive, Room, Send};
use lull_posix::{Errno, address, epoll, is_lull, rights, socket, takes_data};
use world::*;

const FULL: &[u8] = &[0; 4096];

fn header(data: &mut libc::iovec, control: &mut [u64]) -> msghdr {
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (data, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(control) as _);
    message
}

/// Passes descriptors on, as the preload library does it.
fn pass(over: &UnixStream, numbers: &[c_int]) -> Result<usize, Errno> {
    with_message(numbers, |message| {
        // SAFETY: the message is whole.
        unsafe {
            assert!(rights::are_in(message));
            rights::sendmsg(over.as_raw_fd(), message, 0)
        }
    })
}

/// A message with these descriptors.
fn with_message<R>(numbers: &[c_int], send: impl FnOnce(&msghdr) -> R) -> R {
    let mut byte = *b"x";
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    let mut message = header(&mut data, &mut control);
    let bytes = size_of_val(numbers) as u32;
    // SAFETY: the control data have room for a header and the numbers.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let part = &mut *libc::CMSG_FIRSTHDR(&raw const message);
        (part.cmsg_level, part.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        part.cmsg_len = libc::CMSG_LEN(bytes) as _;
        std::ptr::copy_nonoverlapping(numbers.as_ptr(), libc::CMSG_DATA(part).cast(), numbers.len());
    }
    send(&message)
}

/// The descriptors that come along with the next message, as many as there are.
fn taken<const N: usize>(from: &UnixStream) -> [c_int; N] {
    let mut byte = [0];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    let mut message = header(&mut data, &mut control);
    let mut numbers = [-1; N];
    // SAFETY: room for what is received; the kernel has written what is read then.
    unsafe {
        let got = libc::recvmsg(from.as_raw_fd(), &raw mut message, 0);
        assert_eq!(rights::received(got, &raw const message), 1);
        let part = libc::CMSG_FIRSTHDR(&raw const message);
        assert_eq!((*part).cmsg_len as u32, libc::CMSG_LEN(size_of_val(&numbers) as u32));
        std::ptr::copy_nonoverlapping(libc::CMSG_DATA(part).cast(), numbers.as_mut_ptr(), N);
    }
    assert!(numbers.iter().all(|number| *number >= 0 && !is_lull(*number)));
    numbers
}

/// What a number stands for is the kernel's to read, write and close.
fn stream(number: c_int) -> UnixStream {
    use std::os::fd::FromRawFd;
    // SAFETY: it was just taken, and nobody else has it.
    unsafe { UnixStream::from_raw_fd(number) }
}

#[test]
fn a_connection_that_is_passed_on_goes_on_after_it_is_closed_here() {
    const BYTES: usize = 3_000_000;
    let (fd, mut peer) = connected();
    let names = (name(fd), address::parse(&socket::getpeername(fd).unwrap().unwrap()));
    let (here, there) = UnixStream::pair().unwrap();
    // What has not been read yet goes with it.
    peer.write_all(b"early").unwrap();
    assert_eq!(pass(&here, &[here.as_raw_fd(), fd]), Ok(1));
    close(fd);
    let [another, number] = taken(&there);
    assert!(!socket::is_named(another) && socket::is_named(number));
    assert_eq!((name(number), address::parse(&socket::getpeername(number).unwrap().unwrap())), names);
    let mut told = [0; 4];
    assert_eq!(socket::getsockopt(number, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut told), Some(Ok(4)));
    assert_eq!(c_int::from_ne_bytes(told), libc::AF_INET);
    drop(stream(another));
    let mut passed = stream(number);
    let mut got = [0; 5];
    passed.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"early");
    let mut writes = passed.try_clone().unwrap();
    let writer = std::thread::spawn(move || writes.write_all(&vec![7; BYTES]).unwrap());
    let mut all = vec![0; BYTES];
    peer.read_exact(&mut all).unwrap();
    writer.join().unwrap();
    assert!(all.iter().all(|byte| *byte == 7));
    peer.write_all(b"late").unwrap();
    passed.read_exact(&mut got[..4]).unwrap();
    assert_eq!(&got[..4], b"late");
    // Shut down, it can still be read; closed everywhere, it is closed.
    passed.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(peer.read(&mut all).unwrap(), 0);
    peer.write_all(b"half").unwrap();
    passed.read_exact(&mut got[..4]).unwrap();
    drop(peer);
    assert_eq!(passed.read(&mut all).unwrap(), 0);
}

#[test]
fn a_connection_that_nobody_takes_is_closed_with_the_last_who_has_it() {
    let (fd, mut peer) = connected();
    let (here, there) = UnixStream::pair().unwrap();
    assert_eq!(pass(&here, &[fd]), Ok(1));
    close(fd);
    drop(there);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

/// As a server does it that is told to try again.
#[test]
fn a_message_that_cannot_be_sent_takes_nothing_from_the_connection() {
    let (fd, mut peer) = connected();
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(FULL).is_ok() {}
    peer.write_all(b"kept").unwrap();
    for _ in 0..10 {
        assert_eq!(pass(&here, &[fd]), Err(WOULD_BLOCK));
    }
    assert_eq!(recv(fd, 0).unwrap(), b"kept");
    drop(there);
    // SIGPIPE is ignored in Rust's programs. A child that another test forks has the end, too, until it has ended.
    let mut passes = std::iter::repeat_with(|| pass(&here, &[fd]));
    assert_eq!(passes.find(|passed| *passed != Err(WOULD_BLOCK)), Some(Err(Errno::new(libc::EPIPE))));
    send(fd, b"mine", 0).unwrap();
    let mut got = [0; 4];
    peer.read_exact(&mut got).unwrap();
    close(fd);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

#[test]
fn a_connection_waits_where_it_is_as_it_did_where_it_was() {
    for is_nonblocking in [false, true] {
        let (fd, _peer) = connected();
        if is_nonblocking {
            nonblocking(fd);
        }
        let (here, there) = UnixStream::pair().unwrap();
        assert_eq!(pass(&here, &[fd]), Ok(1));
        let [number] = taken(&there);
        // SAFETY: a number of this test's.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK != 0, is_nonblocking);
        drop(stream(number));
        close(fd);
    }
}

#[test]
fn a_udp_socket_that_is_passed_on_hears_and_answers() {
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let at = name(fd);
    let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
    let peers_at = peer.local_addr().unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    assert_eq!(pass(&here, &[fd]), Ok(1));
    close(fd);
    let [number] = taken(&there);
    assert!(takes_data(number));
    assert_eq!(name(number), at);
    for question in [&b"first"[..], b"second"] {
        peer.send_to(question, at).unwrap();
        let mut buffer = [0; 64];
        let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut [] };
        let message = socket::recv_message(number, room, Receive { flags: 0 }).unwrap();
        assert_eq!((&buffer[..message.bytes], address::parse(message.from.as_bytes())), (question, Some(peers_at)));
        let to = bytes(&peers_at.to_string());
        assert_eq!(
            socket::send_message(number, &[IoSlice::new(question)], &to, &[], Send::default()),
            Ok(question.len())
        );
        let (count, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..count], from), (question, at));
    }
    drop(stream(number));
}

#[test]
fn what_cannot_be_passed_on_is_refused_and_stays_what_it_was() {
    let (listening, at) = listener();
    let (fd, _peer) = connected();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, listening, EPOLLIN).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    for number in [listening, epfd] {
        assert_eq!(pass(&here, &[fd, number]), Err(Errno::new(libc::EOPNOTSUPP)));
    }
    there.set_nonblocking(true).unwrap();
    assert_eq!((&there).read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let client = lull_net::TcpStream::connect(peers(), at).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(listening, EPOLLIN)]);
    drop(client);
    for number in [epfd, listening, fd] {
        close(number);
    }
}

/// Here a listener has no pool that a child could ask.
#[test]
fn a_listener_that_a_child_cannot_ask_is_refused() {
    let (listening, _) = listener();
    let (here, _there) = UnixStream::pair().unwrap();
    let child = in_a_child(|| pass(&here, &[listening]) == Err(Errno::new(libc::EOPNOTSUPP)));
    ended_well(child);
    close(listening);
}
