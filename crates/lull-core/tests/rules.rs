//! The rules of delivery, by section of `napi_semantics`: deferral (§4), the softirq loop (§5), busy polling (§7), NAPI
//! threads (§10), disable and enable (§11).
#![cfg(not(loom))]

mod toy;

use lull_core::{
    BusyEnd, BusyPlan, Completion, DeviceConfig, DisableClaim, EpollOptions, GroFlush, NAPI_ID_MIN, Napi, NapiSettings,
    NapiThread, NetRx, Polled, Route, RxEnd, RxStep, Schedule, SoftirqNext, SoftirqRun, Softnet, Sysctl, ThreadStep,
    ThreadedOff, state,
};
use toy::{By, MS, Toy, US, Waited, one_round, settings, suspending};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;

// ---- §4 completion and deferral ----

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

// ---- §5 the softirq loop ----

#[test]
fn a_pass_takes_the_budget_in_weights_and_squeezes() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 10_000);
    toy.irq(0);
    assert!(toy.net_rx(0));
    // Alone on its CPU an instance is polled once a pass: its repoll is put back, and the softirq raised again.
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64)]);
    assert_eq!(toy.cpus[0].softnet.time_squeeze(), 0);

    let mut toy = Toy::new(12, settings(0, 0, 0));
    for queue in 0..6 {
        toy.packets(2 * queue, 64);
        toy.irq(2 * queue);
    }
    assert!(toy.net_rx(0));
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64); 5], "320 packets: the budget of 300 is looked at after a poll");
    assert_eq!(toy.cpus[0].softnet.time_squeeze(), 1);
}

/// A list of instances to be polled, without the toy: exactly who is polled in which order.
struct Lists {
    napis: Vec<Napi>,
    softnet: Softnet,
    sysctl: Sysctl,
    now_ns: u64,
}

impl Lists {
    fn new(instances: u32) -> Lists {
        let napis: Vec<_> = (0..instances).map(Napi::new).collect();
        for napi in &napis {
            napi.enable(NAPI_ID_MIN + napi.index(), None);
        }
        Lists { napis, softnet: Softnet::new(), sysctl: Sysctl::default(), now_ns: 0 }
    }

    fn cx(&self) -> lull_core::Cx<'static> {
        lull_core::Cx::new(0, self.now_ns)
    }

    fn schedule(&mut self, index: usize) {
        let napi = &self.napis[index];
        let Schedule::Owned(owner) = napi.schedule(&self.cx()) else { panic!("{index} is scheduled already") };
        let Route::Softirq(owner) = napi.route(owner, &self.cx()) else { panic!("no thread") };
        self.softnet.push(owner);
    }

    fn begin(&mut self) -> NetRx {
        self.softnet.begin(&self.sysctl, self.now_ns)
    }

    /// Polls the next instance, which takes `work`; who it was, or how the pass ended.
    fn poll(&mut self, rx: &mut NetRx, work: u32, cost_ns: u64) -> Result<usize, RxEnd> {
        match rx.next(&mut self.softnet) {
            RxStep::End(end) => Err(end),
            RxStep::Poll(owner) => {
                let index = owner.napi() as usize;
                self.now_ns += cost_ns;
                let polled = self.napis[index].softirq_polled(owner, work, false, &self.cx(), |_| ());
                match rx.polled(polled, work, self.now_ns) {
                    None => {}
                    Some(Completion::Released(release)) => {
                        let _ = release.settle(&self.napis[index], &self.cx());
                    }
                    Some(owed) => panic!("nobody else schedules: {owed:?}"),
                }
                Ok(index)
            }
        }
    }

    /// The order of the list, by running it off.
    fn order(&mut self) -> Vec<usize> {
        self.sysctl.netdev_budget = u32::MAX >> 1;
        let mut rx = self.begin();
        let mut order = Vec::new();
        while let Ok(index) = self.poll(&mut rx, 0, 0) {
            order.push(index);
        }
        order
    }
}

#[test]
fn what_is_left_is_put_back_as_unfinished_newly_arrived_repolls() {
    let mut lists = Lists::new(8);
    lists.sysctl.netdev_budget = 128;
    (0..4).for_each(|index| lists.schedule(index));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(0));
    lists.schedule(6);
    lists.schedule(5);
    assert!(!lists.softnet.is_raised(), "net_rx_action runs here: it will look");
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(1));
    assert_eq!(lists.poll(&mut rx, 64, 0), Err(RxEnd { squeezed: true, raised: true }));
    assert_eq!(lists.order(), [2, 3, 6, 5, 0, 1]);
}

