//! Which datagram a read takes, of a socket whose engine has several queues, and what a read waits for.

mod world;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{MSG_PEEK, c_int, pollfd};
use lull_net::UdpSocket;
use lull_posix::{Errno, poll, socket};
use world::*;

const QUEUES_MANY: u32 = 4;
const DATAGRAMS: u16 = 16;

/// What came is counted for the whole network: one test at a time.
static COUNTS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// On a port of the program's choice, which it keeps without a peer.
fn bound(ip: &str, port: u16) -> (c_int, SocketAddr) {
    QUEUES.store(QUEUES_MANY, Ordering::Relaxed);
    peers();
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{ip}:{port}"))).unwrap();
    (fd, SocketAddr::new(OWN.parse().unwrap(), name(fd).port()))
}

fn came() -> u64 {
    own().stack_counters().iter().map(|counters| counters.udp_datagrams).sum()
}

fn fionread(fd: c_int) -> usize {
    let mut count = -1;
    match ioctl(fd, libc::FIONREAD, &mut count) {
        Some(asked) => asked.unwrap(),
        // SAFETY: the kernel writes an int.
        None => assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) }, 0),
    }
    count as usize
}

/// Datagrams of peers that come by different queues, and of the kernel's world, each with a length of its own.
#[test]
fn what_was_shown_is_what_is_read() {
    let _alone = alone();
    for (ip, from_kernels) in [(OWN, 0), ("0.0.0.0", DATAGRAMS)] {
        let (fd, at) = bound(ip, 0);
        let before = came();
        let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for nth in 0..DATAGRAMS {
            let from = SocketAddr::new(PEER.parse().unwrap(), 40_000 + nth);
            UdpSocket::bind(peers(), from).unwrap().send_to(&vec![1; usize::from(nth) + 1], at).unwrap();
        }
        for nth in 0..from_kernels {
            kernels.send_to(&vec![2; usize::from(DATAGRAMS + nth) + 1], ("127.0.0.1", at.port())).unwrap();
        }
        until("all of them", || came() == before + u64::from(DATAGRAMS));
        let mut lengths = Vec::new();
        for nth in 0..DATAGRAMS + from_kernels {
            // One of the two first, and both twice.
            let mut shown = Vec::new();
            for peeks in [nth % 2 == 0, nth % 2 != 0, true, false] {
                shown.push(if peeks { recv(fd, MSG_PEEK).unwrap().len() } else { fionread(fd) });
            }
            let read = recv(fd, 0).unwrap().len();
            assert_eq!(shown, [read; 4], "the {nth}th of {ip}");
            lengths.push(read);
        }
        lengths.sort_unstable();
        assert_eq!(lengths, (1..=usize::from(DATAGRAMS + from_kernels)).collect::<Vec<_>>(), "each is read once");
        assert_eq!(recv(fd, libc::MSG_DONTWAIT), Err(WOULD_BLOCK));
        close(fd);
    }
}

/// Whatever comes meanwhile, by whichever queue, and from the kernel's world.
#[test]
fn what_was_shown_is_read_before_what_has_come_since() {
    let _alone = alone();
    let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for nth in 0..=DATAGRAMS {
        let (fd, at) = bound("0.0.0.0", 0);
        let send = |nth: u16| {
            if nth == DATAGRAMS {
                kernels.send_to(b"kernel", ("127.0.0.1", at.port())).unwrap();
                return;
            }
            let before = came();
            let from = SocketAddr::new(PEER.parse().unwrap(), 40_100 + nth);
            UdpSocket::bind(peers(), from).unwrap().send_to(&[nth as u8], at).unwrap();
            until("it", || came() > before);
        };
        send(nth);
        let shown = recv(fd, MSG_PEEK).unwrap();
        (0..=DATAGRAMS).filter(|other| *other != nth).for_each(&send);
        assert_eq!(recv(fd, MSG_PEEK), Ok(shown.clone()), "the {nth}th");
        assert_eq!(recv(fd, 0), Ok(shown), "the {nth}th");
        close(fd);
    }
}

/// `__skb_wait_for_more_packets`: an error that was told and is kept (IP_RECVERR) ends no wait. A read that does not sleep never sees
/// that its time is over.
#[test]
fn a_read_sleeps_while_an_error_is_kept_that_was_told() {
    let _alone = alone();
    let nowhere = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap().local_addr().unwrap();
    for ip in [OWN, "0.0.0.0"] {
        let (fd, at) = bound(ip, 0);
        close(fd);
        let (fd, _) = bound(ip, at.port());
        socket::setsockopt(fd, libc::SOL_IP, libc::IP_RECVERR, &1_i32.to_ne_bytes()).unwrap();
        socket::connect(fd, &bytes(&nowhere.to_string())).unwrap();
        send(fd, b"x", 0).unwrap();
        let mut asked = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
        assert_eq!(poll::poll(&mut asked, Some(LOST)), Ok(1));
        socket::connect(fd, &[0; 16]).unwrap();
        assert_eq!(recv(fd, 0), Err(Errno::new(libc::ECONNREFUSED)));
        let timeout = [0_i64.to_ne_bytes(), 1_000_i64.to_ne_bytes()].concat();
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout).unwrap();
        assert_eq!(recv(fd, 0), Err(WOULD_BLOCK));
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 16]).unwrap();
        let reader = asleep(move || recv(fd, 0));
        let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
        peer.send_to(b"data", at).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(b"data".to_vec()));
        close(fd);
    }
}
