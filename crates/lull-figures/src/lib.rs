//! Figures of what NAPIs do, in the same form on both planes: who polls, packets, suspensions, timers, and the mode in
//! force.
//!
//! [`Figures`] are counts since the beginning, so that two of them an interval apart are rates ([`rates::between`]),
//! and a series of them is what Prometheus needs ([`exporter`]). A [`Source`] reads them: [`process`] from a process
//! with lull's user plane, over its control socket or from within; [`device`] from a device of the kernel.

pub mod device;
pub mod exporter;
pub mod process;
pub mod prometheus;
pub mod rates;

use lull_core::NapiSettings;
use lull_slo::{Decided, Latencies};

/// The kind of poller. The names are those of `lull stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Poller {
    /// Softirq, after an interrupt or a timer.
    Softirq,
    /// The kernel's thread that continues softirqs.
    Ksoftirqd,
    /// A program's busy polling.
    BusyPoll,
    /// The NAPI's own thread.
    NapiThread,
    /// A busy-polling CPU group.
    Group,
    /// The kernel's netpoll.
    Netpoll,
}

impl Poller {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Poller::Softirq => "softirq",
            Poller::Ksoftirqd => "ksoftirqd",
            Poller::BusyPoll => "busy-poll",
            Poller::NapiThread => "napi-thread",
            Poller::Group => "group",
            Poller::Netpoll => "netpoll",
        }
    }
}

/// The device or process whose figures they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The name of the device, or the name that the process gives itself.
    pub name: String,
    /// The process, if it is on lull's own plane.
    pub pid: Option<u32>,
}

/// Counts since the beginning of counting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The device or process that was counted.
    pub subject: Subject,
    /// When they were read, in nanoseconds of a clock of the subject.
    pub now_ns: u64,
    /// CPU time of the process's threads, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Its NAPIs.
    pub napis: Vec<Napi>,
    /// Its CPUs, if it has some of its own.
    pub cpus: Vec<Cpu>,
    /// What the controller of its timeouts has decided, if it has one.
    pub controller: Option<Decided>,
    /// What is not known, and why.
    pub missing: Vec<String>,
}

/// One NAPI.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Napi {
    /// The device.
    pub device: String,
    /// The queue, as `lull show` names it.
    pub queue: String,
    /// Its id; 0 while it is down.
    pub id: u32,
    /// The mode that its settings and the programs on it amount to.
    pub mode: String,
    /// The settings in force.
    pub settings: NapiSettings,
    /// Whether polls are counted at all; if not, the next four counts mean nothing.
    pub counted: bool,
    /// The number of polls by each kind of poller.
    pub polls: Vec<(Poller, u64)>,
    /// Packets that polls took.
    pub packets: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Timers that were set for deferral.
    pub deferrals: u64,
    /// Timers that were set for suspension, if they can be told apart.
    pub suspensions: Option<u64>,
    /// Interrupts, if they are known.
    pub interrupts: Option<u64>,
    /// How long requests took from the ring to the answer, if this is measured.
    pub answers: Option<Latencies>,
}

impl Napi {
    /// Returns one of the counts, if polls are counted.
    pub(crate) fn known(&self, count: u64) -> Option<u64> {
        self.counted.then_some(count)
    }
}

/// One CPU of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Its number in the process.
    pub index: u16,
    /// The machine's core.
    pub core: Option<usize>,
    /// Nanoseconds in softirq.
    pub softirq_ns: u64,
    /// Threads woken.
    pub wakeups: u64,
}

/// Reads figures.
pub trait Source: Send {
    /// Returns the counts up to now.
    ///
    /// # Errors
    ///
    /// This fails if the subject is gone, or does not answer.
    fn read(&mut self) -> Result<Vec<Figures>, Error>;
}

/// Why figures could not be read, or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process did not answer.
    #[error(transparent)]
    Process(#[from] lull_control::Error),
    /// A device could not be watched.
    #[error(transparent)]
    Device(#[from] lull_linux::Error),
    /// The thread that watches a device ended.
    #[error("cannot go on watching {device}: {why}")]
    Watching {
        /// The device.
        device: String,
        /// The error that the thread met.
        why: String,
    },
    /// The address cannot be listened on.
    #[error("cannot serve metrics on {address}: {source}; give --prometheus another address and port")]
    Listen {
        /// The address that was asked for.
        address: std::net::SocketAddr,
        /// The error.
        source: std::io::Error,
    },
}
