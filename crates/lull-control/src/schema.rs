//! The messages over a connection to a control socket: one [`Request`] and one [`Answer`], each a line of JSON.
//!
//! Fields are only ever added. A reader ignores fields that it does not know, and a field that a writer does not have
//! yet is its type's default, so that a command and a service of neighbouring versions understand each other.

use std::collections::BTreeMap;

use lull_core::group::PollerStats;
use lull_core::{EpollParams, NapiSettings, Stats, Unpolled};
use lull_linux::sched::{Scheduling, ThreadPolicy};
use lull_slo::{Decided, Latencies};
use serde::{Deserialize, Serialize};

/// The longest answer, in bytes. That of a process with two hundred thousand sockets is as long.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A request to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// Asks for everything that is in force, with its counters. Two answers an interval apart make a `lull stat`.
    Show,
    /// Asks for its sockets, and for what its stacks have counted.
    Sockets,
    /// Changes settings of NAPIs: of all that the selection names, or of none.
    Set(Set),
    /// Changes a busy-polling CPU group.
    Group(GroupChange),
    /// Turns the timing of requests until their answers on or off.
    TimeAnswers(bool),
    /// Reports what a controller has decided. From now on it is shown with the rest.
    Decided(Box<Decided>),
    /// Gives every NAPI back the settings that it had before the first [`Request::Set`], and its thread its CPUs and
    /// policy.
    Undo,
}

/// A change of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupChange {
    /// The group's number; `None` if the process has one group only.
    pub group: Option<u32>,
    /// Cores of the machine that are attached.
    pub attach: Vec<usize>,
    /// Cores of the machine that are detached.
    pub detach: Vec<usize>,
    /// NAPIs that become members, by their ids.
    pub add: Vec<u32>,
    /// How many packets each of these may take per visit; `None` stands for what a NAPI may take in softirq.
    pub weight: Option<u32>,
    /// NAPIs that leave, by their ids.
    pub remove: Vec<u32>,
}

/// A change of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Set {
    /// The ids of the NAPIs; if there are none, all NAPIs of the process are meant.
    pub napi_ids: Vec<u32>,
    /// The change of each of them.
    pub change: Change,
}

/// New values. A setting that is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Empty polls for which the interrupt stays masked.
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds between these polls.
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
    /// The settings that `before` becomes by the change. A deferral that somebody asks for is Linux's, whether anybody
    /// polls or not.
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

/// A process's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// The answer to [`Request::Show`].
    Shown(Shown),
    /// The answer to [`Request::Sockets`].
    Sockets(Sockets),
    /// The answer to [`Request::Set`] and [`Request::Undo`]: the NAPIs that were changed, as they are now.
    Changed(Vec<Napi>),
    /// The answer to [`Request::TimeAnswers`] and [`Request::Decided`]: it was done.
    Done,
    /// The answer to [`Request::Group`]: the group as it is now.
    Group(Group),
    /// The request was refused. The text names the object and the remedy, and nothing was changed.
    Refused(String),
}

/// A process with a user plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// The process id, as the process itself knows it.
    pub pid: u32,
    /// What the process is, as it says itself.
    pub service: String,
    /// The version of lull that it runs.
    pub version: String,
    /// The time of its clock when the counters were read, in nanoseconds.
    pub now_ns: u64,
    /// Its NAPIs, sorted by device and queue.
    pub napis: Vec<Napi>,
    /// Its CPUs.
    pub cpus: Vec<Cpu>,
    /// Its epoll contexts.
    pub contexts: Vec<EpollContext>,
    /// Its busy-polling CPU groups.
    pub groups: Vec<Group>,
    /// The last decision of the controller of its timeouts, if it has one.
    pub controller: Option<Box<Decided>>,
}

