//! The calls of Linux that a wait is made of, past the C library: they are no cancellation points, and nobody takes
//! them over.

use core::ffi::CStr;
use core::mem::size_of;
use core::ptr::{null, null_mut};

use libc::{c_int, c_long, epoll_event, sigset_t, socklen_t, timespec};
use lull_bpf::Instruction;

use crate::wait::Round;

/// Bytes of the kernel's signal set, of which the C library's `sigset_t` is a longer one.
const KERNEL_SIGSET_BYTES: usize = 8;
/// Signals that come of what a thread itself does wrong. Blocked, they would end the program without its handlers.
const OWN_FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// What sockets get.
#[derive(Debug, PartialEq, Eq)]
pub struct Socket {
    /// SO_BUSY_POLL, microseconds.
    pub usecs: i32,
    /// SO_BUSY_POLL_BUDGET, packets; 0: not set.
    pub budget: i32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer: bool,
}

/// An epoll context that polls one round (`busy_poll_usecs` 0 and `prefer_busy_poll`).
pub struct Poller(c_int);

impl Poller {
    /// Opens one. `params` are those of the program's contexts. Nothing if there are no descriptors left, or where the
    /// kernel refuses the parameters.
    pub fn open(params: &libc::epoll_params) -> Option<Poller> {
        // A round is what a context without a time gets if it prefers busy polling; one that does not polls for the
        // shortest time there is.
        let busy_poll_usecs = u32::from(params.prefer_busy_poll == 0);
        let params = libc::epoll_params { busy_poll_usecs, ..*params };
        // SAFETY: takes a flag; the ioctl is on the descriptor that it made, with the struct that it reads.
        unsafe {
            let fd = libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) as c_int;
            if fd < 0 {
                return None;
            }
            let poller = Poller(fd);
            if set_epoll_params(fd, &params).is_err() {
                poller.close();
                return None;
            }
            Some(poller)
        }
    }

    /// Polls the queue of a socket for one round. `mask` says which signals are blocked meanwhile; without it those that
    /// are blocked now.
    ///
    /// Adding the socket is what tells the context its NAPI (`ep_set_busy_poll_napi_id`). It is taken off at once: kept,
    /// it would have each of its packets wake this context as well.
    pub fn poll(&self, socket: c_int, mask: Option<&sigset_t>) -> Round {
        // An error or the end of the connection would be told all the same, once.
        let mut event = epoll_event { events: (libc::EPOLLET | libc::EPOLLONESHOT) as u32, u64: 0 };
        let mask = mask.map_or(null(), |mask| mask as *const sigset_t);
        // The context is polled before the time is looked at, which is over by then.
        let no_time = timespec { tv_sec: 0, tv_nsec: 1 };
        // SAFETY: descriptors, structs that live until the calls return, and room for the one event asked for.
        unsafe {
            let added = libc::syscall(libc::SYS_epoll_ctl, self.0, libc::EPOLL_CTL_ADD, socket, &raw mut event) == 0;
            if !added {
                return Round::Unfit;
            }
            let waited = system_call(libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0,
                &raw mut event,
                1,
                &raw const no_time,
                mask,
                KERNEL_SIGSET_BYTES,
            ));
            // It has gone by itself if the program has closed the socket meanwhile.
            libc::syscall(libc::SYS_epoll_ctl, self.0, libc::EPOLL_CTL_DEL, socket, null_mut::<epoll_event>());
            match waited {
                Ok(0) => Round::Polled,
                Err(libc::EINTR) => Round::Interrupted,
                _ => Round::Unfit,
            }
        }
    }

    /// Closes it.
    pub fn close(self) {
        // SAFETY: its own descriptor, which is used no more.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// EPIOCSPARAMS.
///
/// # Errors
/// The kernel's.
pub fn set_epoll_params(fd: c_int, params: &libc::epoll_params) -> Result<(), c_int> {
    // SAFETY: the kernel reads the struct, if the descriptor takes the request.
    system_call(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::EPIOCSPARAMS, params as *const libc::epoll_params) })
        .map(drop)
}

fn system_call(result: c_long) -> Result<c_int, c_int> {
    if result < 0 { Err(last_error()) } else { Ok(result as c_int) }
}

/// `epoll_wait` with timeout 0.
///
/// # Safety
/// `events` has room for `max` events.
pub unsafe fn look(epfd: c_int, events: *mut epoll_event, max: c_int) -> c_int {
    let no_mask = null::<sigset_t>();
    // SAFETY: the caller vouches for the events.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, 0, no_mask, KERNEL_SIGSET_BYTES) as c_int }
}

/// The signals that a thread had blocked before all were.
pub struct Blocked(sigset_t);

impl Blocked {
    /// Blocks every signal but those of the thread's own faults. Those that the C library keeps for itself are blocked as
    /// well: cancellation has to come in during a wait and not between two. It has no destructor, because a thread that
    /// is cancelled never comes back.
    #[inline]
    pub fn all() -> Blocked {
        let mut all = u64::MAX;
        for signal in OWN_FAULTS {
            all &= !(1 << (signal - 1));
        }
        // SAFETY: zeroes are an empty set, of which the kernel writes its part; it reads as much of `all`.
        unsafe {
            let mut before: sigset_t = core::mem::zeroed();
            let (how, size) = (libc::SIG_SETMASK, KERNEL_SIGSET_BYTES);
            libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const all, &raw mut before, size);
            Blocked(before)
        }
    }

    /// What was blocked before.
    pub fn before(&self) -> &sigset_t {
        &self.0
    }

    /// Lets in what was let in before. A handler that runs at once may change `errno`.
    #[inline]
    pub fn restore(self) {
        let (how, size) = (libc::SIG_SETMASK, KERNEL_SIGSET_BYTES);
        // SAFETY: the set that was written by the kernel.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const self.0, null_mut::<sigset_t>(), size);
        }
    }
}

