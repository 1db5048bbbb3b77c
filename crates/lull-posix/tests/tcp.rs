//! TCP servers: what listens, what is accepted, and what is read and written, with Linux's results.

mod world;

use std::io::{Read, Write};
use std::thread;

use libc::c_int;
use lull_net::TcpStream;
use lull_posix::{Errno, files, flags, is_lull, socket};
use world::*;

#[test]
fn a_server_answers_on_lulls_address() {
    let (fd, mut peer) = connected();
    peer.write_all(b"hello").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"hello", "it waits");
    assert_eq!(send(fd, b"world", 0), Ok(5));
    let mut answer = [0; 5];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"world");
    close(fd);
    assert_eq!(peer.read(&mut answer).unwrap(), 0, "closing ends the stream");
    assert!(!is_lull(fd));
}

#[test]
fn an_address_of_the_kernels_stays_the_kernels() {
    let (fd, at) = listener_at("127.0.0.1");
    assert!(!is_lull(fd));
    let mut client = std::net::TcpStream::connect(at).unwrap();
    let accepted = socket::accept(fd, 0).unwrap();
    assert!(!is_lull(accepted.fd));
    client.write_all(b"x").unwrap();
    close(accepted.fd);
    close(fd);
}

#[test]
fn a_wildcard_listener_accepts_from_both_worlds() {
    let (fd, at) = listener_at("0.0.0.0");
    assert!(is_lull(fd));
    let lulls = TcpStream::connect(peers(), (OWN.parse::<std::net::IpAddr>().unwrap(), at.port())).unwrap();
    let kernels = std::net::TcpStream::connect(("127.0.0.1", at.port())).unwrap();
    let mut accepted = [socket::accept(fd, 0).unwrap().fd, socket::accept(fd, 0).unwrap().fd];
    accepted.sort_by_key(|fd| is_lull(*fd));
    assert_eq!(accepted.map(is_lull), [false, true], "one of each, whichever comes first");
    nonblocking(fd);
    assert_eq!(socket::accept(fd, 0).map(|accepted| accepted.fd), Err(WOULD_BLOCK));
    drop((lulls, kernels));
    accepted.into_iter().for_each(close);
    close(fd);
}

