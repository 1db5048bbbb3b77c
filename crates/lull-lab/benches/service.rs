//! Measures speed and memory of the whole service: `cargo bench -p lull-lab`. It prints figures and judges none.
//!
//! Every figure of a comparison is a ratio of interleaved runs. The bench needs two cores: one serves, one generates
//! load.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lull_core::{BusyEnd, BusyPlan, EpollOptions, Mode};
use lull_host::{Host, HostConfig, Worker, pin_thread, thread_cpu_ns, usable_cores};
use lull_lab::bench::{Bench, BenchConfig, MemBench, Run};
use lull_lab::cell::{Load, RunResult};
use lull_lab::load::WorkloadConfig;
use lull_lab::stats;
use lull_net::{Network, NetworkConfig};
use lull_nic::mem::{self, MemConfig};

type Done = Result<(), Box<dyn Error>>;
type NamedBench = (&'static str, fn() -> Done);

/// The runs are short and the pairs are many because the speed of a shared machine changes from second to second, and
/// both runs of a pair should see the same speed.
const WINDOW: Duration = Duration::from_millis(300);
const PAIRS: u32 = 31;

fn main() -> Done {
    // `cargo test --benches` passes arguments too, and a bench that runs for minutes is only for `cargo bench`.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with `cargo bench -p lull-lab`");
        return Ok(());
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()));
    let benches: [NamedBench; 6] = [
        ("busy_round", busy_round),
        ("throughput", throughput),
        ("suspended_syscalls", suspended_syscalls),
        ("idle", idle),
        ("connections", connections),
        ("several_napis", several_napis),
    ];
    for (name, bench) in benches {
        if runs(name) {
            println!("\n== {name}");
            // Each part runs in a thread of its own, so that the cores it pins are pinned for it alone.
            let done = std::thread::spawn(move || bench().map_err(|error| error.to_string())).join();
            done.map_err(|_| format!("{name} panicked"))??;
        }
    }
    Ok(())
}

