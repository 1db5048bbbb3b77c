//! Busy-polling CPU groups, §15: some CPUs poll some NAPIs for as long as those are members; whatever CPU of the group is
//! free serves.
//!
//! Three objects. A [`Group`] is shared: its member table, who watches ([`watch`]), how many pollers that takes
//! ([`governor`]), what they may spend ([`budget`]). A member is an instance in the state GPOLL with a claim of its own
//! (`claim`), so that pollers do not contend on the instance's word. A [`GroupPoller`] is the loop of one CPU, a step machine
//! ([`poller`]): the executor does what [`GroupPoller::next`] says and asks again.
//!
//! Contexts that may run at any time: the pollers, each by one thread; [`Group::raised`], from interrupts. The operator's
//! calls (`enter`, `remove`, `attach`, `detach`) are made one at a time, under the executor's control lock.

pub mod budget;
pub(crate) mod claim;
pub mod governor;
pub mod poller;
pub mod watch;

use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};

pub use budget::Budget;
pub use governor::Thresholds;
pub use poller::{GroupPoller, GroupStep, Ring, Transmitted, Visit};

use crate::busy::BusyStop;
use crate::event::{Cx, EventKind};
use crate::group::budget::Ledger;
use crate::group::claim::{Claim, Claimant, Leaving, Look};
use crate::group::governor::Governor;
use crate::group::watch::{Detached, GROUP_POLLERS_MAX, Watch};
use crate::napi::Napi;
use crate::owner::Owner;
use crate::settings::WEIGHT_DEFAULT;
use crate::state::GroupAcquired;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// Most members of a group.
pub const GROUP_MEMBERS_MAX: usize = 256;
/// A member that another poller has had for longer than this is reported as stalled, in nanoseconds.
pub const STALLED_NS: u64 = 1_000_000;

/// How a group behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupConfig {
    /// The last poller that is awake rests after so many nanoseconds of empty passes; `None`: it never does.
    pub rest_ns: Option<u64>,
    /// What the pollers may spend.
    pub budget: Budget,
    /// When pollers are woken and parked.
    pub thresholds: Thresholds,
}

/// Why a group was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupConfigError {
    /// A budget of nothing, or of more than the pollers of a group can spend.
    Budget {
        /// In percent of one CPU.
        percent: u32,
    },
    /// A threshold above 100 %, or the lower one not below the upper.
    Thresholds {
        /// As given.
        given: Thresholds,
    },
}

impl std::fmt::Display for GroupConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GroupConfigError::Budget { percent } => write!(
                f,
                "a group cannot work with a budget of {percent} %: give 1 to {} % of one CPU, or no budget",
                budget::BUDGET_PERCENT_MAX
            ),
            GroupConfigError::Thresholds { given } => write!(
                f,
                "a group cannot wake pollers above {} % and park them below {} %: both are at most 100 %, and the second \
                 is below the first",
                given.wake_above, given.park_below
            ),
        }
    }
}

impl std::error::Error for GroupConfigError {}

impl GroupConfig {
    /// Checks it against its limits.
    ///
    /// # Errors
    /// A budget of 0, or thresholds that would wake and park in turn.
    pub fn check(&self) -> Result<(), GroupConfigError> {
        for percent in [self.budget.empty_percent, self.budget.total_percent].into_iter().flatten() {
            if !(1..=budget::BUDGET_PERCENT_MAX).contains(&percent) {
                return Err(GroupConfigError::Budget { percent });
            }
        }
        let given = self.thresholds;
        if given.wake_above > 100 || given.park_below >= given.wake_above {
            return Err(GroupConfigError::Thresholds { given });
        }
        Ok(())
    }
}

/// One member, as [`Group::members`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its place in the group.
    pub slot: u16,
    /// The index of its instance.
    pub napi: u32,
}

/// A poller that is to be woken. Its bit is set already: who drops this leaves members unwatched.
#[must_use = "the poller's bit is set, and nobody else will wake it"]
#[derive(Debug, PartialEq, Eq)]
pub struct GroupWake {
    /// Its place in the group.
    pub slot: u8,
    /// Its CPU.
    pub cpu: u16,
}

