//! Cycles and instructions are counted in a run of their own, and not in the measured one, because the kernel saves and
//! loads the counters of a thread at each switch to and from it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lull_lab::bench::{BenchConfig, Run, Server, ServerConfig};
use lull_lab::cell::Load;
use lull_lab::hardware::availability;
use lull_lab::load::Summary;
use lull_nic::mem::{self, MemConfig};

/// The events that a test waits for take far less on any machine.
const LOST: Duration = Duration::from_secs(240);

/// Whether this process has a descriptor of a counter.
fn counts() -> bool {
    let is_counter = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("perf_event"))
    };
    std::fs::read_dir("/proc/self/fd").unwrap().any(|entry| is_counter(entry.unwrap().path()))
}

#[test]
fn the_hardware_counts_behind_the_measured_run_and_not_in_it() {
    if let Err(why) = availability() {
        println!("SKIP: the hardware does not count: {why}");
        return;
    }
    let (port, _peer) = mem::pair(MemConfig::default());
    let cores = &lull_host::usable_cores()[..1];
    let server = Server::start(Arc::new(port), ServerConfig::of_bench(&BenchConfig::default(), cores)).unwrap();
    let (mode, stop) = ("base".parse().unwrap(), AtomicBool::new(false));
    let [warm_up, window] = [10, 100].map(Duration::from_millis);
    let run = Run { mode: &mode, load: Load::Max, offered_qps: None, run: 0, warm_up, window, stop: &stop };
    let mut calls = 0;
    let summary = Summary { qps: 1e6, received: 1, ..Summary::default() };
    let generate = |run: &Run<'_>| {
        calls += 1;
        let start = Instant::now();
        if calls == 1 {
            // By then the window is over, unless this machine let it begin late.
            while start.elapsed() < run.warm_up + run.window {
                assert!(!counts(), "the measured run is counted");
            }
        } else {
            while !counts() {
                assert!(start.elapsed() < LOST, "nothing is counted behind the measured run");
            }
        }
        Ok(summary.clone())
    };
    let row = server.measure(&run, generate).unwrap();
    assert!(row.cycles_per_query.is_some() && row.instructions_per_query.is_some(), "{row:?}");
    assert_eq!(calls, 2);
}

#[test]
fn what_is_observed_is_not_counted() {
    let (port, _peer) = mem::pair(MemConfig::default());
    let cores = &lull_host::usable_cores()[..1];
    let server = Server::start(Arc::new(port), ServerConfig::of_bench(&BenchConfig::default(), cores)).unwrap();
    let (mode, stop) = ("base".parse().unwrap(), AtomicBool::new(false));
    let [warm_up, window] = [1, 10].map(Duration::from_millis);
    let run = Run { mode: &mode, load: Load::Max, offered_qps: None, run: 0, warm_up, window, stop: &stop };
    let mut calls = 0;
    let row = server.observe(&run, |_| {
        calls += 1;
        Ok(Summary { qps: 1e6, received: 1, ..Summary::default() })
    });
    assert!(row.unwrap().instructions_per_query.is_none());
    assert_eq!(calls, 1);
}
