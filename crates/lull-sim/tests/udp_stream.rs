//! The UDP_STREAM worlds: runs can be repeated, packets are conserved, modes are in force by the counters, and
//! calibration sees only its rows.

use lull_sim::params::Params;
use lull_sim::published::udp_stream::{
    CALIBRATION_CSV, CSV, FLOWS, KNOWN, MODES, PARAMS_TOML, SIZES, Span, Threads, simulate, statements, world,
};
use lull_sim::{FloodSpec, Outcome, QueueSpec, SenderSpec, Sim, World};

const SHORT: Span = Span { warmup_ns: 5_000_000, window_ns: 20_000_000 };

fn params() -> Params {
    Params::parse(PARAMS_TOML, &KNOWN).expect("the shipped parameters are within their ranges")
}

fn run(bytes: u32, flows: u32, mode: Threads) -> Outcome {
    Sim::new(&world(&params(), bytes, flows, mode, SHORT), 1).run().expect("within its bounds")
}

#[test]
fn the_calibration_file_is_a_third_of_the_table() {
    let (all, calibration): (Vec<&str>, Vec<&str>) = (CSV.lines().collect(), CALIBRATION_CSV.lines().collect());
    assert_eq!((all.len(), calibration.len()), (31, 11));
    assert!(calibration.iter().all(|line| all.contains(line)));
}

#[test]
fn rows_are_the_published_ones_and_fitted_where_the_calibration_file_has_them() {
    let tiny = Span { warmup_ns: 100_000, window_ns: 200_000 };
    let rows = simulate(&params(), tiny, 1).unwrap();
    assert_eq!(rows.len(), SIZES.len() * FLOWS.len() * MODES.len());
    assert!(rows.iter().all(|row| row.published.is_finite()));
    assert_eq!(rows.iter().filter(|row| row.fitted).count(), 30);
    let row = rows.iter().find(|row| row.name == "256 B, 100 flows, guest threaded").unwrap();
    assert_eq!((row.published, row.fitted), (698.0, false));
}

#[test]
fn the_published_values_hold_the_statements() {
    let mut rows = simulate(&params(), Span { warmup_ns: 0, window_ns: 1_000 }, 1).unwrap();
    for row in &mut rows {
        row.simulated = row.published;
    }
    for statement in statements(&rows) {
        assert!(statement.broken.is_empty(), "{statement:?}");
    }
    // With the values of vanilla in place of those of threads the statements do not hold.
    for row in &mut rows {
        row.simulated = 1.0;
    }
    assert!(statements(&rows).iter().any(|statement| !statement.broken.is_empty()));
}

#[test]
fn runs_replay() {
    for mode in MODES {
        let (one, again) = (run(256, 50, mode), run(256, 50, mode));
        assert_eq!((one.digest, one.counts, one.napi), (again.digest, again.counts, again.napi), "{mode:?}");
    }
}

#[test]
fn a_mode_is_in_force_by_who_spends_the_time() {
    // Only the guest's CPU is counted. Its softirq polls in vanilla, and its NAPI thread otherwise. The warm-up is as
    // long as it takes until the sockets are full.
    let span = Span { warmup_ns: 60_000_000, window_ns: 20_000_000 };
    let run = |mode| Sim::new(&world(&params(), 64, 25, mode, span), 1).run().unwrap();
    let (vanilla, guest) = (run(Threads::Vanilla), run(Threads::Guest));
    assert!(vanilla.cpu.softirq_ns > 2 * vanilla.cpu.sys_ns, "{:?}", vanilla.cpu);
    assert!(guest.cpu.sys_ns > 5 * guest.cpu.softirq_ns, "{:?}", guest.cpu);
    // Softirq feeds sockets and keeps their sinks from running; a thread leaves the excess to the queues before the
    // sockets.
    assert!(vanilla.counts.socket_dropped > vanilla.counts.served / 4, "{:?}", vanilla.counts);
    assert!(guest.counts.socket_dropped < guest.counts.served / 50, "{:?}", guest.counts);
    assert!(guest.counts.served > vanilla.counts.served);
    // Threads of the hypervisor stay off the CPU that executes the guest.
    let both = run(Threads::Both);
    let executed = |out: &Outcome| out.cpu.busy_ns() as f64 / out.window_ns as f64;
    assert!(executed(&both) > executed(&guest) + 0.05, "{} {}", executed(&both), executed(&guest));
}

/// Makes a machine without a hypervisor: one queue, one CPU.
fn bare(bytes: u32, cores: f64) -> World {
    World {
        cpus: vec![true],
        queues: vec![QueueSpec::new(0)],
        flood: Some(FloodSpec {
            bytes,
            sender: SenderSpec { datagram_ns: 1_000, fragment_ns: 500, byte_ps: 0, cores },
            flows: 4,
            ..FloodSpec::default()
        }),
        warmup_ns: 0,
        window_ns: 50_000_000,
        ..World::default()
    }
}

#[test]
fn what_is_sent_is_served_dropped_or_under_way() {
    for (bytes, cores) in [(64, 0.2), (64, 4.0), (1_438, 4.0)] {
        let out = Sim::new(&bare(bytes, cores), 3).run().unwrap();
        let gone = out.counts.served + out.counts.dropped + out.counts.socket_dropped;
        // The packets are in a ring, in four sockets, or in the hands of a poll and a receive call.
        let under_way = out.counts.issued - gone;
        assert!(under_way <= 1_024 + 4 * 278 + 64 + 8, "{:?}", out.counts);
        if cores < 1.0 {
            assert_eq!(out.counts.dropped + out.counts.socket_dropped, 0);
            assert!((9_500..10_500).contains(&out.counts.issued), "200 thousand a second: {}", out.counts.issued);
        }
    }
}

#[test]
fn the_wire_is_the_limit_of_large_datagrams() {
    let per_s = |bytes| Sim::new(&bare(bytes, 100.0), 1).run().unwrap().counts.issued as f64 * 20.0;
    assert!((per_s(1_438) - 831_255.0).abs() < 200.0, "{}", per_s(1_438));
    assert!((per_s(64_000) - 18_783.0).abs() < 40.0, "{}", per_s(64_000));
}

#[test]
fn a_datagram_that_lost_a_frame_is_lost() {
    // There are 44 frames in a ring of 32 that is polled when the wire has brought them, so no datagram is ever whole.
    let mut world = bare(64_000, 1.0);
    world.queues[0].ring_packets = 32;
    world.costs.irq_ns = 100_000;
    let out = Sim::new(&world, 1).run().unwrap();
    assert!(out.counts.issued > 500 && out.counts.dropped > 0);
    assert!(out.counts.served < out.counts.issued / 20, "{:?}", out.counts);
}
