//! Tells who made a poll.
//!
//! | context | thread | who polled |
//! | --- | --- | --- |
//! | softirq | `ksoftirqd/N` | ksoftirqd of that CPU |
//! | softirq | any other | softirq on that CPU, in that thread |
//! | softirq, first poll after the NAPI's timer fired on that CPU | any but ksoftirqd | the timer |
//! | process | a kernel thread (`napi/DEV-ID`) | the NAPI's thread |
//! | process | a program's | a busy poll of that thread, the stop's own poll included |
//! | any, budget 0 | any | netpoll |
//!
//! A softirq in a thread has either interrupted it, or comes from what the thread did: what it sent arrived on a veth,
//! or it resumed the NAPI.
//!
//! This has limits. What interrupted a thread and what a thread brought about itself look the same. A timer that found
//! the NAPI owned polls nothing, and if softirq polls on the same CPU next, that poll is attributed to the timer. A
//! thread that ended before it was looked up has no name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::AddAssign;

use super::{Context, Record, What, timer_of};

/// `PF_KTHREAD` (`sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;
/// Where the flags stand in `/proc/TID/stat`, counted after the name.
const STAT_FLAGS_FIELD: usize = 6;

/// Who polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// Softirq that the NAPI's timer raised. It is told only where timers are recorded.
    Timer {
        /// The CPU.
        cpu: u32,
    },
    /// Softirq.
    Softirq {
        /// The CPU.
        cpu: u32,
        /// The thread that was interrupted, or that caused it. 0 is the idle thread.
        tid: i32,
    },
    /// Softirq, in the thread that takes over when there is too much of it.
    Ksoftirqd {
        /// The CPU.
        cpu: u32,
    },
    /// The NAPI's own thread.
    Thread {
        /// That thread.
        tid: i32,
    },
    /// A busy poll.
    BusyPoll {
        /// The thread that polled.
        tid: i32,
    },
    /// Netpoll, which polls with a budget of 0.
    Netpoll,
}

impl Who {
    /// The thread, where one is known.
    pub fn tid(self) -> Option<i32> {
        match self {
            Who::Softirq { tid, .. } | Who::Thread { tid } | Who::BusyPoll { tid } => Some(tid),
            Who::Timer { .. } | Who::Ksoftirqd { .. } | Who::Netpoll => None,
        }
    }
}

/// Polls, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Polls.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty: u64,
    /// Packets.
    pub packets: u64,
    /// The highest budget among them.
    pub budget_max: u32,
}

impl Tally {
    fn add(&mut self, work: u32, budget: u32) {
        self.polls += 1;
        self.empty += u64::from(work == 0);
        self.packets += u64::from(work);
        self.budget_max = self.budget_max.max(budget);
    }

    /// Packets per poll; `None` without a poll.
    pub fn mean_work(&self) -> Option<f64> {
        (self.polls > 0).then(|| self.packets as f64 / self.polls as f64)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.polls += other.polls;
        self.empty += other.empty;
        self.packets += other.packets;
        self.budget_max = self.budget_max.max(other.budget_max);
    }
}

/// A thread, as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm {
    /// Its name (`comm`).
    pub name: String,
    /// Its process, or the thread itself if that is not known.
    pub pid: i32,
    /// Whether it is a kernel thread.
    pub kernel: bool,
}

impl Comm {
    /// Looks thread `tid` up.
    fn read(tid: i32) -> Option<Comm> {
        if tid == 0 {
            return Some(Comm { name: "idle".to_owned(), pid: 0, kernel: true });
        }
        let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
        // A name may hold any character, brackets as well, so the last one closes it.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let flags: u64 = rest.split_whitespace().nth(STAT_FLAGS_FIELD)?.parse().ok()?;
        let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let pid = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        Some(Comm { name: name.to_owned(), pid: pid.unwrap_or(tid), kernel: flags & PF_KTHREAD != 0 })
    }
}

/// The polls of one NAPI, by who made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The polls of each.
    pub by: BTreeMap<Who, Tally>,
    /// How often its timer was set to less than [`Accounts::split_ns`] ahead, and how often to that or more.
    pub timers: (u64, u64),
}

impl Account {
    /// All of them together.
    pub fn total(&self) -> Tally {
        self.sum(|_| true)
    }

    /// The polls of those of whom `of` is true.
    pub fn sum(&self, of: impl Fn(&Who) -> bool) -> Tally {
        let mut sum = Tally::default();
        self.by.iter().filter(|(who, _)| of(who)).for_each(|(_, tally)| sum += *tally);
        sum
    }
}

