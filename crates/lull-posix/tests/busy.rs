//! Busy polling: parameters of contexts and sockets, poll and select by the sysctl `busy_poll`, timeouts of zero; the counters of
//! the NAPI say who polled.

mod world;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLIN, SO_BUSY_POLL, SO_INCOMING_NAPI_ID, SOL_SOCKET, c_int, epoll_params, pollfd};
use lull_posix::{Errno, Result, engine, epoll, flags, poll, socket};
use world::*;

static TWENTY: c_int = 20;

/// The tests count the polls of one NAPI: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = MODE.set("suspend20");
    BUSY_POLL_US.store(50, Ordering::Relaxed);
    peers();
    alone
}

/// How often busy pollers have polled the program's NAPI so far: calls of the busy loop.
fn busy_calls(napi_id: u32) -> u64 {
    let napis = engine::running().expect("a listener has started it").host.napis();
    napis.iter().find(|napi| napi.id == napi_id).expect("it is enabled").stats.busy_calls
}

fn option(fd: c_int, name: c_int) -> c_int {
    let mut value = [0; 4];
    socket::getsockopt(fd, SOL_SOCKET, name, &mut value).unwrap().unwrap();
    c_int::from_ne_bytes(value)
}

fn set(fd: c_int, name: c_int, value: c_int) -> Result<()> {
    socket::setsockopt(fd, SOL_SOCKET, name, &value.to_ne_bytes())
}

fn params(busy_poll_usecs: u32, busy_poll_budget: u16, prefer_busy_poll: u8) -> epoll_params {
    epoll_params { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, __pad: 0 }
}

fn set_params(epfd: c_int, mut params: epoll_params) -> Result<()> {
    // SAFETY: the struct that the request reads.
    unsafe { flags::ioctl(epfd, libc::EPIOCSPARAMS, &raw mut params as usize) }.unwrap()
}

fn read_params(epfd: c_int) -> (u32, u16, u8) {
    let mut read = params(9, 9, 9);
    // SAFETY: the struct that the request writes.
    unsafe { flags::ioctl(epfd, libc::EPIOCGPARAMS, &raw mut read as usize) }.unwrap().unwrap();
    (read.busy_poll_usecs, read.busy_poll_budget, read.prefer_busy_poll)
}

/// What the kernel's half has.
fn kernels_params(epfd: c_int) -> (u32, u16, u8) {
    let mut read = params(9, 9, 9);
    // SAFETY: the struct that the request writes.
    assert_eq!(unsafe { libc::ioctl(epfd, libc::EPIOCGPARAMS, &raw mut read) }, 0);
    (read.busy_poll_usecs, read.busy_poll_budget, read.prefer_busy_poll)
}

#[test]
fn parameters_of_a_context_are_both_halves() {
    let _alone = alone();
    let epfd = epoll::epoll_create(0).unwrap();
    assert_eq!(read_params(epfd), (0, 0, 0), "without a member of lull's it is the kernel's");
    set_params(epfd, params(7, 16, 1)).unwrap();
    assert_eq!((read_params(epfd), kernels_params(epfd)), ((7, 16, 1), (7, 16, 1)));
    let (fd, _peer) = connected();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(read_params(epfd), (7, 16, 1), "what was set before the first member stands");
    set_params(epfd, params(0, 8, 0)).unwrap();
    assert_eq!((read_params(epfd), kernels_params(epfd)), ((0, 8, 0), (0, 8, 0)));
    for (refused, error) in [(params(1 << 31, 8, 0), libc::EINVAL), (params(0, 8, 2), libc::EINVAL)] {
        assert_eq!(set_params(epfd, refused), Err(Errno::new(error)));
    }
    assert_eq!(read_params(epfd), (0, 8, 0), "what is refused changes nothing");
    let modes = epoll::epoll_create(0).unwrap();
    ctl(modes, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(read_params(modes), (0, 64, 1), "the mode's, unless the program sets others");
    [fd, epfd, modes].into_iter().for_each(close);
}

#[test]
fn a_timeout_of_zero_is_one_round_and_no_more() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    let napi_id = option(fd, SO_INCOMING_NAPI_ID) as u32;
    for _ in 0..3 {
        let before = busy_calls(napi_id);
        assert_eq!(wait(epfd, 8, NOW), []);
        assert_eq!(busy_calls(napi_id) - before, 1);
    }
    set_params(epfd, params(0, 8, 0)).unwrap();
    // The sysctl alone is on: it polls as well.
    let before = busy_calls(napi_id);
    assert_eq!(wait(epfd, 8, NOW), []);
    assert_eq!(busy_calls(napi_id) - before, 1);
    peer.write_all(b"x").unwrap();
    until("the byte", || wait(epfd, 8, NOW) == [(fd, EPOLLIN)]);
    [fd, epfd].into_iter().for_each(close);
}

