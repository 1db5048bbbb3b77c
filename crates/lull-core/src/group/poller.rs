//! The loop of one CPU of a group, §15, as steps.
//!
//! ```text
//!          attach           pressure                          work, interrupt
//!  ABSENT ---------> PARKED ---------------> ACTIVE <---------------------------- RESTING
//!                      ^   (woken by another) |  |                                   ^
//!                      `----------------------'  `-----------------------------------'
//!                   low load, not the last one      the last one, after `rest_ns` without packets
//! ```
//!
//! A pass visits each member that is at home with this poller once, in turn: round robin in packets, with the weight as
//! quantum. Rendezvous hashing over the awake pollers gives each member its home, so that one poller more or fewer
//! moves only its share. Homes are hints; only the claim excludes others. A pass without packets ends with a look at
//! the members of other pollers: one that has waited for longer than [`STEAL_AFTER_NS`] has a home that is held up, and
//! is visited from here.

mod between;
pub mod dry_run;
mod pass;
mod spin;
mod step;
mod transmit;

use std::sync::atomic::Ordering::Relaxed;

pub use dry_run::Walk;
pub use step::{GroupStep, Ring, Transmitted, Visit};

use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::Group;
use crate::group::claim::Released;
use crate::napi::Napi;
use crate::owner::{GroFlush, Owner};
use crate::resched::CondResched;
use crate::tx::doorbell::HeldDoorbells;

/// A member that waits for longer than this, in nanoseconds, is served by any poller that has nothing else to do.
pub const STEAL_AFTER_NS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Parked,
    Active,
    Resting,
    /// The budget is spent.
    Sleeping,
}

/// The claim that the poller holds.
#[derive(Debug)]
struct Held {
    slot: u16,
    owner: Owner,
    budget: u32,
    /// When it took the claim.
    since_ns: u64,
}

/// A member at home with another poller that waited when this poller last looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspect {
    slot: u16,
    seen_ns: u64,
    served_ns: u64,
}

/// What the list of homes was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    generation: u32,
    awake: u32,
}

/// The loop of one CPU. See the [module](self).
#[derive(Debug)]
pub struct GroupPoller {
    slot: u8,
    phase: Phase,
    view: Option<View>,
    homes: Vec<u16>,
    others: Vec<u16>,
    /// Where in `homes` the pass is.
    at: usize,
    pass_began_ns: u64,
    previous_pass_ns: u64,
    /// Whether this pass found packets.
    worked: bool,
    /// Whether it found a member that could not be polled.
    locked: bool,
    /// Since when passes have found nothing.
    idle_since_ns: u64,
    resched: CondResched,
    softirqs_ran: bool,
    suspect: Option<Suspect>,
    /// The stalled visit that was reported last, by its poller and its beginning.
    stall: (u8, u64),
    held: Option<Held>,
    /// Doorbells that it answers for.
    doorbells: HeldDoorbells,
    /// When it last walked a path without packets, and which of `homes` that was.
    dry_ran_ns: u64,
    dry_run_at: usize,
    /// What it does once they have rung.
    after_doorbells: Option<GroupStep>,
}

impl GroupPoller {
    pub(crate) fn new(slot: u8, now_ns: u64) -> GroupPoller {
        GroupPoller {
            slot,
            phase: Phase::Parked,
            view: None,
            homes: Vec::new(),
            others: Vec::new(),
            at: 0,
            pass_began_ns: now_ns,
            previous_pass_ns: now_ns,
            worked: false,
            locked: false,
            idle_since_ns: now_ns,
            resched: CondResched::new(now_ns),
            softirqs_ran: false,
            suspect: None,
            stall: (0, 0),
            held: None,
            doorbells: HeldDoorbells::default(),
            dry_ran_ns: now_ns,
            dry_run_at: 0,
            after_doorbells: None,
        }
    }

    /// Its place in the group, as [`crate::group::GroupWake`] names it.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The next step. `hint` says whether a member's device has frames, as [`lull_nic::IrqLine::pending`] does (for a
    /// transmit queue, whether its intake has frames or its ring has room again). `due` says whether softirqs or timers
    /// of this CPU wait, and `need_resched` whether a thread is known to wait for it.
    ///
    /// [`lull_nic::IrqLine::pending`]: ../../lull_nic/trait.IrqLine.html#method.pending
    #[inline]
    pub fn next(
        &mut self,
        group: &Group,
        hint: impl Fn(u16, u32) -> Option<bool>,
        due: bool,
        need_resched: bool,
        cx: &Cx<'_>,
    ) -> GroupStep {
        debug_assert!(self.held.is_none(), "a visit was not answered");
        let step = match self.after_doorbells.take() {
            Some(step) => step,
            None => self.decide(group, hint, due, need_resched, cx),
        };
        if self.doorbells.is_empty() { step } else { self.ring_before(group, step, cx) }
    }

