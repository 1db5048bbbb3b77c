//! NAPI threads (§10).

use super::*;

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
