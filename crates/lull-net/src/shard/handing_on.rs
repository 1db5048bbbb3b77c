//! What waits for somebody who listens, since its own listener is closed: connections that nobody has accepted, and ends of
//! handshakes.

use lull_nic::Frame;

use super::flow::FlowKey;
use super::listener::Waiting;
use super::segment::Arrived;
use super::timers::NEVER_NS;

/// Between two looks for somebody who listens.
const RETRY_NS: u64 = 2_000_000;
/// For how long somebody who is to listen is waited for.
pub(super) const WAIT_NS: u64 = 10_000_000_000;
/// Ends of handshakes that are held, at most: of those beyond, the peer sends its data again.
const ENDS_MAX: usize = 256;

/// A connection whose listener is closed, and that somebody will take soon.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) waiting: Waiting,
    pub(super) generation: u32,
    pub(super) until_ns: u64,
}

/// The end of a handshake whose listener is closed, and that somebody will take soon.
#[derive(Debug)]
pub(super) struct End {
    pub(super) frame: Frame,
    pub(super) flow: FlowKey,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) until_ns: u64,
}

/// Connections and ends of handshakes whose listeners are closed.
#[derive(Debug)]
pub(super) struct HandingOn {
    pub(super) left: Vec<Left>,
    pub(super) ends: Vec<End>,
    /// Until when the end is held that is looked at again just now.
    pub(super) held_until_ns: Option<u64>,
    pub(super) again_ns: u64,
}

impl HandingOn {
    pub(super) fn new() -> HandingOn {
        HandingOn { left: Vec::new(), ends: Vec::new(), held_until_ns: None, again_ns: NEVER_NS }
    }

    /// Somebody who listens is looked for again in a moment.
    pub(super) fn look_again(&mut self, now_ns: u64) {
        self.again_ns = self.again_ns.min(now_ns + RETRY_NS);
    }

    /// Whether the end of a handshake is held for now.
    pub(super) fn hold(&mut self, arrived: &Arrived<'_>, now_ns: u64) -> bool {
        let until_ns = self.held_until_ns.unwrap_or(now_ns + WAIT_NS);
        let is_held = now_ns < until_ns && self.ends.len() < ENDS_MAX;
        if is_held {
            let Arrived { flow, frame, segment, .. } = arrived;
            let (flow, seq, ack) = (*flow, segment.seq, segment.ack);
            self.ends.push(End { frame: Frame::clone(frame), flow, seq, ack, until_ns });
            self.look_again(now_ns);
        }
        is_held
    }

    /// When somebody who listens is looked for again.
    pub(super) fn next_deadline_ns(&self) -> u64 {
        self.again_ns
    }
}
