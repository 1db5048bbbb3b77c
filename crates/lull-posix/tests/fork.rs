//! A child of `fork` beside an engine that runs.

mod world;

use std::io::{Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::c_int;
use lull_posix::{address, files, fork, is_engaged, is_lull, socket};
use world::*;

/// A child has what every test of the process has open: with two at once each would wait for the other's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a server's child that saves its data: it closes what it does not need, and ends.
#[test]
fn a_child_that_closes_its_sockets_says_nothing_to_the_peers() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let (listening, at) = listener();
    // SAFETY: the child makes calls that need no lock, and ends without running anything of its parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_husk = fork::is_husk() && !is_engaged();
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

/// Runs `child` in a child of `fork`, which ends with what that says.
fn in_a_child(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child makes calls that need no lock of its parent's, and ends without running anything of it.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let status = if child() { 0 } else { 1 };
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    process
}

fn ended_well(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// What the kernel's call says of a number that the child has asked about, as a program's would.
fn kernels_read(fd: c_int, wanted: usize) -> Option<Vec<u8>> {
    if is_lull(fd) {
        return None;
    }
    let (mut got, mut count) = (vec![0_u8; wanted], 0);
    while count < wanted {
        // SAFETY: room for what is left.
        let more = unsafe { libc::read(fd, got.as_mut_ptr().add(count).cast(), wanted - count) };
        if more <= 0 {
            break;
        }
        count += more as usize;
    }
    got.truncate(count);
    Some(got)
}

fn kernels_write(fd: c_int, mut data: &[u8]) -> bool {
    while !is_lull(fd) && !data.is_empty() {
        // SAFETY: bytes that outlive the call.
        let count = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
        if count <= 0 {
            return false;
        }
        data = &data[count as usize..];
    }
    data.is_empty()
}

/// As a server that forks a child for each connection: the parent closes its number at once.
#[test]
fn a_child_serves_a_connection_that_its_parent_has_closed() {
    let _alone = alone();
    const BYTES: usize = 3_000_000;
    let (fd, mut peer) = connected();
    let at = |name: Option<lull_posix::Result<address::Bytes>>| address::parse(&name?.ok()?);
    let (local, remote) = (at(socket::getsockname(fd)), at(socket::getpeername(fd)));
    let child = in_a_child(|| {
        let names = (socket::is_named(fd), at(socket::getsockname(fd)), at(socket::getpeername(fd)));
        let mut tcp = [0; 4];
        let domain = socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut tcp);
        let set = socket::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        let is_tcp = domain == Some(Ok(4)) && i32::from_ne_bytes(tcp) == libc::IPPROTO_TCP && set.is_ok();
        let heard = kernels_read(fd, 4) == Some(b"ping".to_vec());
        let told = kernels_write(fd, &vec![7; BYTES]);
        names == (true, local, remote) && is_tcp && heard && told && kernels_read(fd, 1) == Some(Vec::new())
    });
    close(fd);
    peer.write_all(b"ping").unwrap();
    let mut got = vec![0; BYTES];
    peer.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
    peer.shutdown(lull_net::Shutdown::Write).unwrap();
    assert_eq!(peer.read(&mut got).unwrap(), 0, "the child's end is the connection's");
    ended_well(child);
}

/// A child that has used a connection closes it, and ends; its parent goes on with it.
#[test]
fn a_connection_goes_on_in_the_parent_after_a_child_has_used_and_closed_it() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| kernels_write(fd, b"child") && files::close(fd).is_ok());
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"child");
    ended_well(child);
    peer.set_nonblocking(true).unwrap();
    // What the relay has to say of the child's end it says before its threads end.
    let relays = || {
        std::fs::read_dir("/proc/self/task").unwrap().filter(|task| is_relays(task.as_ref().unwrap().path())).count()
    };
    while relays() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(peer.read(&mut got).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it is the parent's still");
    peer.set_nonblocking(false).unwrap();
    send(fd, b"stays", 0).unwrap();
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"stays");
    close(fd);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// Whether a task of this process passes on what a child has.
fn is_relays(task: std::path::PathBuf) -> bool {
    std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("lull-relay"))
}

/// As `inetd`: the child puts the connection under a number of its choice, and what uses it there knows nothing of lull.
#[test]
fn a_connection_is_duplicated_in_a_child_and_outlives_its_first_number() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let to = files::duplicate(0, 100, true).unwrap();
    let child = in_a_child(|| {
        let moved = files::duplicate_to(fd, to, 0) == Ok(to) && files::close(fd).is_ok();
        // The numbers of a grandchild are the child's, the relay's among them.
        // SAFETY: as `in_a_child`.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            let echoed = kernels_read(to, 5).is_some_and(|got| kernels_write(to, &got));
            // SAFETY: as above.
            unsafe { libc::_exit(if echoed { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: the child's number, and room for its status.
        moved && unsafe { libc::waitpid(grandchild, &raw mut status, 0) } == grandchild && status == 0
    });
    close(fd);
    close(to);
    peer.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    assert_eq!(peer.read(&mut got).unwrap(), 0);
    ended_well(child);
}

/// The grandchild has the channel, too, and the child's silence about what it never used ends nothing.
#[test]
fn a_grandchild_uses_what_its_parent_closed_unused() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| {
        // SAFETY: as `in_a_child`.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            let answered = kernels_read(fd, 5).is_some_and(|got| kernels_write(fd, &got));
            // SAFETY: as above.
            unsafe { libc::_exit(if answered { 0 } else { 1 }) };
        }
        grandchild > 0 && files::close(fd).is_ok()
    });
    close(fd);
    ended_well(child);
    peer.write_all(b"there").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// The end of a child that never used a connection ends its hold on it, and so does closing the number.
#[test]
fn a_connection_ends_when_neither_parent_nor_child_has_it() {
    let _alone = alone();
    for closes in [false, true] {
        let (fd, mut peer) = connected();
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let child = in_a_child(|| {
            // SAFETY: the child's copy of a number; reading ends when the parent has closed its own.
            unsafe { libc::close(ends[1]) };
            let closed = !closes || files::close(fd).is_ok();
            let mut byte = 0_u8;
            // SAFETY: room for a byte.
            closed && unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) } == 0
        });
        close(fd);
        // SAFETY: numbers of this test's.
        let let_go = || unsafe { libc::close(ends[1]) };
        if closes {
            // The child lives on, and does not have it any more.
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
            let_go();
        } else {
            peer.set_nonblocking(true).unwrap();
            let error = peer.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the child has it");
            peer.set_nonblocking(false).unwrap();
            let_go();
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        }
        ended_well(child);
        // SAFETY: as above.
        unsafe { libc::close(ends[0]) };
    }
}

/// A number that the child closed past the library, and that stands for a file of its own by now, is not the connection's.
#[test]
fn a_number_that_was_closed_unseen_is_left_alone() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| {
        // SAFETY: the number is the child's copy, which this closes; the path ends with a null.
        let again = unsafe { libc::dup3(libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY), fd, 0) == fd };
        again && kernels_read(fd, 3) == Some(vec![0; 3])
    });
    peer.write_all(b"mine").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"mine");
    close(fd);
    ended_well(child);
}
