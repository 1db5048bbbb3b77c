//! Numbers: `close`, `dup` and their kin, `fcntl`, `ioctl`.

use libc::{c_int, c_uint, c_ulong};
use lull_posix::{files, flags, is_engaged, is_lull, memory};

use crate::{answer, real};

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: the caller's argument, passed on.
    if is_lull(fd) { answer::done(|| files::close(fd)) } else { unsafe { real::close(fd) } }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    if is_lull(fd) {
        return answer::number(|| files::duplicate(fd, 0, false));
    }
    // SAFETY: the caller's argument, passed on.
    forgotten(unsafe { real::dup(fd) })
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to && (is_lull(fd) || is_lull(to)) {
        return answer::number(|| files::duplicate_to(fd, to, 0));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::dup2(fd, to) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to && (is_lull(fd) || is_lull(to)) {
        return answer::number(|| files::duplicate_to(fd, to, flags));
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::dup3(fd, to, flags) }
}

/// Closes what is lull's of a range of numbers.
pub(crate) fn close_lulls(first: c_uint, last: c_uint) {
    if is_engaged() {
        answer::done(|| {
            files::close_range(first, last);
            Ok(())
        });
    }
}

/// A number that the kernel gave out stands for nothing of lull's any more.
#[inline]
pub(crate) fn forgotten(fd: c_int) -> c_int {
    if fd >= 0 && is_engaged() {
        files::forget(fd);
    }
    fd
}

/// As the C library's. The third argument is a number or a pointer, or is not there; it is passed on in any case.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    match lulls_fcntl(fd, command, argument) {
        Some(result) => result,
        // SAFETY: the caller's arguments, passed on.
        None => new_number(command, unsafe { real::fcntl(fd, command, argument) }),
    }
}

/// As [`fcntl`].
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    match lulls_fcntl(fd, command, argument) {
        Some(result) => result,
        // SAFETY: the caller's arguments, passed on.
        None => new_number(command, unsafe { real::fcntl64(fd, command, argument) }),
    }
}

fn lulls_fcntl(fd: c_int, command: c_int, argument: usize) -> Option<c_int> {
    is_lull(fd).then(|| flags::fcntl(fd, command, argument)).flatten().map(|result| answer::number(|| result))
}

fn new_number(command: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { forgotten(result) } else { result }
}

/// As the C library's. The third argument is a number or a pointer, or is not there; it is passed on in any case.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if is_lull(fd) && flags::IOCTLS.contains(&request) {
        // SAFETY: these requests have an `int` there.
        let Some(value) = (unsafe { memory::int_at(argument) }) else { return answer::refused(libc::EFAULT) };
        if let Some(result) = flags::ioctl(fd, request, value) {
            return answer::done(|| result);
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::ioctl(fd, request, argument) }
}
