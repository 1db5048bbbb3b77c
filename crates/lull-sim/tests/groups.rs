//! The claims about busy-polling CPU groups hold in simulated worlds.

use lull_core::GroupConfig;
use lull_core::group::Budget;
use lull_sim::groups::{CaseTable, fairness, overload, parking, saturated, tx_trap};
use lull_sim::{GroupSpec, Sim, Traffic, World};

fn holds(table: &CaseTable) {
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

/// Returns a figure of a row.
fn figure(table: &CaseTable, row: &str, column: &str) -> f64 {
    let column = table.columns.iter().position(|name| *name == column).expect("a column");
    let (_, values) = table.rows.iter().find(|(name, _)| name == row).unwrap_or_else(|| panic!("no row {row}"));
    values[column]
}

/// Whether the one statement that begins with `row` and contains `what` holds.
fn says(table: &CaseTable, row: &str, what: &str) -> bool {
    let mut those = table.statements.iter().filter(|(_, text)| text.starts_with(row) && text.contains(what));
    let (holds, _) = those.next().unwrap_or_else(|| panic!("no statement of {row}: {what}"));
    assert!(those.next().is_none(), "several statements of {row}: {what}");
    *holds
}

#[test]
fn a_group_that_sends_traps_nobody_beside_a_flood_and_rings_for_many() {
    let table = tx_trap(1).expect("within its bounds");
    println!("{}", table.text());
    for calls in ["calls of 0.3 us:", "calls of 0.5 us:", "calls of 1 us:"] {
        assert!(says(&table, calls, "holds no frame back"), "{calls}");
    }
    for calls in ["calls of 0.3 us:", "calls of 0.5 us:"] {
        for what in ["p99 of a send call", "senders are trapped", "doorbells a frame"] {
            assert!(says(&table, calls, what), "{calls} {what}");
        }
    }
    for qdisc in ["pfifo_fast", "fq"] {
        let of = |calls: &str, by: &str, column: &str| {
            figure(&table, &format!("calls of {calls} us, {qdisc}, {by}"), column)
        };
        for (calls, price_us) in [("0.3", 0.3), ("0.5", 0.5), ("1", 1.0)] {
            assert!(of(calls, "group", "send p99 us") <= 1.5 * price_us, "beside a group a call is its own price");
            assert_eq!(of(calls, "group", "trapped us per ms"), 0.0);
            assert!(of(calls, "base", "doorbells per frame") > 0.9, "senders ring for each frame");
        }
        // The cheaper a call is compared with a frame and its doorbell, the more frames come while a sender drains.
        let trapped = ["0.3", "0.5", "1"].map(|calls| of(calls, "base", "trapped us per ms"));
        assert!(trapped[0] > trapped[1] && trapped[1] > trapped[2] && trapped[2] > 0.0, "{trapped:?}");
    }
}

#[test]
fn a_flood_that_softirq_cannot_take_is_shed_before_the_work_by_whoever_is_a_thread() {
    let table = overload(1).expect("within its bounds");
    println!("{}", table.text());
    for mode in ["threaded", "group", "threaded, one core more", "group, one core more"] {
        assert!(says(&table, &format!("four senders, {mode}:"), "the goodput of softirq"), "{mode}");
        let keeps = says(&table, &format!("four senders, {mode}:"), "of its own peak");
        assert!(!keeps, "{mode} keeps its peak: docs/simulator.md and docs/workloads.md say that it does not");
    }
    let of = |row: &str, column: &str| figure(&table, &format!("four senders, {row}, 200 flows"), column);
    assert!(of("softirq", "socket drops K/s") > 3_000.0, "softirq drops what it has delivered");
    for mode in ["threaded", "group"] {
        assert_eq!(of(mode, "socket drops K/s"), 0.0, "{mode}");
        assert!(of(mode, "ring drops K/s") > 3_000.0, "{mode}");
        assert!((1.2..3.8).contains(&of(mode, "of softirq's")), "{mode}: on the sinks' core as in the published table");
    }
    // The factor of about two depends on the flood: softirq takes all of a smaller one, and a larger one leaves it
    // nothing.
    let softirq = |flood: &str| figure(&table, &format!("{flood}, softirq, 200 flows"), "goodput K/s");
    assert!(softirq("published senders") > 1_800.0 && softirq("full wire") < 20.0);
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
