//! `poll`, `select` and their kin.

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use lull_fd::time;
use lull_posix::memory::enough;
use lull_posix::poll::{self as lulls, asked_ns, duration, in_table, lulls_fds, lulls_sets};

use crate::taken_over::taken_over;
use crate::{answer, real};

taken_over! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        match lulls_fds(fds, count) {
            Some(fds) => answer::count_with_mask(None, || lulls::poll(fds, duration(time::of_ms(timeout)))),
            None => real::poll(fds, count, timeout),
        }
    }

    /// A program that was built with checks calls this function with the size of the whole array.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        enough(count as usize * size_of::<pollfd>(), room);
        poll(fds, count, timeout)
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let Some(fds) = lulls_fds(fds, count) else { return real::ppoll(fds, count, timeout, mask) };
        match asked_ns(timeout) {
            Some(ns) => answer::count_with_mask(mask.as_ref(), || lulls::poll(fds, duration(ns))),
            None => answer::refused(libc::EINVAL),
        }
    }

    /// As [`__poll_chk`].
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        enough(count as usize * size_of::<pollfd>(), room);
        ppoll(fds, count, timeout, mask)
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let count = in_table(count);
        let Some(mut sets) = lulls_sets(count, [read, write, except]) else {
            return real::select(count, read, write, except, timeout);
        };
        answer::count_with_mask(None, || lulls::select_timeval(count as usize, &mut sets, timeout.as_mut()))
    }

    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let count = in_table(count);
        let Some(mut sets) = lulls_sets(count, [read, write, except]) else {
            return real::pselect(count, read, write, except, timeout, mask);
        };
        match asked_ns(timeout) {
            Some(ns) => answer::count_with_mask(mask.as_ref(), || lulls::select(count as usize, &mut sets, duration(ns))),
            None => answer::refused(libc::EINVAL),
        }
    }
}
