//! Compares the timers of the settings with what a program does meanwhile: how long a packet waits for a program that
//! sleeps, and whether one that works comes back before they run out.
//!
//! Between two calls of `epoll_wait` nobody polls a queue that is suspended or whose interrupt is deferred. If a
//! program takes longer, softirq polls in its place, beside it on its CPU. How long an event takes cannot be seen from
//! outside, so a service time is assumed, and reported. How many events a call returns has two bounds that can be seen:
//! a socket is ready once per call, and `maxevents` stands in `/proc/P/task/T/syscall` while the thread sleeps there.

use std::cmp::Reverse;

use super::check::Check;
use crate::device::Snapshot;
use crate::programs::EpollContext;
use crate::roots::Roots;
use crate::sched::shown_ns;
use crate::spans::timer_ns;

/// The assumed cost of one event: a request of a key-value store.
const SERVICE_NS: u64 = 10_000;
/// A wait that nobody expects from a network, as it is longer than in any mode for programs that sleep.
const LONG_WAIT_NS: u64 = 1_000_000;

/// Checks how long packets wait for a program that sleeps.
pub fn sleepers(snapshot: &Snapshot) -> Check {
    let what = format!("timer of {}", snapshot.device);
    let defers = snapshot.napis.iter().filter(|napi| napi.settings.defers());
    let Some(longest) = defers.max_by_key(|napi| (napi.settings.gro_flush_timeout_ns, Reverse(napi.key))) else {
        return Check::ok(what, "no interrupt is deferred: a program that sleeps is woken by it");
    };
    let wait = shown_ns(longest.settings.gro_flush_timeout_ns);
    if longest.settings.gro_flush_timeout_ns < LONG_WAIT_NS {
        return Check::ok(
            what,
            format!("a packet for a program that sleeps waits for at most {wait} (gro_flush_timeout)"),
        );
    }
    Check::advice(
        what,
        format!(
            "gro_flush_timeout is {wait} on queue {}: a packet that comes while the program sleeps may wait that long, \
             the first one after a pause and every one of a program that is not polled for",
            longest.key
        ),
        "for programs that sleep take suspend20, or give --gro-flush-timeout 200us to `lull apply` or `lull run`",
    )
}

/// A context with the number of events that a call on it can return, and the timer that runs meanwhile.
struct Batch {
    fd: i32,
    sockets: u64,
    maxevents: Option<u64>,
    timer_ns: u64,
}

impl Batch {
    fn events(&self) -> u64 {
        self.maxevents.map_or(self.sockets, |maxevents| maxevents.min(self.sockets))
    }

    fn takes_ns(&self) -> u64 {
        self.events().saturating_mul(SERVICE_NS)
    }
}

/// Checks whether a full batch of a program takes longer than the timer of its queues. Returns `None` if it does not
/// busy poll on the device.
pub fn batches(named: &str, pid: i32, contexts: &[EpollContext], snapshot: &Snapshot, roots: &Roots) -> Option<Check> {
    let batch = |context: &EpollContext| {
        let hears = |id: u32| context.sockets.iter().any(|socket| socket.napi_id == id);
        let here = snapshot.napis.iter().filter(|napi| hears(napi.id));
        let timer_ns = here.filter_map(|napi| timer_ns(&napi.settings)).min()?;
        let maxevents = maxevents(pid, context.fd, roots);
        Some(Batch { fd: context.fd, sockets: context.sockets.len() as u64, maxevents, timer_ns })
    };
    let polling = contexts.iter().filter(|context| context.is_on());
    let worst = polling.filter_map(batch).max_by_key(|it| i128::from(it.takes_ns()) - i128::from(it.timer_ns))?;
    Some(judge(format!("batches of {named}"), &worst))
}

fn judge(what: String, batch: &Batch) -> Check {
    let (takes, timer) = (shown_ns(batch.takes_ns()), shown_ns(batch.timer_ns));
    let bound = match batch.maxevents {
        Some(maxevents) => format!("a call takes at most {maxevents} events"),
        None => "no thread sleeps in it now, so that maxevents is not to be seen".to_owned(),
    };
    let found = format!(
        "descriptor {} has {} sockets, and {bound}: {} events at an assumed {} each take {takes}",
        batch.fd,
        batch.sockets,
        batch.events(),
        shown_ns(SERVICE_NS)
    );
    if batch.takes_ns() <= batch.timer_ns {
        return Check::ok(what, format!("{found}, and the timer of its queues runs for {timer}"));
    }
    Check::advice(
        what,
        format!("{found}, but the timer of its queues runs out after {timer}, and softirq polls beside the program"),
        format!(
            "start it with `lull run --events-max {}`, or give a longer timer, such as --irq-suspend-timeout {}",
            (batch.timer_ns / SERVICE_NS).max(1),
            shown_ns(batch.takes_ns().next_multiple_of(LONG_WAIT_NS))
        ),
    )
}

/// The most events that a thread asks for on a context, if one sleeps there now.
fn maxevents(pid: i32, epoll: i32, roots: &Roots) -> Option<u64> {
    let threads = std::fs::read_dir(roots.proc(&format!("{pid}/task"))).ok()?.flatten();
    let calls = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("syscall")).ok());
    calls.filter_map(|call| asked(&call, epoll)).max()
}

/// The third argument of a call that waits on this descriptor. A line consists of the call's number and its arguments
/// in hexadecimal (`proc_pid_syscall`); the line of a thread that runs is different.
fn asked(line: &str, epoll: i32) -> Option<u64> {
    let mut words = line.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (fd, _events, maxevents) = (argument()?, argument()?, argument()?);
    let waits = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ];
    (waits.contains(&number) && fd == u64::from(epoll.unsigned_abs())).then_some(maxevents)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_batch_is_held_against_the_timer_with_what_is_known() {
        let judged = |sockets, maxevents| {
            judge("batches".to_owned(), &Batch { fd: 5, sockets, maxevents, timer_ns: 20_000_000 })
        };
        assert_eq!(judged(2_000, None).verdict, Verdict::Ok);
        let unknown = judged(2_001, None);
        assert_eq!(unknown.verdict, Verdict::Advice);
        assert!(unknown.reason.contains("2001 events at an assumed 10us") && unknown.reason.contains("not to be seen"));
        assert!(unknown.remedy.unwrap().contains("--events-max 2000"));
        let redis = judged(5_000, Some(10_128));
        assert!(redis.verdict == Verdict::Advice && redis.reason.contains("50ms"), "{redis:?}");
        assert!(redis.remedy.unwrap().contains("--irq-suspend-timeout 50ms"));
        assert_eq!(judged(5_000, Some(2_000)).verdict, Verdict::Ok);
    }

    #[test]
    fn what_a_sleeping_thread_asks_for() {
        let line = |number: i64| format!("{number} 0x5 0x559a5773a380 0x2790 0x1388 0x0 0x0 0x7ffe 0x7ff2");
        assert_eq!(asked(&line(libc::SYS_epoll_pwait), 5), Some(10_128));
        assert_eq!(asked(&line(libc::SYS_epoll_pwait), 6), None);
        assert_eq!(asked(&line(libc::SYS_futex), 5), None);
        assert_eq!(asked("running", 5), None);
        assert_eq!(asked("-1 0x7ffe 0x7ff2", 5), None);
    }
}
