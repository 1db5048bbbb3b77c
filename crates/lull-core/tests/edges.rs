//! The numbered edge cases of `napi_semantics` §13, one test each, named for it. Where Linux is weak (14, 18, 19) the
//! case is shown as Linux has it, and gone with the option that mends it.
#![cfg(not(loom))]

mod toy;

use lull_core::{
    AfterResume, BusyDone, BusyEnd, Completion, Cx, EpollBusy, EpollOptions, EpollParams, EpollWait, NAPI_ID_MIN,
    NapiSettings, Polled, Schedule, Sysctl, TimeoutZero, Unpolled, WaitStep, state,
};
use toy::{By, MS, Toy, US, Waited, one_round, settings, suspending};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;
/// The application's CPU; queue 0 interrupts CPU 0.
const APP: u16 = 1;
const NOTHING: BusyDone = BusyDone { available: false, gone: false, most: 0, now_ns: 0 };

/// One packet was delivered by interrupt and softirq, the application got it from `epoll_wait` and computes.
fn suspended_with(defer_hard_irqs: u32, options: EpollOptions) -> (Toy, usize) {
    let mut toy = Toy::new(2, settings(defer_hard_irqs, GRO_FLUSH, SUSPEND));
    let context = toy.context(&[0, 1], suspending(), options);
    toy.packets(0, 1);
    toy.pending();
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(1));
    (toy, context)
}

fn suspended() -> (Toy, usize) {
    let (toy, context) = suspended_with(2, EpollOptions::strict_linux());
    assert!(toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(SUSPEND));
    (toy, context)
}

#[test]
fn edge_01_missed_against_completion_keeps_ownership_and_does_not_rearm() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1);
    assert!(toy.irq(0));
    // After the ring was found empty and before completion, one more packet and its interrupt on another CPU.
    toy.during_poll(|toy| {
        toy.packets(0, 1);
        assert!(!toy.kick(0, 1), "owned");
        assert!(toy.has(0, state::SCHED | state::MISSED));
        toy.during_poll(|toy| {
            assert!(toy.queues[0].masked, "not rearmed in between");
            assert!(!toy.has(0, state::MISSED));
        });
    });
    toy.softirq(0);
    assert_eq!(toy.polls_since(0), [(By::Softirq, 1), (By::Softirq, 1)]);
    assert!(!toy.queues[0].masked);
    toy.assert_invariants();
}

#[test]
fn edge_02_missed_against_busy_poll_stop_loses_nothing() {
    for event_in_last_poll in [false, true] {
        let mut toy = Toy::new(1, settings(0, 0, 0));
        let mut busier = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
        assert!(toy.busy_round(&mut busier));
        let event = |toy: &mut Toy| {
            toy.packets(0, 1);
            assert!(toy.irq(0), "the line is not masked: a busy poller does not mask it");
            assert!(toy.has(0, state::MISSED));
        };
        if event_in_last_poll {
            toy.during_poll(event);
        } else {
            event(&mut toy);
        }
        toy.busy_stop(busier);
        toy.pending();
        // An event before the stop is covered by its poll; one during that poll keeps MISSED, hence a softirq poll.
        let expected: &[_] = if event_in_last_poll {
            &[(By::Busy, 0), (By::Stop, 0), (By::Softirq, 1)]
        } else {
            &[(By::Busy, 0), (By::Stop, 1)]
        };
        assert_eq!(toy.polls_since(0), expected);
        assert_eq!(toy.queues[0].ring, 0);
        toy.assert_invariants();
    }
}

#[test]
fn edge_03_timer_fires_while_owned_is_swallowed_and_its_owner_arms_another() {
    for owner in [By::Softirq, By::Busy] {
        let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
        toy.packets(0, 1);
        toy.pending();
        assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
        let expire = |toy: &mut Toy| {
            toy.now_ns += GRO_FLUSH;
            assert!(toy.timers(0));
            assert_eq!(toy.timer_in(0), None, "consumed");
            assert!(!toy.has(0, state::MISSED), "and nothing is recorded");
        };
        if owner == By::Softirq {
            assert!(toy.kick(0, 0));
            toy.during_poll(expire);
            toy.softirq(0);
        } else {
            let mut busier = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
            assert!(toy.busy_round(&mut busier));
            toy.packets(0, 200);
            toy.during_poll(expire);
            toy.busy_stop(busier);
            assert_eq!(toy.polls.last().map(|poll| poll.work), Some(64), "even after a full last poll");
        }
        assert_eq!(toy.napi(0).stats().timer_swallowed, 1);
        assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
        toy.assert_invariants();
    }
}

