//! Signals: which waits they end, and when handlers run.

mod world;

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLIN, c_int, c_void, siginfo_t};
use lull_posix::signals::{call, section, section_with_mask, sigaction};
use lull_posix::{Errno, epoll, files, socket};
use world::*;

static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// What the next handler closes, and what it gives the number to, if anything.
static CLOSED: AtomicI32 = AtomicI32::new(-1);
static SUCCESSOR: AtomicI32 = AtomicI32::new(-1);
static RAN: AtomicI32 = AtomicI32::new(0);

/// Handlers are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handler that writes to a socket, as POSIX allows.
extern "C" fn handler(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    assert!(!info.is_null() && !context.is_null());
    let fd = SOCKET.load(Ordering::SeqCst);
    if fd >= 0 {
        let _ = section(|| send(fd, b"s", libc::MSG_DONTWAIT));
    }
    let closed = CLOSED.swap(-1, Ordering::SeqCst);
    if closed >= 0 {
        match SUCCESSOR.swap(-1, Ordering::SeqCst) {
            -1 => section(|| files::close(closed)).unwrap(),
            successor => assert_eq!(section(|| files::duplicate_to(successor, closed, 0)), Ok(closed)),
        }
    }
    RAN.fetch_add(1, Ordering::SeqCst);
}

fn install(flags: c_int) {
    // SAFETY: plain data, for which zeroes are a value.
    let mut asked: libc::sigaction = unsafe { std::mem::zeroed() };
    asked.sa_sigaction = handler as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    asked.sa_flags = flags | libc::SA_SIGINFO;
    let told = sigaction(libc::SIGUSR1, Some(&asked), libc::sigaction).unwrap();
    assert!([libc::SIG_DFL, asked.sa_sigaction].contains(&told.sa_sigaction), "the program sees its own handlers");
    let now = sigaction(libc::SIGUSR1, None, libc::sigaction).unwrap();
    assert_eq!(now.sa_sigaction, asked.sa_sigaction);
    RAN.store(0, Ordering::SeqCst);
}

/// Runs `call` on a thread, and signals it until it has returned.
fn signalled<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let (id, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            // SAFETY: always there.
            id.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
            let result = call();
            done.store(true, Ordering::SeqCst);
            // It is signalled for as long as it has not said so, and must live until then.
            until("the signals to end", || id.load(Ordering::SeqCst) == 0);
            result
        });
        until("the thread", || id.load(Ordering::SeqCst) != 0);
        while !done.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
            // SAFETY: the thread lives until it is told.
            unsafe { libc::pthread_kill(id.load(Ordering::SeqCst) as libc::pthread_t, libc::SIGUSR1) };
        }
        id.store(0, Ordering::SeqCst);
        caller.join().unwrap()
    })
}

fn waiting() -> (c_int, c_int, lull_net::TcpStream) {
    let (fd, peer) = connected();
    let epfd = epoll::epoll_create(0).unwrap();
    ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN).unwrap();
    (fd, epfd, peer)
}

/// Its handler runs at the end of the call, which would wait in the kernel for ever.
#[test]
fn a_signal_that_comes_before_a_wait_in_a_context_of_the_kernels_ends_it() {
    let _alone = alone();
    install(0);
    peers();
    let epfd = epoll::epoll_create(0).unwrap();
    let waited = section(|| {
        // SAFETY: a number only; its handler is installed.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        assert_eq!(RAN.load(Ordering::SeqCst), 0);
        epoll::epoll_wait(epfd, &mut [MaybeUninit::uninit()], None)
    });
    assert_eq!((waited, RAN.load(Ordering::SeqCst)), (Err(Errno::new(libc::EINTR)), 1));
    close(epfd);
}

#[test]
fn a_signal_ends_epoll_wait_with_eintr_whatever_sa_restart_says() {
    let _alone = alone();
    for flags in [0, libc::SA_RESTART] {
        install(flags);
        let (fd, epfd, _peer) = waiting();
        let waited = signalled(|| section(|| epoll::epoll_wait(epfd, &mut [MaybeUninit::uninit()], None)));
        assert_eq!(waited, Err(Errno::new(libc::EINTR)));
        assert!(RAN.load(Ordering::SeqCst) > 0);
        close(epfd);
        close(fd);
    }
}

