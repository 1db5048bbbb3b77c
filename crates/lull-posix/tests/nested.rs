//! Contexts with members of lull's inside other contexts, poll and select, with Linux's results.

mod world;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, c_int,
    pollfd,
};
use lull_net::TcpStream;
use lull_posix::{Errno, Result, epoll, files, poll, socket};
use world::*;

fn context() -> c_int {
    peers();
    epoll::epoll_create(libc::EPOLL_CLOEXEC).unwrap()
}

/// A connection on a context of its own, which is on an outer one.
struct Nest {
    fd: c_int,
    peer: TcpStream,
    inner: c_int,
    outer: c_int,
}

impl Nest {
    fn new(outer_events: c_int) -> Nest {
        let (fd, peer) = connected();
        let (inner, outer) = (context(), context());
        ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
        ctl(outer, EPOLL_CTL_ADD, inner, outer_events).unwrap();
        Nest { fd, peer, inner, outer }
    }

    fn outer(&self, timeout: Duration) -> Vec<(c_int, c_int)> {
        wait(self.outer, 8, timeout)
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        [self.fd, self.inner, self.outer].into_iter().for_each(close);
    }
}

fn polled(fd: c_int, timeout: Duration) -> c_int {
    let mut fds = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
    assert_eq!(poll::poll(&mut fds, Some(timeout)).unwrap(), usize::from(fds[0].revents != 0));
    c_int::from(fds[0].revents)
}

fn selected(fd: c_int, timeout: Duration) -> bool {
    let mut words = vec![0; fd as usize / poll::WORD_BITS + 1];
    words[fd as usize / poll::WORD_BITS] = 1 << (fd as usize % poll::WORD_BITS);
    poll::select(fd as usize + 1, &mut [Some(&mut words), None, None], Some(timeout)).unwrap() == 1
}

#[test]
fn a_context_is_readable_in_another_one_while_its_members_are_ready() {
    let mut nest = Nest::new(EPOLLIN);
    assert_eq!(nest.outer(NOW), []);
    nest.peer.write_all(b"xy").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    assert_eq!(nest.outer(NOW), [(nest.inner, EPOLLIN)], "a level");
    assert_eq!(wait(nest.inner, 8, NOW), [(nest.fd, EPOLLIN)]);
    assert_eq!(nest.outer(NOW), [(nest.inner, EPOLLIN)], "nobody has read yet");
    recv(nest.fd, 0).unwrap();
    assert_eq!(nest.outer(NOW), [], "though nobody has waited inside since");
    nest.peer.write_all(b"z").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    ctl(nest.inner, EPOLL_CTL_DEL, nest.fd, 0).unwrap();
    assert_eq!(nest.outer(NOW), []);
    ctl(nest.inner, EPOLL_CTL_ADD, nest.fd, EPOLLOUT).unwrap();
    assert_eq!(nest.outer(NOW), [(nest.inner, EPOLLIN)], "readable, whatever the member is ready for");
}

#[test]
fn what_is_ready_before_anybody_watches_is_reported() {
    let (fd, mut peer) = connected();
    let (inner, outer) = (context(), context());
    ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    peer.write_all(b"x").unwrap();
    assert_eq!(wait(inner, 8, LOST), [(fd, EPOLLIN)]);
    ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN).unwrap();
    assert_eq!(wait(outer, 8, NOW), [(inner, EPOLLIN)]);
    [fd, inner, outer].into_iter().for_each(close);
}

#[test]
fn an_edge_and_a_one_shot_of_a_context_are_reported_once() {
    let mut nest = Nest::new(EPOLLIN | EPOLLET);
    nest.peer.write_all(b"x").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    assert_eq!(nest.outer(NOW), []);
    nest.peer.write_all(b"y").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)], "each arrival is an edge");
    ctl(nest.outer, EPOLL_CTL_MOD, nest.inner, EPOLLIN | EPOLLONESHOT).unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    assert_eq!(nest.outer(NOW), []);
    ctl(nest.outer, EPOLL_CTL_MOD, nest.inner, EPOLLIN).unwrap();
    assert_eq!(nest.outer(NOW), [(nest.inner, EPOLLIN)]);
}

#[test]
fn both_contexts_may_have_members_of_both_worlds() {
    let mut nest = Nest::new(EPOLLIN);
    let (outer_fd, mut outer_peer) = connected();
    let (mut far, mut near) = UnixStream::pair().unwrap();
    ctl(nest.outer, EPOLL_CTL_ADD, outer_fd, EPOLLIN).unwrap();
    ctl(nest.inner, EPOLL_CTL_ADD, near.as_raw_fd(), EPOLLIN).unwrap();
    assert_eq!(nest.outer(NOW), []);
    far.write_all(b"x").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    assert_eq!(wait(nest.inner, 8, LOST), [(near.as_raw_fd(), EPOLLIN)]);
    near.read_exact(&mut [0]).unwrap();
    assert_eq!((nest.outer(NOW), wait(nest.inner, 8, NOW)), (vec![], vec![]));
    outer_peer.write_all(b"x").unwrap();
    assert_eq!(nest.outer(LOST), [(outer_fd, EPOLLIN)]);
    recv(outer_fd, 0).unwrap();
    nest.peer.write_all(b"x").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    recv(nest.fd, 0).unwrap();
    assert_eq!((nest.outer(NOW), wait(nest.inner, 8, NOW)), (vec![], vec![]));
    close(outer_fd);
}

#[test]
fn poll_and_select_see_a_context_with_members_of_lulls() {
    let mut nest = Nest::new(EPOLLIN);
    for fd in [nest.inner, nest.outer] {
        assert_eq!((polled(fd, NOW), selected(fd, NOW)), (0, false));
        nest.peer.write_all(b"x").unwrap();
        assert_eq!(polled(fd, LOST), c_int::from(libc::POLLIN));
        assert!(selected(fd, LOST));
        recv(nest.fd, 0).unwrap();
        assert_eq!((polled(fd, NOW), selected(fd, NOW)), (0, false));
    }
}

