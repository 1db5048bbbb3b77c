//! The moment and place of a call into the core ([`Cx`]), and the events for whoever traces delivery. Without a sink an
//! event costs one branch.

use crate::tx::doorbell::Why;

/// One event of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in the executor's nanoseconds.
    pub at_ns: u64,
    /// On which CPU (the executor's index).
    pub cpu: u16,
    /// Which instance (its index in the executor's table).
    pub napi: u32,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The device's interrupt reached its CPU.
    Irq,
    /// The interrupt was masked.
    Mask,
    /// The interrupt was unmasked.
    Unmask,
    /// The instance was scheduled; `missed` if it had an owner.
    Schedule {
        /// Whether an owner was found and MISSED set.
        missed: bool,
    },
    /// Scheduling was refused: a disable is pending.
    Refused,
    /// A poll of the device begins.
    PollBegin {
        /// Packets allowed.
        budget: u32,
    },
    /// A poll of the device ended.
    PollEnd {
        /// Packets taken.
        work: u32,
    },
    /// A full budget was used: softirq or thread polls again.
    Repoll,
    /// A full budget was used, and a preferring poller waits: the instance is completed for it (§5 step 2).
    Yield,
    /// A full budget was used, and a disable waits: the instance is completed for it (§5 step 1).
    YieldToDisable,
    /// A completion did nothing: a busy poller owns the instance.
    Kept,
    /// A completion kept the ownership: an event was missed.
    Again,
    /// The instance was completed and released.
    Complete {
        /// Whether the interrupt is to be unmasked.
        rearm: bool,
    },
    /// The timer was started.
    TimerArm {
        /// Deadline, in the executor's nanoseconds.
        deadline_ns: u64,
    },
    /// The timer fired.
    TimerFire {
        /// How late, in nanoseconds.
        late_ns: u64,
        /// Whether it found an owner and was lost.
        swallowed: bool,
    },
    /// An application returned with events: the timer was stretched.
    Suspend,
    /// Delivery was resumed; `scheduled` is false where the setting was 0 or an owner was found.
    Resume {
        /// Whether this scheduled the instance.
        scheduled: bool,
    },
    /// A busy-poll call begins.
    BusyBegin,
    /// A round of it tried to become the owner.
    BusyAcquire {
        /// Whether it did.
        owned: bool,
        /// Whether it prefers busy polling, and so asks the owner to yield if it lost.
        prefer: bool,
    },
    /// Its last poll used the whole budget: the instance is left to a timer that is started next.
    Park,
    /// Its last poll used the whole budget, and there is no timeout: softirq goes on.
    HandOver,
    /// It ended.
    BusyEnd,
    /// The NAPI thread was woken.
    ThreadWake,
    /// The NAPI thread takes a round, or changes its kind within one.
    ThreadRound {
        /// Whether it busy polls.
        busy: bool,
    },
    /// The softirq loop ran out of budget or time.
    TimeSqueeze,
    /// Leftovers went to ksoftirqd.
    Ksoftirqd,
    /// Frames were dropped.
    Drop {
        /// How many.
        frames: u32,
    },
    /// A busy-polling CPU group took the instance.
    GroupEnter,
    /// The group lets the instance go; its last poll follows.
    GroupLeave,
    /// A poller of the group visits the instance; `stray` if its home is another poller.
    GroupClaim {
        /// Whether it is not at home with this poller.
        stray: bool,
    },
    /// A visit of the group ended: the instance is free for the next.
    GroupRelease,
    /// A visit of the group found that another poller has had the instance for so long.
    GroupStalled {
        /// For how many nanoseconds.
        age_ns: u64,
    },
    /// A poller of the group walks the receive path of the instance without a packet.
    DryRun,
    /// A poller of a group rings the doorbell of a transmit queue, which it had held back.
    Doorbell {
        /// Frames that it rings for.
        frames: u32,
        /// Why now.
        why: Why,
    },
    /// The group wakes its poller on this CPU. An event of the group: its instance is the group's number.
    GroupWake {
        /// The poller's CPU.
        cpu: u16,
    },
    /// A poller of the group parks. An event of the group.
    GroupPark,
    /// The last poller of the group rests, with interrupts unmasked. An event of the group.
    GroupRest,
    /// It ended its rest. An event of the group.
    GroupRestEnd,
    /// The instance was disabled.
    Disable,
    /// The instance was enabled.
    Enable,
}

/// The moment and place of a call into the core, and whoever listens.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Now, in nanoseconds of the executor's monotonic clock.
    pub now_ns: u64,
    /// The CPU that the caller runs on (the executor's index).
    pub cpu: u16,
    /// Where events go.
    pub sink: Option<&'a dyn EventSink>,
}

impl Cx<'_> {
    /// A context without a listener.
    pub fn new(cpu: u16, now_ns: u64) -> Cx<'static> {
        Cx { now_ns, cpu, sink: None }
    }

    /// Tells the listener, if there is one.
    #[inline]
    pub fn emit(&self, napi: u32, kind: EventKind) {
        if let Some(sink) = self.sink {
            sink.event(Event { at_ns: self.now_ns, cpu: self.cpu, napi, kind });
        }
    }
}

/// Where events go.
pub trait EventSink: Sync {
    /// Called in the context that caused the event; must not block.
    fn event(&self, event: Event);
}
