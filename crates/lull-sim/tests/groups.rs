//! Busy-polling CPU groups in simulated worlds: what is claimed of them holds.

use lull_core::GroupConfig;
use lull_core::group::Budget;
use lull_sim::groups::{fairness, parking, saturated};
use lull_sim::{GroupSpec, Sim, Traffic, World};

fn holds(table: &lull_sim::groups::CaseTable) {
    println!("{}", table.text());
    let broken: Vec<&String> = table.statements.iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn pollers_are_woken_as_load_comes_and_parked_as_it_goes_and_constant_load_wakes_nobody() {
    let table = parking(1).expect("within its bounds");
    println!("{}", table.text());
    let column = |name: &str| table.columns.iter().position(|column| *column == name).expect("a column");
    let of = |row: usize, name: &str| table.rows[row].1[column(name)];
    assert!(of(0, "cores used") < 1.1, "without load one core is awake");
    assert!(of(2, "cores used") > 6.0, "six cores of load get as many and more");
    assert!(of(4, "awake at end") < of(2, "awake at end"), "what the load leaves parks");
    assert!((5..7).all(|row| of(row, "wakes/s") <= 20.0), "constant load does not wake and park in turn");
    assert!((0..7).all(|row| of(row, "p99 us") < 100.0), "nobody waits for long");
}

#[test]
fn a_flooded_member_delays_the_others_by_a_visit_at_most() {
    holds(&fairness(1).expect("within its bounds"));
}

#[test]
fn at_a_services_maximum_a_group_does_what_busy_polling_threads_do_on_its_core_and_more() {
    holds(&saturated(1).expect("within its bounds"));
}

/// A service whose four queues a group on two cores of its own polls, under a light load.
fn service(config: GroupConfig) -> World {
    let mode = "base".parse().expect("a mode");
    let mut world = World::epoll_service(4, &mode, 64, Traffic::Open { per_s: 40_000.0 });
    world.cpus.extend([true, true]);
    world.groups = vec![GroupSpec::new(vec![4, 5], 0..4, config)];
    world
}

#[test]
fn a_group_serves_without_interrupts_and_its_rest_and_budget_give_the_cores_back() {
    let run = |config: GroupConfig| Sim::new(&service(config), 1).run().expect("within its bounds");
    let spins = run(GroupConfig::default());
    assert_eq!((spins.counts.irqs, spins.napi.softirq_polls), (0, 0));
    assert!(spins.napi.group_polls > 1_000 && spins.counts.answered > 7_000, "{spins:?}");
    let rests = run(GroupConfig { rest_ns: Some(5_000), ..GroupConfig::default() });
    assert!(rests.counts.irqs > 1_000 && rests.cpu.idle_ns > spins.cpu.idle_ns, "{rests:?}");
    let budget = Budget { empty_percent: Some(10), total_percent: None };
    let within = run(GroupConfig { budget, ..GroupConfig::default() });
    assert!(within.cpu.idle_ns > spins.cpu.idle_ns && within.counts.answered > 7_000, "{within:?}");
}

#[test]
fn packets_of_another_node_cost_more() {
    let run = |per_node: u16| {
        let mut world = service(GroupConfig::default());
        world.cores.per_node = per_node;
        world.cache.remote_packet_ns = 2_000;
        Sim::new(&world, 1).run().expect("within its bounds")
    };
    let (near, far) = (run(0), run(4));
    assert!(
        far.latency_mean_us() > near.latency_mean_us() + 1.0,
        "{} {}",
        far.latency_mean_us(),
        near.latency_mean_us()
    );
}
