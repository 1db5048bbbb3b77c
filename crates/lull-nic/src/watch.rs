//! The thread of a device that is on an interface of the host: it sleeps until the kernel says that an interface has changed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::device::IrqSink;
use crate::eventfd::EventFdSink;

/// What wakes the thread, from any other one.
pub(crate) struct Wake {
    wake: EventFdSink,
    is_stopped: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake { wake: EventFdSink::new()?, is_stopped: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        self.wake.raise();
    }

    /// Whether it was woken since this was last asked.
    pub(crate) fn clear(&self) -> bool {
        self.wake.clear()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Waits until an interface changes ([`crate::interface::events`]), the thread is woken, or `timeout`, which is less than a
    /// second, has passed.
    pub(crate) fn wait(&self, events: &OwnedFd, timeout: Option<Duration>) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = [entry(events.as_raw_fd()), entry(self.wake.as_fd().as_raw_fd())];
        let spec = timeout.map(|timeout| libc::timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() });
        let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both entries and `spec` outlive the call. A call that a signal ends is a look too many.
        unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, spec, std::ptr::null()) };
    }
}

/// The thread, which ends when this is dropped.
pub(crate) struct Watch {
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts it. `run` returns once the wake is stopped.
    pub(crate) fn start(name: &str, wake: &Arc<Wake>, run: impl FnOnce() + Send + 'static) -> io::Result<Watch> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Watch { wake: wake.clone(), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.wake.is_stopped.store(true, Ordering::Release);
        self.wake.wake();
        // A watcher called from the thread may drop the device; the thread then ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // Err: a watcher panicked, and the panic hook has reported it.
            let _ = thread.join();
        }
    }
}