/// The polls of a device, by NAPI address.
#[derive(Debug, Default)]
pub struct Accounts {
    napis: BTreeMap<u64, Account>,
    /// The threads that were seen. They are looked up once.
    threads: HashMap<i32, Option<Comm>>,
    /// The timers that fired, with their CPU, whose poll has not been seen yet.
    fired: Vec<(u32, u64)>,
    /// The CPUs in whose present poll a packet was seen, with the NAPI id that it told.
    polling: Vec<(u32, u32)>,
    /// The ids that packets told, by address.
    ids: BTreeMap<u64, u32>,
    /// See [`Accounts::new`].
    split_ns: u64,
}

impl Accounts {
    /// No polls yet. A timer that is set `split_ns` ahead or further counts as the second of [`Account::timers`].
    pub fn new(split_ns: u64) -> Accounts {
        Accounts { split_ns, ..Accounts::default() }
    }

    /// How far ahead a timer has to be set to count as long, in nanoseconds.
    pub fn split_ns(&self) -> u64 {
        self.split_ns
    }

    /// Changes [`Accounts::split_ns`] for the timers to come.
    pub fn set_split_ns(&mut self, split_ns: u64) {
        self.split_ns = split_ns;
    }

    /// Counts a record.
    pub fn add(&mut self, record: &Record) {
        match record.what {
            What::Poll { napi, work, budget } => {
                if let Some(at) = self.polling.iter().position(|(cpu, _)| *cpu == record.cpu) {
                    let (_, id) = self.polling.swap_remove(at);
                    self.ids.insert(napi, id);
                }
                let who = self.who(record, napi, budget);
                self.napis.entry(napi).or_default().by.entry(who).or_default().add(work, budget);
            }
            What::Packet { napi_id: 0 } => {}
            What::Packet { napi_id } => {
                if !self.polling.contains(&(record.cpu, napi_id)) {
                    self.polling.retain(|(cpu, _)| *cpu != record.cpu);
                    self.polling.push((record.cpu, napi_id));
                }
            }
            What::TimerFired { timer } => {
                if !self.fired.contains(&(record.cpu, timer)) {
                    self.fired.push((record.cpu, timer));
                }
            }
            What::TimerSet { timer, in_ns } => {
                // The NAPI that a timer lies in is the nearest one below it. One that was never polled is not this
                // device's.
                if let Some((_, account)) =
                    self.napis.range_mut(..timer).next_back().filter(|(n, _)| timer_of(**n, timer))
                {
                    let counter = if in_ns < self.split_ns { &mut account.timers.0 } else { &mut account.timers.1 };
                    *counter += 1;
                }
            }
        }
    }

    fn who(&mut self, record: &Record, napi: u64, budget: u32) -> Who {
        let fired = self.fired.iter().position(|(cpu, timer)| *cpu == record.cpu && timer_of(napi, *timer));
        let fired = fired.map(|at| self.fired.swap_remove(at)).is_some();
        if budget == 0 {
            return Who::Netpoll;
        }
        let (cpu, tid) = (record.cpu, record.tid);
        let thread = self.threads.entry(tid).or_insert_with(|| Comm::read(tid));
        let kernel = thread.as_ref().filter(|thread| thread.kernel);
        match record.context {
            Context::Process if kernel.is_some() => Who::Thread { tid },
            Context::Process => Who::BusyPoll { tid },
            _ if kernel.is_some_and(|thread| thread.name.starts_with("ksoftirqd/")) => Who::Ksoftirqd { cpu },
            _ if fired => Who::Timer { cpu },
            _ => Who::Softirq { cpu, tid },
        }
    }

    /// A thread that was seen polling, or that a softirq ran in; `None` if it was gone before it was looked up.
    pub fn thread(&self, tid: i32) -> Option<&Comm> {
        self.threads.get(&tid).and_then(Option::as_ref)
    }

    /// The NAPIs that were polled, by address.
    pub fn napis(&self) -> &BTreeMap<u64, Account> {
        &self.napis
    }

    /// The ids that packets told ([`crate::polls::Polls::trace_packets`]), by address.
    pub fn ids(&self) -> &BTreeMap<u64, u32> {
        &self.ids
    }

    /// Forgets the ids, as the device has others now.
    pub fn forget_ids(&mut self) {
        self.ids.clear();
        self.polling.clear();
    }

