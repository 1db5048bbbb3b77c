//! What a child of `fork` has of lull.
//!
//! The engine's threads stay with the parent, and so do the NIC's queues and the connections. A child of a process whose engine
//! runs has husks: its numbers stand for the kernel's placeholders alone, so that closing them, or ending, says nothing to any
//! peer. A child that was made before the engine started has everything before it.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static HUSK: AtomicBool = AtomicBool::new(false);
/// The engine runs in this process, or is being started.
static RUNS: AtomicBool = AtomicBool::new(false);

/// Whether this process is the child of one whose engine ran.
#[inline]
pub fn is_husk() -> bool {
    HUSK.load(Ordering::Relaxed)
}

/// An engine that is being started. If it comes to nothing, children are as if nothing had been tried.
pub(crate) struct Starting {
    runs: bool,
}

impl Starting {
    /// It runs.
    pub(crate) fn runs(mut self) {
        self.runs = true;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        RUNS.store(self.runs, Ordering::Relaxed);
    }
}

/// Called when the engine starts: children are husks from now on.
pub(crate) fn engine_starts() -> Starting {
    static ONCE: Once = Once::new();
    RUNS.store(true, Ordering::Relaxed);
    ONCE.call_once(|| {
        // SAFETY: the handler stays for as long as the process. Without memory to note it, `fork` would share the engine: there is
        // none left at that moment for anything else either.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
    Starting { runs: false }
}

extern "C" fn in_the_child() {
    if RUNS.load(Ordering::Relaxed) {
        HUSK.store(true, Ordering::Relaxed);
        crate::engine::forget_places();
        lull_net::forget_held_back();
    }
}
