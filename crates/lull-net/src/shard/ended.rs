//! Connections that ended a moment ago, in a stack beside others.
//!
//! What one peer sends may come by several queues, and pass several processes. The end of a handshake that comes only when its
//! connection has ended already looks like the end of one that another stack began: it would make a connection without a peer.

use std::collections::VecDeque;

use super::flow::FlowKey;
use super::segment::Segment;
use super::stack::Stack;

/// How many are remembered: an address and port of a peer's come again only after many more.
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

impl Stack {
    /// Whether a segment that nobody has a connection for ended the handshake of one that has ended since. A later connection with
    /// the same ports has another number.
    #[cold]
    pub(super) fn is_of_an_ended_connection(&self, flow: &FlowKey, segment: &Segment, now_ns: u64) -> bool {
        let (isn, peer_isn) = (segment.ack.wrapping_sub(1), segment.seq.wrapping_sub(1));
        // One that another stack has claimed goes on there, by what it was claimed by.
        let is_known = match self.claimed.contains(flow, peer_isn) {
            true => segment.length == 0,
            false => self.ended.contains(flow, peer_isn),
        };
        is_known && self.secret.cookie_mss(flow, peer_isn, isn, now_ns).is_some()
    }
}
