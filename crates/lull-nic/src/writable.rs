//! A room interrupt that the kernel raises: a descriptor that becomes writable.
//!
//! A transmit ring is full seldom, so the delivery threads do not carry these descriptors in their own sets. One
//! thread of the process watches them, each one-shot and only while its line is armed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::afresh::Afresh;
use crate::device::{IrqLine, IrqSink};
use crate::eventfd::{owned, writable};
use crate::line::Line;
use crate::own;

/// A room interrupt over a descriptor: unmasked, it calls its sink as soon as the descriptor is writable. Device
/// authors make one for each queue; `device.rs` shows a device that does.
pub struct WritableFd {
    /// A duplicate, so that the watch does not depend on who else closes the descriptor.
    fd: OwnedFd,
    line: Line,
    key: u64,
    watcher: Arc<Watcher>,
}

impl fmt::Debug for WritableFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritableFd").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl WritableFd {
    /// A masked line over `fd`. Starts the watching thread if there is none.
    ///
    /// # Errors
    /// When the process is out of descriptors or threads, or `fd` is of a kind that epoll does not take.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Arc<WritableFd>> {
        let watcher = Watcher::get()?;
        let fd = own::made(|| fd.try_clone_to_owned())?;
        let key = watcher.next_key.fetch_add(1, Ordering::Relaxed);
        watcher.control(libc::EPOLL_CTL_ADD, &fd, key, 0)?;
        let line = Arc::new(WritableFd { fd, line: Line::new(), key, watcher: watcher.clone() });
        watcher.lines().insert(key, Arc::downgrade(&line));
        Ok(line)
    }

    fn fire(&self) {
        if self.line.vector.take() {
            self.line.fire();
        }
    }
}

impl IrqLine for WritableFd {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.line.connect(sink);
    }

    fn mask(&self) {
        self.line.vector.mask();
    }

    fn unmask(&self) {
        if self.line.vector.unmask(|| writable(self.fd.as_fd())) {
            self.line.fire();
            return;
        }
        // To arm the watch again reports room that came since. A watch that an earlier unmask has left is the same
        // watch.
        let armed = self.watcher.control(libc::EPOLL_CTL_MOD, &self.fd, self.key, libc::EPOLLOUT as u32);
        debug_assert!(armed.is_ok(), "watching a descriptor of our own: {armed:?}");
    }
}

impl Drop for WritableFd {
    fn drop(&mut self) {
        // The descriptor's other duplicates would keep the watch alive.
        let _ = self.watcher.control(libc::EPOLL_CTL_DEL, &self.fd, self.key, 0);
        self.watcher.lines().remove(&self.key);
    }
}

/// The thread's epoll set, and whom it tells.
struct Watcher {
    epoll: OwnedFd,
    lines: Mutex<HashMap<u64, Weak<WritableFd>>>,
    next_key: AtomicU64,
}

static WATCHER: Afresh<Mutex<Option<Arc<Watcher>>>> = Afresh::new();

/// To be called in a child of `fork`, whose parent has the watcher.
pub(crate) fn forget_watcher() {
    WATCHER.forget();
}

impl Watcher {
    /// The process's watcher. One that could not be started is tried again by the next who wants it.
    fn get() -> io::Result<Arc<Watcher>> {
        let started = WATCHER.get_or_init(Mutex::default);
        let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*started {
            return Ok(watcher.clone());
        }
        // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
        let epoll = own::made(|| unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) })?;
        let watcher = Arc::new(Watcher { epoll, lines: Mutex::default(), next_key: AtomicU64::new(0) });
        let watching = watcher.clone();
        std::thread::Builder::new().name("lull-nic-room".to_owned()).spawn(move || watching.run())?;
        *started = Some(watcher.clone());
        Ok(watcher)
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Weak<WritableFd>>> {
        // Entries are put in and taken out whole.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self, operation: libc::c_int, fd: &OwnedFd, key: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events | libc::EPOLLONESHOT as u32, u64: key };
        // SAFETY: both descriptors are open for the length of the call, and `event` outlives it.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn run(&self) {
        const EVENTS: usize = 16;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            // SAFETY: `events` has room for that many and outlives the call.
            let count =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS as libc::c_int, -1) };
            // Negative: interrupted by a signal.
            for event in &events[..usize::try_from(count).unwrap_or(0)] {
                let line = self.lines().get(&{ event.u64 }).and_then(Weak::upgrade);
                // The line of an error or a hang-up is told as well: its device finds out at the next doorbell.
                line.inspect(|line| line.fire());
            }
        }
    }
}
