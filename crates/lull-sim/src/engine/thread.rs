//! Threads of a CPU: what they execute, and their states.

use crate::engine::id::CpuId;

/// A piece of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// What it costs.
    pub cost_ns: u64,
    /// Share of it spent in user space, in 1/1024.
    pub user_share: u32,
    /// Whether softirq must wait until its end.
    pub bottom_halves_off: bool,
    /// Whether another thread may take the CPU before it begins or within it.
    pub preemptible: bool,
    pub(crate) rest_ns: u64,
}

impl Segment {
    /// Makes a segment of system time, which softirq may interrupt.
    pub fn sys(cost_ns: u64) -> Segment {
        Segment { cost_ns, ..Segment::default() }
    }

    /// Makes a segment of system time with bottom halves off.
    pub fn bottom_halves_off(cost_ns: u64) -> Segment {
        Segment { cost_ns, bottom_halves_off: true, ..Segment::default() }
    }

    /// Makes a preemptible segment, of which `user_ns` is user time.
    pub fn mixed(sys_ns: u64, user_ns: u64) -> Segment {
        let cost_ns = sys_ns + user_ns;
        let user_share = (user_ns * 1_024 / cost_ns.max(1)) as u32;
        Segment { cost_ns, user_share, preemptible: true, ..Segment::default() }
    }
}

/// What a program does next.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Execute this, then step again.
    Run(Segment),
    /// Let others run first if any wait, then execute this.
    Yield(Segment),
    /// Sleep until woken, or until this time at the latest, then step again.
    Sleep(Option<u64>),
    /// Run the CPU's pending softirqs in this thread (ksoftirqd), then step again.
    Softirqs,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Running,
    Sleeping,
}

/// Empty passes that a thread makes in one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    /// When the first began.
    pub(crate) began_ns: u64,
    /// How long each takes.
    pub(crate) pass_ns: u64,
    /// How much time of its own the thread had run by then.
    pub(crate) own_ns: i64,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) cpu: CpuId,
    pub(crate) state: ThreadState,
    pub(crate) vruntime_ns: u64,
    pub(super) picked_vruntime_ns: u64,
    pub(crate) segment: Segment,
    /// What its segments took besides their own time: switches to it, and what others' effects cost its CPU.
    pub(crate) bore_ns: u64,
    pub(crate) timed_out: bool,
    /// Whether it makes empty passes, and sees what happens at the end of one.
    pub(crate) spins: Option<Spin>,
    /// Whether the scheduler may move it to another of the service's CPUs.
    pub(crate) moves: bool,
}

impl Thread {
    /// Returns the time that it ran of its own: CPU time without what it bore, which counts from the moment at which it
    /// is owed.
    pub(crate) fn own_ns(&self) -> i64 {
        self.vruntime_ns as i64 - self.bore_ns as i64
    }

    /// Returns when empty passes are over if they end with the next one, from now on; what the thread still bears comes
    /// first.
    pub(super) fn last_pass_ns(&self, spin: Spin) -> u64 {
        spin.pass_ns + u64::try_from(spin.own_ns - self.own_ns()).unwrap_or(0)
    }
}