    /// Takes the counts and begins anew. It stays known which threads there are.
    pub fn take(&mut self) -> BTreeMap<u64, Account> {
        let empty = self.napis.keys().map(|napi| (*napi, Account::default())).collect();
        let mut taken = std::mem::replace(&mut self.napis, empty);
        taken.retain(|_, account| *account != Account::default());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cpu: u32, tid: i32, context: Context, what: What) -> Record {
        Record { at_ns: 0, cpu, tid, context, what }
    }

    fn poll(napi: u64, work: u32) -> What {
        What::Poll { napi, work, budget: 64 }
    }

    /// A thread of a program for the account to find: this test's own.
    fn own_tid() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn context_and_thread_say_who_polled() {
        let mut accounts = Accounts::new(1_000_000);
        let me = own_tid();
        accounts.add(&record(1, me, Context::Process, poll(0x1000, 3)));
        accounts.add(&record(1, me, Context::Softirq, poll(0x1000, 0)));
        accounts.add(&record(0, 0, Context::Softirq, poll(0x1000, 2)));
        accounts.add(&record(0, 0, Context::Process, What::Poll { napi: 0x1000, work: 0, budget: 0 }));
        let account = &accounts.napis()[&0x1000];
        let who: Vec<Who> = account.by.keys().copied().collect();
        let softirq = |cpu, tid| Who::Softirq { cpu, tid };
        assert_eq!(who, [softirq(0, 0), softirq(1, me), Who::BusyPoll { tid: me }, Who::Netpoll]);
        assert_eq!((account.total().polls, account.total().packets, account.total().empty), (4, 5, 2));
        let comm = accounts.thread(me).unwrap();
        assert_eq!((comm.pid, comm.kernel), (std::process::id() as i32, false));
    }

    #[test]
    fn the_first_softirq_poll_after_its_timer_is_the_timers() {
        let mut accounts = Accounts::new(1_000_000);
        let fired = |cpu, timer| record(cpu, 0, Context::HardInterrupt, What::TimerFired { timer });
        accounts.add(&fired(0, 0x1100));
        accounts.add(&fired(1, 0x9100));
        accounts.add(&record(1, 0, Context::Softirq, poll(0x1000, 1)));
        accounts.add(&record(0, 0, Context::Softirq, poll(0x1000, 1)));
        accounts.add(&record(0, 0, Context::Softirq, poll(0x1000, 1)));
        let by = &accounts.napis()[&0x1000].by;
        assert_eq!(by[&Who::Timer { cpu: 0 }].polls, 1);
        assert_eq!(by[&Who::Softirq { cpu: 0, tid: 0 }].polls, 1);
        assert_eq!(by[&Who::Softirq { cpu: 1, tid: 0 }].polls, 1);
    }

    #[test]
    fn a_packet_tells_the_id_of_the_poll_that_ends_next_on_its_cpu() {
        let mut accounts = Accounts::new(1_000_000);
        let packet = |cpu, napi_id| record(cpu, 0, Context::Softirq, What::Packet { napi_id });
        accounts.add(&packet(0, 8));
        accounts.add(&packet(1, 9));
        accounts.add(&packet(0, 8));
        accounts.add(&record(1, 0, Context::Softirq, poll(0x2000, 1)));
        accounts.add(&record(0, 0, Context::Softirq, poll(0x1000, 2)));
        accounts.add(&record(1, 0, Context::Softirq, poll(0x3000, 0)));
        accounts.add(&packet(1, 0));
        accounts.add(&record(1, 0, Context::Softirq, poll(0x4000, 1)));
        assert_eq!(*accounts.ids(), BTreeMap::from([(0x1000, 8), (0x2000, 9)]));
    }

    #[test]
    fn timers_count_by_how_far_ahead_and_only_for_napis_that_are_known() {
        let mut accounts = Accounts::new(1_000_000);
        let set = |timer, in_ns| record(0, 0, Context::Softirq, What::TimerSet { timer, in_ns });
        accounts.add(&set(0x1100, 20_000));
        accounts.add(&record(0, 0, Context::Softirq, poll(0x1000, 1)));
        accounts.add(&set(0x1100, 20_000));
        accounts.add(&set(0x1100, 20_000_000));
        accounts.add(&set(0x1100, 20_000_000));
        accounts.add(&set(0x7100, 20_000));
        assert_eq!(accounts.take()[&0x1000].timers, (1, 2));
        assert!(accounts.take().is_empty());
        accounts.add(&set(0x1100, 20_000));
        assert_eq!(accounts.take()[&0x1000].timers, (1, 0), "the NAPI stays known");
    }
}
