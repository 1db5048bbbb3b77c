//! The busy loop (`__napi_busy_loop`) and its stop (`busy_poll_stop`), §7, as steps.
//!
//! ```text
//! loop {
//!     match busy.round(&napi) { Poll → poll the device, busy.polled(work); Lost → nothing }
//!     run this CPU's pending softirqs                     # local_bh_enable
//!     if the end condition holds, or somebody waits for the CPU: break
//! }
//! if let Some(stop) = busy.stop(&napi) { poll once more, stop.polled(work) }
//! ```

use crate::event::{Cx, EventKind};
use crate::napi::Napi;
use crate::owner::{Completion, GroFlush, Owner, Release};
use crate::settings::BUSY_POLL_BUDGET_DEFAULT;
use crate::state::Acquired;

/// The busy loop's clock: nanoseconds shifted right by 10, so its "microseconds" are 1.024 us
/// (`busy_loop_current_time`).
#[inline]
pub fn busy_clock_us(now_ns: u64) -> u64 {
    now_ns >> 10
}

/// When a busy loop ends, apart from having found events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyEnd {
    /// Before the first round: the last poll of `busy_poll_stop` is the only one. Linux has no such loop; it is for
    /// [`EpollOptions::every_napi`](crate::EpollOptions::every_napi), where each instance of a context is asked in turn.
    LastPoll,
    /// After one round (no `loop_end`, or a limit of 0).
    OneRound,
    /// After this many busy-clock microseconds.
    AfterUsecs(u32),
}

impl BusyEnd {
    /// Whether a loop may go on after its first round.
    #[inline]
    pub fn spins(self) -> bool {
        matches!(self, BusyEnd::AfterUsecs(_))
    }

    /// Whether time is up for a loop that began at `start_ns`.
    #[inline]
    pub fn reached(self, start_ns: u64, now_ns: u64) -> bool {
        match self {
            BusyEnd::LastPoll | BusyEnd::OneRound => true,
            BusyEnd::AfterUsecs(usecs) => busy_clock_us(now_ns) > busy_clock_us(start_ns) + u64::from(usecs),
        }
    }
}

/// How an application polls: the result of the epoll or socket policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPlan {
    /// The instance, by id.
    pub napi_id: u32,
    /// Whether it prefers busy polling to interrupts.
    pub prefer: bool,
    /// Packets per poll; at least 1.
    pub budget: u32,
    /// When to give up.
    pub end: BusyEnd,
    /// The ring fills faster than the application comes back: the loop polls on although it has found events, for as long as a poll
    /// uses its whole budget, and [`CATCH_UP_PACKETS`] at most ([`EpollOptions::catch_up`](crate::EpollOptions::catch_up)).
    pub catch_up: bool,
}

/// The most packets that a busy loop takes in order to catch up, whatever comes in meanwhile: four rings of 1,024
/// slots.
pub const CATCH_UP_PACKETS: u64 = 4096;

impl BusyPlan {
    /// The budget rule: 0 means the default of 8.
    pub(crate) fn budget_or_default(budget: u32) -> u32 {
        if budget == 0 { BUSY_POLL_BUDGET_DEFAULT } else { budget }
    }
}

/// What a round does.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum BusyRound {
    /// Poll the device with this budget, then call [`BusyLoop::polled`].
    Poll {
        /// Packets allowed.
        budget: u32,
    },
    /// Do not poll in this round: the last poll is the only one ([`BusyEnd::LastPoll`]), and comes with
    /// [`BusyLoop::stop`]. The executor masks the interrupt now, while the caller owns the instance: the context comes
    /// back before it sleeps, and an interrupt would only disturb it. What follows the last poll unmasks, as after an
    /// interrupt.
    Last,
    /// Somebody else owns the instance; this round does nothing.
    Lost,
}

/// One call of the busy loop.
#[must_use = "a busy loop that won ownership has to be stopped"]
#[derive(Debug)]
pub struct BusyLoop {
    owner: Option<Owner>,
    prefer: bool,
    last_only: bool,
    budget: u32,
    work: u64,
    catch_up: bool,
    /// The last poll used its whole budget.
    is_full: bool,
}

impl BusyLoop {
    /// Begins a call.
    pub fn begin(napi: &Napi, plan: &BusyPlan, cx: &Cx<'_>) -> BusyLoop {
        napi.count_busy_call();
        cx.emit(napi.index(), EventKind::BusyBegin);
        let BusyPlan { prefer, budget, catch_up, .. } = *plan;
        let last_only = plan.end == BusyEnd::LastPoll && !catch_up;
        BusyLoop { owner: None, prefer, last_only, budget, work: 0, catch_up, is_full: false }
    }

    /// Begins a round: acquires the instance if it is not owned yet.
    #[inline]
    pub fn round(&mut self, napi: &Napi, cx: &Cx<'_>) -> BusyRound {
        if self.owner.is_none() {
            self.owner = napi.busy_acquire(self.prefer);
            let owned = self.owner.is_some();
            cx.emit(napi.index(), EventKind::BusyAcquire { owned, prefer: self.prefer });
        }
        match &self.owner {
            Some(_) if self.last_only => BusyRound::Last,
            Some(owner) => {
                napi.poll_begin(owner, self.budget, cx);
                BusyRound::Poll { budget: self.budget }
            }
            None => BusyRound::Lost,
        }
    }