/// Sets the calling thread's `errno`.
pub fn set_error(error: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error }
}

/// The calling thread's `errno`.
pub fn last_error() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// The calling thread's `errno`, put back when this is dropped.
pub struct KeptError(c_int);

impl KeptError {
    /// Keeps it.
    pub fn keep() -> KeptError {
        KeptError(last_error())
    }
}

impl Drop for KeptError {
    fn drop(&mut self) {
        set_error(self.0);
    }
}

/// An option of a new socket that the kernel refuses.
pub struct Refused {
    /// The option.
    pub name: &'static str,
    /// What it was to be.
    pub value: c_int,
    /// The kernel's error.
    pub error: c_int,
}

/// Makes a socket busy poll. The first option that is refused ends it.
///
/// # Errors
/// The option that was.
pub fn set_busy_poll(fd: c_int, wanted: &Socket) -> Result<(), Refused> {
    let options = [
        (libc::SO_BUSY_POLL, "SO_BUSY_POLL", wanted.usecs, true),
        (libc::SO_PREFER_BUSY_POLL, "SO_PREFER_BUSY_POLL", 1, wanted.prefer),
        (libc::SO_BUSY_POLL_BUDGET, "SO_BUSY_POLL_BUDGET", wanted.budget, wanted.budget != 0),
    ];
    for (option, name, value, _) in options.into_iter().filter(|(.., asked)| *asked) {
        let size = size_of::<c_int>();
        // SAFETY: an option of the size of an int.
        let set = unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const value, size) };
        system_call(set).map_err(|error| Refused { name, value, error })?;
    }
    Ok(())
}

/// SO_BUSY_POLL of a socket, microseconds.
pub fn busy_poll_usecs(fd: c_int) -> Option<c_int> {
    option(fd, libc::SO_BUSY_POLL)
}

/// Whether a socket shares its address (SO_REUSEPORT).
pub fn shares_port(fd: c_int) -> bool {
    option(fd, libc::SO_REUSEPORT) == Some(1)
}

/// SO_ATTACH_REUSEPORT_CBPF.
///
/// # Errors
/// The kernel's.
pub(crate) fn attach_reuseport(fd: c_int, program: &[Instruction]) -> Result<(), c_int> {
    let raw = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    let size = size_of::<libc::sock_fprog>();
    // SAFETY: the structure names as many instructions as there are, which have the kernel's layout and which it only reads.
    system_call(unsafe {
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const raw, size)
    })
    .map(drop)
}

/// What a socket is bound to.
pub(crate) enum Local {
    /// IPv4: address in network order, and port.
    V4([u8; 4], u16),
    /// IPv6.
    V6([u8; 16], u16),
}

/// The local address of an IPv4 or IPv6 socket.
///
/// # Errors
/// The kernel's; EAFNOSUPPORT for other sockets.
pub(crate) fn local_address(fd: c_int) -> Result<Local, c_int> {
    // SAFETY: zeroes are a value of it; the kernel writes at most `size` bytes, and what of it is read is of the family that
    // it says.
    unsafe {
        let mut address: libc::sockaddr_in6 = core::mem::zeroed();
        let mut size = size_of::<libc::sockaddr_in6>() as socklen_t;
        system_call(libc::syscall(libc::SYS_getsockname, fd, &raw mut address, &raw mut size))?;
        match c_int::from(address.sin6_family) {
            libc::AF_INET => {
                let v4 = &*(&raw const address).cast::<libc::sockaddr_in>();
                Ok(Local::V4(v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => Ok(Local::V6(address.sin6_addr.s6_addr, u16::from_be(address.sin6_port))),
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// Reads a file piece by piece until it ends or `more` says that it is enough.
///
/// # Errors
/// The kernel's.
pub(crate) fn read_file(name: &CStr, mut more: impl FnMut(&[u8]) -> bool) -> Result<(), c_int> {
    let mut buffer = [0_u8; 1024];
    // SAFETY: a string that ends with a zero, and a buffer of so many bytes, of which the kernel says how many it wrote.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = system_call(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags))?;
        let result = loop {
            match system_call(libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len())) {
                Ok(0) => break Ok(()),
                Ok(read) if more(buffer.get(..read as usize).unwrap_or_default()) => {}
                Ok(_) => break Ok(()),
                Err(libc::EINTR) => {}
                Err(error) => break Err(error),
            }
        };
        libc::syscall(libc::SYS_close, fd);
        result
    }
}

fn option(fd: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut size = size_of::<c_int>() as socklen_t;
    // SAFETY: room for an int, and its size.
    let result =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, &raw mut value, &raw mut size) };
    (result == 0).then_some(value)
}

/// The NAPI that a socket's last packet came from; 0 if none, or if it is no socket.
pub fn napi_id(fd: c_int) -> u32 {
    option(fd, libc::SO_INCOMING_NAPI_ID).map_or(0, |id| id as u32)
}

/// Whether a descriptor is an IPv4 or IPv6 socket.
pub fn is_internet(fd: c_int) -> bool {
    option(fd, libc::SO_DOMAIN).is_some_and(is_internet_domain)
}

/// Whether sockets of a domain are IPv4 or IPv6.
pub fn is_internet_domain(domain: c_int) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
}
