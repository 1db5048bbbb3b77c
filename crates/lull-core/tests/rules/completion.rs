//! Completion and deferral (§4).

use super::*;

#[test]
fn deferral_takes_exactly_n_rounds_after_the_last_work() {
    for defer in [0, 1, 2, 3, 7, 100] {
        for timeout_ns in [0, 16, GRO_FLUSH, 5 * MS] {
            let mut toy = Toy::new(1, settings(defer, timeout_ns, 0));
            toy.packets(0, 1);
            toy.pending();
            let rounds = if timeout_ns == 0 { 0 } else { defer };
            for round in 0..rounds {
                assert!(toy.queues[0].masked, "round {round} of {defer} begins masked");
                assert_eq!(toy.timer_in(0), Some(timeout_ns));
                toy.run_for(timeout_ns);
            }
            assert!(!toy.queues[0].masked, "{defer} rounds of {timeout_ns} ns, and then the interrupt");
            assert_eq!(toy.timer_in(0), None);
            assert_eq!(toy.polls.len() as u32, 1 + rounds);
            toy.assert_invariants();
        }
    }
}

#[test]
fn work_in_a_deferral_round_starts_the_count_anew() {
    let mut toy = Toy::new(1, settings(3, GRO_FLUSH, 0));
    toy.packets(0, 1);
    toy.packets_at(toy.now_ns + 2 * GRO_FLUSH + 1, 0, 1);
    toy.run_for(MS);
    assert_eq!(toy.polls_since(0), [1, 0, 0, 1, 0, 0, 0].map(|work| (By::Softirq, work)));
    assert_eq!(toy.queues[0].irqs, 1, "the second packet took no interrupt");
    assert_eq!(toy.napi(0).stats().deferrals, 6);
}

#[test]
fn a_timeout_alone_delays_gro_and_does_not_mask() {
    let mut toy = Toy::new(1, settings(0, GRO_FLUSH, 0));
    toy.queues[0].gro_holds = true;
    toy.packets(0, 1);
    toy.pending();
    assert!(!toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    assert_eq!(toy.queues[0].flushes, [GroFlush::Old], "the timer takes care of the young ones");
    toy.run_for(GRO_FLUSH);
    assert_eq!(toy.queues[0].flushes, [GroFlush::Old, GroFlush::All]);
    assert_eq!(toy.timer_in(0), None);
}

#[test]
fn a_missed_event_is_polled_without_timer_and_counts_as_no_completion() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
    toy.packets(0, 1);
    toy.irq(0);
    toy.during_poll(|toy| assert!(!toy.kick(0, 1)));
    let before = toy.napi(0).stats();
    toy.softirq(0);
    let stats = toy.napi(0).stats() - before;
    assert_eq!((stats.polls, stats.deferrals, stats.timer_arms), (2, 1, 1));
}

#[test]
fn starting_the_timer_replaces_what_was_pending() {
    let mut toy = Toy::new(1, settings(1, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.pending();
    let id = toy.napi(0).id();
    toy.suspend(id, 2);
    assert_eq!(toy.napi(0).timer().pending(), Some((toy.now_ns + SUSPEND, 2)), "on the CPU that armed it");
    toy.run_for(2 * SUSPEND);
    assert_eq!(toy.napi(0).stats().timer_fires, 1);
    assert_eq!(toy.polls.last().map(|poll| poll.cpu), Some(2));
}
