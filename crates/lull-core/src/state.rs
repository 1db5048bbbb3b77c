//! The packed state word of a NAPI instance: each bit a named constant, each change one named transition.
//!
//! Composite states (the IRQ mask is the device's, not a bit):
//!
//! ```text
//! DISABLED    SCHED|NPSVC                        timer off
//! IDLE        no SCHED, IRQ unmasked             a stale timer may be pending
//! SOFTIRQ     SCHED                              on a CPU's poll list
//! THREAD      SCHED|SCHED_THREADED
//! USERPOLL    SCHED|IN_BUSY_POLL
//! KPOLL       SCHED|SCHED_THREADED|IN_BUSY_POLL  for ever
//! DEFERRED    no SCHED, IRQ masked, timer = gro_flush_timeout
//! SUSPENDED   no SCHED, IRQ masked, timer = irq_suspend_timeout
//! GPOLL       SCHED|IN_BUSY_POLL|GROUPED         in a busy-polling CPU group, for as long as it is a member
//! ```
//!
//! SUSPENDED is not a flag: it is DEFERRED with a longer timer (`napi_semantics` §2).
//!
//! Memory ordering. What only the owner touches (deferral credits, counters, the ring, whatever the executor keeps per
//! queue) is ordered by this word alone. So a transition that takes ownership acquires, one that gives it up releases, and
//! a schedule that only leaves MISSED releases too: the packet that it stands for has to be seen by the owner, whose
//! completion or stop acquires as it clears the bit. All else is relaxed. Each ordering has a mutant that weakens it
//! (`mutants/core-ordering-*`), and a loom model that notices.

use crate::sync::{AtomicU32, Ordering};

/// Ownership: its holder alone may poll.
pub const SCHED: u32 = 1 << 0;
/// Somebody tried to schedule while the instance was owned.
pub const MISSED: u32 = 1 << 1;
/// A disable waits for the owner to let go.
pub const DISABLE: u32 = 1 << 2;
/// The instance is disabled (together with SCHED). Linux's netpoll, the bit's other use, does not exist here.
pub const NPSVC: u32 = 1 << 3;
/// The owner is a busy poller: completion must do nothing.
pub const IN_BUSY_POLL: u32 = 1 << 4;
/// A preferring busy poller lost the race for ownership: the owner should yield.
pub const PREFER_BUSY_POLL: u32 = 1 << 5;
/// Scheduling wakes the NAPI thread instead of softirq.
pub const THREADED: u32 = 1 << 6;
/// The NAPI thread owns this round.
pub const SCHED_THREADED: u32 = 1 << 7;
/// The NAPI thread should busy poll.
pub const THREADED_BUSY_POLL: u32 = 1 << 8;

/// A busy-polling CPU group has the instance ([`crate::group`], §15). Always with SCHED and IN_BUSY_POLL, never with THREADED:
/// so no softirq list, thread or busy poller gets it, a completion does nothing, and the interrupt stays off.
pub const GROUPED: u32 = 1 << 9;

/// The word at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(u32);

impl Snapshot {
    /// Whether all of `bits` are set.
    #[inline]
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }

    /// Whether any of `bits` is set.
    #[inline]
    pub fn any(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// The raw bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [(u32, &str); 10] = [
            (SCHED, "SCHED"),
            (MISSED, "MISSED"),
            (DISABLE, "DISABLE"),
            (NPSVC, "NPSVC"),
            (IN_BUSY_POLL, "IN_BUSY_POLL"),
            (PREFER_BUSY_POLL, "PREFER_BUSY_POLL"),
            (THREADED, "THREADED"),
            (SCHED_THREADED, "SCHED_THREADED"),
            (THREADED_BUSY_POLL, "THREADED_BUSY_POLL"),
            (GROUPED, "GROUPED"),
        ];
        let mut first = true;
        for (bit, name) in NAMES {
            if self.has(bit) {
                write!(f, "{}{name}", if first { "" } else { "|" })?;
                first = false;
            }
        }
        if first { f.write_str("0") } else { Ok(()) }
    }
}

/// Outcome of [`State::schedule_prep`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prep {
    /// SCHED was clear and is ours now.
    Taken,
    /// Somebody owns it; MISSED tells them to look again.
    Missed,
    /// As before, and the owner is a group, which may rest.
    MissedByGroup,
    /// A disable is pending: refused, nothing recorded.
    Disabled,
}

