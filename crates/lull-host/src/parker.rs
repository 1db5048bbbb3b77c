//! How a thread sleeps until it is woken, a deadline passes or a descriptor of the kernel becomes readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::futex;

const RUNNING: u32 = 0;
const ON_FUTEX: u32 = 1;
const ON_FDS: u32 = 2;
const NOTIFIED: u32 = 3;

/// System calls and wake-ups made on behalf of a CPU.
#[derive(Debug, Default)]
pub(crate) struct SleepCounters {
    /// Threads woken.
    pub(crate) wakeups: AtomicU64,
    /// Kernel timers set: sleeps with a deadline, and moves of the backstop.
    pub(crate) timer_ops: AtomicU64,
    /// System calls of any kind.
    pub(crate) syscalls: AtomicU64,
}

impl SleepCounters {
    pub(crate) fn syscall(&self) {
        self.syscalls.fetch_add(1, Ordering::Relaxed);
    }
}

/// One thread sleeps on it at a time; any thread wakes it. A wake-up that comes before the sleep is kept.
#[derive(Debug)]
pub(crate) struct Parker {
    word: AtomicU32,
    event: OwnedFd,
}

/// Which of the descriptors given to [`Parker::park`] were readable.
pub(crate) type Readable = u64;

impl Parker {
    pub(crate) fn new() -> std::io::Result<Parker> {
        Ok(Parker { word: AtomicU32::new(RUNNING), event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Wakes the sleeper, or keeps the wake-up for its next sleep. Returns whether a thread was really woken.
    pub(crate) fn wake(&self, counters: &SleepCounters) -> bool {
        match self.word.swap(NOTIFIED, Ordering::AcqRel) {
            ON_FUTEX => {
                // Waking cannot fail on a valid private word.
                let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
            }
            ON_FDS => {
                // The counter cannot overflow: it is written only on this transition, and read before the next.
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
            _ => return false,
        }
        counters.syscall();
        counters.wakeups.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Sleeps until woken, for at most `timeout_ns`, or until one of `fds` is readable. May return early. Returns a
    /// bit per readable descriptor.
    pub(crate) fn park(&self, timeout_ns: Option<u64>, fds: &[BorrowedFd<'_>], counters: &SleepCounters) -> Readable {
        let kind = if fds.is_empty() { ON_FUTEX } else { ON_FDS };
        if self.word.compare_exchange(RUNNING, kind, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.word.store(RUNNING, Ordering::Release);
            return 0;
        }
        if timeout_ns.is_some() {
            counters.timer_ops.fetch_add(1, Ordering::Relaxed);
        }
        counters.syscall();
        let timeout =
            timeout_ns.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let mut readable = 0;
        if fds.is_empty() {
            // Woken, timed out, changed before or a signal: the caller looks again in every case.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, kind, timeout.as_ref());
        } else {
            readable = self.park_on_fds(timeout.as_ref(), fds, counters);
        }
        self.word.store(RUNNING, Ordering::Release);
        readable
    }

    /// Forgets a wake-up that was kept. The caller looks for its reason afterwards.
    pub(crate) fn forget(&self) {
        if self.word.load(Ordering::Acquire) != RUNNING {
            self.word.swap(RUNNING, Ordering::AcqRel);
        }
    }

    fn park_on_fds(&self, timeout: Option<&Timespec>, fds: &[BorrowedFd<'_>], counters: &SleepCounters) -> Readable {
        let mut polled = Vec::with_capacity(fds.len() + 1);
        polled.push(PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN));
        polled.extend(fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => debug_assert!(false, "poll of our own descriptors: {error}"),
        }
        if !polled[0].revents().is_empty() {
            // A waker that swapped the word before we left but writes only now ends the next sleep early: allowed.
            counters.syscall();
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
        let ready = |(i, fd): (usize, &PollFd<'_>)| if fd.revents().is_empty() { 0 } else { 1u64 << i };
        polled[1..].iter().enumerate().map(ready).fold(0, |all, bit| all | bit)
    }
}
