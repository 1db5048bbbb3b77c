//! When the requests that have no answer yet came, and how long the others took.

use lull_slo::Latencies;

/// No request waits for an answer.
const NONE: u64 = 0;

/// The times of requests of connections that came to a listener.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Since when the frames that are being received may have been in the ring.
    pub(super) came_ns: u64,
    /// When each connection's request that has no answer yet came, by the connection's index.
    pub(super) asked_ns: Vec<u64>,
    pub(super) took: Latencies,
}

impl Answers {
    pub(super) fn asked(&mut self, index: u32) {
        let index = index as usize;
        if self.asked_ns.len() <= index {
            self.asked_ns.resize(index + 1, NONE);
        }
        if self.asked_ns[index] == NONE {
            self.asked_ns[index] = self.came_ns.max(1);
        }
    }

    pub(super) fn take(&mut self, index: u32) -> Option<u64> {
        let asked_ns = self.asked_ns.get_mut(index as usize)?;
        Some(std::mem::replace(asked_ns, NONE)).filter(|ns| *ns != NONE)
    }
}
