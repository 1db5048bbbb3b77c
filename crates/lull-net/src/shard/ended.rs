//! Connections that ended a moment ago, in a stack beside others.
//!
//! What one peer sends may come by several queues, and pass several processes. The end of a handshake that comes only when its
//! connection has ended already looks like the end of one that another stack began: it would make a connection without a peer.

use std::collections::VecDeque;

use super::flow::FlowKey;

/// How many are remembered; a peer's address and port come again only after many more.
const ENDED_MAX: usize = 1024;

/// Those that ended last, with the numbers of their peers' SYNs.
#[derive(Debug)]
pub(super) struct Ended(VecDeque<(FlowKey, u32)>);

impl Ended {
    pub(super) fn new() -> Ended {
        Ended(VecDeque::new())
    }

    pub(super) fn note(&mut self, flow: FlowKey, peer_isn: u32) {
        if self.0.len() == ENDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((flow, peer_isn));
    }

    pub(super) fn contains(&self, flow: &FlowKey, peer_isn: u32) -> bool {
        self.0.contains(&(*flow, peer_isn))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(FlowKey, u32)>()
    }
}
