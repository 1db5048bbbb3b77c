//! `sigaction` and `signal`: handlers run at the end of calls that are lull's. `kill` and its kin, `_exit` and `abort`:
//! a process that ends itself, or signals another one, has sent what it wrote.

use libc::{c_int, pid_t, sighandler_t};
use lull_posix::signals::{self, older};
use lull_posix::{cancel, is_involved, leave};

use crate::taken_over::taken_over;
use crate::{answer, real};

taken_over! {
    fn sigaction(signal: c_int, asked: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
        if !is_involved() {
            return real::sigaction()(signal, asked, before);
        }
        match signals::sigaction(signal, asked.as_ref(), real::sigaction()) {
            Ok(told) => {
                if let Some(before) = before.as_mut() {
                    *before = told;
                }
                0
            }
            Err(error) => answer::refused(error.number()),
        }
    }

    /// A thread that is inside a call of lull's holds locks, so it is not cancelled there.
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        if is_involved() { cancel::cancel(thread, real::pthread_cancel()) } else { real::pthread_cancel()(thread) }
    }

    fn raise(signal: c_int) -> c_int {
        leave::before_own_signal(signal);
        real::raise()(signal)
    }

    fn kill(to: pid_t, signal: c_int) -> c_int {
        leave::before_signal(to, signal);
        // The signal goes to the process, and not to the calling thread as with `raise`, because another thread may
        // wait for it.
        real::kill()(to, signal)
    }

    fn killpg(to: pid_t, signal: c_int) -> c_int {
        leave::before_signal(-to, signal);
        real::killpg()(to, signal)
    }

    fn sigqueue(to: pid_t, signal: c_int, value: libc::sigval) -> c_int {
        leave::before_signal(to, signal);
        real::sigqueue()(to, signal, value)
    }

    fn tgkill(process: pid_t, thread: pid_t, signal: c_int) -> c_int {
        leave::before_signal_to_thread_of(process, thread, signal);
        real::tgkill(process, thread, signal)
    }

    fn pthread_kill(thread: libc::pthread_t, signal: c_int) -> c_int {
        leave::before_signal_to_thread(number_of(thread), signal);
        real::pthread_kill()(thread, signal)
    }

    fn pthread_sigqueue(thread: libc::pthread_t, signal: c_int, value: libc::sigval) -> c_int {
        leave::before_signal_to_thread(number_of(thread), signal);
        real::pthread_sigqueue()(thread, signal, value)
    }

    fn _exit(status: c_int) -> ! {
        leave::before_end();
        real::_exit()(status)
    }

    fn _Exit(status: c_int) -> ! { _exit(status) }

    /// The functions that it runs before the end may write as well, and what they write leaves at once.
    fn quick_exit(status: c_int) -> ! {
        leave::before_end();
        real::quick_exit()(status)
    }

    fn abort() -> ! {
        leave::before_abort();
        real::abort()()
    }

    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        let lulls = || older::signal(number, handler, older::bsds(number), real::sigaction());
        installs(real::signal(), number, handler, lulls)
    }
    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t { signal(number, handler) }
    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t { signal(number, handler) }

    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        let lulls = || older::signal(number, handler, older::SYSTEM_V, real::sigaction());
        installs(real::__sysv_signal(), number, handler, lulls)
    }
    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t { __sysv_signal(number, handler) }

    fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
        installs(real::sigset(), number, handler, || older::set(number, handler, real::sigaction()))
    }

    fn siginterrupt(signal: c_int, ends_calls: c_int) -> c_int {
        older::interrupts(signal, ends_calls != 0);
        real::siginterrupt()(signal, ends_calls)
    }
}

/// The kernel's number of a thread, if it is the calling one; otherwise 0, which is the number of none.
fn number_of(thread: libc::pthread_t) -> pid_t {
    const ANOTHER: pid_t = 0;
    // SAFETY: these calls take and return only numbers.
    unsafe { if libc::pthread_equal(thread, libc::pthread_self()) != 0 { libc::gettid() } else { ANOTHER } }
}

/// Installs a handler as `signal` does. It returns SIG_ERR, which is -1, for an error.
unsafe fn installs(
    real: real::Signal,
    number: c_int,
    handler: sighandler_t,
    lulls: impl FnOnce() -> lull_posix::Result<sighandler_t>,
) -> sighandler_t {
    if !is_involved() {
        // SAFETY: this is the call that the program made.
        return unsafe { real(number, handler) };
    }
    lulls().unwrap_or_else(|error| answer::refused(error.number()) as sighandler_t)
}