#[test]
fn edge_04_a_late_completion_replaces_the_suspension_and_costs_one_poll() {
    let mut toy = Toy::new(1, settings(1, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.queues[0].latched = false;
    let napi = toy.napi(0);
    let Schedule::Owned(owner) = napi.schedule(&toy.cx(0)) else { panic!("free") };
    let Polled::Completed(Completion::Released(release)) = napi.softirq_polled(owner, 1, false, &toy.cx(0), |_| ())
    else {
        panic!("a short poll completes")
    };
    // The application is quicker than the rest of the completion.
    assert_eq!(napi.suspend(&toy.cx(APP)), Some(toy.now_ns + SUSPEND));
    assert!(!release.settle(napi, &toy.cx(0)).unmask);
    toy.queues[0].masked = true;
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH), "the short timer wins");
    toy.run_for(GRO_FLUSH);
    assert_eq!(toy.polls_since(0), [(By::Softirq, 1)], "the packet is taken by the extra poll");
    toy.assert_invariants();
}

#[test]
fn edge_05_a_stale_timer_after_rearm_costs_one_spurious_poll() {
    let mut toy = Toy::new(1, settings(1, GRO_FLUSH, 0));
    toy.packets(0, 1);
    toy.pending();
    // A poller without prefer does not reload the credits: its empty last poll unmasks and cancels nothing.
    toy.busy(one_round(&toy, 0, false), APP, |_| false);
    assert!(!toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    let from = toy.polls.len();
    toy.run_for(MS);
    assert_eq!(toy.polls_since(from), [(By::Softirq, 0)]);
    assert_eq!(toy.timer_in(0), None);
    assert!(!toy.queues[0].masked);
}

#[test]
fn edge_06_a_saturated_softirq_yields_to_a_preferring_loser_after_one_budget() {
    for timeout_ns in [GRO_FLUSH, 0] {
        let mut toy = Toy::new(1, settings(2, timeout_ns, 0));
        toy.packets(0, 1_000);
        toy.irq(0);
        toy.during_poll(|toy| {
            let mut busier = toy.busy_begin(one_round(toy, 0, true), APP).expect("the id is known");
            assert!(!toy.busy_round(&mut busier), "softirq owns it");
            toy.busy_stop(busier);
            assert!(toy.has(0, state::PREFER_BUSY_POLL));
        });
        toy.net_rx(0);
        if timeout_ns == 0 {
            // Nothing would bring it back: it is scheduled again, and being re-listed it is polled in the same pass.
            assert_eq!(toy.polls_since(0), [(By::Softirq, 64); 2]);
            assert!(toy.has(0, state::SCHED) && toy.cpus[0].softnet.is_raised());
        } else {
            assert_eq!(toy.polls_since(0), [(By::Softirq, 64)]);
            assert!(toy.queues[0].masked && !toy.has(0, state::SCHED));
            assert_eq!(toy.timer_in(0), Some(GRO_FLUSH), "parked for the poller");
            let mut busier = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
            assert!(toy.busy_round(&mut busier), "which wins now");
            toy.busy_stop(busier);
        }
        assert!(!toy.has(0, state::PREFER_BUSY_POLL));
        toy.assert_invariants();
        toy.run_for(MS);
        assert_eq!(toy.queues[0].ring, 0);
    }
}

#[test]
fn edge_07_prefer_without_deferral_unmasks_at_the_stop_and_never_suspends() {
    let (mut toy, context) = suspended_with(0, EpollOptions::strict_linux());
    assert!(!toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(SUSPEND), "armed all the same");
    toy.packets(0, 1);
    assert!(toy.irq(0), "and a packet interrupts at once");
    toy.pending();
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(1));
    let from = toy.polls.len();
    toy.run_for(2 * SUSPEND);
    assert_eq!(toy.polls_since(from), [(By::Softirq, 0)], "the timer's one empty poll");
    assert!(!toy.queues[0].masked);
}

