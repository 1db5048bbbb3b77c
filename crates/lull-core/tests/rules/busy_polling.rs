//! Busy polling (§7), and the whole cycle of suspension (§8).

use super::*;

#[test]
fn a_call_of_one_round_that_wins_costs_exactly_two_polls_and_at_most_two_budgets() {
    for (ring, expected) in [(0, [0, 0]), (1, [1, 0]), (64, [64, 0]), (100, [64, 36]), (1_000, [64, 64])] {
        for prefer in [false, true] {
            let mut toy = Toy::new(1, settings(100, GRO_FLUSH, 0));
            toy.packets(0, ring);
            toy.busy(one_round(&toy, 0, prefer), 1, |_| false);
            let busy: Vec<_> = toy.polls_since(0).into_iter().filter(|(by, _)| *by != By::Softirq).collect();
            assert_eq!(busy, [(By::Busy, expected[0]), (By::Stop, expected[1])]);
            assert_eq!(toy.napi(0).stats().busy_polls, 2);
            toy.assert_invariants();
        }
    }
}

#[test]
fn a_call_that_loses_costs_none() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1);
    toy.irq(0);
    let mut busier = toy.busy_begin(one_round(&toy, 0, false), 1).expect("the id is known");
    assert!(!toy.busy_round(&mut busier));
    toy.busy_stop(busier);
    assert!(!toy.has(0, state::PREFER_BUSY_POLL), "only who prefers asks for a yield");
    assert_eq!(toy.napi(0).stats().busy_polls, 0);
}

#[test]
fn the_stop_decides_by_prefer_and_credits() {
    struct Case {
        ring: u32,
        defer: u32,
        timeout_ns: u64,
        prefer: bool,
        /// (masked, time to go, softirq polls) after the call.
        after: (bool, Option<u64>, usize),
    }
    let cases = [
        // An empty last poll without prefer unmasks: the credits are not reloaded.
        Case { ring: 0, defer: 9, timeout_ns: GRO_FLUSH, prefer: false, after: (false, None, 0) },
        Case { ring: 0, defer: 9, timeout_ns: GRO_FLUSH, prefer: true, after: (true, Some(GRO_FLUSH), 0) },
        Case { ring: 0, defer: 0, timeout_ns: GRO_FLUSH, prefer: true, after: (false, None, 0) },
        Case { ring: 0, defer: 9, timeout_ns: 0, prefer: true, after: (false, None, 0) },
        // A full last poll with a timeout parks; without one it goes to softirq.
        Case { ring: 200, defer: 9, timeout_ns: GRO_FLUSH, prefer: true, after: (true, Some(GRO_FLUSH), 0) },
        Case { ring: 200, defer: 9, timeout_ns: 0, prefer: true, after: (false, None, 2) },
        Case { ring: 200, defer: 9, timeout_ns: GRO_FLUSH, prefer: false, after: (true, Some(GRO_FLUSH), 2) },
    ];
    for case in cases {
        let mut toy = Toy::new(1, settings(case.defer, case.timeout_ns, 0));
        // Begin masked and owned, as after an interrupt that lost to the poller.
        toy.queues[0].masked = true;
        toy.queues[0].ring = case.ring;
        toy.busy(one_round(&toy, 0, case.prefer), 1, |_| false);
        let softirq = toy.polls.iter().filter(|poll| poll.by == By::Softirq).count();
        assert_eq!((toy.queues[0].masked, toy.timer_in(0), softirq), case.after);
        toy.assert_invariants();
    }
}

#[test]
fn a_stop_that_leaves_packets_in_gro_owes_the_timer_or_a_flush() {
    // One packet each: in the round, and in the stop's own poll, whose completion decides about GRO.
    for (timeout_ns, flushed) in [(GRO_FLUSH, GroFlush::Old), (0, GroFlush::All)] {
        let mut toy = Toy::new(1, settings(0, timeout_ns, 0));
        toy.queues[0].gro_holds = true;
        // Masked and owned by nobody, as after an interrupt that lost to the poller.
        (toy.queues[0].masked, toy.queues[0].ring) = (true, 1);
        let mut busier = toy.busy_begin(one_round(&toy, 0, false), 1).expect("the id is known");
        assert!(toy.busy_round(&mut busier));
        toy.queues[0].ring = 1;
        toy.busy_stop(busier);
        assert_eq!(toy.polls_since(0), [(By::Busy, 1), (By::Stop, 1)]);
        assert_eq!(toy.queues[0].flushes, [flushed]);
        assert_eq!(toy.timer_in(0), (timeout_ns != 0).then_some(timeout_ns));
        assert!(!toy.queues[0].masked, "GRO alone does not mask");
        toy.run_for(GRO_FLUSH);
        assert_eq!(toy.queues[0].flushes.last(), Some(&GroFlush::All), "nothing stays in GRO");
        toy.assert_invariants();
    }
}

