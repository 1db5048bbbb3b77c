//! How long send calls take, and how long frames are held back for a doorbell; recorded only if asked for.

use hdrhistogram::Histogram;

use super::TransmitQueue;

/// What is recorded about a transmit queue's send calls.
#[derive(Debug)]
pub(crate) struct SendCalls {
    /// The sender whose calls are timed.
    pub(crate) flow: u64,
    /// How long each of them took, in nanoseconds.
    pub(crate) took_ns: Histogram<u64>,
    /// The time that all senders spent in their runs on frames of others, in nanoseconds.
    pub(crate) trapped_ns: u64,
    /// How long the first frame of each doorbell was on the ring until the doorbell began, in nanoseconds.
    pub(crate) held_ns: Histogram<u64>,
}

impl TransmitQueue {
    /// Records that a send call of this flow took this long.
    pub(crate) fn note_call(&mut self, flow: u64, took_ns: u64) {
        if let Some(calls) = self.calls.as_mut().filter(|calls| calls.flow == flow) {
            calls.took_ns.saturating_record(took_ns);
        }
    }

    /// Records that a send call of this flow takes up a batch, which costs `cost_ns`: the share of others' frames is
    /// time trapped.
    pub(super) fn note_trapped(&mut self, flow: Option<u64>, cost_ns: u64) {
        if let (Some(calls), Some(flow)) = (&mut self.calls, flow) {
            let others = self.sending.iter().filter(|packet| packet.flow != flow).count() as u64;
            calls.trapped_ns += cost_ns * others / (self.sending.len() as u64).max(1);
        }
    }

    /// Records when the doorbell for the frames on the ring began to ring.
    pub(super) fn note_doorbell(&mut self, at_ns: u64) {
        if let (Some(calls), Some(since_ns)) = (&mut self.calls, self.unrung_since_ns) {
            calls.held_ns.saturating_record(at_ns.saturating_sub(since_ns));
        }
    }
}
