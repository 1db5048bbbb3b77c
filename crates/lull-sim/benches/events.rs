//! Speed of the simulator: `cargo bench -p lull-sim --bench events`. An item is an event of the agenda, so items per second are events
//! per second of one core; the goal is 5 M.

use divan::Bencher;
use divan::counter::ItemsCount;
use lull_core::Mode;
use lull_sim::{Sim, Traffic, World};

fn main() {
    divan::main();
}

fn world(mode: &str, traffic: Traffic) -> World {
    let mode: Mode = mode.parse().unwrap_or_else(|error| unreachable!("{error}"));
    let mut world = World::epoll_service(1, &mode, 560, traffic);
    world.warmup_ns = 0;
    world.window_ns = 20_000_000;
    world
}

fn events(world: &World) -> u64 {
    Sim::new(world, 1).run().map_or(0, |out| out.events)
}

fn bench(bencher: Bencher<'_, '_>, world: &World) {
    let count = events(world);
    bencher.counter(ItemsCount::new(count)).bench_local(|| events(world));
}

/// These modes have interrupts, softirq and wake-ups, which is the most work per event.
#[divan::bench(args = ["base", "defer10", "suspend20", "fullbusy"])]
fn events_at_50k(bencher: Bencher<'_, '_>, mode: &str) {
    bench(bencher, &world(mode, Traffic::Open { per_s: 50_000.0 }));
}

/// The service is saturated.
#[divan::bench(args = ["base", "suspend20"])]
fn events_closed_loop(bencher: Bencher<'_, '_>, mode: &str) {
    bench(bencher, &world(mode, Traffic::Closed));
}
