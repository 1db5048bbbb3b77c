//! A worker's one epoll context serves the connections of four queues, as Linux has it and with every NAPI polled.
//! Packets reach it from all queues in every mode, and the verdict is based on what the NAPIs counted.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lull_core::{EpollOptions, Mode, Stats};
use lull_lab::bench::{Bench, BenchConfig, BenchError, MemBench, Run, Server};
use lull_lab::cell::{Load, RunResult};
use lull_lab::load::WorkloadConfig;

const QUEUES: usize = 4;
const CONNECTIONS: usize = 64;
/// This number of packets of a queue shows that the queue is served: its connections cannot have had more outstanding
/// before.
const PACKETS: u64 = 200;
/// The events that a test waits for take far less on any machine.
const LOST: Duration = Duration::from_secs(240);

fn config(epoll: EpollOptions) -> BenchConfig {
    BenchConfig {
        queues: Some(QUEUES),
        connections: CONNECTIONS,
        workload: WorkloadConfig { records: 1_000, ..WorkloadConfig::default() },
        epoll,
        ..BenchConfig::default()
    }
}

/// Returns what each queue has counted so far.
fn by_queue(server: &Server) -> Vec<Stats> {
    server.network().napis().into_iter().map(|napi| server.host().napi_stats(napi)).collect()
}

/// Whether a queue had its packets in the mode, and the events that only this mode has.
fn served(mode: &Mode, queue: &Stats) -> bool {
    let polled = mode.name() == "base" || queue.busy_polls > 0;
    queue.work >= PACKETS && polled && (!mode.suspends() || queue.suspends > 0)
}

/// The counts from before a run until after it.
struct Counted {
    queues: Vec<Stats>,
    /// Calls of `epoll_wait`.
    calls: u64,
    row: RunResult,
}

fn calls(server: &Server) -> u64 {
    server.service().epolls().map(|epoll| epoll.stats().calls).sum()
}

/// Runs the cell until a run has served all queues.
fn cell(bench: &mut MemBench, mode: &Mode) -> Counted {
    let start = Instant::now();
    loop {
        bench.server().set_mode(mode).unwrap();
        // Calls are read first and last, so that every counted suspension has its call counted too.
        let (calls_before, before) = (calls(bench.server()), by_queue(bench.server()));
        let (warm_up, window, stop) = (Duration::from_millis(50), Duration::from_millis(300), AtomicBool::new(false));
        let run = Run { mode, load: Load::Max, offered_qps: None, run: 0, warm_up, window, stop: &stop };
        let row = bench.run(&run).unwrap_or_else(|error| panic!("{mode}: {error}"));
        let queues: Vec<Stats> = by_queue(bench.server()).iter().zip(&before).map(|(now, then)| *now - *then).collect();
        let calls = calls(bench.server()) - calls_before;
        // On a busy machine a window may have too few events to tell.
        let seen = row.polls.unwrap() >= PACKETS && (!mode.suspends() || row.suspensions.unwrap() > 0);
        if seen && queues.iter().all(|queue| served(mode, queue)) {
            return Counted { queues, calls, row };
        }
        assert!(start.elapsed() < LOST, "{mode}: not all queues were served in {LOST:?}: {queues:?}; {row:?}");
    }
}

/// Runs three modes and checks their verdicts. Returns suspensions and calls of suspend20.
fn three_modes(epoll: EpollOptions) -> (u64, u64) {
    let mut bench = MemBench::start(config(epoll)).unwrap();
    assert_eq!(bench.server().host().cpus(), 1, "one CPU for all queues");
    assert_eq!(bench.server().service().epolls().count(), 1);
    let mut suspended = (0, 0);
    // suspend20 is last, so that no suspension of it is counted for another.
    for mode in ["base", "fullbusy", "suspend20"] {
        let mode: Mode = mode.parse().unwrap();
        let Counted { queues, calls, row } = cell(&mut bench, &mode);
        assert_eq!(queues.len(), QUEUES);
        assert!(row.verdict.shows_mode(), "{mode}: {}; {queues:?}", row.verdict);
        for queue in &queues {
            assert!(mode.deferral_ns().is_some() || queue.timer_arms == 0, "{mode}: {queues:?}");
            assert!(mode.name() != "base" || queue.busy_polls == 0, "{mode}: {queues:?}");
            assert!(mode.suspends() || queue.suspends == 0, "{mode}: {queues:?}");
        }
        suspended = (queues.iter().map(|queue| queue.suspends).sum(), calls);
    }
    suspended
}

#[test]
fn as_linux_a_context_suspends_one_of_its_four_napis_at_a_time() {
    let (suspensions, calls) = three_modes(EpollOptions::strict_linux());
    assert!(suspensions <= calls, "{suspensions} suspensions in {calls} calls");
}

#[test]
fn with_every_napi_a_context_suspends_all_four_at_once() {
    let (suspensions, calls) = three_modes(EpollOptions { every_napi: true, ..EpollOptions::strict_linux() });
    assert!(suspensions > calls, "{suspensions} suspensions in {calls} calls");
}

#[test]
fn the_table_says_which_rule_the_contexts_follow() {
    let says = |config: BenchConfig| MemBench::start(config).unwrap().notes().join(" ");
    let every_napi = EpollOptions { every_napi: true, ..EpollOptions::strict_linux() };
    let linux = says(config(EpollOptions::strict_linux()));
    assert!(linux.contains("4 queues share 1 epoll context: as in Linux"), "{linux}");
    let mended = says(config(every_napi));
    assert!(mended.contains("4 queues share 1 epoll context: with --epoll every-napi"), "{mended}");
    let alone = says(BenchConfig { queues: None, ..config(EpollOptions::strict_linux()) });
    assert!(!alone.contains("share"), "{alone}");
}

#[test]
fn fewer_queues_than_workers_are_refused() {
    let refused = |workers, queues| {
        let config = BenchConfig { workers, queues: Some(queues), ..config(EpollOptions::strict_linux()) };
        match config.validate() {
            Err(BenchError::Invalid(why)) => why,
            other => panic!("{workers} workers on {queues} queues: {other:?}"),
        }
    };
    assert!(refused(2, 1).contains("--queues"));
    assert!(refused(1, 0).contains("between 1 and 256"));
    assert!(refused(1, 257).contains("between 1 and 256"));
}
