//! One epoll context whose sockets are on four NAPIs is compared with one on a single NAPI, with the same requests on
//! the same core. In Linux the context busy polls and suspends only the NAPI that woke it last (`napi_semantics` §13
//! edge 15).
//!
//! `cargo test -p lull-sim --test several_napis -- --nocapture` prints the table.

use lull_core::{EpollOptions, Mode};
use lull_sim::{ConnectionsSpec, Outcome, QueueSpec, Sim, Traffic, World};

const MS: u64 = 1_000_000;
const CONNECTIONS: u32 = 80;
/// The loads, compared with what one core serves with one NAPI under suspend20.
const LOADS: [f64; 3] = [30_000.0, 60_000.0, 90_000.0];

fn world(mode: &str, napis: u32, per_s: f64, options: EpollOptions) -> World {
    let mode: Mode = mode.parse().expect("a mode");
    let mut world = World::epoll_service(1, &mode, CONNECTIONS, Traffic::Open { per_s });
    world.queues = (0..napis).map(|_| QueueSpec { napi: mode.napi, ..QueueSpec::new(0) }).collect();
    world.contexts[0].options = options;
    let group = |queue| ConnectionsSpec {
        count: CONNECTIONS / napis,
        queue,
        context: 0,
        traffic: Traffic::Open { per_s: per_s / f64::from(napis) },
    };
    world.connections = (0..napis).map(group).collect();
    world.warmup_ns = 100 * MS;
    world.window_ns = 600 * MS;
    world
}

fn run(mode: &str, napis: u32, per_s: f64, options: EpollOptions) -> Outcome {
    Sim::new(&world(mode, napis, per_s, options), 1).run().expect("within its bounds")
}

#[test]
fn a_context_on_four_napis_has_nearly_the_latency_of_one() {
    let linux = EpollOptions::strict_linux();
    let every = EpollOptions { every_napi: true, ..linux };
    let tours = EpollOptions { tour_when_woken: true, ..every };
    println!("p50, p99 and CPU of: one NAPI | four, as Linux | four, every_napi | four, tour_when_woken with it");
    let mut stalled = false;
    for mode in ["suspend20", "napibusy", "suspend200", "fullbusy"] {
        for per_s in LOADS {
            let outcomes = [(1, linux), (4, linux), (4, every), (4, tours)]
                .map(|(napis, options)| run(mode, napis, per_s, options));
            let cells = outcomes.each_ref().map(|out| {
                let cpu = out.cpu.percent();
                format!("{:7.1} {:8.1} {cpu:5.1}", out.latency_us(50.0), out.latency_us(99.0))
            });
            println!("{mode:10} {per_s:6} | {}", cells.join(" | "));
            let [one, strict, mended, toured] = outcomes.map(|out| out.latency_us(99.0));
            stalled |= strict > 10.0 * one;
            assert!(mended <= 1.1 * one, "{mode} at {per_s}/s: p99 {mended} us on four NAPIs, {one} us on one");
            // An interrupt is cheap here, so the polls that avoid it cost a little more than they save.
            assert!(toured <= 1.15 * one, "{mode} at {per_s}/s: p99 {toured} us with tour_when_woken, {one} us on one");
        }
    }
    assert!(stalled, "Linux's rule shows nowhere");
}
