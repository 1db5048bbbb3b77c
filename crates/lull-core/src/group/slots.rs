//! The places of a group's members and pollers, with what is counted there.

use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};

use super::claim::Claim;
use super::visits::Visits;
use crate::sync::{AtomicBool, AtomicU32};

macro_rules! poller_stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a poller did since it was attached.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
        pub struct PollerStats { $($(#[$doc])* pub $name: u64),* }

        /// The same figures while they change; only the poller writes them.
        #[derive(Debug, Default)]
        pub(crate) struct PollerCounters { $(pub(crate) $name: PlainU64),* }

        impl PollerCounters {
            pub(super) fn snapshot(&self) -> PollerStats {
                PollerStats { $($name: self.$name.load(Relaxed)),* }
            }

            pub(super) fn clear(&self) {
                $(self.$name.store(0, Relaxed);)*
            }
        }
    };
}

poller_stats! {
    /// Visits that polled.
    polls,
    /// Those of them to members that are at home elsewhere.
    strays,
    /// Visits that found a shard's lock held.
    locked,
    /// Passes over its members.
    passes,
    /// Nanoseconds of passes that found packets.
    busy_ns,
    /// Nanoseconds of passes that found none.
    empty_ns,
    /// Times that it woke another poller.
    wakes,
    /// Times that it parked.
    parks,
    /// Times that it rested.
    rests,
    /// Times that it let other threads of its core run.
    yields,
    /// Times that it slept because the budget was spent.
    sleeps,
    /// Times that it saw another poller hold a member for too long.
    stalls_seen,
    /// Visits of transmit queues.
    transmits,
    /// Frames that they sent.
    tx_frames,
    /// Doorbells that it rang.
    doorbells,
    /// Walks of a receive path without a packet.
    dry_runs,
}

/// One poller's place in the group, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PollerSlot {
    pub(super) cpu: PlainU32,
    /// When it last ended a pass: whether it runs.
    pub(super) passed_ns: PlainU64,
    /// When it was last woken or parked, so that it is not at once parked or woken again.
    pub(super) changed_ns: PlainU64,
    /// Since when it serves a member, and which one (0 is none), for those who look for stalls.
    pub(super) serves_since_ns: PlainU64,
    pub(super) serves: PlainU32,
    pub(super) counters: PollerCounters,
}

/// One member.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MemberSlot {
    pub(crate) claim: Claim,
    /// The index of its instance. The claim's holder may rely on it; for all others it is a hint.
    pub(super) napi: AtomicU32,
    pub(super) weight: PlainU32,
    /// A rest has unmasked its interrupt; its next visit masks it.
    pub(super) armed: AtomicBool,
    /// When it was last polled; a hint.
    pub(super) served_ns: PlainU64,
    /// How many packets were taken by visits in a row that each left some behind. Only the claim's holder uses this.
    pub(super) full_packets: PlainU32,
    /// What its visits take.
    pub(crate) visits: Visits,
    /// It is a transmit queue (§16).
    pub(super) transmit: PlainBool,
    /// Its ring had no room for what waits. The claim's holder may rely on this and the fields below; for all others
    /// they are hints.
    pub(super) blocked: PlainBool,
    /// When the frames that its discipline holds back may be sent, or [`NEVER_NS`].
    pub(super) due_ns: PlainU64,
    /// Frames on its ring for which its doorbell has not rung, and their bytes.
    pub(super) unrung_frames: PlainU32,
    pub(super) unrung_bytes: PlainU32,
    /// When the first of that was sent.
    pub(super) unrung_since_ns: PlainU64,
    /// When frames were sent last, and whether that was soon after the time before.
    pub(super) sent_ns: PlainU64,
    pub(super) is_busy: PlainBool,
}

impl MemberSlot {
    /// Notes a visit that took `packets` of the `budget` that it might have taken, and left some behind if it is
    /// `full`. Returns how many visits in a row have filled the weight; one that ended early for a doorbell counts for
    /// the part that it took.
    #[inline]
    pub(super) fn filled(&self, full: bool, budget: u32, packets: u32) -> u32 {
        if !full {
            self.full_packets.store(0, Relaxed);
            return 0;
        }
        let weight = self.weight.load(Relaxed);
        let took = if budget < weight { packets } else { weight };
        let packets = self.full_packets.load(Relaxed).saturating_add(took);
        self.full_packets.store(packets, Relaxed);
        packets / weight
    }
}

// To look at a member that has nothing takes one cache line.
#[cfg(not(loom))]
const _: () = assert!(size_of::<MemberSlot>() == 64);

/// No deadline.
pub(super) const NEVER_NS: u64 = u64::MAX;
