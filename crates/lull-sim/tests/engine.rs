//! The engine: a run can be repeated, nothing is lost, and a single request takes the time that can be added up by
//! hand.

use lull_core::Mode;
use lull_core::mode::PUBLISHED;
use lull_sim::{Costs, NetSpec, Outcome, Sim, Traffic, World};

fn mode(name: &str) -> Mode {
    name.parse().expect("a mode")
}

fn run(world: &World, seed: u64) -> Outcome {
    Sim::new(world, seed).run().expect("within its bounds")
}

#[test]
fn a_run_is_its_world_and_its_seed() {
    for name in PUBLISHED {
        let world = World::epoll_service(2, &mode(name), 100, Traffic::Open { per_s: 120_000.0 });
        let (first, again, other) = (run(&world, 7), run(&world, 7), run(&world, 8));
        assert_eq!(first.digest, again.digest, "{name}");
        assert_eq!((first.counts, first.napi, first.cpu), (again.counts, again.napi, again.cpu), "{name}");
        assert_ne!(first.digest, other.digest, "{name}");
    }
}

#[test]
fn requests_are_answered_inside_or_on_the_wire() {
    for name in PUBLISHED {
        for load in [Traffic::Open { per_s: 90_000.0 }, Traffic::Open { per_s: 400_000.0 }, Traffic::Closed] {
            let world = World { warmup_ns: 0, ..World::epoll_service(1, &mode(name), 64, load) };
            let out = run(&world, 3);
            let counts = out.counts;
            assert_eq!(counts.issued, counts.served + out.inside + out.on_wire, "{name} {load:?}");
            assert!(counts.answered <= counts.served && counts.served - counts.answered <= 64, "{name} {load:?}");
            assert_eq!(counts.tx_packets, counts.served);
        }
    }
}

#[test]
fn the_cpu_is_always_doing_something() {
    for name in PUBLISHED {
        let world = World::epoll_service(2, &mode(name), 100, Traffic::Open { per_s: 150_000.0 });
        let out = run(&world, 5);
        let cpu = out.cpu;
        assert_eq!(cpu.busy_ns() + cpu.idle_ns, 2 * world.window_ns, "{name}: {cpu:?}");
    }
}

/// One connection in a closed loop on an idle machine: every request takes the same way.
fn one_at_a_time(name: &str, costs: Costs, net: NetSpec) -> Outcome {
    let world = World { costs, net, ..World::epoll_service(1, &mode(name), 1, Traffic::Closed) };
    run(&world, 1)
}

fn plain_costs() -> Costs {
    Costs { request_random_ns: 0, ..Costs::default() }
}

/// There are no acknowledgements and no transmit completions: they would come after the run.
fn plain_net() -> NetSpec {
    let never_ns = 2_000_000_000;
    NetSpec { client_random_ns: 0, ack_ns: never_ns, tx_done_ns: never_ns, ..NetSpec::default() }
}

#[test]
fn one_request_in_base_takes_wire_interrupt_softirq_wake_up_and_service() {
    let (costs, net) = (plain_costs(), plain_net());
    let out = one_at_a_time("base", costs.clone(), net.clone());
    // The parts are: on the wire; out of idle; the interrupt; softirq, and its poll with one packet; the waker's cost
    // and the switch; the worker is in epoll_wait, copies the event and serves it; and back on the wire.
    let expected_ns = net.request_ns
        + costs.idle_shallow_exit_ns
        + costs.irq_ns
        + costs.softirq_ns
        + costs.poll_ns
        + costs.rx_request_ns
        + costs.wake_ns
        + costs.switch_ns
        + costs.epoll_event_ns
        + costs.request_sys_ns
        + costs.request_user_ns
        + net.answer_ns;
    let median_ns = out.latency_ns.value_at_quantile(0.5);
    assert!(median_ns.abs_diff(u64::from(expected_ns)) <= 32, "median {median_ns}, expected {expected_ns}");
    let per_answer = out.counts.irqs as f64 / out.counts.answered as f64;
    assert!((1.0..1.1).contains(&per_answer), "one interrupt a request: {per_answer}");
}

#[test]
fn deferral_makes_one_request_wait_for_the_timer() {
    let out = one_at_a_time("defer200", plain_costs(), plain_net());
    assert_eq!(out.counts.irqs, 0, "the interrupt stays masked");
    let (base, deferred) = (one_at_a_time("base", plain_costs(), plain_net()), out);
    let wait_ns = deferred.latency_ns.mean() - base.latency_ns.mean();
    // A closed loop of 28 us meets a timer of 200 us that started at the poll before, and waits for the rest of the
    // timer.
    assert!((165_000.0..180_000.0).contains(&wait_ns), "{wait_ns}");
}

#[test]
fn each_mode_is_in_force_by_its_counters() {
    for name in PUBLISHED {
        let mode = mode(name);
        let world = World::epoll_service(1, &mode, 64, Traffic::Open { per_s: 100_000.0 });
        let out = run(&world, 11);
        let (napi, counts) = (out.napi, out.counts);
        let masked = mode.deferral_ns().is_some();
        assert_eq!(masked, counts.irqs < 10, "{name}: {} interrupts", counts.irqs);
        assert_eq!(mode.suspends(), napi.suspends > 100, "{name}: {} suspensions", napi.suspends);
        assert_eq!(mode.epoll.prefer_busy_poll, napi.busy_polls > 100, "{name}: {} busy polls", napi.busy_polls);
        assert!(napi.work.abs_diff(counts.rx_packets) <= 128, "{name}: what arrives is polled");
        if name == "fullbusy" {
            assert!(napi.busy_polls > 99 * napi.softirq_polls, "{name}: {napi:?}");
            assert!(out.cpu.percent() > 99.5);
        }
    }
}

#[test]
fn a_world_that_takes_too_many_events_is_stopped() {
    let world = World { events_max: 1_000, ..World::epoll_service(1, &mode("base"), 8, Traffic::Closed) };
    let error = Sim::new(&world, 1).run().unwrap_err().to_string();
    assert!(error.contains("1000 events") && error.contains("events_max"), "{error}");
}
