//! `fdopen`, `dprintf` and their kin, which read and write inside the C library: the number is made the kernel's first.
//! `fclose`.

use core::ffi::c_void;

use libc::{FILE, c_int};
use lull_fd::next::Next;
use lull_posix::files;

use crate::real;
use crate::taken_over::taken_over;

extern "C" fn refused<const RESULT: isize>() -> isize {
    RESULT
}

/// Declares these functions. For each there is the function that says where it goes on, the result if the number cannot
/// be the kernel's, and whether a stream keeps the number.
macro_rules! inside {
    ($($name:ident, $which:ident, $refused:literal, $kept:literal;)*) => {
        $(
            extern "C" fn $which(fd: c_int) -> *const c_void {
                static NEXT: Next = Next::of(concat!(stringify!($name), "\0"));
                match files::refuses_a_stream(fd, $kept) {
                    true => refused::<$refused> as extern "C" fn() -> isize as *const c_void,
                    false => NEXT.found(),
                }
            }
        )*
        lull_fd::goes_on! { $(fn $name, where $which;)* }
    };
}

inside! {
    fdopen, where_fdopen, 0, true;
    dprintf, where_dprintf, -1, false;
    vdprintf, where_vdprintf, -1, false;
    __dprintf_chk, where_dprintf_chk, -1, false;
    __vdprintf_chk, where_vdprintf_chk, -1, false;
}

taken_over! {
    fn fclose(stream: *mut FILE) -> c_int {
        files::closes_unseen(if stream.is_null() { -1 } else { libc::fileno(stream) });
        real::fclose()(stream)
    }
}
