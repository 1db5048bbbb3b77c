//! I15, in time: no visit delays a doorbell that a poller holds back, if the visit takes no longer than the former ones
//! suggest.

use lull_core::tx::doorbell::DOORBELL_AGE_NS;

/// What is known of the visits of one member.
#[derive(Debug, Default)]
pub(super) struct Visits {
    begun: Option<Begun>,
    /// How long the last one took.
    took_ns: Option<u64>,
    /// How long a packet took in the last visit that had any.
    packet_ns: Option<u64>,
    /// Since when frames without a doorbell may have been on the ring of this transmit queue.
    pub(super) unrung_since_ns: Option<u64>,
}

/// A visit that is in progress.
#[derive(Debug)]
struct Begun {
    at_ns: u64,
    packets: u32,
    /// Since when frames have waited for the doorbells for which its poller is responsible, and for that of the queue
    /// itself.
    others_since_ns: Option<u64>,
    own_since_ns: Option<u64>,
}

impl Visits {
    /// A poller begins a visit. `held_since_ns` is since when frames have waited for a doorbell for which it is
    /// responsible.
    pub(super) fn begins(&mut self, at_ns: u64, held_since_ns: Option<u64>, transmits: bool) {
        let own_since_ns = transmits.then(|| self.unrung_since_ns.unwrap_or(at_ns));
        self.begun = Some(Begun { at_ns, packets: 0, others_since_ns: held_since_ns, own_since_ns });
    }

    pub(super) fn polled(&mut self, packets: u32) {
        if let Some(begun) = &mut self.begun {
            begun.packets = packets;
        }
    }

    /// The member is free again, with `unrung` frames without a doorbell. Says which doorbell came too late.
    pub(super) fn ends(&mut self, at_ns: u64, unrung: u32) -> Result<(), String> {
        let Some(Begun { at_ns: began_ns, packets, others_since_ns, own_since_ns }) = self.begun.take() else {
            self.unrung_since_ns = None;
            return Ok(());
        };
        self.unrung_since_ns = if unrung == 0 { None } else { Some(self.unrung_since_ns.unwrap_or(began_ns)) };
        let took_ns = at_ns - began_ns;
        // One packet has to fit in any case.
        let by_packets = self.packet_ns.filter(|_| packets >= 2).map(|packet_ns| packet_ns * u64::from(packets));
        let expected_ns = self.took_ns.max(by_packets);
        self.took_ns = Some(took_ns);
        if packets != 0 {
            self.packet_ns = Some(took_ns.div_ceil(u64::from(packets)));
        }
        for (since_ns, expected_ns) in [(others_since_ns, expected_ns), (own_since_ns, by_packets)] {
            let (Some(since_ns), Some(expected_ns)) = (since_ns, expected_ns) else { continue };
            if at_ns > since_ns + DOORBELL_AGE_NS && took_ns <= expected_ns {
                return Err(format!(
                    "is visited for {took_ns} ns, {expected_ns} could be expected, while frames wait for a doorbell since {} ns",
                    at_ns - since_ns
                ));
            }
        }
        Ok(())
    }
}
