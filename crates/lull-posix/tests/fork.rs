//! A child of `fork` beside an engine that runs.

mod world;

use std::io::{Read, Write};

use lull_posix::{files, is_engaged, is_lull};
use world::*;

/// As a server's child that saves its data: it closes what it does not need, and ends.
#[test]
fn a_child_that_closes_its_sockets_says_nothing_to_the_peers() {
    let (fd, mut peer) = connected();
    let (listening, at) = listener();
    // SAFETY: the child makes calls that need no lock, and ends without running anything of its parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_husk = !is_lull(fd) && !is_lull(listening) && !is_engaged();
        let closed = files::close(fd).is_ok() && files::close(listening).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(if is_husk && closed { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    peer.write_all(b"still").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"still");
    send(fd, b"here", 0).unwrap();
    let mut got = [0; 4];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"here");
    drop(lull_net::TcpStream::connect(peers(), at).unwrap());
    close(fd);
    close(listening);
}
