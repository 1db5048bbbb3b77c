//! The C library's own functions, looked up once at load.
//!
//! A function cannot be called before it was looked up: another library's initialiser may call one before this
//! library's has run, and the C library may not have one at all (`epoll_pwait2` before glibc 2.35). In both cases the
//! plain system call is made in its place. To look it up at that moment is not possible, as that may allocate, and the
//! caller may be the allocator.

use core::ffi::{c_char, c_long, c_uint, c_void};

use libc::{
    c_int, c_ulong, epoll_event, fd_set, iovec, loff_t, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use lull_fd::next::Next;
use lull_posix::raw::in_place;

/// A function that installs a handler.
pub(crate) type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
/// Strings, ended by a null pointer.
type Strings = *const *const c_char;

/// Declares the real functions with their C signatures, and the system call that stands in for each. If the system call
/// takes other arguments than the function, these are given as well. The functions are "C-unwind", because cancelling a
/// thread (`pthread_cancel`) unwinds through them.
macro_rules! next {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, else $number:ident $(($($passed:expr),*))?;)*) => {
        #[allow(non_upper_case_globals)]
        mod found {
            use super::Next;
            $( pub(super) static $name: Next = Next::of(concat!(stringify!($name), "\0")); )*
        }

        $(
            /// The C library's function of that name.
            ///
            /// # Safety
            /// As for that function.
            #[inline]
            #[allow(non_snake_case)] // Names are C's.
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                let address = found::$name.address();
                if address.is_null() {
                    // SAFETY: the kernel gets what the C library's wrapper would pass on.
                    return unsafe { in_place(libc::$number, next!(@passed [$($arg),*] $($($passed),*)?)) as $result };
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
            $( found::$name.look_up(); )*
            SYSCALL.look_up();
            VFORK.look_up();
            look_up_found();
        }
    };
    (@passed [$($arg:ident),*]) => { [$($arg as usize),*] };
    (@passed [$($arg:ident),*] $($passed:expr),+) => { [$($passed as usize),*] };
}

