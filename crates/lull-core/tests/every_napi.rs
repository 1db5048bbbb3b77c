//! An epoll context on several instances: edges 14 to 17 of §13 with `EpollOptions::every_napi`. What Linux does stands in
//! `edges.rs`.

#![allow(missing_docs)]

mod toy;

use std::collections::BTreeSet;

use lull_core::{
    BusyDone, EpollBusy, EpollOptions, EpollParams, EpollWait, NAPI_ID_MIN, Sysctl, TimeoutZero, WaitStep, state,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use toy::{By, MS, Toy, US, Waited, one_round, settings, suspending};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;
const APP: u16 = 1;
const QUEUES: usize = 4;
/// Calls that find events, but none of an instance, after which it is forgotten.
const IDLE_CALLS: usize = 64;

fn every() -> EpollOptions {
    EpollOptions { every_napi: true, ..EpollOptions::strict_linux() }
}

/// A context whose application computes while all four of its instances are suspended.
fn suspended() -> (Toy, usize) {
    suspended_with(every())
}

fn suspended_with(options: EpollOptions) -> (Toy, usize) {
    let mut toy = Toy::new(QUEUES, settings(2, GRO_FLUSH, SUSPEND));
    let context = toy.context(&[0, 1, 2, 3], suspending(), options);
    (0..QUEUES).for_each(|queue| toy.packets(queue, 1));
    toy.pending();
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(QUEUES));
    (toy, context)
}

fn timers(toy: &Toy) -> Vec<Option<u64>> {
    (0..QUEUES).map(|queue| toy.timer_in(queue)).collect()
}

#[test]
fn edges_14_and_15_mended_each_instance_is_suspended_and_polled_in_turn() {
    let (mut toy, context) = suspended();
    assert_eq!(timers(&toy), [Some(SUSPEND); QUEUES]);
    // What comes while the application computes waits for it, wherever it comes.
    let from = toy.polls.len();
    (1..QUEUES).for_each(|queue| toy.packets(queue, 1));
    toy.run_for(SUSPEND / 2);
    assert_eq!(toy.polls.len(), from);
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(QUEUES - 1));
    // The last poll of each busy call is its only one, and none was by softirq.
    for queue in 0..QUEUES {
        let polls: Vec<By> = toy.polls[from..].iter().filter(|poll| poll.queue == queue).map(|poll| poll.by).collect();
        assert_eq!(polls, [By::Stop], "queue {queue}");
    }
    assert_eq!(timers(&toy), [Some(SUSPEND); QUEUES]);
    toy.assert_invariants();
}

#[test]
fn edges_14_and_15_mended_an_idle_context_resumes_each_instance() {
    let (mut toy, context) = suspended();
    assert_eq!(toy.epoll_wait(context, APP, Some(1)), Waited::Timeout);
    assert!(timers(&toy).iter().all(|timer| timer.is_none_or(|ns| ns <= GRO_FLUSH)), "{:?}", timers(&toy));
    toy.run_for(MS);
    let masked: Vec<bool> = toy.queues.iter().map(|queue| queue.masked).collect();
    assert_eq!(masked, [false; QUEUES], "the interrupts are back");
    toy.assert_invariants();
}

/// Whoever sleeps has its interrupts unmasked, and the first of them wakes it. The others stay quiet while the application works.
#[test]
fn who_is_woken_is_not_interrupted_by_its_other_instances() {
    let (mut toy, context) = suspended_with(EpollOptions { tour_when_woken: true, ..every() });
    let later_ns = toy.now_ns + MS;
    toy.packets_at(later_ns, 0, 1);
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(1));
    assert!(toy.now_ns >= later_ns, "it slept");
    assert_eq!(timers(&toy), [Some(SUSPEND); QUEUES]);
    let irqs = |toy: &Toy| toy.queues.iter().map(|queue| queue.irqs).sum::<u64>();
    let before = irqs(&toy);
    (1..QUEUES).for_each(|queue| toy.packets(queue, 1));
    toy.run_for(SUSPEND / 2);
    assert_eq!(irqs(&toy), before);
    assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(QUEUES - 1));
    toy.assert_invariants();
}

#[test]
fn edge_11_mended_a_freed_context_resumes_each_instance() {
    let (mut toy, context) = suspended();
    toy.free(context, APP);
    assert!(timers(&toy).iter().all(|timer| timer.is_none_or(|ns| ns <= GRO_FLUSH)), "{:?}", timers(&toy));
}

