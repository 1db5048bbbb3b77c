//! Random programs, run on the kernel's sockets and on lull's side by side: results, errors and readiness have to be the same.
//!
//! `LULL_PROGRAMS` is how many (300 by default), `LULL_SEED` the first one's seed: a program is its seed. One that makes a
//! difference is shrunk and printed as a list of calls with what the kernel answered; `LULL_FINDINGS` is how many of those end
//! the run, `LULL_SHRINK` how many tries are made to shrink one, `LULL_LOST_MS` how long a side may take to come to rest.

mod ancillary;
mod call;
mod datagram_ops;
mod datagrams;
mod machine;
mod peers;
mod program;
mod run;
mod scripts;
mod step;
mod thread;
mod udp_peers;
mod watch;
mod words;
#[path = "../world/mod.rs"]
mod world;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use machine::Machine;
use program::{Op, Pick, Step, To};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use run::{Run, Threads};

/// Nothing takes so long that is not lost, on a busy machine.
const LOST: Duration = Duration::from_secs(30);
/// While a program is shrunk that failed.
const LOST_WHILE_SHRINKING: Duration = Duration::from_millis(700);
/// A run that is ended goes on where it last said that it was.
const SAID_EVERY: u64 = 1000;
/// How often a program is run on two kernels, to see whether Linux does the same every time.
const KERNELS: usize = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// Runs a program; what comes back is the difference, and what was done until then.
fn run(
    program: &[Step],
    machines: [Machine; 2],
    threads: &mut Threads,
    limit: Duration,
) -> Option<(String, Vec<String>)> {
    let mut run = Run::new(machines, threads, limit);
    let mut steps = program.iter().filter(|step| step.is_done);
    let result = steps.try_for_each(|step| run.step(step)).and_then(|()| run.end());
    watch::nothing();
    result.err().map(|difference| (difference, run.told()))
}

/// What of a program went otherwise than on the kernel, if Linux itself does the same every time.
struct Finding {
    seed: u64,
    what: String,
}

/// Programs whose course Linux leaves open.
struct Counts {
    calls: u64,
    open: u64,
}

fn run_seed(seed: u64, threads: &RefCell<Threads>, counts: &RefCell<Counts>) -> Option<Finding> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: number("LULL_SHRINK").unwrap_or(400) as u32,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let last = RefCell::new(None);
    let result = runner.run(&program::program(), |program| {
        let threads = &mut *threads.borrow_mut();
        let shrinking = last.borrow().is_some();
        let limit =
            if shrinking { LOST_WHILE_SHRINKING } else { number("LULL_LOST_MS").map_or(LOST, Duration::from_millis) };
        let kernels = if shrinking { 1 } else { KERNELS };
        counts.borrow_mut().calls += program.len() as u64;
        let Some(difference) = run(&program, [Machine::Kernel, Machine::Lull], threads, limit) else { return Ok(()) };
        if !shrinking {
            println!("seed {seed}: {}", difference.0);
        }
        let is_open = |_| run(&program, [Machine::Kernel, Machine::Kernel], threads, limit).is_some();
        if (0..kernels).any(is_open) {
            counts.borrow_mut().open += 1;
            return Ok(());
        }
        *last.borrow_mut() = Some(difference.clone());
        Err(TestCaseError::fail(difference.0))
    });
    match result {
        Ok(()) => None,
        Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        Err(TestError::Fail(_, program)) => {
            let threads = &mut *threads.borrow_mut();
            let again = run(&program, [Machine::Kernel, Machine::Lull], threads, LOST_WHILE_SHRINKING);
            let often = if again.is_some() { "" } else { " (not every time)" };
            let (what, log) = again.or(last.into_inner())?;
            Some(Finding { seed, what: format!("{what}{often}, after\n    {}", log.join("\n    ")) })
        }
    }
}

/// The sides settle by what the whole process has sent: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());
/// Tests that have begun, each in a thread of its own: the next one begins when another has ended.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

fn alone() -> MutexGuard<'static, ()> {
    BEGUN.fetch_add(1, Ordering::SeqCst);
    world::peers();
    thread::handle_signals();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was sent just before makes the peer put off its acknowledgement of the FIN, which is a second edge.
#[test]
fn an_edge_is_not_looked_for_before_the_fin_is_acknowledged() {
    let _alone = alone();
    let nth = Pick { nth: 0, any: false };
    let events = (libc::EPOLLOUT | libc::EPOLLET) as u32;
    let wait = Op::EpollWait { pick: nth, timeout_ms: 0 };
    let ops = [
        Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false },
        Op::EpollCreate,
        Op::EpollCtl { context: nth, pick: nth, what: libc::EPOLL_CTL_ADD, events },
        wait.clone(),
        Op::Send { pick: nth, sizes: vec![100], flags: None },
        Op::Shutdown { pick: nth, how: libc::SHUT_WR },
        wait.clone(),
        wait,
    ];
    does_the_same(&ops, 20);
}

