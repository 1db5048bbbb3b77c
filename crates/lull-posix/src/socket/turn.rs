//! Connections of the kernel's, taken out of the placeholder of a listener in both worlds.
//!
//! The placeholder of a listener that blocks blocks as well. So it is first asked whether a connection waits, and of
//! all threads and processes that have the listener only one at a time takes the connection. A second one would sleep
//! in the kernel until the next connection comes there, and would not notice those of lull.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno as Refused;

use crate::errno::WOULD_BLOCK;
use crate::kernel::RawAddress;
use crate::{Result, kernel};

/// Takes a connection if one waits. This never sleeps.
pub(super) fn accept(fd: c_int, accept_flags: c_int) -> Result<(c_int, RawAddress)> {
    let _turn = match kernel::is_nonblocking(fd) {
        true => None,
        false => Some(Turn::take(fd).ok_or(WOULD_BLOCK)?),
    };
    if !kernel::is_readable(fd) {
        return Err(WOULD_BLOCK);
    }
    kernel::accept4(fd, accept_flags)
}

/// The process whose thread takes a connection out of a placeholder at the moment.
static HOLDER: AtomicU32 = AtomicU32::new(NOBODY);
/// No process has this number.
const NOBODY: u32 = 0;

/// The right to take a connection out of a placeholder, which one thread has at a time.
struct Turn {
    fd: c_int,
}

impl Turn {
    /// Takes the turn; `None` while another thread has it, here or in another process. A lock on the placeholder keeps
    /// processes apart, and a process that is killed gives it back. Threads of one process share that lock, so
    /// [`HOLDER`] keeps those apart. In a child of `fork` that may name its parent, of which no thread goes on here.
    fn take(fd: c_int) -> Option<Turn> {
        let (before, own) = (HOLDER.load(Ordering::Relaxed), std::process::id());
        if before == own || HOLDER.compare_exchange(before, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        match fcntl_lock(kernel::borrow(fd), FlockOperation::NonBlockingLockExclusive) {
            Err(Refused::AGAIN | Refused::ACCESS) => {
                HOLDER.store(NOBODY, Ordering::Release);
                None
            }
            // Where there are no such locks, at least the threads of this process are kept apart.
            _ => Some(Turn { fd }),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fcntl_lock(kernel::borrow(self.fd), FlockOperation::Unlock);
        HOLDER.store(NOBODY, Ordering::Release);
    }
}
