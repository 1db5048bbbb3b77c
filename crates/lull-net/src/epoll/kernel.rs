//! Kernel descriptors in the same set. They are in an epoll context of the kernel's, which is watched as one
//! descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_nic::own;
use rustix::event::{PollFd, PollFlags, Timespec, epoll as kernel, poll};

use super::event::{Event, Interest};
use crate::shard::Ready;

/// How often a context with kernel descriptors looks at them while it does not sleep, in nanoseconds.
const CHECK_NS: u64 = 50_000;
/// Events taken at a time.
const EVENTS_MAX: usize = 256;

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug)]
pub(super) struct KernelSet {
    epoll: OwnedFd,
    checked_ns: AtomicU64,
    /// Whether something was readable when the set was last looked at.
    readable: AtomicBool,
    syscalls: AtomicU64,
}

impl KernelSet {
    pub(super) fn new() -> io::Result<KernelSet> {
        Ok(KernelSet {
            epoll: own::made(|| kernel::create(kernel::CreateFlags::CLOEXEC))?,
            checked_ns: AtomicU64::new(0),
            readable: AtomicBool::new(false),
            syscalls: AtomicU64::new(0),
        })
    }

    /// The descriptor of the set, which is readable when one of its descriptors is ready.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// How many system calls were made to look at the descriptors.
    pub(super) fn syscalls(&self) -> u64 {
        self.syscalls.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        Ok(kernel::add(&self.epoll, fd, kernel::EventData::new_u64(key), to_kernel(interest))?)
    }

    pub(super) fn modify(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        Ok(kernel::modify(&self.epoll, fd, kernel::EventData::new_u64(key), to_kernel(interest))?)
    }

    pub(super) fn delete(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(kernel::delete(&self.epoll, fd)?)
    }

    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    /// Called when a sleep ended because of the set.
    pub(super) fn fired(&self) {
        self.readable.store(true, Ordering::Relaxed);
    }

    /// Looks whether a descriptor is ready, once per [`CHECK_NS`].
    #[inline]
    pub(super) fn check(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.checked_ns.load(Ordering::Relaxed)) >= CHECK_NS {
            self.look(now_ns);
        }
    }

    /// Looks whether a descriptor is ready.
    #[cold]
    pub(super) fn look(&self, now_ns: u64) {
        self.checked_ns.store(now_ns, Ordering::Relaxed);
        self.syscalls.fetch_add(1, Ordering::Relaxed);
        let mut fds = [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
        // If the call is interrupted, the set stays as it is, and the next look sees it.
        if poll(&mut fds, Some(&NOW)).is_ok_and(|ready| ready > 0) {
            self.fired();
        }
    }

    /// Copies up to `room` events out.
    pub(super) fn copy(&self, events: &mut Vec<Event>, room: usize) {
        if room == 0 {
            return;
        }
        let mut fired: Vec<kernel::Event> = Vec::with_capacity(room.min(EVENTS_MAX));
        self.syscalls.fetch_add(1, Ordering::Relaxed);
        let full = fired.capacity();
        // If the call is interrupted it reports nothing; the set stays readable, and the next call sees it.
        let got = kernel::wait(&self.epoll, rustix::buffer::spare_capacity(&mut fired), Some(&NOW)).unwrap_or(0);
        if got < full {
            self.readable.store(false, Ordering::Relaxed);
        }
        events.extend(fired.iter().map(|event| Event {
            key: event.data.u64(),
            ready: from_kernel(event.flags),
            napi_id: 0,
        }));
    }
}

fn from_kernel(flags: kernel::EventFlags) -> Ready {
    const MAP: [(kernel::EventFlags, Ready); 6] = [
        (kernel::EventFlags::IN, Ready::READABLE),
        (kernel::EventFlags::OUT, Ready::WRITABLE),
        (kernel::EventFlags::PRI, Ready::PRI),
        (kernel::EventFlags::RDHUP, Ready::RDHUP),
        (kernel::EventFlags::HUP, Ready::HUP),
        (kernel::EventFlags::ERR, Ready::ERR),
    ];
    MAP.iter().filter(|(kernel, _)| flags.contains(*kernel)).fold(Ready::empty(), |all, (_, ready)| all | *ready)
}

fn to_kernel(interest: Interest) -> kernel::EventFlags {
    const MAP: [(Interest, kernel::EventFlags); 7] = [
        (Interest::READABLE, kernel::EventFlags::IN),
        (Interest::PRI, kernel::EventFlags::PRI),
        (Interest::WRITABLE, kernel::EventFlags::OUT),
        (Interest::RDHUP, kernel::EventFlags::RDHUP),
        (Interest::EDGE, kernel::EventFlags::ET),
        (Interest::ONESHOT, kernel::EventFlags::ONESHOT),
        (Interest::EXCLUSIVE, kernel::EventFlags::EXCLUSIVE),
    ];
    MAP.iter()
        .filter(|(ours, _)| interest.contains(*ours))
        .fold(kernel::EventFlags::empty(), |all, (_, kernel)| all | *kernel)
}
