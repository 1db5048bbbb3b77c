//! What a program answers leaves before it waits for something that is not lull's.

mod world;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLIN, POLLIN, c_int, epoll_event, pollfd};
use lull_posix::{epoll, poll, socket};
use world::*;

const SHORT: Duration = Duration::from_millis(1);
const HOUR_NS: u64 = 3_600_000_000_000;

fn frames() -> u64 {
    let counters = lull_posix::engine::running().unwrap().network.stack_counters();
    counters.iter().map(|counters| counters.tx_frames).sum()
}

/// A thread answers twice in one batch of events, so that the second answer waits for more, and goes on with `then`, which waits
/// for this socket of the kernel's in vain. After that the answer has left: not later with something else.
fn answered(then: impl FnOnce(&UnixStream) + Send + 'static) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    COALESCE_NS.store(HOUR_NS, Ordering::Relaxed);
    let (fd, mut peer) = connected();
    // Nagle's algorithm would hold the second answer back as well.
    socket::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes()).unwrap();
    let (_silent, waited_for) = UnixStream::pair().unwrap();
    let program = thread::spawn(move || {
        let epfd = epoll::epoll_create(0).unwrap();
        ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
        assert_eq!(recv(fd, 0).unwrap(), b"?");
        let before = frames();
        assert_eq!((send(fd, b"a", 0), send(fd, b"b", 0)), (Ok(1), Ok(1)));
        assert!(lull_net::holds_back());
        then(&waited_for);
        assert!(frames() >= before + 2, "an answer is still held back");
        close(epfd);
    });
    peer.write_all(b"?").unwrap();
    peer.set_read_timeout(Some(LOST)).unwrap();
    let mut answers = [0; 2];
    peer.read_exact(&mut answers).unwrap();
    program.join().unwrap();
    assert_eq!(&answers, b"ab");
    close(fd);
}

#[test]
fn poll_lets_go_also_where_it_only_looks() {
    answered(|silent| {
        let mut fds = [pollfd { fd: silent.as_raw_fd(), events: POLLIN, revents: 0 }];
        assert_eq!(poll::poll(&mut fds, Some(NOW)), Ok(0));
    });
}

#[test]
fn epoll_wait_on_a_context_of_the_kernels_lets_go() {
    answered(|silent| {
        let epfd: c_int = epoll::epoll_create(0).unwrap();
        ctl(epfd, EPOLL_CTL_ADD, silent.as_raw_fd(), EPOLLIN).unwrap();
        let mut events = [MaybeUninit::<epoll_event>::uninit()];
        assert_eq!(epoll::epoll_wait(epfd, &mut events, Some(SHORT)), Ok(0));
        close(epfd);
    });
}

#[test]
fn a_wait_past_lull_lets_go_where_it_is_announced() {
    answered(|_| lull_posix::about_to_wait());
}