/// Outcome of [`State::complete`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completed {
    /// SCHED is clear: somebody else may own the instance already.
    Released,
    /// MISSED was set: the caller still owns the instance.
    Missed,
}

/// Outcome of [`State::watchdog`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watchdog {
    /// The instance was free and is ours now.
    Taken,
    /// It has an owner, or a disable is pending: the timer is lost.
    Swallowed,
}

/// Outcome of [`State::busy_acquire`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The instance is ours.
    Won,
    /// Somebody owns it, or disables it.
    Lost,
}

/// Outcome of [`State::give_to_thread`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The NAPI thread owns this round now.
    ToThread,
    /// The instance is not threaded: the caller still owns it.
    NotThreaded,
}

/// Outcome of turning threading off (§10).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadedOff {
    /// The instance was idle, or its thread owns it and ends its round first.
    Off,
    /// Somebody else owns the instance: try again.
    Owned,
}

/// Outcome of an attempt to claim an instance for disabling it (§11).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisableClaim {
    /// Nobody polls the instance any more.
    Claimed,
    /// Its owner has not let go yet: try again.
    Owned,
}

/// Outcome of [`State::group_acquire`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupAcquired {
    /// The instance is the group's.
    Won,
    /// It has an owner, who was asked to yield.
    Owned,
    /// A group has it already.
    Grouped,
    /// It is disabled, or is being disabled.
    Disabled,
    /// Its NAPI thread polls it.
    Threaded,
}

#[derive(Debug)]
pub(crate) struct State(AtomicU32);

impl State {
    /// A fresh instance is disabled (`netif_napi_add`).
    pub(crate) fn new() -> State {
        State(AtomicU32::new(SCHED | NPSVC))
    }

