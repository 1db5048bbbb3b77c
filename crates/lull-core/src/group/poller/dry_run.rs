//! Dry runs (§15): a poller that has had no packet for a while walks a member's receive path without one, so that the first
//! packet after the pause finds what it touches in the core's caches. The walk changes nothing that can be seen.

use std::sync::atomic::Ordering::Relaxed;

use super::{GroupPoller, Held};
use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::Group;
use crate::group::claim::Look;
use crate::napi::Napi;
use crate::owner::Owner;
use crate::sync::Ordering;

/// A packet that comes within this many nanoseconds of the one before finds the path in the caches as that one left it.
pub const DRY_RUN_AFTER_NS: u64 = 20_000;
/// Nanoseconds between two walks of one poller: each takes a few hundred.
pub const DRY_RUN_EVERY_NS: u64 = 50_000;

/// A member whose path is to be walked; the poller holds its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The member's place in the group.
    pub member: u16,
    /// The index of its instance.
    pub napi: u32,
}

impl GroupPoller {
    /// When the next walk is due, if nothing comes.
    #[inline]
    pub(super) fn dry_run_due_ns(&self) -> u64 {
        let rested_ns = self.idle_since_ns.saturating_add(DRY_RUN_AFTER_NS);
        rested_ns.max(self.dry_ran_ns.saturating_add(DRY_RUN_EVERY_NS))
    }

    /// Returns the member at home whose turn it is, with its claim taken. Members that transmit, that somebody has, or
    /// that are to be visited are left out.
    #[inline]
    pub(super) fn dry_run(&mut self, group: &Group, cx: &Cx<'_>) -> Option<Walk> {
        if !group.config.dry_run || self.homes.is_empty() || cx.now_ns < self.dry_run_due_ns() {
            return None;
        }
        self.dry_ran_ns = cx.now_ns;
        self.dry_run_at = (self.dry_run_at + 1) % self.homes.len();
        let slot = self.homes[self.dry_run_at];
        let member = &group.members[usize::from(slot)];
        // Whoever comes to ring the doorbell of a transmit queue and finds its claim taken leaves the doorbell to the holder.
        if member.transmit.load(Relaxed) || member.claim.look() != Look::Free {
            return None;
        }
        if !member.claim.take_between(Group::claimant(self.slot)) {
            return None;
        }
        let napi = member.napi.load(Ordering::Relaxed);
        self.held = Some(Held { slot, owner: Owner::new(napi), budget: 0, since_ns: cx.now_ns });
        cx.emit(napi, EventKind::DryRun);
        Some(Walk { member: slot, napi })
    }

    /// The walk is over. If the member leaves the group, it comes back, as after a visit.
    pub fn dry_ran(&mut self, group: &Group, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        napi.assert_owner(&held.owner);
        self.count(group, |counters| &counters.dry_runs);
        self.give_back(group, held, napi, cx)
    }
}
