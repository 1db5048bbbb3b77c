//! Faults of a simulated machine: late timers, slow polls and completions, an application that stalls, a link that is
//! down. The published worlds have none.

use crate::engine::rng::{Component, Stream};

/// How often faults occur and how large they are. Shares are in 1/1024; times are in nanoseconds, drawn uniformly up to
/// the maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// How late the timer of a NAPI interrupts at the most.
    pub timer_late_max_ns: u32,
    /// The share of polls that are slow.
    pub slow_poll_share: u32,
    /// How much longer they take at most.
    pub slow_poll_max_ns: u32,
    /// How long a poll goes on at the most after its last look at the ring. It does not see what arrives then.
    pub tail_max_ns: u32,
    /// The share of completions that are held up between the release and settling (which starts a timer or raises an
    /// interrupt).
    pub settle_late_share: u32,
    /// How long they are held up at the most.
    pub settle_late_max_ns: u32,
    /// The share of requests at which the application stalls.
    pub stall_share: u32,
    /// How long it stalls at the most.
    pub stall_max_ns: u32,
    /// How long an application works between two calls that found nothing.
    pub between_calls_ns: u32,
}

/// The faults of a run.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) spec: FaultSpec,
    rng: Stream,
    /// Whether packets of the wire reach the NIC.
    pub(crate) link_down: bool,
    /// Whether no new request is issued, so that the run comes to its end.
    pub(crate) quiet: bool,
    /// The next request takes this much longer.
    pub(crate) next_stall_ns: u64,
}

impl Faults {
    pub(crate) fn new(spec: &FaultSpec, seed: u64) -> Faults {
        Faults {
            spec: spec.clone(),
            rng: Stream::new(seed, Component::Faults, 0),
            link_down: false,
            quiet: false,
            next_stall_ns: 0,
        }
    }

    #[inline]
    fn up_to(&mut self, max_ns: u32) -> u64 {
        if max_ns == 0 { 0 } else { u64::from(self.rng.below(max_ns)) }
    }

    #[inline]
    fn rarely_up_to(&mut self, share: u32, max_ns: u32) -> u64 {
        if share == 0 || self.rng.below(1_024) >= share { 0 } else { self.up_to(max_ns) }
    }

    #[inline]
    pub(crate) fn timer_late_ns(&mut self) -> u64 {
        self.up_to(self.spec.timer_late_max_ns)
    }

    #[inline]
    pub(crate) fn slow_poll_ns(&mut self) -> u64 {
        self.rarely_up_to(self.spec.slow_poll_share, self.spec.slow_poll_max_ns)
    }

    #[inline]
    pub(crate) fn tail_ns(&mut self) -> u64 {
        self.up_to(self.spec.tail_max_ns)
    }

    #[inline]
    pub(crate) fn settle_late_ns(&mut self) -> u64 {
        self.rarely_up_to(self.spec.settle_late_share, self.spec.settle_late_max_ns)
    }

    #[inline]
    pub(crate) fn stall_ns(&mut self) -> u64 {
        let asked_ns = std::mem::take(&mut self.next_stall_ns);
        if self.quiet { 0 } else { asked_ns + self.rarely_up_to(self.spec.stall_share, self.spec.stall_max_ns) }
    }
}
