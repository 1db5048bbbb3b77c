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
//! quantum. Homes follow from the awake pollers by rendezvous hashing, so that one more or one fewer moves only its share; they
//! are hints, the claim alone excludes. A pass without packets ends with a look at the members of others: what waits there for
//! longer than [`STEAL_AFTER_NS`] has a home that is held up, and is visited from here.

mod spin;

use std::sync::atomic::Ordering::Relaxed;

use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::budget::Left;
use crate::group::claim::{Look, Released};
use crate::group::governor::{CHANGE_NS, Decision};
use crate::group::{Group, GroupWake, MemberSlot, NEVER_NS, STALLED_NS};
use crate::napi::Napi;
use crate::owner::{GroFlush, Owner};
use crate::resched::CondResched;
use crate::sync::Ordering;
use crate::tx::TxLeft;
use crate::tx::doorbell::{HeldDoorbells, Unrung, Why};

/// A member that waits for longer than this, in nanoseconds, is served by any poller that has nothing else to do.
pub const STEAL_AFTER_NS: u64 = 5_000;

/// What a poller does next.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Poll this member, then call [`GroupPoller::polled`], or [`GroupPoller::locked`] if its shard's lock is held.
    Poll(Visit),
    /// Send from this member, which is a transmit queue, without ringing its doorbell: reap what was sent, clear MISSED
    /// ([`crate::tx::TxWord::look`]), move the intake into the discipline, and from there at most the budget to the ring. Then
    /// call [`GroupPoller::transmitted`].
    Transmit(Visit),
    /// Ring the doorbell of this member, then call [`GroupPoller::rung`].
    Doorbell(Ring),
    /// No member at home has anything: pause, and ask again with a new time.
    Spin,
    /// Run the CPU's pending softirqs and timers, and ask again.
    Softirqs,
    /// Let other threads of the core run, and ask again.
    Yield,
    /// Wake that poller, and ask again.
    Wake(GroupWake),
    /// Sleep until woken, then ask again.
    Park,
    /// Unmask every member ([`Group::unmask_for_rest`]; of a transmit queue the room interrupt, and only if its ring was full),
    /// sleep until woken, then ask again. A wake-up that came before the sleep ends it.
    Rest {
        /// When a frame may be sent that a discipline holds back: the sleep ends then at the latest.
        until_ns: Option<u64>,
    },
    /// The budget is spent: sleep until then, and ask again.
    Sleep {
        /// When the period ends.
        until_ns: u64,
    },
    /// This CPU was detached, and holds nothing any more. The poller ends.
    Detached,
}

/// One member to be polled; the poller holds its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The member's place in the group.
    pub member: u16,
    /// The index of its instance.
    pub napi: u32,
    /// Packets that it may take.
    pub budget: u32,
    /// Whether its interrupt is to be masked first: a rest had unmasked it.
    pub mask: bool,
}

/// A doorbell that is due; the poller holds the claim of its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The member's place in the group.
    pub member: u16,
    /// The index of its instance.
    pub napi: u32,
    /// Frames that it rings for.
    pub frames: u32,
    /// Why now.
    pub why: Why,
}

/// What a visit of a transmit queue did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmitted {
    /// Frames that are on the ring now, and were not before.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u32,
    /// What was left, and why.
    pub left: TxLeft,
}

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
}

/// A member of others that waited when this poller looked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspect {
    slot: u16,
    seen_ns: u64,
    served_ns: u64,
}

/// What the homes were worked out from.
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
    /// What it does once they have rung.
    after_doorbells: Option<GroupStep>,
}

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