#[test]
fn accept_gives_the_whole_length_of_the_peers_address() {
    let (listening, at) = listener();
    let peer = TcpStream::connect(peers(), at).unwrap();
    let accepted = socket::accept(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
    assert_eq!(lull_posix::address::parse(accepted.peer()), Some(peer.local_addr().unwrap()));
    assert_eq!(socket::getpeername(accepted.fd).unwrap().unwrap().to_vec(), accepted.peer());
    assert_eq!(lull_posix::address::parse(&socket::getsockname(accepted.fd).unwrap().unwrap()), Some(at));
    assert_eq!(recv(accepted.fd, 0), Err(WOULD_BLOCK), "SOCK_NONBLOCK");
    // SAFETY: a number and a command.
    assert_eq!(unsafe { libc::fcntl(accepted.fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
    assert_eq!(socket::accept(listening, 1 << 30).map(|accepted| accepted.fd), Err(Errno::new(libc::EINVAL)));
    close(accepted.fd);
    close(listening);
}

#[test]
fn a_port_that_is_taken_is_refused_and_free_again_after_close() {
    let (fd, at) = listener();
    let other = tcp();
    let bound = socket::bind(other, &bytes(&at.to_string()));
    assert_eq!(bound, Err(Errno::new(libc::EADDRINUSE)), "the kernel keeps account of ports");
    close(fd);
    socket::bind(other, &bytes(&at.to_string())).unwrap();
    socket::listen(other, 1).unwrap();
    socket::listen(other, 5).unwrap();
    close(other);
}

#[test]
fn o_nonblock_is_not_inherited_from_the_listener_and_not_shared_by_connections() {
    let (listening, at) = listener();
    nonblocking(listening);
    let _peers = [TcpStream::connect(peers(), at).unwrap(), TcpStream::connect(peers(), at).unwrap()];
    let mut fds = Vec::new();
    until("two connections", || {
        fds.extend(socket::accept(listening, 0).map(|accepted| accepted.fd));
        fds.len() == 2
    });
    nonblocking(fds[0]);
    let flags = |fd: c_int| flags::fcntl(fd, libc::F_GETFL, 0).unwrap().unwrap();
    assert_eq!((flags(fds[0]), flags(fds[1])), (libc::O_RDWR | libc::O_NONBLOCK, libc::O_RDWR));
    let mut on = 1;
    assert_eq!(ioctl(fds[1], libc::FIONBIO, &mut on), Some(Ok(())));
    assert_eq!(recv(fds[1], 0), Err(WOULD_BLOCK));
    fds.into_iter().chain([listening]).for_each(close);
}

#[test]
fn msg_peek_leaves_the_data_and_msg_dontwait_does_not_wait() {
    let (fd, mut peer) = connected();
    assert_eq!(recv(fd, libc::MSG_DONTWAIT), Err(WOULD_BLOCK));
    peer.write_all(b"peek").unwrap();
    until("the data", || recv(fd, libc::MSG_PEEK | libc::MSG_DONTWAIT).is_ok_and(|data| data == b"peek"));
    assert_eq!(recv(fd, 0).unwrap(), b"peek");
    close(fd);
}

#[test]
fn msg_waitall_waits_for_the_whole_and_ends_with_the_stream() {
    let (fd, mut peer) = connected();
    let sender = thread::spawn(move || {
        for part in [&b"one"[..], b"two", b"three"] {
            peer.write_all(part).unwrap();
        }
        peer.shutdown(lull_net::Shutdown::Write).unwrap();
        peer
    });
    assert_eq!(recv(fd, libc::MSG_WAITALL).unwrap(), b"onetwothree");
    drop(sender.join().unwrap());
    close(fd);
}

/// The second wait of MSG_WAITALL has what the first left of the time that the call began with.
#[test]
fn a_timeout_that_is_changed_while_a_call_waits_is_the_next_calls() {
    let timeout = |fd: c_int, ms: i64| {
        let value: Vec<u8> = [ms / 1_000, ms % 1_000 * 1_000].iter().flat_map(|part| part.to_ne_bytes()).collect();
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value).unwrap();
    };
    // On a busy machine a short time may be over before anything is sent.
    for ms in [500, 5_000, 50_000] {
        let (fd, mut peer) = connected();
        timeout(fd, ms);
        let receiver = asleep(move || recv(fd, libc::MSG_WAITALL));
        timeout(fd, 0);
        peer.write_all(b"part").unwrap();
        until("the call returns", || receiver.is_over());
        let received = receiver.join().unwrap();
        close(fd);
        if received != Err(WOULD_BLOCK) {
            assert_eq!(received.unwrap(), b"part");
            return;
        }
    }
    panic!("nothing came in time");
}

/// Of two calls that wait, one has the connection that comes, and the other ends in the time that it began with.
#[test]
fn an_accept_ends_after_the_time_that_its_listener_had_when_it_began() {
    let timeout = |fd: c_int, seconds: i64| {
        let value: Vec<u8> = [seconds, 0].iter().flat_map(|part| part.to_ne_bytes()).collect();
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value).unwrap();
    };
    let (fd, at) = listener();
    timeout(fd, 5);
    let began = std::time::Instant::now();
    let accepting = [(); 2].map(|()| asleep(move || socket::accept(fd, 0).map(|accepted| accepted.fd)));
    timeout(fd, 0);
    let peer = TcpStream::connect(peers(), at).unwrap();
    until("both calls return", || accepting.iter().all(Asleep::is_over));
    let mut accepted = accepting.map(|call| call.join().unwrap()).to_vec();
    accepted.retain(|result| *result != Err(WOULD_BLOCK));
    // On a busy machine the time of both may be over before the connection comes.
    assert!(accepted.len() <= 1 && began.elapsed() >= std::time::Duration::from_secs(5), "{accepted:?}");
    accepted.into_iter().for_each(|result| close(result.unwrap()));
    drop(peer);
    close(fd);
}

#[test]
fn a_blocking_send_takes_everything() {
    let (fd, mut peer) = connected();
    let data: Vec<u8> = (0..1_000_000_u32).map(|nth| nth as u8).collect();
    let sent = data.clone();
    let sender = thread::spawn(move || assert_eq!(send(fd, &sent, 0), Ok(1_000_000)));
    let mut got = vec![0; data.len()];
    peer.read_exact(&mut got).unwrap();
    assert!(got == data);
    sender.join().unwrap();
    close(fd);
}

#[test]
fn duplicates_are_one_socket_that_closes_with_the_last_of_them() {
    let (fd, mut peer) = connected();
    let again = files::duplicate(fd, 0, false).unwrap();
    close(fd);
    assert_eq!(send(again, b"x", 0), Ok(1));
    assert_eq!(peer.read(&mut [0]).unwrap(), 1, "it is open");
    // A number of the kernel's is replaced, and a number of lull's by one of the kernel's.
    let other = tcp();
    assert_eq!(files::duplicate_to(again, other, 0), Ok(other));
    close(again);
    assert!(is_lull(other));
    let null = std::fs::File::open("/dev/null").unwrap();
    files::duplicate_to(std::os::fd::AsRawFd::as_raw_fd(&null), other, 0).unwrap();
    assert!(!is_lull(other));
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the last number is gone");
    close(other);
}

#[test]
fn options_of_a_listener_are_inherited_and_read_back() {
    peers();
    let fd = tcp();
    let number = |value: c_int| value.to_ne_bytes();
    // Before it is bound the kernel stores them.
    let linger = [number(1), number(0)].concat();
    for (level, name, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, &number(1)[..]),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, &number(1)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &number(77)),
        (libc::SOL_SOCKET, libc::SO_LINGER, &linger),
    ] {
        // SAFETY: a value and its size.
        assert_eq!(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32) }, 0);
    }
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 1).unwrap();
    let mut name = [0_u8; 16];
    let mut length = 16_u32;
    // SAFETY: room for the address, and its size.
    unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &raw mut length) };
    let mut peer = TcpStream::connect(peers(), lull_posix::address::parse(&name).unwrap()).unwrap();
    let accepted = socket::accept(fd, 0).unwrap().fd;
    let get = |level, name| {
        let mut value = [0; 8];
        let length = socket::getsockopt(accepted, level, name, &mut value)?.unwrap();
        Some(value[..length].to_vec())
    };
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY), Some(number(1).to_vec()));
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), Some(number(1).to_vec()));
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), Some(number(77).to_vec()));
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_LINGER), Some(linger));
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_ERROR), Some(number(0).to_vec()));
    socket::setsockopt(accepted, libc::SOL_IP, libc::IP_TOS, &number(0x10)).unwrap();
    assert_eq!(get(libc::SOL_IP, libc::IP_TOS), Some(number(0x10).to_vec()), "stored, without effect");
    close(accepted);
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "SO_LINGER with a time of zero resets");
    close(fd);
}

