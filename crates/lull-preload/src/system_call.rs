//! `syscall`, for calls by number that are lull's and are made without the C library's functions.

use libc::{c_int, c_long, pid_t};
use lull_posix::poll::{in_table, lulls_fds, lulls_sets};
use lull_posix::signals::{kernels_set, pselects_set};
use lull_posix::{about_to_wait, bpf, fork, is_involved, is_lull, last_thread, leave, takes_data};

use crate::epoll::pointer;
use crate::taken_over::taken_over;
use crate::{answer, data, epoll, exec, new, number, poll, real, socket};

taken_over! {
    /// A call has up to six arguments; what is found in place of missing ones is passed on.
    fn syscall(which: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        if is_involved()
            && let Some(result) = lulls(which, [a, b, c, d, e, f])
        {
            return result;
        }
        real::syscall(which, a, b, c, d, e, f)
    }
}

/// The flags of a call by number that makes a process which goes on where it was called, as `fork` does. `clone3` is
/// given a structure that begins with its flags (`clone(2)`).
///
/// # Safety
/// As for the call.
unsafe fn forks(which: c_long, a: usize, b: usize) -> Option<u64> {
    let flags = match which {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        libc::SYS_clone if b == 0 => Some(a as u64),
        // SAFETY: as above.
        libc::SYS_clone3 => unsafe { (a as *const u64).as_ref() }.copied(),
        _ => None,
    };
    flags.filter(|flags| fork::makes_a_process(*flags))
}

/// Calls one of this library's functions with arguments that are given as numbers.
macro_rules! call {
    ($module:ident::$name:ident($($argument:expr),*)) => {
        $module::$name($($argument as _),*) as c_long
    };
}

/// The calls by number that are lull's. Returns `None` if a call is not lull's. A function that decides by itself whose
/// its number is, is called without a check here.
///
/// # Safety
/// As for the call.
unsafe fn lulls(which: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: as above.
    let result = unsafe {
        if let Some(flags) = forks(which, a, b) {
            let call = || real::syscall(which, a, b, c, d, e, f);
            return Some(fork::by_number(fork::is_waited_for(flags), call));
        }
        match which {
            libc::SYS_exit_group | libc::SYS_pidfd_send_signal => {
                leave::before_end();
                return None;
            }
            libc::SYS_exit => {
                about_to_wait();
                last_thread::ends_by_number(a as c_int);
                return None;
            }
            libc::SYS_kill | libc::SYS_rt_sigqueueinfo => {
                leave::before_signal(a as pid_t, b as c_int);
                return None;
            }
            libc::SYS_tkill => {
                leave::before_signal_to_thread(a as pid_t, b as c_int);
                return None;
            }
            libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => {
                leave::before_signal_to_thread_of(a as pid_t, b as pid_t, c as c_int);
                return None;
            }
            libc::SYS_bpf => bpf::by_number(|| real::syscall(which, a, b, c, d, e, f), [a, b, c]),
            // Operations on a ring would go to the placeholders. Every program that uses a ring has another way, for
            // kernels without rings.
            libc::SYS_io_uring_setup => answer::refused(libc::ENOSYS) as c_long,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => call!(epoll::epoll_create(a)),
            libc::SYS_epoll_create1 => call!(epoll::epoll_create1(a)),
            libc::SYS_epoll_ctl if is_lull(fd) || is_lull(c as c_int) => call!(epoll::epoll_ctl(fd, b, c, d)),
            libc::SYS_dup3 if is_lull(fd) || is_lull(b as c_int) => call!(number::dup3(fd, b, c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 if is_lull(fd) || is_lull(b as c_int) => call!(number::dup2(fd, b)),
            libc::SYS_close_range => call!(new::close_range(a, b, c)),
            libc::SYS_execve => call!(exec::execve(a, b, c)),
            libc::SYS_execveat => call!(exec::execveat(fd, b, c, d, e)),
            libc::SYS_socket => call!(socket::socket(a, b, c)),
            libc::SYS_bind => call!(socket::bind(fd, b, c)),
            libc::SYS_listen => call!(socket::listen(fd, b)),
            libc::SYS_accept => call!(socket::accept(fd, b, c)),
            libc::SYS_accept4 => call!(socket::accept4(fd, b, c, d)),
            libc::SYS_connect => call!(socket::connect(fd, b, c)),
            libc::SYS_getsockname => call!(socket::getsockname(fd, b, c)),
            libc::SYS_getpeername => call!(socket::getpeername(fd, b, c)),
            libc::SYS_setsockopt => call!(socket::setsockopt(fd, b, c, d, e)),
            libc::SYS_getsockopt => call!(socket::getsockopt(fd, b, c, d, e)),
            libc::SYS_sendto => call!(data::sendto(fd, b, c, d, e, f)),
            libc::SYS_sendmsg => call!(data::sendmsg(fd, b, c)),
            libc::SYS_sendmmsg => call!(data::sendmmsg(fd, b, c, d)),
            libc::SYS_sendfile => call!(data::sendfile(fd, b, c, d)),
            libc::SYS_splice => call!(data::splice(fd, b, c, d, e, f)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => call!(poll::poll(a, b, c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => call!(poll::select(a, b, c, d, e)),
            // The kernel's own calls tell how much of the time is left, which those of the C library do not.
            libc::SYS_ppoll if lulls_fds(a as *mut _, b as _).is_some() => {
                call!(poll::ppoll(a, b, c, pointer(kernels_set(d as _).as_ref())))
            }
            libc::SYS_pselect6 if lulls_sets(in_table(a as _), [b, c, d].map(|set| set as *mut _)).is_some() => {
                call!(poll::pselect(a, b, c, d, e, pointer(pselects_set(f as _).as_ref())))
            }
            _ if !takes_data(fd) => return None,
            libc::SYS_dup => call!(number::dup(fd)),
            libc::SYS_fcntl => call!(number::fcntl(fd, b, c)),
            libc::SYS_ioctl => call!(number::ioctl(fd, b, c)),
            libc::SYS_shutdown => call!(socket::shutdown(fd, b)),
            libc::SYS_read => call!(data::read(fd, b, c)),
            libc::SYS_write => call!(data::write(fd, b, c)),
            libc::SYS_readv => call!(data::readv(fd, b, c)),
            libc::SYS_writev => call!(data::writev(fd, b, c)),
            libc::SYS_recvmsg => call!(data::recvmsg(fd, b, c)),
            libc::SYS_recvfrom => call!(data::recvfrom(fd, b, c, d, e, f)),
            libc::SYS_recvmmsg => call!(data::recvmmsg(fd, b, c, d, e)),
            libc::SYS_close => call!(number::close(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => call!(epoll::epoll_wait(fd, b, c, d)),
            libc::SYS_epoll_pwait => call!(epoll::epoll_pwait(fd, b, c, d, pointer(kernels_set(e as _).as_ref()))),
            libc::SYS_epoll_pwait2 => call!(epoll::epoll_pwait2(fd, b, c, d, pointer(kernels_set(e as _).as_ref()))),
            _ => return None,
        }
    };
    Some(result)
}