#[test]
fn edge_08_with_one_credit_the_resume_poll_unmasks_at_once() {
    let (mut toy, context) = suspended_with(1, EpollOptions::strict_linux());
    assert!(toy.queues[0].masked);
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, APP, Some(1)), Waited::Timeout);
    assert_eq!(toy.polls_since(from), [(By::Busy, 0), (By::Stop, 0), (By::Softirq, 0)]);
    assert!(!toy.queues[0].masked, "the stop used the only credit");
    // With two, the resume poll begins a deferral round instead.
    let (mut toy, context) = suspended_with(2, EpollOptions::strict_linux());
    assert_eq!(toy.epoll_wait(context, APP, Some(16)), Waited::Timeout);
    assert!(toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH - 16));
}

#[test]
fn a_resume_to_the_interrupt_unmasks_at_once_whatever_the_credits_and_leaves_no_timer() {
    let (mut toy, context) = suspended_with(100, EpollOptions::strict_linux());
    toy.after_resume = AfterResume::Interrupt;
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, APP, Some(1)), Waited::Timeout);
    assert_eq!(toy.polls_since(from), [(By::Busy, 0), (By::Stop, 0), (By::Softirq, 0)]);
    assert!(!toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), None, "neither the stop's nor the suspension's");
    // A resume whose poll finds packets defers as ever: the application will have events.
    let (mut toy, _) = suspended_with(100, EpollOptions::strict_linux());
    toy.after_resume = AfterResume::Interrupt;
    toy.packets(0, 1);
    let id = toy.napi(0).id();
    toy.resume(id, APP);
    assert!(toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    toy.check().unwrap();
}

#[test]
fn a_deferral_ends_when_a_thread_goes_to_sleep_and_a_suspension_does_not() {
    let deferred_on = 0;
    let mut toy = Toy::new(1, settings(100, GRO_FLUSH, SUSPEND));
    toy.packets(0, 1);
    toy.pending();
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    let end = |toy: &Toy, cpu| toy.napi(0).end_deferral(&Cx::new(cpu, toy.now_ns));
    assert!(end(&toy, APP).is_none(), "pinned to another CPU");
    let owner = end(&toy, deferred_on).expect("a deferral");
    toy.route(0, owner, deferred_on);
    toy.softirq(deferred_on);
    assert_eq!((toy.queues[0].masked, toy.timer_in(0)), (false, None));

    let (toy, _) = suspended_with(100, EpollOptions::strict_linux());
    assert!(end(&toy, APP).is_none(), "a suspension");
    // Without suspension deferral is the whole mode, and stays.
    let mut toy = Toy::new(1, settings(100, GRO_FLUSH, 0));
    toy.packets(0, 1);
    toy.pending();
    assert!(end(&toy, deferred_on).is_none());
}

#[test]
fn edge_09_the_suspend_timeout_fires_while_the_application_computes() {
    let (mut toy, context) = suspended();
    let (from, start_ns) = (toy.polls.len(), toy.now_ns);
    toy.packets_at(start_ns + 10 * MS, 0, 3);
    toy.run_for(SUSPEND - 16);
    assert_eq!(toy.polls_since(from), [], "masked until then");
    toy.run_for(16 + MS);
    let at: Vec<_> = toy.polls[from..].iter().map(|poll| (poll.at_ns - start_ns, poll.cpu, poll.work)).collect();
    assert_eq!(
        at,
        [(SUSPEND, APP, 3), (SUSPEND + GRO_FLUSH, APP, 0), (SUSPEND + 2 * GRO_FLUSH, APP, 0)],
        "a poll on the application's CPU, the deferral rounds, and then"
    );
    assert!(!toy.queues[0].masked, "the interrupt");
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(3), "the wakeups queued");
    assert_eq!(toy.timer_in(0), Some(SUSPEND), "and the next success suspends again");
}

#[test]
fn edge_10_an_application_that_never_returns_ends_interrupt_driven() {
    let (mut toy, _) = suspended();
    toy.packets(0, 1);
    toy.run_for(SUSPEND + 2 * GRO_FLUSH - 1);
    assert!(toy.queues[0].masked);
    toy.run_for(1);
    assert!(!toy.queues[0].masked);
    assert_eq!(toy.timer_in(0), None);
    let irqs = toy.queues[0].irqs;
    toy.packets(0, 1);
    toy.pending();
    assert_eq!(toy.queues[0].irqs, irqs + 1);
    toy.assert_invariants();
}

