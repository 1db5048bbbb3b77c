//! The C library's own functions, looked up once at load.
//!
//! Another library's initialiser may call before this one's ran, and one that the C library does not have (`epoll_pwait2`
//! before glibc 2.35) is never there. Both are the plain system call: a look-up at that moment may allocate, and the allocator
//! may be what calls.

use core::ffi::{CStr, c_char, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    c_int, c_ulong, epoll_event, fd_set, iovec, loff_t, mmsghdr, mode_t, msghdr, nfds_t, off_t, pollfd, sighandler_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::set_error;

/// One function of the C library.
struct Next {
    symbol: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn of(symbol: &'static CStr) -> Next {
        Next { symbol, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address, null if it was not looked up yet or the C library has no such function.
    #[inline]
    fn address(&self) -> *mut c_void {
        self.address.load(Relaxed)
    }

    /// Its address, looked up now if it was not yet.
    fn found(&self) -> *mut c_void {
        if self.address().is_null() {
            self.look_up();
        }
        self.address()
    }

    #[cold]
    fn look_up(&self) {
        // SAFETY: the symbol ends with a zero.
        self.address.store(unsafe { libc::dlsym(libc::RTLD_NEXT, self.symbol.as_ptr()) }, Relaxed);
    }
}

/// The system call in place of a function, with the function's way to report errors.
#[cold]
fn system_call<const N: usize>(number: libc::c_long, given: [usize; N]) -> isize {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&given);
    // SAFETY: the same arguments go to the kernel as the C library's wrapper would pass on.
    match unsafe { lull_posix::raw::call(number, arguments) } {
        Ok(result) => result as isize,
        Err(error) => {
            set_error(error.number());
            -1
        }
    }
}

/// Declares the real functions with their C signatures, and the system call that stands in for each. "C-unwind", because
/// cancelling a thread (`pthread_cancel`) unwinds through these calls.
macro_rules! next {
    ($($static:ident = $symbol:literal: fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty,
        else $number:ident($($passed:expr),*);)*) => {
        $(
            static $static: Next = Next::of($symbol);

            /// The C library's function of that name.
            ///
            /// # Safety
            /// As that function.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                let address = $static.address();
                if address.is_null() {
                    return system_call(libc::$number, [$($passed as usize),*]) as $result;
                }
                // SAFETY: the C library's function of this name has this signature; the caller vouches for the
                // arguments.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(address)(
                        $($arg),*
                    )
                }
            }
        )*

        /// Looks every function up.
        pub(crate) fn look_up_all() {
            $( $static.look_up(); )*
            SIGACTION.look_up();
            SIGNAL.look_up();
            SYSCALL.look_up();
        }
    };
}

static SIGACTION: Next = Next::of(c"sigaction");
static SIGNAL: Next = Next::of(c"signal");

/// The C library's function of that name. It has no system call in its place: the kernel wants a way back from handlers, which is
/// the C library's. So a call before this library's initialiser has run looks it up.
///
/// # Safety
/// As that function.
pub(crate) unsafe fn sigaction(signal: c_int, asked: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: every C library has it, with this signature; the caller vouches for the arguments.
    unsafe { core::mem::transmute::<*mut c_void, Function>(SIGACTION.found())(signal, asked, before) }
}

/// As [`sigaction`].
///
/// # Safety
/// As that function.
pub(crate) unsafe fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    type Function = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
    // SAFETY: every C library has it, with this signature; the caller vouches for the arguments.
    unsafe { core::mem::transmute::<*mut c_void, Function>(SIGNAL.found())(signal, handler) }
}

static SYSCALL: Next = Next::of(c"syscall");

/// As [`sigaction`], but the system call itself stands in for it.
///
/// # Safety
/// As that function.
#[inline]
pub(crate) unsafe fn syscall(which: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    type Function = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;
    let address = SYSCALL.address();
    if address.is_null() {
        return system_call(which, [a, b, c, d, e, f]) as c_long;
    }
    // SAFETY: the C library's function has this signature; the caller vouches for the arguments.
    unsafe { core::mem::transmute::<*mut c_void, Function>(address)(which, a, b, c, d, e, f) }
}

/// Bytes of the kernel's signal set, of which the C library's `sigset_t` is a longer one.
const KERNEL_SIGSET_BYTES: usize = 8;

