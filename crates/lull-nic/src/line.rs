//! An interrupt line whose sink is called by the device: the vector's state plus the connected sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Instant;

use arc_swap::ArcSwapOption;

use crate::device::{IrqLine, IrqSink};
use crate::irq::Vector;

/// A sized box around the sink, because a swappable pointer has to be thin.
struct Connected(Arc<dyn IrqSink>);

/// The device's end of an [`crate::IrqLine`].
pub(crate) struct Line {
    pub(crate) vector: Vector,
    sink: ArcSwapOption<Connected>,
    /// A raise found no sink; `connect` makes up for it.
    missed: AtomicBool,
    interrupts: AtomicU64,
}

impl Line {
    pub(crate) fn new() -> Line {
        Line {
            vector: Vector::new(),
            sink: ArcSwapOption::empty(),
            missed: AtomicBool::new(false),
            interrupts: AtomicU64::new(0),
        }
    }

    pub(crate) fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.sink.store(Some(Arc::new(Connected(sink.clone()))));
        // Against `fire`, which writes `missed` and reads the sink: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.missed.swap(false, Ordering::AcqRel) {
            sink.raise();
        }
    }

    /// Calls the sink; returns the nanoseconds that this took the caller. Only for who took the right to raise.
    #[cold]
    pub(crate) fn fire(&self) -> u64 {
        let start = Instant::now();
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        if let Some(connected) = &*self.sink.load() {
            connected.0.raise();
        } else {
            self.missed.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            if let Some(connected) = &*self.sink.load()
                && self.missed.swap(false, Ordering::AcqRel)
            {
                connected.0.raise();
            }
        }
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }
}

/// The room interrupt of a transmit ring that has room after every doorbell: unmasking it raises at once.
///
/// For devices that send everything in the doorbell, and for those whose full ring loses frames.
pub struct AlwaysRoom(Line);

impl Default for AlwaysRoom {
    fn default() -> AlwaysRoom {
        AlwaysRoom(Line::new())
    }
}

impl std::fmt::Debug for AlwaysRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AlwaysRoom")
    }
}

impl IrqLine for AlwaysRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.0.connect(sink);
    }

    fn mask(&self) {
        self.0.vector.mask();
    }

    fn unmask(&self) {
        if self.0.vector.unmask(|| true) {
            self.0.fire();
        }
    }
}
