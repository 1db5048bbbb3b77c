//! Visits of transmit queues, and the doorbells that they hold back (§16).

use std::sync::atomic::Ordering::Relaxed;

use super::{GroupPoller, GroupStep, Held, Ring, Transmitted};
use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::Group;
use crate::group::slots::{MemberSlot, NEVER_NS};
use crate::napi::Napi;
use crate::owner::Owner;
use crate::sync::Ordering;
use crate::tx::TxLeft;
use crate::tx::doorbell::{DOORBELL_AGE_NS, Unrung};

/// Whether a transmit queue that was not poked is to be visited. Without a hint it is asked only while its ring is full: senders
/// poke it.
#[inline]
pub(super) fn wants_to_send(member: &MemberSlot, hint: Option<bool>, cx: &Cx<'_>) -> bool {
    let room = member.blocked.load(Relaxed) && hint != Some(false);
    room || hint == Some(true) || member.due_ns.load(Relaxed) <= cx.now_ns
}

impl GroupPoller {
    /// A poller that is about to stop looking rings first: nobody else knows what it held back, and softirqs may take
    /// milliseconds.
    #[cold]
    pub(super) fn ring_before(&mut self, group: &Group, step: GroupStep, cx: &Cx<'_>) -> GroupStep {
        let stops = matches!(
            step,
            GroupStep::Park
                | GroupStep::Rest { .. }
                | GroupStep::Sleep { .. }
                | GroupStep::Softirqs
                | GroupStep::Yield
                | GroupStep::Detached
        );
        if stops && let Some(ring) = self.doorbell(group, u64::MAX, cx) {
            self.after_doorbells = Some(step);
            return GroupStep::Doorbell(ring);
        }
        step
    }

    /// Returns the doorbell that would become late during a visit of this member, if there is one, so that it rings
    /// first.
    #[inline]
    pub(super) fn doorbell_before(&mut self, group: &Group, member: &MemberSlot, cx: &Cx<'_>) -> Option<Ring> {
        if self.doorbells.is_empty() {
            return None;
        }
        self.doorbell(group, cx.now_ns + member.visits.expected_ns(), cx)
    }

    /// How many packets a visit of this member may take so that no doorbell becomes late meanwhile, neither one that
    /// was held back nor that of the frames which the visit itself sends.
    #[inline]
    pub(super) fn fit(&self, member: &MemberSlot, cx: &Cx<'_>) -> u32 {
        let weight = member.weight.load(Relaxed);
        let sends = member.transmit.load(Relaxed);
        if self.doorbells.is_empty() && !sends {
            return weight;
        }
        // Another poller may have left frames there, and may be waiting for this visit's end to ring for them.
        let own_ns =
            if member.unrung_frames.load(Relaxed) == 0 { cx.now_ns } else { member.unrung_since_ns.load(Relaxed) };
        let since_ns = self.doorbells.oldest_ns().into_iter().chain(sends.then_some(own_ns)).min();
        let rings_ns = since_ns.unwrap_or(cx.now_ns).saturating_add(DOORBELL_AGE_NS);
        member.visits.fit(rings_ns.saturating_sub(cx.now_ns), weight)
    }

    /// Returns a doorbell that is due by `by_ns`, with the claim of its member taken; [`u64::MAX`] stands for any that
    /// was held back.
    #[inline]
    pub(super) fn doorbell(&mut self, group: &Group, by_ns: u64, cx: &Cx<'_>) -> Option<Ring> {
        while let Some((slot, why)) = self.doorbells.take(by_ns) {
            let member = &group.members[usize::from(slot)];
            // There is nothing to do if another poller rang, and whoever has the claim just now answers for the
            // doorbell afterwards.
            if member.unrung_frames.load(Relaxed) == 0 || !member.claim.take_between(Group::claimant(self.slot)) {
                continue;
            }
            let (napi, frames) = (member.napi.load(Ordering::Relaxed), member.unrung_frames.load(Relaxed));
            self.held = Some(Held { slot, owner: Owner::new(napi), budget: 0, since_ns: cx.now_ns });
            cx.emit(napi, EventKind::Doorbell { frames, why });
            return Some(Ring { member: slot, napi, frames, why });
        }
        None
    }

