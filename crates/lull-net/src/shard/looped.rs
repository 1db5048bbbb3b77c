//! What the stack sends to own addresses: it does not leave by the device, but comes back in by this shard.

use super::stack::{Io, Stack};

/// The most frames that are delivered in one go, so that a thread which has the shard's lock on behalf of another holds
/// it for a bounded time.
const DELIVERED_MAX: usize = 256;

impl Stack {
    /// Whether [`Stack::deliver_looped`] is wanted.
    #[inline]
    pub fn has_looped(&self) -> bool {
        !self.looped.is_empty()
    }

    /// Takes what was sent to own addresses, and the answers to it, up to a limit.
    pub fn deliver_looped(&mut self, io: &mut Io<'_>) {
        for _ in 0..DELIVERED_MAX {
            let Some(frame) = self.looped.pop_front() else { return };
            self.counters.looped_frames += 1;
            self.take(frame, true, io);
        }
    }
}
