//! Whether the program's process exits, and stays until its peers have everything.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use libc::c_int;

/// How long nobody takes anything before a process no longer stays.
pub(crate) const NO_PROGRESS: Duration = Duration::from_secs(10);
/// Looks become rarer, up to this far apart: the stack tells nobody of a last acknowledgement.
pub(crate) const LOOKS_APART_MAX: Duration = Duration::from_millis(20);

/// The thread that is in [`at_exit`](crate::leave::at_exit).
static LEAVING: AtomicI32 = AtomicI32::new(NOBODY);
/// No thread has this number.
const NOBODY: c_int = 0;

fn thread() -> c_int {
    // SAFETY: a number.
    unsafe { libc::gettid() }
}

/// A call of another thread's has failed, perhaps because the process is about to end and its listeners are closed. On
/// Linux they are open until then, and the thread would not have come back, so it is not told before the end.
pub(crate) fn rests_while_leaving() {
    let is_for_others = |leaving: c_int| leaving != NOBODY && leaving != thread();
    while is_for_others(LEAVING.load(Ordering::Acquire)) {
        std::thread::sleep(LOOKS_APART_MAX);
    }
}

/// In any child of `fork`, which does not exit.
pub(crate) fn forget() {
    LEAVING.store(NOBODY, Ordering::Relaxed);
}

/// Whether the process exits.
pub(crate) fn is_begun() -> bool {
    LEAVING.load(Ordering::Relaxed) != NOBODY
}

/// It does from now on.
pub(crate) fn begins() {
    LEAVING.store(thread(), Ordering::Release);
}

/// It has done all that it stays for.
pub(crate) fn is_over() {
    LEAVING.store(NOBODY, Ordering::Release);
}