/// Whether a transmit queue that was not poked is to be visited. Without a hint it is asked only while its ring is full: senders
/// poke it.
#[inline]
fn wants_to_send(member: &MemberSlot, hint: Option<bool>, cx: &Cx<'_>) -> bool {
    let room = member.blocked.load(Relaxed) && hint != Some(false);
    room || hint == Some(true) || member.due_ns.load(Relaxed) <= cx.now_ns
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
            after_doorbells: None,
        }
    }

    /// Its place in the group, as [`GroupWake`] names it.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The next step. `hint` says whether a member's device has frames, as [`lull_nic::IrqLine::pending`] does (of a transmit
    /// queue: whether its intake has, or its ring has room again); `due`, whether softirqs or timers of this CPU wait;
    /// `need_resched`, whether a thread is known to wait for it.
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
        if let Some(ring) = self.doorbell(group, false, cx) {
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
        if let Some(visit) = self.next_home(group, &hint, cx) {
            return self.serve(group, visit);
        }
        if !self.worked
            && let Some(visit) = self.stray(group, &hint, cx)
        {
            return self.serve(group, visit);
        }
        let worked = self.worked;
        let step = self.end_pass(group, cx);
        // After packets the next pass begins at once.
        if worked
            && step == GroupStep::Spin
            && let Some(visit) = self.next_home(group, &hint, cx)
        {
            return self.serve(group, visit);
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

    /// A poller that stops looking rings first: nobody else knows of what it held back, and softirqs may take milliseconds.
    #[cold]
    fn ring_before(&mut self, group: &Group, step: GroupStep, cx: &Cx<'_>) -> GroupStep {
        let stops = matches!(
            step,
            GroupStep::Park
                | GroupStep::Rest { .. }
                | GroupStep::Sleep { .. }
                | GroupStep::Softirqs
                | GroupStep::Yield
                | GroupStep::Detached
        );
        if stops && let Some(ring) = self.doorbell(group, true, cx) {
            self.after_doorbells = Some(step);
            return GroupStep::Doorbell(ring);
        }
        step
    }

    /// A doorbell that is due, with the claim of its member taken; `all`: any that was held back.
    #[inline]
    fn doorbell(&mut self, group: &Group, all: bool, cx: &Cx<'_>) -> Option<Ring> {
        while let Some((slot, why)) = self.doorbells.take(all, cx.now_ns) {
            let member = &group.members[usize::from(slot)];
            // Nothing, if another poller rang. Who has the claim just now answers for the doorbell afterwards.
            if member.unrung_frames.load(Relaxed) == 0 || !member.claim.take_between(Group::claimant(self.slot)) {
                continue;
            }
            let (napi, frames) = (member.napi.load(Ordering::Relaxed), member.unrung_frames.load(Relaxed));
            self.held = Some(Held { slot, owner: Owner::new(napi), budget: 0 });
            cx.emit(napi, EventKind::Doorbell { frames, why });
            return Some(Ring { member: slot, napi, frames, why });
        }
        None
    }

    /// The poll of the visit took `work` packets. What comes back is a member that leaves the group: its interrupt is masked,
    /// its last poll made, and what that owes is done, as after a busy loop.
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
        // Its device says when there is more; what GRO holds nobody would speak of.
        flush(if full { GroFlush::Old } else { GroFlush::All });
        let member = &group.members[usize::from(held.slot)];
        member.served_ns.store(cx.now_ns, Relaxed);
        let full_runs = if full { member.full_runs.load(Relaxed) + 1 } else { 0 };
        member.full_runs.store(full_runs, Relaxed);
        group.governor.filled(full_runs);
        self.worked |= work != 0;
        self.count(group, |counters| &counters.polls);
        self.give_back(group, held, napi, cx)
    }

    /// The visit of a transmit queue did this. What comes back is a member that leaves the group: its last run is made, which
    /// rings, and what its instance owes is done, as after a busy loop.
    pub fn transmitted(&mut self, group: &Group, napi: &Napi, sent: &Transmitted, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        assert!(sent.frames <= held.budget, "{} frames were sent with a budget of {}", sent.frames, held.budget);
        napi.assert_owner(&held.owner);
        napi.count_group_poll();
        napi.note_poll(sent.frames, cx);
        let member = &group.members[usize::from(held.slot)];
        member.served_ns.store(cx.now_ns, Relaxed);
        let more = sent.left == TxLeft::More;
        let full_runs = if more { member.full_runs.load(Relaxed) + 1 } else { 0 };
        member.full_runs.store(full_runs, Relaxed);
        group.governor.filled(full_runs);
        if more {
            // Nobody else speaks of what is in the discipline.
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
            member.unrung_since_ns.store(cx.now_ns, Relaxed);
        }
        let bytes = member.unrung_bytes.load(Relaxed).saturating_add(sent.bytes);
        member.unrung_frames.store(frames, Relaxed);
        member.unrung_bytes.store(bytes, Relaxed);
        if frames != 0 {
            // Also if they are another poller's: it may have come to ring during this visit, and found the claim taken.
            let unrung = Unrung { frames, bytes, since_ns: member.unrung_since_ns.load(Relaxed) };
            self.doorbells.left(held.slot, unrung, sent.frames != 0, sent.left == TxLeft::Room);
        }
        self.give_back(group, held, napi, cx)
    }

    /// The doorbell rang. What comes back is a member that leaves the group, as after a visit.
    pub fn rung(&mut self, group: &Group, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        let held = self.held.take()?;
        napi.assert_owner(&held.owner);
        group.members[usize::from(held.slot)].unrung_frames.store(0, Relaxed);
        self.count(group, |counters| &counters.doorbells);
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

    // ---- phases ----

    /// Whether a poller that slept goes on sleeping, or ends.
    #[cold]
    fn wake_up(&mut self, group: &Group, cx: &Cx<'_>) -> Option<GroupStep> {
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
    fn drain(&mut self, group: &Group, cx: &Cx<'_>) -> GroupStep {
        match group.drained(self.slot, cx) {
            Some(wake) => GroupStep::Wake(wake),
            None => GroupStep::Detached,
        }
    }

    /// Works out anew which members are at home here.
    #[cold]
    fn settle_in(&mut self, group: &Group, view: View, cx: &Cx<'_>) {
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

    // ---- one pass ----

    #[inline]
    fn next_home(&mut self, group: &Group, hint: &impl Fn(u16, u32) -> Option<bool>, cx: &Cx<'_>) -> Option<Visit> {
        while let Some(&slot) = self.homes.get(self.at) {
            self.at += 1;
            let member = &group.members[usize::from(slot)];
            let ready = match member.claim.look() {
                Look::Poked => true,
                Look::Free => {
                    let hint = hint(slot, member.napi.load(Ordering::Relaxed));
                    if member.transmit.load(Relaxed) { wants_to_send(member, hint, cx) } else { hint != Some(false) }
                }
                Look::Held(_) | Look::None => false,
            };
            if ready && let Some(visit) = self.claim(group, slot, self.previous_pass_ns, cx) {
                return Some(visit);
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
        let budget = member.weight.load(Relaxed);
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
        self.held = Some(Held { slot, owner: Owner::new(napi), budget });
        Some(Visit { member: slot, napi, budget, mask })
    }

    /// A look at the members that are at home with others: the one that was served longest ago is visited, if it waited ever
    /// since the last look and that is long ago. Members that another poller has had for too long are reported.
    fn stray(&mut self, group: &Group, hint: &impl Fn(u16, u32) -> Option<bool>, cx: &Cx<'_>) -> Option<Visit> {
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
            self.suspect = None;
            let visit = self.claim(group, now.slot, before.seen_ns, cx)?;
            self.count(group, |counters| &counters.strays);
            return Some(visit);
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

    // ---- between passes ----

    /// Every member at home was looked at once.
    fn end_pass(&mut self, group: &Group, cx: &Cx<'_>) -> GroupStep {
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
        GroupStep::Spin
    }

    /// Whether there is to be one poller more or one fewer.
    fn govern(&mut self, group: &Group, left: Left, cx: &Cx<'_>) -> Option<GroupStep> {
        let seen = group.watch.look();
        if seen.members() == 0 {
            return self.park(group, cx);
        }
        // Without cycles to burn nobody spins beside another.
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
                // Whoever stays has to be there: one whose core is taken watches nothing.
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

    #[inline]
    fn count(&self, group: &Group, counter: impl Fn(&super::PollerCounters) -> &super::PlainU64) {
        let counter = counter(&group.pollers[usize::from(self.slot)].counters);
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}
