//! The bench on the kernel plane: a memcached on Linux's own stack, behind a veth pair whose far end is the load
//! generator's.
//!
//! | module | holds |
//! | --- | --- |
//! | [`pair`] | two network namespaces with a veth pair between them |
//! | [`program`] | memcached, or our service over kernel sockets, and its half of a mode |
//! | [`check`] | whether a mode was in force, by the trace |
//! | `usage` | what `/proc` counts around a window |

pub mod check;
pub mod pair;
pub mod program;
mod usage;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lull_core::{Mode, Threaded};
use lull_host::pin_thread;
use lull_linux::Roots;
use lull_linux::device::Device;
use lull_linux::machine::kernel_release;
use lull_linux::netdev::{NapiChange, Netdev};
use lull_linux::plan::check_policy;
use lull_linux::polls::{Account, Accounts, Options, Polls, Record, Switch, What, Who};

use self::check::{Evidence, split_ns, verdict};
use self::pair::{Pair, linux};
use self::program::{Program, ServiceKind};
use self::usage::{Threads, Usage, Used, ksoftirqds};
use super::{Bench, BenchConfig, BenchError, Cores, PORT, Run};
use crate::cell::{PolledBy, RunResult, Verdict};
use crate::load::kernel::{KernelClient, KernelConfig};
use crate::load::{Load, Summary, Workload};

/// How often the trace is read during a window.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// How late a stop is noticed.
const STOP_INTERVAL: Duration = Duration::from_millis(50);
/// How long a NAPI thread may take to appear.
const THREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Ring buffer of the trace, in KiB for each CPU: a second of the fastest busy polling.
const TRACE_KIB: u32 = 64 * 1024;

/// A service on the kernel's stack, with a generator at the other end of a veth pair.
pub struct KernelBench {
    // In the order in which they have to go.
    client: KernelClient,
    program: Program,
    polls: Polls,
    /// The trace records while a cell runs, and not between two.
    recording: Switch,
    netdev: Netdev,
    ifindex: u32,
    pair: Pair,
    cores: Cores,
    config: BenchConfig,
    /// Threads that deliver for the server: its cores' ksoftirqd, and in some modes the NAPIs' own.
    ksoftirqds: Vec<i32>,
    napi_threads: Vec<i32>,
    tsc_khz: Option<u64>,
}

/// What a window's trace came to.
#[derive(Default)]
struct Traced {
    account: Account,
    accounts: Accounts,
    /// Deadlines of timers that are set.
    deadlines: HashMap<u64, u64>,
    lateness_ns: Vec<u64>,
    timers_set: u64,
    /// Events that the ring buffers had no room for.
    lost: u64,
}

impl Traced {
    fn new(split_ns: u64) -> Traced {
        Traced { accounts: Accounts::new(split_ns), ..Traced::default() }
    }

