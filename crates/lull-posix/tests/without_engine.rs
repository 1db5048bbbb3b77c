//! Waits of a program that uses no address of lull's: they start no engine, and need none.

mod world;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLIN, POLLIN, POLLOUT, pollfd};
use lull_posix::{Routing, StartError, engage_each, epoll, poll, socket};
use world::{LOST, NOW, OWN, asleep, bytes, close, ctl, tcp};

static STARTED: AtomicUsize = AtomicUsize::new(0);

fn nobody_starts() {
    let start = |_| {
        STARTED.fetch_add(1, Ordering::Relaxed);
        Err(StartError("no queue is left".to_owned()))
    };
    let routing = Routing { addresses: vec![(OWN.parse().unwrap(), 24)], ..Routing::default() };
    assert!(engage_each(routing, Box::new(start), |_| ()));
}

fn entry(fd: libc::c_int) -> pollfd {
    pollfd { fd, events: POLLIN, revents: 0 }
}

#[test]
fn a_context_of_the_kernels_members_alone_is_waited_for_without_an_engine() {
    nobody_starts();
    let (reads, writes) = std::io::pipe().unwrap();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, reads.as_raw_fd(), EPOLLIN).unwrap();
    let polled = move |timeout| {
        let mut fds = [entry(epfd), entry(-1)];
        poll::poll(&mut fds, Some(timeout)).map(|count| (count, fds[0].revents))
    };
    assert_eq!(polled(NOW), Ok((0, 0)));
    assert_eq!(polled(Duration::from_millis(1)), Ok((0, 0)));
    let sleeper = asleep(move || polled(LOST));
    rustix::io::write(&writes, b"x").unwrap();
    assert_eq!(sleeper.join().unwrap(), Ok((1, POLLIN)));
    let mut set = vec![0_u64; epfd as usize / 64 + 1];
    set[epfd as usize / 64] |= 1 << (epfd % 64);
    assert_eq!(poll::select(epfd as usize + 1, &mut [Some(&mut set), None, None], None), Ok(1));
    let mut byte = [0];
    rustix::io::read(&reads, &mut byte).unwrap();

    // As many entries as there may be open files, most of which are switched off.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = Some(256);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut many = [entry(-1); 256];
    (many[0], many[255]) = (entry(epfd), entry(reads.as_raw_fd()));
    assert_eq!(poll::poll(&mut many, Some(Duration::from_millis(1))), Ok(0));
    assert_eq!(STARTED.load(Ordering::Relaxed), 0);

    // To wait for a listener is to ask for its connections. Without a queue there are those of the kernel's half alone.
    let listener = tcp();
    socket::bind(listener, &bytes("0.0.0.0:0")).unwrap();
    socket::listen(listener, 16).unwrap();
    many[1] = entry(listener);
    assert_eq!(poll::poll(&mut many, Some(Duration::from_millis(1))), Ok(0));
    assert!(STARTED.load(Ordering::Relaxed) > 0);
    let _client = std::net::TcpStream::connect(("127.0.0.1", world::at(listener).port())).unwrap();
    assert_eq!(poll::poll(&mut many, Some(LOST)), Ok(1));
    assert_eq!(many[1].revents, POLLIN);
    many[1].events = POLLOUT;
    assert_eq!(poll::poll(&mut many, Some(NOW)), Ok(0));
    [listener, epfd].into_iter().for_each(close);
}
