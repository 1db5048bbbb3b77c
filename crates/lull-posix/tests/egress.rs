//! How frames leave: SO_PRIORITY, IP_TOS and SO_MAX_PACING_RATE have Linux's values on lull's sockets, and are in force there.

mod world;

use std::io::Read;
use std::net::SocketAddr;
use std::time::Instant;

use libc::{IP_TOS, SO_MAX_PACING_RATE, SO_PRIORITY, SOL_IP, SOL_SOCKET, c_int};
use lull_net::{Qdisc, TcpStream, UdpSocket};
use lull_posix::{is_lull, socket};
use world::*;

fn set(fd: c_int, level: c_int, name: c_int, value: &[u8]) {
    if is_lull(fd) {
        return socket::setsockopt(fd, level, name, value).unwrap();
    }
    // SAFETY: so many bytes.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32) }, 0);
}

/// The value of an option, for a caller with so much room.
fn get(fd: c_int, level: c_int, name: c_int, room: usize) -> Vec<u8> {
    let mut value = vec![0; room];
    let length = match socket::getsockopt(fd, level, name, &mut value) {
        Some(length) => length.unwrap(),
        None => {
            let mut length = room as u32;
            // SAFETY: room for as many bytes.
            let got = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
            assert_eq!(got, 0);
            length as usize
        }
    };
    value[..length].to_vec()
}

/// What a program sees of a socket: priority, type of service, and rate with room for it and without.
fn seen(fd: c_int) -> [Vec<u8>; 4] {
    [
        get(fd, SOL_SOCKET, SO_PRIORITY, 4),
        get(fd, SOL_IP, IP_TOS, 4),
        get(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 8),
        get(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 4),
    ]
}

/// Sets options in turn, and looks after each.
fn set_and_look(fd: c_int) -> Vec<[Vec<u8>; 4]> {
    let int = |value: c_int| value.to_ne_bytes().to_vec();
    let long = |value: u64| value.to_ne_bytes().to_vec();
    let steps = [
        (SOL_SOCKET, SO_PRIORITY, int(5)),
        (SOL_SOCKET, SO_MAX_PACING_RATE, int(1_000_000)),
        (SOL_SOCKET, SO_MAX_PACING_RATE, long(5_000_000_000)),
        (SOL_IP, IP_TOS, int(0x10)),
        (SOL_SOCKET, SO_PRIORITY, int(1)),
        (SOL_IP, IP_TOS, int(0x10)),
        (SOL_IP, IP_TOS, int(0x08)),
        (SOL_SOCKET, SO_MAX_PACING_RATE, int(-1)),
        (SOL_SOCKET, SO_MAX_PACING_RATE, int(0)),
        (SOL_SOCKET, SO_MAX_PACING_RATE, long(u64::MAX)),
    ];
    let look = |(level, name, value): (c_int, c_int, Vec<u8>)| {
        set(fd, level, name, &value);
        seen(fd)
    };
    steps.into_iter().map(look).collect()
}

fn set_up() {
    QDISC.get_or_init(|| Qdisc::Fq);
    peers();
}

#[test]
fn values_are_linuxs_on_listeners_and_what_they_accept() {
    set_up();
    let world = |ip: &str| {
        let (fd, at) = listener_at(ip);
        assert_eq!(is_lull(fd), ip == OWN);
        set(fd, SOL_SOCKET, SO_PRIORITY, &5_i32.to_ne_bytes());
        set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &5_000_000_000_u64.to_ne_bytes());
        let mut all = vec![seen(fd)];
        let lulls = is_lull(fd).then(|| TcpStream::connect(peers(), at).unwrap());
        let kernels = (!is_lull(fd)).then(|| std::net::TcpStream::connect(at).unwrap());
        let accepted = socket::accept(fd, 0).unwrap().fd;
        all.push(seen(accepted));
        all.extend(set_and_look(accepted));
        drop((lulls, kernels));
        close(accepted);
        close(fd);
        all
    };
    assert_eq!(world(OWN), world("127.0.0.1"));
}