    /// The poll of this round took `work` packets. Completion is a no-op in here: the owner is a busy poller.
    #[inline]
    pub fn polled(&mut self, napi: &Napi, work: u32, cx: &Cx<'_>) {
        assert!(work <= self.budget, "the device took {work} packets with a budget of {}", self.budget);
        self.work += u64::from(work);
        self.is_full = work == self.budget;
        napi.count_busy_poll();
        napi.note_poll(work, cx);
    }

    /// Whether there is another round whatever was found, to catch up.
    #[inline]
    pub fn catches_up(&self) -> bool {
        self.catch_up && self.is_full && self.work < CATCH_UP_PACKETS
    }

    /// Packets that this call took so far (`BusyPollRxPackets`).
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Whether this call owns the instance.
    #[inline]
    pub fn is_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Ends the call. If it owned the instance, `busy_poll_stop` follows: poll once more with [`BusyStop::budget`].
    #[inline]
    pub fn stop(mut self, napi: &Napi, cx: &Cx<'_>) -> Option<BusyStop> {
        let Some(owner) = self.owner.take() else {
            cx.emit(napi.index(), EventKind::BusyEnd);
            return None;
        };
        Some(BusyStop::begin(napi, owner, self.prefer, self.budget, cx))
    }
}

/// `busy_poll_stop` before its last poll.
#[must_use = "the last poll decides about interrupt and timer"]
#[derive(Debug)]
pub struct BusyStop {
    owner: Owner,
    budget: u32,
    timeout_ns: u64,
}

/// What is owed after the last poll.
#[must_use]
#[derive(Debug)]
pub enum BusyStopped {
    /// Completed, or parked with its timer: settle it, or route it again.
    Completed(Completion),
    /// A full budget and no timeout: hand it to softirq (or to its thread).
    ToSoftirq(Owner),
}

impl BusyStop {
    /// A busy poller, or a group, lets the instance go.
    #[inline]
    pub(crate) fn begin(napi: &Napi, owner: Owner, prefer: bool, budget: u32, cx: &Cx<'_>) -> BusyStop {
        let timeout_ns = napi.busy_stop_begin(prefer);
        napi.poll_begin(&owner, budget, cx);
        BusyStop { owner, budget, timeout_ns }
    }

    /// Packets that the last poll may take.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// The last poll took `work` packets, and `gro_held` says whether GRO holds some back.
    ///
    /// The driver completes within this poll as within any other (§4): what GRO holds after a poll that took packets
    /// waits for the timer if `gro_flush_timeout` is set, whether or not interrupts are deferred; otherwise it is
    /// flushed at once. A full budget is no completion: old packets are flushed when the instance is parked with its
    /// timer, and softirq sees to GRO when it is handed over (`__busy_poll_stop`).
    #[inline]
    pub fn polled(
        self,
        napi: &Napi,
        work: u32,
        gro_held: bool,
        cx: &Cx<'_>,
        flush: impl FnOnce(GroFlush),
    ) -> BusyStopped {
        let BusyStop { owner, budget, timeout_ns } = self;
        assert!(work <= budget, "the device took {work} packets with a budget of {budget}");
        napi.count_busy_poll();
        napi.note_poll(work, cx);
        let stopped = if work < budget {
            BusyStopped::Completed(napi.complete(owner, work, gro_held, cx, flush))
        } else if timeout_ns == 0 {
            cx.emit(napi.index(), EventKind::HandOver);
            BusyStopped::ToSoftirq(owner)
        } else {
            flush(GroFlush::Old);
            cx.emit(napi.index(), EventKind::Park);
            BusyStopped::Completed(Completion::Released(napi.park(owner, timeout_ns)))
        };
        cx.emit(napi.index(), EventKind::BusyEnd);
        stopped
    }
}

/// The transitions of the loop.
impl Napi {
    #[inline]
    fn busy_acquire(&self, prefer: bool) -> Option<Owner> {
        if self.state.busy_acquire() == Acquired::Won {
            self.may_defer_again();
            return Some(Owner::new(self.index()));
        }
        if prefer {
            self.state.set_prefer();
        }
        None
    }

    /// First half of `busy_poll_stop`. Returns the timeout with which the instance is parked if the last poll uses its whole
    /// budget; 0 is none. The timer itself is started after that poll (edge 3).
    #[inline]
    fn busy_stop_begin(&self, prefer: bool) -> u64 {
        self.state.busy_stop();
        if !prefer {
            return 0;
        }
        let credits = self.settings.defer_hard_irqs();
        self.set_credits(credits);
        if credits == 0 { 0 } else { self.settings.gro_flush_timeout_ns() }
    }

    /// Gives an instance up whose interrupt stays masked: its timer has to be started next.
    fn park(&self, owner: Owner, timeout_ns: u64) -> Release {
        self.assert_owner(&owner);
        self.state.park();
        owner.consume();
        Release { timeout_ns, rearm: false }
    }
}