/// The context inside gets its first member of lull's while somebody sleeps outside, and another thread adds it.
#[test]
fn a_member_that_another_thread_adds_inside_wakes_who_sleeps_outside() {
    let (fd, mut peer) = connected();
    let (inner, outer) = (context(), context());
    ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN).unwrap();
    let sleepers = [asleep(move || wait(outer, 8, LOST)), asleep(move || vec![(inner, polled(inner, LOST))])];
    ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    until("both have looked at what they wait for now", || sleepers.iter().all(Asleep::sleeps_or_is_over));
    peer.write_all(b"x").unwrap();
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), [(inner, EPOLLIN)]);
    }
    // One inside and one outside at once: both hear of it.
    recv(fd, 0).unwrap();
    let sleepers = [asleep(move || wait(outer, 8, LOST)), asleep(move || wait(inner, 8, LOST))];
    peer.write_all(b"y").unwrap();
    let [outside, inside] = sleepers.map(|sleeper| sleeper.join().unwrap());
    assert_eq!((outside, inside), (vec![(inner, EPOLLIN)], vec![(fd, EPOLLIN)]));
    [fd, inner, outer].into_iter().for_each(close);
}

#[test]
fn a_wait_with_a_timeout_does_not_end_early_for_a_bell() {
    let mut nest = Nest::new(EPOLLIN);
    nest.peer.write_all(b"x").unwrap();
    assert_eq!(nest.outer(LOST), [(nest.inner, EPOLLIN)]);
    recv(nest.fd, 0).unwrap();
    let began = std::time::Instant::now();
    assert_eq!(wait(nest.inner, 8, Duration::from_millis(30)), []);
    assert!(began.elapsed() >= Duration::from_millis(30));
}

#[test]
fn how_contexts_may_stand_inside_one_another_is_linuxs() {
    let nest = Nest::new(EPOLLIN);
    let error = |number| -> Result<()> { Err(Errno::new(number)) };
    assert_eq!(ctl(nest.inner, EPOLL_CTL_ADD, nest.inner, EPOLLIN), error(libc::EINVAL), "itself");
    assert_eq!(ctl(nest.inner, EPOLL_CTL_ADD, nest.outer, EPOLLIN), error(libc::ELOOP), "a circle");
    assert_eq!(ctl(nest.outer, EPOLL_CTL_ADD, nest.inner, EPOLLIN), error(libc::EEXIST));
    let other = context();
    assert_eq!(ctl(other, EPOLL_CTL_ADD, nest.inner, EPOLLIN | EPOLLEXCLUSIVE), error(libc::EINVAL));
    assert_eq!(ctl(other, EPOLL_CTL_MOD, nest.inner, EPOLLIN), error(libc::ENOENT));
    // A chain that is too long is refused by the kernel's own count.
    let mut chain = vec![nest.outer];
    let refused = loop {
        let next = context();
        let added = ctl(next, EPOLL_CTL_ADD, chain[chain.len() - 1], EPOLLIN);
        chain.push(next);
        if added.is_err() || chain.len() > 9 {
            break added;
        }
    };
    assert_eq!(refused, error(libc::ELOOP));
    chain[1..].iter().copied().chain([other]).for_each(close);
}

/// `epoll_ctl`, which has to return.
fn added(epfd: c_int, fd: c_int) -> Result<()> {
    let (sender, returned) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN)));
    returned.recv_timeout(LOST).expect("it returns")
}

#[test]
fn a_context_that_was_taken_out_may_hold_the_one_that_held_it() {
    let (inner, outer, other) = (context(), context(), context());
    assert_eq!(added(outer, inner), Ok(()));
    assert_eq!(added(inner, outer), Err(Errno::new(libc::ELOOP)));
    ctl(outer, EPOLL_CTL_DEL, inner, 0).unwrap();
    assert_eq!(added(inner, outer), Ok(()));
    ctl(inner, EPOLL_CTL_DEL, outer, 0).unwrap();
    // A number that is another context's meanwhile.
    assert_eq!(added(outer, inner), Ok(()));
    files::duplicate_to(other, inner, 0).unwrap();
    assert_eq!(added(other, outer), Ok(()));
    [inner, outer, other].into_iter().for_each(close);
}

/// One arrival wakes one of two contexts that have the listener exclusively.
#[test]
fn an_exclusive_member_of_two_contexts_wakes_one_sleeper() {
    let (listening, at) = listener();
    let contexts = [context(), context()];
    for epfd in contexts {
        ctl(epfd, EPOLL_CTL_ADD, listening, EPOLLIN | EPOLLEXCLUSIVE).unwrap();
        assert_eq!(ctl(epfd, EPOLL_CTL_MOD, listening, EPOLLIN), Err(Errno::new(libc::EINVAL)));
    }
    let (sender, woken) = std::sync::mpsc::channel();
    let sleepers = contexts.map(|epfd| {
        let sender = sender.clone();
        thread::spawn(move || sender.send((epfd, wait(epfd, 8, LOST))).unwrap())
    });
    let mut peers_ends = Vec::new();
    for _ in 0..2 {
        peers_ends.push(TcpStream::connect(peers(), at).unwrap());
        let (_, events) = woken.recv_timeout(LOST).unwrap();
        assert_eq!(events, [(listening, EPOLLIN)]);
        close(socket::accept(listening, 0).unwrap().fd);
    }
    sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    [listening, contexts[0], contexts[1]].into_iter().for_each(close);
}
