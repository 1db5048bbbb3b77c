//! The interrupt of a queue that holds frames back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::device::{IrqLine, IrqSink};
use crate::eventfd::{EitherFd, EventFdSink};
use crate::line::Line;

/// No held frame.
pub(super) const NEVER: u64 = u64::MAX;

/// Raises for the inner line and for frames of our own that are due.
pub(super) struct FaultLine {
    inner: Arc<dyn IrqLine>,
    outer: Line,
    /// Over a device whose interrupt is a descriptor: our event, and either of the two as one.
    descriptors: Option<(EventFdSink, EitherFd)>,
    /// When the receive half next has a frame of ours to give; written by its owner.
    due_ns: AtomicU64,
    epoch: Instant,
}

/// The inner line's sink. Weak, because the inner line would otherwise hold the line that holds it.
struct Forward(Weak<FaultLine>);

impl IrqSink for Forward {
    fn raise(&self) {
        if let Some(line) = self.0.upgrade() {
            line.raise();
        }
    }
}

impl FaultLine {
    pub(super) fn new(inner: Arc<dyn IrqLine>, epoch: Instant) -> std::io::Result<Arc<FaultLine>> {
        let descriptors = match inner.fd() {
            None => None,
            Some(fd) => {
                let event = EventFdSink::new()?;
                let either = EitherFd::new(fd, event.as_fd())?;
                Some((event, either))
            }
        };
        let due_ns = AtomicU64::new(NEVER);
        let line = Arc::new(FaultLine { inner, outer: Line::new(), descriptors, due_ns, epoch });
        line.inner.connect(Arc::new(Forward(Arc::downgrade(&line))));
        Ok(line)
    }

    /// Masks without asking the inner line (which a reset has masked).
    pub(super) fn mask_outer(&self) {
        self.outer.vector.mask();
    }

    fn raise(&self) {
        if self.outer.vector.take() {
            self.outer.fire();
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Acquire)
    }

    /// Raises if a frame of ours is due. The clock is read before the line is tried here, and after it is armed in
    /// `unmask`: when this finds it masked, the next unmask reads a later time and raises itself.
    pub(super) fn raise_if_due(&self, now_ns: u64) {
        if self.due_ns() > now_ns {
            return;
        }
        match &self.descriptors {
            Some((event, _)) => event.raise(),
            None => self.raise(),
        }
    }

    /// To be called at the start of a poll, before its clock is read: the poll takes care of what was raised until
    /// here.
    pub(super) fn begin_poll(&self) {
        if let Some((event, _)) = &self.descriptors {
            event.clear();
        }
    }

    /// At the end of a poll: when the next frame of ours is due. A thread that still raises for the former time
    /// causes one empty poll, whose start takes the event back.
    pub(super) fn set_due_ns(&self, due_ns: u64) {
        self.due_ns.store(due_ns, Ordering::Release);
        if let Some((event, _)) = &self.descriptors
            && due_ns <= self.now_ns()
        {
            event.raise();
        }
    }
}

impl IrqLine for FaultLine {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.outer.connect(sink);
    }

    fn mask(&self) {
        self.outer.vector.mask();
        self.inner.mask();
    }

    fn unmask(&self) {
        // Our own comes first: the inner line may raise from within its unmask.
        let raised = self.outer.vector.unmask(|| self.due_ns() <= self.now_ns());
        if raised {
            self.outer.fire();
        }
        self.inner.unmask();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.as_ref().map(|(_, either)| either.as_fd())
    }
}
