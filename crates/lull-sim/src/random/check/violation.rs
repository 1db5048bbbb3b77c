//! An invariant that did not hold, and a condition that two checks look for.

use crate::engine::id::{QueueId, Side};
use crate::engine::nic::Queue;
use crate::engine::sim::Sim;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the invariant in §14, or the name of another check.
    pub rule: &'static str,
    /// When it was found, in nanoseconds of the world.
    pub at_ns: u64,
    /// What was found.
    pub found: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { rule, at_ns, found } = self;
        write!(f, "{rule}: {found}, at {}.{:06} ms", at_ns / 1_000_000, at_ns % 1_000_000)
    }
}

/// Whether there is something in a ring and no moderation timer will report it.
pub(super) fn waits_in_vain(sim: &Sim, index: QueueId, queue: &Queue, side: Side) -> bool {
    queue.unpolled(side) > 0 && sim.env.agenda.slot_ns(sim.env.slots.moderation(index, side)).is_none()
}
