//! `poll`, `select` and their kin.

use core::time::Duration;

use libc::{c_int, c_short, fd_set, nfds_t, pollfd, sigset_t, size_t, suseconds_t, time_t, timespec, timeval};
use lull_fd::time;
use lull_posix::poll as lulls;
use lull_posix::{is_engaged, is_lull};

use crate::{answer, real};

fn duration(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// The descriptors of a call, if one of them is lull's.
///
/// # Safety
/// The program vouches for them.
unsafe fn lulls_fds<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if !is_engaged() || fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as above.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    lulls::concerns(fds).then_some(fds)
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        match lulls_fds(fds, count) {
            Some(fds) => answer::count_with_mask(None, || lulls::poll(fds, duration(time::of_ms(timeout)))),
            None => real::poll(fds, count, timeout),
        }
    }
}

/// As the C library's, which calls it with the array's whole room when it was built with checks.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    crate::data::enough(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the caller's arguments, passed on.
    unsafe { poll(fds, count, timeout) }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        let Some(fds) = lulls_fds(fds, count) else { return real::ppoll(fds, count, timeout, mask) };
        match asked_ns(timeout) {
            Some(ns) => answer::count_with_mask(mask.as_ref(), || lulls::poll(fds, duration(ns))),
            None => answer::refused(libc::EINVAL),
        }
    }
}

/// As [`__poll_chk`].
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    crate::data::enough(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the caller's arguments, passed on.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// Nanoseconds of a timeout that may not be there; nothing for one that is no time.
///
/// # Safety
/// The program vouches for it.
unsafe fn asked_ns(timeout: *const timespec) -> Option<i64> {
    // SAFETY: as above.
    unsafe { timeout.as_ref() }.map_or(Some(time::FOR_EVER_NS), |&timeout| time::of_timespec(timeout))
}

/// Bits of a word of an `fd_set`.
const WORD_BITS: usize = 64;

/// The three sets of a call of `select`, any of which may not be there.
struct Sets([*mut u64; 3]);

/// What each set asks of `poll`, and what of its answer counts for it (`POLLIN_SET` and its kin).
const ASKED: [c_short; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
const COUNTS: [c_short; 3] = [ASKED[0] | libc::POLLHUP | libc::POLLERR, ASKED[1] | libc::POLLERR, ASKED[2]];

impl Sets {
    /// # Safety
    /// The program vouches for sets of `count` bits, rounded up to words.
    unsafe fn has(&self, set: usize, fd: usize) -> bool {
        let words = self.0[set];
        // SAFETY: as above.
        !words.is_null() && unsafe { *words.add(fd / WORD_BITS) } >> (fd % WORD_BITS) & 1 != 0
    }

    /// # Safety
    /// As [`Sets::has`].
    unsafe fn asked(&self, count: usize) -> Vec<pollfd> {
        let events = |fd: usize| {
            // SAFETY: as above.
            (0..3).filter(|&set| unsafe { self.has(set, fd) }).fold(0, |all, set| all | ASKED[set])
        };
        (0..count)
            .map(|fd| pollfd { fd: fd as c_int, events: events(fd), revents: 0 })
            .filter(|polled| polled.events != 0)
            .collect()
    }

    /// Writes the answer, and returns how many bits it has.
    ///
    /// # Safety
    /// As [`Sets::has`].
    unsafe fn answer(&self, count: usize, polled: &[pollfd]) -> usize {
        let mut bits = 0;
        for set in (0..3).filter(|&set| !self.0[set].is_null()) {
            // SAFETY: as above.
            let words = unsafe { core::slice::from_raw_parts_mut(self.0[set], count.div_ceil(WORD_BITS)) };
            words.fill(0);
            for polled in polled.iter().filter(|polled| polled.events & ASKED[set] != 0) {
                if polled.revents & COUNTS[set] != 0 {
                    words[polled.fd as usize / WORD_BITS] |= 1 << (polled.fd as usize % WORD_BITS);
                    bits += 1;
                }
            }
        }
        bits
    }
}

/// The descriptors of a call of `select`, if one of them is lull's.
///
/// # Safety
/// The program vouches for the sets.
unsafe fn lulls_sets(count: c_int, sets: [*mut fd_set; 3]) -> Option<(Sets, Vec<pollfd>)> {
    let count = usize::try_from(count).ok().filter(|_| is_engaged())?;
    let sets = Sets(sets.map(|set| set.cast()));
    // SAFETY: as above.
    let is_there = |fd: usize| is_lull(fd as c_int) && (0..3).any(|set| unsafe { sets.has(set, fd) });
    if !(0..count).any(is_there) {
        return None;
    }
    // SAFETY: as above.
    let asked = unsafe { sets.asked(count) };
    Some((sets, asked))
}

/// # Safety
/// The program vouches for the sets.
unsafe fn selected(
    count: c_int,
    (sets, mut polled): (Sets, Vec<pollfd>),
    timeout_ns: i64,
    mask: Option<&sigset_t>,
) -> c_int {
    answer::count_with_mask(mask, || {
        lulls::poll(&mut polled, duration(timeout_ns))?;
        if polled.iter().any(|polled| polled.revents & libc::POLLNVAL != 0) {
            return Err(lull_posix::Errno::new(libc::EBADF));
        }
        // SAFETY: as above.
        Ok(unsafe { sets.answer(count as usize, &polled) })
    })
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
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
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        let Some(sets) = lulls_sets(count, [read, write, except]) else {
            return real::pselect(count, read, write, except, timeout, mask);
        };
        match asked_ns(timeout) {
            Some(ns) => selected(count, sets, ns, mask.as_ref()),
            None => answer::refused(libc::EINVAL),
        }
    }
}
