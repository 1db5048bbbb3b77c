//! The service is under load while its link goes down and its device is reset. Every connection survives, the mode
//! stays in force, and the service answers afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_core::Mode;
use lull_lab::bench::{Bench, BenchConfig, BenchError, MemBench, Run};
use lull_lab::cell::{Load, RunResult};
use lull_lab::load::WorkloadConfig;
use lull_nic::fault::{Disturbance, Fault, FaultConfig};

const CONNECTIONS: usize = 16;
/// This number of answers shows that the service answers: more requests cannot have been outstanding before.
const ANSWERS: u64 = 500;
/// The events that a test waits for take far less on any machine.
const LOST: Duration = Duration::from_secs(240);
const FLAP: Disturbance = Disturbance::Flap { down_ns: 20_000_000 };

/// A service with a faulty device, and its load.
struct World {
    bench: MemBench,
    fault: Arc<Fault>,
    mode: Mode,
}

impl World {
    fn new(mode: &str) -> World {
        let config = BenchConfig {
            connections: CONNECTIONS,
            workload: WorkloadConfig { records: 1_000, ..WorkloadConfig::default() },
            ..BenchConfig::default()
        };
        let mut fault = None;
        let bench = MemBench::start_with(config, |device| {
            let with_faults = Arc::new(Fault::new(device, FaultConfig::default()).map_err(BenchError::from)?);
            fault = Some(with_faults.clone());
            Ok(with_faults)
        });
        World { bench: bench.unwrap(), fault: fault.unwrap(), mode: mode.parse().unwrap() }
    }

    /// Runs a load for as long as `meanwhile` takes. `meanwhile` gets a function that waits for a number of answers.
    fn under(&mut self, load: Load, meanwhile: impl FnOnce(&Fault, &dyn Fn(u64)) + Send) -> RunResult {
        let World { bench, fault, mode } = self;
        let (stop, store, fault) = (AtomicBool::new(false), bench.server().store().clone(), &**fault);
        let answered = || {
            let counters = store.stats().counters;
            counters.get_hits + counters.get_misses + counters.cmd_set
        };
        let offered_qps = load.offered_qps(None);
        let run = Run { mode, load, offered_qps, run: 0, warm_up: Duration::ZERO, window: 2 * LOST, stop: &stop };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _stop = StopAtEnd(&stop);
                meanwhile(fault, &|count| {
                    let wanted = answered() + count;
                    until("an answer", || answered() >= wanted);
                });
            });
            let result = bench.run(&run);
            waiting.join().unwrap_or_else(|_| panic!("{mode} at {load}: see above"));
            result.unwrap_or_else(|error| panic!("{mode} at {load}: {error}"))
        })
    }
}

/// Ends the load, even if the other code has panicked.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LOST, "{what} did not come in {LOST:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes all of these happen at once, and waits until they have begun.
fn disturb(fault: &Fault, disturbances: &[Disturbance]) {
    let begun = || fault.stats().flaps + fault.stats().resets + fault.stats().refused;
    let wanted = begun() + disturbances.len() as u64;
    disturbances.iter().for_each(|disturbance| fault.plan(Duration::ZERO, *disturbance));
    until("the disturbance", || begun() >= wanted);
}

fn disturbed(mode: &str) {
    let mut world = World::new(mode);
    world.under(Load::Max, |_, answers| answers(ANSWERS));
    let napis = |world: &World| {
        let host = world.bench.server().host();
        host.napis().into_iter().map(|napi| (napi.id, napi.settings)).collect::<Vec<_>>()
    };
    let before = napis(&world);
    assert!(before.iter().all(|(_, settings)| *settings == world.mode.napi), "{mode}: {before:?}");

    // At MAX the rings are full of frames at that moment; at a fixed rate connections are idle.
    for load in [Load::Max, Load::Rate { qps: 5_000 }] {
        world.under(load, |fault, answers| {
            // The last one resets the device while its link is down.
            for disturbances in [&[FLAP][..], &[Disturbance::Reset], &[FLAP, Disturbance::Reset]] {
                disturb(fault, disturbances);
                answers(ANSWERS);
            }
        });
    }
    let stats = world.fault.stats();
    assert_eq!((stats.flaps, stats.resets, stats.refused), (4, 4, 0));

    let calm = world.under(Load::Max, |_, answers| answers(ANSWERS));
    assert!(calm.qps > 0.0, "{mode}: the generator saw no answer after the disturbances");
    assert_eq!(napis(&world), before, "{mode}: ids and settings persist");
    let network = world.bench.server().network();
    let accepted: u64 = network.stack_counters().iter().map(|counters| counters.tcp_accepted).sum();
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
