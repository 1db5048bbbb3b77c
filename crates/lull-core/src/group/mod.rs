//! Busy-polling CPU groups, §15: some CPUs poll some NAPIs for as long as those are members, and any CPU of the group
//! that is free serves any member.
//!
//! Three objects. A [`Group`] is shared: its member table, who watches ([`watch`]), how many pollers that takes
//! ([`governor`]), what they may spend ([`budget`]). A member is an instance in the state GPOLL with a claim of its own
//! (`claim`), so that pollers do not contend on the instance's word. A [`GroupPoller`] is the loop of one CPU, a step machine
//! ([`poller`]): the executor does what [`GroupPoller::next`] says and asks again.
//!
//! The pollers may run at any time, each by one thread, and so may [`Group::raised`], from interrupts. The operator's
//! calls (`enter`, `remove`, `attach`, `detach`) are made one at a time, under the executor's control lock.

pub mod budget;
mod census;
pub(crate) mod claim;
mod config;
pub mod governor;
mod outcome;
pub mod poller;
mod slots;
mod visits;
pub mod watch;

use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};

pub use budget::Budget;
pub use census::Census;
pub use config::{GroupConfig, GroupConfigError};
pub use governor::Thresholds;
pub use outcome::{AttachRefused, EnterRefused, Entered, GroupMember, GroupWake, PollerInfo, Removal};
pub use poller::{GroupPoller, GroupStep, Ring, Transmitted, Visit, Walk};
pub use slots::PollerStats;

use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::budget::Ledger;
use crate::group::claim::{Claim, Claimant, Leaving};
use crate::group::governor::Governor;
use crate::group::slots::{MemberSlot, NEVER_NS, PollerCounters, PollerSlot};
use crate::group::visits::Visits;
use crate::group::watch::{Detached, GROUP_POLLERS_MAX, Watch};
use crate::napi::Napi;
use crate::owner::Owner;
use crate::settings::WEIGHT_DEFAULT;
use crate::state::GroupAcquired;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// Most members of a group.
pub const GROUP_MEMBERS_MAX: usize = if cfg!(loom) { 2 } else { 256 };
/// A member that another poller has had for longer than this is reported as stalled, in nanoseconds.
pub const STALLED_NS: u64 = 1_000_000;

/// A busy-polling CPU group. See the [module](self).
#[derive(Debug)]
pub struct Group {
    index: u32,
    config: GroupConfig,
    pub(crate) watch: Watch,
    /// Counts changes of the member table.
    generation: AtomicU32,
    pub(crate) members: Box<[MemberSlot]>,
    pub(crate) pollers: Box<[PollerSlot]>,
    pub(crate) governor: Governor,
    pub(crate) ledger: Ledger,
}

impl Group {
    /// A group without CPUs and members. `index` is its number, by which events name it.
    ///
    /// # Errors
    /// The configuration is outside its limits.
    pub fn new(index: u32, config: GroupConfig) -> Result<Group, GroupConfigError> {
        Group::with_members_max(index, config, GROUP_MEMBERS_MAX)
    }

