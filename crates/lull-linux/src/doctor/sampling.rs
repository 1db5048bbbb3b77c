//! Finds out whether a program polls with timeout zero, by watching it for a moment.
//!
//! `epoll_wait` with timeout 0 returns before it would busy poll (napi_semantics §8), so a loop of such calls neither
//! polls nor suspends. The calls are counted by the tracepoints of the system calls, which the kernel filters. Without
//! tracepoints it can be seen that a thread never sleeps, but not why.
//!
//! The timeout of `epoll_pwait2` is behind a pointer, which a filter cannot follow. For this call, returns without
//! events are counted, less the times that the thread slept, because with a timeout above 0 it sleeps before it returns
//! without events.

use std::ffi::CStr;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

use super::check::Check;
use crate::os;
use crate::roots::Roots;

/// How long the program is watched. For each thread, only the time counts in which it did not wait for a core.
const WATCHED: Duration = Duration::from_millis(300);
/// How long the program is watched at most, if its threads get no core.
const WATCHED_MAX: Duration = Duration::from_secs(10);
/// So many calls with timeout 0 in that time make a loop: one in 3 ms. A single look at the queue before a sleep makes
/// none.
const LOOP_CALLS_MIN: u64 = 100;

/// How calls with timeout 0 are told from others.
struct Call {
    name: &'static str,
    tracepoint: &'static str,
    filter: &'static CStr,
    /// Whether calls that sleep are counted as well, and have to be subtracted.
    less_sleeps: bool,
}

const CALLS: [Call; 3] = [
    Call { name: "epoll_wait", tracepoint: "sys_enter_epoll_wait", filter: c"timeout == 0", less_sleeps: false },
    Call { name: "epoll_pwait", tracepoint: "sys_enter_epoll_pwait", filter: c"timeout == 0", less_sleeps: false },
    Call { name: "epoll_pwait2", tracepoint: "sys_exit_epoll_pwait2", filter: c"ret == 0", less_sleeps: true },
];

/// A counter of one call of one thread.
struct Counted {
    thread: i32,
    call: &'static Call,
    counter: Counter,
    slept_before: u64,
    waited_before: Duration,
}

impl Counted {
    /// How many calls with timeout 0 there were since it was made.
    fn zeros(&mut self, pid: i32, roots: &Roots) -> u64 {
        let counted = self.counter.read().unwrap_or(0);
        if !self.call.less_sleeps {
            return counted;
        }
        // A thread that has ended meanwhile is no loop.
        let Some(slept) = sleeps(pid, self.thread, roots) else { return 0 };
        counted.saturating_sub(slept.saturating_sub(self.slept_before))
    }

    /// For how much of the time since then the thread did not wait for a core.
    fn could_run(&self, pid: i32, roots: &Roots, elapsed: Duration) -> Duration {
        let waited = waited(pid, self.thread, roots).unwrap_or(self.waited_before);
        elapsed.saturating_sub(waited.saturating_sub(self.waited_before))
    }
}