    #[inline]
    fn decide(
        &mut self,
        group: &Group,
        hint: impl Fn(u16, u32) -> Option<bool>,
        due: bool,
        need_resched: bool,
        cx: &Cx<'_>,
    ) -> GroupStep {
        if self.phase != Phase::Active
            && let Some(step) = self.wake_up(group, cx)
        {
            return step;
        }
        if due && !std::mem::replace(&mut self.softirqs_ran, true) {
            return GroupStep::Softirqs;
        }
        self.softirqs_ran = false;
        if let Some(ring) = self.doorbell(group, cx.now_ns, cx) {
            return GroupStep::Doorbell(ring);
        }
        if self.resched.is_due(need_resched, cx.now_ns) {
            self.count(group, |counters| &counters.yields);
            return GroupStep::Yield;
        }
        let seen = group.watch.look();
        if !seen.is_attached(self.slot) {
            return self.drain(group, cx);
        }
        let view = View { generation: group.generation(), awake: seen.awake() };
        if self.view != Some(view) {
            self.settle_in(group, view, cx);
        }
        if let Some(step) = self.next_home(group, &hint, cx) {
            return step;
        }
        if !self.worked
            && let Some(step) = self.stray(group, &hint, cx)
        {
            return step;
        }
        let worked = self.worked;
        let step = self.end_pass(group, cx);
        // After packets the next pass begins at once.
        if worked
            && step == GroupStep::Spin
            && let Some(step) = self.next_home(group, &hint, cx)
        {
            return step;
        }
        step
    }

    #[inline]
    fn serve(&self, group: &Group, visit: Visit) -> GroupStep {
        match group.members[usize::from(visit.member)].transmit.load(Relaxed) {
            false => GroupStep::Poll(visit),
            true => GroupStep::Transmit(visit),
        }
    }

    /// The poll of the visit took `work` packets. If the member leaves the group, it comes back: the executor masks its
    /// interrupt, makes its last poll, and does what that owes, as after a busy loop.
    pub fn polled(
        &mut self,
        group: &Group,
        napi: &Napi,
        work: u32,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> Option<BusyStop> {
        // `next` returned a visit, which it does only with a claim in hand.
        let held = self.held.take()?;
        assert!(work <= held.budget, "the device took {work} packets with a budget of {}", held.budget);
        napi.assert_owner(&held.owner);
        napi.count_group_poll();
        napi.note_poll(work, cx);
        let full = work == held.budget;
        // The device tells when there is more, but nobody would tell of what GRO holds.
        flush(if full { GroFlush::Old } else { GroFlush::All });
        let member = &group.members[usize::from(held.slot)];
        member.served_ns.store(cx.now_ns, Relaxed);
        let weight = member.weight.load(Relaxed);
        member.visits.polled(cx.now_ns.saturating_sub(held.since_ns), work, held.budget, weight);
        group.governor.filled(member.filled(full, held.budget, work));
        self.worked |= work != 0;
        self.count(group, |counters| &counters.polls);
        self.give_back(group, held, napi, cx)
    }

    /// The visit found the shard's lock held: whoever has it serves the queue, and the member is visited again in the next pass.
    pub fn locked(&mut self, group: &Group, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        group.members[usize::from(held.slot)].claim.poke();
        self.locked = true;
        self.count(group, |counters| &counters.locked);
        self.give_back(group, held, napi, cx)
    }

    /// The end of a visit: the member is free for the next, unless it leaves. An instance that is being disabled leaves as well:
    /// nobody but the claim's holder could let it go.
    fn give_back(&mut self, group: &Group, held: Held, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        group.pollers[usize::from(self.slot)].serves_since_ns.store(0, Relaxed);
        let me = Group::claimant(self.slot);
        let claim = &group.members[usize::from(held.slot)].claim;
        if napi.snapshot().has(crate::state::DISABLE) || claim.release(me) == Released::Leave {
            return Some(group.leave(held.slot, held.owner, napi, cx));
        }
        // The ownership is in the claim again, and another poller may have it already.
        held.owner.consume();
        cx.emit(napi.index(), EventKind::GroupRelease);
        None
    }

    #[inline]
    fn count(&self, group: &Group, counter: impl Fn(&super::PollerCounters) -> &super::PlainU64) {
        let counter = counter(&group.pollers[usize::from(self.slot)].counters);
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}
