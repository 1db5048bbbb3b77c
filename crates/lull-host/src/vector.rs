//! A queue's interrupt on its way to its CPU.
//!
//! A device that calls us raises through [`crate::sinks::VectorSink`]. A device whose interrupt the kernel raises shows it as a readable
//! descriptor, watched one-shot by whoever sleeps for the CPU: the interrupt thread through an epoll set, armed when the
//! seat is left to it; a worker that sleeps in the seat by polling the descriptor itself, so that no second thread wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lull_nic::{IrqLine, own};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::or_end::or_end;
use crate::sync::relock;

/// The interrupt of one instance.
pub(crate) struct Vector {
    pub(crate) line: Arc<dyn IrqLine>,
    is_fd: bool,
    /// Descriptor only: unmasked, that is to be watched.
    unmasked: AtomicBool,
    /// Descriptor only: armed in the interrupt thread's epoll set.
    armed: AtomicBool,
    /// Taken out of the epoll set for good. Changed under its lock.
    is_gone: AtomicBool,
}

impl Vector {
    pub(crate) fn new(line: Arc<dyn IrqLine>) -> Vector {
        Vector {
            is_fd: line.fd().is_some(),
            line,
            unmasked: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.fd()
    }

    pub(crate) fn is_fd(&self) -> bool {
        self.is_fd
    }

    /// A watched descriptor became readable. The first who sees it takes the interrupt; that masks it.
    pub(crate) fn fire(&self) -> bool {
        self.unmasked.swap(false, Ordering::SeqCst)
    }

    /// Masks. A descriptor that the interrupt thread is armed for wakes it once more, for nothing.
    pub(crate) fn mask(&self) {
        if self.is_fd {
            self.unmasked.store(false, Ordering::Release);
        }
        or_end(&|| "a device's interrupt line, which was being masked".to_owned(), || self.line.mask());
    }

    /// Unmasks. A descriptor is only marked: [`IrqEpoll::arm`] follows when the seat is left, or now if the caller is
    /// not in it.
    pub(crate) fn unmask(&self) {
        if self.is_fd {
            // Whoever unmasks writes this and then reads `armed`; the interrupt thread clears `armed` and then takes this.
            // Sequentially consistent on both sides: one of the two sees the other.
            self.unmasked.store(true, Ordering::SeqCst);
        } else {
            or_end(&|| "a device's interrupt line, which was being unmasked".to_owned(), || self.line.unmask());
        }
    }

    /// Whether a descriptor has to be watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.unmasked.load(Ordering::Acquire)
    }
}

/// The interrupt thread's epoll set.
#[derive(Debug)]
pub(crate) struct IrqEpoll {
    fd: OwnedFd,
    /// A flag `armed` and the kernel's watch change together: else the later of two changes of the flag could be the
    /// earlier in the kernel, and a vector that is believed to be armed would be watched by nobody.
    watch: Mutex<()>,
}

impl IrqEpoll {
    pub(crate) fn new() -> std::io::Result<IrqEpoll> {
        Ok(IrqEpoll { fd: own::made(|| epoll::create(epoll::CreateFlags::CLOEXEC))?, watch: Mutex::new(()) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn add(&self, vector: &Vector, index: u32) -> std::io::Result<()> {
        let Some(fd) = vector.fd() else { return Ok(()) };
        let nothing = epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(u64::from(index)), nothing)?)
    }

    /// Arms the one-shot watch if the vector is unmasked and not armed. Data already there is reported. Returns
    /// whether it took a system call.
    pub(crate) fn arm(&self, vector: &Vector, index: u32) -> bool {
        if !vector.is_watched() || vector.armed.load(Ordering::SeqCst) {
            return false;
        }
        let _watch = relock(&self.watch);
        if vector.is_gone.load(Ordering::Relaxed) || vector.armed.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.modify(vector, index, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        true
    }

    /// Takes the watch back: a worker in the seat watches the descriptor itself.
    pub(crate) fn disarm(&self, vector: &Vector, index: u32) -> bool {
        let _watch = relock(&self.watch);
        if vector.is_gone.load(Ordering::Relaxed) || !vector.armed.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.modify(vector, index, epoll::EventFlags::ONESHOT);
        true
    }

    /// Nobody watches the vector any more. Somebody who unmasks it late must not find the watch of another that has the
    /// same descriptor by then.
    pub(crate) fn remove(&self, vector: &Vector) {
        let _watch = relock(&self.watch);
        vector.is_gone.store(true, Ordering::Relaxed);
        if let Some(fd) = vector.fd() {
            // Refused if the device was deleted, and its watch with it.
            let _ = epoll::delete(&self.fd, fd);
        }
    }

    fn modify(&self, vector: &Vector, index: u32, flags: epoll::EventFlags) {
        let Some(fd) = vector.fd() else { return };
        match epoll::modify(&self.fd, fd, epoll::EventData::new_u64(u64::from(index)), flags) {
            Ok(()) => {}
            // The device was deleted (a TAP by `ip link del`), and its watch with it. No frame will come, and the device
            // says by itself that it is gone: there is nothing to watch any more.
            Err(Errno::NOENT) => vector.unmasked.store(false, Ordering::SeqCst),
            Err(error) => debug_assert!(false, "watch of NAPI {index}: {error}"),
        }
    }

    /// The instances whose descriptor became readable, without waiting.
    pub(crate) fn fired(&self, mut each: impl FnMut(u32)) {
        let mut events = Vec::with_capacity(16);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interruption leaves the set readable: the thread comes back.
        if epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_ok() {
            events.iter().for_each(|event| each(event.data.u64() as u32));
        }
    }

    pub(crate) fn disarmed(vector: &Vector) {
        vector.armed.store(false, Ordering::SeqCst);
    }
}
