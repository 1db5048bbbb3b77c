//! Memory that was freed, given back to the system.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How far apart two rounds are at least: each takes milliseconds when there is much, and the locks of the allocator.
const APART: Duration = Duration::from_secs(1);

/// Nobody gives back.
const REST: u8 = 0;
/// A thread gives back, and nothing was freed since it began.
const GIVING: u8 = 1;
/// It is to give back once more.
const AGAIN: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(REST);

/// Has what the allocator holds free given back to the system, as far as it consists of whole pages: for the time after a
/// crowd of connections has gone. The caller is not kept: a thread of its own does it, at most once a second.
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
    if std::thread::Builder::new().name("lull-memory".to_owned()).spawn(rounds).is_err() {
        // Without threads to be had, memory stays where it is until the next crowd.
        STATE.store(REST, Ordering::Release);
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes its own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
