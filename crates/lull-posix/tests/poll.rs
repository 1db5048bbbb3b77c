//! `poll` over both worlds, and `sendfile`.

mod world;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{fs, thread};

use libc::{POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, c_short, pollfd};
use lull_posix::{Errno, poll, socket};
use world::*;

fn polled(asked: &[(c_int, c_short)], timeout: Duration) -> Vec<c_short> {
    let mut fds: Vec<_> = asked.iter().map(|&(fd, events)| pollfd { fd, events, revents: 77 }).collect();
    let count = poll::poll(&mut fds, Some(timeout)).unwrap();
    assert_eq!(count, fds.iter().filter(|polled| polled.revents != 0).count());
    fds.iter().map(|polled| polled.revents).collect()
}

#[test]
fn a_timeout_of_zero_looks_and_a_longer_one_ends() {
    let (fd, _peer) = connected();
    assert_eq!(polled(&[(fd, POLLIN)], NOW), [0]);
    assert_eq!(polled(&[(fd, POLLIN)], Duration::from_millis(5)), [0]);
    assert_eq!(polled(&[(fd, POLLIN | POLLOUT), (-1, POLLIN), (fd, 0)], NOW), [POLLOUT, 0, 0]);
    close(fd);
}

/// A file is ready for everything that it can be asked for, and never for anything else (`DEFAULT_POLLMASK`).
#[test]
fn a_file_that_is_asked_for_nothing_is_no_reason_not_to_wait_for_lulls() {
    let (fd, mut peer) = connected();
    let null = fs::File::open("/dev/null").unwrap();
    let asked = [(null.as_raw_fd(), 0), (fd, POLLIN), (null.as_raw_fd(), POLLPRI)];
    assert_eq!(polled(&asked, Duration::from_millis(5)), [0, 0, 0]);
    let sleeper = asleep(move || polled(&asked, LOST));
    peer.write_all(b"x").unwrap();
    assert_eq!(sleeper.join().unwrap(), [0, POLLIN, 0]);
    close(fd);
}

/// Urgent data of a connection of the kernel's, which is no data to read.
#[test]
fn urgent_data_of_the_kernels_ends_a_call_beside_sockets_of_lulls() {
    let (fd, _peer) = connected();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    let asked = [(fd, POLLIN), (near.as_raw_fd(), POLLPRI)];
    let sleeper = asleep(move || polled(&asked, LOST));
    // SAFETY: a byte.
    assert_eq!(unsafe { libc::send(far.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    assert_eq!(sleeper.join().unwrap(), [0, POLLPRI]);
    close(fd);
}

#[test]
fn a_call_sleeps_until_either_world_is_ready() {
    let (fd, mut peer) = connected();
    let (mut far, near) = UnixStream::pair().unwrap();
    let asked = [(fd, POLLIN), (near.as_raw_fd(), POLLIN)];
    let sleeper = asleep(move || polled(&asked, LOST));
    peer.write_all(b"x").unwrap();
    assert_eq!(sleeper.join().unwrap(), [POLLIN, 0]);
    recv(fd, 0).unwrap();
    let sleeper = asleep(move || polled(&asked, LOST));
    far.write_all(b"x").unwrap();
    assert_eq!(sleeper.join().unwrap(), [0, POLLIN]);
    assert_eq!(polled(&[(fd, POLLIN), (999_999, POLLIN)], NOW), [0, POLLNVAL]);
    close(fd);
}

#[test]
fn a_listener_of_both_worlds_is_readable_from_either() {
    let (fd, at) = listener_at("0.0.0.0");
    assert_eq!(polled(&[(fd, POLLIN)], NOW), [0]);
    let client = std::net::TcpStream::connect(("127.0.0.1", at.port())).unwrap();
    assert_eq!(polled(&[(fd, POLLIN)], LOST), [POLLIN]);
    close(socket::accept(fd, 0).unwrap().fd);
    drop(client);
    let client = lull_net::TcpStream::connect(peers(), (OWN.parse::<std::net::IpAddr>().unwrap(), at.port())).unwrap();
    assert_eq!(polled(&[(fd, POLLIN)], LOST), [POLLIN]);
    close(socket::accept(fd, 0).unwrap().fd);
    drop(client);
    close(fd);
}

#[test]
fn sendfile_sends_a_file_and_moves_the_offset_or_the_position() {
    let (fd, mut peer) = connected();
    let path = std::env::temp_dir().join(format!("lull-sendfile-{}", std::process::id()));
    let data: Vec<u8> = (0..300_000_u32).map(|nth| (nth / 7) as u8).collect();
    fs::write(&path, &data).unwrap();
    let file = fs::File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let from = file.as_raw_fd();
    let sender = thread::spawn(move || {
        let mut offset = 100;
        assert_eq!(socket::sendfile(fd, from, Some(&mut offset), 200_000), Ok(200_000));
        assert_eq!(offset, 200_100);
        assert_eq!(socket::sendfile(fd, from, None, 1_000_000), Ok(300_000), "to the end of the file");
        assert_eq!(socket::sendfile(fd, from, None, 1), Ok(0));
    });
    let mut got = vec![0; 500_000];
    peer.read_exact(&mut got).unwrap();
    assert!(got[..200_000] == data[100..200_100] && got[200_000..] == data);
    sender.join().unwrap();
    assert_eq!(socket::sendfile(from, fd, None, 1), Err(Errno::new(libc::EINVAL)), "a socket is no file");
    close(fd);
}
