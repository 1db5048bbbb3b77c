//! `epoll_create`, `epoll_create1`: parameters at birth. `epoll_wait`, `epoll_pwait`, `epoll_pwait2`: how long at a time.

use libc::{c_int, epoll_event, sigset_t, timespec};

use crate::{Errno, config, last_error, real, say};

/// As the C library's; the new context gets its parameters.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    born(unsafe { real::epoll_create(size) })
}

/// As the C library's; the new context gets its parameters.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    born(unsafe { real::epoll_create1(flags) })
}

/// As the C library's; waits in slices where that was asked for.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    let slice_ms = config::timeout_ms();
    if slice_ms == 0 {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::epoll_wait(epfd, events, max, timeout) };
    }
    in_slices(of_ms(timeout), of_ms(slice_ms), |ns| {
        // SAFETY: the caller's arguments, passed on; any timeout is valid.
        unsafe { real::epoll_wait(epfd, events, max, in_ms(ns)) }
    })
}

/// As the C library's; waits in slices where that was asked for.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let slice_ms = config::timeout_ms();
    if slice_ms == 0 {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) };
    }
    in_slices(of_ms(timeout), of_ms(slice_ms), |ns| {
        // SAFETY: the caller's arguments, passed on; any timeout is valid.
        unsafe { real::epoll_pwait(epfd, events, max, in_ms(ns), mask) }
    })
}

/// As the C library's; waits in slices where that was asked for.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let slice_ms = config::timeout_ms();
    let asked_ns = if timeout.is_null() {
        FOR_EVER_NS
    } else {
        // SAFETY: as the kernel would, this reads the caller's timeout, which is not null.
        of_timespec(unsafe { timeout.read() })
    };
    // What is no time is the kernel's to refuse.
    let Some(asked_ns) = Some(asked_ns).filter(|ns| slice_ms != 0 && *ns != NO_TIME) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::epoll_pwait2(epfd, events, max, timeout, mask) };
    };
    in_slices(asked_ns, of_ms(slice_ms), |ns| {
        let slice = timespec { tv_sec: ns / SECOND_NS, tv_nsec: ns % SECOND_NS };
        // SAFETY: the caller's arguments, passed on, and a timeout that lives until the call returns.
        unsafe { real::epoll_pwait2(epfd, events, max, &raw const slice, mask) }
    })
}

const MILLISECOND_NS: i64 = 1_000_000;
const SECOND_NS: i64 = 1_000_000_000;
/// A timeout that never ends.
const FOR_EVER_NS: i64 = -1;
/// A `timespec` that is no time.
const NO_TIME: i64 = -2;

/// Nanoseconds of a timeout in milliseconds; every negative one is for ever.
fn of_ms(ms: c_int) -> i64 {
    if ms < 0 { FOR_EVER_NS } else { i64::from(ms) * MILLISECOND_NS }
}

/// Milliseconds of a slice, which is never longer than one that came from [`of_ms`]; a part of one is one.
fn in_ms(ns: i64) -> c_int {
    ((ns + MILLISECOND_NS - 1) / MILLISECOND_NS) as c_int
}

fn of_timespec(time: timespec) -> i64 {
    if time.tv_sec < 0 || !(0..SECOND_NS).contains(&time.tv_nsec) {
        return NO_TIME;
    }
    time.tv_sec.saturating_mul(SECOND_NS).saturating_add(time.tv_nsec)
}

/// Waits for `asked_ns`, in calls of at most `slice_ns`, until one of them tells anything. No time at all is one slice.
///
/// A call that does not wait is not polled for (`ep_poll` returns before it polls), and one that waits is polled for
/// once, at its beginning, and then sleeps: a program that is to be polled for all the time has to come back all the
/// time. It does not notice; what a signal or an error ends, ends here as well.
#[inline]
fn in_slices(asked_ns: i64, slice_ns: i64, mut wait: impl FnMut(i64) -> c_int) -> c_int {
    if (0..=slice_ns).contains(&asked_ns) {
        return wait(if asked_ns == 0 { slice_ns } else { asked_ns });
    }
    let from_ns = now_ns();
    loop {
        let left_ns = match asked_ns {
            FOR_EVER_NS => i64::MAX,
            _ => asked_ns - (now_ns() - from_ns),
        };
        let told = wait(left_ns.clamp(0, slice_ns));
        if told != 0 || left_ns <= slice_ns {
            return told;
        }
    }
}

/// The clock that the kernel's timeouts are on.
fn now_ns() -> i64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists in every kernel, and the struct is there to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * SECOND_NS + time.tv_nsec
}

/// Gives a new context its parameters. Whatever goes wrong, the program gets the descriptor that it asked for.
fn born(fd: c_int) -> c_int {
    let Some(params) = config::epoll() else { return fd };
    if fd < 0 {
        return fd;
    }
    let _errno = Errno::keep();
    // SAFETY: an ioctl on a descriptor that this call has just made, with the struct that it takes.
    if unsafe { libc::ioctl(fd, libc::EPIOCSPARAMS, &params) } == 0 {
        return fd;
    }
    config::epoll_off();
    match last_error() {
        libc::ENOTTY => say::once(format_args!(
            "this kernel cannot set busy-poll parameters of an epoll context (it needs Linux 6.9): none are set"
        )),
        libc::EPERM => say::once(format_args!(
            "no right to an epoll busy-poll budget of {}: above 64 it needs CAP_NET_ADMIN; no parameters are set",
            params.busy_poll_budget
        )),
        error => say::once(format_args!("the kernel refuses the epoll parameters (error {error}): none are set")),
    }
    fd
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slices that are waited for when the `told_at`th tells something, or none does.
    fn slices(asked_ns: i64, told_at: usize) -> (c_int, Vec<i64>) {
        let mut waited = Vec::new();
        let told = in_slices(asked_ns, 5, |ns| {
            waited.push(ns);
            // The clock of the test's machine goes on by far more than these nanoseconds.
            c_int::from(waited.len() == told_at)
        });
        (told, waited)
    }

    #[test]
    fn no_time_is_one_slice_and_a_shorter_time_is_itself() {
        assert_eq!(slices(0, 9), (0, vec![5]));
        assert_eq!(slices(3, 9), (0, vec![3]));
        assert_eq!(slices(5, 9), (0, vec![5]));
    }

    #[test]
    fn for_ever_is_slice_upon_slice_until_something_is_told() {
        assert_eq!(slices(FOR_EVER_NS, 4), (1, vec![5; 4]));
    }

    #[test]
    fn a_longer_time_ends_when_it_has_passed() {
        let (told, waited) = slices(SECOND_NS / 100, 0);
        assert!(told == 0 && waited.len() > 1 && waited.iter().all(|ns| (0..=5).contains(ns)), "{told} {waited:?}");
        assert_eq!(slices(SECOND_NS * 3_600, 2), (1, vec![5; 2]));
    }

    #[test]
    fn times_are_converted_without_losing_any() {
        assert_eq!((of_ms(-7), of_ms(0), of_ms(2)), (FOR_EVER_NS, 0, 2_000_000));
        assert_eq!((in_ms(0), in_ms(1), in_ms(1_000_000), in_ms(1_000_001)), (0, 1, 1, 2));
        let time = |tv_sec, tv_nsec| of_timespec(timespec { tv_sec, tv_nsec });
        assert_eq!((time(1, 5), time(0, 0), time(i64::MAX, 0)), (1_000_000_005, 0, i64::MAX));
        assert_eq!((time(-1, 0), time(0, -1), time(0, SECOND_NS)), (NO_TIME, NO_TIME, NO_TIME));
    }
}