#[test]
fn edge_11_freeing_a_context_resumes_the_id_it_knows() {
    let (mut toy, context) = suspended();
    let from = toy.polls.len();
    toy.free(context, APP);
    assert_eq!(toy.polls_since(from), [(By::Softirq, 0)], "one poll in the caller's context");
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));

    let (mut toy, context) = suspended();
    toy.wake(context, 1, 0, APP); // the id changed to the other queue's
    toy.free(context, APP);
    assert_eq!(toy.timer_in(0), Some(SUSPEND), "only the timer is left for queue 0");
    toy.assert_invariants();
}

#[test]
fn edge_12_prefer_cleared_while_suspended_leaves_recovery_to_the_timer() {
    let (mut toy, context) = suspended();
    let from = toy.polls.len();
    toy.contexts[context].ep.set_params(&EpollParams::default(), false).expect("turning off is always allowed");
    assert_eq!(toy.epoll_wait(context, APP, Some(MS)), Waited::Timeout);
    assert_eq!(toy.contexts[context].ep.free().next(), None, "not even freeing resumes");
    assert_eq!(toy.polls_since(from), []);
    toy.packets(0, 1);
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(1));
    assert_eq!(toy.polls[from].at_ns, MS + SUSPEND, "at the suspend timeout");
}

#[test]
fn edge_12_prefer_cleared_during_the_busy_loop_still_resumes_after_it() {
    let ep = EpollBusy::new(&Sysctl::default(), EpollOptions::strict_linux());
    ep.set_params(&suspending(), false).expect("allowed");
    ep.note_napi(NAPI_ID_MIN);
    let mut wait = EpollWait::begin(&ep, None, false, 0);
    assert!(matches!(wait.next(&ep), WaitStep::Busy(_)));
    ep.set_params(&EpollParams::default(), false).expect("allowed");
    assert_eq!(wait.busy_done(&ep, NOTHING), Some(WaitStep::Resume(NAPI_ID_MIN)), "prefer is read before the loop");
}

#[test]
fn edge_13_suspend_timeout_zeroed_while_suspended_leaves_the_armed_timer() {
    let (mut toy, context) = suspended();
    let from = toy.polls.len();
    toy.napi(0).set(&settings(2, GRO_FLUSH, 0));
    toy.free(context, APP);
    assert_eq!(toy.polls_since(from), [], "resume does nothing");
    assert_eq!(toy.timer_in(0), Some(SUSPEND));
    toy.packets(0, 1);
    toy.run_for(SUSPEND);
    assert_eq!(toy.polls_since(from), [(By::Softirq, 1)]);
}

#[test]
fn edge_14_an_id_change_leaves_the_suspended_instance_to_its_timer() {
    let (mut toy, context) = suspended_with(2, EpollOptions::strict_linux());
    toy.packets(1, 1);
    toy.pending(); // queue 1 wakes the context: the id is its now
    assert_eq!(toy.contexts[context].ep.napi_id(), toy.napi(1).id());
    assert_eq!(toy.timer_in(0), Some(SUSPEND), "queue 0 is not resumed");
}

#[test]
fn edge_14_mended_an_id_change_resumes_the_instance_left_behind() {
    let options = EpollOptions { resume_on_id_change: true, ..EpollOptions::strict_linux() };
    let (mut toy, _) = suspended_with(2, options);
    let from = toy.polls.len();
    toy.packets(1, 1);
    toy.pending();
    assert!(toy.polls[from..].iter().any(|poll| poll.queue == 0), "queue 0 was polled at once");
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH));
    toy.assert_invariants();
}

#[test]
fn edge_14_mended_also_when_the_suspension_comes_after_the_change() {
    const A: u32 = NAPI_ID_MIN;
    const B: u32 = NAPI_ID_MIN + 1;
    const C: u32 = NAPI_ID_MIN + 2;
    let options = EpollOptions { resume_on_id_change: true, ..EpollOptions::strict_linux() };
    let ep = EpollBusy::new(&Sysctl::default(), options);
    ep.set_params(&suspending(), false).expect("allowed");
    let suspend = |id| {
        ep.note_napi(id);
        let mut wait = EpollWait::begin(&ep, None, true, 0);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
        assert_eq!(wait.copied(&ep, 1), Some(WaitStep::Suspend(id)));
    };
    suspend(A);
    assert_eq!(ep.note_napi(A), None, "the same instance again");
    assert_eq!(ep.note_napi(B), Some(A));
    suspend(B);
    assert_eq!(ep.note_napi(C), Some(B));
    assert_eq!(ep.note_napi(A), None, "B was resumed already");
}

