//! How long visits of a member take. A poller looks at the clock between visits only, so one that holds doorbells back
//! goes by these times to know whether a doorbell would become late meanwhile, and how many packets fit before that
//! (§16).

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::tx::doorbell::DOORBELL_AGE_NS;

/// The time of the longest poll fades by one part in this many with each poll that is shorter, so that it is remembered
/// for a millisecond or so.
const FADES_BY: u16 = 1_024;
/// Longer visits are noted as this long: no doorbell waits for longer, so nothing is gained by knowing more.
const LONGEST_NS: u16 = DOORBELL_AGE_NS as u16;
/// A visit of which nothing is known yet counts as longer than that.
const UNKNOWN_NS: u16 = u16::MAX;

/// The holder of the member's claim writes these; for others they are hints. They have two bytes each, so that a member
/// is one cache line.
#[derive(Debug)]
pub(crate) struct Visits {
    /// How long the next visit may take, at most [`LONGEST_NS`] where it is known. For a member that receives this is
    /// the longest visit of late, because a device may do more in a poll than its packets tell. For a transmit queue it
    /// is the last visit, because its frames are all the work there is.
    expected_ns: AtomicU16,
    /// How long a packet of the last visit that had any took, with its share of whatever else that visit did.
    packet_ns: AtomicU16,
}

impl Visits {
    pub(crate) fn new() -> Visits {
        let visits = Visits { expected_ns: AtomicU16::new(0), packet_ns: AtomicU16::new(0) };
        visits.forget();
        visits
    }

    /// Another member has this place now, and nothing is known of its visits.
    pub(crate) fn forget(&self) {
        self.expected_ns.store(UNKNOWN_NS, Relaxed);
        self.packet_ns.store(UNKNOWN_NS, Relaxed);
    }

    /// Notes a poll that took `packets` of the `budget` that it was allowed, which is `weight` or less, in `took_ns`.
    pub(crate) fn polled(&self, took_ns: u64, packets: u32, budget: u32, weight: u32) {
        let packet_ns = self.note(took_ns, packets);
        // If the budget was used up, the rest of the weight may be waiting.
        let whole_ns = if packets >= budget { packet_ns.saturating_mul(u64::from(weight)) } else { took_ns };
        let expected_ns = self.expected_ns.load(Relaxed);
        let faded_ns = if expected_ns == UNKNOWN_NS { 0 } else { expected_ns - expected_ns.div_ceil(FADES_BY) };
        self.expected_ns.store(at_most_longest(whole_ns).max(faded_ns), Relaxed);
    }

    /// Notes a visit that sent `frames` in `took_ns`.
    pub(crate) fn sent(&self, took_ns: u64, frames: u32) {
        let _ = self.note(took_ns, frames);
        self.expected_ns.store(at_most_longest(took_ns), Relaxed);
    }

    fn note(&self, took_ns: u64, packets: u32) -> u64 {
        if packets == 0 {
            return 0;
        }
        let packet_ns = took_ns.div_ceil(u64::from(packets)).max(1);
        self.packet_ns.store(u16::try_from(packet_ns).unwrap_or(UNKNOWN_NS), Relaxed);
        packet_ns
    }

    /// How long the next visit may take.
    pub(crate) fn expected_ns(&self) -> u64 {
        u64::from(self.expected_ns.load(Relaxed))
    }

    /// How many packets are expected to fit into this time, at least one.
    pub(crate) fn fit(&self, time_ns: u64, weight: u32) -> u32 {
        let packets = time_ns / u64::from(self.packet_ns.load(Relaxed));
        u32::try_from(packets).unwrap_or(u32::MAX).clamp(1, weight)
    }
}

fn at_most_longest(took_ns: u64) -> u16 {
    u16::try_from(took_ns).unwrap_or(LONGEST_NS).min(LONGEST_NS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn of_a_new_member_a_long_visit_is_expected_and_one_packet_fits() {
        let visits = Visits::new();
        assert!(visits.expected_ns() >= DOORBELL_AGE_NS);
        assert_eq!(visits.fit(DOORBELL_AGE_NS, 64), 1);
        visits.polled(200, 0, 64, 64);
        assert_eq!(
            (visits.expected_ns(), visits.fit(DOORBELL_AGE_NS, 64)),
            (200, 1),
            "of its packets still nothing is known"
        );
        visits.polled(700, 2, 64, 64);
        assert_eq!((visits.expected_ns(), visits.fit(DOORBELL_AGE_NS, 64)), (700, 14));
        visits.forget();
        assert!(visits.expected_ns() >= DOORBELL_AGE_NS);
        assert_eq!(visits.fit(DOORBELL_AGE_NS, 64), 1);
    }

    #[test]
    fn the_longest_poll_is_expected_again_and_fades_when_shorter_ones_follow() {
        let visits = Visits::new();
        visits.polled(300, 1, 64, 64);
        visits.polled(2_000, 9, 64, 64);
        assert_eq!(visits.expected_ns(), 2_000);
        (0..10).for_each(|_| visits.polled(300, 1, 64, 64));
        assert!((1_900..2_000).contains(&visits.expected_ns()), "{}", visits.expected_ns());
        (0..3_000).for_each(|_| visits.polled(300, 1, 64, 64));
        assert_eq!(visits.expected_ns(), 300);
        // A visit that lost its core in between is remembered as no longer than a doorbell may wait.
        visits.polled(4_000_000, 1, 64, 64);
        assert_eq!((visits.expected_ns(), visits.fit(DOORBELL_AGE_NS, 64)), (DOORBELL_AGE_NS, 1));
        visits.polled(300, 1, 64, 64);
        assert_eq!(visits.fit(DOORBELL_AGE_NS, 64), 16);
    }

    #[test]
    fn a_poll_that_used_up_its_budget_may_have_more_waiting() {
        let visits = Visits::new();
        visits.polled(300, 3, 64, 64);
        visits.polled(400, 4, 4, 64);
        assert_eq!(visits.expected_ns(), DOORBELL_AGE_NS, "64 packets of 100 ns");
        (0..5_000).for_each(|_| visits.polled(100, 1, 1, 1));
        assert_eq!(visits.expected_ns(), 100, "a weight of 1 has no more");
    }

    #[test]
    fn of_a_transmit_queue_the_last_visit_is_expected_and_its_frames_fit_as_often_as_they_do() {
        let visits = Visits::new();
        visits.sent(3_000, 20);
        visits.sent(600, 3);
        assert_eq!((visits.expected_ns(), visits.fit(2_000, 64)), (600, 10));
        visits.sent(150, 0);
        assert_eq!((visits.expected_ns(), visits.fit(2_000, 64)), (150, 10));
    }
}
