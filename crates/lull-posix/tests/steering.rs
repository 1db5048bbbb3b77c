//! Reuseport groups of a program's listeners and datagram sockets, steered by a program of BPF of either kind.

mod world;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF, SO_DETACH_REUSEPORT_BPF, SOL_SOCKET, c_int};
use lull_net::lull_bpf::Instruction;
use lull_net::lull_bpf::extended::{SK_REUSEPORT, SOCKET_FILTER};
use lull_net::{TcpStream, UdpSocket};
use lull_posix::{Errno, bpf, is_lull, socket};
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

/// `BPF_PROG_TYPE_XDP`: programs for devices.
const XDP: u32 = 6;

/// Loads a program of extended BPF, as a program's own call by number is taken: `r0 = number; exit`, or what is given.
fn load_seen(kind: u32, code: &[[u8; 8]], seen: bool) -> std::io::Result<c_int> {
    let two =
        |low: u32, high: u32| u64::from_ne_bytes([low, high].map(u32::to_ne_bytes).as_flattened().try_into().unwrap());
    let attributes = [two(kind, code.len() as u32), code.as_ptr() as u64, c"GPL".as_ptr() as u64, 0, 0, 0];
    let (command, bytes) = (5, size_of_val(&attributes));
    // SAFETY: the attributes are those of BPF_PROG_LOAD, as far as it takes them, and outlive the call.
    let call = || unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), bytes) };
    let fd = match seen {
        // SAFETY: likewise.
        true => unsafe { bpf::by_number(call, [command, attributes.as_ptr() as usize, bytes]) },
        false => call(),
    };
    if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(fd as c_int) }
}

fn load(code: &[[u8; 8]]) -> c_int {
    load_seen(SOCKET_FILTER, code, true).unwrap()
}

const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// `r0 = number; exit`
fn extended_always(number: u8) -> [[u8; 8]; 2] {
    [[0xb7, 0, 0, 0, number, 0, 0, 0], EXIT]
}

fn attach_loaded(fd: c_int, program: c_int) -> Result<(), Errno> {
    socket::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &program.to_ne_bytes())
}

/// Held by a test that loads programs, of which a process keeps so many; nothing if it may load none, and the reason is printed.
fn may_load() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    match load_seen(SOCKET_FILTER, &extended_always(0), false) {
        Ok(fd) => {
            close(fd);
            Some(ONE.lock().unwrap_or_else(PoisonError::into_inner))
        }
        Err(error) => {
            println!("SKIP: this process may load no program ({error}): it takes CAP_BPF");
            None
        }
    }
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
    let extended = |value: &[u8]| socket::setsockopt(fds[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, value);
    assert_eq!(extended(&(-1_i32).to_ne_bytes()), error(libc::EBADF));
    assert_eq!(extended(&fds[0].to_ne_bytes()), error(libc::EINVAL), "a socket is no program");
    assert_eq!(extended(&[0; 3]), error(libc::EINVAL));
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

#[test]
fn a_program_of_extended_bpf_chooses_as_one_of_classic_bpf_does() {
    let Some(_one) = may_load() else { return };
    // One that was attached before any listened, by another number of its.
    let before = |first| {
        let program = load(&extended_always(2));
        // SAFETY: the number is this test's.
        let other = unsafe { libc::dup(program) };
        close(program);
        attach_loaded(first, other).unwrap();
        close(other);
    };
    let (fds, address) = listeners(3, before);
    assert_eq!(takers(&fds, address), [2; 6]);
    let program = load(&extended_always(1));
    attach_loaded(fds[2], program).unwrap();
    assert_eq!(takers(&fds, address), [1; 6], "it is the group's, and replaced");
    attach(fds[0], &always(0)).unwrap();
    assert_eq!(takers(&fds, address), [0; 6], "by one of the other kind, too");
    attach_loaded(fds[0], program).unwrap();
    assert_eq!(takers(&fds, address), [1; 6]);
    detach(fds[1]).unwrap();
    assert_eq!(detach(fds[0]), error(libc::ENOENT));
    fds.into_iter().for_each(close);
    let (alone, _) = listener();
    assert_eq!(attach_loaded(alone, program), error(libc::EINVAL), "it shares its address with nobody");
    close(alone);
    close(program);
}

#[test]
fn a_program_of_extended_bpf_chooses_among_datagram_sockets_by_the_payload() {
    let Some(_one) = may_load() else { return };
    let first = sharing(udp());
    socket::bind(first, &bytes(&format!("{OWN}:0"))).unwrap();
    let address = name(first);
    let second = sharing(udp());
    socket::bind(second, &bytes(&address.to_string())).unwrap();
    // r6 = r1; r0 = the byte at 0; exit
    let program = load(&[[0xbf, 0x16, 0, 0, 0, 0, 0, 0], [0x30, 0, 0, 0, 0, 0, 0, 0], EXIT]);
    attach_loaded(second, program).unwrap();
    close(program);
    let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
    for payload in [[0, 7], [1, 8], [0, 9], [1, 10]] {
        peer.send_to(&payload, address).unwrap();
        let fd = [first, second][usize::from(payload[0])];
        assert_eq!(recv(fd, 0).unwrap(), payload);
    }
    close(first);
    close(second);
}

/// Its instructions are known from when this process loads it, and the kernel tells them to nobody.
#[test]
fn a_program_that_lull_cannot_run_is_refused_and_nothing_is_attached() {
    let Some(_one) = may_load() else { return };
    let (fds, address) = listeners(2, |_| ());
    attach(fds[0], &always(1)).unwrap();
    let unseen = load_seen(SOCKET_FILTER, &extended_always(0), false).unwrap();
    // r0 = the NUMA node, which no helper here tells.
    let helper = load(&[[0x85, 0, 0, 0, 42, 0, 0, 0], EXIT]);
    let by_maps = load_seen(SK_REUSEPORT, &extended_always(1), true).unwrap();
    for program in [unseen, helper, by_maps] {
        assert_eq!(attach_loaded(fds[0], program), error(libc::EOPNOTSUPP));
        close(program);
    }
    let xdp = load_seen(XDP, &extended_always(1), true).unwrap();
    assert_eq!(attach_loaded(fds[0], xdp), error(libc::EINVAL), "it is for devices");
    close(xdp);
    // BPF_MAP_CREATE: an array of one word.
    let map = [2_u32, 4, 4, 1];
    // SAFETY: the attributes are those of the command, as far as it takes them, and outlive the call.
    let map = unsafe { libc::syscall(libc::SYS_bpf, 0, map.as_ptr(), size_of_val(&map)) } as c_int;
    assert_eq!(attach_loaded(fds[0], map), error(libc::EINVAL), "a map is no program");
    close(map);
    assert_eq!(takers(&fds, address), [1; 6], "the one that was there stays");
    fds.into_iter().for_each(close);
}

/// A table that only grew would be a leak; the latest stay.
#[test]
fn of_many_programs_that_are_loaded_the_latest_can_be_attached() {
    let Some(_one) = may_load() else { return };
    let (fds, address) = listeners(2, |_| ());
    let programs: Vec<c_int> = (0..100).map(|nth| load(&extended_always(nth % 2))).collect();
    attach_loaded(fds[0], programs[99]).unwrap();
    assert_eq!(takers(&fds, address), [1; 6]);
    attach_loaded(fds[0], programs[98]).unwrap();
    assert_eq!(takers(&fds, address), [0; 6]);
    assert_eq!(attach_loaded(fds[0], programs[0]), error(libc::EOPNOTSUPP), "the first was forgotten");
    programs.into_iter().chain(fds).for_each(close);
}
