//! A queue's interrupt on its way to its CPU.
//!
//! A device that calls us raises through [`crate::sinks::VectorSink`]. A device whose interrupt the kernel raises shows it as a readable
//! descriptor, watched one-shot by whoever sleeps for the CPU: the interrupt thread through an epoll set, armed when the
//! seat is left to it; a worker that sleeps in the seat by polling the descriptor itself, so that no second thread wakes.
//!
//! What is known of a descriptor is one word, whose bits change by read-modify-writes alone:
//!
//! ```text
//! unmask:   UNMASKED is set; who is not in the seat then arms
//! arm:      ARMED is set, then the watch in the kernel; only if the word says UNMASKED and not ARMED
//! report:   the watch has seen something, and is used up: ARMED and UNMASKED are cleared at once
//! disarm:   ARMED is cleared, then the watch in the kernel
//! fire:     UNMASKED is cleared by a worker that watches itself
//! ```
//!
//! No edge is lost. Whoever finds ARMED when it comes to arm set UNMASKED before that (or has the seat from somebody who did): so the
//! report, which comes later in the order of the word's changes, clears both and takes the interrupt. Two flags would need a
//! sequentially consistent order for it.
//!
//! Whoever unmasks releases, and whoever takes the interrupt or masks it acquires: it schedules next, and has to see that the
//! instance was enabled. A schedule that still found it disabled would be refused and recorded nowhere (§3). All else is relaxed: a
//! look at the word has to show what its own thread did, or who had the seat before it, and nothing more.

use std::os::fd::AsFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use lull_nic::IrqLine;
use lull_nic::own;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::or_end::or_end;
use crate::sync::{AtomicU32, Mutex, Ordering, relock};

/// The descriptor is to be watched.
const UNMASKED: u32 = 1 << 0;
/// The descriptor is armed in the interrupt thread's epoll set.
const ARMED: u32 = 1 << 1;
/// The descriptor was taken out of that set for good. This changes under the set's lock.
const GONE: u32 = 1 << 2;

/// The interrupt of one instance.
pub(crate) struct Vector {
    pub(crate) line: Arc<dyn IrqLine>,
    is_fd: bool,
    /// Descriptor only: [`UNMASKED`], [`ARMED`], [`GONE`].
    word: AtomicU32,
}

impl Vector {
    pub(crate) fn new(line: Arc<dyn IrqLine>) -> Vector {
        Vector { is_fd: line.fd().is_some(), line, word: AtomicU32::new(0) }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.fd()
    }

    pub(crate) fn is_fd(&self) -> bool {
        self.is_fd
    }

    /// A descriptor that a worker watches became readable. Whoever sees it first takes the interrupt, which masks it.
    pub(crate) fn fire(&self) -> bool {
        self.word.fetch_and(!UNMASKED, Ordering::Acquire) & UNMASKED != 0
    }

    /// The one-shot watch of the interrupt thread saw the descriptor readable: it is armed no more. As [`Vector::fire`] otherwise.
    pub(crate) fn reported(&self) -> bool {
        self.word.fetch_and(!(UNMASKED | ARMED), Ordering::Acquire) & UNMASKED != 0
    }

    /// Masks the interrupt. A descriptor that is armed wakes the interrupt thread once more, for nothing.
    pub(crate) fn mask(&self) {
        // As a rule it is masked already, and a look is enough: an unmasking that the look does not show comes after
        // this.
        if self.is_fd && self.is_watched() {
            self.word.fetch_and(!UNMASKED, Ordering::Acquire);
        }
        or_end(&|| "a device's interrupt line, which was being masked".to_owned(), || self.line.mask());
    }

    /// Unmasks. A descriptor is only marked: [`IrqEpoll::arm`] follows when the seat is left, or now if the caller is
    /// not in it.
    pub(crate) fn unmask(&self) {
        if self.is_fd {
            self.word.fetch_or(UNMASKED, Ordering::Release);
        } else {
            or_end(&|| "a device's interrupt line, which was being unmasked".to_owned(), || self.line.unmask());
        }
    }

    /// Whether a descriptor has to be watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.word.load(Ordering::Relaxed) & UNMASKED != 0
    }

    #[cfg(loom)]
    pub(crate) fn is_armed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ARMED != 0
    }

    /// Whether a descriptor has to be watched, and the interrupt thread does not.
    fn is_to_be_armed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (UNMASKED | ARMED) == UNMASKED
    }
}

