//! Between passes: who parks, who is woken, who rests.

use std::sync::atomic::Ordering::Relaxed;

use super::{GroupPoller, GroupStep, Phase};
use crate::event::{Cx, EventKind};
use crate::group::Group;
use crate::group::budget::Left;
use crate::group::governor::{CHANGE_NS, Decision};
use crate::resched::CondResched;

impl GroupPoller {
    /// Whether a poller that slept goes on sleeping, or ends.
    #[cold]
    pub(super) fn wake_up(&mut self, group: &Group, cx: &Cx<'_>) -> Option<GroupStep> {
        let seen = group.watch.look();
        if self.phase == Phase::Resting {
            // Woken for whatever reason: it looks around. Whoever ended the rest has cleared the bit already.
            let _ = group.watch.rise();
            cx.emit(group.index(), EventKind::GroupRestEnd);
        } else if self.phase == Phase::Sleeping {
            // The period is over, or the CPU was detached: the pass begins.
        } else if !seen.is_attached(self.slot) {
            return Some(self.drain(group, cx));
        } else if !seen.is_awake(self.slot) {
            return Some(GroupStep::Park);
        }
        self.phase = Phase::Active;
        self.at = 0;
        self.worked = false;
        self.idle_since_ns = cx.now_ns;
        self.pass_began_ns = cx.now_ns;
        self.previous_pass_ns = cx.now_ns;
        self.resched = CondResched::new(cx.now_ns);
        None
    }

    /// This CPU was detached: another takes over what it watched.
    #[cold]
    pub(super) fn drain(&mut self, group: &Group, cx: &Cx<'_>) -> GroupStep {
        match group.drained(self.slot, cx) {
            Some(wake) => GroupStep::Wake(wake),
            None => GroupStep::Detached,
        }
    }

    /// Every member at home has been looked at once; the pass ends.
    pub(super) fn end_pass(&mut self, group: &Group, cx: &Cx<'_>) -> GroupStep {
        let (worked, locked) = (std::mem::take(&mut self.worked), std::mem::take(&mut self.locked));
        let took_ns = cx.now_ns.saturating_sub(self.pass_began_ns);
        self.count(group, |counters| &counters.passes);
        group.pollers[usize::from(self.slot)].passed_ns.store(cx.now_ns, Relaxed);
        let counters = &group.pollers[usize::from(self.slot)].counters;
        let spent = if worked { &counters.busy_ns } else { &counters.empty_ns };
        spent.store(spent.load(Relaxed) + took_ns, Relaxed);
        self.at = 0;
        self.doorbells.pass_ended();
        self.previous_pass_ns = self.pass_began_ns;
        self.pass_began_ns = cx.now_ns;
        if worked || locked {
            self.idle_since_ns = cx.now_ns;
        }
        let left = group.ledger.charge(cx.now_ns, took_ns, worked);
        if let Left::NothingUntil(until_ns) = left {
            self.phase = Phase::Sleeping;
            self.count(group, |counters| &counters.sleeps);
            return GroupStep::Sleep { until_ns };
        }
        let step = self.govern(group, left, cx);
        if let Some(step) = step {
            return step;
        }
        let idle_ns = cx.now_ns.saturating_sub(self.idle_since_ns);
        let rests = left == Left::NoEmpty || group.config.rest_ns.is_some_and(|rest_ns| idle_ns >= rest_ns);
        if !worked && rests && self.rest(group, cx) {
            return GroupStep::Rest { until_ns: group.due_ns() };
        }
        // Whoever has the lock may be waiting for this very core.
        if locked && !worked && self.resched.is_due(true, cx.now_ns) {
            self.count(group, |counters| &counters.yields);
            return GroupStep::Yield;
        }
        match self.dry_run(group, cx) {
            Some(walk) => GroupStep::DryRun(walk),
            None => GroupStep::Spin,
        }
    }

    /// Decides whether there is to be one poller more or one fewer.
    fn govern(&mut self, group: &Group, left: Left, cx: &Cx<'_>) -> Option<GroupStep> {
        let seen = group.watch.look();
        if seen.members() == 0 {
            return self.park(group, cx);
        }
        // When the budget of cycles is spent, nobody spins beside another.
        let others_run = |running: u32| running & !(1 << self.slot) != 0;
        if left == Left::NoEmpty && seen.awake().count_ones() > 1 && others_run(group.running(seen.awake(), cx.now_ns))
        {
            return self.park(group, cx);
        }
        if !group.governor.is_over(cx.now_ns) {
            return None;
        }
        let changed_ns = |slot: u8| group.pollers[usize::from(slot)].changed_ns.load(Relaxed);
        let may_change = |slot: u8| cx.now_ns.saturating_sub(changed_ns(slot)) >= CHANGE_NS || changed_ns(slot) == 0;
        let running = group.running(seen.awake(), cx.now_ns);
        let busy_ns = group.busy_ns();
        match group.governor.decide(seen, running.count_ones(), &group.config.thresholds, busy_ns, cx.now_ns) {
            Decision::Stay => None,
            Decision::OneMore => {
                let parked = seen.attached() & !seen.awake();
                let slot = (0..32).find(|slot| parked & (1 << slot) != 0 && may_change(*slot))?;
                // A poller that was detached in between is not woken.
                if !group.watch.wake(slot) {
                    return None;
                }
                self.count(group, |counters| &counters.wakes);
                Some(GroupStep::Wake(group.woken(slot, cx)))
            }
            Decision::OneFewer => {
                // The poller that stays has to be running: one whose core is taken watches nothing.
                if !may_change(self.slot) || !others_run(running) {
                    return None;
                }
                group.governor.parked();
                self.park(group, cx)
            }
        }
    }

    /// Parks, unless this is the poller that stays awake.
    fn park(&mut self, group: &Group, cx: &Cx<'_>) -> Option<GroupStep> {
        if !group.watch.park(self.slot) {
            return None;
        }
        self.phase = Phase::Parked;
        group.pollers[usize::from(self.slot)].changed_ns.store(cx.now_ns.max(1), Relaxed);
        self.count(group, |counters| &counters.parks);
        cx.emit(group.index(), EventKind::GroupPark);
        Some(GroupStep::Park)
    }

    /// The last poller that is awake rests, unless something came meanwhile.
    fn rest(&mut self, group: &Group, cx: &Cx<'_>) -> bool {
        if !group.watch.rest(self.slot) {
            return false;
        }
        // Whoever was raised before RESTING could be seen has poked its member. Later ones end the rest.
        if group.is_poked() {
            let _ = group.watch.rise();
            return false;
        }
        self.phase = Phase::Resting;
        self.count(group, |counters| &counters.rests);
        cx.emit(group.index(), EventKind::GroupRest);
        true
    }
}