    /// The word now. The load acquires: a thread that finds SCHED_THREADED in it is an owner, and one that waits for
    /// the bit to go looks at what the NAPI thread left.
    #[inline]
    pub(crate) fn load(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    /// One compare-and-swap per attempt; `change` sees the current word and returns the next, or `None` to refuse.
    #[inline]
    fn change(&self, order: Ordering, change: impl FnMut(u32) -> Option<u32>) -> Result<Snapshot, Snapshot> {
        self.change_from(Snapshot(self.0.load(Ordering::Relaxed)), order, change)
    }

    /// As [`State::change`], but starts from a word that is likely to be the present one, which saves a load.
    #[inline]
    fn change_from(
        &self,
        seen: Snapshot,
        order: Ordering,
        mut change: impl FnMut(u32) -> Option<u32>,
    ) -> Result<Snapshot, Snapshot> {
        let mut now = seen.0;
        loop {
            let Some(next) = change(now) else { return Err(Snapshot(now)) };
            match self.0.compare_exchange_weak(now, next, order, Ordering::Relaxed) {
                Ok(_) => return Ok(Snapshot(now)),
                Err(seen) => now = seen,
            }
        }
    }

    /// `napi_schedule_prep` (§3): takes SCHED, or leaves MISSED for the owner.
    #[inline]
    pub(crate) fn schedule_prep(&self) -> Prep {
        // Idle and not threaded is by far the likeliest word; guessing it saves the load that an attempt would wait for.
        let prep = self.change_from(Snapshot(0), Ordering::AcqRel, |word| {
            if word & DISABLE != 0 {
                return None;
            }
            Some(if word & SCHED != 0 { word | MISSED } else { word | SCHED })
        });
        match prep {
            Ok(before) if before.has(SCHED | GROUPED) => Prep::MissedByGroup,
            Ok(before) if before.has(SCHED) => Prep::Missed,
            Ok(_) => Prep::Taken,
            Err(_) => Prep::Disabled,
        }
    }

    /// The swap at the end of `napi_complete_done` (§4). The caller has asserted that it owns what it has `seen`.
    ///
    /// It acquires for the case of MISSED: the packet has to be seen by the next poll. Routing, which comes in between, loads
    /// the word again and acquires too; the rule does not lean on that.
    #[inline]
    pub(crate) fn complete(&self, seen: Snapshot) -> Completed {
        const ROUND: u32 = SCHED | MISSED | SCHED_THREADED | PREFER_BUSY_POLL;
        let before = self.change_from(seen, Ordering::AcqRel, |word| {
            Some((word & !ROUND) | if word & MISSED != 0 { SCHED } else { 0 })
        });
        if before.is_ok_and(|before| before.has(MISSED)) { Completed::Missed } else { Completed::Released }
    }

    /// `napi_watchdog` (§6): takes a free instance, unless a disable is pending.
    pub(crate) fn watchdog(&self) -> Watchdog {
        let taken = self.change(Ordering::Acquire, |word| {
            if word & (DISABLE | SCHED) != 0 { None } else { Some((word | SCHED) & !PREFER_BUSY_POLL) }
        });
        if taken.is_ok() { Watchdog::Taken } else { Watchdog::Swallowed }
    }

    /// The busy loop's attempt at ownership (§7). It is repeated for as long as the instance is free: a swap that fails
    /// because a loser set PREFER_BUSY_POLL in between, after the owner had let go, has met no owner. Linux tries once;
    /// but here a call that polls each instance of its context issues no resume, so an instance that nobody polls would
    /// stay suspended.
    #[inline]
    pub(crate) fn busy_acquire(&self) -> Acquired {
        const TAKEN: u32 = DISABLE | SCHED | IN_BUSY_POLL;
        let won = self.change(Ordering::Acquire, |word| (word & TAKEN == 0).then_some(word | SCHED | IN_BUSY_POLL));
        if won.is_ok() { Acquired::Won } else { Acquired::Lost }
    }

    /// A preferring poller lost: ask the owner to yield.
    pub(crate) fn set_prefer(&self) {
        self.0.fetch_or(PREFER_BUSY_POLL, Ordering::Relaxed);
    }

    /// A group takes a free instance (§15). One that is owned is asked to yield, as by a preferring poller.
    pub(crate) fn group_acquire(&self) -> GroupAcquired {
        let acquired = self.change(Ordering::Acquire, |word| {
            let is_free = word & (SCHED | DISABLE | THREADED) == 0;
            is_free.then_some((word & !PREFER_BUSY_POLL) | SCHED | IN_BUSY_POLL | GROUPED)
        });
        match acquired {
            Ok(_) => GroupAcquired::Won,
            Err(word) if word.any(DISABLE | NPSVC) => GroupAcquired::Disabled,
            Err(word) if word.has(GROUPED) => GroupAcquired::Grouped,
            Err(word) if word.has(THREADED) => GroupAcquired::Threaded,
            Err(_) => {
                self.set_prefer();
                GroupAcquired::Owned
            }
        }
    }

    /// First half of `busy_poll_stop` (§7): one more poll follows, so a missed schedule is covered by it. Linux clears
    /// the two bits one after the other, which makes no difference that anything can see. A group leaves its instance
    /// in the same way (§15).
    #[inline]
    pub(crate) fn busy_stop(&self) {
        // That nothing else is set is by far the most likely, as in `schedule_prep`.
        let _ = self.change_from(Snapshot(SCHED | IN_BUSY_POLL), Ordering::Acquire, |word| {
            assert!(
                word & (SCHED | IN_BUSY_POLL) == SCHED | IN_BUSY_POLL,
                "I3: a busy poller stopped that owns nothing"
            );
            Some(word & !(MISSED | IN_BUSY_POLL | GROUPED))
        });
    }

    /// `busy_poll_stop` after a full budget with a timeout: ownership ends, the IRQ stays masked. A MISSED stays with the
    /// word, as in Linux; the timer's poll answers for it.
    pub(crate) fn park(&self) {
        let _ = self.change(Ordering::Release, |word| {
            assert!(word & (SCHED | IN_BUSY_POLL) == SCHED, "I1: parked without ownership");
            Some(word & !SCHED)
        });
    }

    /// `____napi_schedule`: gives the round to the thread of a threaded instance.
    #[inline]
    pub(crate) fn give_to_thread(&self) -> Given {
        // The load acquires: whoever finds THREADED wakes a thread that was started before the bit was set.
        if !self.load().has(THREADED) {
            return Given::NotThreaded;
        }
        let before = self.0.fetch_or(SCHED_THREADED, Ordering::Release);
        assert!(before & SCHED != 0, "I4: a round was given to the thread without ownership");
        Given::ToThread
    }

    /// Makes IN_BUSY_POLL follow what the mode says (busy-poll NAPI thread, §10). Owner only.
    pub(crate) fn set_in_busy_poll(&self, want: bool) {
        let before = if want {
            self.0.fetch_or(IN_BUSY_POLL, Ordering::Relaxed)
        } else {
            self.0.fetch_and(!IN_BUSY_POLL, Ordering::Relaxed)
        };
        assert!(
            before & (SCHED | SCHED_THREADED) == SCHED | SCHED_THREADED,
            "I4: a thread that owns no round busy polls"
        );
    }

    pub(crate) fn set_threaded(&self, threaded: bool, busy: bool) {
        let set = if threaded { THREADED } else { 0 } | if busy { THREADED_BUSY_POLL } else { 0 };
        // An Err is impossible: the closure never refuses.
        let _ = self.change(Ordering::Release, |word| {
            assert!(word & GROUPED == 0 || !threaded, "I10: an instance of a group was given to a NAPI thread");
            Some((word & !(THREADED | THREADED_BUSY_POLL)) | set)
        });
    }

    /// Turning threaded off (§10) is allowed while the instance is idle or its thread owns it.
    pub(crate) fn threaded_off(&self) -> ThreadedOff {
        let off = self.change(Ordering::Relaxed, |word| {
            let other_owner = word & SCHED != 0 && word & SCHED_THREADED == 0 && word & NPSVC == 0;
            if other_owner { None } else { Some(word & !(THREADED | THREADED_BUSY_POLL)) }
        });
        if off.is_ok() { ThreadedOff::Off } else { ThreadedOff::Owned }
    }

    /// `napi_disable`, first step: nobody becomes the owner from here on.
    pub(crate) fn disable_begin(&self) {
        self.0.fetch_or(DISABLE, Ordering::Relaxed);
    }

    /// `napi_disable`, the swap: claims a free instance.
    pub(crate) fn disable_claim(&self) -> DisableClaim {
        let claimed = self.change(Ordering::Acquire, |word| {
            if word & (SCHED | NPSVC) != 0 {
                return None;
            }
            Some((word | SCHED | NPSVC) & !(THREADED | THREADED_BUSY_POLL | PREFER_BUSY_POLL))
        });
        if claimed.is_ok() { DisableClaim::Claimed } else { DisableClaim::Owned }
    }

    /// `napi_disable`, last step. Relaxed, because the executor's control lock orders whoever disables before whoever
    /// enables, and `enable` releases for both.
    pub(crate) fn disable_end(&self) {
        let before = self.0.fetch_and(!DISABLE, Ordering::Relaxed);
        assert!(before & (SCHED | NPSVC) == SCHED | NPSVC, "disabled without having been claimed");
    }

    /// `napi_enable`: releases what disable claimed. Nothing of an earlier life survives: neither MISSED, nor the PREFER of
    /// a poller that lost to the disable, nor a threading mode that the settings do not name.
    pub(crate) fn enable(&self, threaded: bool, busy: bool) {
        let set = if threaded { THREADED } else { 0 } | if busy { THREADED_BUSY_POLL } else { 0 };
        let _ = self.change(Ordering::Release, |word| {
            // This is off the fast path, and to let go of what somebody else owns would make two owners (I1).
            assert!(word & (SCHED | NPSVC) == SCHED | NPSVC, "enable of an instance that is not disabled");
            Some((word & DISABLE) | set)
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn free() -> State {
        let state = State::new();
        state.enable(false, false);
        state
    }

    /// A poller that lost to an owner sets PREFER after that owner has let go: nobody is asked to yield any more.
    #[test]
    fn the_watchdog_clears_the_prefer_of_a_loser_that_came_too_late() {
        let state = free();
        state.set_prefer();
        assert_eq!(state.watchdog(), Watchdog::Taken);
        assert_eq!(state.load(), Snapshot(SCHED));
    }

    /// These are asserted in release builds, too: each would make two owners, or a queue that nobody polls.
    #[test]
    fn what_only_an_owner_may_do_is_refused_to_others() {
        type Transition = (&'static str, fn(&State));
        let without_owner: [Transition; 5] = [
            ("a stop", |state| state.busy_stop()),
            ("a park", |state| state.park()),
            ("a round for the thread", |state| {
                state.set_threaded(true, false);
                let _ = state.give_to_thread();
            }),
            ("a thread that busy polls", |state| state.set_in_busy_poll(true)),
            ("an enable", |state| state.enable(false, false)),
        ];
        for (what, transition) in without_owner {
            let state = free();
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| transition(&state)));
            assert!(refused.is_err(), "{what} by nobody's owner is let pass");
        }
    }
}
