//! What passes over a connection to a control socket: one [`Request`] and one [`Answer`], each a line of JSON.
//!
//! Fields are only ever added. A reader passes over fields that it does not know, and a field that a writer does not have
//! yet is its type's default, so that a command and a service of neighbouring versions understand each other.

use std::collections::BTreeMap;

use lull_core::group::PollerStats;
use lull_core::{EpollParams, NapiSettings, Stats, Unpolled};
use lull_linux::sched::{Scheduling, ThreadPolicy};
use lull_slo::{Decided, Latencies};
use serde::{Deserialize, Serialize};

/// The longest answer, in bytes: that of a process with two hundred thousand sockets.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// What is asked of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// Everything that is in force, with its counters. Two of these an interval apart make a `lull stat`.
    Show,
    /// Its sockets, and what its stacks have counted.
    Sockets,
    /// Changes settings of NAPIs: all that the selection names, or none.
    Set(Set),
    /// Changes a busy-polling CPU group.
    Group(GroupChange),
    /// Times requests until they are answered, from now on or no longer.
    TimeAnswers(bool),
    /// A controller has decided: it is shown from now on, with the rest.
    Decided(Box<Decided>),
    /// Gives every NAPI back the settings that it had before the first [`Request::Set`], and its thread its CPUs and
    /// policy.
    Undo,
}

/// A change of a group, by its number; where that is `None` the process has one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupChange {
    /// The group.
    pub group: Option<u32>,
    /// Cores of the machine that are attached.
    pub attach: Vec<usize>,
    /// Cores of the machine that are detached.
    pub detach: Vec<usize>,
    /// NAPIs that become members, by their ids.
    pub add: Vec<u32>,
    /// Packets that each of these may take per visit; `None` is what a NAPI may take in softirq.
    pub weight: Option<u32>,
    /// NAPIs that leave, by their ids.
    pub remove: Vec<u32>,
}

/// A change of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Set {
    /// The ids of the NAPIs; all of the process where it is empty.
    pub napi_ids: Vec<u32>,
    /// What becomes of each.
    pub change: Change,
}

/// New values; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Empty polls for which the interrupt stays masked.
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds between them.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Nanoseconds for which an application may keep the interrupt masked.
    pub irq_suspend_timeout_ns: Option<u64>,
    /// Who polls.
    pub threaded: Option<lull_core::Threaded>,
    /// The machine's CPUs that its NAPI thread may run on.
    pub thread_cpus: Option<Vec<usize>>,
    /// The policy of that thread, with its priority or nice value.
    pub thread_policy: Option<ThreadPolicy>,
}

impl Change {
    /// The settings after the change of `before`. A deferral that somebody asks for is Linux's, whether anybody polls or not.
    pub fn of(&self, before: NapiSettings) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(before.defer_hard_irqs),
            gro_flush_timeout_ns: self.gro_flush_timeout_ns.unwrap_or(before.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns.unwrap_or(before.irq_suspend_timeout_ns),
            threaded: self.threaded.unwrap_or(before.threaded),
            unpolled: match (self.defer_hard_irqs, self.gro_flush_timeout_ns) {
                (None, None) => before.unpolled,
                _ => Unpolled::Deferral,
            },
        }
    }
}

/// What a process answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Show`].
    Shown(Shown),
    /// To [`Request::Sockets`].
    Sockets(Sockets),
    /// To [`Request::Set`] and [`Request::Undo`]: the NAPIs that were changed, as they are now.
    Changed(Vec<Napi>),
    /// To [`Request::TimeAnswers`] and [`Request::Decided`]: it was done.
    Done,
    /// To [`Request::Group`]: the group as it is now.
    Group(Group),
    /// The request was refused, in words that name the object and the remedy. Nothing was changed.
    Refused(String),
}

/// A process with a user plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// The process, by the number that it knows itself by.
    pub pid: u32,
    /// What it is, in its own words.
    pub service: String,
    /// The version of lull that it runs.
    pub version: String,
    /// Nanoseconds of its clock when the counters were read.
    pub now_ns: u64,
    /// Its NAPIs, by device and queue.
    pub napis: Vec<Napi>,
    /// Its CPUs.
    pub cpus: Vec<Cpu>,
    /// Its epoll contexts.
    pub contexts: Vec<EpollContext>,
    /// Its busy-polling CPU groups.
    pub groups: Vec<Group>,
    /// What a controller of its timeouts has decided, if it has one.
    pub controller: Option<Box<Decided>>,
}

/// A busy-polling CPU group of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its number.
    pub index: u32,
    /// After how many nanoseconds without packets its last poller rests; never, if absent.
    pub rest_ns: Option<u64>,
    /// What empty passes may take of one CPU, in percent.
    pub empty_percent: Option<u32>,
    /// What all passes may take of one CPU, in percent.
    pub total_percent: Option<u32>,
    /// Percent of busy time above which one more poller is woken.
    pub wake_above: u32,
    /// Percent of busy time that the others would have, below which a poller parks.
    pub park_below: u32,
    /// The NUMA node of its CPUs.
    pub node: Option<usize>,
    /// Its members.
    pub members: Vec<GroupMember>,
    /// Its pollers.
    pub pollers: Vec<GroupPoller>,
}

/// A NAPI that a group polls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupMember {
    /// Its id.
    pub napi_id: u32,
    /// Its device.
    pub device: String,
    /// Its queue.
    pub queue: usize,
    /// Packets that it may take per visit.
    pub weight: u32,
    /// Polls by the group so far.
    pub polls: u64,
}

