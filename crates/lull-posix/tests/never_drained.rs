//! A context whose events never run out, in a mode that suspends interrupts.

mod world;

use libc::{EPOLL_CTL_ADD, EPOLLIN};
use lull_net::{ConnectOptions, TcpStream};
use lull_posix::epoll;
use world::*;

/// One call in nine polls, if no other thread has the queue just then.
const CALLS_MAX: u32 = 10_000;

/// As of a program that has no number left for another connection: it is told of the same event again and again, each call
/// suspends the interrupts anew, and none of them has to poll for events (edge 18).
#[test]
fn a_listener_that_nobody_accepts_from_does_not_keep_frames_out() {
    MODE.set("suspend20").unwrap();
    let (fd, at) = listener();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    let _first = TcpStream::connect(peers(), at).unwrap();
    let frames = || -> u64 {
        let engine = lull_posix::engine::running().unwrap();
        engine.network.stack_counters().iter().map(|counters| counters.rx_frames).sum()
    };
    for _ in 0..4 {
        // From the second call on it is suspended, each time for 20 ms.
        assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
    }
    for _ in 0..20 {
        let before = frames();
        let _next = TcpStream::start_connect(peers(), None, at, ConnectOptions::default()).unwrap();
        for calls in 1.. {
            assert_eq!(wait(epfd, 8, LOST), [(fd, EPOLLIN)]);
            if frames() > before {
                break;
            }
            assert!(calls < CALLS_MAX, "the queue is not polled");
            if calls > 32 {
                // Another thread has the queue, and nobody has given it a core yet.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    [epfd, fd].into_iter().for_each(close);
}
