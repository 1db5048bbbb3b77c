//! Reuseport groups of a program's listeners and datagram sockets, steered by a program of classic BPF.

mod world;

use std::net::SocketAddr;

use libc::{SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF, SO_DETACH_REUSEPORT_BPF, SOL_SOCKET, c_int};
use lull_net::lull_bpf::Instruction;
use lull_net::{TcpStream, UdpSocket};
use lull_posix::{Errno, is_lull, socket};
use world::*;

/// Sets SO_REUSEPORT.
fn sharing(fd: c_int) -> c_int {
    let on: c_int = 1;
    // SAFETY: an int, and its size.
    let set = unsafe { libc::setsockopt(fd, SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), 4) };
    assert_eq!(set, 0);
    fd
}

fn attach(fd: c_int, program: &[Instruction]) -> Result<(), Errno> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the bytes of the structure, which has no padding that matters to anybody.
    let value = unsafe { std::slice::from_raw_parts((&raw const filter).cast(), size_of_val(&filter)) };
    socket::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, value)
}

fn detach(fd: c_int) -> Result<(), Errno> {
    socket::setsockopt(fd, SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, &0i32.to_ne_bytes())
}

/// `ret #number`.
fn always(number: u32) -> [Instruction; 1] {
    [Instruction::new(0x06, number)]
}

const fn error<T>(number: c_int) -> Result<T, Errno> {
    Err(Errno::new(number))
}

/// Listeners that share an address; `before` is called with the first before it listens.
fn listeners(count: usize, before: impl FnOnce(c_int)) -> (Vec<c_int>, SocketAddr) {
    peers();
    let first = sharing(tcp());
    socket::bind(first, &bytes(&format!("{OWN}:0"))).unwrap();
    let address = name(first);
    before(first);
    let mut fds = vec![first];
    for _ in 1..count {
        let fd = sharing(tcp());
        socket::bind(fd, &bytes(&address.to_string())).unwrap();
        fds.push(fd);
    }
    for fd in &fds {
        socket::listen(*fd, 16).unwrap();
        assert!(is_lull(*fd));
        nonblocking(*fd);
    }
    (fds, address)
}

/// Who gets each of some connections.
fn takers(fds: &[c_int], address: SocketAddr) -> Vec<usize> {
    let one = |_| {
        let peer = TcpStream::connect(peers(), address).unwrap();
        let mut taker = None;
        until("the connection", || {
            taker = (0..fds.len()).find(|nth| match socket::accept(fds[*nth], 0) {
                Ok(accepted) => {
                    close(accepted.fd);
                    true
                }
                Err(error) => {
                    assert_eq!(error, WOULD_BLOCK);
                    false
                }
            });
            taker.is_some()
        });
        drop(peer);
        taker.unwrap()
    };
    (0..6).map(one).collect()
}

#[test]
fn a_program_that_is_attached_to_a_listener_chooses_among_all_of_its_address() {
    let (fds, address) = listeners(3, |_| ());
    attach(fds[0], &always(1)).unwrap();
    assert_eq!(takers(&fds, address), [1; 6]);
    attach(fds[2], &always(2)).unwrap();
    assert_eq!(takers(&fds, address), [2; 6], "it is the group's, and replaced");
    detach(fds[1]).unwrap();
    assert_eq!(detach(fds[0]), error(libc::ENOENT));
    fds.into_iter().for_each(close);
}

#[test]
fn one_that_was_attached_before_the_socket_listened_is_in_force_when_it_does() {
    let (fds, address) = listeners(2, |first| attach(first, &always(1)).unwrap());
    assert_eq!(takers(&fds, address), [1; 6]);
    fds.into_iter().for_each(close);
    let (fds, address) = listeners(2, |first| {
        attach(first, &always(1)).unwrap();
        attach(first, &always(0)).unwrap();
    });
    assert_eq!(takers(&fds, address), [0; 6], "the later one");
    fds.into_iter().for_each(close);
}

#[test]
fn what_is_no_program_for_the_kernel_is_none_here() {
    let (fds, _) = listeners(1, |_| ());
    let no_return = [Instruction::new(0x00, 1)];
    assert_eq!(attach(fds[0], &no_return), error(libc::EINVAL));
    assert_eq!(attach(fds[0], &[]), error(libc::EINVAL));
    let short = socket::setsockopt(fds[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &[0; 8]);
    assert_eq!(short, error(libc::EINVAL));
    let extended = socket::setsockopt(fds[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &3i32.to_ne_bytes());
    assert_eq!(extended, error(libc::EOPNOTSUPP));
    fds.into_iter().for_each(close);
    let (alone, _) = listener();
    assert_eq!(attach(alone, &always(0)), error(libc::EINVAL), "it shares its address with nobody");
    close(alone);
}

/// As a listener's.
#[test]
fn one_that_was_attached_before_a_datagram_socket_was_bound_is_in_force_when_it_is() {
    peers();
    let fds = [sharing(udp()), sharing(udp())];
    attach(fds[0], &always(1)).unwrap();
    socket::bind(fds[0], &bytes(&format!("{OWN}:0"))).unwrap();
    let address = name(fds[0]);
    socket::bind(fds[1], &bytes(&address.to_string())).unwrap();
    for _ in 0..6 {
        // Each from a port of its own, which a hash would spread.
        let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
        peer.send_to(b"x", address).unwrap();
        assert_eq!(recv(fds[1], 0).unwrap(), b"x");
    }
    fds.into_iter().for_each(close);
}

#[test]
fn a_program_chooses_among_datagram_sockets_by_the_payload() {
    let first = sharing(udp());
    socket::bind(first, &bytes(&format!("{OWN}:0"))).unwrap();
    let address = name(first);
    let second = sharing(udp());
    socket::bind(second, &bytes(&address.to_string())).unwrap();
    // ldb [0]; ret a
    attach(first, &[Instruction::new(0x30, 0), Instruction::new(0x16, 0)]).unwrap();
    let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
    for payload in [[0, 7], [1, 8], [0, 9], [1, 10]] {
        peer.send_to(&payload, address).unwrap();
        let fd = [first, second][usize::from(payload[0])];
        assert_eq!(recv(fd, 0).unwrap(), payload);
    }
    detach(first).unwrap();
    assert_eq!(detach(second), error(libc::ENOENT));
    close(first);
    close(second);
}
