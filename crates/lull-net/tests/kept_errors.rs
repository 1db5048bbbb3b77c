//! Errors that a UDP socket keeps for a caller that asks for them. They wake nobody else.

mod pair;

use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use lull_net::{Ready, UdpSocket};
use pair::{CLIENT, LOST, Pair, SERVER, until};

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// `__skb_wait_for_more_packets` looks at `sk_err`, which was reported already. If the kept error counted, such a read
/// would never sleep.
#[test]
fn a_read_sleeps_while_an_error_is_kept_that_was_told() {
    for busy_usecs in [0, 50] {
        let pair = Pair::new();
        let socket = UdpSocket::bind(&pair.client, at(CLIENT, 9)).unwrap();
        socket.set_busy_poll(busy_usecs).unwrap();
        socket.set_receive_errors(true, false).unwrap();
        socket.send_to(b"x", at(SERVER, 53)).unwrap();
        until("the error", || socket.ready().contains(Ready::ERR));
        // The error is reported by the call that waits, or by the next one.
        assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(socket.ready().contains(Ready::ERR), "it is kept");
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        // A datagram ends such a wait, and so does the next error.
        socket.set_read_timeout(Some(LOST)).unwrap();
        let reader = |socket: &UdpSocket| {
            let socket = socket.clone();
            std::thread::spawn(move || socket.recv(&mut [0; 8]).map_err(|error| error.kind()))
        };
        let reads = reader(&socket);
        let server = UdpSocket::bind(&pair.server, at(SERVER, 54)).unwrap();
        server.send_to(b"data", at(CLIENT, 9)).unwrap();
        assert_eq!(reads.join().unwrap(), Ok(4));
        let reads = reader(&socket);
        socket.send_to(b"x", at(SERVER, 53)).unwrap();
        assert_eq!(reads.join().unwrap(), Err(ErrorKind::ConnectionRefused));
        while socket.recv_error(&mut [IoSliceMut::new(&mut [0; 8])]).is_ok() {}
        assert!(!socket.ready().contains(Ready::ERR));
    }
}
