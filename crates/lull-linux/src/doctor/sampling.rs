//! Whether a program polls with timeout zero, by watching it for a moment.
//!
//! `epoll_wait` with timeout 0 returns before it would busy poll (napi_semantics §8), so a loop of such calls neither
//! polls nor suspends. It is counted by the tracepoints of the system calls, filtered by the kernel; where there are
//! none, a thread that never sleeps can be seen, and not why.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

use super::Check;
use crate::os;
use crate::roots::Roots;

/// How long the program is watched.
const WATCHED: Duration = Duration::from_millis(300);
/// Calls with timeout 0 in that time that make a loop: one in 3 ms. A single look at the queue before sleeping is none.
const LOOP_CALLS_MIN: u64 = 100;
/// The system calls whose timeout is a number; `epoll_pwait2` has a pointer, which a filter cannot follow.
const CALLS: [&str; 2] = ["sys_enter_epoll_wait", "sys_enter_epoll_pwait"];

pub fn zero_timeouts(named: &str, pid: i32, roots: &Roots) -> Check {
    let what = format!("timeouts of {named}");
    let threads = threads_of(pid, roots);
    match counters(&threads, roots) {
        Ok(mut counters) => {
            sleep(WATCHED);
            let counted = counters.iter_mut().map(|(thread, counter)| (counter.read().unwrap_or(0), *thread));
            let Some((calls, thread)) = counted.max() else {
                return Check::unknown(what, "it has no thread any more", "look again while it runs");
            };
            if calls < LOOP_CALLS_MIN {
                return Check::ok(what, format!("no loop of zero timeouts in {} ms", WATCHED.as_millis()));
            }
            let millis = WATCHED.as_millis();
            Check::wrong(
                what,
                format!(
                    "thread {thread} called epoll_wait with timeout 0 {calls} times in {millis} ms: such calls \
                     never busy poll and never suspend"
                ),
                "have the program wait (its loop's blocking mode), or start it with `lull run`, which lifts the zero",
            )
        }
        Err(error) => without_tracepoints(what, &threads, pid, roots, &error),
    }
}

fn threads_of(pid: i32, roots: &Roots) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(roots.proc(&format!("{pid}/task"))) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A counter for each thread and call, counting already.
fn counters(threads: &[i32], roots: &Roots) -> io::Result<Vec<(i32, Counter)>> {
    let mut counters = Vec::new();
    for call in CALLS {
        // Architectures without epoll_wait have epoll_pwait.
        let Ok(id) = roots.read_sys(&format!("kernel/tracing/events/syscalls/{call}/id")) else { continue };
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
            os::filter_tracepoint(&counter, c"timeout == 0")?;
            counter.enable()?;
            counters.push((thread, counter));
        }
    }
    if counters.is_empty() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(counters)
}

/// Without tracepoints: a thread that was running whenever one looked, and never slept, may be such a loop.
fn without_tracepoints(what: String, threads: &[i32], pid: i32, roots: &Roots, error: &io::Error) -> Check {
    let sleeps = |thread: i32| {
        let status = roots.read_proc(&format!("{pid}/task/{thread}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
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
