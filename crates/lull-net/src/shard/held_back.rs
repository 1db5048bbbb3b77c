//! Batches of events, and the connections that hold back what was written to them in one.

use super::socket::SocketId;
use super::timers::NEVER_NS;

/// The batch of events that a caller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Tells it from the batch before.
    number: u8,
    /// It has more events than one.
    several: bool,
}

impl Batch {
    /// None: nothing that is written waits for more.
    pub const NONE: Batch = Batch { number: 0, several: false };

    /// The batch with this number, which is not 0, and so many events.
    pub fn new(number: u8, events: usize) -> Batch {
        Batch { number, several: events > 1 }
    }

    /// Its number; 0 if the caller is in none.
    #[inline]
    pub fn number(self) -> u8 {
        self.number
    }

    /// Whether other events are answered in it, too.
    #[inline]
    pub fn has_several(self) -> bool {
        self.several
    }

    /// Whether the caller is in none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.number == 0
    }
}

/// The connections that hold something back, oldest first.
#[derive(Debug)]
pub(super) struct HeldBack {
    pub(super) ids: Vec<SocketId>,
    pub(super) until_ns: u64,
    /// Connections in turn that were closed in the batch of their only answer, up to `coalesce`'s `CLOSES_MIN`.
    pub(super) closes: u8,
    /// Frames may be behind a doorbell that has not rung.
    pub(super) doorbell: bool,
    /// When an answer of a batch was last written.
    pub(super) written_ns: u64,
}

impl HeldBack {
    pub(super) fn new() -> HeldBack {
        HeldBack { ids: Vec::new(), until_ns: NEVER_NS, closes: 0, doorbell: false, written_ns: 0 }
    }
}