#[test]
fn edge_15_with_mixed_instances_only_the_last_is_polled_and_stretched() {
    let mut toy = Toy::new(2, settings(2, GRO_FLUSH, SUSPEND));
    let context = toy.context(&[0, 1], suspending(), EpollOptions::strict_linux());
    toy.packets(0, 1);
    toy.packets(1, 1);
    toy.pending();
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(2));
    assert_eq!(toy.timer_in(1), Some(SUSPEND));
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH), "the other goes on deferring");
    // The other's added latency is its pending timer.
    let from = toy.polls.len();
    toy.packets(0, 1);
    toy.packets(1, 1);
    toy.run_for(GRO_FLUSH);
    assert!(toy.polls[from..].iter().all(|poll| poll.queue == 0));
    assert_eq!(toy.polls_since(from), [(By::Softirq, 1)]);
    assert_eq!(toy.contexts[context].ep.napi_id(), toy.napi(0).id(), "the id flaps with each wakeup");
}

#[test]
fn edge_16_the_idle_context_cancels_the_busy_ones_suspension() {
    let (mut toy, _) = suspended();
    let idle = toy.context(&[], suspending(), EpollOptions::strict_linux());
    toy.wake(idle, 0, 0, 2); // it knows the instance and has nothing to do
    assert_eq!(toy.epoll_wait(idle, 2, Some(1)), Waited::Timeout);
    assert!(toy.timer_in(0).is_some_and(|ns| ns <= GRO_FLUSH), "resumed: {:?}", toy.timer_in(0));
    toy.assert_invariants();
}

#[test]
fn edge_17_a_loser_of_the_poll_resumes_and_forgets_the_shared_id() {
    let (mut toy, context) = suspended();
    let mut winner = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
    assert!(toy.busy_round(&mut winner));
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, 2, Some(1)), Waited::Timeout);
    assert_eq!(toy.polls_since(from), [], "the loser polled nothing");
    assert_eq!(toy.contexts[context].ep.napi_id(), 0, "and zeroed the id");
    assert!(toy.has(0, state::MISSED | state::PREFER_BUSY_POLL), "its resume found an owner");
    toy.busy_stop(winner);
    toy.assert_invariants();
}

/// An application with other work (an eventfd) in every call, `step_ns` apart; when the waiting packet was polled.
fn starve(options: EpollOptions, calls: u64) -> Option<u64> {
    let (mut toy, context) = suspended_with(2, options);
    let (from, step_ns) = (toy.polls.len(), 10 * MS);
    toy.packets(0, 1);
    for call in 1..=calls {
        toy.run_for(step_ns);
        toy.contexts[context].ready += 1;
        assert!(matches!(toy.epoll_wait(context, APP, None), Waited::Events(_)));
        if toy.polls.len() > from {
            return Some(call);
        }
        assert_eq!(toy.timer_in(0), Some(SUSPEND), "every call arms the timer anew");
    }
    None
}

#[test]
fn edge_18_a_loop_that_always_has_other_work_starves_the_queue() {
    assert_eq!(starve(EpollOptions::strict_linux(), 1_000), None, "ten seconds, with a timeout of 20 ms");
}

#[test]
fn edge_18_mended_the_queue_is_polled_after_a_number_of_returns() {
    let options = EpollOptions { poll_after_returns: 8, ..EpollOptions::strict_linux() };
    // The first return of all counts too: it came without a poll of the caller's.
    assert_eq!(starve(options, 1_000), Some(8));
    assert_eq!(starve(EpollOptions { poll_after_returns: 3, ..options }, 1_000), Some(3));
}

