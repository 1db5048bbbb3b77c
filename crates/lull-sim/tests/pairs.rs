//! The request/response worlds: runs can be repeated, transactions take the time that can be added up by hand, modes
//! are in force by the counters, and calibration sees only its rows.

use hdrhistogram::Histogram;
use lull_core::NapiSettings;
use lull_sim::params::Params;
use lull_sim::published::xsk_rr::{MODES, POINTS, Polling};
use lull_sim::published::{tcp_rr, xsk_rr};
use lull_sim::world::PeerKind;
use lull_sim::{ModerationSpec, Outcome, Sim, World};

const SHORT_NS: u64 = 5_000_000;
/// Later than the end of a run.
const NEVER_NS: u32 = 2_000_000_000;

fn tcp_params() -> Params {
    Params::parse(tcp_rr::PARAMS_TOML, &tcp_rr::KNOWN).expect("the shipped parameters are within their ranges")
}

fn xsk_params() -> Params {
    Params::parse(xsk_rr::PARAMS_TOML, &xsk_rr::KNOWN).expect("the shipped parameters are within their ranges")
}

fn run(mut world: World) -> Outcome {
    world.window_ns = SHORT_NS;
    Sim::new(&world, 1).run().expect("within its bounds")
}

fn tcp(busy_usecs: u32) -> World {
    tcp_rr::world(&tcp_params(), busy_usecs, ModerationSpec::Off, ModerationSpec::Off)
}

fn sum(params: &Params, names: &[&str]) -> u64 {
    names.iter().map(|name| u64::from(params.whole(name))).sum()
}

#[test]
fn a_transaction_by_interrupts_is_the_sum_of_its_parts() {
    let mut world = tcp(0);
    world.net.tx_done_ns = NEVER_NS;
    let out = run(world);
    // The parts in each direction are: the send call, the wire, out of idle, the interrupt, softirq, a poll with one
    // packet, the waker's cost, the switch, and taking the message.
    let parts = [
        "send_ns",
        "wire_ns",
        "idle_exit_ns",
        "irq_ns",
        "softirq_ns",
        "poll_ns",
        "rx_ns",
        "wake_ns",
        "switch_ns",
        "recv_take_ns",
    ];
    let expected_ns = 2 * sum(&tcp_params(), &parts);
    let median_ns = out.latency_ns.value_at_quantile(0.5);
    assert!(median_ns.abs_diff(expected_ns) <= 32, "median {median_ns}, expected {expected_ns}");
    let per_transaction = out.counts.irqs as f64 / out.counts.answered as f64;
    assert!((1.9..2.1).contains(&per_transaction), "an interrupt each way: {per_transaction}");
    assert_eq!(out.napi.busy_polls, 0);
}

#[test]
fn a_busy_polling_socket_neither_sleeps_nor_waits_for_coalescing() {
    let slow = ModerationSpec::Fixed(lull_sim::dim::Moderation { usecs: 40, frames: 44 });
    let world = |busy| World { net: tcp(0).net, ..tcp_rr::world(&tcp_params(), busy, slow, ModerationSpec::Off) };
    let (interrupts, busy) = (run(world(0)), run(world(50)));
    assert!(interrupts.latency_us(50.0) > busy.latency_us(50.0) + 2.0 * 40.0);
    // Each host switches to its thread once in a transaction; the window cuts one in two.
    assert!(interrupts.counts.switches + 2 >= 2 * interrupts.counts.answered);
    assert!(busy.counts.switches < busy.counts.answered / 10, "{} switches", busy.counts.switches);
    assert!(busy.napi.busy_polls > 2 * busy.counts.answered);
}

/// mlx4's transmit ring has the interrupt vector of its receive ring: what it reports while the receive ring's
/// interrupt is handled costs no interrupt of its own.
#[test]
fn queues_of_one_vector_are_handled_by_one_interrupt() {
    let fixed = |usecs, frames| ModerationSpec::Fixed(lull_sim::dim::Moderation { usecs, frames });
    let world = || tcp_rr::world(&tcp_params(), 0, fixed(1, 1), fixed(16, 16));
    let mut apart = world();
    apart.queues.iter_mut().for_each(|queue| queue.vector = None);
    let (shared, apart) = (run(world()), run(apart));
    let per_transaction = |out: &Outcome| out.counts.irqs as f64 / out.counts.answered as f64;
    assert!(per_transaction(&shared) < 3.0 && per_transaction(&apart) > 3.5, "{shared:?}");
    assert!(shared.latency_us(50.0) + 2.0 < apart.latency_us(50.0));
    // No completions are lost by that.
    assert!(shared.napi.polls as f64 > 3.5 * shared.counts.answered as f64, "{:?}", shared.napi);
}