/// One CPU of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupPoller {
    /// The process's CPU.
    pub cpu: u16,
    /// The machine's core.
    pub core: Option<usize>,
    /// The kernel's id of its thread.
    pub thread: i32,
    /// What it does: `polls`, `rests` or `parked`.
    pub state: String,
    /// For how many nanoseconds it has had the member that it serves now, if it serves one.
    pub claim_age_ns: Option<u64>,
    /// What it did so far.
    pub stats: PollerStats,
}

/// The sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sockets {
    /// The process, by the number that it knows itself by.
    pub pid: u32,
    /// What it is, in its own words.
    pub service: String,
    /// Each socket on each queue that it hears from.
    pub sockets: Vec<Socket>,
    /// What the stacks of its queues have counted, by the counters' names.
    pub counters: BTreeMap<String, u64>,
}

/// One socket, or a connection that outlives its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// As `ss` names it: `ESTAB`, `LISTEN`, `TIME-WAIT` and so on.
    pub state: String,
    /// Its own address and port.
    pub local: String,
    /// Its peer's, if it has one.
    pub peer: Option<String>,
    /// The queue that it hears from.
    pub queue: usize,
    /// The id of that queue's NAPI.
    pub napi_id: u32,
    /// The smoothed round trip in microseconds, once there was one.
    pub rtt_us: Option<u32>,
    /// Times that something was sent again.
    pub retransmits: u32,
    /// Bytes that are not acknowledged; of a listener, the connections that may wait.
    pub send_queue: usize,
    /// Bytes that were not read; of a listener, the connections that wait to be accepted.
    pub receive_queue: usize,
    /// SO_PRIORITY.
    pub priority: u8,
    /// SO_MAX_PACING_RATE, if it bounds anything.
    pub pacing_bytes_per_s: Option<u64>,
}

/// One NAPI of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Napi {
    /// The device's name.
    pub device: String,
    /// The device's index in the process.
    pub ifindex: u32,
    /// The queue.
    pub queue: usize,
    /// Its id; 0 while it is disabled.
    pub id: u32,
    /// The process's CPU that takes its interrupt.
    pub cpu: u16,
    /// What is in force.
    pub settings: NapiSettings,
    /// The settings before the first change over the socket, if there was one.
    pub former: Option<NapiSettings>,
    /// The names of the bits of its state word.
    pub state: String,
    /// The kernel's id of its NAPI thread, if it has one; it stays when `threaded` is turned off.
    pub thread: Option<i32>,
    /// Where and how that thread runs.
    pub scheduling: Option<Scheduling>,
    /// Where and how it ran before the first change of that over the socket, if there was one.
    pub former_scheduling: Option<Scheduling>,
    /// The queueing discipline, if it sends for the queue of the same number of the device without `-tx` at its name's end.
    pub qdisc: Option<String>,
    /// Interrupts that were taken.
    pub interrupts: u64,
    /// How late its timers were: how many of them in each bucket of [`lull_host::LatenessSnapshot`].
    pub timer_lateness: Vec<u64>,
    /// What happened on it so far.
    pub stats: Stats,
    /// What requests took from the ring to the answer, if they are timed.
    pub answers: Option<Latencies>,
}

/// One CPU of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Its number in the process.
    pub index: u16,
    /// The machine's core that its interrupt contexts are pinned to.
    pub core: Option<usize>,
    /// Hard interrupts taken.
    pub interrupts: u64,
    /// Nanoseconds in softirq.
    pub softirq_ns: u64,
    /// Threads woken.
    pub wakeups: u64,
    /// Kernel timers set.
    pub timer_ops: u64,
    /// Nanoseconds that threads polled without pause here and found nothing; those of a group's pollers are theirs.
    pub vain_ns: u64,
}

/// One epoll context of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EpollContext {
    /// How many of its sockets hear from each NAPI, by the NAPI's id.
    pub sockets: BTreeMap<u32, usize>,
    /// Its busy-poll parameters.
    pub params: EpollParams,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_and_an_older_neighbour_are_understood() {
        let newer = r#"{"pid":7,"service":"s","colour":"blue","napis":[{"id":9,"weather":"fine"}]}"#;
        let shown: Shown = serde_json::from_str(newer).unwrap();
        assert_eq!((shown.pid, shown.napis[0].id, shown.version.as_str()), (7, 9, ""));
    }

    #[test]
    fn requests_read_as_they_are_written() {
        let change = Change {
            threaded: Some(lull_core::Threaded::BusyPoll),
            thread_cpus: Some(vec![0, 2]),
            thread_policy: Some(ThreadPolicy::Fifo(50)),
            ..Change::default()
        };
        let set = Request::Set(Set { napi_ids: vec![500], change });
        let line = serde_json::to_string(&set).unwrap();
        assert!(line.contains("busy-poll"), "{line}");
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), set);
        assert_eq!(serde_json::to_string(&Request::Show).unwrap(), "\"show\"");
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let before = NapiSettings { defer_hard_irqs: 100, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
        let change = Change { gro_flush_timeout_ns: Some(50_000), ..Change::default() };
        assert_eq!(change.of(before), NapiSettings { gro_flush_timeout_ns: 50_000, ..before });
        let polled = NapiSettings { unpolled: Unpolled::Interrupt, ..before };
        assert_eq!(change.of(polled), change.of(before), "what is asked for is in force");
        let other = Change { irq_suspend_timeout_ns: Some(1), ..Change::default() };
        assert_eq!(other.of(polled).unpolled, Unpolled::Interrupt);
    }
}
