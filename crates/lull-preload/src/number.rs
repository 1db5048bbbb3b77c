//! Numbers: `close`, `dup` and their kin, `fcntl`, `ioctl`. `getifaddrs` is here because it asks the kernel as an
//! `ioctl` does.

use libc::{c_int, c_ulong};
use lull_posix::signals::section;
use lull_posix::{files, flags, interfaces, is_lull};

use crate::taken_over::taken_over;
use crate::{answer, real};

taken_over! {
    /// To the program, a descriptor that lull uses itself is closed.
    fn close(fd: c_int) -> c_int {
        if files::is_noted(fd) {
            return answer::number_at_point(|| files::close(fd).map(|()| 0));
        }
        files::closed(fd, || real::close(fd)).unwrap_or_else(|| answer::refused(libc::EBADF))
    }

    fn dup(fd: c_int) -> c_int {
        if is_lull(fd) { answer::number(|| files::duplicate(fd, 0, false)) } else { files::duplicated(fd, real::dup(fd)) }
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        if !files::may_close(to) {
            return answer::refused(libc::EBADF);
        }
        if fd != to && (is_lull(fd) || files::is_known(to)) {
            return answer::number(|| files::duplicate_to(fd, to, 0));
        }
        files::duplicated(fd, real::dup2(fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if !files::may_close(to) {
            return answer::refused(libc::EBADF);
        }
        if fd != to && (is_lull(fd) || files::is_known(to)) {
            return answer::number(|| files::duplicate_to(fd, to, flags));
        }
        files::duplicated(fd, real::dup3(fd, to, flags))
    }

    /// The third argument is a number or a pointer, or is missing; it is passed on in any case.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        match lulls_fcntl(fd, command, argument) {
            Some(result) => result,
            None => new_number(fd, command, real::fcntl(fd, command, argument)),
        }
    }

    /// As [`fcntl`].
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        match lulls_fcntl(fd, command, argument) {
            Some(result) => result,
            None => new_number(fd, command, real::fcntl64(fd, command, argument)),
        }
    }

    /// The third argument is like that of [`fcntl`].
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        if request == libc::SIOCGIFCONF {
            return interfaces::configuration(argument, || real::ioctl(fd, request, argument));
        }
        let result = is_lull(fd).then(|| section(|| flags::ioctl(fd, request, argument))).flatten();
        result.map_or_else(|| real::ioctl(fd, request, argument), |result| answer::done(|| result))
    }

    fn getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int { interfaces::getifaddrs(list, real::getifaddrs()) }

    fn freeifaddrs(list: *mut libc::ifaddrs) -> () { interfaces::freeifaddrs(list, real::freeifaddrs()); }
}

fn lulls_fcntl(fd: c_int, command: c_int, argument: usize) -> Option<c_int> {
    flags::fcntl(fd, command, argument).map(|result| answer::number(|| result))
}

fn new_number(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { files::duplicated(fd, result) } else { result }
}
