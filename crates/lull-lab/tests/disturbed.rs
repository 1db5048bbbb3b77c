//! The service under load while its link goes down and its device is reset: every connection survives, the mode stays in
//! force, the service answers afterwards.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_core::Mode;
use lull_lab::bench::{Bench, BenchConfig, BenchError, MemBench, Run};
use lull_lab::cell::{Load, RunResult};
use lull_lab::load::WorkloadConfig;
use lull_nic::fault::{Disturbance, Fault, FaultConfig};

const CONNECTIONS: usize = 16;
const FLAP: Disturbance = Disturbance::Flap { down_ns: 20_000_000 };

fn run(bench: &mut MemBench, mode: &Mode, load: Load, window_ms: u64) -> RunResult {
    let stop = AtomicBool::new(false);
    let offered_qps = load.offered_qps(None);
    let (warm_up, window) = (Duration::from_millis(50), Duration::from_millis(window_ms));
    let run = Run { mode, load, offered_qps, run: 0, warm_up, window, stop: &stop };
    bench.run(&run).unwrap_or_else(|error| panic!("{mode}: {error}"))
}

fn disturbed(mode: &str) {
    let mode: Mode = mode.parse().unwrap();
    let config = BenchConfig {
        connections: CONNECTIONS,
        workload: WorkloadConfig { records: 1_000, ..WorkloadConfig::default() },
        ..BenchConfig::default()
    };
    let mut fault = None;
    let mut bench = MemBench::start_with(config, |device| {
        let with_faults = Arc::new(Fault::new(device, FaultConfig::default()).map_err(BenchError::from)?);
        fault = Some(with_faults.clone());
        Ok(with_faults)
    })
    .unwrap();
    let fault = fault.unwrap();
    run(&mut bench, &mode, Load::Max, 50);
    let napis = |bench: &MemBench| {
        let host = bench.server().host();
        host.napis().into_iter().map(|napi| (napi.id, napi.settings)).collect::<Vec<_>>()
    };
    let before = napis(&bench);
    assert!(before.iter().all(|(_, settings)| *settings == mode.napi), "{mode}: {before:?}");

    // At MAX the rings are full of frames when it happens; at a fixed rate connections are idle.
    for load in [Load::Max, Load::Rate { qps: 5_000 }] {
        for (after_ms, disturbance) in [(80, FLAP), (200, Disturbance::Reset), (320, FLAP), (330, Disturbance::Reset)] {
            fault.plan(Duration::from_millis(after_ms), disturbance);
        }
        let result = run(&mut bench, &mode, load, 700);
        assert!(result.qps > 0.0, "{mode} at {load}: nothing was answered");
    }
    let stats = fault.stats();
    assert_eq!((stats.flaps, stats.resets, stats.refused), (4, 4, 0));

    let calm = run(&mut bench, &mode, Load::Max, 100);
    assert!(calm.qps > 0.0, "{mode}: silent after the disturbances");
    assert_eq!(napis(&bench), before, "{mode}: ids and settings persist");
    let accepted: u64 = bench.server().network().stack_counters().iter().map(|counters| counters.tcp_accepted).sum();
    assert_eq!(accepted, CONNECTIONS as u64, "{mode}: no connection was lost and opened again");
}

#[test]
fn base_survives_flaps_and_resets_under_load() {
    disturbed("base");
}

#[test]
fn deferral_survives_flaps_and_resets_under_load() {
    disturbed("defer20");
}

#[test]
fn fullbusy_survives_flaps_and_resets_under_load() {
    disturbed("fullbusy");
}

#[test]
fn suspension_survives_flaps_and_resets_under_load() {
    disturbed("suspend20");
}

#[test]
fn napi_threads_survive_flaps_and_resets_under_load() {
    disturbed("threaded");
}

#[test]
fn busy_napi_threads_survive_flaps_and_resets_under_load() {
    disturbed("threaded-busy");
}