/// A filter that lets everything through: one instruction, `ret 0xffff`. False where the kernel takes filters of a TCP socket from
/// privileged users only.
fn attach_filter(fd: c_int) -> bool {
    let mut all = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0xffff };
    let program = libc::sock_fprog { len: 1, filter: &raw mut all };
    let length = size_of::<libc::sock_fprog>() as u32;
    // SAFETY: the struct that the option reads, and the instruction that it points to.
    let set =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), length) };
    let refused = std::io::Error::last_os_error();
    assert!(set == 0 || refused.raw_os_error() == Some(libc::EPERM), "{refused}");
    set == 0
}

/// A kernel before 6.9 has it for UDP alone.
fn peek_from_the_beginning(fd: c_int) -> bool {
    let zero = 0_i32.to_ne_bytes();
    // SAFETY: an option of the size of an int.
    0 == unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, zero.as_ptr().cast(), 4) }
}

/// Gives a socket of the kernel's an option that anybody may set and that lull would have to ignore.
fn ask_for_zerocopy(fd: c_int) -> bool {
    let one = 1_i32.to_ne_bytes();
    // SAFETY: an option of the size of an int.
    assert_eq!(0, unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, one.as_ptr().cast(), 4) });
    true
}

#[test]
fn options_that_change_data_or_security_are_refused_and_never_stored() {
    let (fd, _peer) = connected();
    let (listening, _) = listener();
    let one = 1_i32.to_ne_bytes();
    for (level, name) in [
        (libc::IPPROTO_TCP, libc::TCP_ULP),
        (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
        (libc::SOL_IP, libc::IP_TRANSPARENT),
    ] {
        for socket in [fd, listening] {
            let set = socket::setsockopt(socket, level, name, &one);
            assert_eq!(set, Err(Errno::new(libc::ENOPROTOOPT)), "{level} {name}: as a kernel without it");
        }
    }
    [fd, listening].into_iter().for_each(close);
    // What was set before a socket becomes lull's would be as silent.
    for set in [ask_for_zerocopy, attach_filter, peek_from_the_beginning] {
        let fd = tcp();
        if !set(fd) {
            println!("SKIP: an option that the kernel does not take of this user, or not on such a socket");
            close(fd);
            continue;
        }
        socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
        assert_eq!(socket::listen(fd, 1), Err(Errno::new(libc::EOPNOTSUPP)));
        assert!(!is_lull(fd));
        close(fd);
        let fd = tcp();
        assert!(set(fd));
        socket::bind(fd, &bytes("0.0.0.0:0")).unwrap();
        socket::listen(fd, 1).unwrap();
        assert!(!is_lull(fd), "on a wildcard it is the kernel's");
        close(fd);
    }
    let fd = tcp();
    ask_for_zerocopy(fd);
    let to = bytes(&peer_listener().local_addr().unwrap().to_string());
    assert_eq!(socket::connect(fd, &to), Err(Errno::new(libc::EOPNOTSUPP)));
    close(fd);
}

#[test]
fn a_range_of_numbers_is_closed_with_what_is_lulls_in_it() {
    let (fd, mut peer) = connected();
    assert_eq!(files::close_range(fd as u32, fd as u32, 0, |_, _| 0), 0);
    // The number may be another test's socket by now, so it is the peer that shows the close.
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the peer is told");
}

#[test]
fn a_listener_neither_reads_nor_connects() {
    let (fd, _) = listener();
    assert_eq!(recv(fd, 0), Err(Errno::new(libc::ENOTCONN)));
    assert_eq!(send(fd, b"x", libc::MSG_NOSIGNAL), Err(Errno::new(libc::EPIPE)));
    assert_eq!(socket::getpeername(fd).map(|name| name.map(|_| ())), Some(Err(Errno::new(libc::ENOTCONN))));
    let mut accepts = [0; 4];
    assert_eq!(socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, &mut accepts), Some(Ok(4)));
    assert_eq!(accepts, 1_i32.to_ne_bytes());
    close(fd);
}

