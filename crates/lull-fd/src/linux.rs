//! The calls of Linux of which a wait consists, past the C library. They are no cancellation points, and nobody takes
//! them over.

use core::ffi::CStr;
use core::mem::size_of;
use core::ptr::{null, null_mut};

use libc::{c_int, c_long, epoll_event, sigset_t, socklen_t, timespec};
use lull_bpf::Instruction;

use crate::wait::Round;

/// The size of the kernel's signal set, in bytes. The C library's `sigset_t` is longer, and begins with it.
const KERNEL_SIGSET_BYTES: usize = 8;
/// Signals that a thread causes by its own faults. If they were blocked, they would end the program without running its
/// handlers.
const OWN_FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The options of a socket.
#[derive(Debug, PartialEq, Eq)]
pub struct Socket {
    /// SO_BUSY_POLL, in microseconds.
    pub usecs: i32,
    /// SO_BUSY_POLL_BUDGET, in packets; with 0 it is not set.
    pub budget: i32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer: bool,
}

/// An epoll context that polls one round (`busy_poll_usecs` 0 and `prefer_busy_poll`).
pub struct Poller(c_int);

impl Poller {
    /// Opens one. `params` are those of the program's contexts. Returns `None` if there are no descriptors left, or if
    /// the kernel refuses the parameters.
    pub fn open(params: &libc::epoll_params) -> Option<Poller> {
        // A context without a time polls for one round if it prefers busy polling. One that does not prefer it polls
        // for the shortest possible time.
        let busy_poll_usecs = u32::from(params.prefer_busy_poll == 0);
        let params = libc::epoll_params { busy_poll_usecs, ..*params };
        // SAFETY: the first call takes a flag; the ioctl is on the descriptor that the call made, with the struct that
        // it reads.
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

    /// Polls the queue of a socket for one round. `mask` says which signals are blocked meanwhile; without it, those
    /// that are blocked now stay blocked.
    ///
    /// The context learns its NAPI when the socket is added (`ep_set_busy_poll_napi_id`). The socket is taken off at
    /// once; otherwise each of its packets would wake this context as well.
    pub fn poll(&self, socket: c_int, mask: Option<&sigset_t>) -> Round {
        // Even with these events, an error or the end of the connection would be reported, once.
        let mut event = epoll_event { events: (libc::EPOLLET | libc::EPOLLONESHOT) as u32, u64: 0 };
        let mask = mask.map_or(null(), |mask| mask as *const sigset_t);
        // The context is polled before the kernel looks at the time, which is over by then.
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
            // If the program has closed the socket meanwhile, it is off the context already.
            libc::syscall(libc::SYS_epoll_ctl, self.0, libc::EPOLL_CTL_DEL, socket, null_mut::<epoll_event>());
            match waited {
                Ok(0) => Round::Polled,
                Err(libc::EINTR) => Round::Interrupted,
                _ => Round::Unfit,
            }
        }
    }

    /// Closes the context.
    pub fn close(self) {
        // SAFETY: the descriptor is the context's own, and is not used afterwards.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Sets the parameters of an epoll context (EPIOCSPARAMS).
///
/// # Errors
/// The kernel's error.
pub fn set_epoll_params(fd: c_int, params: &libc::epoll_params) -> Result<(), c_int> {
    // SAFETY: the kernel reads the struct, if the descriptor accepts the request.
    system_call(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::EPIOCSPARAMS, params as *const libc::epoll_params) })
        .map(drop)
}

fn system_call(result: c_long) -> Result<c_int, c_int> {
    if result < 0 { Err(last_error()) } else { Ok(result as c_int) }
}

/// Calls `epoll_wait` with timeout 0.
///
/// # Safety
/// `events` has room for `max` events.
pub unsafe fn look(epfd: c_int, events: *mut epoll_event, max: c_int) -> c_int {
    let no_mask = null::<sigset_t>();
    // SAFETY: the caller vouches for the events.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, 0, no_mask, KERNEL_SIGSET_BYTES) as c_int }
}

/// The signals that a thread had blocked before it blocked all.
pub struct Blocked(sigset_t);

