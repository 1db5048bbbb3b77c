//! Who asks: groups of connections, and threads of a generator.

use crate::engine::id::ConnId;
use crate::engine::rng::Stream;
use crate::world::Traffic;

/// One group of connections.
#[derive(Debug)]
pub(crate) struct Source {
    pub(super) first: ConnId,
    pub(super) count: u32,
    pub(super) traffic: Traffic,
    /// When the next arrival of the whole group is due. One that was drawn before the rate changed is nobody's.
    pub(super) due_ns: Option<u64>,
    pub(super) rng: Stream,
    /// The arrivals of the trace that it has looked at, and the connections that they are for: the same for all groups.
    pub(super) traced: u64,
    pub(super) traced_to: Stream,
}

impl Source {
    pub(crate) fn new(first: ConnId, count: u32, traffic: Traffic, rng: Stream, traced_to: Stream) -> Source {
        Source { first, count, traffic, due_ns: None, rng, traced: 0, traced_to }
    }
}

impl Source {
    /// Its connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnId> + use<> {
        (self.first.raw()..self.first.raw() + self.count).map(ConnId::new)
    }
}

/// A thread of the generator.
#[derive(Debug, Default)]
pub(super) struct Generator {
    /// Until when it is busy.
    pub(super) busy_until_ns: u64,
    /// Its next turn is on the agenda.
    pub(super) has_turn: bool,
    /// Answers that it has not taken.
    pub(super) answers: Vec<ConnId>,
    /// Requests that it has not sent, in order.
    pub(super) due: Vec<ConnId>,
}
