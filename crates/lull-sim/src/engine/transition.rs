//! The named transitions of the delivery state machine, and how often a run took each; random worlds have to cover
//! them.
//!
//! Transitions of an instance follow from the core's own [events](lull_core::EventKind) and are counted by
//! `random::check`; those of the loops around it (epoll, sockets, softirq, settings) are counted where the executor
//! takes the core's step.

macro_rules! transitions {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// See the [module](self).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Transition { $(#[doc = $text] $name),* }

        impl Transition {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Transition] = &[$(Transition::$name),*];

            /// Returns its description.
            pub fn name(self) -> &'static str {
                match self { $(Transition::$name => $text),* }
            }
        }
    };
}

transitions! {
    ScheduleOwned = "schedule: taken",
    ScheduleMissed = "schedule: owned by another, MISSED set",
    ScheduleRefused = "schedule: refused, a disable is pending",
    RouteThread = "route: to the NAPI thread",
    PollEmpty = "poll: nothing",
    PollSome = "poll: fewer packets than the budget",
    PollFull = "poll: the whole budget",
    Repoll = "full budget: polled again",
    Yield = "full budget: yields to a preferring poller",
    YieldParked = "yield: parked with a timer",
    YieldAgain = "yield: without a timeout, scheduled again",
    YieldToDisable = "full budget: completed for a disable",
    CompleteKept = "complete: nothing, a busy poller owns it",
    CompleteAgain = "complete: MISSED, scheduled again",
    CompleteUnmask = "complete: released, interrupt",
    CompleteDefer = "complete: released, deferred",
    SettledLate = "settle: late, others acted since the release",
    TimerStarted = "timer: started",
    TimerForGro = "timer: started for GRO alone, the interrupt unmasked",
    TimerReplaced = "timer: started over a pending one",
    WatchdogTaken = "timer: fires, instance taken",
    WatchdogSwallowed = "timer: fires, swallowed by an owner",
    Suspend = "suspend: timer stretched",
    SuspendOff = "suspend: the setting is 0",
    ResumeScheduled = "resume: scheduled",
    ResumeNot = "resume: owned by another, or the setting is 0",
    BusyOwned = "busy poll: ownership won",
    BusyLost = "busy poll: ownership lost",
    BusyLostPrefer = "busy poll: ownership lost, PREFER set",
    BusyParked = "busy stop: full budget, parked with a timer",
    BusyHandOver = "busy stop: full budget, to softirq",
    BusyYielded = "busy loop: stopped for another thread, begun again",
    BusyIdGone = "busy loop: no instance has the id",
    ThreadRound = "thread: takes a round",
    ThreadBusy = "thread: begins to busy poll",
    ThreadBusyOver = "thread: ceases to busy poll",
    ThreadedOn = "threading: turned on",
    ThreadedBusy = "threading: turned to busy polling",
    ThreadedOff = "threading: turned off",
    ThreadedOffWaits = "threading: off waits for another owner",
    DisableClaimed = "disable: claimed",
    DisableWaits = "disable: waits for the owner",
    EnableSameId = "enable: its id and settings come back",
    EnableNewId = "enable: with a fresh id",
    SoftirqRestart = "softirq: restarted",
    SoftirqSqueeze = "softirq: out of budget or time",
    Ksoftirqd = "softirq: left to ksoftirqd",
    EpollIdNoted = "epoll: an instance's id noted",
    EpollIdChanged = "epoll: another instance's id noted",
    EpollCopy = "epoll: events copied, returned",
    EpollStale = "epoll: only stale events copied",
    EpollOneRound = "epoll: busy polls one round",
    EpollSpin = "epoll: busy polls until its limit",
    EpollFound = "epoll: the busy loop found events",
    EpollNothing = "epoll: the busy loop found nothing, id forgotten",
    EpollResume = "epoll: resumes",
    EpollSuspend = "epoll: suspends",
    EpollSleep = "epoll: sleeps",
    EpollTimeout = "epoll: times out",
    EpollZero = "epoll: timeout 0, nothing ready, returns",
    EpollZeroPolls = "epoll: timeout 0, polls (mended)",
    EpollCapPolls = "epoll: polls though events are ready (mended)",
    EpollLeftBehind = "epoll: id changed, the suspended one resumed (mended)",
    EpollParams = "epoll: parameters changed",
    EpollFreed = "epoll: freed",
    EpollFreedResumes = "epoll: freed, resumes",
    OtherEvent = "epoll: another event makes it ready",
    SocketOneRound = "socket: busy polls one round",
    SocketSpin = "socket: busy polls until its limit",
    GroupEntered = "group: an instance enters",
    GroupEnterOwned = "group: entering waits for the owner",
    GroupLeft = "group: an instance leaves",
    GroupClaim = "group: a member is visited by its home",
    GroupStray = "group: a member is visited by another poller",
    GroupWake = "group: a poller is woken",
    GroupPark = "group: a poller parks",
    GroupRest = "group: the last poller rests",
    GroupRestEnd = "group: a rest ends",
    GroupStalled = "group: a stalled visit is seen",
    GroupAttached = "group: a CPU is attached",
    GroupDetached = "group: a CPU is detached",
    GroupLastCpu = "group: the last CPU goes after all members",
    GroupSleep = "group: the budget is spent",
    TxRun = "transmit: a sender runs",
    TxNoted = "transmit: a sender leaves its frame to whoever runs",
    TxGroup = "transmit: a sender tells the group",
    TxAgain = "transmit: a run looks again",
    TxIdle = "transmit: a run ends",
    TxQuota = "transmit: a run has used its quota",
    TxRoom = "transmit: a run waits for room",
    TxUntil = "transmit: a run leaves frames that are not due",
    TxDoorbell = "transmit: a doorbell rings that was held back",
    NapiSet = "settings: of one instance",
    DeviceSet = "settings: of the device",
}

