//! A program that changes its user or its groups while it has connections of lull's. The C library has each thread of the process
//! change its own, by a signal, and waits until all have: lull's threads as well.

mod world;

use std::io::Write;
use std::sync::mpsc::channel;

use world::{LOST, connected, recv};

#[test]
fn a_program_with_connections_changes_its_user() {
    let (fd, mut peer) = connected();
    let (tells, changed) = channel();
    std::thread::spawn(move || {
        // SAFETY: numbers alone; each of the three stays as it is.
        assert_eq!(unsafe { libc::setresuid(u32::MAX, u32::MAX, u32::MAX) }, 0);
        tells.send(()).unwrap();
    });
    if changed.recv_timeout(LOST).is_err() {
        eprintln!("a thread did not change its user");
        // The C library would neither start nor end a thread any more, this one included.
        std::process::abort();
    }
    peer.write_all(b"afterwards").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"afterwards");
}
