//! A queue's interrupt on its way to its CPU.
//!
//! A device that calls us raises through [`VectorSink`]. A device whose interrupt the kernel raises shows it as a readable
//! descriptor, watched one-shot by whoever sleeps for the CPU: the interrupt thread through an epoll set, armed when the
//! seat is left to it; a worker that sleeps in the seat by polling the descriptor itself, so that no second thread wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use lull_nic::{IrqLine, IrqSink};
use rustix::event::epoll;

use crate::host::Delivery;

/// The interrupt of one instance.
pub(crate) struct Vector {
    pub(crate) line: Arc<dyn IrqLine>,
    is_fd: bool,
    /// Descriptor only: unmasked, that is to be watched.
    unmasked: AtomicBool,
    /// Descriptor only: armed in the interrupt thread's epoll set.
    armed: AtomicBool,
    /// On its CPU's list of raised interrupts.
    queued: AtomicBool,
    next: AtomicU32,
}

/// End of the list of raised interrupts.
const NIL: u32 = u32::MAX;

impl Vector {
    pub(crate) fn new(line: Arc<dyn IrqLine>) -> Vector {
        Vector {
            is_fd: line.fd().is_some(),
            line,
            unmasked: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            next: AtomicU32::new(NIL),
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
        self.unmasked.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn mask(&self) {
        self.unmasked.store(false, Ordering::Release);
        self.line.mask();
    }

    /// Unmasks. A descriptor is only marked: [`IrqEpoll::arm`] follows when the seat is left, or now if the caller is
    /// not in it.
    pub(crate) fn unmask(&self) {
        if self.is_fd {
            self.unmasked.store(true, Ordering::Release);
        } else {
            self.line.unmask();
        }
    }

    /// Whether a descriptor has to be watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.unmasked.load(Ordering::Acquire)
    }
}

/// Interrupts that were raised for a CPU and not yet taken: a stack of instance indices through [`Vector::next`]. The
/// `queued` flag keeps an interrupt from being on it twice.
#[derive(Debug)]
pub(crate) struct Raised(AtomicU32);

impl Raised {
    pub(crate) fn new() -> Raised {
        Raised(AtomicU32::new(NIL))
    }

    /// Returns false if it is on the list already.
    pub(crate) fn push(&self, index: u32, vector: &Vector) -> bool {
        if vector.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            vector.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange_weak(head, index, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => head = seen,
            }
        }
    }

    /// Takes the whole list; `next` follows it. Nothing to take costs a load.
    pub(crate) fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Acquire) == NIL {
            return None;
        }
        let head = self.0.swap(NIL, Ordering::AcqRel);
        (head != NIL).then_some(head)
    }

    /// Takes `vector` off the list that [`Raised::take`] returned; it may be raised again from now on.
    pub(crate) fn next(vector: &Vector) -> Option<u32> {
        let next = vector.next.load(Ordering::Relaxed);
        vector.queued.store(false, Ordering::Release);
        (next != NIL).then_some(next)
    }
}

/// What a device calls.
pub(crate) struct VectorSink {
    pub(crate) host: Weak<Delivery>,
    pub(crate) napi: u32,
}

impl IrqSink for VectorSink {
    fn raise(&self) {
        if let Some(host) = self.host.upgrade() {
            host.raise_irq(self.napi);
        }
    }
}

/// The interrupt thread's epoll set.
#[derive(Debug)]
pub(crate) struct IrqEpoll(OwnedFd);

impl IrqEpoll {
    pub(crate) fn new() -> std::io::Result<IrqEpoll> {
        Ok(IrqEpoll(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn add(&self, vector: &Vector, index: u32) -> std::io::Result<()> {
        let Some(fd) = vector.fd() else { return Ok(()) };
        let nothing = epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(u64::from(index)), nothing)?)
    }

    /// Arms the one-shot watch if the vector is unmasked and not armed. Data already there is reported. Returns
    /// whether it took a system call.
    pub(crate) fn arm(&self, vector: &Vector, index: u32) -> bool {
        if !vector.is_watched() || vector.armed.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.modify(vector, index, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        true
    }

    /// Takes the watch back: a worker in the seat watches the descriptor itself.
    pub(crate) fn disarm(&self, vector: &Vector, index: u32) -> bool {
        if !vector.armed.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.modify(vector, index, epoll::EventFlags::ONESHOT);
        true
    }

    fn modify(&self, vector: &Vector, index: u32, flags: epoll::EventFlags) {
        let Some(fd) = vector.fd() else { return };
        // Fails only for a descriptor that was never added.
        let done = epoll::modify(&self.0, fd, epoll::EventData::new_u64(u64::from(index)), flags);
        debug_assert!(done.is_ok(), "watch of NAPI {index}: {done:?}");
    }

    /// The instances whose descriptor became readable, without waiting.
    pub(crate) fn fired(&self, mut each: impl FnMut(u32)) {
        let mut events = Vec::with_capacity(16);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interruption leaves the set readable: the thread comes back.
        if epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_ok() {
            events.iter().for_each(|event| each(event.data.u64() as u32));
        }
    }

    pub(crate) fn disarmed(vector: &Vector) {
        vector.armed.store(false, Ordering::Release);
    }
}