/// Declares functions for which no system call stands in. A call before this library's initialiser has run looks them
/// up.
macro_rules! found {
    ($($(#[$doc:meta])* fn $name:ident: $type:ty;)*) => {
        $(
            /// The C library's function of that name.
            $(#[$doc])*
            pub(crate) fn $name() -> $type {
                static NEXT: Next = Next::of(concat!(stringify!($name), "\0"));
                // SAFETY: every C library has this function, with this signature.
                unsafe { core::mem::transmute::<*mut c_void, $type>(NEXT.found()) }
            }
        )*
        fn look_up_found() {
            $( $name(); )*
        }
    };
}

found! {
    /// The kernel needs a way back from a handler, which is the C library's, so this is not a system call.
    fn sigaction: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    fn signal: Signal;
    fn __sysv_signal: Signal;
    fn sigset: Signal;
    fn siginterrupt: unsafe extern "C" fn(c_int, c_int) -> c_int;
    fn pthread_cancel: lull_posix::cancel::Real;
    fn raise: unsafe extern "C" fn(c_int) -> c_int;
    fn kill: unsafe extern "C" fn(pid_t, c_int) -> c_int;
    fn killpg: unsafe extern "C" fn(pid_t, c_int) -> c_int;
    fn sigqueue: unsafe extern "C" fn(pid_t, c_int, libc::sigval) -> c_int;
    fn pthread_kill: unsafe extern "C" fn(libc::pthread_t, c_int) -> c_int;
    fn pthread_sigqueue: unsafe extern "C" fn(libc::pthread_t, c_int, libc::sigval) -> c_int;
    fn _exit: unsafe extern "C" fn(c_int) -> !;
    fn quick_exit: unsafe extern "C" fn(c_int) -> !;
    fn abort: unsafe extern "C" fn() -> !;
    fn getifaddrs: lull_posix::interfaces::List;
    fn freeifaddrs: lull_posix::interfaces::Free;
    fn fclose: unsafe extern "C" fn(*mut libc::FILE) -> c_int;
}

static VFORK: Next = Next::of("vfork\0");

/// The address of the C library's `vfork`, to be jumped to.
pub(crate) fn vfork_address() -> *const c_void {
    VFORK.found()
}

static SYSCALL: Next = Next::of("syscall\0");

/// The C library's function of that name. Before it is looked up, the system call itself stands in for it.
///
/// # Safety
/// As for that function.
#[inline]
pub(crate) unsafe fn syscall(which: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    type Function = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;
    let address = SYSCALL.address();
    if address.is_null() {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { in_place(which, [a, b, c, d, e, f]) as c_long };
    }
    // SAFETY: the C library's function has this signature; the caller vouches for the arguments.
    unsafe { core::mem::transmute::<*mut c_void, Function>(address)(which, a, b, c, d, e, f) }
}

/// The size of the kernel's signal set, in bytes. The C library's `sigset_t` is longer, and begins with it.
const KERNEL_SIGSET_BYTES: usize = 8;

next! {
    fn epoll_create(size: c_int) -> c_int, else SYS_epoll_create1({ let _ = size; 0 });
    fn epoll_create1(flags: c_int) -> c_int, else SYS_epoll_create1;
    fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int, else SYS_epoll_ctl;
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int,
        else SYS_epoll_pwait(epfd, events, max, timeout, 0, KERNEL_SIGSET_BYTES);
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int,
        else SYS_epoll_pwait(epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
            mask: *const sigset_t) -> c_int,
        else SYS_epoll_pwait2(epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else SYS_socket;
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else SYS_accept4(fd, address, length, 0);
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, else SYS_accept4;
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, else SYS_bind;
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, else SYS_connect;
    fn shutdown(fd: c_int, how: c_int) -> c_int, else SYS_shutdown;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t, else SYS_sendfile;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, else SYS_poll;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else SYS_ppoll(fds, count, timeout, mask, KERNEL_SIGSET_BYTES);
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int,
        else SYS_select;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
            mask: *const sigset_t) -> c_int,
        else SYS_pselect6(count, read, write, except, timeout, { let _ = mask; 0 });
    fn listen(fd: c_int, backlog: c_int) -> c_int, else SYS_listen;
    fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, else SYS_getsockname;
    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, else SYS_getpeername;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int,
        else SYS_setsockopt;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int,
        else SYS_getsockopt;
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t, else SYS_read;
    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t, else SYS_readv;
    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t,
        else SYS_recvfrom(fd, buffer, count, flags, 0, 0);
    fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr,
            length: *mut socklen_t) -> ssize_t,
        else SYS_recvfrom;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, else SYS_recvmsg;
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t, else SYS_write;
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t, else SYS_writev;
    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t,
        else SYS_sendto(fd, buffer, count, flags, 0, 0);
    fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr,
            length: socklen_t) -> ssize_t,
        else SYS_sendto;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, else SYS_sendmsg;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else SYS_fcntl;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int, else SYS_fcntl;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int, else SYS_ioctl;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, flags, mode);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, flags, mode);
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else SYS_openat;
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else SYS_openat;
    fn creat(path: *const c_char, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    fn creat64(path: *const c_char, mode: mode_t) -> c_int,
        else SYS_openat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    fn eventfd(count: c_uint, flags: c_int) -> c_int, else SYS_eventfd2;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int, else SYS_timerfd_create;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int,
        else SYS_signalfd4(fd, mask, KERNEL_SIGSET_BYTES, flags);
    fn inotify_init() -> c_int, else SYS_inotify_init1(0_usize);
    fn inotify_init1(flags: c_int) -> c_int, else SYS_inotify_init1;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int, else SYS_memfd_create;
    fn pipe(pair: *mut c_int) -> c_int, else SYS_pipe2(pair, 0);
    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int, else SYS_pipe2;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int, else SYS_socketpair;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, else SYS_close_range;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int,
        else SYS_recvmmsg;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, else SYS_sendmmsg;
    fn splice(from: c_int, at: *mut loff_t, to: c_int, there: *mut loff_t, count: size_t, flags: c_uint) -> ssize_t,
        else SYS_splice;
    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int, else SYS_execve;
    fn execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int, else SYS_execve;
    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int,
        else SYS_execveat(fd, c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH);
    fn execveat(at: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int,
        else SYS_execveat;
    fn _Fork() -> pid_t, else SYS_clone(libc::SIGCHLD, 0, 0, 0, 0);
    fn tgkill(process: pid_t, thread: pid_t, signal: c_int) -> c_int, else SYS_tgkill;
    fn close(fd: c_int) -> c_int, else SYS_close;
    fn dup(fd: c_int) -> c_int, else SYS_dup;
    fn dup2(fd: c_int, to: c_int) -> c_int, else SYS_dup3(fd, to, 0);
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, else SYS_dup3;
}