/// There are no transmit completions, which would have interrupts of their own, and no interrupt is deferred.
fn xsk(point: (u32, u64), mode: Polling) -> World {
    let mut world = xsk_rr::world(&xsk_params(), point, mode, SHORT_NS);
    world.net.tx_done_ns = NEVER_NS;
    if mode == Polling::Interrupts {
        world.queues.iter_mut().for_each(|queue| queue.napi = NapiSettings::default());
    }
    world
}

#[test]
fn an_af_xdp_round_trip_by_interrupts_is_the_sum_of_its_parts() {
    let world = xsk((12_000, 0), Polling::Interrupts);
    // A thread that waits makes one receive call after the other, and looks at the ring between them.
    let looks_ns = 2 * u64::from(world.costs.spin_ns + world.costs.recv_call_ns);
    let out = run(world);
    // The parts in each direction are: the send call, which hands a copy to the device, the wire, the interrupt,
    // softirq, a poll with one packet, and taking the frame.
    let transmit = ["send_ns", "tx_frame_ns", "wire_ns"];
    let receive = ["irq_ns", "softirq_ns", "poll_ns", "rx_ns", "recv_take_ns"];
    let params = xsk_params();
    let expected_ns = 2 * (sum(&params, &transmit) + sum(&params, &receive));
    let median_ns = out.latency_ns.value_at_quantile(0.5);
    assert!(
        (expected_ns..=expected_ns + looks_ns + 16).contains(&median_ns),
        "median {median_ns}, expected {expected_ns}"
    );
}

/// In copy mode the frame leaves from the send call, whoever polls; the interrupt has a core of its own.
#[test]
fn a_copy_is_sent_by_its_sender_and_no_interrupt_takes_a_core_from_the_program() {
    let out = run(xsk((25_000, 38), Polling::Interrupts));
    // There is one poll for each frame that arrives at either end, and none for those that leave.
    let arrived = out.counts.issued + out.counts.answered;
    assert!(out.napi.polls.abs_diff(arrived) <= 4, "{} polls of {arrived} frames", out.napi.polls);
    // A send call that busy polls first makes its frame wait for that.
    let p50 = |polling| run(xsk((12_000, 78), polling)).latency_us(50.0);
    assert!(p50(Polling::Inline) > p50(Polling::Threaded) + 2.0);
}

#[test]
fn the_rate_is_the_senders_whatever_the_mode_and_nothing_is_lost() {
    for point in POINTS {
        for mode in MODES {
            let out = run(xsk_rr::world(&xsk_params(), point, mode, SHORT_NS));
            let expected = f64::from(point.0) * SHORT_NS as f64 / 1e9;
            assert!((out.counts.issued as f64 - expected).abs() <= 1.0, "{point:?} {mode:?}: {}", out.counts.issued);
            assert!(out.counts.issued.abs_diff(out.counts.answered) <= 5, "{point:?} {mode:?}: {:?}", out.counts);
            assert_eq!(out.counts.dropped, 0);
        }
    }
}

#[test]
fn each_polling_mode_is_in_force_by_its_counters() {
    for mode in MODES {
        // From 25 K/s on the interrupts are deferred from one frame to the next.
        let point = if mode == Polling::Interrupts { (12_000, 78) } else { (25_000, 38) };
        let out = run(xsk_rr::world(&xsk_params(), point, mode, SHORT_NS));
        let (napi, counts) = (out.napi, out.counts);
        let by_calls = matches!(mode, Polling::Inline | Polling::SeparateCore);
        assert_eq!(mode == Polling::Interrupts, counts.irqs > 10, "{mode:?}: {} interrupts", counts.irqs);
        assert_eq!(by_calls, napi.busy_polls > counts.issued, "{mode:?}: {} busy polls", napi.busy_polls);
        assert_eq!(mode == Polling::Threaded, napi.thread_polls > counts.issued, "{mode:?}: {napi:?}");
        assert_eq!(mode == Polling::Interrupts, napi.softirq_polls > counts.issued, "{mode:?}: {napi:?}");
    }
}

/// A thread that polls for a while before each send call, but not all the time, saves that call nothing.
#[test]
fn a_send_call_beside_a_receiver_that_is_busy_most_of_the_time_polls_itself() {
    let us = |point| run(xsk(point, Polling::Inline)).latency_us(5.0);
    let (all_the_time, now_and_then, seldom) = (us((12_000, 0)), us((125_000, 6)), us((12_000, 78)));
    assert!(now_and_then > all_the_time + 2.0, "{now_and_then} us after {all_the_time}");
    assert!((now_and_then - seldom).abs() < 1.0, "{now_and_then} us after {seldom}");
}

