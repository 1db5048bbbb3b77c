//! Options that are set while `connect` is under way stay the socket's, whatever becomes of the connection.

mod world;

use libc::{IPPROTO_TCP, SOL_IP, SOL_SOCKET, c_int, socklen_t};
use lull_posix::{Errno, is_lull, socket};
use world::*;

/// One of each kind: what lull acts upon, what it only stores, what is in force by lull's socket, and what is answered in other
/// words than it was set. The value is as it is set.
fn options() -> Vec<(&'static str, c_int, c_int, Vec<u8>)> {
    let int = |value: c_int| value.to_ne_bytes().to_vec();
    let long = |value: u64| value.to_ne_bytes().to_vec();
    vec![
        ("TCP_NODELAY", IPPROTO_TCP, libc::TCP_NODELAY, int(1)),
        ("TCP_CORK", IPPROTO_TCP, libc::TCP_CORK, int(1)),
        ("TCP_KEEPIDLE", IPPROTO_TCP, libc::TCP_KEEPIDLE, int(61)),
        ("TCP_KEEPINTVL", IPPROTO_TCP, libc::TCP_KEEPINTVL, int(7)),
        ("TCP_KEEPCNT", IPPROTO_TCP, libc::TCP_KEEPCNT, int(3)),
        ("TCP_USER_TIMEOUT", IPPROTO_TCP, libc::TCP_USER_TIMEOUT, int(90_000)),
        ("TCP_SYNCNT", IPPROTO_TCP, libc::TCP_SYNCNT, int(2)),
        ("TCP_LINGER2", IPPROTO_TCP, libc::TCP_LINGER2, int(9)),
        ("TCP_NOTSENT_LOWAT", IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, int(4096)),
        ("TCP_CONGESTION", IPPROTO_TCP, libc::TCP_CONGESTION, b"reno".to_vec()),
        ("SO_KEEPALIVE", SOL_SOCKET, libc::SO_KEEPALIVE, int(1)),
        ("SO_LINGER", SOL_SOCKET, libc::SO_LINGER, [int(1), int(30)].concat()),
        ("SO_RCVTIMEO", SOL_SOCKET, libc::SO_RCVTIMEO, [long(3), long(4000)].concat()),
        ("SO_SNDTIMEO", SOL_SOCKET, libc::SO_SNDTIMEO, [long(90), long(8000)].concat()),
        ("SO_OOBINLINE", SOL_SOCKET, libc::SO_OOBINLINE, int(1)),
        ("SO_REUSEADDR", SOL_SOCKET, libc::SO_REUSEADDR, int(1)),
        ("SO_BROADCAST", SOL_SOCKET, libc::SO_BROADCAST, int(1)),
        ("SO_RCVLOWAT", SOL_SOCKET, libc::SO_RCVLOWAT, int(5)),
        ("SO_RCVBUF", SOL_SOCKET, libc::SO_RCVBUF, int(20_000)),
        ("SO_SNDBUF", SOL_SOCKET, libc::SO_SNDBUF, int(30_000)),
        ("SO_PREFER_BUSY_POLL", SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, int(0)),
        ("SO_MAX_PACING_RATE", SOL_SOCKET, libc::SO_MAX_PACING_RATE, long(5_000_000_000)),
        // And SO_PRIORITY by it.
        ("IP_TOS", SOL_IP, libc::IP_TOS, int(0x10)),
        ("IP_TTL", SOL_IP, libc::IP_TTL, int(7)),
        ("IP_MTU_DISCOVER", SOL_IP, libc::IP_MTU_DISCOVER, int(libc::IP_PMTUDISC_DO)),
    ]
}

/// Sets them, as a program does that has the preload library; whose the socket is is its affair.
fn set_all(fd: c_int) {
    for (name, level, option, value) in options() {
        let set = if is_lull(fd) {
            socket::setsockopt(fd, level, option, &value)
        } else {
            // SAFETY: a value, and its size.
            let set = unsafe { libc::setsockopt(fd, level, option, value.as_ptr().cast(), value.len() as socklen_t) };
            if set == 0 { Ok(()) } else { Err(Errno::last()) }
        };
        assert_eq!(set, Ok(()), "{name}");
    }
}

