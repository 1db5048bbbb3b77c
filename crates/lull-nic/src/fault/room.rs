//! The room interrupt of a queue that holds frames back, and perhaps the interrupt itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::injector::count;
use super::line::NEVER;
use super::shared::Shared;
use crate::device::{IrqLine, IrqSink};
use crate::line::Line;

/// Between the inner room interrupt and whoever waits for room. Frames of ours that wait for the inner ring come first:
/// while there are some, the injector's thread uses the room that the inner line tells of.
pub(super) struct FaultRoom {
    inner: Arc<dyn IrqLine>,
    outer: Line,
    shared: Weak<Shared>,
    /// The inner ring has to take frames of ours first.
    stuck: AtomicBool,
    /// When the thread sees to a raise of the inner line.
    due_ns: AtomicU64,
}

/// The inner line's sink. Weak, because the inner line would otherwise hold the line that holds it.
struct Forward(Weak<FaultRoom>);

impl IrqSink for Forward {
    fn raise(&self) {
        if let Some(room) = self.0.upgrade() {
            room.inner_raised();
        }
    }
}

impl FaultRoom {
    pub(super) fn new(inner: Arc<dyn IrqLine>, shared: &Arc<Shared>) -> Arc<FaultRoom> {
        let room = Arc::new(FaultRoom {
            inner,
            outer: Line::new(),
            shared: Arc::downgrade(shared),
            stuck: AtomicBool::new(false),
            due_ns: AtomicU64::new(NEVER),
        });
        room.inner.connect(Arc::new(Forward(Arc::downgrade(&room))));
        room
    }

    fn inner_raised(&self) {
        let Some(shared) = self.shared.upgrade() else { return self.raise() };
        let hold_ns = shared.config.room_hold_ns;
        if hold_ns == 0 && !self.stuck.load(Ordering::Acquire) {
            return self.raise();
        }
        if hold_ns != 0 {
            count(&shared.stats.rooms_held);
        }
        self.due_ns.store(shared.now_ns().saturating_add(hold_ns), Ordering::Release);
        shared.wake();
    }

    fn raise(&self) {
        if self.outer.vector.take() {
            self.outer.fire();
        }
    }

    /// When [`FaultRoom::take_due`] is wanted.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Acquire)
    }

    /// Whether a raise of the inner line is to be seen to now; it is then the caller's to do.
    pub(super) fn take_due(&self, now_ns: u64) -> bool {
        let due_ns = self.due_ns();
        due_ns <= now_ns && self.due_ns.compare_exchange(due_ns, NEVER, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether frames of ours wait for room in the inner ring; [`FaultRoom::wait_or_pass_on`] follows.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }

    /// Waits for the inner ring if frames of ours do, or passes on that it has room. `raised`: the inner line was
    /// raised, and nobody was told yet. Called without the transmitter's lock, because the inner line may raise from
    /// within its unmask.
    pub(super) fn wait_or_pass_on(&self, stuck: bool, raised: bool) {
        if stuck {
            self.inner.unmask();
        } else if raised {
            self.raise();
        }
    }

    /// Masks without asking the inner line (which a reset has masked).
    pub(super) fn mask_outer(&self) {
        self.outer.vector.mask();
    }
}

impl IrqLine for FaultRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.outer.connect(sink);
    }

    /// The inner line stays as it is: frames of ours may wait for it.
    fn mask(&self) {
        self.outer.vector.mask();
    }

    fn unmask(&self) {
        // Whether there is room the inner line knows.
        let raised = self.outer.vector.unmask(|| false);
        debug_assert!(!raised);
        self.inner.unmask();
    }
}
