//! The connections that hold back what was written to them.

use super::socket::SocketId;
use super::timers::NEVER_NS;

/// The connections that hold something back, oldest first.
#[derive(Debug)]
pub(super) struct HeldBack {
    pub(super) ids: Vec<SocketId>,
    pub(super) until_ns: u64,
    /// Connections in turn that were closed in the batch of their only answer, up to `coalesce`'s `CLOSES_MIN`.
    pub(super) closes: u8,
}

impl HeldBack {
    pub(super) fn new() -> HeldBack {
        HeldBack { ids: Vec::new(), until_ns: NEVER_NS, closes: 0 }
    }
}
