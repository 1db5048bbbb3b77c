//! What a step of a script does to a world.

use std::fmt;

use lull_core::{EpollParams, NapiSettings, Threaded};

use crate::random::words::{params, settings};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes the settings of one instance (netlink `napi-set`), `threaded` excepted.
    Set {
        /// The instance.
        queue: u32,
        /// The new ones.
        settings: NapiSettings,
    },
    /// Writes the settings of the device (sysfs), `threaded` excepted.
    SetDevice {
        /// The new ones.
        settings: NapiSettings,
    },
    /// Turns the NAPI thread on, to busy polling, or off.
    Thread {
        /// Of which instance.
        queue: u32,
        /// To what.
        threaded: Threaded,
    },
    /// Takes a queue down and up again.
    Disable {
        /// The queue.
        queue: u32,
        /// How long it stays down, in nanoseconds.
        down_ns: u32,
        /// Whether the device is reset, so that what is in its rings is lost.
        reset: bool,
    },
    /// The link goes down, and packets are lost until it is up again.
    Link {
        /// How long it is down, in nanoseconds.
        down_ns: u32,
    },
    /// Sets the parameters of an epoll context (EPIOCSPARAMS).
    Params {
        /// On which context.
        context: u32,
        /// The new ones.
        params: EpollParams,
    },
    /// Closes a context when no thread is inside of it, and opens it again with the same sockets and parameters.
    Reopen {
        /// The context.
        context: u32,
    },
    /// Makes events of a source that is no socket.
    Other {
        /// For which context.
        context: u32,
        /// How many.
        count: u32,
        /// How far apart, in nanoseconds.
        gap_ns: u32,
    },
    /// Packets that nobody serves arrive at once.
    Burst {
        /// On which queue.
        queue: u32,
        /// How many.
        packets: u32,
    },
    /// Frames of three flows are sent at once.
    Send {
        /// By which transmit queue.
        queue: u32,
        /// How many.
        frames: u32,
        /// Their SO_MAX_PACING_RATE, in bytes a second; 0 is none.
        rate_bytes_per_s: u32,
    },
    /// Another party schedules an instance (a driver's own kick, or an interrupt whose mask came too late).
    Kick {
        /// The instance.
        queue: u32,
    },
    /// The device interrupts without a reason.
    Spurious {
        /// For which queue.
        queue: u32,
    },
    /// The application stalls at the next request.
    Stall {
        /// How long, in nanoseconds.
        ns: u32,
    },
    /// Attaches a CPU to a group.
    Attach {
        /// Which group.
        group: u32,
        /// Which CPU.
        cpu: u16,
    },
    /// Detaches a CPU from a group; if it is the last one, all members leave first.
    Detach {
        /// Which group.
        group: u32,
        /// Which CPU.
        cpu: u16,
    },
    /// Makes a queue a member of a group.
    Add {
        /// Which group.
        group: u32,
        /// Which queue.
        queue: u32,
        /// How many packets it may take per visit.
        weight: u32,
    },
    /// Takes a queue out of its group.
    Remove {
        /// Which queue.
        queue: u32,
    },
    /// Something else takes the step's CPU with a higher priority than threads, so that a poller there is held up.
    Steal {
        /// How long, in nanoseconds.
        ns: u32,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Set { queue, settings: napi } => write!(f, "queue {queue} gets {}", settings(napi, false)),
            Action::SetDevice { settings: napi } => write!(f, "the device gets {}", settings(napi, false)),
            Action::Thread { queue, threaded } => write!(f, "queue {queue} gets threaded {threaded:?}"),
            Action::Disable { queue, down_ns, reset } => {
                let what = if *reset { "reset" } else { "disable" };
                write!(f, "{what} of queue {queue}, down for {down_ns} ns")
            }
            Action::Link { down_ns } => write!(f, "link down for {down_ns} ns"),
            Action::Params { context, params: new } => write!(f, "context {context} gets {}", params(new)),
            Action::Reopen { context } => write!(f, "context {context} is closed and opened anew"),
            Action::Other { context, count, gap_ns } => {
                write!(f, "{count} other events for context {context}, {gap_ns} ns apart")
            }
            Action::Burst { queue, packets } => write!(f, "burst of {packets} packets on queue {queue}"),
            Action::Send { queue, frames, rate_bytes_per_s } => {
                write!(f, "{frames} frames are sent by queue {queue}, at {rate_bytes_per_s} bytes a second")
            }
            Action::Kick { queue } => write!(f, "somebody schedules queue {queue}"),
            Action::Spurious { queue } => write!(f, "spurious interrupt of queue {queue}"),
            Action::Stall { ns } => write!(f, "the next request stalls for {ns} ns"),
            Action::Attach { group, cpu } => write!(f, "cpu {cpu} is attached to group {group}"),
            Action::Detach { group, cpu } => write!(f, "cpu {cpu} is detached from group {group}"),
            Action::Add { group, queue, weight } => write!(f, "queue {queue} enters group {group}, weight {weight}"),
            Action::Remove { queue } => write!(f, "queue {queue} leaves its group"),
            Action::Steal { ns } => write!(f, "the cpu is taken for {ns} ns"),
        }
    }
}
