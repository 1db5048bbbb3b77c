//! The C library's own functions, looked up once at load.
//!
//! Another library's initialiser may call before this one's ran, so a function that is not there yet is looked up at
//! its call; one that the C library does not have (`epoll_pwait2` before glibc 2.35) is the plain system call.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{c_int, epoll_event, sigset_t, sockaddr, socklen_t, timespec};

use crate::Errno;

/// One function of the C library.
struct Next {
    symbol: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn of(symbol: &'static CStr) -> Next {
        Next { symbol, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address, null if the C library has no such function.
    #[inline]
    fn address(&self) -> *mut c_void {
        let address = self.address.load(Relaxed);
        if address.is_null() { self.look_up() } else { address }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let _errno = Errno::keep();
        // SAFETY: the symbol ends with a zero.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.symbol.as_ptr()) };
        self.address.store(address, Relaxed);
        address
    }
}

/// Declares the real functions with their C signatures, and what stands in for each where the C library lacks it.
/// "C-unwind", because cancelling a thread (`pthread_cancel`) unwinds through these calls.
macro_rules! next {
    ($($static:ident = $symbol:literal: fn $name:ident($($arg:ident: $type:ty),*), else $system_call:expr;)*) => {
        $(
            static $static: Next = Next::of($symbol);

            /// The C library's function of that name.
            ///
            /// # Safety
            /// As that function.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $type),*) -> c_int {
                let address = $static.address();
                if address.is_null() {
                    // SAFETY: the same arguments go to the kernel as the C library's wrapper would pass on.
                    return unsafe { $system_call } as c_int;
                }
                // SAFETY: the C library's function of this name has this signature; the caller vouches for the
                // arguments.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> c_int>(address)(
                        $($arg),*
                    )
                }
            }
        )*

        /// Looks every function up.
        pub(crate) fn look_up_all() {
            $( $static.look_up(); )*
        }
    };
}

/// Bytes of the kernel's signal set, of which the C library's `sigset_t` is a longer one.
const KERNEL_SIGSET_BYTES: usize = 8;
const NO_MASK: *const sigset_t = core::ptr::null();

next! {
    EPOLL_CREATE = c"epoll_create": fn epoll_create(size: c_int),
        else { let _ = size; libc::syscall(libc::SYS_epoll_create1, 0) };
    EPOLL_CREATE1 = c"epoll_create1": fn epoll_create1(flags: c_int),
        else libc::syscall(libc::SYS_epoll_create1, flags);
    EPOLL_CTL = c"epoll_ctl": fn epoll_ctl(epfd: c_int, what: c_int, fd: c_int, event: *mut epoll_event),
        else libc::syscall(libc::SYS_epoll_ctl, epfd, what, fd, event);
    EPOLL_WAIT = c"epoll_wait": fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int),
        else libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, NO_MASK, KERNEL_SIGSET_BYTES);
    EPOLL_PWAIT = c"epoll_pwait": fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int,
            mask: *const sigset_t),
        else libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    EPOLL_PWAIT2 = c"epoll_pwait2": fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int,
            timeout: *const timespec, mask: *const sigset_t),
        else libc::syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, KERNEL_SIGSET_BYTES);
    SOCKET = c"socket": fn socket(domain: c_int, kind: c_int, protocol: c_int),
        else libc::syscall(libc::SYS_socket, domain, kind, protocol);
    ACCEPT = c"accept": fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t),
        else libc::syscall(libc::SYS_accept4, fd, address, length, 0);
    ACCEPT4 = c"accept4": fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int),
        else libc::syscall(libc::SYS_accept4, fd, address, length, flags);
}