/// They wake nobody, but whoever is awake takes them (`tcp_recvmsg_locked`).
#[test]
fn a_read_that_a_signal_ends_has_the_bytes_below_so_rcvlowat_whatever_sa_restart_says() {
    let _alone = alone();
    for (flags, first) in [(0, ""), (libc::SA_RESTART, ""), (0, "ab"), (libc::SA_RESTART, "ab")] {
        install(flags);
        let (fd, mut peer) = connected();
        let mark = 60_i32.to_ne_bytes();
        socket::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mark).unwrap();
        let unread = move || {
            let mut bytes = 0;
            ioctl(fd, libc::FIONREAD, &mut bytes).unwrap().unwrap();
            bytes as usize
        };
        // What is there at once is read at once, and the rest is waited for.
        peer.write_all(first.as_bytes()).unwrap();
        until("the first bytes", || unread() == first.len());
        let reader = asleep(move || call(|| recv(fd, 0)));
        peer.write_all(b"cde").unwrap();
        // Whoever waits for the shard's lock sleeps, too, and takes all of them at once.
        until("the other bytes", || peer.unacknowledged().unwrap() == 0 || reader.is_over());
        until("the signal to end it", || {
            reader.interrupt();
            reader.is_over()
        });
        assert_eq!(reader.join().unwrap(), Ok([first.as_bytes(), b"cde"].concat()));
        close(fd);
    }
}

#[test]
fn a_blocking_read_is_interrupted_or_goes_on_as_sa_restart_says() {
    let _alone = alone();
    install(0);
    let (fd, _peer) = connected();
    assert_eq!(signalled(|| call(|| recv(fd, 0))), Err(Errno::new(libc::EINTR)));
    close(fd);
    install(libc::SA_RESTART);
    let (fd, mut peer) = connected();
    let writer = thread::spawn(move || {
        until("a handler", || RAN.load(Ordering::SeqCst) > 2);
        peer.write_all(b"x").unwrap();
        peer
    });
    assert_eq!(signalled(|| call(|| recv(fd, 0))), Ok(b"x".to_vec()));
    drop(writer.join().unwrap());
    close(fd);
}

/// So workers end that close their listener when they are told to, and give its number to a socket that nobody connects to.
#[test]
fn a_call_that_is_restarted_finds_what_its_number_stands_for_by_then() {
    let _alone = alone();
    install(libc::SA_RESTART);
    let unconnected = UnixDatagram::unbound().unwrap();
    for successor in [None, Some(unconnected.as_raw_fd())] {
        let (listener, _) = listener();
        SUCCESSOR.store(successor.unwrap_or(-1), Ordering::SeqCst);
        CLOSED.store(listener, Ordering::SeqCst);
        let accepted = signalled(|| call(|| socket::accept(listener, 0).map(|accepted| accepted.fd)));
        let told = if successor.is_some() { libc::EOPNOTSUPP } else { libc::EBADF };
        assert_eq!(accepted, Err(Errno::new(told)), "the listener's number is {successor:?}'s");
        if successor.is_some() {
            close(listener);
        }
    }
    let (fd, _peer) = connected();
    CLOSED.store(fd, Ordering::SeqCst);
    assert_eq!(signalled(|| call(|| recv(fd, 0))), Err(Errno::new(libc::EBADF)));
}

/// The handler's own call takes the lock that its thread may have held when it was interrupted.
#[test]
fn a_handler_that_writes_to_a_socket_of_lulls_does_not_wait_for_its_own_thread() {
    let _alone = alone();
    install(libc::SA_RESTART);
    let (fd, mut peer) = connected();
    SOCKET.store(fd, Ordering::SeqCst);
    let reader =
        thread::spawn(move || while std::io::Read::read(&mut peer, &mut [0; 4096]).is_ok_and(|count| count > 0) {});
    signalled(|| {
        while RAN.load(Ordering::SeqCst) < 20 {
            for _ in 0..100 {
                let _ = section(|| send(fd, b"data", libc::MSG_DONTWAIT));
            }
        }
    });
    SOCKET.store(-1, Ordering::SeqCst);
    close(fd);
    reader.join().unwrap();
}

#[test]
fn a_signal_that_waits_comes_in_by_the_mask_of_epoll_pwait() {
    let _alone = alone();
    install(0);
    let (fd, epfd, _peer) = waiting();
    // SAFETY: sets of this thread's own; the signal is its own, too.
    unsafe {
        let (mut blocked, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigaddset(&raw mut blocked, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
        libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
        assert_eq!(RAN.load(Ordering::SeqCst), 0, "it is blocked");
        let events = &mut [MaybeUninit::uninit()];
        let waited = section_with_mask(Some(&before), || epoll::epoll_wait(epfd, events, None));
        assert_eq!((waited, RAN.load(Ordering::SeqCst)), (Err(Errno::new(libc::EINTR)), 1));
        let mut now: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, &raw mut now);
        assert_eq!(libc::sigismember(&raw const now, libc::SIGUSR1), 1, "the mask is as it was");
    }
    close(epfd);
    close(fd);
}