/// Measures an empty round of the busy loop on the in-memory NIC, with the clock and the ready check. Goal: 60 ns.
fn busy_round() -> Done {
    pin_thread(&usable_cores()[..1])?;
    let (port, _peer) = mem::pair(MemConfig::default());
    let host = Host::new(HostConfig::default())?;
    let addresses = vec![("10.0.0.2".parse()?, 24)];
    let network = Network::new(&host, Arc::new(port), NetworkConfig { addresses, ..NetworkConfig::default() })?;
    let worker = Worker::new(&host, 0)?;
    let napi_id = host.napi_id(network.napis()[0]);
    let plan = BusyPlan { napi_id, prefer: true, budget: 64, end: BusyEnd::AfterUsecs(1_000_000), catch_up: false };
    const ROUNDS: u64 = 200_000;
    let mut rounds_ns = Vec::new();
    let mut pauses_ns = Vec::new();
    for _ in 0..9 {
        let mut left = ROUNDS;
        let start = Instant::now();
        worker.turn().busy_loop(&plan, &mut |_| {
            left -= 1;
            left == 0
        });
        rounds_ns.push(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| std::hint::spin_loop());
        pauses_ns.push(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
    }
    let median = |values: &[f64]| stats::median(values).map_or(f64::NAN, |estimate| estimate.value);
    let (round, pause) = (median(&rounds_ns), median(&pauses_ns));
    println!(
        "empty busy round: {round:.1} ns, of which the pause instruction {pause:.1} ns: {:.1} ns without",
        round - pause
    );
    Ok(())
}

/// Makes a bench with this number of records. With few records the store stays in the cache, and everything else is
/// what is measured.
fn bench_with(records: u64) -> Result<MemBench, Box<dyn Error>> {
    let config = BenchConfig::default();
    let workload = WorkloadConfig { records, ..config.workload };
    Ok(MemBench::start(BenchConfig { workload, ..config })?)
}

fn cell(bench: &mut MemBench, mode: &str, load: Load, qps: Option<f64>, run: u32) -> Result<RunResult, Box<dyn Error>> {
    let mode: Mode = mode.parse()?;
    let stop = AtomicBool::new(false);
    let warm_up = Duration::from_millis(150);
    Ok(bench.run(&Run { mode: &mode, load, offered_qps: qps, run, warm_up, window: WINDOW, stop: &stop })?)
}

fn line(result: &RunResult) -> String {
    let queries = result.qps * result.window_s;
    let per_query = |count: Option<u64>| count.unwrap_or(0) as f64 / queries;
    format!(
        "{:<10} {:>4}: {:>8.0} queries/s, server {:>5.1} % busy, generator {:>4.1} % ({:.1} % raising interrupts), {:.0} ns CPU a query, p99 {:.0} us, {:.5} syscalls and {:.5} timer ops a query",
        result.testcase,
        result.load.to_string(),
        result.qps,
        result.server_cpu_percent.unwrap_or(f64::NAN),
        result.generator_busy_percent.unwrap_or(f64::NAN),
        result.raise_us.unwrap_or(0.0) / result.window_s / 1e4,
        result.cpu_percent.unwrap_or(f64::NAN) * 1e7 / result.qps,
        result.p99_latency_us.unwrap_or(f64::NAN),
        per_query(result.syscalls),
        per_query(result.timer_ops),
    )
}

/// Measures the throughput at MAX with 64 connections and one worker: that of fullbusy, and that of suspend20 as a
/// paired ratio. Goals: at least 700 k requests/s, and a ratio of at least 0.97.
fn throughput() -> Done {
    let many = WorkloadConfig::default().records;
    let mut many_records = bench_with(many)?;
    let mut qps = Vec::new();
    for run in 0..PAIRS / 2 {
        let fullbusy = cell(&mut many_records, "fullbusy", Load::Max, None, run)?;
        println!("{}", line(&fullbusy));
        qps.push(fullbusy.qps);
    }
    println!("fullbusy at MAX with {many} records: {} queries/s", show(stats::median(&qps).as_ref(), 0, "runs"));
    drop(many_records);
    const RECORDS: u64 = 10_000;
    println!("from here on {RECORDS} records:");
    let mut bench = bench_with(RECORDS)?;
    let (mut suspended, mut busy) = (Vec::new(), Vec::new());
    for run in 0..PAIRS {
        let fullbusy = cell(&mut bench, "fullbusy", Load::Max, None, run)?;
        let suspend = cell(&mut bench, "suspend20", Load::Max, None, run)?;
        println!("{}", line(&fullbusy));
        println!("{}", line(&suspend));
        suspended.push(suspend.qps);
        busy.push(fullbusy.qps);
    }
    println!("fullbusy at MAX with {RECORDS} records: {} queries/s", show(stats::median(&busy).as_ref(), 0, "runs"));
    print_ratio("suspend20 / fullbusy at MAX", &suspended, &busy);
    Ok(())
}

/// Measures system calls and timer operations of the server while its interrupts are suspended. Goal: under 0.001 per
/// request.
fn suspended_syscalls() -> Done {
    let mut bench = MemBench::start(BenchConfig::default())?;
    for run in 0..3 {
        println!("{}", line(&cell(&mut bench, "suspend20", Load::Max, None, run)?));
    }
    Ok(())
}

/// Measures the CPU time of an idle service with open connections, by mode. Goal: under 0.5 %, except in fullbusy.
fn idle() -> Done {
    let bench = MemBench::start(BenchConfig::default())?;
    let server = bench.server();
    let threads = || {
        let delivering = server.host().threads().into_iter().map(|thread| thread.tid);
        server.service().tids().into_iter().chain(delivering).collect::<Vec<i32>>()
    };
    let cpu_ns = || threads().into_iter().map(|tid| thread_cpu_ns(tid).unwrap_or(0)).sum::<u64>();
    for name in lull_core::mode::PUBLISHED.iter().chain(&["threaded", "busyread"]) {
        server.set_mode(&name.parse()?)?;
        std::thread::sleep(Duration::from_millis(300));
        let (before, start) = (cpu_ns(), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu_ns() - before;
        println!("{name:<12} idle: {:.3} % CPU", 100.0 * used as f64 / start.elapsed().as_nanos() as f64);
    }
    Ok(())
}

/// Prints the ratio over pairs: the median, which is not moved by a pair that other load on the machine disturbed, and
/// the geometric mean, which is.
fn print_ratio(what: &str, numerator: &[f64], denominator: &[f64]) {
    let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(n, d)| n / d).collect();
    println!("{what}: median {}", show(stats::median(&ratios).as_ref(), 3, "pairs"));
    println!("{what}: mean   {}", show(stats::paired_ratio(numerator, denominator).as_ref(), 3, "pairs"));
}

fn show(estimate: Option<&stats::Estimate>, digits: usize, of: &str) -> String {
    let Some(estimate) = estimate else { return "-".to_owned() };
    let (value, count) = (estimate.value, estimate.count);
    match &estimate.interval {
        Some(interval) => format!(
            "{value:.digits$} ({:.digits$} to {:.digits$}, {:.0} %, {count} {of})",
            interval.low,
            interval.high,
            interval.coverage * 100.0
        ),
        None => format!("{value:.digits$}"),
    }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Measures the cost per request and the memory per connection at 10,000 connections against 64. Goals: 1.3 times; 40
/// KiB.
fn connections() -> Done {
    const MANY: usize = 10_000;
    let mut few = MemBench::start(BenchConfig::default())?;
    let before = resident_bytes();
    let mut many = MemBench::start(BenchConfig { connections: MANY, ..BenchConfig::default() })?;
    let idle = resident_bytes().saturating_sub(before);
    let accounted = many.server().network().memory_bytes();
    println!("{MANY} idle connections: {:.1} KiB each by the stack's account", accounted as f64 / MANY as f64 / 1024.0);
    println!("  resident, both ends, store and rings included: {:.1} KiB each", idle as f64 / MANY as f64 / 1024.0);
    let (mut many_cost, mut few_cost) = (Vec::new(), Vec::new());
    for run in 0..PAIRS {
        let with_few = cell(&mut few, "fullbusy", Load::Max, None, run)?;
        few.server().set_mode(&"base".parse()?)?;
        let with_many = cell(&mut many, "fullbusy", Load::Max, None, run)?;
        many.server().set_mode(&"base".parse()?)?;
        println!("{} (64 connections)", line(&with_few));
        println!("{} ({MANY} connections)", line(&with_many));
        let cost = |result: &RunResult| result.cpu_percent.unwrap_or(f64::NAN) / result.qps;
        many_cost.push(cost(&with_many));
        few_cost.push(cost(&with_few));
    }
    print_ratio(&format!("CPU a request, {MANY} connections against 64"), &many_cost, &few_cost);
    let after = resident_bytes().saturating_sub(before);
    println!("resident after the load: {:.1} KiB a connection", after as f64 / MANY as f64 / 1024.0);
    Ok(())
}

/// Measures the latency of one epoll context whose connections come through four queues, with every NAPI polled,
/// against one queue. Goal: the p99 is at most 1.1 times as long.
fn several_napis() -> Done {
    const QUEUES: usize = 4;
    let bench_on =
        |queues, epoll| MemBench::start(BenchConfig { queues: Some(queues), epoll, ..BenchConfig::default() });
    let mut one = bench_on(1, EpollOptions::strict_linux())?;
    let mut several =
        bench_on(QUEUES, EpollOptions { every_napi: true, tour_when_woken: true, ..EpollOptions::strict_linux() })?;
    for mode in ["suspend20", "suspend200", "fullbusy"] {
        for qps in [50_000.0, 100_000.0, 200_000.0] {
            let (mut of_one, mut of_several) = ([vec![], vec![]], [vec![], vec![]]);
            for run in 0..PAIRS {
                for (bench, to) in [(&mut one, &mut of_one), (&mut several, &mut of_several)] {
                    let load = Load::Rate { qps: qps as u64 };
                    let result = cell(bench, mode, load, Some(qps), run)?;
                    bench.server().set_mode(&"base".parse()?)?;
                    to[0].push(result.p95_latency_us.unwrap_or(f64::NAN));
                    to[1].push(result.p99_latency_us.unwrap_or(f64::NAN));
                }
            }
            for (nth, what) in ["p95", "p99"].into_iter().enumerate() {
                let of_one_us = stats::median(&of_one[nth]);
                println!("{mode} at {qps:.0}/s, {what} on one NAPI: {} us", show(of_one_us.as_ref(), 1, "runs"));
                print_ratio(
                    &format!("{mode} at {qps:.0}/s, {what} on {QUEUES} NAPIs against one"),
                    &of_several[nth],
                    &of_one[nth],
                );
            }
        }
    }
    Ok(())
}
