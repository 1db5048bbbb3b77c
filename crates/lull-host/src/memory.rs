//! Giving freed memory back to the system, and allocating memory that is not touched before it is used.
#![allow(unsafe_code)]

use std::collections::TryReserveError;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The least time between two rounds: each takes milliseconds if there is much to give back, and holds the allocator's
/// locks.
const APART: Duration = Duration::from_secs(1);

/// Nobody gives back.
const REST: u8 = 0;
/// A thread gives back, and nothing was freed since it began.
const GIVING: u8 = 1;
/// The thread is to give back once more.
const AGAIN: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(REST);

/// Gives the whole pages that the allocator holds free back to the system, for the time after a crowd of connections
/// has gone. The caller does not wait: a thread of its own does it, at most once a second. That thread has every signal
/// blocked, so that the handlers of a program run in the program's threads alone.
///
/// glibc keeps freed memory for later unless it lies at the heap's end; other C libraries need no telling, and there this
/// does nothing.
pub fn give_back_memory() {
    if !cfg!(target_env = "gnu") || STATE.swap(AGAIN, Ordering::AcqRel) != REST {
        return;
    }
    let rounds = || {
        loop {
            STATE.store(GIVING, Ordering::Release);
            trim();
            std::thread::sleep(APART);
            if STATE.compare_exchange(GIVING, REST, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    };
    let named = std::thread::Builder::new().name("lull-memory".to_owned());
    if without_signals(|| named.spawn(rounds)).is_err() {
        // If no thread can be started, the memory stays where it is until the next crowd.
        STATE.store(REST, Ordering::Release);
    }
}

/// To be called in a child of `fork`, whose only thread is the caller's: the thread that gave back is its parent's, and
/// the child's next crowd gets one of its own.
pub fn forget_giving_back() {
    STATE.store(REST, Ordering::Release);
}

/// Calls `make` with every signal of the calling thread blocked that a program can have a handler for: a thread that it makes is born
/// with that mask.
fn without_signals<R>(make: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` writes the set that `pthread_sigmask` reads. Neither fails with these arguments, and the second writes the
    // set that was before. The C library leaves out the signals that it keeps for itself, which every thread has to take.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    let made = make();
    // SAFETY: the set as it was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    made
}

/// A buffer of bytes that mean nothing yet, for whoever writes each before he reads it. Unlike one of zeroes it is not written to
/// here: the kernel gives memory for its pages when they are used, so that ten thousand idle connections hold what they have used of
/// their buffers, and one that is soon closed does not pay for clearing them.
///
/// # Errors
/// There is no memory for it.
pub fn uncleared(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes)?;
    if cfg!(miri) {
        buffer.resize(bytes, 0);
        return Ok(buffer);
    }
    // SAFETY: The bytes are within the capacity. For the compiler the empty instructions, which are given their address, have written
    // them, with what the machine's memory holds there; so they are initialized, with values that nobody knows.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) buffer.as_mut_ptr(), options(nostack, preserves_flags));
        buffer.set_len(bytes);
    }
    Ok(buffer)
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes its own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Pages of this process that have memory, in bytes.
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("the second field is the resident set") * 4096
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no /proc")]
    fn buffers_that_nobody_has_written_to_take_no_memory() {
        const BYTES: usize = 16 << 10;
        const COUNT: usize = 4 << 10;
        let before = resident_bytes();
        let mut buffers: Vec<Vec<u8>> = (0..COUNT).map(|_| uncleared(BYTES).unwrap()).collect();
        let untouched = resident_bytes();
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let touched = resident_bytes();
        assert!(buffers.iter().all(|buffer| buffer.len() == BYTES));
        // Each has a page with what the allocator notes of it.
        let half = BYTES * COUNT / 2;
        assert!(untouched < before + half && touched > before + half, "{before} {untouched} {touched}");
    }

    #[test]
    fn a_buffer_for_which_there_is_no_memory_is_an_error() {
        assert!(uncleared(usize::MAX).is_err());
    }
}
