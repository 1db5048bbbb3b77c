//! `sigaction`, `signal`: handlers run at the end of calls that are lull's.

use libc::{c_int, sighandler_t};
use lull_posix::{Errno, is_engaged, signals};

use crate::{answer, last_error, real, set_error};

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    asked: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    if !is_engaged() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::sigaction(signal, asked, before) };
    }
    // SAFETY: the program vouches for its pointers.
    unsafe {
        match signals::sigaction(signal, asked.as_ref(), |asked| install(signal, asked)) {
            Ok(told) => {
                if let Some(before) = before.as_mut() {
                    *before = told;
                }
                0
            }
            Err(error) => answer::refused(error.number()),
        }
    }
}

/// As the C library's: a handler of `signal` restarts calls (`bsd_signal`).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_engaged() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real::signal(signal, handler) };
    }
    // SAFETY: plain data, for which zeroes are a value.
    let mut asked: libc::sigaction = unsafe { core::mem::zeroed() };
    asked.sa_sigaction = handler;
    asked.sa_flags = libc::SA_RESTART;
    // SAFETY: a set of its own.
    unsafe { libc::sigaddset(&raw mut asked.sa_mask, signal) };
    match signals::sigaction(signal, Some(&asked), |asked| install(signal, asked)) {
        Ok(told) => told.sa_sigaction,
        Err(error) => {
            set_error(error.number());
            libc::SIG_ERR
        }
    }
}

/// Tells the kernel through the C library, and returns what it was told before.
fn install(signal: c_int, asked: Option<&libc::sigaction>) -> lull_posix::Result<libc::sigaction> {
    // SAFETY: plain data, for which zeroes are a value, written by the call; it reads what is asked for, if anything.
    unsafe {
        let mut told: libc::sigaction = core::mem::zeroed();
        let asked = asked.map_or(core::ptr::null(), |asked| asked as *const libc::sigaction);
        match real::sigaction(signal, asked, &raw mut told) {
            0 => Ok(told),
            _ => Err(Errno::new(last_error())),
        }
    }
}