impl Blocked {
    /// Blocks every signal but those of the thread's own faults. The signals that the C library uses itself are blocked
    /// as well, because cancellation must come during a wait and not between two waits. There is no destructor, because
    /// a thread that is cancelled never comes back.
    #[inline]
    pub fn all() -> Blocked {
        let mut all = u64::MAX;
        for signal in OWN_FAULTS {
            all &= !(1 << (signal - 1));
        }
        // SAFETY: zeroes are an empty set, of which the kernel writes its part; the kernel reads the same size of
        // `all`.
        unsafe {
            let mut before: sigset_t = core::mem::zeroed();
            let (how, size) = (libc::SIG_SETMASK, KERNEL_SIGSET_BYTES);
            libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const all, &raw mut before, size);
            Blocked(before)
        }
    }

    /// The signals that were blocked before.
    pub fn before(&self) -> &sigset_t {
        &self.0
    }

    /// Blocks only what was blocked before. A handler that runs at once may change `errno`.
    #[inline]
    pub fn restore(self) {
        let (how, size) = (libc::SIG_SETMASK, KERNEL_SIGSET_BYTES);
        // SAFETY: the set was written by the kernel.
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

/// The calling thread's `errno`, which is put back when this is dropped.
pub struct KeptError(c_int);

impl KeptError {
    /// Keeps the present `errno`.
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
    /// The value that it was to have.
    pub value: c_int,
    /// The kernel's error.
    pub error: c_int,
}

/// Makes a socket busy poll. If the kernel refuses an option, those after it are not set.
///
/// # Errors
/// The option that was refused.
pub fn set_busy_poll(fd: c_int, wanted: &Socket) -> Result<(), Refused> {
    let options = [
        (libc::SO_BUSY_POLL, "SO_BUSY_POLL", wanted.usecs, true),
        (libc::SO_PREFER_BUSY_POLL, "SO_PREFER_BUSY_POLL", 1, wanted.prefer),
        (libc::SO_BUSY_POLL_BUDGET, "SO_BUSY_POLL_BUDGET", wanted.budget, wanted.budget != 0),
    ];
    for (option, name, value, _) in options.into_iter().filter(|(.., asked)| *asked) {
        let size = size_of::<c_int>();
        // SAFETY: the option has the size of an int.
        let set = unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const value, size) };
        system_call(set).map_err(|error| Refused { name, value, error })?;
    }
    Ok(())
}

/// SO_BUSY_POLL of a socket, in microseconds.
pub fn busy_poll_usecs(fd: c_int) -> Option<c_int> {
    option(fd, libc::SO_BUSY_POLL)
}

/// Whether a socket may share its address (SO_REUSEPORT).
pub fn shares_port(fd: c_int) -> bool {
    option(fd, libc::SO_REUSEPORT) == Some(1)
}

/// Attaches a program to the group of a socket (SO_ATTACH_REUSEPORT_CBPF).
///
/// # Errors
/// The kernel's error.
pub(crate) fn attach_reuseport(fd: c_int, program: &[Instruction]) -> Result<(), c_int> {
    let raw = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    let size = size_of::<libc::sock_fprog>();
    // SAFETY: the structure names as many instructions as there are. They have the kernel's layout, and the kernel only
    // reads them.
    system_call(unsafe {
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const raw, size)
    })
    .map(drop)
}

/// The address that a socket is bound to.
pub(crate) enum Local {
    /// An IPv4 address in network order, and the port.
    V4([u8; 4], u16),
    /// An IPv6 address in network order, and the port.
    V6([u8; 16], u16),
}

/// The local address of an IPv4 or IPv6 socket.
///
/// # Errors
/// The kernel's error; EAFNOSUPPORT for other sockets.
pub(crate) fn local_address(fd: c_int) -> Result<Local, c_int> {
    // SAFETY: zeroes are a valid value. The kernel writes at most `size` bytes, and only the fields of the family that
    // it names are read.
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

/// Reads a file piece by piece until it ends, or until `more` returns false.
///
/// # Errors
/// The kernel's error.
pub(crate) fn read_file(name: &CStr, mut more: impl FnMut(&[u8]) -> bool) -> Result<(), c_int> {
    let mut buffer = [0_u8; 1024];
    // SAFETY: the string ends with a zero. The buffer has as many bytes as are asked for, and the kernel says how many
    // it wrote.
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
    // SAFETY: there is room for an int, whose size is passed along.
    let result =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, &raw mut value, &raw mut size) };
    (result == 0).then_some(value)
}

/// The NAPI that a socket's last packet came from; 0 if there was none, or if this is no socket.
pub fn napi_id(fd: c_int) -> u32 {
    option(fd, libc::SO_INCOMING_NAPI_ID).map_or(0, |id| id as u32)
}

/// Whether a descriptor is an IPv4 or IPv6 socket.
pub fn is_internet(fd: c_int) -> bool {
    option(fd, libc::SO_DOMAIN).is_some_and(is_internet_domain)
}

/// Whether sockets of this domain are IPv4 or IPv6.
pub fn is_internet_domain(domain: c_int) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
}