#[test]
fn edge_18_mended_polls_once_per_call_and_counts_only_calls_that_did_not_poll() {
    let options = EpollOptions { poll_after_returns: 2, ..EpollOptions::strict_linux() };
    let ep = EpollBusy::new(&Sysctl::default(), options);
    ep.set_params(&suspending(), false).expect("allowed");
    ep.note_napi(NAPI_ID_MIN);
    let call = |available: bool| {
        let mut wait = EpollWait::begin(&ep, None, available, 0);
        let mut busy_loops = 0;
        while let WaitStep::Busy(_) = wait.next(&ep) {
            busy_loops += 1;
            assert_eq!(wait.busy_done(&ep, BusyDone { available: true, ..NOTHING }), None);
        }
        let _ = wait.copied(&ep, 1);
        busy_loops
    };
    // Two that return at once, then one that polls first, whether the list was ready at its begin or not; and so on.
    assert_eq!([true, true, true].map(call), [0, 0, 1]);
    assert_eq!([true, true, false].map(call), [0, 0, 1]);
    assert_eq!([true, false, true, true, true].map(call), [0, 1, 0, 0, 1]);
}

/// What is left in the ring by calls before each of which so many packets come in, and the polls of the last call.
fn ring_after_all(options: EpollOptions, packets: &[u32]) -> (u32, Vec<(By, u32)>) {
    let (mut toy, context) = suspended_with(2, options);
    let mut from = 0;
    for packets in packets {
        toy.packets(0, *packets);
        from = toy.polls.len();
        assert!(matches!(toy.epoll_wait(context, APP, None), Waited::Events(_)));
    }
    (toy.queues[0].ring, toy.polls_since(from))
}

/// The same with the one number of packets and then the other.
fn ring_after(options: EpollOptions, packets: [u32; 2], calls: [usize; 2]) -> (u32, Vec<(By, u32)>) {
    ring_after_all(options, &[vec![packets[0]; calls[0]], vec![packets[1]; calls[1]]].concat())
}

#[test]
fn edge_25_more_than_two_polls_of_a_call_take_fills_the_ring() {
    assert_eq!(ring_after(EpollOptions::strict_linux(), [200, 0], [100, 0]).0, 100 * (200 - 128));
}

#[test]
fn edge_25_mended_a_context_that_is_behind_polls_until_the_ring_is_empty() {
    let options = EpollOptions { catch_up: true, ..EpollOptions::strict_linux() };
    // The eighth full call is as any other. The ninth catches up, and so does each that follows for as long as polls are full.
    let behind = lull_core::BEHIND_CALLS;
    assert_eq!(ring_after(options, [200, 0], [8, 0]).0, behind * (200 - 128));
    let (ring, polls) = ring_after(options, [200, 0], [9, 0]);
    assert_eq!((ring, polls.len()), (0, 14));
    let (ring, polls) = ring_after(options, [200, 0], [30, 0]);
    assert_eq!(
        (ring, polls),
        (0, [64, 64, 64, 8].map(|work| (By::Busy, work)).into_iter().chain([(By::Stop, 0)]).collect())
    );
    // It goes on for as many calls that find less, since what comes in comes in waves.
    assert_eq!(ring_after(options, [200, 20], [30, 2]), (0, vec![(By::Busy, 20), (By::Stop, 0)]));
    let (ring, _) = ring_after(options, [200, 20], [30, behind as usize]);
    assert_eq!(ring, 0);
    let waves = [vec![300; 9], [20, 300].repeat(20)].concat();
    for calls in 9..waves.len() {
        assert_eq!(ring_after_all(options, &waves[..calls]).0, 0, "after {calls} calls");
    }
    let over = [vec![200; 30], vec![20; 10], vec![200]].concat();
    assert_eq!(ring_after_all(options, &over).0, 200 - 128, "a call as any other");
}

/// What it takes is bounded, whatever comes in meanwhile.
#[test]
fn edge_25_mended_a_call_takes_a_bounded_number_of_packets() {
    let options = EpollOptions { catch_up: true, ..EpollOptions::strict_linux() };
    let (ring, polls) = ring_after(options, [200, 10_000], [30, 1]);
    let taken: u32 = polls.iter().map(|(_, work)| work).sum();
    assert_eq!(u64::from(taken), lull_core::CATCH_UP_PACKETS + 64);
    assert_eq!(ring, 10_000 - taken);
}

/// Nor does it wait behind the events that are there: they are what the application is behind with.
#[test]
fn edge_25_mended_a_context_that_is_behind_polls_although_events_are_ready() {
    let options = EpollOptions { catch_up: true, ..EpollOptions::strict_linux() };
    let (mut toy, context) = suspended_with(2, options);
    for call in 0..20 {
        toy.packets(0, 200);
        toy.contexts[context].ready += usize::from(call >= 10);
        assert!(matches!(toy.epoll_wait(context, APP, None), Waited::Events(_)));
    }
    assert_eq!(toy.queues[0].ring, 0);
}

