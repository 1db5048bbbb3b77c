//! A second application on the RX queue of one that suspends interrupts: who bounds its latency.
//!
//! While the first application is busy, nobody else polls the queue, so a packet of the second waits until the first polls again.
//! How long that is, two limits of the first application say, and Linux has only one of them:
//!
//! - Linux polls when the ready list is empty (§13 edge 18): after all that the last busy call delivered, at most twice
//!   `busy_poll_budget` packets, however few of them one `epoll_wait` returns.
//! - With `poll_after_returns = 1` the first application polls after two batches at the latest, and the batch limit
//!   (`maxevents`) is the bound.

use lull_core::{EpollOptions, EpollParams, Mode};
use lull_sim::{
    ConnectionsSpec, ContextSpec, Latencies, Outcome, QueueSpec, SecondSpec, Sim, Traffic, WorkerSpec, World,
};

/// The cost of a request of the first application in these worlds, system calls included, in microseconds.
const REQUEST_US: f64 = 5.0;
/// The cost of a request of the second one, in nanoseconds.
const SECOND_NS: u32 = 3_000;
/// The connections of the first application, each of which always has a request under way.
const CONNECTIONS: u32 = 60;
const MS: u64 = 1_000_000;

/// The first application saturates its core; the second has a core of its own and one queue for both.
fn world(mode: &str, events_max: u32, budget: u32, options: EpollOptions) -> World {
    let mode: Mode = mode.parse().expect("a mode");
    let mut world = World::epoll_service(1, &mode, CONNECTIONS, Traffic::Closed);
    world.costs.request_sys_ns = 4_000;
    world.costs.request_user_ns = 1_000;
    world.cpus = vec![true; 2];
    world.queues = vec![QueueSpec { napi: mode.napi, ..QueueSpec::new(0) }];
    let params = EpollParams { busy_poll_budget: budget, ..mode.epoll };
    world.contexts = vec![ContextSpec { params, options }, ContextSpec::default()];
    world.workers[0].events_max = events_max;
    world.workers.push(WorkerSpec { cpu: 1, context: 1, timeout_ns: None, events_max: 64 });
    world.connections.push(ConnectionsSpec {
        count: 4,
        queue: 0,
        context: 1,
        traffic: Traffic::Open { per_s: 2_000.0 },
    });
    world.second = Some(SecondSpec { first_group: 1, request_ns: SECOND_NS });
    world.warmup_ns = 100 * MS;
    world.window_ns = 500 * MS;
    world
}

fn run(world: &World) -> (Outcome, Latencies) {
    let out = Sim::new(world, 1).run().expect("within its bounds");
    let second = out.second.clone().expect("there is a second application");
    assert!(second.ns.len() > 500, "{} answers", second.ns.len());
    (out, second)
}

fn batched(events_max: u32) -> (Outcome, Latencies) {
    run(&world("suspend20", events_max, 64, EpollOptions { poll_after_returns: 1, ..EpollOptions::strict_linux() }))
}

fn strict(events_max: u32, budget: u32) -> (Outcome, Latencies) {
    run(&world("suspend20", events_max, budget, EpollOptions::strict_linux()))
}

#[test]
fn the_batch_limit_of_the_first_application_bounds_the_latency_of_the_second() {
    let mut before_us = f64::MAX;
    for events_max in [64, 16, 8, 4, 1] {
        let (out, second) = batched(events_max);
        assert!(out.napi.suspends > 1_000 && out.counts.irqs < 100, "suspension is in force: {:?}", out.counts);
        // The bound is made of the batch after the poll and the one that needs none, of what a poll delivers before
        // this packet, and of network and service.
        let batches_us = 2.0 * f64::from(events_max.min(CONNECTIONS)) * REQUEST_US;
        let delivery_us = 2.0 * f64::from(CONNECTIONS) * 0.9;
        let p99_us = second.us(99.0);
        assert!(p99_us < batches_us + delivery_us + 30.0, "p99 {p99_us} us with batches of {events_max}");
        assert!(p99_us < before_us, "p99 {p99_us} us with batches of {events_max}, {before_us} us with larger ones");
        before_us = p99_us;
    }
}

#[test]
fn in_linux_a_small_batch_does_not_bound_it_but_what_one_poll_delivered_does() {
    let all_us = f64::from(CONNECTIONS) * REQUEST_US;
    for events_max in [64, 8, 1] {
        let p99_us = strict(events_max, 64).1.us(99.0);
        assert!((all_us..1.5 * all_us).contains(&p99_us), "p99 {p99_us} us with batches of {events_max}");
    }
    assert!(batched(1).1.us(99.0) < 0.3 * all_us);
}

#[test]
fn a_first_application_that_does_not_suspend_leaves_the_second_to_interrupts() {
    // Softirq delivers every packet as it comes, whatever the first application does.
    let (_, second) = run(&world("base", 64, 64, EpollOptions::strict_linux()));
    let suspended = strict(64, 64).1;
    assert!(second.us(50.0) < 0.5 * suspended.us(50.0), "{} and {}", second.us(50.0), suspended.us(50.0));
}

#[test]
fn answers_are_counted_apart() {
    let (out, second) = strict(64, 64);
    assert_eq!(out.counts.answered, out.latency_ns.len());
    // There are 2000 a second for half a second.
    assert!((900..1_100).contains(&second.ns.len()), "{}", second.ns.len());
}
