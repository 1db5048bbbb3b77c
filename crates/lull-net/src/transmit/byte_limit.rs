//! How many bytes a poller leaves on the ring, so that frames wait in the discipline, which can choose among them, and
//! not on the ring, which cannot (`lib/dynamic_queue_limits.c`).
//!
//! The limit is just large enough to keep the ring from running dry. It doubles when the ring was found empty while
//! frames waited for the limit, and after a hold time it shrinks by what was never needed.

use std::collections::VecDeque;

/// The smallest limit, which is also the first one, in bytes: what one doorbell that is held back may cover.
const LIMIT_BYTES_MIN: u32 = 62_500;
/// The largest limit, in bytes.
const LIMIT_BYTES_MAX: u32 = 4 << 20;
/// How long slack has to exist before the limit shrinks by it (`DQL_SLACK_HOLD`: a second), in nanoseconds.
const HOLD_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct ByteLimit {
    limit: u32,
    /// The lengths of the frames on the ring, the oldest first.
    on_ring: VecDeque<u32>,
    bytes: u32,
    /// Whether the limit has ended a batch since the last look.
    reached: bool,
    slack: u32,
    slack_since_ns: u64,
}

impl Default for ByteLimit {
    fn default() -> ByteLimit {
        ByteLimit {
            limit: LIMIT_BYTES_MIN,
            on_ring: VecDeque::new(),
            bytes: 0,
            reached: false,
            slack: u32::MAX,
            slack_since_ns: 0,
        }
    }
}

impl ByteLimit {
    /// Called when a batch begins, with the number of frames that are on the ring. A device that cannot tell that
    /// number is not limited.
    pub(super) fn look(&mut self, outstanding: Option<usize>, now_ns: u64) {
        let outstanding = outstanding.unwrap_or(0);
        while self.on_ring.len() > outstanding {
            self.bytes -= self.on_ring.pop_front().unwrap_or(0);
        }
        let reached = std::mem::take(&mut self.reached);
        if reached && self.on_ring.is_empty() {
            self.limit = (self.limit * 2).min(LIMIT_BYTES_MAX);
            (self.slack, self.slack_since_ns) = (u32::MAX, now_ns);
        } else if reached {
            // The limit was larger than needed by what was still there when the next batch came.
            self.slack = self.slack.min(self.bytes);
        }
        if now_ns.saturating_sub(self.slack_since_ns) >= HOLD_NS {
            if self.slack != u32::MAX {
                self.limit = self.limit.saturating_sub(self.slack).max(LIMIT_BYTES_MIN);
            }
            (self.slack, self.slack_since_ns) = (u32::MAX, now_ns);
        }
    }

    /// Whether no more may go on the ring now.
    pub(super) fn is_reached(&mut self) -> bool {
        self.reached = self.bytes >= self.limit;
        self.reached
    }

    pub(super) fn sent(&mut self, bytes: u32) {
        self.on_ring.push_back(bytes);
        self.bytes += bytes;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FRAME: u32 = 1_500;

    /// Sends up to the limit. Returns how many frames that were.
    fn fill(limit: &mut ByteLimit) -> usize {
        let before = limit.on_ring.len();
        while !limit.is_reached() {
            limit.sent(FRAME);
        }
        limit.on_ring.len() - before
    }

    #[test]
    fn a_ring_that_runs_dry_gets_more_and_one_that_never_does_gives_back() {
        let mut limit = ByteLimit::default();
        limit.look(Some(0), 0);
        let first = fill(&mut limit);
        assert_eq!(first, LIMIT_BYTES_MIN.div_ceil(FRAME) as usize);
        limit.look(Some(0), 1_000);
        assert_eq!(limit.bytes, 0, "all of it was sent");
        assert_eq!(fill(&mut limit), (2 * LIMIT_BYTES_MIN).div_ceil(FRAME) as usize, "it ran dry");
        // A slow wire takes one frame at a time.
        for second in 1..5 {
            for _ in 0..10 {
                let outstanding = limit.on_ring.len() - 1;
                limit.look(Some(outstanding), second * HOLD_NS);
                let _ = fill(&mut limit);
            }
        }
        assert_eq!(limit.limit, LIMIT_BYTES_MIN);
    }

    #[test]
    fn it_has_an_upper_end() {
        let mut limit = ByteLimit::default();
        for _ in 0..20 {
            limit.look(Some(0), 0);
            let _ = fill(&mut limit);
        }
        assert_eq!(limit.limit, LIMIT_BYTES_MAX);
    }
}