#[test]
fn edge_19_timeout_zero_neither_polls_nor_resumes() {
    let (mut toy, context) = suspended();
    let from = toy.polls.len();
    toy.packets(0, 1);
    for _ in 0..19 {
        toy.run_for(MS);
        assert_eq!(toy.epoll_wait(context, APP, Some(0)), Waited::Timeout);
    }
    assert_eq!(toy.polls_since(from), []);
    toy.run_for(MS);
    assert_eq!(toy.polls_since(from), [(By::Softirq, 1)], "left to the timer");
    assert_eq!(toy.epoll_wait(context, APP, Some(0)), Waited::Events(1));
}

#[test]
fn edge_19_mended_timeout_zero_polls_one_round_and_resumes() {
    let options = EpollOptions { timeout_zero: TimeoutZero::PollOnce, ..EpollOptions::strict_linux() };
    let (mut toy, context) = suspended_with(2, options);
    let from = toy.polls.len();
    toy.packets(0, 1);
    assert_eq!(toy.epoll_wait(context, APP, Some(0)), Waited::Events(1));
    assert_eq!(toy.polls_since(from), [(By::Busy, 1), (By::Stop, 0)]);
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, APP, Some(0)), Waited::Timeout);
    assert_eq!(toy.polls_since(from), [(By::Busy, 0), (By::Stop, 0), (By::Softirq, 0)]);
    assert_eq!(toy.timer_in(0), Some(GRO_FLUSH), "resumed");
    assert_eq!(toy.epoll_wait(context, APP, Some(0)), Waited::Timeout);
    assert_eq!(toy.polls.len(), from + 3, "without an id there is nothing to poll");
}

#[test]
fn edge_20_a_removed_instance_ends_the_busy_loop_and_zeroes_the_id() {
    let (mut toy, context) = suspended();
    let id = toy.napi(0).id();
    toy.disable(0);
    assert_eq!(toy.napi(0).id(), 0);
    let from = toy.polls.len();
    assert_eq!(toy.contexts[context].ep.napi_id(), id);
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Asleep);
    assert_eq!(toy.contexts[context].ep.napi_id(), 0);
    assert_eq!(toy.polls_since(from), []);
}

#[test]
fn edge_21_disable_during_busy_poll_waits_for_the_loops_own_limit() {
    let mut toy = Toy::new(1, settings(2, GRO_FLUSH, SUSPEND));
    let mut busier = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
    assert!(toy.busy_round(&mut busier));
    toy.napi(0).disable_begin();
    for _ in 0..3 {
        assert!(toy.busy_round(&mut busier), "no forced exit");
        assert!(!toy.disable_try(0));
        assert!(!toy.kick(0, 0), "refused");
        assert!(!toy.has(0, state::MISSED), "silently");
    }
    toy.busy_stop(busier);
    assert!(toy.disable_try(0), "at once after it");
    assert_eq!(toy.timer_in(0), None);
    assert_eq!(toy.napi(0).snapshot().bits(), state::SCHED | state::NPSVC);
}

#[test]
fn edge_22_a_copy_fault_with_nothing_copied_does_not_suspend() {
    let ep = EpollBusy::new(&Sysctl::default(), EpollOptions::strict_linux());
    ep.set_params(&suspending(), false).expect("allowed");
    ep.note_napi(NAPI_ID_MIN);
    // The executor returns the fault in place of `copied`, so no suspension is ever issued; stale events are no success.
    let mut wait = EpollWait::begin(&ep, Some(0), true, 0);
    assert_eq!(wait.next(&ep), WaitStep::Copy);
    assert_eq!(wait.copied(&ep, 0), None);
    assert_eq!(wait.next(&ep), WaitStep::Done(0));
    // One event before the fault is a success.
    let mut wait = EpollWait::begin(&ep, Some(0), true, 0);
    assert_eq!(wait.next(&ep), WaitStep::Copy);
    assert_eq!(wait.copied(&ep, 1), Some(WaitStep::Suspend(NAPI_ID_MIN)));
}