#[test]
fn values_are_linuxs_on_sockets_that_connect_and_on_udp_and_set_before_they_are_lulls() {
    set_up();
    let stream = |to: SocketAddr| {
        let fd = tcp();
        set(fd, SOL_SOCKET, SO_PRIORITY, &3_i32.to_ne_bytes());
        set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &7_000_000_i32.to_ne_bytes());
        socket::connect(fd, &bytes(&to.to_string())).unwrap();
        let all: Vec<_> = std::iter::once(seen(fd)).chain(set_and_look(fd)).collect();
        close(fd);
        all
    };
    let kernels = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lulls = peer_listener();
    assert_eq!(stream(lulls.local_addr().unwrap()), stream(kernels.local_addr().unwrap()));
    let datagrams = |ip: &str| {
        let fd = udp();
        set(fd, SOL_SOCKET, SO_PRIORITY, &3_i32.to_ne_bytes());
        socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
        assert_eq!(is_lull(fd), ip == OWN);
        let all: Vec<_> = std::iter::once(seen(fd)).chain(set_and_look(fd)).collect();
        close(fd);
        all
    };
    assert_eq!(datagrams(OWN), datagrams("127.0.0.1"));
}

/// How lull's stack has it.
fn in_force(local: SocketAddr) -> (u8, Option<u64>) {
    let listed = lull_posix::listing::sockets(own());
    let it = listed.sockets.into_iter().find(|it| it.local == local.to_string() && it.state != "LISTEN");
    let it = it.expect("the socket is listed");
    (it.priority, it.pacing_bytes_per_s)
}

#[test]
fn what_was_set_is_in_force_whenever_that_was() {
    set_up();
    let listener = peer_listener();
    let fd = tcp();
    set(fd, SOL_IP, IP_TOS, &0x10_i32.to_ne_bytes());
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &0_i32.to_ne_bytes());
    socket::connect(fd, &bytes(&listener.local_addr().unwrap().to_string())).unwrap();
    assert_eq!(in_force(name(fd)), (6, Some(1)), "a rate of nothing is the lowest");
    set(fd, SOL_IP, IP_TOS, &0x08_i32.to_ne_bytes());
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &(-1_i32).to_ne_bytes());
    assert_eq!(in_force(name(fd)), (2, None));
    close(fd);
    let fd = udp();
    set(fd, SOL_SOCKET, SO_PRIORITY, &4_i32.to_ne_bytes());
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    assert_eq!(in_force(name(fd)), (4, None));
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &1_000_000_i32.to_ne_bytes());
    assert_eq!(in_force(name(fd)), (4, Some(1_000_000)));
    close(fd);
}

#[test]
fn a_connection_and_a_udp_socket_that_are_paced_take_their_time() {
    set_up();
    const RATE: i32 = 1_000_000;
    let (listening, at) = listener();
    set(listening, SOL_SOCKET, SO_MAX_PACING_RATE, &RATE.to_ne_bytes());
    let mut peer = TcpStream::connect(peers(), at).unwrap();
    let fd = socket::accept(listening, 0).unwrap().fd;
    let began = Instant::now();
    let reads = std::thread::spawn(move || peer.read_exact(&mut vec![0; 300_000]).unwrap());
    let mut left = 300_000;
    while left > 0 {
        left -= send(fd, &vec![7; left.min(8_000)], 0).unwrap();
    }
    reads.join().unwrap();
    // Less what a flow may send at its beginning. A busy machine only makes it longer.
    assert!(began.elapsed().as_millis() >= 200, "{:?}", began.elapsed());
    close(fd);
    close(listening);

    let receiver = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &RATE.to_ne_bytes());
    socket::connect(fd, &bytes(&receiver.local_addr().unwrap().to_string())).unwrap();
    let began = Instant::now();
    for _ in 0..200 {
        assert_eq!(send(fd, &[1; 1_000], 0), Ok(1_000));
        receiver.recv_from(&mut [0; 2_000]).unwrap();
    }
    assert!(began.elapsed().as_millis() >= 100, "{:?}", began.elapsed());
    close(fd);
}
