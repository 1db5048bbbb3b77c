//! SO_BUSY_POLL of sockets that follow the mode of their queue.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lull_core::{SettingError, SocketBusy};

/// SO_BUSY_POLL of all sockets of a queue, as the mode in force sets it. A socket takes it over at its next call, so a
/// change costs nothing per socket. What the application sets on a socket afterwards stands until the mode changes it
/// again.
#[derive(Debug)]
pub(crate) struct ModeBusyPoll {
    /// The count of changes in the upper 32 bits, and the microseconds in the lower ones.
    word: AtomicU64,
    /// This is held while a socket takes a value over or is given its own, so that the later one stands.
    settling: Mutex<()>,
}

impl ModeBusyPoll {
    /// The state before any mode: sockets begin with the value of the sysctl.
    pub(crate) fn new(usecs: u32) -> ModeBusyPoll {
        ModeBusyPoll { word: AtomicU64::new(u64::from(usecs)), settling: Mutex::new(()) }
    }

    fn settling(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data.
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the time for all sockets. If the value is the same, nothing changes.
    pub(crate) fn change(&self, usecs: u32) {
        let _settling = self.settling();
        let word = self.word.load(Ordering::Relaxed);
        if word as u32 != usecs {
            self.word.store((((word >> 32) + 1) << 32) | u64::from(usecs), Ordering::Release);
        }
    }
}

/// The busy-poll options of a socket that follows its queue's mode.
#[derive(Debug)]
pub(crate) struct Following {
    busy: SocketBusy,
    /// The number of the mode's change that the socket has taken over last.
    seen: AtomicU32,
}

impl Following {
    pub(crate) fn new(busy: SocketBusy) -> Following {
        Following { busy, seen: AtomicU32::new(0) }
    }

    /// The options as they are now.
    #[inline]
    pub(crate) fn now(&self, mode: &ModeBusyPoll) -> &SocketBusy {
        let word = mode.word.load(Ordering::Acquire);
        if (word >> 32) as u32 != self.seen.load(Ordering::Acquire) {
            self.take_over(mode);
        }
        &self.busy
    }

    #[cold]
    fn take_over(&self, mode: &ModeBusyPoll) {
        let _settling = mode.settling();
        let word = mode.word.load(Ordering::Relaxed);
        let count = (word >> 32) as u32;
        if count != self.seen.load(Ordering::Relaxed) {
            // The mode's time was checked when the mode was set.
            let _ = self.busy.set_usecs(word as u32);
            self.seen.store(count, Ordering::Release);
        }
    }

    /// Sets SO_BUSY_POLL as the application asks.
    pub(crate) fn set_usecs(&self, mode: &ModeBusyPoll, usecs: u32) -> Result<(), SettingError> {
        self.now(mode);
        let _settling = mode.settling();
        self.busy.set_usecs(usecs)
    }

    /// The options of a connection that a listener of the same queue accepted. It has the listener's busy-poll time.
    pub(crate) fn child(&self, mode: &ModeBusyPoll) -> Following {
        let listener = self.now(mode);
        // This is read before the time, so that the child takes the time over once more if the mode changes in between.
        let seen = self.seen.load(Ordering::Acquire);
        let busy = SocketBusy::new(&lull_core::Sysctl::default());
        // The time is within the limits, since the listener has it.
        let _ = busy.set_usecs(listener.usecs());
        Following { busy, seen: AtomicU32::new(seen) }
    }
}
