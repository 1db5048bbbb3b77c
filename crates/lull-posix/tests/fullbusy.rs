//! Contexts in the mode that keeps polling.

mod world;

use std::io::Write;

use libc::{EPOLL_CTL_ADD, EPOLLIN};
use lull_posix::epoll;
use world::*;

/// As memcached's thread for new connections, which would take its share of the core from the one that serves.
#[test]
fn a_context_without_events_is_slept_on_in_fullbusy_and_still_wakes() {
    MODE.set("fullbusy").unwrap();
    let (fd, mut peer) = connected();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    for _ in 0..2 {
        let waiter = asleep(move || wait(epfd, 1, LOST));
        peer.write_all(b"!").unwrap();
        assert_eq!(waiter.join().unwrap(), [(fd, EPOLLIN)]);
        assert_eq!(recv(fd, 0).unwrap(), b"!");
    }
    close(fd);
    close(epfd);
}