/// The interrupt is deferred from one frame to the next at 25 K/s, but not at 12 K/s: a frame waits for a timer's poll.
#[test]
fn a_deferral_that_lasts_until_the_next_frame_is_seen_where_latencies_begin() {
    let us = |point| {
        let out = run(xsk_rr::world(&xsk_params(), point, Polling::Interrupts, SHORT_NS));
        xsk_rr::printed(&out.latency_ns)[1] as f64 / 1_000.0
    };
    for point in [(25_000, 38), (32_000, 30)] {
        assert!(us(point) > us((12_000, 0)) + 5.0, "{point:?}: {} us", us(point));
    }
    assert!((us((12_000, 78)) - us((12_000, 0))).abs() < 0.5);
}

/// The rows of interrupts stay near the published ones with a deferral that is a little shorter or longer, and with a
/// sender that is a little slower, so they do not depend on one phase of its timer.
#[test]
fn the_rows_of_interrupts_do_not_hang_on_one_value_of_the_deferral() {
    let rows = xsk_rr::repeated();
    for (deferral_ns, slower_ns) in [(6_250, 0), (6_500, 90), (6_750, 0), (6_750, 90)] {
        for point in POINTS {
            let mut world = xsk_rr::world(&xsk_params(), point, Polling::Interrupts, SHORT_NS);
            world.queues.iter_mut().for_each(|queue| queue.napi.gro_flush_timeout_ns = deferral_ns);
            for peer in &mut world.peers {
                if let PeerKind::Pacer { period_ns } = &mut peer.kind {
                    *period_ns += slower_ns;
                }
            }
            let shown = xsk_rr::printed(&run(world).latency_ns)[1] as f64;
            let name = format!("{}/s, delay {} us, interrupts, p50", point.0, point.1);
            let said = rows.iter().find(|row| row.name == name).unwrap().published;
            assert!((shown / said - 1.0).abs() < 0.12, "{name}, {deferral_ns} ns: {shown}, published {said}");
        }
    }
}

/// This repeats the computation of the posted tool by hand.
#[test]
fn what_the_tool_prints_is_a_mean_of_the_lowest_latencies_rounded_down_at_each_step() {
    let latencies = |of: &[(u64, u64)]| {
        let mut all = Histogram::<u64>::new(3).unwrap();
        of.iter().for_each(|&(bucket, count)| all.record_n(bucket * 100, count).unwrap());
        xsk_rr::printed(&all)
    };
    assert_eq!(latencies(&[(140, 1_000)]), [14_000; 4]);
    // For an even distribution from 13 to 20 us it prints the lowest latency, whatever the share; it is a bucket more
    // where one was cut off.
    let even: Vec<(u64, u64)> = (130..200).map(|bucket| (bucket, 100)).collect();
    assert_eq!(latencies(&even), [13_000, 13_000, 13_100, 13_100]);
    // Half are at 10 us and half at 20. The first call cuts off 450 of the 500, which later calls miss. So half of the
    // 550 that are left are 50 at 10 us and 225 at 20.
    assert_eq!(latencies(&[(100, 500), (200, 500)])[..2], [10_000, (225 * 200 + 50 * 100) / 275 * 100]);
    assert_eq!(latencies(&[]), [0; 4]);
}

/// The letter's version 8 has every cell, and itself misses some of the statements about version 4.
#[test]
fn the_repetition_has_all_cells_and_misses_two_statements_itself() {
    let rows = xsk_rr::repeated();
    assert_eq!(rows.len(), POINTS.len() * MODES.len() * 4);
    assert!(rows.iter().all(|row| row.simulated.is_finite() && row.published.is_finite()));
    let holds: Vec<bool> = xsk_rr::statements(&rows).iter().map(|statement| statement.broken.is_empty()).collect();
    assert_eq!(holds, [true, false, true, false]);
}

#[test]
fn runs_replay() {
    for mode in MODES {
        let world = || xsk_rr::world(&xsk_params(), (32_000, 30), mode, SHORT_NS);
        let (one, again) = (run(world()), run(world()));
        assert_eq!((one.digest, one.counts, one.napi), (again.digest, again.counts, again.napi), "{mode:?}");
    }
    let (one, again) = (run(tcp(50)), run(tcp(50)));
    assert_eq!((one.digest, one.counts, one.napi), (again.digest, again.counts, again.napi));
}

#[test]
fn calibration_sees_a_third_of_the_rows_at_most() {
    let rows = tcp_rr::simulate(&tcp_params(), 1).unwrap();
    assert!(3 * rows.iter().filter(|row| row.fitted).count() <= rows.len());
    let rows = xsk_rr::simulate(&xsk_params(), 500_000, 1).unwrap();
    // The fitted rows are among the twenty medians, and none of the other percentiles is.
    let fitted: Vec<&str> = rows.iter().filter(|row| row.fitted).map(|row| row.name.as_str()).collect();
    assert!(
        3 * fitted.len() <= POINTS.len() * MODES.len() && fitted.iter().all(|name| name.ends_with("p50")),
        "{fitted:?}"
    );
    assert!(rows.iter().all(|row| row.published.is_finite()));
}
