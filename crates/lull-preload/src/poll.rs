//! `poll`, `select` and their kin.

use core::ptr::NonNull;
use core::time::Duration;

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, suseconds_t, time_t, timespec, timeval};
use lull_fd::time;
use lull_posix::is_engaged;
use lull_posix::poll::{self as lulls, Sets};

use crate::taken_over::taken_over;
use crate::{Errno, answer, real};

fn duration(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// A call that may wait, for the kernel's descriptors perhaps: what the thread has answered is sent first.
fn waits() {
    let _errno = Errno::keep();
    lull_posix::about_to_wait();
}

/// The descriptors of a call, if one of them is lull's.
///
/// # Safety
/// The program vouches for them.
unsafe fn lulls_fds<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if !is_engaged() {
        return None;
    }
    waits();
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as above.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    lulls::concerns(fds).then_some(fds)
}

/// Nanoseconds of a timeout that may not be there; nothing for one that is no time.
///
/// # Safety
/// The program vouches for it.
unsafe fn asked_ns(timeout: *const timespec) -> Option<i64> {
    // SAFETY: as above.
    unsafe { timeout.as_ref() }.map_or(Some(time::FOR_EVER_NS), |&timeout| time::of_timespec(timeout))
}

/// The words of a call's sets, if one of the descriptors in them is lull's.
///
/// # Safety
/// The program vouches for sets of `count` bits, rounded up to words.
unsafe fn lulls_sets<'a>(count: c_int, sets: [*mut fd_set; 3]) -> Option<Sets<'a>> {
    if !is_engaged() {
        return None;
    }
    waits();
    let count = usize::try_from(count).ok()?;
    // SAFETY: as above.
    let words = |set: NonNull<fd_set>| unsafe {
        core::slice::from_raw_parts_mut(set.as_ptr().cast(), count.div_ceil(lulls::WORD_BITS))
    };
    let sets = sets.map(|set| NonNull::new(set).map(words));
    lulls::concerns_sets(count, &sets).then_some(sets)
}

fn selected(count: c_int, mut sets: Sets<'_>, timeout_ns: i64, mask: Option<&sigset_t>) -> c_int {
    answer::count_with_mask(mask, || lulls::select(count as usize, &mut sets, duration(timeout_ns)))
}

taken_over! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        match lulls_fds(fds, count) {
            Some(fds) => answer::count_with_mask(None, || lulls::poll(fds, duration(time::of_ms(timeout)))),
            None => real::poll(fds, count, timeout),
        }
    }

    /// A program that was built with checks calls it with the array's whole room.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        crate::data::enough(count as usize * size_of::<pollfd>(), room);
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
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int {
        crate::data::enough(count as usize * size_of::<pollfd>(), room);
        ppoll(fds, count, timeout, mask)
    }

    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let Some(sets) = lulls_sets(count, [read, write, except]) else {
            return real::select(count, read, write, except, timeout);
        };
        let Some(timeout) = timeout.as_mut() else { return selected(count, sets, time::FOR_EVER_NS, None) };
        if timeout.tv_sec < 0 || timeout.tv_usec < 0 {
            return answer::refused(libc::EINVAL);
        }
        let ns = timeout.tv_sec.saturating_mul(1_000_000_000).saturating_add(timeout.tv_usec.saturating_mul(1_000));
        let until_ns = time::now_ns().saturating_add(ns);
        let result = selected(count, sets, ns, None);
        // Linux tells how much of the time is left.
        let left_us = (until_ns - time::now_ns()).max(0) / 1_000;
        timeout.tv_sec = (left_us / 1_000_000) as time_t;
        timeout.tv_usec = (left_us % 1_000_000) as suseconds_t;
        result
    }

    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let Some(sets) = lulls_sets(count, [read, write, except]) else {
            return real::pselect(count, read, write, except, timeout, mask);
        };
        match asked_ns(timeout) {
            Some(ns) => selected(count, sets, ns, mask.as_ref()),
            None => answer::refused(libc::EINVAL),
        }
    }
}