/// What Nagle's algorithm holds is not waited for by who closes with a reset, and no peer has it yet whose state would show it.
#[test]
fn a_reset_is_not_made_before_what_was_written_is_sent() {
    let _alone = alone();
    let nth = Pick { nth: 0, any: false };
    let send = |size| Op::Send { pick: nth, sizes: vec![size], flags: None };
    let ops = [
        Op::PeerListen { in_kernel: false },
        Op::Socket { domain: libc::AF_INET, flags: libc::SOCK_NONBLOCK },
        Op::Connect { pick: nth, to: To::Listener(0) },
        send(49),
        send(333),
        Op::SetLinger { pick: nth, on: true, seconds: 0 },
        Op::Close { pick: nth },
        Op::PeerAccept { nth: 0 },
    ];
    does_the_same(&ops, 1);
}

#[test]
fn a_context_is_no_socket_to_who_gives_it_no_messages() {
    let _alone = alone();
    let nth = Pick { nth: 0, any: true };
    let ops = [
        Op::EpollCreate,
        Op::RecvMany { pick: nth, sizes: Vec::new(), flags: libc::MSG_DONTWAIT, timeout: None },
        Op::SendMany { pick: nth, sizes: Vec::new(), flags: libc::MSG_DONTWAIT },
    ];
    does_the_same(&ops, 1);
}

/// The first context is looked for inside the second one, as if it were there still.
#[test]
fn contexts_change_places() {
    let _alone = alone();
    let (first, second) = (Pick { nth: 0, any: true }, Pick { nth: 1, any: true });
    let events = libc::EPOLLIN as u32;
    let ctl = |context, pick, what| Op::EpollCtl { context, pick, what, events };
    let ops = [
        Op::EpollCreate,
        Op::EpollCreate,
        ctl(second, first, libc::EPOLL_CTL_ADD),
        ctl(first, second, libc::EPOLL_CTL_ADD),
        ctl(second, first, libc::EPOLL_CTL_DEL),
        ctl(first, second, libc::EPOLL_CTL_ADD),
        Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false },
        ctl(second, Pick { nth: 2, any: true }, libc::EPOLL_CTL_ADD),
        Op::PeerSend { nth: 0, size: 10 },
        Op::EpollWait { pick: first, timeout_ms: 0 },
        Op::Poll { members: vec![(first, libc::POLLIN)], timeout_ms: 0, by_select: false },
    ];
    does_the_same(&ops, 1);
}

/// What was received stays for the next call.
#[test]
fn recvmmsg_tells_of_a_reset_before_what_came() {
    let _alone = alone();
    let nth = Pick { nth: 0, any: false };
    let receive = Op::RecvMany { pick: nth, sizes: vec![30; 4], flags: libc::MSG_DONTWAIT, timeout: None };
    let ops = [
        Op::Depart { domain: libc::AF_INET, nonblocking: true, in_kernel: false },
        Op::PeerSend { nth: 0, size: 100 },
        Op::RecvMany { pick: nth, sizes: vec![30], flags: libc::MSG_DONTWAIT, timeout: None },
        Op::PeerClose { nth: 0, reset: true },
        receive.clone(),
        receive.clone(),
        receive,
    ];
    does_the_same(&ops, 1);
}

fn does_the_same(ops: &[Op], times: usize) {
    let step = |op: &Op| Step { is_done: true, by_second: false, op: op.clone() };
    let program: Vec<Step> = ops.iter().map(step).collect();
    let mut threads = run::new_threads();
    for _ in 0..times {
        assert_eq!(run(&program, [Machine::Kernel, Machine::Lull], &mut threads, LOST), None);
    }
}

#[test]
fn random_programs_do_the_same_on_the_kernel_and_on_lull() {
    let first = number("LULL_SEED").unwrap_or(1);
    let count = number("LULL_PROGRAMS").unwrap_or(300);
    let findings_max = number("LULL_FINDINGS").unwrap_or(1);
    println!("LULL_SEED={first} LULL_PROGRAMS={count}");
    let _alone = alone();
    let threads = RefCell::new(run::new_threads());
    let counts = RefCell::new(Counts { calls: 0, open: 0 });
    let start = Instant::now();
    let mut findings = Vec::new();
    for (done, seed) in (0_u64..count).zip(first..) {
        if done > 0 && done.is_multiple_of(SAID_EVERY) {
            println!("{done} programs done: LULL_SEED={seed} goes on from here");
        }
        if let Some(finding) = run_seed(seed, &threads, &counts) {
            println!("LULL_SEED={} LULL_PROGRAMS=1: {}", finding.seed, finding.what);
            findings.push(finding);
            if findings.len() as u64 == findings_max {
                break;
            }
        }
    }
    let counts = counts.into_inner();
    println!(
        "{count} programs from seed {first} in {:.1} s, {} steps, {} in which Linux differs from itself",
        start.elapsed().as_secs_f64(),
        counts.calls,
        counts.open
    );
    assert!(
        findings.is_empty(),
        "{} of them differ from the kernel; the first is seed {}",
        findings.len(),
        findings[0].seed
    );
}