#[test]
fn edge_23_without_a_valid_id_nothing_is_ever_busy_polled() {
    let ep = EpollBusy::new(&Sysctl { busy_poll_usecs: 50, ..Sysctl::default() }, EpollOptions::mended());
    ep.set_params(&suspending(), false).expect("allowed");
    for no_id in [0, 1, NAPI_ID_MIN - 1] {
        assert_eq!(ep.note_napi(no_id), None); // a pipe, a loopback socket: no NAPI behind it
        let mut wait = EpollWait::begin(&ep, None, false, 0);
        assert_eq!(wait.next(&ep), WaitStep::Sleep(None));
        wait.woke(true, false);
        assert_eq!(wait.next(&ep), WaitStep::Copy);
        assert_eq!(wait.copied(&ep, 1), None, "nor suspended");
    }
    assert_eq!(ep.free().next(), None, "nor resumed");
}

#[test]
fn edge_24_a_plain_thread_can_be_overtaken_between_rounds_and_a_busy_one_cannot() {
    for busy in [false, true] {
        let mut toy = Toy::new(1, settings(2, GRO_FLUSH, 0));
        toy.threaded(0, busy);
        toy.packets(0, 1);
        assert!(toy.irq(0));
        assert!(toy.thread_round(0), "the first schedule enters the thread");
        let plan = lull_core::BusyPlan { end: BusyEnd::AfterUsecs(5), ..one_round(&toy, 0, true) };
        let mut busier = toy.busy_begin(plan, APP).expect("the id is known");
        assert_eq!(toy.busy_round(&mut busier), !busy);
        toy.busy_stop(busier);
        if busy {
            let from = toy.polls.len();
            toy.busy(plan, APP, |_| false);
            assert!(toy.polls_since(from).iter().all(|&(by, _)| by == By::Thread), "it spins until its own limit");
            assert!(toy.queues[0].masked && toy.has(0, state::IN_BUSY_POLL | state::SCHED_THREADED));
        }
        toy.assert_invariants();
    }
}

/// Packets that an application which polls nothing waits for, with a deferral that supposes one: each waits for the timer in Linux;
/// with the option the first alone does.
#[test]
fn a_deferral_that_ran_out_unpolled_is_the_last_until_somebody_polls() {
    for (unpolled, held_back) in [(Unpolled::Deferral, true), (Unpolled::Interrupt, false)] {
        let mut toy = Toy::new(1, NapiSettings { unpolled, ..settings(100, 5 * MS, 0) });
        let next = |toy: &mut Toy| {
            toy.packets(0, 1);
            toy.pending();
            (toy.queues[0].masked, toy.queues[0].ring, toy.timer_in(0))
        };
        assert_eq!(next(&mut toy), (true, 0, Some(5 * MS)), "somebody may poll");
        assert_eq!(next(&mut toy), (true, 1, Some(5 * MS)), "held back");
        toy.now_ns += 5 * MS;
        assert!(toy.timers(0));
        toy.softirq(0);
        assert_eq!((toy.queues[0].masked, toy.queues[0].ring), (held_back, 0));
        assert_eq!(next(&mut toy).1, u32::from(held_back));
        assert_eq!(toy.queues[0].masked, held_back);
        toy.check().unwrap();
    }
}

#[test]
fn whoever_polls_has_the_deferral_again() {
    let mut toy = Toy::new(1, NapiSettings { unpolled: Unpolled::Interrupt, ..settings(100, 5 * MS, 0) });
    let ran_out = |toy: &mut Toy| {
        toy.packets(0, 1);
        toy.pending();
        toy.now_ns += 5 * MS;
        assert!(toy.timers(0));
        toy.softirq(0);
        assert!(!toy.queues[0].masked);
    };
    ran_out(&mut toy);
    // The stop of a busy loop that prefers parks the queue for the timer; what came meanwhile finds it deferred.
    let plan = one_round(&toy, 0, true);
    toy.busy(plan, APP, |_| false);
    toy.packets(0, 1);
    toy.pending();
    assert!(toy.queues[0].masked && toy.timer_in(0).is_some());
    // An operator who turns the option off has what Linux has at once.
    toy.now_ns += 5 * MS;
    assert!(toy.timers(0));
    toy.softirq(0);
    toy.napi(0).set(&settings(100, 5 * MS, 0));
    toy.packets(0, 1);
    toy.pending();
    assert!(toy.queues[0].masked);
    toy.check().unwrap();
}