/// `SIOCOUTQNSD` of `include/uapi/linux/sockios.h`.
const UNSENT: libc::c_ulong = 0x894b;

/// An `int` that a request writes.
fn asked(fd: c_int, request: libc::c_ulong) -> Option<Result<c_int, Errno>> {
    let mut value = -1;
    Some(ioctl(fd, request, &mut value)?.map(|()| value))
}

#[test]
fn the_queues_of_a_connection_are_told() {
    /// `SIOCATMARK`.
    const AT_MARK: libc::c_ulong = 0x8905;
    let (fd, mut peer) = connected();
    nonblocking(fd);
    assert_eq!(asked(fd, libc::FIONREAD), Some(Ok(0)));
    peer.write_all(b"hello").unwrap();
    until("what was sent", || asked(fd, libc::FIONREAD) == Some(Ok(5)));
    assert_eq!(recv(fd, libc::MSG_PEEK), Ok(b"hello".to_vec()));
    assert_eq!((asked(fd, libc::FIONREAD), asked(fd, AT_MARK)), (Some(Ok(5)), Some(Ok(0))));
    let sent = fill(fd);
    let Some(Ok(unsent)) = asked(fd, UNSENT) else { panic!("it is a connection") };
    assert!(unsent > 0 && (unsent as usize) < sent, "{unsent} of {sent}");
    socket::shutdown(fd, libc::SHUT_WR).unwrap();
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent);
    until("the last acknowledgement", || asked(fd, libc::TIOCOUTQ) == Some(Ok(0)));
    close(fd);
    let (listening, _) = listener();
    assert_eq!(asked(listening, libc::FIONREAD), Some(Err(Errno::new(libc::EINVAL))));
    // SAFETY: null is looked at.
    let nowhere = unsafe { flags::ioctl(listening, libc::FIONBIO, 0) };
    assert_eq!(nowhere, Some(Err(Errno::new(libc::EFAULT))));
    close(listening);
}

