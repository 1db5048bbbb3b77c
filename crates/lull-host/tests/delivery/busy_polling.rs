//! Busy polling by a worker.

use super::*;

#[test]
fn a_busy_loop_of_no_usecs_that_prefers_polls_exactly_twice() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    // The first packet's interrupt masks itself, and stays masked for an hour: nobody but the loop polls from then on.
    world.bound.set(suspension(0));
    assert!(world.client.send(1));
    world.bound.await_delivered(1);
    world.bound.await_released();
    for frames in [0, 5, 0] {
        let before = world.bound.stats();
        assert!(world.client.send(frames));
        worker.turn().busy_loop(&world.bound.plan(BusyEnd::OneRound), &mut |_| false);
        let two = world.bound.stats() - before;
        assert_eq!((two.busy_calls, two.polls, two.busy_polls, two.work), (1, 2, 2, frames as u64));
    }
    assert_eq!(world.host.napi_irqs(world.bound.napi), 1);
}

/// One that is polled beside others of its context, and deferred from then on, does not interrupt any more.
#[test]
fn the_only_poll_of_a_tour_masks_the_interrupt() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    let bound = &world.bound;
    bound.set(suspension(0));
    let tours = || worker.turn().busy_loop(&bound.plan(BusyEnd::LastPoll), &mut |_| false);
    tours();
    assert!(world.client.send(1));
    await_standing_by(&world.host);
    assert_eq!((bound.delivered(), world.host.napi_irqs(bound.napi)), (0, 0), "it was not masked");
    tours();
    assert_eq!((bound.delivered(), world.host.napi_irqs(bound.napi)), (1, 0));
    // The timer that the poll started gives the queue back to its interrupt.
    bound.set(NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 1, ..NapiSettings::default() });
    let polls = bound.stats().polls;
    tours();
    eventually("the timer's poll", || bound.stats().polls == polls + 2);
    bound.await_released();
    assert!(world.client.send(1));
    bound.await_delivered(2);
    assert_eq!(world.host.napi_irqs(bound.napi), 1);
}

#[test]
fn a_busy_loop_ends_when_there_is_something() {
    let world = World::new();
    let worker = Worker::new(&world.host, 0).unwrap();
    let bound = &world.bound;
    let mut sent = false;
    let plan = bound.plan(BusyEnd::AfterUsecs(i32::MAX as u32));
    worker.turn().busy_loop(&plan, &mut |_| {
        if !std::mem::replace(&mut sent, true) {
            assert!(world.client.send(1));
        }
        bound.delivered() == 1
    });
    assert_eq!(bound.delivered(), 1);
    bound.await_released();
    assert!(world.client.send(1));
    bound.await_delivered(2);
}