next! {
    EPOLL_CREATE = c"epoll_create": fn epoll_create(size: c_int) -> c_int,
        else SYS_epoll_create1({ let _ = size; 0 });
    EPOLL_CREATE1 = c"epoll_create1": fn epoll_create1(flags: c_int) -> c_int,
        else SYS_epoll_create1(flags);
    EPOLL_CTL = c"epoll_ctl": fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int,
        else SYS_epoll_ctl(epfd, what, fd, event);
    EPOLL_WAIT = c"epoll_wait": fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int,
        else SYS_epoll_pwait(epfd, events, max, timeout, 0, KERNEL_SIGSET_BYTES);
    EPOLL_PWAIT = c"epoll_pwait": fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int,
            mask: *const sigset_t) -> c_int,
        else SYS_epoll_pwait(epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    EPOLL_PWAIT2 = c"epoll_pwait2": fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int,
            timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else SYS_epoll_pwait2(epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    SOCKET = c"socket": fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int,
        else SYS_socket(domain, kind, protocol);
    ACCEPT = c"accept": fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else SYS_accept4(fd, address, length, 0);
    ACCEPT4 = c"accept4": fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int,
        else SYS_accept4(fd, address, length, flags);
    BIND = c"bind": fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        else SYS_bind(fd, address, length);
    CONNECT = c"connect": fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int,
        else SYS_connect(fd, address, length);
    SHUTDOWN = c"shutdown": fn shutdown(fd: c_int, how: c_int) -> c_int,
        else SYS_shutdown(fd, how);
    SENDFILE = c"sendfile": fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t,
        else SYS_sendfile(to, from, offset, count);
    POLL = c"poll": fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int,
        else SYS_poll(fds, count, timeout);
    PPOLL = c"ppoll": fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else SYS_ppoll(fds, count, timeout, mask, KERNEL_SIGSET_BYTES);
    SELECT = c"select": fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *mut timeval) -> c_int,
        else SYS_select(count, read, write, except, timeout);
    PSELECT = c"pselect": fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else SYS_pselect6(count, read, write, except, timeout, { let _ = mask; 0 });
    LISTEN = c"listen": fn listen(fd: c_int, backlog: c_int) -> c_int,
        else SYS_listen(fd, backlog);
    GETSOCKNAME = c"getsockname": fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else SYS_getsockname(fd, address, length);
    GETPEERNAME = c"getpeername": fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else SYS_getpeername(fd, address, length);
    SETSOCKOPT = c"setsockopt": fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
            length: socklen_t) -> c_int,
        else SYS_setsockopt(fd, level, name, value, length);
    GETSOCKOPT = c"getsockopt": fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
            length: *mut socklen_t) -> c_int,
        else SYS_getsockopt(fd, level, name, value, length);
    READ = c"read": fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t,
        else SYS_read(fd, buffer, count);
    READV = c"readv": fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t,
        else SYS_readv(fd, buffers, count);
    RECV = c"recv": fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t,
        else SYS_recvfrom(fd, buffer, count, flags, 0, 0);
    RECVFROM = c"recvfrom": fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int,
            address: *mut sockaddr, length: *mut socklen_t) -> ssize_t,
        else SYS_recvfrom(fd, buffer, count, flags, address, length);
    RECVMSG = c"recvmsg": fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
        else SYS_recvmsg(fd, message, flags);
    WRITE = c"write": fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t,
        else SYS_write(fd, buffer, count);
    WRITEV = c"writev": fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t,
        else SYS_writev(fd, buffers, count);
    SEND = c"send": fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t,
        else SYS_sendto(fd, buffer, count, flags, 0, 0);
    SENDTO = c"sendto": fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int,
            address: *const sockaddr, length: socklen_t) -> ssize_t,
        else SYS_sendto(fd, buffer, count, flags, address, length);
    SENDMSG = c"sendmsg": fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        else SYS_sendmsg(fd, message, flags);
    FCNTL = c"fcntl": fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int,
        else SYS_fcntl(fd, command, argument);
    FCNTL64 = c"fcntl64": fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int,
        else SYS_fcntl(fd, command, argument);
    IOCTL = c"ioctl": fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int,
        else SYS_ioctl(fd, request, argument);
    OPEN = c"open": fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, flags, mode);
    OPEN64 = c"open64": fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, flags, mode);
    OPENAT = c"openat": fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(directory, path, flags, mode);
    OPENAT64 = c"openat64": fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(directory, path, flags, mode);
    CREAT = c"creat": fn creat(path: *const c_char, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    CREAT64 = c"creat64": fn creat64(path: *const c_char, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    EVENTFD = c"eventfd": fn eventfd(count: c_uint, flags: c_int) -> c_int,
        else SYS_eventfd2(count, flags);
    TIMERFD_CREATE = c"timerfd_create": fn timerfd_create(clock: c_int, flags: c_int) -> c_int,
        else SYS_timerfd_create(clock, flags);
    SIGNALFD = c"signalfd": fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int,
        else SYS_signalfd4(fd, mask, KERNEL_SIGSET_BYTES, flags);
    INOTIFY_INIT = c"inotify_init": fn inotify_init() -> c_int,
        else SYS_inotify_init1(0_usize);
    INOTIFY_INIT1 = c"inotify_init1": fn inotify_init1(flags: c_int) -> c_int,
        else SYS_inotify_init1(flags);
    MEMFD_CREATE = c"memfd_create": fn memfd_create(name: *const c_char, flags: c_uint) -> c_int,
        else SYS_memfd_create(name, flags);
    PIPE = c"pipe": fn pipe(pair: *mut c_int) -> c_int,
        else SYS_pipe2(pair, 0);
    PIPE2 = c"pipe2": fn pipe2(pair: *mut c_int, flags: c_int) -> c_int,
        else SYS_pipe2(pair, flags);
    SOCKETPAIR = c"socketpair": fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int,
        else SYS_socketpair(domain, kind, protocol, pair);
    CLOSE_RANGE = c"close_range": fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int,
        else SYS_close_range(first, last, flags);
    RECVMMSG = c"recvmmsg": fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
            timeout: *mut timespec) -> c_int,
        else SYS_recvmmsg(fd, messages, count, flags, timeout);
    SENDMMSG = c"sendmmsg": fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        else SYS_sendmmsg(fd, messages, count, flags);
    SPLICE = c"splice": fn splice(from: c_int, at: *mut loff_t, to: c_int, there: *mut loff_t, count: size_t,
            flags: c_uint) -> ssize_t,
        else SYS_splice(from, at, to, there, count, flags);
    CLOSE = c"close": fn close(fd: c_int) -> c_int,
        else SYS_close(fd);
    DUP = c"dup": fn dup(fd: c_int) -> c_int,
        else SYS_dup(fd);
    DUP2 = c"dup2": fn dup2(fd: c_int, to: c_int) -> c_int,
        else SYS_dup3(fd, to, 0);
    DUP3 = c"dup3": fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int,
        else SYS_dup3(fd, to, flags);
}