/// A busy-polling CPU group of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its number.
    pub index: u32,
    /// After how many nanoseconds without packets its last poller rests; `None` if it never does.
    pub rest_ns: Option<u64>,
    /// The share of one CPU that empty passes may take, in percent.
    pub empty_percent: Option<u32>,
    /// The share of one CPU that all passes may take, in percent.
    pub total_percent: Option<u32>,
    /// The share of busy time, in percent, above which one more poller is woken.
    pub wake_above: u32,
    /// The share of busy time, in percent, that the other pollers would have, below which a poller parks.
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
    /// The NAPI's id.
    pub napi_id: u32,
    /// The name of its device.
    pub device: String,
    /// The number of its queue.
    pub queue: usize,
    /// How many packets it may take per visit.
    pub weight: u32,
    /// How often the group has polled it so far.
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
    /// What it does: `polls`, `rests` or is `parked`.
    pub state: String,
    /// For how many nanoseconds it has had the member that it serves now; `None` if it serves none.
    pub claim_age_ns: Option<u64>,
    /// What it has done so far.
    pub stats: PollerStats,
}

/// The sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sockets {
    /// The process id, as the process itself knows it.
    pub pid: u32,
    /// What the process is, as it says itself.
    pub service: String,
    /// Each socket, once for each queue whose packets it receives.
    pub sockets: Vec<Socket>,
    /// What the stacks of its queues have counted, by the counters' names.
    pub counters: BTreeMap<String, u64>,
}

/// A socket, or a connection that outlives its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The state, as `ss` names it: `ESTAB`, `LISTEN`, `TIME-WAIT` and so on.
    pub state: String,
    /// Its own address and port.
    pub local: String,
    /// Its peer's address and port, if it has one.
    pub peer: Option<String>,
    /// The queue whose packets it receives.
    pub queue: usize,
    /// The id of that queue's NAPI.
    pub napi_id: u32,
    /// The smoothed round-trip time in microseconds; `None` until one was measured.
    pub rtt_us: Option<u32>,
    /// How often something was sent again.
    pub retransmits: u32,
    /// Bytes that are not acknowledged; for a listener, how many connections may wait.
    pub send_queue: usize,
    /// Bytes that were not read; for a listener, how many connections wait to be accepted.
    pub receive_queue: usize,
    /// SO_PRIORITY.
    pub priority: u8,
    /// SO_MAX_PACING_RATE, if it is set.
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
    /// The queue's number.
    pub queue: usize,
    /// Its id; 0 while it is disabled.
    pub id: u32,
    /// The process's CPU that takes its interrupt.
    pub cpu: u16,
    /// The settings that are in force.
    pub settings: NapiSettings,
    /// The settings before the first change over the socket, if there was one.
    pub former: Option<NapiSettings>,
    /// The names of the bits of its state word.
    pub state: String,
    /// The kernel's id of its NAPI thread, if it has one. The thread stays when `threaded` is turned off.
    pub thread: Option<i32>,
    /// Where and how that thread runs.
    pub scheduling: Option<Scheduling>,
    /// Where and how the thread ran before that was first changed over the socket, if it was.
    pub former_scheduling: Option<Scheduling>,
    /// The queueing discipline, if this NAPI sends. It sends for the queue of the same number of the device whose name
    /// lacks `-tx` at the end.
    pub qdisc: Option<String>,
    /// How many interrupts were taken.
    pub interrupts: u64,
    /// How late its timers were: how many there are in each bucket of [`lull_host::LatenessSnapshot`].
    pub timer_lateness: Vec<u64>,
    /// What has happened on it so far.
    pub stats: Stats,
    /// How long requests took from the ring to the answer, if they are timed.
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
    /// How many hard interrupts were taken.
    pub interrupts: u64,
    /// Nanoseconds in softirq.
    pub softirq_ns: u64,
    /// How many threads were woken.
    pub wakeups: u64,
    /// How often a kernel timer was set.
    pub timer_ops: u64,
    /// Nanoseconds that threads polled here without pause and found nothing. Those of a group's pollers are counted
    /// with the group.
    pub vain_ns: u64,
}

/// One epoll context of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EpollContext {
    /// How many of its sockets receive from each NAPI, by the NAPI's id.
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
