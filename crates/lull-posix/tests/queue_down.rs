//! A program whose engine has lost one of its queues to a panic.

mod world;

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use libc::pollfd;
use lull_net::{TcpStream, UdpSocket};
use lull_posix::socket::Send;
use lull_posix::{poll, socket};
use world::*;

#[test]
fn a_program_goes_on_by_the_queues_that_are_left() {
    QUEUES.store(2, Ordering::Relaxed);
    let (listening, at) = listener();
    nonblocking(listening);
    let datagrams = udp();
    socket::bind(datagrams, &bytes(&format!("{OWN}:0"))).unwrap();
    nonblocking(datagrams);
    own().host().delivery().take_down_queue(own().napis()[0], "a test");
    let entries = own().device().rss_table().len();
    own().device().set_rss_table(&vec![1; entries]).unwrap();

    // Whichever queue's turn it is, and then nothing is ready.
    for _ in 0..4 {
        assert_eq!(socket::accept(listening, 0).err(), Some(WOULD_BLOCK));
    }
    let mut fds = [pollfd { fd: listening, events: libc::POLLIN, revents: 0 }];
    assert_eq!(poll::poll(&mut fds, Some(NOW)), Ok(0), "{:#x}", fds[0].revents);
    for _ in 0..2 {
        let _peer = TcpStream::connect(peers(), at).unwrap();
        assert_eq!(poll::poll(&mut fds, Some(LOST)), Ok(1));
        close(socket::accept(listening, 0).unwrap().fd);
    }
    for _ in 0..4 {
        close(connecting().0);
    }

    // One that is bound to both queues goes on likewise.
    for _ in 0..4 {
        assert_eq!(recv(datagrams, 0), Err(WOULD_BLOCK));
    }
    fds[0] = pollfd { fd: datagrams, events: libc::POLLIN, revents: 0 };
    assert_eq!(poll::poll(&mut fds, Some(NOW)), Ok(0), "{:#x}", fds[0].revents);
    for port in 5000..5004 {
        let peer = UdpSocket::bind(peers(), format!("{PEER}:{port}").parse::<std::net::SocketAddr>().unwrap()).unwrap();
        let to = bytes(&peer.local_addr().unwrap().to_string());
        assert_eq!(socket::send_message(datagrams, &[IoSlice::new(b"question")], &to, &[], Send::default()), Ok(8));
        let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from, name(datagrams));
        peer.send_to(b"answer", from).unwrap();
        assert_eq!(poll::poll(&mut fds, Some(LOST)), Ok(1));
        assert_eq!(recv(datagrams, 0).unwrap(), b"answer");
        socket::connect(datagrams, &to).unwrap();
        assert_eq!(name(datagrams), from);
        socket::connect(datagrams, &[0; 16]).unwrap();
    }
    close(datagrams);

    let peer = UdpSocket::bind(peers(), format!("{PEER}:0").parse::<std::net::SocketAddr>().unwrap()).unwrap();
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    let to = bytes(&peer.local_addr().unwrap().to_string());
    assert_eq!(socket::send_message(fd, &[IoSlice::new(b"question")], &to, &[], Send::default()), Ok(8));
    let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
    peer.send_to(b"answer", from).unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"answer");
    close(fd);
    close(listening);
}
