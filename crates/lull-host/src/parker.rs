//! How a thread sleeps until it is woken, a deadline passes or a descriptor of the kernel becomes readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use lull_nic::own;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::monitor::Monitor;
use crate::sync::{AtomicU32, Futex, Ordering};

const RUNNING: u32 = 0;
pub(crate) const ON_FUTEX: u32 = 1;
const ON_FDS: u32 = 2;
const NOTIFIED: u32 = 3;
/// The sleeper watches the word itself ([`ParkWord::watch`]), so that a store is enough to wake it.
pub(crate) const ON_MONITOR: u32 = 4;

/// What a sleeper and its wakers agree on. A wake-up that comes before the sleep is kept. Whoever takes one back (a
/// sleep that ends for another reason included) does so with a swap, which acquires what the waker published: with a
/// plain store the wake-up would be gone and its reason not yet visible.
#[derive(Debug)]
pub(crate) struct ParkWord(pub(crate) Futex);

impl ParkWord {
    pub(crate) fn new() -> ParkWord {
        ParkWord(Futex::new(RUNNING))
    }

    /// The sleeper is about to sleep in this way; false if a wake-up was kept, which is used up then.
    pub(crate) fn begin(&self, kind: u32) -> bool {
        if self.0.compare_exchange(RUNNING, kind, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        self.end();
        false
    }

    /// The sleeper has begun [`ON_MONITOR`], and watches the word before it sleeps in the kernel. `arm` begins to
    /// watch. `wait` waits for a store since then, may return early, and says whether there was time to wait. Returns
    /// `None` if the sleeper was woken; otherwise how it is to sleep in the kernel, of which its wakers know by now.
    pub(crate) fn watch(&self, arm: impl Fn(&AtomicU32), wait: impl Fn() -> bool) -> Option<u32> {
        let word: &AtomicU32 = &self.0;
        loop {
            arm(word);
            // It would wait in vain for a store that came before the watch began.
            if word.load(Ordering::Acquire) != ON_MONITOR {
                return None;
            }
            if !wait() {
                break;
            }
        }
        let sleeps = word.compare_exchange(ON_MONITOR, ON_FUTEX, Ordering::AcqRel, Ordering::Acquire);
        sleeps.is_ok().then_some(ON_FUTEX)
    }

    /// Whether the kernel has to wake somebody who sleeps in this way.
    pub(crate) fn sleeps_in_the_kernel(kind: u32) -> bool {
        kind != ON_MONITOR
    }

    /// Notes that the sleeper runs again.
    pub(crate) fn end(&self) {
        self.0.swap(RUNNING, Ordering::AcqRel);
    }

    /// Whether nobody has ended the sleep that began, for a model whose sleeper spins.
    #[cfg(loom)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.0.fetch_or(0, Ordering::Relaxed) == ON_FUTEX
    }

    /// Forgets a wake-up that was kept. The sleeper looks for its reason afterwards.
    pub(crate) fn forget(&self) {
        if self.0.load(Ordering::Acquire) != RUNNING {
            self.0.swap(RUNNING, Ordering::AcqRel);
        }
    }

    /// A waker has published its reason. Returns how the sleeper sleeps, if it does.
    pub(crate) fn notify(&self) -> Option<u32> {
        let before = self.0.swap(NOTIFIED, Ordering::AcqRel);
        (before != RUNNING && before != NOTIFIED).then_some(before)
    }
}

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
    word: ParkWord,
    event: OwnedFd,
}

/// Which of the descriptors given to [`Parker::park`] were readable.
pub(crate) type Readable = u64;

impl Parker {
    pub(crate) fn new() -> std::io::Result<Parker> {
        Ok(Parker {
            word: ParkWord::new(),
            event: own::made(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?,
        })
    }

    #[cfg(test)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word.0
    }

    /// Wakes the sleeper, or keeps the wake-up for its next sleep. Returns whether a thread was really woken.
    pub(crate) fn wake(&self, counters: &SleepCounters) -> bool {
        self.wake_after(counters, || ())
    }

    /// As [`Parker::wake`], but if there is a thread to wake it does `first` before: once woken, that thread may take
    /// the caller's core.
    pub(crate) fn wake_after(&self, counters: &SleepCounters, first: impl FnOnce()) -> bool {
        let Some(kind) = self.word.notify() else { return false };
        first();
        if ParkWord::sleeps_in_the_kernel(kind) {
            if kind == ON_FUTEX {
                self.word.0.wake();
            } else {
                // The counter cannot overflow: it is written only on this transition, and read before the next.
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
            counters.syscall();
        }
        counters.wakeups.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Sleeps until woken, for at most `timeout_ns`, or until one of `fds` is readable. May return early. Returns a
    /// bit per readable descriptor.
    pub(crate) fn park(&self, timeout_ns: Option<u64>, fds: &[BorrowedFd<'_>], counters: &SleepCounters) -> Readable {
        // A descriptor of a model is a line: nothing that comes by the system's own wakes its threads.
        let fds = if cfg!(loom) { &[] } else { fds };
        let kind = if fds.is_empty() { ON_FUTEX } else { ON_FDS };
        if !self.word.begin(kind) {
            return 0;
        }
        let readable = self.sleep_in_the_kernel(kind, timeout_ns, fds, counters);
        self.word.end();
        readable
    }

    /// As [`Parker::park`] without descriptors, but the sleeper watches the word for a while first, and occupies its core meanwhile.
    /// [`Parker::wake_after`] does `first` too late for it.
    pub(crate) fn park_watching(&self, timeout_ns: Option<u64>, monitor: &Monitor, counters: &SleepCounters) {
        if !self.word.begin(ON_MONITOR) {
            return;
        }
        if let Some((kind, passed_ns)) = monitor.watch(&self.word, timeout_ns) {
            let left_ns = timeout_ns.map(|ns| ns.saturating_sub(passed_ns));
            self.sleep_in_the_kernel(kind, left_ns, &[], counters);
        }
        self.word.end();
    }

    fn sleep_in_the_kernel(
        &self,
        kind: u32,
        timeout_ns: Option<u64>,
        fds: &[BorrowedFd<'_>],
        counters: &SleepCounters,
    ) -> Readable {
        if timeout_ns.is_some() {
            counters.timer_ops.fetch_add(1, Ordering::Relaxed);
        }
        counters.syscall();
        let timeout =
            timeout_ns.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        if fds.is_empty() {
            self.word.0.wait_for(kind, timeout.as_ref());
            0
        } else {
            self.park_on_fds(timeout.as_ref(), fds, counters)
        }
    }

    /// Forgets a wake-up that was kept. The caller looks for its reason afterwards.
    pub(crate) fn forget(&self) {
        self.word.forget();
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
            // A waker that swapped the word before we left, but writes only now, ends the next sleep early, which is
            // allowed.
            counters.syscall();
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
        let ready = |(i, fd): (usize, &PollFd<'_>)| if fd.revents().is_empty() { 0 } else { 1u64 << i };
        polled[1..].iter().enumerate().map(ready).fold(0, |all, bit| all | bit)
    }
}
