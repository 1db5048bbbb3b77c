//! The clients: groups of connections, and threads of a generator.

use crate::engine::id::ConnId;
use crate::engine::rng::Stream;
use crate::world::Traffic;

/// One group of connections.
#[derive(Debug)]
pub(crate) struct Source {
    pub(super) first: ConnId,
    pub(super) count: u32,
    pub(super) traffic: Traffic,
    /// When the next arrival of the whole group is due. An arrival that was drawn before the rate changed is ignored.
    pub(super) due_ns: Option<u64>,
    pub(super) rng: Stream,
    /// How many arrivals of the trace it has gone through, and the stream that draws their connections: it is the same
    /// for all groups.
    pub(super) traced: u64,
    pub(super) traced_to: Stream,
}

impl Source {
    pub(crate) fn new(first: ConnId, count: u32, traffic: Traffic, rng: Stream, traced_to: Stream) -> Source {
        Source { first, count, traffic, due_ns: None, rng, traced: 0, traced_to }
    }
}

impl Source {
    /// Returns its connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnId> + use<> {
        (self.first.raw()..self.first.raw() + self.count).map(ConnId::new)
    }
}

/// A thread of the generator.
#[derive(Debug, Default)]
pub(super) struct Generator {
    /// The time until which it is busy.
    pub(super) busy_until_ns: u64,
    /// Whether its next turn is on the agenda.
    pub(super) has_turn: bool,
    /// Answers that it has not taken yet.
    pub(super) answers: Vec<ConnId>,
    /// Requests that it has not sent yet, in order.
    pub(super) due: Vec<ConnId>,
}