    /// The visit of a transmit queue did `sent`. If the member leaves the group, it comes back: the executor makes its
    /// last run, which rings, and does what its instance owes, as after a busy loop.
    pub fn transmitted(&mut self, group: &Group, napi: &Napi, sent: &Transmitted, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        assert!(sent.frames <= held.budget, "{} frames were sent with a budget of {}", sent.frames, held.budget);
        napi.assert_owner(&held.owner);
        napi.count_group_poll();
        napi.note_poll(sent.frames, cx);
        let member = &group.members[usize::from(held.slot)];
        member.served_ns.store(cx.now_ns, Relaxed);
        member.visits.sent(cx.now_ns.saturating_sub(held.since_ns), sent.frames);
        let more = sent.left == TxLeft::More;
        group.governor.filled(member.filled(more, held.budget, sent.frames));
        if more {
            // Nobody else would tell of what is in the discipline.
            member.claim.poke();
        }
        member.blocked.store(sent.left == TxLeft::Room, Relaxed);
        let due_ns = if let TxLeft::Until { until_ns } = sent.left { until_ns } else { NEVER_NS };
        member.due_ns.store(due_ns, Relaxed);
        self.worked |= sent.frames != 0;
        self.count(group, |counters| &counters.transmits);
        let counter = &group.pollers[usize::from(self.slot)].counters.tx_frames;
        counter.store(counter.load(Relaxed) + u64::from(sent.frames), Relaxed);
        let frames = member.unrung_frames.load(Relaxed) + sent.frames;
        if frames == sent.frames {
            member.unrung_bytes.store(0, Relaxed);
            // The first of them may have been there since the visit began.
            member.unrung_since_ns.store(held.since_ns, Relaxed);
        }
        let bytes = member.unrung_bytes.load(Relaxed).saturating_add(sent.bytes);
        member.unrung_frames.store(frames, Relaxed);
        member.unrung_bytes.store(bytes, Relaxed);
        if sent.frames != 0 {
            let since_ns = cx.now_ns.saturating_sub(member.sent_ns.load(Relaxed));
            member.is_busy.store(since_ns < DOORBELL_AGE_NS, Relaxed);
            member.sent_ns.store(cx.now_ns, Relaxed);
        }
        if frames != 0 {
            // This counts also for frames of another poller, which may have come to ring during this visit and found
            // the claim taken.
            let (since_ns, is_busy) = (member.unrung_since_ns.load(Relaxed), member.is_busy.load(Relaxed));
            let unrung = Unrung { frames, bytes, since_ns, is_busy };
            self.doorbells.left(held.slot, unrung, sent.frames != 0, sent.left == TxLeft::Room);
        }
        self.give_back(group, held, napi, cx)
    }

    /// The doorbell rang. If the member leaves the group, it comes back, as after a visit.
    pub fn rung(&mut self, group: &Group, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        napi.assert_owner(&held.owner);
        group.members[usize::from(held.slot)].unrung_frames.store(0, Relaxed);
        self.count(group, |counters| &counters.doorbells);
        self.give_back(group, held, napi, cx)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::GroupConfig;

    /// A poller that goes rings first, and has the member meanwhile; what it left there is the other's.
    #[test]
    fn nobody_rests_over_frames_of_a_member_whose_doorbell_a_poller_that_goes_rings_just_now() {
        let group = Group::new(0, GroupConfig { rest_ns: Some(0), ..GroupConfig::default() }).unwrap();
        let cx = Cx::new(0, 20_000_000);
        let (mut goes, mut stays) = (group.attach(0, &cx).unwrap(), group.attach(1, &cx).unwrap());
        let napi = Napi::new(0);
        napi.enable(crate::NAPI_ID_MIN, None);
        let _ = group.enter_transmit(&napi, 1, &cx).unwrap();
        let nothing = |_, _| Some(false);
        assert!(matches!(goes.next(&group, nothing, false, false, &cx), GroupStep::Transmit(_)));
        let more = Transmitted { frames: 1, bytes: 60, left: TxLeft::More };
        assert!(goes.transmitted(&group, &napi, &more, &cx).is_none());
        let _ = group.detach(0).unwrap();
        // It wakes the other, to whom it hands on what it watched, and then rings.
        assert!(matches!(goes.next(&group, nothing, false, false, &cx), GroupStep::Wake(_)));
        assert!(matches!(goes.next(&group, nothing, false, false, &cx), GroupStep::Doorbell(_)));
        let step = stays.next(&group, nothing, false, false, &cx);
        assert!(!matches!(step, GroupStep::Rest { .. }), "frames wait: {step:?}");
        assert!(goes.rung(&group, &napi, &cx).is_none());
        let step = stays.next(&group, nothing, false, false, &cx);
        assert!(matches!(step, GroupStep::Transmit(_)), "{step:?}");
        let none = Transmitted { frames: 0, bytes: 0, left: TxLeft::Nothing };
        assert!(stays.transmitted(&group, &napi, &none, &cx).is_none());
        assert_eq!(goes.next(&group, nothing, false, false, &cx), GroupStep::Detached);
    }
}