#[test]
fn a_refilled_list_goes_on_with_the_same_budget_and_only_without_repolls() {
    let mut lists = Lists::new(4);
    lists.sysctl.netdev_budget = 100;
    lists.schedule(0);
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 63, 0), Ok(0));
    lists.schedule(1);
    lists.schedule(2);
    assert_eq!(lists.poll(&mut rx, 37, 0), Ok(1), "the list was refilled");
    assert_eq!(lists.poll(&mut rx, 0, 0), Err(RxEnd { squeezed: true, raised: true }), "the budget was not");
    assert_eq!(lists.order(), [2]);

    // With an instance to be polled again the pass ends, so that it takes its turn behind the new ones.
    let mut lists = Lists::new(4);
    lists.schedule(0);
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(0));
    lists.schedule(1);
    assert_eq!(lists.poll(&mut rx, 0, 0), Err(RxEnd { squeezed: false, raised: true }));
    assert_eq!(lists.order(), [1, 0]);
}

#[test]
fn a_pass_ends_at_its_deadline_even_when_nothing_is_left() {
    let mut lists = Lists::new(3);
    (0..3).for_each(|index| lists.schedule(index));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 1, 2 * MS - 1), Ok(0));
    assert_eq!(lists.poll(&mut rx, 1, 1), Ok(1));
    assert_eq!(lists.poll(&mut rx, 1, 0), Err(RxEnd { squeezed: true, raised: true }));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 1, 2 * MS), Ok(2));
    assert_eq!(lists.poll(&mut rx, 1, 0), Err(RxEnd { squeezed: true, raised: false }));
    assert_eq!(lists.softnet.time_squeeze(), 2);
}

#[test]
fn ksoftirqd_takes_over_after_ten_passes() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 10_000);
    toy.irq(0);
    toy.softirq(0);
    assert_eq!(toy.polls.len(), 10, "the first pass and nine restarts");
    assert!(toy.cpus[0].ksoftirqd);
    toy.pending();
    assert_eq!(toy.queues[0].ring, 0);
    assert_eq!(toy.cpus[0].ksoftirqd_wakes, 10_000 / 640);
}

#[test]
fn ksoftirqd_takes_over_after_two_milliseconds_or_when_a_thread_waits() {
    let mut run = SoftirqRun::begin(5 * MS);
    assert_eq!(run.after_pass(true, false, 7 * MS - 1), SoftirqNext::Again);
    assert_eq!(run.after_pass(true, false, 7 * MS), SoftirqNext::Ksoftirqd);
    let mut run = SoftirqRun::begin(0);
    assert_eq!(run.after_pass(true, true, 0), SoftirqNext::Ksoftirqd);
    assert_eq!(SoftirqRun::begin(0).after_pass(false, true, 9 * MS), SoftirqNext::Done, "nothing is left");

    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.cpus[0].need_resched = true;
    toy.packets(0, 65);
    toy.irq(0);
    toy.softirq(0);
    assert_eq!((toy.polls.len(), toy.cpus[0].ksoftirqd), (1, true));
}

#[test]
fn a_full_poll_under_a_pending_disable_completes_and_leaves_the_interrupt_masked() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1_000);
    toy.irq(0);
    toy.during_poll(|toy| toy.napi(0).disable_begin());
    toy.softirq(0);
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64)]);
    assert!(toy.queues[0].masked, "the completion is not the driver's: nobody unmasks");
    assert!(toy.disable_try(0));
}

// ---- §7 busy polling ----

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

// ---- §8 the whole cycle ----

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

// ---- §10 threads ----

#[test]
fn a_thread_polls_without_budget_until_the_queue_is_dry() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.threaded(0, false);
    toy.packets(0, 64 * 100 + 1);
    toy.pending();
    assert_eq!(toy.polls.len(), 101);
    assert!(toy.polls.iter().all(|poll| poll.by == By::Thread));
    assert!(!toy.queues[0].masked && !toy.has(0, state::SCHED));
    assert_eq!(toy.cpus.iter().map(|cpu| cpu.ksoftirqd_wakes).sum::<u32>(), 0);
}

#[test]
fn the_timer_of_a_threaded_instance_wakes_its_thread() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
    toy.threaded(0, false);
    toy.packets(0, 1);
    toy.run_for(MS);
    assert_eq!(toy.polls_since(0), [1, 0, 0].map(|work| (By::Thread, work)));
}

#[test]
fn ownership_alone_does_not_start_the_thread() {
    let napi = Napi::new(0);
    let cx = lull_core::Cx::new(0, 0);
    let mut thread = NapiThread::new();
    assert!(matches!(thread.next(&napi, &cx), ThreadStep::Sleep), "a disabled instance is owned by nobody's thread");
    napi.enable(NAPI_ID_MIN, Some(&NapiSettings { threaded: lull_core::Threaded::On, ..settings(0, 0, 0) }));
    let Schedule::Owned(owner) = napi.schedule(&cx) else { panic!("free") };
    assert!(matches!(thread.next(&napi, &cx), ThreadStep::Sleep), "scheduled, and not yet given to the thread");
    assert!(matches!(napi.route(owner, &cx), Route::Thread));
    assert!(matches!(thread.next(&napi, &cx), ThreadStep::Poll { budget: 64 }));
    thread.abandon();
}

