//! What can be seen of a group from outside: its members, its pollers, and what its invariants say of them.

use std::sync::atomic::Ordering::Relaxed;

use super::watch::GROUP_POLLERS_MAX;
use super::{Group, GroupMember, PollerInfo};
use crate::sync::Ordering;

impl Group {
    /// A number that changes with each member that comes or goes.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Its members now.
    pub fn members(&self) -> impl Iterator<Item = GroupMember> {
        self.members
            .iter()
            .enumerate()
            .filter(|(_, member)| !member.claim.is_absent())
            .map(|(slot, member)| GroupMember { slot: slot as u16, napi: member.napi.load(Ordering::Relaxed) })
    }

    /// Its pollers now.
    pub fn pollers(&self) -> Vec<PollerInfo> {
        let seen = self.watch.look();
        let attached = (0..GROUP_POLLERS_MAX as u8).filter(|slot| seen.is_attached(*slot));
        let info = |slot: u8| {
            let place = &self.pollers[usize::from(slot)];
            let since_ns = place.serves_since_ns.load(Relaxed);
            PollerInfo {
                cpu: self.cpu(slot),
                awake: seen.is_awake(slot),
                resting: seen.is_resting() && seen.is_awake(slot),
                stats: place.counters.snapshot(),
                serves: (since_ns != 0).then(|| (place.serves.load(Relaxed), since_ns)),
            }
        };
        attached.map(info).collect()
    }

    /// Frames of a member that are on its ring, and that its doorbell has not rung for. For checking I14 and I15.
    pub fn unrung(&self, slot: u16) -> u32 {
        self.members[usize::from(slot)].unrung_frames.load(Relaxed)
    }

    /// Whether nobody of this group burns cycles: no poller is awake, or the last one rests.
    pub fn is_quiet(&self) -> bool {
        let seen = self.watch.look();
        seen.awake() == 0 || seen.is_resting()
    }

    /// Whether the poller of this CPU is awake, resting included.
    pub fn is_awake(&self, cpu: u16) -> bool {
        self.slot_of(cpu).is_some_and(|slot| self.watch.look().is_awake(slot))
    }

    /// For checking I12: what homes depend on, namely the generation of the members, and a bit for each poller that is
    /// awake. A poller that was detached goes on until it has drained.
    pub fn homes_hang_on(&self) -> (u32, u32) {
        (self.generation(), self.watch.look().awake())
    }

    /// For checking I16: whether other pollers are awake beside the one of this CPU, but none of them ended a pass
    /// within the last window. This one goes on then, whatever the budget.
    pub fn watches_alone(&self, cpu: u16, now_ns: u64) -> bool {
        let Some(slot) = self.slot_of(cpu) else { return false };
        let others = self.watch.look().awake() & !(1 << slot);
        others != 0 && self.running(others, now_ns) == 0
    }

    /// For checking I11 and I13: members, CPUs attached and awake, and whether the last one rests.
    pub fn census(&self) -> Census {
        let seen = self.watch.look();
        Census {
            members: seen.members(),
            attached: seen.attached().count_ones(),
            awake: seen.awake().count_ones(),
            resting: seen.is_resting(),
        }
    }
}

/// Who is in a group, and who of its pollers is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Members.
    pub members: u32,
    /// CPUs that are attached.
    pub attached: u32,
    /// Pollers that are awake, one that rests included.
    pub awake: u32,
    /// Whether the last one that is awake rests.
    pub resting: bool,
}

impl Census {
    /// Checks I11 and I13, for a moment at which every [`super::GroupStep`] was answered.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.members != 0 && self.awake == 0 {
            return Err("I11: members that nobody watches");
        }
        if self.resting && self.awake != 1 {
            return Err("I13: a poller rests that is not the only one awake");
        }
        Ok(())
    }
}