#[test]
fn a_stop_that_takes_nothing_flushes_what_its_rounds_left_in_gro() {
    let mut toy = Toy::new(1, settings(0, GRO_FLUSH, 0));
    toy.queues[0].gro_holds = true;
    (toy.queues[0].masked, toy.queues[0].ring) = (true, 1);
    toy.busy(one_round(&toy, 0, false), 1, |_| false);
    assert_eq!(toy.polls_since(0), [(By::Busy, 1), (By::Stop, 0)]);
    assert_eq!(toy.queues[0].flushes, [GroFlush::All], "without work there is no timer to wait for");
    assert_eq!(toy.timer_in(0), None);
}

#[test]
fn the_busy_clock_counts_units_of_1024_ns() {
    // Fifty "microseconds" end with the first reading beyond 51 200 ns, by the clock's own ticks.
    let end = BusyEnd::AfterUsecs(50);
    assert!(!end.reached(0, 51 * 1_024 - 1));
    assert!(end.reached(0, 51 * 1_024));
    assert!(!end.reached(1_023, 51 * 1_024 - 1) && end.reached(1_023, 51 * 1_024));
    assert!(BusyEnd::OneRound.reached(7, 7));
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.poll_ns = 1_024;
    toy.now_ns = 1_024 * 1_000;
    let plan = BusyPlan { end, ..one_round(&toy, 0, true) };
    toy.busy(plan, 1, |_| false);
    assert_eq!(toy.polls.iter().filter(|poll| poll.by == By::Busy).count(), 51);
}

#[test]
fn each_round_runs_the_pending_softirqs_of_its_cpu() {
    let mut toy = Toy::new(3, settings(0, 0, 0));
    toy.packets(2, 1);
    toy.irq(2); // on CPU 0, where the poller of queue 1 runs
    toy.busy(one_round(&toy, 1, true), 0, |_| false);
    let who: Vec<_> = toy.polls.iter().map(|poll| (poll.queue, poll.by)).collect();
    assert_eq!(who, [(1, By::Busy), (2, By::Softirq), (1, By::Stop)]);
}

#[test]
fn a_nonzero_sysctl_turns_the_one_round_of_epoll_into_spinning() {
    for (busy_poll_usecs, polls) in [(0, 2), (50, 52)] {
        let mut toy = Toy::new(1, settings(100, GRO_FLUSH, 0));
        toy.sysctl.busy_poll_usecs = busy_poll_usecs;
        toy.poll_ns = 1_024;
        toy.now_ns = 1_024 * 1_000;
        let context = toy.context(&[0], suspending(), EpollOptions::strict_linux());
        toy.wake(context, 0, 0, 1);
        assert_eq!(toy.epoll_wait(context, 1, Some(MS)), Waited::Timeout);
        assert_eq!(toy.napi(0).stats().busy_polls, polls);
    }
}

#[test]
fn the_suspension_cycle_polls_without_interrupts_until_it_runs_dry() {
    let mut toy = Toy::new(1, settings(3, GRO_FLUSH, SUSPEND));
    let context = toy.context(&[0], suspending(), EpollOptions::strict_linux());
    toy.packets_at(2 * MS, 0, 1);
    assert_eq!(toy.epoll_wait(context, 1, None), Waited::Events(1));
    for _ in 0..100 {
        toy.packets(0, 1);
        toy.run_for(10 * MS); // the application computes, longer than any deferral would last
        toy.assert_invariants();
        assert_eq!(toy.epoll_wait(context, 1, None), Waited::Events(1));
        assert_eq!(toy.timer_in(0), Some(SUSPEND));
    }
    assert_eq!(toy.queues[0].irqs, 1);
    assert_eq!(toy.napi(0).stats().softirq_polls, 1);
    // Nothing left: two polls of its own, the resume's, then the deferral rounds that remain, then the interrupt.
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, 1, Some(MS)), Waited::Timeout);
    let mut expected = vec![(By::Busy, 0), (By::Stop, 0), (By::Softirq, 0)];
    expected.extend([(By::Softirq, 0); 2]);
    assert_eq!(toy.polls_since(from), expected);
    assert!(!toy.queues[0].masked);
}

#[test]
fn while_masked_the_first_poll_comes_within_the_longer_timeout() {
    // I8, over settings and arrival times.
    for (timeout_ns, suspend_ns) in [(GRO_FLUSH, SUSPEND), (5 * MS, MS), (GRO_FLUSH, 0)] {
        for arrival_ns in [0, 1, timeout_ns - 1, timeout_ns, suspend_ns.max(16) - 1, suspend_ns] {
            let mut toy = Toy::new(1, settings(4, timeout_ns, suspend_ns));
            let context = toy.context(&[0], suspending(), EpollOptions::strict_linux());
            toy.packets(0, 1);
            assert_eq!(toy.epoll_wait(context, 1, None), Waited::Events(1));
            let (from, call_ns) = (toy.polls.len(), toy.now_ns);
            toy.packets_at(call_ns + arrival_ns, 0, 1);
            toy.run_for(50 * MS);
            let first = toy.polls[from].at_ns - call_ns;
            let longest = timeout_ns.max(suspend_ns);
            assert!(first <= longest, "{first} ns with {timeout_ns}/{suspend_ns}");
            assert_eq!(toy.queues[0].ring, 0);
        }
    }
}
