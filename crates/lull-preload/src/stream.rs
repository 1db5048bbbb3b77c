//! `fdopen`, `dprintf` and their kin, which read and write inside the C library: the number is the kernel's before.

use core::ffi::c_void;

use libc::c_int;
use lull_fd::next::Next;
use lull_posix::{files, is_lull};

use crate::answer;

extern "C" fn refused<const RESULT: isize>() -> isize {
    RESULT
}

/// Declares them, with what says where each goes on, and its result if the number cannot be the kernel's.
macro_rules! inside {
    ($($name:ident, $which:ident, $refused:literal;)*) => {
        $(
            extern "C" fn $which(fd: c_int) -> *const c_void {
                static NEXT: Next = Next::of(concat!(stringify!($name), "\0"));
                match is_lull(fd) && answer::done(|| files::becomes_a_stream(fd)) != 0 {
                    true => refused::<$refused> as extern "C" fn() -> isize as *const c_void,
                    false => NEXT.found(),
                }
            }
        )*
        lull_fd::goes_on! { $(fn $name, where $which;)* }
    };
}

inside! {
    fdopen, where_fdopen, 0;
    dprintf, where_dprintf, -1;
    vdprintf, where_vdprintf, -1;
    __dprintf_chk, where_dprintf_chk, -1;
    __vdprintf_chk, where_vdprintf_chk, -1;
}
