//! SO_RCVLOWAT and MSG_WAITALL: how much a call waits for, and which bytes are an edge.

mod world;

use std::io::{IoSliceMut, Write};

use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, MSG_PEEK, MSG_WAITALL, c_int};
use lull_net::Shutdown;
use lull_posix::socket::Receive;
use lull_posix::{epoll, socket};
use world::*;

fn set_low_water(fd: c_int, bytes: c_int) {
    socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes.to_ne_bytes()).unwrap();
}

fn until_unread(fd: c_int, bytes: c_int) {
    until("the bytes", || {
        let mut unread = 0;
        ioctl(fd, libc::FIONREAD, &mut unread).unwrap().unwrap();
        unread == bytes
    });
}

/// As `recv`, with room for so many bytes.
fn recv_up_to(fd: c_int, room: usize, flags: c_int) -> Vec<u8> {
    let mut buffer = vec![0; room];
    let count = socket::recv(fd, &mut [IoSliceMut::new(&mut buffer)], Receive { flags }).unwrap();
    buffer[..count].to_vec()
}

#[test]
fn who_peeks_waits_for_as_much_as_who_reads() {
    for (flags, mark, room) in [(MSG_PEEK, 10, 64), (MSG_PEEK, 60, 10), (MSG_PEEK | MSG_WAITALL, 1, 10)] {
        let (fd, mut peer) = connected();
        set_low_water(fd, mark);
        peer.write_all(b"abc").unwrap();
        until_unread(fd, 3);
        let peeks = asleep(move || recv_up_to(fd, room, flags));
        assert!(!peeks.is_over(), "three bytes are not enough");
        // The mark is reached, so that the reader is woken.
        peer.write_all(&[b'd'; 61]).unwrap();
        assert!(peeks.join().unwrap().len() >= 10);
        assert_eq!(recv_up_to(fd, 3, 0), b"abc", "it is there still");
        close(fd);
    }
}

#[test]
fn who_peeks_for_more_than_will_come_gets_what_is_there() {
    for flags in [MSG_PEEK, MSG_PEEK | MSG_WAITALL] {
        let (fd, mut peer) = connected();
        set_low_water(fd, 60);
        let peeks = asleep(move || recv_up_to(fd, 60, flags));
        peer.write_all(b"abc").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(peeks.join().unwrap(), b"abc");
        assert_eq!(recv_up_to(fd, 60, flags), b"abc", "at once");
        close(fd);
    }
}

#[test]
fn who_peeks_without_waiting_gets_what_is_there() {
    let (fd, mut peer) = connected();
    set_low_water(fd, 60);
    peer.write_all(b"abc").unwrap();
    until_unread(fd, 3);
    assert_eq!(recv_up_to(fd, 60, MSG_PEEK | MSG_WAITALL | libc::MSG_DONTWAIT), b"abc");
    close(fd);
}

#[test]
fn what_comes_below_the_mark_is_no_edge_where_reading_is_shut_down() {
    let (fd, mut peer) = connected();
    set_low_water(fd, 60);
    socket::shutdown(fd, libc::SHUT_RD).unwrap();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    assert_eq!(wait(epfd, 8, NOW), []);
    peer.write_all(b"a").unwrap();
    until_unread(fd, 1);
    assert_eq!(wait(epfd, 8, NOW), []);
    peer.write_all(&[b'b'; 59]).unwrap();
    until_unread(fd, 60);
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    close(epfd);
    close(fd);
}

/// As the end of a stream is one, and data that are enough (`tcp_set_rcvlowat`, `tcp_data_ready`).
#[test]
fn setting_the_mark_is_an_edge_of_what_is_enough_by_it_whatever_it_was_before() {
    let (fd, mut peer) = connected();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET).unwrap();
    set_low_water(fd, 1);
    assert_eq!(wait(epfd, 8, NOW), [], "there is nothing");
    peer.write_all(b"abc").unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    for (mark, told) in [(1, &[(fd, EPOLLIN)][..]), (3, &[(fd, EPOLLIN)]), (4, &[]), (0, &[(fd, EPOLLIN)])] {
        set_low_water(fd, mark);
        assert_eq!(wait(epfd, 8, NOW), told, "a mark of {mark}");
    }
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    set_low_water(fd, 60);
    assert_eq!(wait(epfd, 8, NOW), [(fd, EPOLLIN)], "the end is enough, whatever the mark");
    close(epfd);
    close(fd);
}