    fn add(&mut self, record: &Record) {
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
                // CPUs are read one after the other: a timer that was set again elsewhere meanwhile has another
                // deadline.
                if let Some(late) = self.deadlines.remove(&timer).and_then(|at| record.at_ns.checked_sub(at)) {
                    self.lateness_ns.push(late);
                }
            }
            What::Poll { .. } | What::Packet { .. } => {}
        }
    }

    /// Adds all NAPIs up: they are the server's.
    fn sum(&mut self) {
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

    fn polled_by(&self, server: &[i32]) -> Option<PolledBy> {
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

    fn evidence(&mut self, server: &[i32], queries: u64, thread_sleeps: u64) -> Evidence {
        let polls = |of: &dyn Fn(&Who) -> bool| self.account.sum(of).polls;
        let threads = self.account.sum(|who| matches!(who, Who::Thread { .. }));
        Evidence {
            busy_polls: polls(&|who| matches!(who, Who::BusyPoll { tid } if server.contains(tid))),
            thread_polls: threads.polls,
            thread_empty: threads.empty,
            thread_sleeps,
            softirq_polls: polls(&|who| matches!(who, Who::Softirq { .. } | Who::Timer { .. } | Who::Ksoftirqd { .. })),
            deferrals: self.account.timers.0,
            suspensions: self.account.timers.1,
            lateness_ns: self.lateness_median_ns(),
            queries,
        }
    }
}

impl KernelBench {
    /// Makes the namespaces and the pair, starts the service, opens the connections and stores the records through
    /// them. Has to be called by the thread that will run the cells.
    ///
    /// # Errors
    /// No root, no tracefs, more workers than cores, or what the service or the generator meets.
    pub fn start(config: BenchConfig, kind: ServiceKind) -> Result<KernelBench, BenchError> {
        let cores = Cores::split(&config)?;
        let pair = Pair::make(config.workers)?;
        let address = SocketAddr::new(pair.server.address(), PORT);
        let options = Options { timers: true, buffer_kib: TRACE_KIB };
        let mut polls = Polls::open(pair.server.device(), options).map_err(trace_error)?;
        let recording = polls.switch();
        let open = || {
            let mut netdev = Netdev::new();
            let device = Device::open(pair.server.device(), &mut netdev, &Roots::default())?;
            // A socket belongs to the namespace in which its first request was made.
            let napis = netdev.napis(device.ifindex)?.len();
            Ok((netdev, device.ifindex, napis))
        };
        let (netdev, ifindex, napis) = pair.server.within(open)?.map_err(linux)?;
        if napis != config.workers {
            return Err(BenchError::Invalid(format!(
                "cannot compare on a veth of {} queues: the kernel shows {napis} NAPIs for it, and settings per NAPI \
                 take Linux 6.13 or newer",
                config.workers
            )));
        }
        let program = Program::start(kind, &pair.server, address, &cores.service, config.connections)?;
        let workload = Arc::new(Workload::new(config.workload)?);
        let mut kernel = KernelConfig::new(address, config.connections);
        kernel.threads = cores.generator.len().min(config.connections);
        kernel.spin = true;
        let generator = &cores.generator;
        let connect = || -> Result<KernelClient, BenchError> {
            pin_thread(generator)?;
            let mut client = KernelClient::connect(kernel, workload, Duration::from_secs(60))?;
            client.preload(&std::sync::atomic::AtomicBool::new(false))?;
            Ok(client)
        };
        let client = pair.client.within(connect)??;
        recording.set(false).map_err(trace_error)?;
        polls.drain(|_| ()).map_err(trace_error)?;
        let ksoftirqds = ksoftirqds(&cores.service);
        let tsc_khz = lull_host::Clock::new().tsc_khz();
        // What reads the trace must not do so on the server's cores, and beside the generator only if it has to.
        pin_thread(if cores.spare.is_empty() { &cores.generator } else { &cores.spare })?;
        Ok(KernelBench {
            client,
            program,
            polls,
            recording,
            netdev,
            ifindex,
            pair,
            cores,
            config,
            ksoftirqds,
            napi_threads: Vec::new(),
            tsc_khz,
        })
    }

    /// Why a mode cannot be here; `None` if it can.
    fn refusal(&mut self, mode: &Mode) -> Result<Option<String>, BenchError> {
        let policy = self.netdev.policy().map_err(linux)?;
        let refused = check_policy(mode.name(), &mode.napi, &policy, &kernel_release()).err();
        Ok(refused.map(|error| error.to_string()).or_else(|| self.program.cannot(mode)))
    }

    /// Puts both halves of a mode in force: the NAPIs' settings, their threads on the server's cores, and the
    /// program's.
    fn set_mode(&mut self, mode: &Mode) -> Result<(), BenchError> {
        for napi in self.netdev.napis(self.ifindex).map_err(linux)? {
            let change = NapiChange::between(&napi.settings, &mode.napi);
            if !change.is_empty() {
                self.netdev.set(napi.id, &change).map_err(linux)?;
            }
        }
        self.napi_threads = if mode.napi.threaded == Threaded::Off { Vec::new() } else { self.threads()? };
        for tid in &self.napi_threads {
            lull_linux::sched::set_cpus(*tid, &self.cores.service)?;
        }
        self.program.set_mode(mode)
    }

    /// The NAPIs' threads, one for each.
    fn threads(&mut self) -> Result<Vec<i32>, BenchError> {
        let until = Instant::now() + THREAD_TIMEOUT;
        loop {
            let napis = self.netdev.napis(self.ifindex).map_err(linux)?;
            let threads: Vec<i32> = napis.iter().filter_map(|napi| napi.thread_pid).collect();
            if threads.len() == napis.len() {
                return Ok(threads);
            }
            if Instant::now() > until {
                return Err(BenchError::Invalid("the kernel started no NAPI thread".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn measure(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let load = match run.offered_qps {
            None => Load::Closed { depth: self.config.depth },
            Some(qps) => Load::Open { qps, arrivals: self.config.arrivals, depth: self.config.depth },
        };
        let KernelBench { client, program, polls, recording, pair, cores, .. } = self;
        let server = program.tids();
        let threads = Threads { server: &server, ksoftirqds: &self.ksoftirqds, napi: &self.napi_threads };
        let lost_before = polls.lost().map_err(trace_error)?;
        let (side, generator) = (&pair.client, &cores.generator);
        let (begun_ns, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = &begun_ns;
        let generate = move || -> Result<Summary, BenchError> {
            side.enter()?;
            // The client's threads inherit it.
            pin_thread(generator)?;
            begun.store(lull_linux::polls::now_ns(), Ordering::Release);
            Ok(client.run(load, run.warm_up, run.window, run.stop)?)
        };
        let mut traced = Traced::new(split_ns(run.mode));
        // The window is the generator's, however late this thread gets to run on a busy machine.
        let (from_ns, length_ns) = (run.warm_up.as_nanos() as u64, run.window.as_nanos() as u64);
        let of_window = |record: &Record| {
            let begun_ns = begun.load(Ordering::Acquire);
            if begun_ns != 0 && (from_ns..from_ns + length_ns).contains(&record.at_ns.saturating_sub(begun_ns)) {
                traced.add(record);
            }
        };
        recording.set(true).map_err(trace_error)?;
        let (summary, before, after) = std::thread::scope(|scope| {
            let generating = scope.spawn(generate);
            let reading = scope.spawn(|| read_trace(polls, &over, of_window));
            pass(run.warm_up, run.stop);
            let before = Usage::read(&cores.service, threads);
            pass(run.window, run.stop);
            let after = Usage::read(&cores.service, threads);
            let ended = recording.set(false).map_err(trace_error);
            over.store(true, Ordering::Release);
            reading.join().map_err(|_| BenchError::Invalid("the reader of the trace panicked".to_owned()))??;
            let summary = generating.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))?;
            ended?;
            Ok::<_, BenchError>((summary?, before, after))
        })?;
        traced.lost = self.polls.lost().map_err(trace_error)? - lost_before;
        traced.sum();
        Ok(self.row(run, &summary, &mut traced, &server, after.since(&before, self.cores.service.len())))
    }

    fn row(&self, run: &Run<'_>, summary: &Summary, traced: &mut Traced, server: &[i32], used: Used) -> RunResult {
        let evidence = traced.evidence(server, summary.received, used.napi_sleeps);
        let total = traced.account.total();
        // A trace with holes still shows that something was; how much of it there was it does not.
        let whole = traced.lost == 0;
        let queries = summary.qps * used.seconds;
        let answered = summary.received > 0;
        let us = |ns: u64| answered.then(|| ns as f64 / 1_000.0);
        let cycles = self.tsc_khz.map(|khz| used.cpu_s * khz as f64 * 1e3);
        RunResult {
            offered_qps: run.offered_qps,
            avg_latency_us: answered.then(|| summary.latency_avg_ns / 1_000.0),
            p50_latency_us: us(summary.latency_p50_ns),
            p95_latency_us: us(summary.latency_p95_ns),
            p99_latency_us: us(summary.latency_p99_ns),
            cpu_percent: Some(used.cpu_percent),
            server_cpu_percent: Some(used.busy_percent),
            generator_busy_percent: Some(100.0 * summary.busy_fraction),
            kept_up: run.offered_qps.is_none() || summary.kept_up,
            cycles_per_query: cycles.filter(|_| queries > 0.0).map(|cycles| cycles / queries),
            polls: whole.then_some(total.polls),
            mean_work: total.mean_work().filter(|_| whole),
            empty_polls: whole.then_some(total.empty),
            softirq_ms: Some(used.softirq_ms),
            wakeups: Some(used.sleeps),
            timer_ops: whole.then_some(traced.timers_set),
            generator_lag_us: us(summary.lag_p99_ns),
            timer_lag_us: evidence.lateness_ns.map(|ns| ns as f64 / 1_000.0),
            suspensions: whole.then_some(evidence.suspensions),
            polled_by: traced.polled_by(server).filter(|_| whole),
            verdict: match verdict(run.mode, &evidence) {
                // What is missing may be what was lost.
                Verdict::NotInForce { reason } if !whole => {
                    Verdict::NotInForce { reason: format!("{reason}; the trace lost {} events", traced.lost) }
                }
                verdict => verdict,
            },
            ..RunResult::new(run.mode.name(), run.load, run.run, used.seconds, summary.qps)
        }
    }
}

impl Bench for KernelBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        if let Some(reason) = self.refusal(run.mode)? {
            let refused = RunResult::new(run.mode.name(), run.load, run.run, 0.0, 0.0);
            return Ok(RunResult { verdict: Verdict::Refused { reason }, ..refused });
        }
        self.set_mode(run.mode)?;
        self.measure(run)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            self.program.note(),
            "On a veth, base is flattered: there is no interrupt to pay for, and the sender's core does the receiver's \
             work in its own softirq (client's softirq, below). For a base that pays for it on the server's core \
             compare with threaded: its NAPI thread is pinned there."
                .to_owned(),
            "In threaded-busy, too, the NAPI thread is pinned to the server's core. There it polls without pause and the \
             service waits for its turn; the published set-up gives it a core of its own."
                .to_owned(),
            "CPU is the run time of the service's threads, of NAPI threads and of ksoftirqd, and the softirq time of \
             the server's cores, to the kernel's tick: softirqs that interrupted one of those threads count twice. \
             What the client's core did for the server is not in it. Whether the server was the limit at MAX goes by \
             how busy its cores were, whoever kept them so. wakeups are the times that a thread of the service slept; \
             timer_ops counts the timers of all NAPIs."
                .to_owned(),
            "Empty columns are what the kernel does not show from outside: a veth has no interrupts, and calls of \
             epoll_wait are the program's own. Where the trace lost events, what it counts is left out."
                .to_owned(),
        ];
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}

/// Waits for `time`, or until it is stopped.
fn pass(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(left.min(STOP_INTERVAL));
    }
}

/// Reads the trace until the window is over, and then what is left of it. That the recording ends with the window, and
/// not with its reader, keeps the window as long as it is: a NAPI thread that busy polls may record faster than this
/// reads.
fn read_trace(polls: &mut Polls, over: &AtomicBool, mut each: impl FnMut(&Record)) -> Result<(), BenchError> {
    loop {
        let last = over.load(Ordering::Acquire);
        polls.drain(&mut each).map_err(trace_error)?;
        if last {
            return Ok(());
        }
        std::thread::sleep(DRAIN_INTERVAL);
    }
}

fn trace_error(error: lull_linux::polls::PollsError) -> BenchError {
    BenchError::Invalid(error.to_string())
}
