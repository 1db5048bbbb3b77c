//! Batches of events, and the connections that hold back what was written to them in one.

use super::socket::SocketId;
use super::timers::NEVER_NS;

/// Answers share a doorbell in batches of this many events and more, or of as many datagrams of one call. With fewer,
/// sharing saves less than the timer costs that bounds the wait.
const MANY_EVENTS: usize = 8;
/// Answers share a doorbell if each follows the one before within this time.
pub(super) const QUICK_NS: u64 = 20_000;
/// The most frames that wait for a shared doorbell.
pub const SHARED_FRAMES_MAX: u64 = 32;

/// The batch of events that a caller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// A number that tells the batch from the one before.
    number: u8,
    /// It has enough events for answers to share a doorbell.
    many: bool,
    /// When the last answer was written; 0 before.
    pub(super) answered_ns: u64,
}

impl Batch {
    /// No batch: nothing that is written waits for more.
    pub const NONE: Batch = Batch { number: 0, many: false, answered_ns: 0 };

    /// The batch with this number, which is not 0, and so many events.
    pub fn new(number: u8, events: usize) -> Batch {
        Batch { number, many: events >= MANY_EVENTS, answered_ns: 0 }
    }

    /// The batch of a caller that sends `calls` times without a wait between. Its number is `number` if it is in none. The first answer
    /// already counts as quick.
    pub fn of_calls(self, calls: usize, number: u8) -> Batch {
        let number = if self.is_none() { number } else { self.number };
        Batch { number, many: calls >= MANY_EVENTS, answered_ns: u64::MAX }
    }

    /// Its number; 0 if the caller is in none.
    #[inline]
    pub fn number(self) -> u8 {
        self.number
    }

    /// Whether it has so many events that answers may share a doorbell.
    #[inline]
    pub fn has_many(self) -> bool {
        self.many
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
    /// There may be frames on the ring for which no doorbell rang yet.
    pub(super) doorbell: bool,
}

impl HeldBack {
    pub(super) fn new() -> HeldBack {
        HeldBack { ids: Vec::new(), until_ns: NEVER_NS, closes: 0, doorbell: false }
    }
}
