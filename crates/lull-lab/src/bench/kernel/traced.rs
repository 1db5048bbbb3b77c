//! What the trace of a window shows of the server's NAPIs.

use std::collections::HashMap;

use lull_core::Mode;
use lull_linux::polls::{Account, Accounts, Context, Record, What, Who};

use crate::cell::PolledBy;
use crate::check::{Evidence, ThreadsRest};

use super::usage::Used;

/// Returns the least duration with which a timer counts as a suspension's: half way between the two timeouts. A mode
/// that does not suspend has no such duration, so that every timer counts as its deferral's.
fn split_ns(mode: &Mode) -> u64 {
    let napi = &mode.napi;
    match napi.irq_suspend_timeout_ns {
        0 => u64::MAX,
        suspend => napi.gro_flush_timeout_ns.midpoint(suspend.max(napi.gro_flush_timeout_ns)),
    }
}

/// The longest time between two empty polls of a thread that did nothing else in between. Serving a request takes
/// several system calls, and so more time than this.
const VAIN_ROUND_NS_MAX: u64 = 5_000;

/// The counters of a window's trace.
#[derive(Default)]
pub(crate) struct Traced {
    pub account: Account,
    accounts: Accounts,
    /// Deadlines of timers that are set.
    deadlines: HashMap<u64, u64>,
    lateness_ns: Vec<u64>,
    pub timers_set: u64,
    /// The time of each thread's last poll, if it found nothing.
    found_nothing_at: HashMap<i32, u64>,
    /// The time that threads spent in consecutive empty polls, in nanoseconds.
    pub vain_ns: u64,
    /// The number of events that the ring buffers had no room for.
    pub lost: u64,
}

impl Traced {
    pub fn new(mode: &Mode) -> Traced {
        Traced { accounts: Accounts::new(split_ns(mode)), ..Traced::default() }
    }

    pub fn add(&mut self, record: &Record) {
        self.accounts.add(record);
        match record.what {
            What::TimerSet { timer, in_ns } => {
                self.timers_set += 1;
                if in_ns < self.accounts.split_ns() {
                    self.deadlines.insert(timer, record.at_ns + in_ns);
                } else {
                    self.deadlines.remove(&timer);
                }
            }
            What::TimerFired { timer } => {
                // The CPUs' buffers are read one after the other: a timer that another CPU has set again meanwhile has
                // another deadline.
                if let Some(late) = self.deadlines.remove(&timer).and_then(|at| record.at_ns.checked_sub(at)) {
                    self.lateness_ns.push(late);
                }
            }
            What::Poll { work, .. } if record.context == Context::Process => self.polled(record, work),
            What::Poll { .. } | What::Packet { .. } => {}
        }
    }

    /// Counts a poll of a thread, which took `work` packets.
    fn polled(&mut self, record: &Record, work: u32) {
        let before = match work {
            0 => self.found_nothing_at.insert(record.tid, record.at_ns),
            _ => self.found_nothing_at.remove(&record.tid),
        };
        let round_ns = before.filter(|_| work == 0).and_then(|before_ns| record.at_ns.checked_sub(before_ns));
        self.vain_ns += round_ns.filter(|ns| *ns <= VAIN_ROUND_NS_MAX).unwrap_or(0);
    }

    /// Returns how busy the server's cores were apart from empty polls, or `None` if threads polled in vain and the
    /// trace has lost events. Empty polls count as work while a thread of the server waits for a core, because they
    /// leave it no room.
    pub fn busy_percent(&self, used: &Used, cores: usize) -> Option<f64> {
        let Used { seconds, busy_percent, waited_s, .. } = *used;
        let spare_s = (self.vain_ns as f64 / 1e9 - waited_s).max(0.0);
        let vain_percent = 100.0 * spare_s / (seconds * cores as f64).max(f64::MIN_POSITIVE);
        (self.lost == 0 || self.vain_ns == 0).then(|| (busy_percent - vain_percent).max(0.0))
    }

    /// Adds the counters of all NAPIs up, since they are all the server's.
    pub fn sum(&mut self) {
        for account in self.accounts.napis().values() {
            account.by.iter().for_each(|(who, tally)| *self.account.by.entry(*who).or_default() += *tally);
            self.account.timers.0 += account.timers.0;
            self.account.timers.1 += account.timers.1;
        }
    }