#[test]
fn an_instance_without_events_is_forgotten_and_resumed_while_others_are_busy() {
    let (mut toy, context) = suspended();
    for call in 0.. {
        toy.packets(0, 1);
        assert_eq!(toy.epoll_wait(context, APP, None), Waited::Events(1));
        if toy.timer_in(3).is_none_or(|ns| ns <= GRO_FLUSH) {
            assert!(call >= IDLE_CALLS, "not while it may still bring something: {call}");
            break;
        }
        assert!(call < 2 * IDLE_CALLS, "it is asked for ever");
    }
    assert_eq!(toy.timer_in(0), Some(SUSPEND));
    // It interrupts, and is a part of the next tour.
    toy.run_for(MS);
    assert!(!toy.queues[3].masked);
    toy.packets(3, 1);
    toy.pending();
    assert!(matches!(toy.epoll_wait(context, APP, None), Waited::Events(_)));
    assert_eq!(toy.timer_in(3), Some(SUSPEND));
    toy.assert_invariants();
}

/// Edge 16 is no weak spot of one context: the idle one has to be woken for what comes to it, so it resumes.
#[test]
fn edge_16_stands_the_idle_context_cancels_the_busy_ones_suspension() {
    let (mut toy, _) = suspended();
    let idle = toy.context(&[], suspending(), every());
    toy.wake(idle, 0, 0, 2);
    assert_eq!(toy.epoll_wait(idle, 2, Some(1)), Waited::Timeout);
    assert!(toy.timer_in(0).is_some_and(|ns| ns <= GRO_FLUSH), "{:?}", toy.timer_in(0));
    assert!(timers(&toy)[1..].iter().all(|timer| timer.is_some_and(|ns| ns > SUSPEND / 2)), "{:?}", timers(&toy));
    toy.assert_invariants();
}

#[test]
fn edge_17_mended_a_loser_of_the_poll_neither_resumes_nor_forgets() {
    let (mut toy, context) = suspended();
    let mut winner = toy.busy_begin(one_round(&toy, 0, true), APP).expect("the id is known");
    assert!(toy.busy_round(&mut winner));
    let from = toy.polls.len();
    assert_eq!(toy.epoll_wait(context, 2, Some(1)), Waited::Timeout);
    assert!(toy.polls[from..].iter().all(|poll| poll.queue != 0), "the loser polled nothing there");
    assert_eq!(toy.contexts[context].ep.free().count(), QUEUES, "and the winner's instance is still the context's");
    assert!(!toy.has(0, state::MISSED), "nobody resumed it under its owner");
    toy.busy_stop(winner);
    toy.assert_invariants();
}

/// A thread suspends an instance in the moment in which another forgets it, because it has aged: it is resumed by both, because
/// nobody would ask it any more before its timer. `loom_models/every_napi.rs` has the interleavings.
#[test]
fn an_instance_that_is_forgotten_while_it_is_suspended_is_resumed() {
    const OLD: u32 = NAPI_ID_MIN;
    const BUSY: u32 = NAPI_ID_MIN + 1;
    const FOUND: BusyDone = BusyDone { available: true, gone: false, most: 0, now_ns: 0 };
    let ep = EpollBusy::new(&Sysctl::default(), every());
    ep.set_params(&suspending(), false).expect("allowed");
    ep.note_napi(OLD);
    ep.note_napi(BUSY);
    let mut returning = EpollWait::begin(&ep, None, true, 0);
    assert_eq!(returning.next(&ep), WaitStep::Copy);
    assert_eq!(returning.copied(&ep, 1), None);
    assert_eq!(returning.next(&ep), WaitStep::Suspend(OLD));
    // Another thread finds events of the other instance, again and again.
    let resumed = (0..=IDLE_CALLS).find_map(|_| {
        let (mut other, mut resumed) = (EpollWait::begin(&ep, None, false, 0), None);
        loop {
            match other.next(&ep) {
                WaitStep::Busy(_) => {
                    ep.note_napi(BUSY);
                    assert_eq!(other.busy_done(&ep, FOUND), None);
                }
                WaitStep::Resume(id) => resumed = Some(id),
                WaitStep::Copy => assert_eq!(other.copied(&ep, 1), None),
                WaitStep::Suspend(_) => {}
                WaitStep::Sleep(_) => panic!("there are events"),
                WaitStep::Done(_) => return resumed,
            }
        }
    });
    assert_eq!(resumed, Some(OLD), "who forgets it resumes it, since it may have been suspended before");
    assert_eq!(ep.free().collect::<Vec<u32>>(), [BUSY]);
    // And who suspended it after that resumes it, too.
    assert_eq!(returning.next(&ep), WaitStep::Resume(OLD));
    assert_eq!(returning.next(&ep), WaitStep::Suspend(BUSY));
    assert_eq!(returning.next(&ep), WaitStep::Done(1));
}