/// What each is, and SO_PRIORITY.
fn get_all(fd: c_int) -> Vec<(&'static str, Vec<u8>)> {
    let names = options().into_iter().map(|(name, level, option, _)| (name, level, option));
    let names = names.chain([("SO_PRIORITY", SOL_SOCKET, libc::SO_PRIORITY)]);
    names
        .map(|(name, level, option)| {
            let mut value = [0; 16];
            let lulls = if is_lull(fd) { socket::getsockopt(fd, level, option, &mut value) } else { None };
            let length = match lulls {
                Some(length) => length.unwrap_or_else(|error| panic!("{name}: {error}")),
                None => {
                    let mut length = value.len() as socklen_t;
                    // SAFETY: room for a value, and its size.
                    let got =
                        unsafe { libc::getsockopt(fd, level, option, value.as_mut_ptr().cast(), &raw mut length) };
                    assert_eq!(got, 0, "{name}: {}", Errno::last());
                    length as usize
                }
            };
            (name, value[..length].to_vec())
        })
        .collect()
}

/// A port of the peers at which nobody listens.
fn refusing() -> Vec<u8> {
    let listener = peer_listener();
    let at = listener.local_addr().unwrap();
    drop(listener);
    bytes(&at.to_string())
}

fn begin(fd: c_int, to: &[u8]) {
    // SAFETY: a number and a command.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    assert_eq!(socket::connect(fd, to), Err(Errno::new(libc::EINPROGRESS)));
    assert!(is_lull(fd));
}

fn is_over(fd: c_int) -> bool {
    let mut polled = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    lull_posix::poll::poll(&mut polled, Some(NOW)) == Ok(1)
}

#[test]
fn options_that_are_set_while_connect_is_under_way_are_there_when_it_has_failed() {
    peers();
    let expected = tcp();
    set_all(expected);
    let expected_values = get_all(expected);
    let fd = tcp();
    let to = refusing();
    begin(fd, &to);
    set_all(fd);
    until("the refusal", || is_over(fd));
    assert_eq!(socket::connect(fd, &to), Err(Errno::new(libc::ECONNREFUSED)));
    assert!(!is_lull(fd), "it is the kernel's again");
    assert_eq!(get_all(fd), expected_values);
    // And on the connection that it is then.
    let listener = peer_listener();
    let to = bytes(&listener.local_addr().unwrap().to_string());
    begin(fd, &to);
    assert_eq!(get_all(fd), expected_values, "they go with it");
    until("the connection", || is_over(fd));
    assert_eq!(socket::connect(fd, &to), Ok(()));
    assert_eq!(get_all(fd), expected_values, "once it is connected");
    close(fd);
    close(expected);
}

#[test]
fn options_that_are_set_while_connect_is_under_way_are_there_when_it_is_given_up() {
    peers();
    let expected = tcp();
    set_all(expected);
    let fd = tcp();
    begin(fd, &bytes(nobody()));
    set_all(fd);
    socket::shutdown(fd, libc::SHUT_RDWR).unwrap();
    assert!(!is_lull(fd));
    assert_eq!(get_all(fd), get_all(expected));
    close(fd);
    close(expected);
}

#[test]
fn what_is_refused_while_connect_is_under_way_changes_nothing() {
    peers();
    let fd = tcp();
    begin(fd, &bytes(nobody()));
    let before = get_all(fd);
    let set = |name: c_int, value: &[u8]| socket::setsockopt(fd, IPPROTO_TCP, name, value);
    assert_eq!(set(libc::TCP_KEEPIDLE, &0_i32.to_ne_bytes()), Err(Errno::new(libc::EINVAL)));
    assert_eq!(set(libc::TCP_NODELAY, &[1]), Err(Errno::new(libc::EINVAL)), "too short");
    assert_eq!(set(libc::TCP_ULP, b"tls"), Err(Errno::new(libc::ENOPROTOOPT)), "what lull has not");
    assert_eq!(get_all(fd), before);
    socket::shutdown(fd, libc::SHUT_RDWR).unwrap();
    assert_eq!(get_all(fd), before);
    close(fd);
}
