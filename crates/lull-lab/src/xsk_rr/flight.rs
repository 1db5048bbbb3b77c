//! The outstanding requests: when each was sent, and when it should have been sent.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of requests that can be stored.
pub(super) const SLOTS: usize = 1 << 16;

#[derive(Default)]
struct Slot {
    /// The request's number, or 0 when it was answered.
    number: AtomicU64,
    intended_ns: AtomicU64,
    sent_ns: AtomicU64,
}

/// The time at which a request should have been sent, and the time at which it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) intended_ns: u64,
    pub(super) sent_ns: u64,
}

/// See the [module](self). The sender writes, and the receiver takes.
pub(super) struct Flight(Box<[Slot]>);

impl Flight {
    pub(super) fn new() -> Flight {
        Flight((0..SLOTS).map(|_| Slot::default()).collect())
    }

    /// Stores request `number`, which counts from 1. An older request in the same slot is overwritten, and counts as
    /// lost.
    pub(super) fn begin(&self, number: u64, sent: Sent) {
        let slot = &self.0[number as usize % SLOTS];
        // A reader that sees one of the new times finds that the old number is gone.
        slot.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.intended_ns.store(sent.intended_ns, Ordering::Relaxed);
        slot.sent_ns.store(sent.sent_ns, Ordering::Relaxed);
        slot.number.store(number, Ordering::Release);
    }

    /// Returns the number of stored requests up to number `last` for which `of` is true. It must not be called while
    /// others send or take.
    pub(super) fn count(&self, last: u64, of: impl Fn(Sent) -> bool) -> u64 {
        let is_under_way = |slot: &&Slot| {
            let sent = Sent {
                intended_ns: slot.intended_ns.load(Ordering::Relaxed),
                sent_ns: slot.sent_ns.load(Ordering::Relaxed),
            };
            (1..=last).contains(&slot.number.load(Ordering::Acquire)) && of(sent)
        };
        self.0.iter().filter(is_under_way).count() as u64
    }

    /// Returns the request that an answer belongs to, or `None` for a second answer or a number that was never sent.
    pub(super) fn end(&self, number: u64) -> Option<Sent> {
        let slot = &self.0[number as usize % SLOTS];
        if number == 0 || slot.number.load(Ordering::Acquire) != number {
            return None;
        }
        let sent = Sent {
            intended_ns: slot.intended_ns.load(Ordering::Relaxed),
            sent_ns: slot.sent_ns.load(Ordering::Relaxed),
        };
        // The sender may have given the slot to another request meanwhile; then the two times do not belong together.
        fence(Ordering::Acquire);
        let taken = slot.number.compare_exchange(number, 0, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_and_only_to_what_was_sent() {
        let flight = Flight::new();
        let sent = |ns| Sent { intended_ns: ns, sent_ns: ns + 1 };
        assert_eq!(flight.end(0), None);
        assert_eq!(flight.end(1), None);
        flight.begin(1, sent(10));
        flight.begin(2, sent(20));
        assert_eq!(flight.end(2), Some(sent(20)));
        assert_eq!(flight.end(2), None);
        flight.begin(1 + SLOTS as u64, sent(30));
        assert_eq!(flight.end(1), None, "its place was taken");
        assert_eq!(flight.end(1 + SLOTS as u64), Some(sent(30)));
    }
}
