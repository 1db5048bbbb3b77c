//! Many empty passes in one step, for executors whose clock jumps: a simulator need not look at members when it knows
//! that nothing comes for them.

use std::sync::atomic::Ordering::Relaxed;

use super::transmit::wants_to_send;
use super::{GroupPoller, STEAL_AFTER_NS};
use crate::event::Cx;
use crate::group::Group;
use crate::group::claim::Look;
use crate::group::governor::GOVERNOR_WINDOW_NS;
use crate::sync::Ordering;

impl GroupPoller {
    /// To be asked after [`super::GroupStep::Spin`]: until when all passes would say the same, as long as no packet,
    /// interrupt, softirq or thread comes, and no member or poller comes or goes. A simulator makes all those passes in
    /// one step, by [`GroupPoller::spun`].
    pub fn spins_until(&self, group: &Group, hint: impl Fn(u16, u32) -> Option<bool>, cx: &Cx<'_>) -> u64 {
        let now_ns = cx.now_ns;
        // What came after the pass looked there is found by the next pass.
        let waits = |slot: &u16, unknown: bool| {
            let member = &group.members[usize::from(*slot)];
            match member.claim.look() {
                Look::Poked => true,
                Look::Free => {
                    let hint = hint(*slot, member.napi.load(Ordering::Relaxed));
                    let transmits = member.transmit.load(Relaxed);
                    if transmits { wants_to_send(member, hint, cx) } else { hint.unwrap_or(unknown) }
                }
                Look::Held(_) | Look::None => false,
            }
        };
        let comes = self.homes.iter().any(|slot| waits(slot, true));
        // A doorbell that is held back counts the passes.
        if comes
            || !self.doorbells.is_empty()
            || (self.suspect.is_none() && self.others.iter().any(|slot| waits(slot, false)))
        {
            return now_ns;
        }
        let mut until_ns = group.due_ns().unwrap_or(u64::MAX).min(now_ns + GOVERNOR_WINDOW_NS / 2);
        until_ns = until_ns.min(group.governor.window_end_ns());
        until_ns = until_ns.min(self.resched.due_ns());
        let awake = group.watch.look().awake().count_ones();
        // Nobody rests beside another poller.
        if let (Some(rest_ns), 1) = (group.config.rest_ns, awake) {
            until_ns = until_ns.min(self.idle_since_ns.saturating_add(rest_ns));
        }
        if group.config.dry_run && !self.homes.is_empty() {
            until_ns = until_ns.min(self.dry_run_due_ns());
        }
        if let Some(suspect) = self.suspect {
            until_ns = until_ns.min(suspect.seen_ns + STEAL_AFTER_NS);
        }
        let running = group.running(group.watch.look().awake() & !(1 << self.slot), now_ns);
        let uncharged_ns = group.unpassed_ns(running, now_ns);
        // A poller that was woken, or that has its core back in a moment, spends the same budget from its first pass
        // on.
        until_ns.min(group.ledger.lasts_until(now_ns, awake, uncharged_ns)).max(now_ns)
    }

    /// `passes` passes went on until `now_ns` and found nothing; the last of them began at `looked_ns`.
    pub fn spun(&mut self, group: &Group, passes: u64, looked_ns: u64, now_ns: u64) {
        let place = &group.pollers[usize::from(self.slot)];
        let counters = &place.counters;
        counters.passes.store(counters.passes.load(Relaxed) + passes, Relaxed);
        let took_ns = looked_ns.saturating_sub(self.pass_began_ns);
        counters.empty_ns.store(counters.empty_ns.load(Relaxed) + took_ns, Relaxed);
        place.passed_ns.store(looked_ns, Relaxed);
        // Whether the budget is spent is looked at when the pass that goes on ends.
        let _ = group.ledger.charge(now_ns, took_ns, false);
        // A new pass begins, also if the step came in the middle of one.
        self.at = 0;
        self.pass_began_ns = looked_ns;
        self.previous_pass_ns = looked_ns;
    }

    /// Gives up what it holds, at the end of an executor's life.
    pub fn abandon(self) {
        if let Some(held) = self.held {
            held.owner.abandon();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::{Budget, GroupConfig, GroupStep};
    use crate::napi::Napi;

    /// I16: one that was woken has ended no pass yet, and begins while the others make theirs at once.
    #[test]
    fn a_poller_that_was_woken_has_its_share_of_the_budget_before_its_first_pass() {
        let budget = Budget { empty_percent: Some(5), total_percent: None };
        let group = Group::new(0, GroupConfig { budget, ..GroupConfig::default() }).unwrap();
        let cx = Cx::new(0, 20_000_000);
        let mut poller = group.attach(0, &cx).unwrap();
        let _parked = group.attach(1, &cx).unwrap();
        let napi = Napi::new(0);
        napi.enable(crate::NAPI_ID_MIN, None);
        let _ = group.enter(&napi, 64, &cx).unwrap();
        let nothing = |_, _| Some(false);
        // Who enters is polled once.
        assert!(matches!(poller.next(&group, nothing, false, false, &cx), GroupStep::Poll(_)));
        assert!(poller.polled(&group, &napi, 0, &cx, |_| ()).is_none());
        assert_eq!(poller.next(&group, nothing, false, false, &cx), GroupStep::Spin);
        // 40 us are left of the 500 of this period.
        let _ = group.ledger.charge(cx.now_ns, 460_000, false);
        assert_eq!(poller.spins_until(&group, nothing, &cx), cx.now_ns + 40_000);
        assert!(group.watch.wake(1));
        assert_eq!(poller.spins_until(&group, nothing, &cx), cx.now_ns + 20_000);
    }
}
