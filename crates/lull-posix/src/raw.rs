//! System calls that bypass the C library: nobody takes them over, they are no cancellation points, and they leave
//! `errno` alone.
//!
//! `libc::syscall` will not do here: where an unmodified program is preloaded, that function is taken over as well, and asks
//! this crate.
#![allow(unsafe_code)]

use core::arch::asm;

use libc::c_long;

use crate::Errno;

/// A system call with up to six arguments.
///
/// # Safety
/// As the system call with these arguments.
#[inline]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention; the caller vouches for the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention; the caller vouches for the arguments.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    // `-MAX_ERRNO` in the kernel's include/linux/err.h.
    const ERRORS: core::ops::RangeInclusive<isize> = -4095..=-1;
    if ERRORS.contains(&result) { Err(Errno::new(-result as i32)) } else { Ok(result as usize) }
}

/// The system call in place of a function of the C library, with the function's way to report errors.
///
/// # Safety
/// As the system call with these arguments.
#[cold]
pub unsafe fn in_place<const N: usize>(number: c_long, given: [usize; N]) -> isize {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&given);
    // SAFETY: as above.
    match unsafe { call(number, arguments) } {
        Ok(result) => result as isize,
        Err(error) => {
            lull_fd::linux::set_error(error.number());
            -1
        }
    }
}

/// Calls by name with fewer arguments: `raw!(SYS_close, fd)`.
macro_rules! raw {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given: &[usize] = &[$( $argument as usize ),*];
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        $crate::raw::call(libc::$number, arguments)
    }};
}
pub(crate) use raw;
