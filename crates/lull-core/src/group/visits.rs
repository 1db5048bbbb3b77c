//! What visits of a member take. By this a poller that holds doorbells back knows whether one would become late meanwhile, and
//! how many packets fit before that (§16): it looks at the clock between visits only.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::tx::doorbell::DOORBELL_AGE_NS;

/// The longest poll fades by one part in so many with each that is shorter: it is remembered for a millisecond or so.
const FADES_BY: u16 = 1_024;
/// No doorbell waits for longer, and so nothing is gained by knowing of a visit that takes longer.
const LONGEST_NS: u16 = DOORBELL_AGE_NS as u16;
/// What is not known yet takes longer than that.
const UNKNOWN_NS: u16 = u16::MAX;

/// Written by the holder of the member's claim; for others a hint. Two bytes each, so that a member is one cache line.
#[derive(Debug)]
pub(crate) struct Visits {
    /// What the next visit may take, [`LONGEST_NS`] at the most where it is known. Of a member that receives: the longest of late, because a device may
    /// do more in a poll than its packets tell. Of a transmit queue: the last, because its frames are all that there is.
    expected_ns: AtomicU16,
    /// What a packet of the last visit took that had any, with its share of what the visit took besides.
    packet_ns: AtomicU16,
}

impl Visits {
    pub(crate) fn new() -> Visits {
        let visits = Visits { expected_ns: AtomicU16::new(0), packet_ns: AtomicU16::new(0) };
        visits.forget();
        visits
    }

    /// Another member has this place: of its visits nothing is known.
    pub(crate) fn forget(&self) {
        self.expected_ns.store(UNKNOWN_NS, Relaxed);
        self.packet_ns.store(UNKNOWN_NS, Relaxed);
    }

    /// A poll that might have taken `budget` of `weight` packets took so many, and so long.
    pub(crate) fn polled(&self, took_ns: u64, packets: u32, budget: u32, weight: u32) {
        let packet_ns = self.note(took_ns, packets);
        // Where the budget was used up, the rest of the weight may be waiting.
        let whole_ns = if packets >= budget { packet_ns.saturating_mul(u64::from(weight)) } else { took_ns };
        let expected_ns = self.expected_ns.load(Relaxed);
        let faded_ns = if expected_ns == UNKNOWN_NS { 0 } else { expected_ns - expected_ns.div_ceil(FADES_BY) };
        self.expected_ns.store(at_most_longest(whole_ns).max(faded_ns), Relaxed);
    }

    /// A visit that sends took so many frames, and so long.
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

    /// What the next visit may take.
    pub(crate) fn expected_ns(&self) -> u64 {
        u64::from(self.expected_ns.load(Relaxed))
    }

    /// Packets that are expected to fit into this time, one at least.
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
        // Of one that lost its core in between no more is remembered than a doorbell may wait.
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
