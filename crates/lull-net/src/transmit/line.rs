//! The room interrupt of the ring of a transmit queue with a discipline, for the queue's own NAPI.

use std::sync::{Arc, Weak};

use lull_nic::{IrqLine, IrqSink};

use super::TxSide;
use crate::sync::Ordering;

/// The interrupt of the transmit queue's NAPI: the ring's room interrupt, which is unmasked only while frames wait for
/// room. If it were unmasked while there is room, it would be raised at once.
pub(crate) struct RingRoom {
    side: Weak<TxSide>,
    ring: Arc<dyn IrqLine>,
}

impl RingRoom {
    pub(crate) fn new(side: &Arc<TxSide>) -> RingRoom {
        RingRoom { side: Arc::downgrade(side), ring: side.ring_room.clone() }
    }
}

impl IrqLine for RingRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.ring.connect(sink);
    }

    fn mask(&self) {
        self.ring.mask();
    }

    fn unmask(&self) {
        // A thread that runs the queue now unmasks the ring's own line if frames still wait at its end. Until then the
        // line would be raised again and again for room that nobody may use.
        let waits = |side: Arc<TxSide>| side.blocked.load(Ordering::Relaxed) && !side.word.is_in_a_run();
        if self.side.upgrade().is_some_and(waits) {
            self.ring.unmask();
        }
    }

    fn pending(&self) -> Option<bool> {
        self.side.upgrade().map(|side| side.pending())
    }
}
