//! A socket of a program's whose engine has several queues.

mod world;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use libc::{c_int, pollfd};
use lull_posix::socket::Send;
use lull_posix::{Errno, poll, socket};
use world::*;

const QUEUES_MANY: u32 = 4;

fn send_to(fd: c_int, to: SocketAddr) -> Result<usize, Errno> {
    socket::send_message(fd, &[IoSlice::new(b"x")], &bytes(&to.to_string()), &[], Send::default())
}

/// What came back of a datagram came in by one queue, and the next may leave by another.
#[test]
fn an_error_is_the_sockets_whatever_queue_it_came_in_by() {
    QUEUES.store(QUEUES_MANY, Ordering::Relaxed);
    let gone = lull_net::UdpSocket::bind(peers(), format!("{PEER}:0").parse::<SocketAddr>().unwrap()).unwrap();
    let at = gone.local_addr().unwrap();
    drop(gone);
    for port in 0..QUEUES_MANY as u16 {
        let fd = udp();
        socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
        socket::connect(fd, &bytes(&at.to_string())).unwrap();
        assert_eq!(socket::send(fd, &[IoSlice::new(b"x")], Send::default()), Ok(1));
        let mut fds = [pollfd { fd, events: 0, revents: 0 }];
        assert_eq!(poll::poll(&mut fds, Some(LOST)), Ok(1));
        // Without a peer, so that nothing comes back of what follows.
        socket::connect(fd, &[0; 16]).unwrap();
        let to = SocketAddr::new(at.ip(), 40_000 + port);
        assert_eq!(send_to(fd, to), Err(Errno::new(libc::ECONNREFUSED)), "by queue {port}");
        assert_eq!(send_to(fd, to), Ok(1));
        close(fd);
    }
}