/// How long a thread has waited for a core, if the kernel reports it.
fn waited(pid: i32, thread: i32, roots: &Roots) -> Option<Duration> {
    let stat = roots.read_proc(&format!("{pid}/task/{thread}/schedstat")).ok()?;
    stat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// How often a thread has given up its CPU by itself.
fn sleeps(pid: i32, thread: i32, roots: &Roots) -> Option<u64> {
    let status = roots.read_proc(&format!("{pid}/task/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

pub fn zero_timeouts(named: &str, pid: i32, roots: &Roots) -> Check {
    let what = format!("timeouts of {named}");
    let threads = threads_of(pid, roots);
    match counters(&threads, pid, roots) {
        Ok(mut counters) => {
            let (most, millis) = watch(&mut counters, pid, roots);
            let Some((calls, thread, call, is_loop)) = most else {
                return Check::unknown(what, "it has no thread any more", "look again while it runs");
            };
            if !is_loop {
                return Check::ok(what, format!("no loop of zero timeouts in {millis} ms"));
            }
            Check::wrong(
                what,
                format!(
                    "thread {thread} called {call} with timeout 0 {calls} times in {millis} ms: such calls \
                     never busy poll and never suspend"
                ),
                "have the program wait (its loop's blocking mode), or start it with `lull run --mode fullbusy`, which polls for it",
            )
        }
        Err(error) => without_tracepoints(what, &threads, pid, roots, &error),
    }
}

/// Watches until a thread turns out to be a loop, or until each was watched for long enough. Returns the most calls
/// with timeout 0, with their thread, their name and whether they are a loop, and how many milliseconds this took.
fn watch(counters: &mut [Counted], pid: i32, roots: &Roots) -> (Option<(u64, i32, &'static str, bool)>, u128) {
    let began = Instant::now();
    loop {
        sleep(WATCHED);
        let elapsed = began.elapsed();
        let mut is_over = elapsed >= WATCHED_MAX;
        let mut all_watched = true;
        let look = |it: &mut Counted| {
            let (calls, could_run) = (it.zeros(pid, roots), it.could_run(pid, roots, elapsed));
            // A thread waits for a moment whenever it wakes.
            all_watched &= could_run >= WATCHED * 9 / 10;
            let is_loop = calls as f64 >= LOOP_CALLS_MIN as f64 * could_run.div_duration_f64(WATCHED).max(1.0);
            is_over |= is_loop;
            (calls, it.thread, it.call.name, is_loop)
        };
        let most = counters.iter_mut().map(look).max_by_key(|&(calls, .., is_loop)| (is_loop, calls));
        if is_over || all_watched {
            return (most, elapsed.as_millis());
        }
    }
}

fn threads_of(pid: i32, roots: &Roots) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(roots.proc(&format!("{pid}/task"))) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Makes a counter for each thread and call. They count from now on.
fn counters(threads: &[i32], pid: i32, roots: &Roots) -> io::Result<Vec<Counted>> {
    let mut counters = Vec::new();
    for call in &CALLS {
        // Architectures without epoll_wait have epoll_pwait.
        let Ok(id) = roots.read_sys(&format!("kernel/tracing/events/syscalls/{}/id", call.tracepoint)) else {
            continue;
        };
        let id = id.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        for &thread in threads {
            let mut builder = Builder::new(Tracepoint::with_id(id));
            let built = builder.observe_pid(thread).any_cpu().exclude_kernel(false).build();
            let mut counter = match built {
                Ok(counter) => counter,
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => return Err(error),
            };
            os::filter_tracepoint(&counter, call.filter)?;
            let slept_before = sleeps(pid, thread, roots).unwrap_or(0);
            counter.enable()?;
            let waited_before = waited(pid, thread, roots).unwrap_or_default();
            counters.push(Counted { thread, call, counter, slept_before, waited_before });
        }
    }
    if counters.is_empty() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(counters)
}

/// A check without tracepoints: a thread that ran at each look, and never slept, may be such a loop.
fn without_tracepoints(what: String, threads: &[i32], pid: i32, roots: &Roots, error: &io::Error) -> Check {
    let sleeps = |thread: i32| sleeps(pid, thread, roots);
    let runs = |thread: i32| {
        roots.read_proc(&format!("{pid}/task/{thread}/syscall")).is_ok_and(|text| text.starts_with("running"))
    };
    let before: Vec<_> = threads.iter().map(|&thread| (thread, sleeps(thread), runs(thread))).collect();
    sleep(WATCHED);
    let spins = before.into_iter().find(|(thread, slept, ran)| *ran && runs(*thread) && *slept == sleeps(*thread));
    let remedy = "mount tracefs on /sys/kernel/tracing and run it as root to count its calls";
    match spins {
        Some((thread, ..)) => Check::unknown(
            what,
            format!(
                "thread {thread} never slept in {} ms; whether it polls with timeout 0 is not visible ({error})",
                WATCHED.as_millis()
            ),
            remedy,
        ),
        None => Check::ok(what, "every thread sleeps between its calls, so none polls with timeout 0 all the time"),
    }
}