impl Transition {
    /// Transitions of transmit queues with a discipline, which only worlds with such queues take.
    pub const TRANSMIT: [Transition; 9] = [
        Transition::TxRun,
        Transition::TxNoted,
        Transition::TxGroup,
        Transition::TxAgain,
        Transition::TxIdle,
        Transition::TxQuota,
        Transition::TxRoom,
        Transition::TxUntil,
        Transition::TxDoorbell,
    ];
}

/// How often each transition was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Transition::ALL.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([0; Transition::ALL.len()])
    }
}

impl Coverage {
    /// Counts one.
    #[inline]
    pub(crate) fn add(&mut self, transition: Transition) {
        self.0[transition as usize] += 1;
    }

    /// How often this one was taken.
    pub fn count(&self, transition: Transition) -> u64 {
        self.0[transition as usize]
    }

    /// Returns the number of transitions of the core, without those that changed nothing in it and those that are not
    /// its own.
    pub fn transitions(&self) -> u64 {
        let not_counted = [
            Transition::CompleteKept,
            Transition::SuspendOff,
            Transition::BusyIdGone,
            Transition::SettledLate,
            Transition::YieldParked,
            Transition::YieldAgain,
            Transition::TimerForGro,
            Transition::OtherEvent,
            Transition::GroupEnterOwned,
            Transition::GroupStalled,
            Transition::GroupSleep,
            Transition::NapiSet,
            Transition::DeviceSet,
        ];
        let not_counted: u64 = not_counted.iter().map(|&transition| self.count(transition)).sum();
        self.0.iter().sum::<u64>() - not_counted
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Coverage) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the transitions that were never taken.
    pub fn uncovered(&self) -> Vec<Transition> {
        Transition::ALL.iter().copied().filter(|&transition| self.count(transition) == 0).collect()
    }
}

impl std::fmt::Display for Coverage {
    /// Writes a line for each transition, with its count and its description.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &transition in Transition::ALL {
            let count = self.count(transition);
            let gap = if count == 0 { "  <- UNCOVERED" } else { "" };
            writeln!(f, "{count:>12}  {}{gap}", transition.name())?;
        }
        Ok(())
    }
}