/// Why an instance did not become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnterRefused {
    /// Its owner has not let go yet, and was asked to: try again in 20 to 200 us.
    Owned,
    /// It is in a group already.
    Grouped,
    /// It is disabled.
    Disabled,
    /// Its NAPI thread polls it: turn `threaded` off first.
    Threaded,
    /// The group has [`GROUP_MEMBERS_MAX`] members.
    Full,
    /// The group has no CPU.
    NoCpu,
}

/// A new member. The executor masks its interrupt, and wakes the poller, if there is one to wake.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its place in the group.
    pub slot: u16,
    /// A poller that is to be woken.
    pub wake: Option<GroupWake>,
}

/// What becomes of a member that an operator takes out.
#[must_use]
#[derive(Debug)]
pub enum Removal {
    /// The caller owes its last poll, as after a busy loop. The interrupt is masked first: a rest may have left it unmasked.
    Mine(BusyStop),
    /// A poller serves it just now, and lets it go afterwards.
    Holders,
    /// It is not a member.
    Absent,
}

/// Why a CPU was not attached or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachRefused {
    /// The group has as many pollers as it can.
    Full,
    /// The group has that CPU already.
    Attached,
    /// The group does not have that CPU.
    Unknown,
    /// It is the last CPU, and there are members: they leave first.
    Last,
}

/// What a poller does, as [`Group::pollers`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerInfo {
    /// Its CPU.
    pub cpu: u16,
    /// Whether it is awake.
    pub awake: bool,
    /// Whether it is the one that rests.
    pub resting: bool,
    /// Its counters.
    pub stats: PollerStats,
    /// The member that it serves, and since when, if it does.
    pub serves: Option<(u32, u64)>,
}

macro_rules! poller_stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a poller did since it was attached.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
        pub struct PollerStats { $($(#[$doc])* pub $name: u64),* }

        /// The same, live; written by the poller alone.
        #[derive(Debug, Default)]
        pub(crate) struct PollerCounters { $(pub(crate) $name: PlainU64),* }

        impl PollerCounters {
            fn snapshot(&self) -> PollerStats {
                PollerStats { $($name: self.$name.load(Relaxed)),* }
            }

            fn clear(&self) {
                $(self.$name.store(0, Relaxed);)*
            }
        }
    };
}

poller_stats! {
    /// Visits that polled.
    polls,
    /// Those of them to members that are at home elsewhere.
    strays,
    /// Visits that found a shard's lock held.
    locked,
    /// Passes over its members.
    passes,
    /// Nanoseconds of passes that found packets.
    busy_ns,
    /// Nanoseconds of passes that found none.
    empty_ns,
    /// Times that it woke another poller.
    wakes,
    /// Times that it parked.
    parks,
    /// Times that it rested.
    rests,
    /// Times that it let other threads of its core run.
    yields,
    /// Times that it slept because the budget was spent.
    sleeps,
    /// Times that it saw another poller hold a member for too long.
    stalls_seen,
    /// Visits of transmit queues.
    transmits,
    /// Frames that they sent.
    tx_frames,
    /// Doorbells that it rang.
    doorbells,
}

/// One poller's place in the group, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PollerSlot {
    cpu: PlainU32,
    /// When it last ended a pass: whether it runs.
    passed_ns: PlainU64,
    /// When it was last woken or parked, so that it is not at once parked or woken again.
    changed_ns: PlainU64,
    /// Since when it serves a member, and which; 0 is none. For those who look for stalls.
    serves_since_ns: PlainU64,
    serves: PlainU32,
    counters: PollerCounters,
}

/// One member.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MemberSlot {
    pub(crate) claim: Claim,
    /// The index of its instance; read by a claim's holder, and as a hint.
    napi: AtomicU32,
    weight: PlainU32,
    /// Its interrupt is unmasked, by a rest. Its next visit masks it.
    armed: AtomicBool,
    /// When it was last polled. A hint.
    served_ns: PlainU64,
    /// Visits in a row that filled its weight. Of the claim's holder.
    full_runs: PlainU32,
    /// It is a transmit queue (§16).
    transmit: PlainBool,
    /// Its ring had no room for what waits. Of the claim's holder, for others a hint; so is what follows.
    blocked: PlainBool,
    /// When what it holds back may be sent, or [`NEVER_NS`].
    due_ns: PlainU64,
    /// What is on its ring, and its doorbell has not rung for.
    unrung_frames: PlainU32,
    unrung_bytes: PlainU32,
    /// When the first of that was sent.
    unrung_since_ns: PlainU64,
}

