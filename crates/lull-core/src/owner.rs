//! Who may poll an instance, and what is owed when that right is taken, handed on or given back: values that must be used.
//!
//! [`Owner`] is the right; [`Schedule`] is how it is got; [`Route`] is where it goes; [`Polled`] and [`Completion`] are what
//! a poll leaves; [`Release`] is an instance that nobody owns and that nothing wakes yet.

/// The right to poll an instance. At most one exists per instance (I1); it cannot be copied, only handed on, completed
/// or given to the NAPI thread. Losing one is losing the queue, so dropping it is a bug that debug builds report.
#[must_use = "an owner that is dropped leaves its queue unpolled for ever"]
#[derive(Debug)]
pub struct Owner {
    napi: u32,
}

impl Owner {
    pub(crate) fn new(napi: u32) -> Owner {
        Owner { napi }
    }

    /// The index of the instance that this owns.
    #[inline]
    pub fn napi(&self) -> u32 {
        self.napi
    }

    /// Gives the right up for good, at the teardown of an executor.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    #[inline]
    pub(crate) fn consume(self) {
        std::mem::forget(self);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "ownership of NAPI {} was dropped", self.napi);
    }
}

/// Outcome of scheduling.
#[must_use]
#[derive(Debug)]
pub enum Schedule {
    /// The caller owns the instance: it masks the interrupt (if it is the interrupt handler) and routes it.
    Owned(Owner),
    /// Somebody owns it and will look again.
    Missed,
    /// A busy-polling CPU group has it. Its member is told with [`crate::Group::raised`], because the group may rest.
    Group,
    /// A disable is pending: refused.
    Disabled,
}

/// Where a scheduled instance goes (`____napi_schedule`, §3).
#[must_use]
#[derive(Debug)]
pub enum Route {
    /// Onto the local CPU's poll list.
    Softirq(Owner),
    /// To its thread, which the caller wakes. The ownership travels in the state word.
    Thread,
}

/// Which packets that GRO holds are to be passed up before the instance is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroFlush {
    /// Those older than a jiffy: a timer will take care of the others.
    Old,
    /// All.
    All,
}

/// What the context that completed a poll owes.
#[must_use]
#[derive(Debug)]
pub enum Completion {
    /// A busy poller owns the instance: nothing happened.
    Kept(Owner),
    /// An event was missed: the caller still owns the instance and routes it again.
    Again(Owner),
    /// The instance was released.
    Released(Release),
}

/// A released instance: somebody still has to start its timer or unmask its interrupt. Between the release and
/// [`Release::settle`] the invariant I2 does not hold: call it next.
#[must_use = "until settled, neither a timer nor the interrupt will wake this queue"]
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    pub(crate) timeout_ns: u64,
    pub(crate) rearm: bool,
}

/// What [`Release::settle`] leaves to do.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The timer was started and falls due then; the executor sees to it.
    pub timer_ns: Option<u64>,
    /// The interrupt is to be unmasked.
    pub unmask: bool,
}

/// Outcome of one poll by softirq or by the NAPI thread.
#[must_use]
#[derive(Debug)]
pub enum Polled {
    /// More work: poll again, after the others (softirq) or at once (thread).
    Repoll(Owner),
    /// The instance was completed.
    Completed(Completion),
}
