//! What cores share: another L3 costs what the world says, workers move when they may, and mlx5 completes full polls on
//! another CPU.

use lull_core::Mode;
use lull_sim::{CacheSpec, CoresSpec, Outcome, Sim, Traffic, World};

fn service(cores: u16, mode: &str, traffic: Traffic) -> World {
    let mode: Mode = mode.parse().expect("a mode");
    World::epoll_service(cores, &mode, 64, traffic)
}

fn run(world: &World) -> Outcome {
    Sim::new(world, 1).run().expect("within its bounds")
}

/// Makes a queue on the first core whose worker is on the second.
fn away(mode: &str, traffic: Traffic) -> World {
    let mut world = service(2, mode, traffic);
    world.queues.truncate(1);
    world.connections.truncate(1);
    world.contexts.truncate(1);
    world.workers.truncate(1);
    world.workers[0].cpu = 1;
    world
}

#[test]
fn a_worker_behind_another_l3_pays_once_for_delivery_and_once_for_serving() {
    let cache = CacheSpec { cross_packet_ns: 1_000, cross_request_ns: 500, ..CacheSpec::default() };
    let busy_ns = |per_l3: u16| {
        let mut world = World { cache: cache.clone(), ..away("base", Traffic::Closed) };
        // There is one connection. Its acknowledgement comes first, and fetches what the request behind it needs as
        // well.
        world.connections[0].count = 1;
        world.net.ack_ns = 1_000;
        world.cores.per_l3 = per_l3;
        let out = run(&world);
        out.cpu.busy_ns() as f64 / out.counts.served as f64
    };
    assert_eq!(busy_ns(0), busy_ns(2));
    let more_ns = busy_ns(1) - busy_ns(2);
    assert!((more_ns - 1_500.0).abs() < 30.0, "{more_ns}");
}

#[test]
fn a_worker_that_waits_behind_another_is_pulled_by_an_idle_core() {
    let busy = |workers_move: bool| {
        let mut world = service(2, "fullbusy", Traffic::Open { per_s: 50_000.0 });
        world.workers[1].cpu = 0;
        world.cores = CoresSpec { per_l3: 1, workers_move, ..CoresSpec::default() };
        let out = run(&world);
        out.cpu.idle_ns as f64 / (2 * out.window_ns) as f64
    };
    // Workers of fullbusy never sleep, so on one core they leave the other nothing but interrupts.
    assert!(busy(false) > 0.4, "{}", busy(false));
    assert!(busy(true) < 0.01, "{}", busy(true));
}

#[test]
fn workers_that_share_a_core_part_when_they_wake() {
    let waits_us = |workers_move: bool| {
        let mut world = service(4, "base", Traffic::Open { per_s: 400_000.0 });
        for worker in &mut world.workers {
            worker.cpu = 0;
        }
        world.cores = CoresSpec { per_l3: 0, workers_move, ..CoresSpec::default() };
        let out = run(&world);
        (out.latency_mean_us(), out.qps())
    };
    let ((together_us, together), (apart_us, apart)) = (waits_us(false), waits_us(true));
    assert!(together < 300_000.0 && apart > 390_000.0, "{together} and {apart}");
    assert!(apart_us < together_us / 2.0, "{apart_us} and {together_us}");
}

#[test]
fn while_cores_idle_workers_gather_behind_the_l3_of_their_queues() {
    let cache = CacheSpec { cross_packet_ns: 3_000, cross_request_ns: 3_000, ..CacheSpec::default() };
    let busy_ns = |workers_move: bool| {
        let mut world = World { cache: cache.clone(), ..service(4, "base", Traffic::Open { per_s: 60_000.0 }) };
        for (worker, cpu) in world.workers.iter_mut().zip([2, 3, 0, 1]) {
            worker.cpu = cpu;
        }
        world.cores = CoresSpec { per_l3: 2, workers_move, ..CoresSpec::default() };
        let out = run(&world);
        out.cpu.busy_ns() as f64 / out.counts.served as f64
    };
    let (stay_ns, move_ns) = (busy_ns(false), busy_ns(true));
    assert!(stay_ns - move_ns > 4_000.0, "{stay_ns} and {move_ns}");
}

#[test]
fn a_full_poll_off_the_interrupts_core_completes_where_the_driver_says_so() {
    // Softirq that found a full poll goes on there for as long as packets come; if it completes, it leaves them to the
    // worker.
    let softirq = |completes_off_affinity: bool| {
        let mut world = away("napibusy", Traffic::Closed);
        world.connections[0].count = 500;
        world.queues[0].completes_off_affinity = completes_off_affinity;
        let out = run(&world);
        out.cpu.softirq_ns as f64 / out.cpu.busy_ns() as f64
    };
    let (goes_on, completes) = (softirq(false), softirq(true));
    assert!(completes < 0.5 * goes_on, "{completes} and {goes_on}");
}