fn polled(fds: &[c_int], timeout: Duration) -> usize {
    let mut fds: Vec<pollfd> = fds.iter().map(|&fd| pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    poll::poll(&mut fds, Some(timeout)).unwrap()
}

#[test]
fn poll_and_select_poll_sockets_that_busy_poll_and_no_others() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let napi_id = option(fd, SO_INCOMING_NAPI_ID) as u32;
    let calls_of = |timeout| {
        let before = busy_calls(napi_id);
        assert_eq!(polled(&[fd], timeout), 0);
        busy_calls(napi_id) - before
    };
    assert_eq!(option(fd, SO_BUSY_POLL), 0);
    assert_eq!(calls_of(NOW), 0, "SO_BUSY_POLL is 0");
    assert_eq!(calls_of(Duration::from_millis(2)), 0);
    set(fd, SO_BUSY_POLL, 20).unwrap();
    assert_eq!(option(fd, SO_BUSY_POLL), 20);
    assert_eq!(calls_of(NOW), 1, "one round each look");
    // Whoever loses the CPU for that long after the first one has had its time.
    until("looks are repeated for the sysctl's time", || calls_of(Duration::from_millis(2)) >= 2);
    let before = busy_calls(napi_id);
    let mut words = vec![0; fd as usize / poll::WORD_BITS + 1];
    words[fd as usize / poll::WORD_BITS] = 1 << (fd as usize % poll::WORD_BITS);
    assert_eq!(poll::select(fd as usize + 1, &mut [Some(&mut words), None, None], Some(NOW)), Ok(0));
    assert_eq!((busy_calls(napi_id) - before, words.iter().all(|word| *word == 0)), (1, true));
    // The kernel's descriptors are seen all the same.
    let (mut far, mut near) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    assert_eq!(polled(&[fd, near.as_raw_fd()], LOST), 1);
    near.read_exact(&mut [0]).unwrap();
    peer.write_all(b"x").unwrap();
    assert_eq!(polled(&[fd, near.as_raw_fd()], LOST), 1);
    close(fd);
}

#[test]
fn a_connection_has_its_listeners_busy_polling_and_an_id_that_is_not_the_kernels() {
    let _alone = alone();
    let (listening, at) = listener();
    set(listening, SO_BUSY_POLL, 30).unwrap();
    let peer = lull_net::TcpStream::connect(peers(), at).unwrap();
    let fd = socket::accept(listening, 0).unwrap().fd;
    assert_eq!(option(fd, SO_BUSY_POLL), 30);
    assert_eq!(set(fd, SO_BUSY_POLL, -1), Err(Errno::new(libc::EINVAL)));
    assert!(option(fd, SO_INCOMING_NAPI_ID) >= 1 << 30, "the kernel counts from below");
    drop(peer);
    [fd, listening].into_iter().for_each(close);
}

#[test]
fn poll_polls_udp_sockets_that_busy_poll() {
    let _alone = alone();
    let (fd, _) = listener();
    // The engine runs.
    close(fd);
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    // SAFETY: an option of the size of an int.
    assert_eq!(0, unsafe { libc::setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, (&raw const TWENTY).cast(), 4) });
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let napi_id = option(fd, SO_INCOMING_NAPI_ID) as u32;
    let before = busy_calls(napi_id);
    assert_eq!(polled(&[fd], NOW), 0);
    assert_eq!(busy_calls(napi_id) - before, 1, "what was set before the socket was lull's");
    set(fd, SO_BUSY_POLL, 0).unwrap();
    let before = busy_calls(napi_id);
    assert_eq!(polled(&[fd], NOW), 0);
    assert_eq!(busy_calls(napi_id) - before, 0);
    close(fd);
}