#[test]
fn tcp_info_is_the_connections_and_as_long_as_the_kernels() {
    let (fd, peer) = connected();
    let state = || {
        let mut info = [0xff; 1024];
        let length = socket::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).unwrap().unwrap();
        (info[0], length)
    };
    let kernels = tcp();
    let mut length = 1024;
    let mut info = [0_u8; 1024];
    // SAFETY: room for the struct, and its size.
    let got = unsafe {
        libc::getsockopt(kernels, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!((got, state()), (0, (1, length as usize)), "TCP_ESTABLISHED");
    let mut short = [0xff; 8];
    assert_eq!(socket::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut short), Some(Ok(8)), "cut off");
    assert_eq!(short[0], 1);
    peer.shutdown(lull_net::Shutdown::Write).unwrap();
    until("TCP_CLOSE_WAIT", || state().0 == 8);
    close(fd);
    close(kernels);
}

fn linger(fd: c_int, seconds: c_int) {
    let value = [1_i32.to_ne_bytes(), seconds.to_ne_bytes()].concat();
    socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value).unwrap();
}

/// Writes more than buffers and windows take, to a peer that does not read; returns how much was taken.
fn fill(fd: c_int) -> usize {
    nonblocking(fd);
    let mut sent = 0;
    // While data wait and none are under way, the peer's window is closed. The byte that probes one counts as sent.
    until("a closed window", || {
        while let Ok(count) = send(fd, &[7; 60_000], 0) {
            sent += count;
        }
        let [unsent, waits] = [UNSENT, libc::TIOCOUTQ].map(|what| asked(fd, what).unwrap().unwrap());
        unsent > 0 && waits - unsent <= 1
    });
    sent
}

#[test]
fn closing_lingers_until_the_peer_has_everything_or_the_time_is_over() {
    let (fd, mut peer) = connected();
    linger(fd, LOST.as_secs() as c_int);
    let sent = fill(fd);
    let (sender, begins) = std::sync::mpsc::channel();
    // SAFETY: always there.
    let closes = unsafe { libc::gettid() };
    let reader = thread::spawn(move || {
        until("the thread that closes sleeps", || sleeps(closes));
        sender.send(()).unwrap();
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all.len()
    });
    close(fd);
    assert!(begins.try_recv().is_ok(), "it did not wait for the peer, who began to read only later");
    assert_eq!(reader.join().unwrap(), sent);
    // A peer that never reads is waited for no longer than that.
    let (fd, _peer) = connected();
    linger(fd, 1);
    fill(fd);
    let began = std::time::Instant::now();
    close(fd);
    assert!(began.elapsed() >= std::time::Duration::from_secs(1));
}
