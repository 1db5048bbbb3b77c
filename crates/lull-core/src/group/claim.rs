//! The claim of a member: which poller serves it now, if any.
//!
//! ```text
//! ABSENT ──fill──▶ FREE ──take──▶ CLAIMED ──release──▶ FREE            polled by one poller at a time (I9)
//!                   │                │ leave (operator): LEAVING
//!                   │ leave          ▼
//!                   └─────────▶ CLAIMED by whoever leaves ──empty──▶ ABSENT
//! ```
//!
//! The [`Owner`](crate::Owner) of the member's instance travels in the claim, as that of a NAPI thread does in the
//! state word. LEAVING is only ever set beside a holder: an operator who finds the claim free takes it himself, and one
//! who finds it held leaves the rest to the holder, whose release is refused. POKED says that the member is to be
//! visited whatever its device's hint says: its interrupt was raised.
//!
//! Taking acquires and releasing releases: what only the holder touches is ordered by this word. A poke releases, as a
//! schedule that leaves MISSED does.

use crate::sync::{AtomicU32, Ordering};

const HOLDER: u32 = 0xff;
const LEAVING: u32 = 1 << 8;
const POKED: u32 = 1 << 9;
const ABSENT: u32 = 1 << 10;

/// Who can hold a claim: a poller by its slot, or the operator who removes the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimant(u32);

impl Claimant {
    pub(crate) const OPERATOR: Claimant = Claimant(HOLDER);

    pub(crate) fn poller(slot: u8) -> Claimant {
        debug_assert!(u32::from(slot) < HOLDER - 1);
        Claimant(u32::from(slot) + 1)
    }
}

/// What a look at a claim finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nobody serves the member.
    Free,
    /// The same, and it is to be visited whatever the hint says.
    Poked,
    /// This poller serves it.
    Held(u8),
    /// An operator is taking the member out, or there is no member here.
    None,
}

/// Outcome of giving a claim back.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The member is free for the next.
    Free,
    /// It leaves the group: the caller keeps the claim, and owes the leave.
    Leave,
}

/// Outcome of an operator's wish that a member leaves.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The claim was free and is the operator's: he owes the leave.
    Mine,
    /// Its holder lets it go.
    Holders,
    /// It is not a member.
    Absent,
}

#[derive(Debug)]
pub(crate) struct Claim(AtomicU32);

impl Claim {
    pub(crate) fn new() -> Claim {
        Claim(AtomicU32::new(ABSENT))
    }

    /// A hint.
    #[inline]
    pub(crate) fn look(&self) -> Look {
        match self.0.load(Ordering::Relaxed) {
            0 => Look::Free,
            POKED => Look::Poked,
            word if word & ABSENT != 0 || word & HOLDER == HOLDER => Look::None,
            word => Look::Held(((word & HOLDER) - 1) as u8),
        }
    }

    /// Whether the member is to be visited whatever the hint says. This counts also while somebody has the claim: a
    /// poller that has given up its awake bit still rings the doorbells that it held back.
    pub(crate) fn is_poked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (POKED | ABSENT) == POKED
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.0.load(Ordering::Acquire) & ABSENT != 0
    }

    /// Somebody became a member; the first visit does not wait for a hint.
    pub(crate) fn fill(&self) {
        // This is a swap, because a poke for the former member may come at this moment.
        self.0.swap(POKED, Ordering::AcqRel);
    }

    /// The holder, who owed the leave, is done with the member.
    pub(crate) fn empty(&self) {
        self.0.swap(ABSENT, Ordering::AcqRel);
    }

    /// Takes a free claim, with its poke: the caller polls now what it was poked for.
    #[inline]
    pub(crate) fn take(&self, me: Claimant) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & !POKED == 0 && self.0.compare_exchange(now, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes a free claim for something else than a visit, and leaves the poke for the next visit. Fails only if
    /// somebody has the claim, or there is no member.
    pub(crate) fn take_between(&self, me: Claimant) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & !POKED == 0 {
            match self.0.compare_exchange_weak(now, now | me.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Gives the claim back, unless the member leaves.
    #[inline]
    pub(crate) fn release(&self, me: Claimant) -> Released {
        let mut now = me.0;
        loop {
            assert!(now & HOLDER == me.0, "I9: a claim was given back by somebody who does not hold it");
            if now & LEAVING != 0 {
                return Released::Leave;
            }
            match self.0.compare_exchange_weak(now, now & POKED, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Released::Free,
                Err(seen) => now = seen,
            }
        }
    }

    /// The member is to be visited, whatever its device's hint says.
    pub(crate) fn poke(&self) {
        self.0.fetch_or(POKED, Ordering::Release);
    }

    /// The operator takes the member out.
    pub(crate) fn leave(&self) -> Leaving {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & ABSENT != 0 {
                return Leaving::Absent;
            }
            let (next, outcome) = match now & HOLDER {
                0 => (Claimant::OPERATOR.0 | LEAVING, Leaving::Mine),
                _ => (now | LEAVING, Leaving::Holders),
            };
            match self.0.compare_exchange_weak(now, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(seen) => now = seen,
            }
        }
    }
}
