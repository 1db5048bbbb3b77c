//! `epoll_create`, `epoll_create1`: parameters at birth. `epoll_wait`, `epoll_pwait`, `epoll_pwait2`: zero timeouts.

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

/// As the C library's; a zero timeout becomes the one that was asked for.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on; any timeout is valid.
    unsafe { real::epoll_wait(epfd, events, max, lifted(timeout)) }
}

/// As the C library's; a zero timeout becomes the one that was asked for.
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
    // SAFETY: the caller's arguments, passed on; any timeout is valid.
    unsafe { real::epoll_pwait(epfd, events, max, lifted(timeout), mask) }
}

/// As the C library's; a zero timeout becomes the one that was asked for.
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
    let lifted_ms = config::timeout_ms();
    if lifted_ms == 0 || timeout.is_null() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::epoll_pwait2(epfd, events, max, timeout, mask) };
    }
    // SAFETY: as the kernel would, this reads the caller's timeout, which is not null.
    let asked = unsafe { timeout.read() };
    let lifted = timespec {
        tv_sec: libc::time_t::from(lifted_ms / 1_000),
        tv_nsec: libc::c_long::from(lifted_ms % 1_000) * 1_000_000,
    };
    let chosen = if asked.tv_sec == 0 && asked.tv_nsec == 0 { &raw const lifted } else { timeout };
    // SAFETY: the caller's arguments, passed on, or a timeout that lives until the call returns.
    unsafe { real::epoll_pwait2(epfd, events, max, chosen, mask) }
}

/// The timeout to wait with. A context that never waits is never polled for (`fs/eventpoll.c` returns before it polls).
#[inline]
fn lifted(timeout: c_int) -> c_int {
    if timeout == 0 { config::timeout_ms() } else { timeout }
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
