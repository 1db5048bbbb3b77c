//! How a shard's lock is given back: an ownership that softirq parked on it meanwhile is polled first.

use std::panic::AssertUnwindSafe;

use crate::contain::{message, within};
use crate::delivery::Delivery;
use crate::lock::{HandoffGuard, Parked, Shard};
use crate::sync::catch_unwind;

impl Delivery {
    /// Gives a shard's lock back. An ownership that was parked meanwhile is polled first, by `poll` with the given budget; a
    /// panic in there is not the caller's, and takes the queue down.
    #[inline]
    pub fn unlock<T: Shard>(&self, mut guard: HandoffGuard<'_, T>, mut poll: impl FnMut(&mut T, u32) -> u32) {
        let mut failed = None;
        while let Err((held, parked)) = guard.unlock() {
            guard = held;
            let instance = self.owned(&parked.owner).clone();
            let budget = instance.napi.weight();
            let mut work = 0;
            if instance.failure().is_none() {
                let polled =
                    catch_unwind(AssertUnwindSafe(|| within(guard.with_mut(|shard| poll(shard, budget)), budget)));
                work = polled.unwrap_or_else(|panic| {
                    guard.with_mut(T::take_down);
                    self.refuse(&instance, "a poll for softirq, which had found the shard locked", message(panic));
                    failed = Some(instance.clone());
                    0
                });
            }
            self.polled_for_softirq(parked, work);
        }
        if let Some(instance) = failed {
            self.tell_failed(&instance);
        }
    }

    /// The holder of a shard's lock polled for a softirq that found it held: what `__napi_poll` does after the poll.
    pub(crate) fn polled_for_softirq(&self, parked: Parked, work: u32) {
        let Parked { owner, cpu } = parked;
        let instance = self.owned(&owner);
        let cx = self.cx(cpu, self.clock.now_ns());
        let owner = match instance.napi.softirq_polled(owner, work, false, &cx, |_| ()) {
            lull_core::Polled::Repoll(owner) => Some(owner),
            lull_core::Polled::Completed(completion) => {
                let owner = self.carry_out(&instance, completion, false, &cx);
                self.cover(self.cpu(cpu));
                owner
            }
        };
        if let Some(owner) = owner {
            self.route_outside(self.cpu(cpu), &instance, owner, &cx);
        }
    }
}