#[test]
fn a_busy_thread_starts_with_the_first_schedule_and_never_unmasks() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, SUSPEND));
    toy.queues[0].gro_holds = true;
    toy.threaded(0, true);
    toy.run_for(MS);
    assert_eq!(toy.polls.len(), 0, "setting the mode only sets bits");
    toy.packets(0, 1);
    toy.pending();
    for round in 0..100 {
        toy.packets(0, round % 3 * 40);
        toy.run_for(10 * US);
        assert!(toy.queues[0].masked);
        assert_eq!(toy.timer_in(0), None);
        assert!(toy.has(0, state::SCHED | state::SCHED_THREADED | state::IN_BUSY_POLL));
        assert_eq!(toy.queues[0].ring, 0);
        toy.assert_invariants();
    }
    assert_eq!(toy.queues[0].irqs, 1);
    assert_eq!(toy.queues[0].flushes.len(), toy.polls.len(), "GRO is flushed every round, as completion does not");
    assert!(toy.queues[0].flushes.iter().all(|&flush| flush == GroFlush::Old));
}

#[test]
fn leaving_busy_threading_completes_as_usual() {
    for to_plain in [true, false] {
        let mut toy = Toy::new(1, settings(1, GRO_FLUSH, 0));
        toy.threaded(0, true);
        toy.packets(0, 1);
        toy.run_for(100 * US);
        if to_plain {
            toy.threaded(0, false);
        } else {
            assert_eq!(toy.napi(0).threaded_off(), ThreadedOff::Off, "its own thread owns it");
            assert!(toy.napi(0).thread_has_round(), "and has to end its round first");
        }
        let from = toy.polls.len();
        toy.run_for(MS);
        assert!(!toy.napi(0).thread_has_round());
        assert!(!toy.queues[0].masked && !toy.has(0, state::SCHED) && !toy.has(0, state::IN_BUSY_POLL));
        // The last work of a busy thread reloaded no credits: its first completion, empty, unmasks.
        assert_eq!(toy.polls_since(from), [(By::Thread, 0)]);
        toy.packets(0, 1);
        toy.pending();
        let by = if to_plain { By::Thread } else { By::Softirq };
        assert_eq!(toy.polls.last().map(|poll| poll.by), Some(by), "the next schedule follows the new mode");
        toy.assert_invariants();
    }
}

#[test]
fn threading_off_waits_for_an_owner_other_than_the_thread() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1);
    toy.irq(0); // softirq's round
    toy.threaded(0, false);
    assert_eq!(toy.napi(0).threaded_off(), ThreadedOff::Owned, "softirq owns it");
    let from = toy.polls.len();
    toy.pending();
    assert_eq!(toy.polls_since(from), [(By::Softirq, 1)], "turning on does not move the round in progress");
    assert_eq!(toy.napi(0).threaded_off(), ThreadedOff::Off, "idle");

    toy.threaded(0, false);
    let mut busier = toy.busy_begin(one_round(&toy, 0, true), 1).expect("the id is known");
    assert!(toy.busy_round(&mut busier));
    assert_eq!(toy.napi(0).threaded_off(), ThreadedOff::Owned, "a busy poller owns it, and may hand it to the thread");
    toy.packets(0, 200);
    toy.busy_stop(busier);
    assert!(toy.napi(0).thread_has_round(), "as it did");
    assert_eq!(toy.napi(0).threaded_off(), ThreadedOff::Off);
    toy.pending();
    assert!(!toy.napi(0).thread_has_round());
    assert_eq!(toy.queues[0].ring, 0);
    toy.assert_invariants();
}

#[test]
fn a_missed_event_of_the_thread_comes_back_to_it() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.threaded(0, false);
    toy.packets(0, 1);
    toy.irq(0);
    toy.during_poll(|toy| {
        toy.packets(0, 1);
        assert!(!toy.kick(0, 1));
    });
    toy.pending();
    assert_eq!(toy.polls_since(0), [(By::Thread, 1), (By::Thread, 1)]);
}

// ---- §11 disable and enable ----