/// No deadline.
const NEVER_NS: u64 = u64::MAX;

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
            full_runs: PlainU32::new(0),
            transmit: PlainBool::new(false),
            blocked: PlainBool::new(false),
            due_ns: PlainU64::new(NEVER_NS),
            unrung_frames: PlainU32::new(0),
            unrung_bytes: PlainU32::new(0),
            unrung_since_ns: PlainU64::new(0),
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

    // ---- the operator ----

    /// Makes an instance a member, which is polled up to `weight` packets a visit (§15).
    ///
    /// # Errors
    /// Nothing was changed; but an owner was asked to yield.
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
        member.full_runs.store(0, Relaxed);
        member.transmit.store(transmit, Relaxed);
        member.blocked.store(false, Relaxed);
        member.due_ns.store(NEVER_NS, Relaxed);
        member.unrung_frames.store(0, Relaxed);
        member.unrung_bytes.store(0, Relaxed);
        // From here on the ownership is in the claim.
        owner.consume();
        member.claim.fill();
        self.generation.fetch_add(1, Ordering::Release);
        // After the member can be seen: a poller that is about to rest either finds it, or does not rest.
        let Some(wake) = self.watch.enter() else {
            unreachable!("the last CPU of a group was detached while a member entered: operators take turns")
        };
        Ok(Entered { slot: slot as u16, wake: wake.map(|poller| self.woken(poller, cx)) })
    }

    /// Takes a member out. The caller waits until the instance is not GROUPED any more.
    pub fn remove(&self, slot: u16, napi: &Napi, cx: &Cx<'_>) -> Removal {
        match self.members[usize::from(slot)].claim.leave() {
            Leaving::Absent => Removal::Absent,
            Leaving::Holders => Removal::Holders,
            Leaving::Mine => Removal::Mine(self.leave(slot, Owner::new(napi.index()), napi, cx)),
        }
    }

    /// A CPU comes, parked: its executor starts the poller.
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

    /// The place of a poller that was detached before it ran is free; who serves in its stead is to be woken.
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

    // ---- interrupts ----

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

    // ---- looking ----

    /// Changes with each member that comes or goes.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Its members now.
    pub fn members(&self) -> impl Iterator<Item = GroupMember> {
        self.members
            .iter()
            .enumerate()
            .filter(|(_, member)| !member.claim.is_absent())
            .map(|(slot, member)| GroupMember { slot: slot as u16, napi: member.napi.load(Ordering::Relaxed) })
    }

    /// Its pollers now.
    pub fn pollers(&self) -> Vec<PollerInfo> {
        let seen = self.watch.look();
        let attached = (0..GROUP_POLLERS_MAX as u8).filter(|slot| seen.is_attached(*slot));
        let info = |slot: u8| {
            let place = &self.pollers[usize::from(slot)];
            let since_ns = place.serves_since_ns.load(Relaxed);
            PollerInfo {
                cpu: self.cpu(slot),
                awake: seen.is_awake(slot),
                resting: seen.is_resting() && seen.is_awake(slot),
                stats: place.counters.snapshot(),
                serves: (since_ns != 0).then(|| (place.serves.load(Relaxed), since_ns)),
            }
        };
        attached.map(info).collect()
    }

    /// Frames of a member that are on its ring, and that its doorbell has not rung for. For checking I14 and I15.
    pub fn unrung(&self, slot: u16) -> u32 {
        self.members[usize::from(slot)].unrung_frames.load(Relaxed)
    }

    /// Whether nobody of this group burns cycles: no poller is awake, or the last one rests.
    pub fn is_quiet(&self) -> bool {
        let seen = self.watch.look();
        seen.awake() == 0 || seen.is_resting()
    }

    /// Whether the poller of this CPU is awake, resting included.
    pub fn is_awake(&self, cpu: u16) -> bool {
        self.slot_of(cpu).is_some_and(|slot| self.watch.look().is_awake(slot))
    }

    /// For checking I12: what homes hang on, the generation of the members and the pollers that are awake by their places. A
    /// poller that was detached goes on until it has drained.
    pub fn homes_hang_on(&self) -> (u32, u32) {
        (self.generation(), self.watch.look().awake())
    }

    /// For checking I16: whether others are awake beside the poller of this CPU of whom none ended a pass within the last
    /// window. It goes on beside them, whatever the budget.
    pub fn watches_alone(&self, cpu: u16, now_ns: u64) -> bool {
        let Some(slot) = self.slot_of(cpu) else { return false };
        let others = self.watch.look().awake() & !(1 << slot);
        others != 0 && self.running(others, now_ns) == 0
    }

    /// For checking I11 and I13: members, CPUs attached and awake, and whether the last one rests.
    pub fn census(&self) -> Census {
        let seen = self.watch.look();
        Census {
            members: seen.members(),
            attached: seen.attached().count_ones(),
            awake: seen.awake().count_ones(),
            resting: seen.is_resting(),
        }
    }

    // ---- within ----

    /// The holder of a member's claim lets the instance go: it is nobody's member any more, and its last poll is owed. The last
    /// run of a transmit queue rings its doorbell.
    pub(crate) fn leave(&self, slot: u16, owner: Owner, napi: &Napi, cx: &Cx<'_>) -> BusyStop {
        cx.emit(napi.index(), EventKind::GroupLeave);
        let stop = BusyStop::begin(napi, owner, true, napi.weight(), cx);
        self.members[usize::from(slot)].unrung_frames.store(0, Relaxed);
        self.members[usize::from(slot)].claim.empty();
        self.watch.left();
        self.generation.fetch_add(1, Ordering::Release);
        stop
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
        self.members.iter().any(|member| member.claim.look() == Look::Poked)
    }

    /// When the first of the frames may be sent that transmit queues hold back.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let due = |member: &MemberSlot| if member.claim.is_absent() { NEVER_NS } else { member.due_ns.load(Relaxed) };
        self.members.iter().map(due).min().filter(|due_ns| *due_ns != NEVER_NS)
    }

    pub(crate) fn busy_ns(&self) -> u64 {
        self.pollers.iter().map(|poller| poller.counters.busy_ns.load(Relaxed)).sum()
    }

    /// Those of the `awake` pollers that ended a pass within the last window.
    pub(crate) fn running(&self, awake: u32, now_ns: u64) -> u32 {
        let runs = |slot: &usize| {
            let passed_ns = self.pollers[*slot].passed_ns.load(Relaxed);
            awake & (1 << *slot) != 0 && now_ns.saturating_sub(passed_ns) <= governor::GOVERNOR_WINDOW_NS
        };
        (0..GROUP_POLLERS_MAX).filter(runs).fold(0, |all, slot| all | 1 << slot)
    }

    /// What these pollers have run since they ended a pass, together.
    pub(crate) fn unpassed_ns(&self, pollers: u32, now_ns: u64) -> u64 {
        let is_one = |slot: &usize| pollers & (1 << *slot) != 0;
        let since = |slot: usize| now_ns.saturating_sub(self.pollers[slot].passed_ns.load(Relaxed));
        (0..GROUP_POLLERS_MAX).filter(is_one).map(since).sum()
    }

    pub(crate) fn claimant(slot: u8) -> Claimant {
        Claimant::poller(slot)
    }
}

/// Who is in a group, and who of its pollers is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Members.
    pub members: u32,
    /// CPUs that are attached.
    pub attached: u32,
    /// Pollers that are awake, one that rests included.
    pub awake: u32,
    /// Whether the last one that is awake rests.
    pub resting: bool,
}

impl Census {
    /// What I11 and I13 say of it, for [`GroupStep`]s that were answered.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.members != 0 && self.awake == 0 {
            return Err("I11: members that nobody watches");
        }
        if self.resting && self.awake != 1 {
            return Err("I13: a poller rests that is not the only one awake");
        }
        Ok(())
    }
}
