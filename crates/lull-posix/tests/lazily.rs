//! Programs of several processes: where a listener becomes real, and what a process has that gets no queue.

mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, c_int};
use lull_posix::{Errno, Routing, Share, StartError, engage_each, epoll, flags, is_lull, socket};
use world::{NOW, OWN, bytes, close, ctl, tcp, wait};

/// How often an engine was asked for, for all queues and for one.
static ALL: AtomicUsize = AtomicUsize::new(0);
static ONE: AtomicUsize = AtomicUsize::new(0);

fn asked() -> (usize, usize) {
    (ALL.load(Ordering::Relaxed), ONE.load(Ordering::Relaxed))
}

/// Every queue is another process's.
fn nobody_starts() {
    let start = |share| {
        let asked = if share == Share::All { &ALL } else { &ONE };
        asked.fetch_add(1, Ordering::Relaxed);
        Err(StartError("no queue is left".to_owned()))
    };
    let routing = Routing { addresses: vec![(OWN.parse().unwrap(), 24)], ..Routing::default() };
    assert!(engage_each(routing, Box::new(start), |_| ()));
}

/// Runs in a child of `fork`: its answer is its exit status.
fn in_a_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: this process has one thread that matters, and the child ends without running anything of its parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(!f());
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

const fn error(number: c_int) -> Result<(), Errno> {
    Err(Errno::new(number))
}

#[test]
fn a_listener_becomes_real_where_connections_are_asked_for_and_is_a_quiet_member_without_a_queue() {
    nobody_starts();
    let fd = tcp();
    socket::bind(fd, &bytes(&format!("{OWN}:0"))).unwrap();
    socket::listen(fd, 16).unwrap();
    assert!(is_lull(fd));
    assert_eq!(asked(), (0, 0), "a process that only listens has no queue");
    let inherited = in_a_child(|| {
        let epfd = epoll::epoll_create(0).unwrap();
        let added = ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).is_ok() && asked() == (0, 1);
        let nonblocking = flags::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize).is_some();
        // Refused once, it is not asked for again in this process: connections come by way of another one.
        let none = || socket::accept(fd, 0).is_err_and(|error| error.number() == libc::EAGAIN);
        added && nonblocking && none() && none() && asked() == (0, 1) && wait(epfd, 8, NOW).is_empty()
    });
    assert!(inherited, "a child asks for one queue");

    let epfd = epoll::epoll_create(0).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN), error(libc::ENOENT));
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    assert_eq!(asked(), (1, 0), "whoever called `listen` asks for all");
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN), error(libc::EEXIST));
    ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN).unwrap();
    assert_eq!(wait(epfd, 8, NOW), []);
    ctl(epfd, EPOLL_CTL_DEL, fd, EPOLLIN).unwrap();
    assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, EPOLLIN), error(libc::ENOENT));
    close(fd);

    // In both worlds, the kernel's connections are served all the same.
    let both = tcp();
    socket::bind(both, &bytes("0.0.0.0:0")).unwrap();
    socket::listen(both, 16).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, both, EPOLLIN).unwrap();
    let port = world::at(both).port();
    let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(wait(epfd, 8, world::LOST), [(both, EPOLLIN)]);
    let accepted = socket::accept(both, 0).unwrap().fd;
    [accepted, both, epfd].into_iter().for_each(close);
}