/// Edge 20: an instance that is gone is forgotten at once, also while the context spins on others, which are gone, too.
#[test]
fn edge_20_mended_instances_that_are_gone_are_forgotten() {
    let (mut toy, context) = suspended();
    let spinning = EpollParams { busy_poll_usecs: 50, ..suspending() };
    toy.contexts[context].ep.set_params(&spinning, true).expect("allowed");
    (0..QUEUES - 1).for_each(|queue| toy.disable(queue));
    assert_eq!(toy.epoll_wait(context, APP, Some(1)), Waited::Timeout);
    let left: Vec<u32> = toy.contexts[context].ep.free().collect();
    assert_eq!(left, [toy.napi(QUEUES - 1).id()]);
    toy.disable(QUEUES - 1);
    assert_eq!(toy.epoll_wait(context, APP, Some(1)), Waited::Timeout);
    assert_eq!(toy.contexts[context].ep.free().count(), 0);
}

// ---- any sequence ----

#[derive(Clone, Debug)]
struct Answer {
    events: usize,
    available: bool,
    timed_out: bool,
    /// The executor knows that nothing waits for the instance.
    idle: bool,
    /// An instance that wakes the context before the answer.
    wakeup: Option<u32>,
}

#[derive(Clone, Debug)]
struct Call {
    timeout_ns: Option<u64>,
    available: bool,
    answers: Vec<Answer>,
}

fn call() -> impl Strategy<Value = Call> {
    let wakeup = prop::option::weighted(0.4, NAPI_ID_MIN..NAPI_ID_MIN + 6);
    let answer = (0..3usize, any::<bool>(), any::<bool>(), any::<bool>(), wakeup)
        .prop_map(|(events, available, timed_out, idle, wakeup)| Answer { events, available, timed_out, idle, wakeup });
    let timeout = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(MS))];
    (timeout, any::<bool>(), prop::collection::vec(answer, 1..24)).prop_map(|(timeout_ns, available, answers)| Call {
        timeout_ns,
        available,
        answers,
    })
}

/// One thread's calls. Whatever the order of events: when the thread sleeps, no instance that it suspended is left to its
/// timer (each was resumed, or polled since); and between two looks at the ready list no instance
/// is polled twice.
#[test]
fn a_thread_that_sleeps_leaves_no_instance_suspended() {
    let options = (0..4u32, any::<bool>(), any::<bool>()).prop_map(|(poll_after_returns, once, tour_when_woken)| {
        let timeout_zero = if once { TimeoutZero::PollOnce } else { TimeoutZero::Return };
        EpollOptions { poll_after_returns, timeout_zero, tour_when_woken, ..every() }
    });
    let inputs = (options, prop::collection::vec(call(), 1..20));
    let config = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&inputs, |(options, calls)| {
            let ep = EpollBusy::new(&Sysctl::default(), options);
            let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
            prop_assert!(ep.set_params(&params, false).is_ok());
            let (mut suspended, mut polled) = (BTreeSet::new(), BTreeSet::new());
            for Call { timeout_ns, available, answers } in calls {
                let mut wait = EpollWait::begin(&ep, timeout_ns, available, 0);
                let (mut toured, mut left_out) = (BTreeSet::new(), BTreeSet::new());
                let mut answers = answers.into_iter();
                loop {
                    let step = wait.next(&ep);
                    match step {
                        WaitStep::Suspend(id) => {
                            suspended.insert(id);
                            continue;
                        }
                        WaitStep::Resume(id) => {
                            suspended.remove(&id);
                            continue;
                        }
                        WaitStep::Done(_) => break,
                        WaitStep::Sleep(_) => {
                            prop_assert_eq!(&suspended, &BTreeSet::new());
                            // Nothing was found anywhere.
                            polled.clear();
                        }
                        WaitStep::Copy | WaitStep::Busy(_) => {}
                    }
                    let Some(answer) = answers.next() else { break };
                    if let Some(id) = answer.wakeup {
                        prop_assert_eq!(ep.note_napi(id), None);
                    }
                    match step {
                        WaitStep::Busy(plan) if answer.idle && wait.may_leave_out(&ep) => {
                            prop_assert!(polled.contains(&plan.napi_id), "{} may interrupt", plan.napi_id);
                            left_out.insert(plan.napi_id);
                            wait.left_out(&ep, answer.available, 0);
                        }
                        WaitStep::Busy(plan) => {
                            // Again only in a tour for those who were left out of the one before.
                            let again = !toured.insert(plan.napi_id);
                            prop_assert!(!again || !left_out.is_empty(), "{} is polled twice", plan.napi_id);
                            polled.insert(plan.napi_id);
                            // The poll's end replaces the long timer; so does the one of whoever owned it.
                            suspended.remove(&plan.napi_id);
                            let done = BusyDone { available: answer.available, gone: false, most: 0, now_ns: 0 };
                            prop_assert_eq!(wait.busy_done(&ep, done), None);
                        }
                        WaitStep::Copy => {
                            toured.clear();
                            left_out.clear();
                            prop_assert_eq!(wait.copied(&ep, answer.events), None);
                        }
                        _ => {
                            toured.clear();
                            left_out.clear();
                            wait.woke(answer.available, answer.timed_out);
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