    fn lateness_median_ns(&mut self) -> Option<u64> {
        let middle = self.lateness_ns.len() / 2;
        (!self.lateness_ns.is_empty()).then(|| *self.lateness_ns.select_nth_unstable(middle).1)
    }

    fn is_client(&self, tid: i32, server: &[i32]) -> bool {
        !server.contains(&tid) && self.accounts.thread(tid).is_some_and(|it| it.pid == std::process::id() as i32)
    }

    pub fn polled_by(&self, server: &[i32]) -> Option<PolledBy> {
        let total = self.account.total().packets;
        let mut by = PolledBy::default();
        for (who, tally) in &self.account.by {
            let share = match *who {
                Who::Timer { .. } => &mut by.timer,
                Who::Ksoftirqd { .. } => &mut by.ksoftirqd,
                Who::Thread { .. } => &mut by.napi_thread,
                Who::BusyPoll { tid } if server.contains(&tid) => &mut by.busy_poll,
                Who::Softirq { tid, .. } if server.contains(&tid) => &mut by.server_softirq,
                Who::Softirq { tid, .. } if self.is_client(tid, server) => &mut by.client_softirq,
                Who::Softirq { .. } => &mut by.other_softirq,
                Who::BusyPoll { .. } | Who::Netpoll => &mut by.other,
            };
            *share += 100.0 * tally.packets as f64 / total as f64;
        }
        (total > 0).then_some(by)
    }

    pub fn evidence(&mut self, server: &[i32], queries: u64, thread_sleeps: u64) -> Evidence {
        let polls = |of: &dyn Fn(&Who) -> bool| self.account.sum(of).polls;
        let threads = self.account.sum(|who| matches!(who, Who::Thread { .. }));
        Evidence {
            busy_polls: polls(&|who| matches!(who, Who::BusyPoll { tid } if server.contains(tid))),
            thread_polls: threads.polls,
            threads_rest: ThreadsRest::Sleeps { sleeps: thread_sleeps, empty_polls: threads.empty },
            softirq_polls: polls(&|who| matches!(who, Who::Softirq { .. } | Who::Timer { .. } | Who::Ksoftirqd { .. })),
            // Linux has no CPU groups that poll.
            group_polls: 0,
            deferrals: self.account.timers.0,
            suspensions: self.account.timers.1,
            lateness_ns: self.lateness_median_ns(),
            queries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(at_ns: u64, work: u32) -> Record {
        Record { at_ns, cpu: 0, tid: 7, context: Context::Process, what: What::Poll { napi: 1, work, budget: 64 } }
    }

    #[test]
    fn rounds_that_find_nothing_are_in_vain_and_requests_between_two_polls_are_not() {
        let mut traced = Traced::default();
        // The thread polls twice in vain, finds a packet, serves the request, polls in vain again, sleeps, and polls
        // once more.
        for (at_ns, work) in [(0, 0), (1_000, 0), (2_500, 0), (3_000, 1), (9_000, 0), (10_000, 0), (900_000, 0)] {
            traced.add(&poll(at_ns, work));
        }
        assert_eq!(traced.vain_ns, 3_500);
        traced.add(&Record { context: Context::Softirq, ..poll(900_500, 0) });
        assert_eq!(traced.vain_ns, 3_500, "softirq is not the thread that it interrupts");
        let full = Used { seconds: 7e-6, busy_percent: 100.0, ..Used::default() };
        assert_eq!(traced.busy_percent(&full, 1), Some(50.0));
        let waiting = Used { waited_s: 4e-6, ..full };
        assert_eq!(traced.busy_percent(&waiting, 1), Some(100.0), "a thread of the server waited meanwhile");
        traced.lost = 1;
        assert_eq!(traced.busy_percent(&full, 1), None, "more may have been in vain");
        assert_eq!(Traced { lost: 1, ..Traced::default() }.busy_percent(&full, 1), Some(100.0));
    }

    #[test]
    fn a_timer_is_a_suspensions_only_where_there_are_some() {
        let split = |mode: &str| split_ns(&mode.parse().unwrap());
        assert_eq!(split("defer20"), u64::MAX);
        assert_eq!(split("suspend20"), 10_010_000);
        assert_eq!(split("suspend0"), 10_000_000);
    }
}
