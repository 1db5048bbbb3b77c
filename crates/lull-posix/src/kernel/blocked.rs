//! Signals that a thread does not take for a while.

use crate::raw::raw;

/// Blocks every signal of the calling thread that a program can have a handler for until the value is dropped: threads that are
/// made meanwhile never run one.
pub struct NoSignals(u64);

impl NoSignals {
    /// Blocks them.
    pub fn begin() -> NoSignals {
        NoSignals::blocking(!of_the_c_library())
    }

    /// Blocks all but SIGCHLD, around a fork. The end of a child is no signal to a program that ignores it; blocked in the thread
    /// that forked it is queued instead, and ends whatever another thread waits in (`sig_ignored`, `complete_signal`).
    pub fn but_of_children() -> NoSignals {
        NoSignals::blocking(!(1 << (libc::SIGCHLD - 1) | of_the_c_library()))
    }

    fn blocking(set: u64) -> NoSignals {
        let mut before = 0_u64;
        // SAFETY: sets of the kernel's size, 64 signals.
        let _ = unsafe { raw!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, &raw mut before, 8) };
        NoSignals(before)
    }
}

/// The signals that the C library keeps for itself. Where a program changes its user or groups, every thread changes its own by one
/// of them, and the program waits until all have (`setxid` in glibc, `__synccall` in musl): a thread that never did would stop it.
fn of_the_c_library() -> u64 {
    // The first of them follows the last of the ordinary ones.
    (32..libc::SIGRTMIN()).fold(0, |set, signal| set | 1 << (signal - 1))
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set as it was.
        let _ = unsafe { raw!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.0, 0, 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        NoSignals::blocking(0).0
    }

    #[test]
    fn around_a_fork_every_signal_of_a_programs_is_blocked_but_that_of_a_child() {
        let before = blocked();
        let begun = NoSignals::but_of_children();
        // SIGKILL and SIGSTOP cannot be.
        let never = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        assert_eq!(blocked(), !(1 << (libc::SIGCHLD - 1) | of_the_c_library() | never) | before);
        drop(begun);
        assert_eq!(blocked(), before);
    }
}
