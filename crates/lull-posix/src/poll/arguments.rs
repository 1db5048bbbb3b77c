//! The arguments of `poll` and `select` as C has them.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use libc::{c_int, fd_set, nfds_t, pollfd, suseconds_t, time_t, timespec, timeval};
use lull_fd::linux::KeptError;
use lull_fd::time;
use lull_net::lull_nic::own;

use super::concerns;
use super::select::{Sets, WORD_BITS, concerns_sets, select};
use crate::husk::is_husk;
use crate::{Errno, Result, about_to_wait, is_engaged, is_involved, kernel};

/// A timeout in nanoseconds; nothing is for ever.
pub fn duration(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Nanoseconds of a timeout that may not be there; nothing for one that is no time.
///
/// # Safety
/// The program vouches for it.
pub unsafe fn asked_ns(timeout: *const timespec) -> Option<i64> {
    // SAFETY: as above.
    unsafe { timeout.as_ref() }.map_or(Some(time::FOR_EVER_NS), |&timeout| time::of_timespec(timeout))
}

/// A call that may wait, for the kernel's descriptors perhaps: what the thread has answered is sent first.
fn waits() -> bool {
    // What a child waits for becomes a relay before the kernel looks at it.
    if is_husk() {
        return true;
    }
    if !is_engaged() {
        return false;
    }
    let _errno = KeptError::keep();
    about_to_wait();
    true
}

/// The descriptors of a call, if one of them is lull's.
///
/// # Safety
/// The program vouches for them.
pub unsafe fn lulls_fds<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if !waits() || fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as above.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    concerns(fds).then_some(fds)
}

/// How many numbers a call of `select` is about: no more than the table of the program's open files has places (`core_sys_select`). A
/// program may ask for as many as its limit allows, with sets of the C library's, which are shorter. lull's own descriptors, above its
/// numbers, make the kernel's table too large to keep it from what is behind such sets.
pub fn in_table(count: c_int) -> c_int {
    /// Places of the table, as far as one of the program's was seen in them. Sets of the C library's have as many, at least.
    static PLACES: AtomicI32 = AtomicI32::new(libc::FD_SETSIZE as c_int);
    /// The kernel's own default limit on a table (`fs.nr_open`).
    const PLACES_MAX: c_int = 1 << 20;
    let places = PLACES.load(Ordering::Relaxed);
    if count <= places || !is_involved() {
        return count;
    }
    let count = count.min(PLACES_MAX);
    if let Some(highest) = highest(places, count) {
        // It grows in powers of two (`alloc_fdtable`), and never shrinks.
        PLACES.fetch_max((highest as u32 + 1).next_power_of_two() as c_int, Ordering::Relaxed);
    }
    count.min(PLACES.load(Ordering::Relaxed))
}

/// The highest number between these two that is open and the program's.
fn highest(from: c_int, to: c_int) -> Option<c_int> {
    /// Numbers that the kernel is asked about at once, which is bounded by the limit on open files.
    const AT_ONCE: usize = 64;
    let mut end = to;
    while end > from {
        let mut polled = [pollfd { fd: -1, events: 0, revents: 0 }; AT_ONCE];
        let numbers = from.max(end - AT_ONCE as c_int)..end;
        numbers.zip(&mut polled).for_each(|(fd, polled)| polled.fd = fd);
        let told = kernel::poll(&mut polled, 0, None).is_ok();
        let is_open = |polled: &&pollfd| polled.fd >= 0 && polled.revents & libc::POLLNVAL == 0;
        if let Some(highest) = polled.iter().rfind(|polled| told && is_open(polled) && !own::is_own(polled.fd)) {
            return Some(highest.fd);
        }
        end -= AT_ONCE as c_int;
    }
    None
}

/// The words of a call's sets, if one of the descriptors in them is lull's.
///
/// # Safety
/// The program vouches for sets of `count` bits, rounded up to words.
pub unsafe fn lulls_sets<'a>(count: c_int, sets: [*mut fd_set; 3]) -> Option<Sets<'a>> {
    if !waits() {
        return None;
    }
    let count = usize::try_from(count).ok()?;
    // SAFETY: as above.
    let words = |set: NonNull<fd_set>| unsafe {
        core::slice::from_raw_parts_mut(set.as_ptr().cast(), count.div_ceil(WORD_BITS))
    };
    let sets = sets.map(|set| NonNull::new(set).map(words));
    concerns_sets(count, &sets).then_some(sets)
}

/// `select`, which tells how much of the time is left, as on Linux.
pub fn select_timeval(count: usize, sets: &mut Sets<'_>, timeout: Option<&mut timeval>) -> Result<usize> {
    let Some(timeout) = timeout else { return select(count, sets, None) };
    if timeout.tv_sec < 0 || timeout.tv_usec < 0 {
        return Err(Errno::new(libc::EINVAL));
    }
    let ns = timeout.tv_sec.saturating_mul(1_000_000_000).saturating_add(timeout.tv_usec.saturating_mul(1_000));
    let until_ns = time::now_ns().saturating_add(ns);
    let result = select(count, sets, duration(ns));
    let left_us = (until_ns - time::now_ns()).max(0) / 1_000;
    timeout.tv_sec = (left_us / 1_000_000) as time_t;
    timeout.tv_usec = (left_us % 1_000_000) as suseconds_t;
    result
}