/// What an [`IrqEpoll`] asks of the kernel. The loom models have a kernel of their own.
pub(crate) trait Watches {
    /// Knows the descriptor of instance `index` from now on, and does not watch it yet.
    fn add(&self, fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno>;

    /// Watches a known descriptor until it is readable once, which it may be already; or does not watch it.
    fn watch(&self, fd: BorrowedFd<'_>, index: u32, watched: bool) -> Result<(), Errno>;

    /// Knows the descriptor no more.
    fn remove(&self, fd: BorrowedFd<'_>);
}

/// An epoll set of the kernel.
#[derive(Debug)]
pub(crate) struct EpollSet(OwnedFd);

impl Watches for EpollSet {
    fn add(&self, fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(u64::from(index)), epoll::EventFlags::ONESHOT)
    }

    fn watch(&self, fd: BorrowedFd<'_>, index: u32, watched: bool) -> Result<(), Errno> {
        let what = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.0, fd, epoll::EventData::new_u64(u64::from(index)), what | epoll::EventFlags::ONESHOT)
    }

    fn remove(&self, fd: BorrowedFd<'_>) {
        // Refused if the device was deleted, and its watch with it.
        let _ = epoll::delete(&self.0, fd);
    }
}

/// The interrupt thread's epoll set.
#[derive(Debug)]
pub(crate) struct IrqEpoll<W = EpollSet> {
    pub(crate) watches: W,
    /// ARMED and the kernel's watch change together under this lock. Otherwise the later of two changes of the bit
    /// could be the earlier in the kernel, and nobody would watch a vector that is believed to be armed.
    changing: Mutex<()>,
}

impl IrqEpoll {
    pub(crate) fn new() -> std::io::Result<IrqEpoll> {
        Ok(IrqEpoll::over(EpollSet(own::made(|| epoll::create(epoll::CreateFlags::CLOEXEC))?)))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watches.0.as_fd()
    }

    /// The instances whose descriptor became readable, without waiting. Each is [`Vector::reported`] next.
    pub(crate) fn fired(&self, mut each: impl FnMut(u32)) {
        let mut events = Vec::with_capacity(16);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interruption leaves the set readable: the thread comes back.
        if epoll::wait(&self.watches.0, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_ok() {
            events.iter().for_each(|event| each(event.data.u64() as u32));
        }
    }
}

impl<W: Watches> IrqEpoll<W> {
    pub(crate) fn over(watches: W) -> IrqEpoll<W> {
        IrqEpoll { watches, changing: Mutex::new(()) }
    }

    pub(crate) fn add(&self, vector: &Vector, index: u32) -> std::io::Result<()> {
        let Some(fd) = vector.fd() else { return Ok(()) };
        Ok(self.watches.add(fd, index)?)
    }

    /// Arms the one-shot watch if the vector is unmasked and not armed. Data already there is reported. Returns
    /// whether it took a system call.
    pub(crate) fn arm(&self, vector: &Vector, index: u32) -> bool {
        if !vector.is_to_be_armed() {
            return false;
        }
        let _changing = relock(&self.changing);
        if vector.word.fetch_or(ARMED, Ordering::Relaxed) & (ARMED | GONE) != 0 {
            return false;
        }
        self.watch(vector, index, true);
        true
    }

    /// Takes the watch back: a worker in the seat watches the descriptor itself.
    pub(crate) fn disarm(&self, vector: &Vector, index: u32) -> bool {
        let _changing = relock(&self.changing);
        if vector.word.fetch_and(!ARMED, Ordering::Relaxed) & (ARMED | GONE) != ARMED {
            return false;
        }
        self.watch(vector, index, false);
        true
    }

    /// Ends every watch of the vector. Somebody who unmasks it late must not meet the watch of another vector that has
    /// the same descriptor by then.
    pub(crate) fn remove(&self, vector: &Vector) {
        let _changing = relock(&self.changing);
        vector.word.fetch_or(GONE, Ordering::Relaxed);
        if let Some(fd) = vector.fd() {
            self.watches.remove(fd);
        }
    }

    fn watch(&self, vector: &Vector, index: u32, watched: bool) {
        let Some(fd) = vector.fd() else { return };
        match self.watches.watch(fd, index, watched) {
            Ok(()) => {}
            // The device was deleted (a TAP by `ip link del`), and its watch with it. No frame will come, and the device
            // says by itself that it is gone: there is nothing to watch any more.
            Err(Errno::NOENT) => {
                vector.word.fetch_and(!UNMASKED, Ordering::Relaxed);
            }
            Err(error) => debug_assert!(false, "watch of NAPI {index}: {error}"),
        }
    }
}