    /// As [`Group::new`], for fewer members.
    pub(crate) fn with_members_max(
        index: u32,
        config: GroupConfig,
        members_max: usize,
    ) -> Result<Group, GroupConfigError> {
        config.check()?;
        let member = || MemberSlot {
            claim: Claim::new(),
            napi: AtomicU32::new(0),
            weight: PlainU32::new(WEIGHT_DEFAULT),
            armed: AtomicBool::new(false),
            served_ns: PlainU64::new(0),
            full_packets: PlainU32::new(0),
            visits: Visits::new(),
            transmit: PlainBool::new(false),
            blocked: PlainBool::new(false),
            due_ns: PlainU64::new(NEVER_NS),
            unrung_frames: PlainU32::new(0),
            unrung_bytes: PlainU32::new(0),
            unrung_since_ns: PlainU64::new(0),
            sent_ns: PlainU64::new(0),
            is_busy: PlainBool::new(false),
        };
        let poller = || PollerSlot {
            cpu: PlainU32::new(0),
            passed_ns: PlainU64::new(0),
            changed_ns: PlainU64::new(0),
            serves_since_ns: PlainU64::new(0),
            serves: PlainU32::new(0),
            counters: PollerCounters::default(),
        };
        Ok(Group {
            index,
            config,
            watch: Watch::new(),
            generation: AtomicU32::new(0),
            members: (0..members_max).map(|_| member()).collect(),
            pollers: (0..GROUP_POLLERS_MAX).map(|_| poller()).collect(),
            governor: Governor::default(),
            ledger: Ledger::new(config.budget),
        })
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How it behaves.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Makes an instance a member, which is polled up to `weight` packets a visit (§15).
    ///
    /// # Errors
    /// Nothing was changed, except that an owner was asked to yield.
    pub fn enter(&self, napi: &Napi, weight: u32, cx: &Cx<'_>) -> Result<Entered, EnterRefused> {
        self.enter_as(napi, weight, false, cx)
    }

    /// Makes a transmit queue a member, by its NAPI: its visits are [`GroupStep::Transmit`], up to `weight` frames each (§16).
    /// The caller has made the group the runner of the queue ([`crate::tx::TxWord::group_enter`]), and takes that back if this is
    /// refused ([`crate::tx::TxWord::group_leave`]).
    ///
    /// # Errors
    /// As [`Group::enter`].
    pub fn enter_transmit(&self, napi: &Napi, weight: u32, cx: &Cx<'_>) -> Result<Entered, EnterRefused> {
        self.enter_as(napi, weight, true, cx)
    }

    fn enter_as(&self, napi: &Napi, weight: u32, transmit: bool, cx: &Cx<'_>) -> Result<Entered, EnterRefused> {
        assert!((1..=napi.weight()).contains(&weight), "a member's weight is 1 to {}", napi.weight());
        if self.watch.look().attached() == 0 {
            return Err(EnterRefused::NoCpu);
        }
        let Some(slot) = self.members.iter().position(|member| member.claim.is_absent()) else {
            return Err(EnterRefused::Full);
        };
        let owner = napi.group_acquire(cx).map_err(|refused| match refused {
            GroupAcquired::Grouped => EnterRefused::Grouped,
            GroupAcquired::Disabled => EnterRefused::Disabled,
            GroupAcquired::Threaded => EnterRefused::Threaded,
            GroupAcquired::Owned | GroupAcquired::Won => EnterRefused::Owned,
        })?;
        let member = &self.members[slot];
        member.napi.store(napi.index(), Ordering::Relaxed);
        member.weight.store(weight, Relaxed);
        member.armed.store(false, Ordering::Relaxed);
        member.served_ns.store(cx.now_ns, Relaxed);
        member.full_packets.store(0, Relaxed);
        member.visits.forget();
        member.transmit.store(transmit, Relaxed);
        member.blocked.store(false, Relaxed);
        member.due_ns.store(NEVER_NS, Relaxed);
        member.unrung_frames.store(0, Relaxed);
        member.unrung_bytes.store(0, Relaxed);
        member.sent_ns.store(0, Relaxed);
        // From here on the ownership is in the claim.
        owner.consume();
        member.claim.fill();
        self.generation.fetch_add(1, Ordering::Release);
        // This comes after the member can be seen: a poller that is about to rest either finds it, or does not rest.
        let Some(wake) = self.watch.enter() else {
            unreachable!("the last CPU of a group was detached while a member entered: operators take turns")
        };
        Ok(Entered { slot: slot as u16, wake: wake.map(|poller| self.woken(poller, cx)) })
    }

    /// Takes a member out. The caller waits until the instance is not GROUPED any more: it is nowhere in the group then.
    pub fn remove(&self, slot: u16, napi: &Napi, cx: &Cx<'_>) -> Removal {
        let member = &self.members[usize::from(slot)];
        // A poller lets go of a member that is being disabled by itself, so another member may have the place since.
        if member.napi.load(Ordering::Relaxed) != napi.index() {
            return Removal::Absent;
        }
        match member.claim.leave() {
            Leaving::Absent => Removal::Absent,
            Leaving::Holders => Removal::Holders,
            Leaving::Mine => Removal::Mine(self.leave(slot, Owner::new(napi.index()), napi, cx)),
        }
    }

    /// A CPU comes, and is parked at first: the executor starts its poller.
    ///
    /// # Errors
    /// There is no room, or the group has it.
    pub fn attach(&self, cpu: u16, cx: &Cx<'_>) -> Result<GroupPoller, AttachRefused> {
        let attached = self.watch.look().attached();
        if self.slot_of(cpu).is_some() {
            return Err(AttachRefused::Attached);
        }
        let slot = (!attached).trailing_zeros() as usize;
        if slot >= GROUP_POLLERS_MAX {
            return Err(AttachRefused::Full);
        }
        let place = &self.pollers[slot];
        place.cpu.store(u32::from(cpu), Relaxed);
        place.changed_ns.store(0, Relaxed);
        place.passed_ns.store(0, Relaxed);
        place.counters.clear();
        self.watch.attach(slot as u8);
        Ok(GroupPoller::new(slot as u8, cx.now_ns))
    }

    /// A CPU goes. Its poller is to be woken, and ends with [`GroupStep::Detached`]; nothing else is attached before that.
    ///
    /// # Errors
    /// The group does not have it, or it is the last one and there are members.
    pub fn detach(&self, cpu: u16) -> Result<GroupWake, AttachRefused> {
        let slot = self.slot_of(cpu).ok_or(AttachRefused::Unknown)?;
        match self.watch.detach(slot) {
            Detached::Drains => Ok(GroupWake { slot, cpu }),
            Detached::Last => Err(AttachRefused::Last),
        }
    }

    /// Frees the place of a poller that was detached before it ran. Returns the poller that serves in its stead, to be
    /// woken.
    pub fn drained(&self, slot: u8, cx: &Cx<'_>) -> Option<GroupWake> {
        self.watch.drain(slot).map(|heir| self.woken(heir, cx))
    }

    /// Packets that a member may take per visit.
    pub fn weight(&self, slot: u16) -> u32 {
        self.members[usize::from(slot)].weight.load(Relaxed)
    }

    fn slot_of(&self, cpu: u16) -> Option<u8> {
        let attached = self.watch.look().attached();
        (0..GROUP_POLLERS_MAX as u8).find(|slot| attached & (1 << slot) != 0 && self.cpu(*slot) == cpu)
    }

    fn cpu(&self, slot: u8) -> u16 {
        self.pollers[usize::from(slot)].cpu.load(Relaxed) as u16
    }

    /// A member's interrupt was raised, after [`crate::Schedule::Group`]: it is visited, and a rest ends.
    pub fn raised(&self, slot: u16, cx: &Cx<'_>) -> Option<GroupWake> {
        self.members[usize::from(slot)].claim.poke();
        self.watch.rise().map(|poller| self.woken(poller, cx))
    }

    /// Frames wait in the intake of a member that is a transmit queue, as [`crate::tx::Enqueued::Group`] says: it is visited, and a
    /// rest ends.
    pub fn enqueued(&self, slot: u16, cx: &Cx<'_>) -> Option<GroupWake> {
        self.members[usize::from(slot)].claim.poke();
        self.watch.rise().map(|poller| self.woken(poller, cx))
    }

    /// A member that rests with the others was unmasked by the poller that rests, or is about to be.
    pub fn unmask_for_rest(&self, mut unmask: impl FnMut(GroupMember)) {
        for member in self.members() {
            self.members[usize::from(member.slot)].armed.store(true, Ordering::Relaxed);
            unmask(member);
        }
    }

    /// The holder of a member's claim lets the instance go: it is nobody's member any more, and its last poll is owed. The last
    /// run of a transmit queue rings its doorbell.
    pub(crate) fn leave(&self, slot: u16, owner: Owner, napi: &Napi, cx: &Cx<'_>) -> BusyStop {
        cx.emit(napi.index(), EventKind::GroupLeave);
        let member = &self.members[usize::from(slot)];
        member.unrung_frames.store(0, Relaxed);
        // An operator may detach the last CPU once he has seen all members without GROUPED, so none may be counted any
        // more by then. And whoever finds a member counted finds it in the table.
        self.watch.left();
        member.claim.empty();
        self.generation.fetch_add(1, Ordering::Release);
        BusyStop::begin(napi, owner, true, napi.weight(), cx)
    }

    /// Notes that a poller's bit was set, or its rest ended: whoever gets this wakes it.
    pub(crate) fn woken(&self, slot: u8, cx: &Cx<'_>) -> GroupWake {
        let cpu = self.cpu(slot);
        self.pollers[usize::from(slot)].changed_ns.store(cx.now_ns, Relaxed);
        cx.emit(self.index, EventKind::GroupWake { cpu });
        GroupWake { slot, cpu }
    }

    /// Whether something is to be polled whatever the devices say.
    pub(crate) fn is_poked(&self) -> bool {
        self.members.iter().any(|member| member.claim.is_poked())
    }

    /// When the first of the frames that transmit queues hold back may be sent.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let due = |member: &MemberSlot| if member.claim.is_absent() { NEVER_NS } else { member.due_ns.load(Relaxed) };
        self.members.iter().map(due).min().filter(|due_ns| *due_ns != NEVER_NS)
    }

