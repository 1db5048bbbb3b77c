//! One pass: which member is visited next.

use std::sync::atomic::Ordering::Relaxed;

use super::transmit::wants_to_send;
use super::{GroupPoller, GroupStep, Held, STEAL_AFTER_NS, Suspect, View, Visit};
use crate::event::{Cx, EventKind};
use crate::group::claim::Look;
use crate::group::{Group, STALLED_NS};
use crate::owner::Owner;
use crate::sync::Ordering;

/// Which of the `awake` pollers a member is at home with (rendezvous hashing).
fn home(slot: u16, awake: u32, cpu: impl Fn(u8) -> u16) -> Option<u8> {
    let weight = |poller: u8| {
        // SplitMix64's finaliser over the pair.
        let mut x = (u64::from(slot) << 32 | u64::from(cpu(poller))).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    (0..32).filter(|poller| awake & (1 << poller) != 0).max_by_key(|poller| weight(*poller))
}

impl GroupPoller {
    /// Works out anew which members are at home here.
    #[cold]
    pub(super) fn settle_in(&mut self, group: &Group, view: View, cx: &Cx<'_>) {
        self.homes.clear();
        self.others.clear();
        for member in group.members() {
            let home =
                home(member.slot, view.awake, |poller| group.pollers[usize::from(poller)].cpu.load(Relaxed) as u16);
            if home == Some(self.slot) { &mut self.homes } else { &mut self.others }.push(member.slot);
        }
        self.view = Some(view);
        self.at = 0;
        self.suspect = None;
        // Members that moved here may have waited longer than a pass.
        self.previous_pass_ns = cx.now_ns;
    }

    #[inline]
    pub(super) fn next_home(
        &mut self,
        group: &Group,
        hint: &impl Fn(u16, u32) -> Option<bool>,
        cx: &Cx<'_>,
    ) -> Option<GroupStep> {
        while let Some(&slot) = self.homes.get(self.at) {
            let member = &group.members[usize::from(slot)];
            let ready = match member.claim.look() {
                Look::Poked => true,
                Look::Free => {
                    let hint = hint(slot, member.napi.load(Ordering::Relaxed));
                    if member.transmit.load(Relaxed) { wants_to_send(member, hint, cx) } else { hint != Some(false) }
                }
                Look::Held(_) | Look::None => false,
            };
            if ready && let Some(ring) = self.doorbell_before(group, member, cx) {
                return Some(GroupStep::Doorbell(ring));
            }
            self.at += 1;
            if ready && let Some(visit) = self.claim(group, slot, self.previous_pass_ns, cx) {
                return Some(self.serve(group, visit));
            }
        }
        None
    }

    /// Takes the claim of a member. `looked_ns` is when this poller last looked at it.
    fn claim(&mut self, group: &Group, slot: u16, looked_ns: u64, cx: &Cx<'_>) -> Option<Visit> {
        let member = &group.members[usize::from(slot)];
        if !member.claim.take(Group::claimant(self.slot)) {
            return None;
        }
        let napi = member.napi.load(Ordering::Relaxed);
        let budget = self.fit(member, cx);
        let mask = member.armed.load(Ordering::Relaxed);
        if mask {
            member.armed.store(false, Ordering::Relaxed);
        }
        let waits_since_ns = looked_ns.max(member.served_ns.load(Relaxed));
        group.governor.visited(waits_since_ns, cx.now_ns);
        let place = &group.pollers[usize::from(self.slot)];
        place.serves.store(napi, Relaxed);
        place.serves_since_ns.store(cx.now_ns.max(1), Relaxed);
        let stray = !self.homes.contains(&slot);
        cx.emit(napi, EventKind::GroupClaim { stray });
        cx.emit(napi, EventKind::PollBegin { budget });
        self.held = Some(Held { slot, owner: Owner::new(napi), budget, since_ns: cx.now_ns });
        Some(Visit { member: slot, napi, budget, mask })
    }

    /// Looks at the members that are at home with others, and visits the one that was served longest ago, if it has
    /// waited ever since the last look and that is long ago. Members that another poller has had for too long are
    /// reported.
    pub(super) fn stray(
        &mut self,
        group: &Group,
        hint: &impl Fn(u16, u32) -> Option<bool>,
        cx: &Cx<'_>,
    ) -> Option<GroupStep> {
        let mut waits: Option<Suspect> = None;
        for index in 0..self.others.len() {
            let slot = self.others[index];
            let member = &group.members[usize::from(slot)];
            let napi = member.napi.load(Ordering::Relaxed);
            let ready = match member.claim.look() {
                Look::Poked => true,
                Look::Free if member.transmit.load(Relaxed) => wants_to_send(member, hint(slot, napi), cx),
                Look::Free => hint(slot, napi) == Some(true),
                Look::Held(poller) => {
                    self.look_for_stall(group, poller, cx);
                    false
                }
                Look::None => false,
            };
            let served_ns = member.served_ns.load(Relaxed);
            if ready && waits.is_none_or(|waits| served_ns < waits.served_ns) {
                waits = Some(Suspect { slot, seen_ns: cx.now_ns, served_ns });
            }
        }
        let same = |before: &Suspect, now: &Suspect| (before.slot, before.served_ns) == (now.slot, now.served_ns);
        if let (Some(before), Some(now)) = (self.suspect, waits)
            && same(&before, &now)
        {
            if cx.now_ns.saturating_sub(before.seen_ns) < STEAL_AFTER_NS {
                return None;
            }
            if let Some(ring) = self.doorbell_before(group, &group.members[usize::from(now.slot)], cx) {
                return Some(GroupStep::Doorbell(ring));
            }
            self.suspect = None;
            let visit = self.claim(group, now.slot, before.seen_ns, cx)?;
            self.count(group, |counters| &counters.strays);
            return Some(self.serve(group, visit));
        }
        self.suspect = waits;
        None
    }

    fn look_for_stall(&mut self, group: &Group, poller: u8, cx: &Cx<'_>) {
        let place = &group.pollers[usize::from(poller)];
        let since_ns = place.serves_since_ns.load(Relaxed);
        let age_ns = cx.now_ns.saturating_sub(since_ns);
        if since_ns != 0 && age_ns > STALLED_NS && self.stall != (poller, since_ns) {
            self.stall = (poller, since_ns);
            self.count(group, |counters| &counters.stalls_seen);
            cx.emit(place.serves.load(Relaxed), EventKind::GroupStalled { age_ns });
        }
    }
}
