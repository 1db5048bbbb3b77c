//! Calls that give out a number for something of the kernel's. The number may have stood for something of lull's that
//! was closed without being seen, as `fclose`, `closefrom` and `posix_spawn` close inside the C library. It is
//! forgotten here, before anybody reads from it.

use core::ffi::{c_char, c_uint};

use libc::{c_int, mode_t, sigset_t};

use lull_posix::files;

use crate::real;
use crate::taken_over::taken_over;

/// Declares calls that return a number.
macro_rules! gives_a_number {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        taken_over! {
            $(
                /// A call may lack its last arguments; what is found in their place is passed on.
                fn $name($($arg: $type),*) -> c_int { files::given_out(real::$name($($arg),*)) }
            )*
        }
    };
}

gives_a_number! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t);
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn creat(path: *const c_char, mode: mode_t);
    fn creat64(path: *const c_char, mode: mode_t);
    fn eventfd(count: c_uint, flags: c_int);
    fn timerfd_create(clock: c_int, flags: c_int);
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    fn inotify_init();
    fn inotify_init1(flags: c_int);
    fn memfd_create(name: *const c_char, flags: c_uint);
}

/// Forgets what the two numbers of a call that succeeded stood for before.
///
/// # Safety
/// The call has written both.
unsafe fn both_forgotten(result: c_int, pair: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: as above.
        unsafe {
            files::given_out(*pair);
            files::given_out(*pair.add(1));
        }
    }
    result
}

taken_over! {
    fn pipe(pair: *mut c_int) -> c_int { both_forgotten(real::pipe(pair), pair) }

    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int { both_forgotten(real::pipe2(pair, flags), pair) }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
        both_forgotten(real::socketpair(domain, kind, protocol, pair), pair)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        files::close_range(first, last, flags, |first, last| real::close_range(first, last, flags))
    }

    /// As [`close_range`]. It closes what there is and cannot fail.
    fn closefrom(first: c_int) -> () {
        files::close_range(first.max(0) as c_uint, c_uint::MAX, 0, |first, last| real::close_range(first, last, 0));
    }
}
