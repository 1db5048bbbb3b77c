//! `syscall`: calls by number that are lull's, past the C library's names.

use libc::{c_int, c_long, c_uint, c_void, size_t, socklen_t};
use lull_fd::time;
use lull_posix::signals::kernels_set;
use lull_posix::{is_engaged, is_lull};

use crate::taken_over::taken_over;
use crate::{data, epoll, exec, new, number, real, set_error, socket};

taken_over! {
    /// A call has up to six arguments; what is not there is passed on as it is found.
    fn syscall(which: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        if is_engaged()
            && let Some(result) = lulls(which, [a, b, c, d, e, f])
        {
            return result;
        }
        real::syscall(which, a, b, c, d, e, f)
    }
}

/// The calls that programs are known to make so, on numbers that are lull's. Nothing if a call is not lull's.
///
/// # Safety
/// As the call.
unsafe fn lulls(which: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: as above.
    let result = unsafe {
        match which {
            // Operations on a ring would go to the placeholders; every user of a ring has another way for kernels without.
            libc::SYS_io_uring_setup => {
                set_error(libc::ENOSYS);
                return Some(-1);
            }
            libc::SYS_epoll_ctl if is_lull(fd) || is_lull(c as c_int) => {
                epoll::epoll_ctl(fd, b as c_int, c as c_int, d as *mut _) as c_long
            }
            libc::SYS_dup3 if is_lull(fd) || is_lull(b as c_int) => number::dup3(fd, b as c_int, c as c_int) as c_long,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 if is_lull(fd) || is_lull(b as c_int) => number::dup2(fd, b as c_int) as c_long,
            libc::SYS_close_range => new::close_range(a as c_uint, b as c_uint, c as c_int) as c_long,
            libc::SYS_execve => exec::execve(a as *const _, b as *const _, c as *const _) as c_long,
            libc::SYS_execveat => exec::execveat(fd, b as *const _, c as *const _, d as *const _, e as c_int) as c_long,
            _ if !is_lull(fd) => return None,
            libc::SYS_dup => number::dup(fd) as c_long,
            libc::SYS_fcntl => number::fcntl(fd, b as c_int, c) as c_long,
            libc::SYS_ioctl => number::ioctl(fd, b as libc::c_ulong, c) as c_long,
            libc::SYS_shutdown => socket::shutdown(fd, b as c_int) as c_long,
            libc::SYS_read => data::read(fd, b as *mut c_void, c as size_t) as c_long,
            libc::SYS_write => data::write(fd, b as *const c_void, c as size_t) as c_long,
            libc::SYS_readv => data::readv(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_writev => data::writev(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_recvmsg => data::recvmsg(fd, b as *mut _, c as c_int) as c_long,
            libc::SYS_sendmsg => data::sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_recvfrom => {
                data::recvfrom(fd, b as *mut c_void, c as size_t, d as c_int, e as *mut _, f as *mut _) as c_long
            }
            libc::SYS_sendto => {
                data::sendto(fd, b as *const c_void, c as size_t, d as c_int, e as *const _, f as socklen_t) as c_long
            }
            libc::SYS_recvmmsg => data::recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, e as *mut _) as c_long,
            libc::SYS_sendmmsg => data::sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as c_long,
            libc::SYS_accept => socket::accept(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_accept4 => socket::accept4(fd, b as *mut _, c as *mut _, d as c_int) as c_long,
            libc::SYS_close => number::close(fd) as c_long,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(fd, b as *mut _, c as c_int, d as c_int) as c_long,
            libc::SYS_epoll_pwait => {
                let (timeout_ns, mask) = (time::of_ms(d as c_int), kernels_set(e as *const u64));
                epoll::waited(fd, b as *mut _, c as c_int, timeout_ns, mask.as_ref()) as c_long
            }
            _ => return None,
        }
    };
    Some(result)
}
