//! What NAPIs do, in the same figures on both planes: who polls, packets, suspensions, timers, and the mode in force.
//!
//! [`Figures`] are counts since somebody began to count, so that two of them an interval apart are rates
//! ([`rates::between`]) and a series of them is what Prometheus wants ([`exporter`]). A [`Source`] reads them: [`process`]
//! from a process with lull's user plane, over its control socket or from within; [`device`] from a device of the kernel.

pub mod device;
pub mod exporter;
pub mod process;
pub mod prometheus;
pub mod rates;

use lull_core::NapiSettings;
use lull_slo::{Decided, Latencies};

/// Who polls a NAPI. The names are those that `lull stat` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Poller {
    /// Softirq, after an interrupt or a timer.
    Softirq,
    /// The kernel's thread that goes on with softirqs.
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

/// Whose figures they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The device, or what the process says that it is.
    pub name: String,
    /// The process, on lull's own plane.
    pub pid: Option<u32>,
}

/// Counts since somebody began to count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Whose they are.
    pub subject: Subject,
    /// When they were read: nanoseconds of a clock of the subject's.
    pub now_ns: u64,
    /// CPU time of the process's threads, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Its NAPIs.
    pub napis: Vec<Napi>,
    /// Its CPUs, where it has some of its own.
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
    /// Whether polls are counted at all; if not, the four counts below say nothing.
    pub counted: bool,
    /// Polls, by who polled.
    pub polls: Vec<(Poller, u64)>,
    /// Packets that they took.
    pub packets: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Timers that were set for deferral.
    pub deferrals: u64,
    /// Timers that were set for suspension, where they can be told apart.
    pub suspensions: Option<u64>,
    /// Interrupts, where they are known.
    pub interrupts: Option<u64>,
    /// What requests took from the ring to the answer, where they are timed.
    pub answers: Option<Latencies>,
}

impl Napi {
    /// One of the counts, if polls are counted.
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
    /// What was counted up to now.
    ///
    /// # Errors
    /// The subject is gone, or does not answer.
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
        /// What the thread met.
        why: String,
    },
    /// No address to listen on.
    #[error("cannot serve metrics on {address}: {source}; give --prometheus another address and port")]
    Listen {
        /// As asked for.
        address: std::net::SocketAddr,
        /// What was met.
        source: std::io::Error,
    },
}
