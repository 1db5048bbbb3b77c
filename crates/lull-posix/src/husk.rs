//! Whether this process has an engine of its own, or is the child of one that has.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static HUSK: AtomicBool = AtomicBool::new(false);
/// The engine runs in this process, or is being started.
static RUNS: AtomicBool = AtomicBool::new(false);

/// The process in which the engine was last started.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the engine's process asks, and not a child that shares its memory until it executes a program (`vfork`).
pub(crate) fn is_engines_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == std::process::id()
}

/// A thread of this process does so ([`GoingOn`]).
static IS_GOING_ON: AtomicBool = AtomicBool::new(false);

/// Whether a thread makes what was the parent's the process's own.
pub(crate) fn is_going_on() -> bool {
    IS_GOING_ON.load(Ordering::Acquire)
}

thread_local! {
    /// This thread makes what was the parent's the process's own ([`GoingOn`]).
    static GOES_ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether this process is the child of one whose engine ran.
#[inline]
pub fn is_husk() -> bool {
    HUSK.load(Ordering::Acquire) && !GOES_ON.get()
}

/// Whether the calling thread makes what was the parent's the process's own.
pub(crate) fn is_who_goes_on() -> bool {
    GOES_ON.get()
}

/// A child whose parent has ended becomes as if it had been made before the engine started (`inherit/outlived.rs`). To the calling
/// thread it is so at once, to others when this is dropped.
pub(crate) struct GoingOn(());

impl GoingOn {
    pub(crate) fn begin() -> GoingOn {
        RUNS.store(false, Ordering::Relaxed);
        IS_GOING_ON.store(true, Ordering::Release);
        GOES_ON.set(true);
        GoingOn(())
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        // Release: who finds no husk finds what has become the process's own.
        HUSK.store(false, Ordering::Release);
        IS_GOING_ON.store(false, Ordering::Release);
        GOES_ON.set(false);
    }
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

/// The engine starts: children are husks from now on.
pub(crate) fn engine_starts() -> Starting {
    RUNS.store(true, Ordering::Relaxed);
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Starting { runs: false }
}

/// Whether the engine runs in this process, or is being started; in a child of `fork`, whether it did so in its parent.
pub(crate) fn engine_runs() -> bool {
    RUNS.load(Ordering::Relaxed)
}

/// In the child of a process whose engine runs.
pub(crate) fn becomes_one() {
    HUSK.store(true, Ordering::Relaxed);
}
