//! `sigaction`, `signal`: handlers run at the end of calls that are lull's.

use libc::{c_int, sighandler_t};
use lull_posix::{Errno, cancel, is_involved, leave, signals};

use crate::taken_over::taken_over;
use crate::{answer, last_error, real};

taken_over! {
    fn sigaction(signal: c_int, asked: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
        if !is_involved() {
            return real::sigaction()(signal, asked, before);
        }
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

    /// A thread that is inside a call of lull's holds locks.
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        if is_involved() { cancel::cancel(thread, real::pthread_cancel()) } else { real::pthread_cancel()(thread) }
    }

    fn raise(signal: c_int) -> c_int {
        leave::before_own_signal(signal);
        real::raise()(signal)
    }

    fn kill(to: libc::pid_t, signal: c_int) -> c_int {
        if to == libc::getpid() { raise(signal) } else { real::kill()(to, signal) }
    }

    /// A handler restarts calls (`bsd_signal`).
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if !is_involved() {
            return real::signal()(signal, handler);
        }
        // Plain data, for which zeroes are a value.
        let mut asked: libc::sigaction = core::mem::zeroed();
        asked.sa_sigaction = handler;
        asked.sa_flags = libc::SA_RESTART;
        libc::sigaddset(&raw mut asked.sa_mask, signal);
        match signals::sigaction(signal, Some(&asked), |asked| install(signal, asked)) {
            Ok(told) => told.sa_sigaction,
            // SIG_ERR, which is -1.
            Err(error) => answer::refused(error.number()) as sighandler_t,
        }
    }
}

/// Tells the kernel through the C library, and returns what it was told before.
fn install(signal: c_int, asked: Option<&libc::sigaction>) -> lull_posix::Result<libc::sigaction> {
    // SAFETY: plain data, for which zeroes are a value, written by the call; it reads what is asked for, if anything.
    unsafe {
        let mut told: libc::sigaction = core::mem::zeroed();
        let asked = asked.map_or(core::ptr::null(), |asked| asked as *const libc::sigaction);
        match real::sigaction()(signal, asked, &raw mut told) {
            0 => Ok(told),
            _ => Err(Errno::new(last_error())),
        }
    }
}