    pub(crate) fn busy_ns(&self) -> u64 {
        self.pollers.iter().map(|poller| poller.counters.busy_ns.load(Relaxed)).sum()
    }

    /// Returns those of the `awake` pollers that ended a pass within the last window.
    pub(crate) fn running(&self, awake: u32, now_ns: u64) -> u32 {
        let runs = |slot: &usize| {
            let passed_ns = self.pollers[*slot].passed_ns.load(Relaxed);
            awake & (1 << *slot) != 0 && now_ns.saturating_sub(passed_ns) <= governor::GOVERNOR_WINDOW_NS
        };
        (0..GROUP_POLLERS_MAX).filter(runs).fold(0, |all, slot| all | 1 << slot)
    }

    /// How long these pollers, together, have run since each ended its last pass.
    pub(crate) fn unpassed_ns(&self, pollers: u32, now_ns: u64) -> u64 {
        let is_one = |slot: &usize| pollers & (1 << *slot) != 0;
        let since = |slot: usize| now_ns.saturating_sub(self.pollers[slot].passed_ns.load(Relaxed));
        (0..GROUP_POLLERS_MAX).filter(is_one).map(since).sum()
    }

    pub(crate) fn claimant(slot: u8) -> Claimant {
        Claimant::poller(slot)
    }
}