#[test]
fn disabling_a_suspended_or_deferred_instance_is_immediate() {
    for suspend in [false, true] {
        let mut toy = Toy::new(1, settings(9, GRO_FLUSH, SUSPEND));
        toy.packets(0, 1);
        toy.pending();
        let id = toy.napi(0).id();
        if suspend {
            toy.suspend(id, 1);
        }
        toy.napi(0).disable_begin();
        assert!(toy.disable_try(0));
        assert_eq!((toy.timer_in(0), toy.napi(0).id()), (None, 0));
    }
}

#[test]
fn everything_is_refused_while_disabling_and_while_disabled() {
    let mut toy = Toy::new(1, settings(9, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.pending();
    let refused = |toy: &mut Toy| {
        let from = toy.polls.len();
        toy.kick(0, 1);
        let plan = BusyPlan { napi_id: toy.napi(0).id().max(NAPI_ID_MIN), ..one_round(toy, 0, true) };
        toy.busy(plan, 1, |_| false);
        assert!(toy.napi(0).resume(&toy.cx(1)).is_none());
        toy.run_for(MS); // the timer
        assert_eq!(toy.polls_since(from), []);
    };
    toy.napi(0).disable_begin();
    refused(&mut toy);
    assert_eq!(toy.napi(0).stats().timer_swallowed, 1);
    assert!(toy.disable_try(0));
    refused(&mut toy);
    toy.packets(0, 1);
    toy.enable(0);
    toy.pending();
    assert_eq!(toy.queues[0].delivered, 2, "what came meanwhile is found by the unmask");
    toy.assert_invariants();
}

#[test]
fn nothing_of_an_earlier_life_survives_enable() {
    let mut toy = Toy::new(1, settings(9, GRO_FLUSH, 0));
    toy.disable(0);
    assert!(matches!(toy.napi(0).schedule(&toy.cx(0)), Schedule::Missed), "a disabled instance is owned");
    let plan = one_round(&toy, 0, true);
    let mut late = lull_core::BusyLoop::begin(toy.napi(0), &plan, &toy.cx(1));
    assert_eq!(late.round(toy.napi(0), &toy.cx(1)), lull_core::BusyRound::Lost);
    assert!(late.stop(toy.napi(0), &toy.cx(1)).is_none());
    assert!(toy.has(0, state::MISSED | state::PREFER_BUSY_POLL));
    toy.enable(0);
    assert_eq!(toy.napi(0).snapshot().bits(), 0);
    toy.pending();
    assert_eq!(toy.polls.len(), 0);
}

#[test]
#[should_panic(expected = "not disabled")]
fn enabling_twice_is_caught() {
    Toy::new(1, settings(0, 0, 0)).enable(0);
}

#[test]
fn settings_and_id_persist_across_a_reset_with_a_slot() {
    for persistent in [true, false] {
        let mut device = DeviceConfig::new(1, persistent);
        let mut fresh = NAPI_ID_MIN..;
        let napi = Napi::new(0);
        let (id, with) = device.enabled(0, || fresh.next().unwrap_or(0));
        napi.enable(id, Some(&with));
        let with = NapiSettings { threaded: lull_core::Threaded::On, ..settings(7, GRO_FLUSH, SUSPEND) };
        device.set_queue(0, &with).expect("within the limits");
        napi.set(&with);
        napi.threaded_on(false);
        napi.disable_begin();
        assert_eq!(napi.disable_claim(), DisableClaim::Claimed);
        assert!(!napi.snapshot().any(state::THREADED));
        device.disabled(0, napi.id());
        napi.disable_end(&lull_core::Cx::new(0, 0));
        let (again, with_again) = device.enabled(0, || fresh.next().unwrap_or(0));
        napi.enable(again, Some(&with_again));
        assert_eq!(again == id, persistent);
        assert_eq!(napi.settings() == with, persistent);
        assert_eq!(napi.snapshot().has(state::THREADED), persistent, "threading is restored with the settings");
    }
}

#[test]
fn owners_and_polls_are_checked() {
    let napi = Napi::new(0);
    let other = Napi::new(1);
    let cx = lull_core::Cx::new(0, 0);
    [&napi, &other].into_iter().for_each(|napi| napi.enable(NAPI_ID_MIN, None));
    let Schedule::Owned(owner) = napi.schedule(&cx) else { panic!("free") };
    let wrong = std::panic::AssertUnwindSafe(|| drop(other.route(owner, &cx)));
    assert!(std::panic::catch_unwind(wrong).is_err(), "I1: an owner polls its own instance only");
    let Schedule::Owned(owner) = other.schedule(&cx) else { panic!("free") };
    let greedy = std::panic::AssertUnwindSafe(|| match other.softirq_polled(owner, 65, false, &cx, |_| ()) {
        Polled::Repoll(owner) => owner.abandon(),
        Polled::Completed(_) => {}
    });
    assert!(std::panic::catch_unwind(greedy).is_err(), "I5: no more than the budget");
}
